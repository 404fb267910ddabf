"""The demo: one whole night of smart-home commands, seen from outside.

A client of the real service, which runs as a child process on a free port with a fresh data folder.
A user's commands are sampled from `home-assistant-intents` (`app.home`); the base model answers
them over HTTP; each answer is posted as an episode with the call the user really wanted; the night
is run at once. Training and gate are the service's own. Prompts of one wording stay together: no
held-out command shares its sentence template with a training command.

    nightowl demo --minutes 60 --json result.json
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from app import console as screen
from app import doctor, home
from app.api.schemas import ExpertPublic, JobPublic
from app.client import Client
from app.config import ENV_PREFIX, Settings
from app.engine.folder import BUILTIN, ModelInfo, resolve, show
from app.night.gate import is_held_out
from app.security import read_token
from storage.atomic import write_json

TASK = "home"
GRADER = {"type": "function_call", "syntax": "call"}
TRAINING: dict[str, Any] = {
    "population": 64,
    "prompts": 4,
    "sigma": 0.04,
    "lr": 0.12,
    "depths": [1 / 15],
    "whitening": 1.0,
    "fitness": "likelihood",
    "iterations": 240,
    "max_tokens": 24,
}
# Where minutes end the training: half of them on the last two layers, then deeper.
LONG: dict[str, Any] = {
    "iterations": 100_000,
    "patience": 100_000,
    "depths": [1 / 15, 1 / 15, 1 / 6, 1 / 3],
}
# TRAINING's learning rate is for about this long. Noise adds up with the square root of the number
# of iterations: a longer run takes smaller steps.
LR_MINUTES = 8.0
ANSWER: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24, "stop": ["\n"]}
HELDOUT_FRACTION = 0.25
MIN_HELDOUT = 48
ASKED_AT_ONCE = 32
POSTED_AT_ONCE = 100
STOP_S = 60


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


@dataclass(frozen=True)
class Options:
    """What can be chosen. `training` overrides TRAINING; `commands` is how many are asked at most.

    `min_heldout`: a night with fewer held-out prompts is not judged.
    """

    minutes: float | None = None
    seed: int = 0
    port: int = 0
    model: str = BUILTIN
    json_file: Path | None = None
    keep: bool = False
    training: dict[str, Any] = field(default_factory=dict)
    commands: int | None = None
    min_heldout: int = MIN_HELDOUT


@dataclass(frozen=True)
class Result:
    """The numbers of a demo, as written by `--json`. Rates are shares of the held-out prompts.

    `swap_ms` brings a checked expert into a slot of the engine; `read_ms` reads and checks its
    file before that, once.
    """

    published: bool
    base_rate: float
    expert_rate: float
    heldout: int
    p_value: float
    expert_bytes: int
    share_of_parameters: float
    swap_ms: float
    read_ms: float
    train_seconds: float
    iterations: int
    seed: int


@dataclass(frozen=True)
class Service:
    """The demo's service, running."""

    url: str
    data_dir: Path
    process: subprocess.Popen[str]


def run(options: Options, settings: Settings, console: Console) -> Result:
    """The whole demo. Models come from, and are pulled into, the folder of `settings`.

    Raises DemoError, ModelError, and what the client raises.
    """
    info = _base_model(options.model, settings.models, console)
    with serving(options, settings) as service:
        with Client(service.url, read_token(service.data_dir / "token")) as client:
            _say(console, "service", f"{service.url}, data folder {service.data_dir}")
            commands = home.sample(options.seed)[: options.commands]
            _post_episodes(client, info.name, commands, console)
            job = _night(client, options, console)
            result = _result(client, job, info, options)
            _print_result(console, result, _outcome(job))
            _print_answers(
                console, client, info.name, f"{TASK}@{_outcome(job)['version']}", commands
            )
        if options.json_file is not None:
            write_json(options.json_file, asdict(result), mode=0o644)
        print_end(console, service, options)
    return result


