"""The command line, against a real service: results, errors on one line, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from app import cli
from app.main import listen
from tests import tiny
from tests.app.serving import (
    GRADER,
    JOB,
    Service,
    add_expert,
    episode,
    fresh,
    serving,
    settings_of,
)

COMMAND = [sys.executable, "-m", "app.cli"]


@dataclass(frozen=True)
class Ran:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture(autouse=True)
def no_settings_of_the_tester(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("NIGHTOWL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NIGHTOWL_DATA_DIR", str(tmp_path / "unused"))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process."""

    def invoke(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["nightowl", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return Ran(int(ended.value.code or 0), captured.out, captured.err)

    return invoke


@pytest.fixture
def ask(run: Run, service: Service) -> Run:
    """Runs a command on the shared service."""
    place = ("--data-dir", service.parts.settings.data_dir, "--url", service.url)
    return lambda *arguments: run(*place, *arguments)


def one_line(ran: Ran) -> str:
    """The one line that a failed command printed."""
    assert ran.code == 1
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("nightowl: ")
    return ran.err


def commands() -> list[tuple[str, ...]]:
    """The paths of all commands and groups."""

    def below(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        for name, child in getattr(command, "commands", {}).items():
            yield from below(child, (*path, name))

    return list(below(typer.main.get_command(cli.cli), ()))


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_every_command_has_help_with_an_example_of_itself(run: Run, path: tuple[str, ...]) -> None:
    ran = run(*path, "--help")
    text = " ".join(ran.out.split())
    assert ran.code == 0
    groups = ("model", "task", "grader", "episode", "expert", "schedule")
    if path not in {(group,) for group in groups}:
        assert f"Example: {' '.join(('nightowl', *path))}" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["serve", "--port", "x"],
        ["serve", "--port", "70000"],
        ["train"],
        ["demo", "--minutes", "0"],
    ],
)
def test_wrong_usage_is_exit_code_2(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["task", "create", "t", "--grader", "{"],
        ["task", "create", "t", "--grader", "@/no/such/file"],
        ["schedule", "set"],
        ["schedule", "set", "--at", "25:00"],
        ["train", "t", "--set", "lr"],
    ],
)
def test_a_malformed_argument_is_exit_code_2(ask: Run, arguments: list[str]) -> None:
    ran = ask(*arguments)
    assert ran.code == 2
    assert "Traceback" not in ran.err


def test_a_wrong_setting_is_exit_code_2_and_named(run: Run, monkeypatch: Any) -> None:
    monkeypatch.setenv("NIGHTOWL_PORTT", "1")
    ran = run("doctor")
    assert ran.code == 2
    assert "NIGHTOWL_PORTT" in ran.err


def test_without_a_service_the_remedy_is_said(run: Run) -> None:
    assert "nightowl serve" in one_line(run("task", "list"))


