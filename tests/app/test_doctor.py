"""What the doctor finds, and where it says each setting comes from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app import doctor
from app.config import Settings
from tests import tiny
from tests.app.serving import Service


def test_each_setting_names_its_origin(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('alpha = 0.01\nlog_level = "error"\n')
    environ = {"NIGHTOWL_DATA_DIR": str(tmp_path), "NIGHTOWL_LOG_LEVEL": "debug"}
    settings, origins = doctor.settings_with_origins({"port": 1234}, environ)
    assert (settings.port, settings.alpha, settings.log_level) == (1234, 0.01, "debug")
    assert origins.keys() == Settings.model_fields.keys()
    assert origins["port"] == "option"
    assert origins["data_dir"] == "NIGHTOWL_DATA_DIR"
    assert origins["log_level"] == "NIGHTOWL_LOG_LEVEL"
    assert origins["alpha"] == "config.toml"
    assert origins["host"] == "default"


def test_broken_models_do_not_hide_good_ones(tmp_path: Path) -> None:
    tiny.build(tmp_path / "good")
    tiny.build(tmp_path / "bad")
    (tmp_path / "bad" / "config.json").write_text("{")
    good, broken = doctor.found_models(tmp_path)
    assert [info.name for info in good] == ["good"]
    assert [model["name"] for model in broken] == ["bad"]
    assert "config.json" in broken[0]["error"]
    assert doctor.found_models(tmp_path / "missing") == ([], [])


def test_the_matmul_speed_is_positive_on_every_number_of_streams() -> None:
    speed = doctor.matmul_speed(size=64, seconds=0.0)
    assert speed["gflops_one_stream"] > 0
    assert speed["gflops_all_streams"] > 0
    assert speed["streams"] >= 1


def test_a_fresh_machine_is_told_what_is_missing(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "new", port=1)
    report = doctor.examine(settings, dict.fromkeys(Settings.model_fields, "default"))
    text = "\n".join(doctor.lines(report))
    assert "nightowl model pull smollm2-135m" in text
    assert "nightowl serve" in report["service"]
    assert report["disk_free_bytes"]["data"] > 0
    assert not settings.data_dir.exists()


def test_a_running_service_and_its_model_are_found(service: Service) -> None:
    port = int(service.url.rsplit(":", 1)[1])
    settings = service.parts.settings.model_copy(update={"port": port})
    report = doctor.examine(settings, dict.fromkeys(Settings.model_fields, "default"))
    assert report["base_model"] == {"name": settings.base_model, "problem": None}
    assert f"answers at {service.url}, status ok" in "\n".join(doctor.lines(report))


def test_a_service_elsewhere_is_found_at_its_address(service: Service) -> None:
    settings = service.parts.settings.model_copy(update={"port": 1})
    origins = dict.fromkeys(Settings.model_fields, "default")
    report = doctor.examine(settings, origins, service.url)
    assert report["service"].startswith(f"answers at {service.url}, status ok")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (299_520, "299.5 kB"), (4 * 10**9, "4.0 GB")],
)
def test_sizes_are_written_for_people(count: int, text: str) -> None:
    assert doctor.size(count) == text


def test_the_command_line_starts_without_mlx() -> None:
    program = "import app.cli, app.doctor, app.demo, sys; print('mlx.core' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout == "False\n"