def _base_model(name: str, models_dir: Path, console: Console) -> ModelInfo:
    """The base model; the embedded one is pulled if it is not there, no other goes online."""
    if name == BUILTIN and not (models_dir / name).is_dir():
        from app.engine.models import pull

        with screen.pull_bar(console, f"pull {name}") as progress:
            pull(name, models_dir, progress)
    info = show(resolve(name, models_dir))
    _say(
        console,
        "base model",
        f"{info.name}, {info.quantisation}, {info.parameters:,} parameters,"
        f" {doctor.size(info.bytes)}",
    )
    return info


@contextmanager
def serving(options: Options, settings: Settings) -> Iterator[Service]:
    """`nightowl serve` in a process of its own, stopped at the end unless it is to be kept."""
    data_dir = Path(tempfile.mkdtemp(prefix="nightowl-demo-"))
    kept = False
    # SIGTERM unwinds, so that it never leaves a service behind.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        with (data_dir / "service.log").open("w") as log:
            process = _start(_environment(options, settings, data_dir), log.fileno())
        try:
            yield Service(_address(process, data_dir / "service.log"), data_dir, process)
            kept = options.keep
        finally:
            if not kept:
                stop(process)
    finally:
        signal.signal(signal.SIGTERM, before)
        if not kept:
            shutil.rmtree(data_dir)


def _start(environment: dict[str, str], log: int) -> subprocess.Popen[str]:
    # -P: a folder named `app` where the demo happens to be started is not ours.
    command = [sys.executable, "-P", "-m", "app.cli", "serve", "--json"]
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        start_new_session=True,  # Ctrl-C is for the demo, which then stops the service
    )


def _environment(options: Options, settings: Settings, data_dir: Path) -> dict[str, str]:
    """The environment of the service: none of the user's settings but the memory budget."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(ENV_PREFIX)}
    own = {
        "data_dir": data_dir,
        "models_dir": settings.models,
        "base_model": options.model,
        "port": options.port,
        "memory_budget": settings.memory_budget,
        "night_enabled": False,
        "heldout_fraction": HELDOUT_FRACTION,
        "min_heldout": options.min_heldout,
    }
    named = {f"{ENV_PREFIX}{key.upper()}": str(value) for key, value in own.items()}
    return inherited | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | named


def _address(process: subprocess.Popen[str], log: Path) -> str:
    """Where the service answers, once it does. Raises DemoError if it ends instead."""
    assert process.stdout is not None
    printed = ""
    for line in process.stdout:
        printed += line
        try:
            url: str = json.loads(printed)["url"]
            return url
        except ValueError:
            continue  # the rest is still to come
    process.wait()
    complaint = log.read_text("utf-8", "replace").strip().splitlines()
    raise DemoError(
        f"the service did not start: {complaint[-1] if complaint else 'no reason given'}"
    )


def stop(process: subprocess.Popen[str]) -> None:
    """Stops the service in order; kills it if that takes more than a minute."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()


def _post_episodes(
    client: Client, base: str, commands: Sequence[home.Command], console: Console
) -> None:
    """The base model answers every command; answers and what was wanted become episodes."""
    client.create_task(TASK, GRADER)
    answers: list[str] = []
    with (
        ThreadPoolExecutor(ASKED_AT_ONCE) as pool,
        screen.Bar(console, "base answers", len(commands), counts=True) as bar,
    ):
        for answer in pool.map(lambda c: _ask(client, base, c.sentence), commands):
            answers.append(answer)
            bar.at(len(answers))
    episodes = [
        {
            "task": TASK,
            "messages": home.messages(command.sentence),
            "completion": answer,
            "item": home.item(command),
            "group": command.template,
            "model": base,
        }
        for command, answer in zip(commands, answers, strict=True)
    ]
    passed = 0
    for start in range(0, len(episodes), POSTED_AT_ONCE):
        stored = client.add_episodes(episodes[start : start + POSTED_AT_ONCE])
        passed += sum(episode.grade is not None and episode.grade.passed for episode in stored)
    console.print(
        f"episodes     {len(episodes)} posted, {passed} of the base model's answers right"
    )


def _ask(client: Client, model: str, sentence: str) -> str:
    # Without tools there is content, however empty.
    return client.chat(model, home.messages(sentence), **ANSWER).choices[0].message.content or ""