def test_a_bug_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("app.cli.models.resolve", fail)
    assert "ZeroDivisionError: by zero" in one_line(run("model", "show", "x"))
    monkeypatch.setenv("NIGHTOWL_LOG_LEVEL", "debug")
    monkeypatch.setattr(sys, "argv", ["nightowl", "model", "show", "x"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_a_task_is_created_listed_shown_and_deleted(ask: Run, tmp_path: Path) -> None:
    name = fresh()
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Answer briefly.")
    grader = json.dumps(GRADER)
    options = ("--grader", grader, "--system-prompt", f"@{prompt}", "--set", "lr=0.1")
    made = ask("task", "create", name, *options, "--set", "fitness=score", "--json").json
    assert made["system_prompt"] == "Answer briefly."
    assert made["training"] == {"lr": 0.1, "fitness": "score"}
    assert name in [task["name"] for task in ask("task", "list", "--json").json]
    assert name in ask("task", "list").out
    assert ask("task", "show", name).json == made
    assert ask("task", "delete", name, "--yes").code == 0
    assert name in one_line(ask("task", "show", name))


def test_a_task_is_regraded_after_its_grader_was_changed(
    ask: Run, client: Any, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.add_episodes([episode(task, n) for n in range(69)] + [episode(task, item={})])
    client.update_task(task, grader=GRADER | {"operation": "ilike"})
    monkeypatch.setattr("app.api.grading.REGRADE_S", 0.0)
    ran = ask("task", "regrade", task)
    assert ran.out == "70 episodes are graded anew; now 69 passed, 0 failed, 1 errored (1 item)\n"
    assert "episodes 70/70" in ran.err
    assert ask("task", "regrade", task).out.startswith("0 episodes are graded anew; now 69 passed")
    assert ask("task", "regrade", task, "--errored", "--json").json["graded"] == 1


def test_the_trust_in_a_task_is_shown(ask: Run, client: Any, task: str) -> None:
    client.add_episodes([episode(task, n, item={"answer": "on"}) for n in range(40)])
    client.add_episode(episode(task, 0, completion="on", item={"answer": "on"}))
    out = ask("task", "trust", task).out
    assert out.startswith("Hackable: ")
    assert "answered  on" in out
    assert "tells 1 of 1 prompts' different answers apart (100%)" in out
    assert ask("task", "trust", task, "--json").json["hackable"] is True


def test_graders_are_listed_and_one_is_tried_on_a_task(ask: Run, client: Any, task: str) -> None:
    assert "string_check" in ask("grader", "list").out
    client.add_episodes([episode(task), episode(task, completion="ON 0"), episode(task, item={})])
    config = json.dumps(GRADER | {"operation": "ilike"})
    out = ask("grader", "validate", config, "--task", task).out
    assert "of the last 3 episodes 2 pass, 0 fail, 1 cannot be graded" in out
    assert "of 3 with a grade 1 would change" in out
    assert "failed -> passed" in out and "item: the item has no field 'answer'" in out
    assert ask("grader", "validate", config, "--json").json["dry_run"] is None
    refused = ask("grader", "validate", json.dumps(GRADER | {"operation": "is"}))
    assert "grader.operation" in one_line(refused)


def test_a_refusal_of_the_service_is_one_line(ask: Run, task: str) -> None:
    refused = ask("task", "create", task, "--grader", '{"type": "string_check"}')
    assert task in one_line(refused)
    one_line(ask("train", task, "--set", "population=3"))


def write_lines(file: Path, entries: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return file


def test_a_file_imported_twice_is_stored_once(ask: Run, task: str, tmp_path: Path) -> None:
    entries = [episode(task, n) for n in (1, 2, 1)]
    file = write_lines(tmp_path / "episodes.jsonl", entries)
    for _ in range(2):
        assert ask("episode", "import", file).out.startswith("3 episodes are stored, 3 of them")
    lines = ask("episode", "export", "--task", task).out.splitlines()
    assert [json.loads(line)["completion"] for line in lines] == ["on 1", "on 2", "on 1"]


def test_what_was_exported_can_be_imported_into_another_task(
    ask: Run, task: str, client: Any, tmp_path: Path
) -> None:
    client.add_episodes([episode(task, n, group=f"g{n}") for n in range(449)])
    call = {"id": "c1", "type": "function", "function": {"name": "off", "arguments": {"a": 1}}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    client.add_episodes([episode(task, 449) | {"completion": answer}])
    exported = tmp_path / "out.jsonl"
    assert ask("episode", "export", "--task", task, "--output", exported).code == 0
    entries = [json.loads(line) for line in exported.read_text().splitlines()]
    other = client.create_task(fresh(), GRADER).name
    moved = [{k: v for k, v in entry.items() if k != "task"} for entry in entries]
    file = write_lines(tmp_path / "in.jsonl", moved)
    assert ask("episode", "import", file, "--task", other).code == 0
    kept = ("messages", "completion", "tool_calls", "item", "group")
    assert [[getattr(e, key) for key in kept] for e in client.episodes(other)] == [
        [entry[key] for key in kept] for entry in entries
    ]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "line 2 is not JSON"),
        ("[]", "line 2 is not a JSON object"),
        ('{"messages": []}', "line 2 names no task"),
        ('{"task": "no-such-task", "nonsense": 1}', "episode 2"),
    ],
)
def test_a_bad_line_is_named(ask: Run, task: str, tmp_path: Path, line: str, told: str) -> None:
    file = tmp_path / "episodes.jsonl"
    file.write_text(json.dumps(episode(task)) + "\n" + line + "\n")
    assert told in one_line(ask("episode", "import", file))


def test_a_file_that_cannot_be_read_or_written_is_named(ask: Run, task: str) -> None:
    assert "/no/such.jsonl: No such file" in one_line(ask("episode", "import", "/no/such.jsonl"))
    one_line(ask("episode", "export", "--task", task, "--output", "/no/such/out.jsonl"))


def test_experts_are_listed_activated_rolled_back_and_exported(
    ask: Run, service: Service, task: str, tmp_path: Path
) -> None:
    first, second = (add_expert(service.parts, task, seed) for seed in (1, 2))
    assert ask("expert", "activate", f"{task}@1", "--json").json["state"] == "active"
    assert f"{task}@2 answers" in ask("expert", "activate", second.id[:12]).out
    states = {e["id"]: e["state"] for e in ask("expert", "list", "--task", task, "--json").json}
    assert states == {first.id: "retired", second.id: "active"}
    assert f"{task}@1" in ask("expert", "list").out
    assert ask("expert", "rollback", task, "--json").json["active"] == f"{task}@1"
    assert f"{task}@1" in ask("expert", "export", f"{task}@1", "--output", tmp_path / "x").out
    stored = service.parts.settings.experts / first.id
    for name in ("expert.safetensors", "manifest.json"):
        assert (tmp_path / "x" / name).read_bytes() == (stored / name).read_bytes()
    assert "expert list" in one_line(ask("expert", "activate", f"{task}@9"))


def test_the_schedule_is_shown_and_changed(ask: Run) -> None:
    assert ask("schedule", "set", "--at", "04:30", "--json").json["at"] == "04:30"
    assert "04:30" in ask("schedule", "show").out
    assert ask("schedule", "set", "--off", "--json").json["enabled"] is False
    assert "not run by themselves" in ask("schedule", "show").out


def test_train_watches_the_job_to_its_end(ask: Run, task: str, client: Any) -> None:
    client.add_episodes([episode(task, n) for n in range(40)])
    options = [part for key, value in JOB.items() for part in ("--set", f"{key}={value}")]
    ran = ask("train", task, *options, "--seed", 3, "--json")
    assert ran.code == 0
    assert (ran.json["status"], ran.json["seed"], ran.json["trigger"]) == ("rejected", 3, "cli")
    assert "training 100 % iteration 2" in ran.err
    assert f"{task}: rejected: " in ask("train", task, *options).out


def test_a_night_trains_only_tasks_with_news(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    """On a service of its own: a night trains every task there is."""
    with serving(settings_of(tmp_path / "data", tiny_model)) as own:
        place = ("--data-dir", own.parts.settings.data_dir, "--url", own.url)
        client = own.client
        task = client.create_task(fresh(), GRADER, training=JOB).name
        assert run(*place, "night", "--json").json == []
        client.add_episodes([episode(task, n) for n in range(40)])
        assert [job["task"] for job in run(*place, "night", "--json").json] == [task]
        assert run(*place, "night").out == "no task has anything new to learn\n"
        client.add_episode(episode(task, 99))
        jobs = run(*place, "night", "--no-wait", "--json").json
        assert [job["task"] for job in jobs] == [task]


def test_installed_models_are_listed_and_broken_ones_named(run: Run, tmp_path: Path) -> None:
    models = tmp_path / "unused" / "models"
    tiny.build(models / "good")
    tiny.build(models / "bad")
    (models / "bad" / "model.safetensors").unlink()
    good, bad = run("model", "list", "--json").json
    assert (good["name"], good["quantisation"]) == ("good", "4-bit group 32")
    assert good["expert_bytes"] == 2 * good["spectral_coordinates"]
    assert (bad["name"], "model.safetensors" in bad["error"]) == ("bad", True)
    assert "bad is broken" in run("model", "list").out
    assert run("model", "show", "good", "--json").json == good
    assert "4-bit group 32" in run("model", "show", "good").out
    assert "model pull" in one_line(run("model", "show", "other"))


@contextmanager
def served(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """`nightowl serve` in a process of its own, and what it printed; it must end by itself."""
    command = [*COMMAND, *map(str, arguments), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            text += process.stdout.readline()
        try:
            yield process, json.loads(text)
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_answers_until_a_signal_and_ends_with_0(
    tiny_model: Path, tmp_path: Path, run: Run, number: signal.Signals
) -> None:
    place = ("--data-dir", tmp_path)
    with served(*place, "serve", "--port", 0, "--model", tiny_model) as (process, printed):
        assert run(*place, "--url", printed["url"], "task", "list", "--json").json == []
        process.send_signal(number)
        assert process.wait() == 0


def in_a_process(*arguments: object) -> Ran:
    command = [*COMMAND, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


def test_a_second_service_on_the_same_folder_is_refused(service: Service) -> None:
    folder = service.parts.settings.data_dir
    ran = in_a_process("--data-dir", folder, "serve", "--port", 0)
    assert "another nightowl process uses this data folder" in one_line(ran)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        ran = in_a_process("--data-dir", tmp_path, "serve", "--port", port)
    assert f"cannot listen on 127.0.0.1:{port}" in one_line(ran)


def test_a_missing_model_names_the_command_that_pulls_it(tmp_path: Path) -> None:
    ran = in_a_process("--data-dir", tmp_path, "serve", "--port", 0)
    assert "run `nightowl model pull smollm2-135m`" in one_line(ran)


def test_a_pipe_that_closes_early_ends_an_export_quietly(service: Service, task: str) -> None:
    service.client.add_episodes([episode(task, n) for n in range(500)])
    place = ["--data-dir", str(service.parts.settings.data_dir), "--url", service.url]
    command = [*COMMAND, *place, "episode", "export", "--task", task]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
