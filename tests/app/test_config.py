"""Where settings come from, and that no mistake turns into a default."""

from datetime import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from app.config import ConfigError, Settings, load_settings, parse_bytes, parse_clock


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"NIGHTOWL_DATA_DIR": str(tmp_path), "HOME": str(tmp_path)}


def write_config(environ: dict[str, str], text: str) -> None:
    Path(environ["NIGHTOWL_DATA_DIR"], "config.toml").write_text(text, encoding="utf-8")


def test_defaults_hold_when_nothing_is_set(environ):
    settings = load_settings(environ)
    assert (settings.host, settings.port, settings.base_model) == (
        "127.0.0.1",
        8077,
        "smollm2-135m",
    )
    assert settings.max_body_bytes == 2 * 1024 * 1024
    assert settings.night_at == time(3)


def test_the_data_folder_is_the_platforms_unless_named():
    assert load_settings({}).data_dir.name == "nightowl"
    assert load_settings({}).data_dir.is_absolute()


def test_paths_are_derived_from_the_data_folder(environ, tmp_path):
    settings = load_settings(environ)
    paths = [settings.db, settings.models, settings.experts, settings.runs, settings.token]
    names = ["nightowl.db", "models", "experts", "runs", "token"]
    assert paths == [tmp_path / name for name in names]


def test_models_can_live_outside_the_data_folder(environ, tmp_path):
    environ["NIGHTOWL_MODELS_DIR"] = str(tmp_path / "shared")
    assert load_settings(environ).models == tmp_path / "shared"


def test_a_home_folder_is_expanded(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_settings({"NIGHTOWL_DATA_DIR": "~/owl"}).data_dir == tmp_path / "owl"


def test_loading_creates_nothing(tmp_path):
    load_settings({"NIGHTOWL_DATA_DIR": str(tmp_path / "new")})
    assert list(tmp_path.iterdir()) == []


def test_options_win_over_the_environment_and_it_over_the_file(environ):
    write_config(environ, "port = 1\nalpha = 0.01\nmin_heldout = 7\n")
    environ |= {"NIGHTOWL_PORT": "2", "NIGHTOWL_ALPHA": "0.02"}
    settings = load_settings(environ, {"port": 3})
    assert (settings.port, settings.alpha, settings.min_heldout) == (3, 0.02, 7)


def test_the_file_is_that_of_the_data_folder_given_as_an_option(environ, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.toml").write_text("port = 5\n", encoding="utf-8")
    assert load_settings(environ, {"data_dir": tmp_path / "other"}).port == 5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("duty_cycle", "1e-300"),
        ("duty_cycle", "0"),
        ("duty_cycle", "nan"),
        ("idle_after_s", "inf"),
        ("step_limit_s", "inf"),
        ("probe_after_s", "1e9"),
    ],
)
def test_a_value_nobody_can_mean_is_refused(environ, key, value):
    with pytest.raises(ConfigError, match=key.upper()):
        load_settings(environ | {f"NIGHTOWL_{key.upper()}": value})


def test_text_of_the_environment_takes_its_type(environ):
    environ |= {"NIGHTOWL_NIGHT_ENABLED": "false", "NIGHTOWL_NIGHT_AT": "23:45"}
    settings = load_settings(environ)
    assert settings.night_enabled is False
    assert settings.night_at == time(23, 45)


def test_an_unknown_variable_is_an_error_that_names_it(environ):
    with pytest.raises(ConfigError, match=r"^NIGHTOWL_PROT: is not a setting") as caught:
        load_settings(environ | {"NIGHTOWL_PROT": "1"})
    assert caught.value.key == "NIGHTOWL_PROT"


def test_an_unknown_key_of_the_file_is_an_error_that_names_it(environ):
    write_config(environ, "prot = 1\n")
    with pytest.raises(ConfigError, match=r"^prot in config\.toml: is not a setting"):
        load_settings(environ)


def test_an_unknown_option_is_an_error_that_names_it(environ):
    with pytest.raises(ConfigError, match=r"^prot: is not a setting"):
        load_settings(environ, {"prot": 1})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("port", "70000"),
        ("port", "eighty"),
        ("host", "0.0.0.0"),
        ("host", "example.com"),
        ("memory_budget", "much"),
        ("memory_budget", "0"),
        ("night_at", "25:00"),
        ("night_enabled", "perhaps"),
        ("heldout_fraction", "1"),
        ("min_heldout", "0"),
        ("alpha", "nan"),
        ("log_level", "loud"),
        ("base_model", ""),
    ],
)
def test_a_bad_value_is_an_error_that_names_its_key(environ, key, value):
    variable = f"NIGHTOWL_{key.upper()}"
    with pytest.raises(ConfigError, match=f"^{variable}: "):
        load_settings(environ | {variable: value})


def test_a_bad_value_of_the_file_is_named_as_such(environ):
    write_config(environ, "port = 'x'\n")
    with pytest.raises(ConfigError, match=r"^port in config\.toml: "):
        load_settings(environ)


def test_the_file_cannot_move_the_data_folder(environ):
    write_config(environ, "data_dir = '/elsewhere'\n")
    with pytest.raises(ConfigError, match=r"^data_dir in config\.toml: "):
        load_settings(environ)


@pytest.mark.parametrize("content", [b"port = ", b"\xff\xfe"])
def test_a_broken_file_is_an_error(environ, tmp_path, content):
    (tmp_path / "config.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"^config\.toml: is not valid TOML"):
        load_settings(environ)


def test_a_file_that_cannot_be_read_is_an_error(environ, tmp_path):
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(ConfigError, match=r"^config\.toml: cannot be read"):
        load_settings(environ)


def test_settings_are_frozen(environ):
    with pytest.raises(ValidationError):
        load_settings(environ).port = 1


def test_settings_survive_a_round_trip_through_json(environ):
    settings = load_settings(environ | {"NIGHTOWL_NIGHT_AT": "04:05"})
    assert '"night_at":"04:05"' in settings.model_dump_json()
    assert Settings.model_validate_json(settings.model_dump_json()) == settings


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback_hosts_are_accepted(environ, host):
    assert load_settings(environ | {"NIGHTOWL_HOST": host}).host == host


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4GB", 4 * 10**9),
        ("4 gb", 4 * 10**9),
        ("1.5G", 1_500_000_000),
        ("512MiB", 512 * 2**20),
        ("2KiB", 2048),
        ("1tb", 10**12),
        ("100", 100),
        ("100B", 100),
        (100, 100),
    ],
)
def test_sizes_are_read_as_people_write_them(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "value", ["", "GB", "4XB", "-1GB", "1e9", "4GBs", "1iB", "٤GB", "9" * 400, True, 1.5, None]
)
def test_what_is_no_size_is_refused(value):
    with pytest.raises(ValueError, match="must be bytes"):
        parse_bytes(value)


@given(st.times())
def test_clock_times_round_trip_to_the_minute(at):
    assert parse_clock(at.strftime("%H:%M")) == at.replace(second=0, microsecond=0)


@pytest.mark.parametrize(
    "value", ["3:00", "24:00", "03:60", "03:00:00", "03:00\n", 3, None, time(3, 0, 1)]
)
def test_what_is_no_clock_time_is_refused(value):
    with pytest.raises(ValueError, match="time of day"):
        parse_clock(value)