def _night(client: Client, options: Options, console: Console) -> JobPublic:
    """Trains and judges now. Raises DemoError for a night without a verdict."""
    config = TRAINING
    if options.minutes is not None:
        lr = TRAINING["lr"] * min(1.0, math.sqrt(LR_MINUTES / options.minutes))
        config = TRAINING | LONG | {"minutes": options.minutes, "lr": lr}
    config = config | options.training
    job = client.create_job(TASK, config, seed=options.seed, trigger="cli")
    job = screen.follow(client, job, console)
    if job.outcome is None or "version_id" not in job.outcome:
        told = job.outcome or job.error or {"message": "no reason given"}
        raise DemoError(f"the night {job.status}: {told['message']}")
    return job


def _outcome(job: JobPublic) -> dict[str, Any]:
    assert job.outcome is not None
    return job.outcome


def _result(client: Client, job: JobPublic, info: ModelInfo, options: Options) -> Result:
    """The numbers of a judged night; asks the expert once, to see how long swapping it in takes."""
    outcome = _outcome(job)
    numbers = outcome["numbers"]
    expert: ExpertPublic = client.expert(outcome["version_id"])
    _ask(client, expert.name, "turn on the heater")
    engine = client.health().engine
    return Result(
        published=outcome["published"],
        base_rate=numbers["active_passed"] / numbers["n"],
        expert_rate=numbers["candidate_passed"] / numbers["n"],
        heldout=numbers["n"],
        p_value=numbers["p_value"],
        expert_bytes=expert.bytes,
        share_of_parameters=info.spectral_coordinates / info.parameters,
        swap_ms=engine["last_swap_ms"],
        read_ms=engine["last_read_ms"],
        train_seconds=outcome["training"]["seconds"],
        iterations=outcome["training"]["iterations"],
        seed=options.seed,
    )


def _print_result(console: Console, result: Result, outcome: dict[str, Any]) -> None:
    numbers = outcome["numbers"]
    rows = [
        ("gate", outcome["message"]),
        ("base model", _rate(numbers["active_passed"], result.heldout)),
        ("expert", _rate(numbers["candidate_passed"], result.heldout)),
        ("p-value", f"{result.p_value:.2g} (exact McNemar test on the same prompts)"),
        (
            "size",
            f"{doctor.size(result.expert_bytes)}, {result.share_of_parameters:.3%} of the base"
            " model's parameters",
        ),
        (
            "swap",
            f"{result.swap_ms:.1f} ms, after {result.read_ms:.1f} ms to read and check its file",
        ),
        ("training", f"{screen.clock(result.train_seconds)}, {result.iterations} iterations"),
    ]
    for label, text in rows:
        _say(console, label, text)


def _say(console: Console, label: str, text: str) -> None:
    console.print(f"{label:<13}{text}", markup=False, soft_wrap=True)


def _rate(passed: int, total: int) -> str:
    return f"{passed} of {total} held-out commands right ({passed / total:.0%})"


def _print_answers(
    console: Console, client: Client, base: str, expert: str, commands: Sequence[home.Command]
) -> None:
    """The first held-out commands of three different actions, answered by both."""
    table = Table("held-out command", base, expert, box=None, pad_edge=False)
    for command in _three(commands):
        cells = [command.sentence]
        for model in (base, expert):
            text = _ask(client, model, command.sentence)
            right = client.run_grader(GRADER, home.item(command), text).passed
            cells.append(f"{'right' if right else 'wrong'}: {text}")
        table.add_row(*cells)
    console.print(table, markup=False)


def _three(commands: Sequence[home.Command]) -> list[home.Command]:
    first: dict[str, home.Command] = {}
    for command in commands:
        if is_held_out("group", command.template, HELDOUT_FRACTION, TASK):
            first.setdefault(command.action, command)
    return list(first.values())[:3]


def print_end(console: Console, service: Service, options: Options) -> None:
    """Where the service is, if it stays."""
    if not options.keep:
        _say(
            console,
            "service",
            "is stopped now; `nightowl demo --keep` leaves it with its status page and API",
        )
        return
    _say(console, "status page", f"{service.url}/")
    _say(console, "API", f"{service.url}/v1, token in {service.data_dir / 'token'}")
    _say(console, "stop it with", f"kill {service.process.pid}")
