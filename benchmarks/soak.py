"""Mixed traffic beside a night: does anything hang, mix up experts, or grow?

    python -m benchmarks.soak [--minutes 10] [--clients 32] [--quick] [--json RESULT.json]

A real service in a process of its own, with random experts in its store and the demo's task in
training.  The clients ask at random for whole and streamed answers, greedy and sampled, of the base
and of the experts; hang up in the middle of an answer; and send requests that are to be refused.
They come in waves with short rests between, in which the night gets on.

Greedy answers to known prompts are compared to what the same prompt and expert answered alone,
before the traffic.  One that differs is a *wrong-expert row* if it is what another expert says to
the prompt; a *near-tie* if the two best tokens were almost equally likely where it leaves the
known answer (batches of other shapes round differently); and else a *mismatch*.  A hang is a
request without a byte for a minute.  Memory is the resident set of the service's process.
"""

import statistics
import threading
import time
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from app import home
from app.client import Client
from app.config import load_settings
from app.demo import GRADER, TRAINING, Options, serving
from app.engine.models import BUILTIN
from app.engine.scheduler import Engine
from app.security import read_token
from benchmarks.base import base_model
from benchmarks.experts import activate, publish
from benchmarks.measure import options, table, write
from benchmarks.soak_clients import Traffic, ask_alone, behave, connection
from storage.experts import ExpertStore

WAVE_S, REST_S = 12.0, 3.0
ALONE_S = 600.0  # what an answer may take before the traffic: that is not what is asked here
QUARTERS = (25, 50, 75, 100)


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    minutes: float = 10.0
    clients: int = 32
    experts: int = 6
    prompts: int = 4
    tokens: int = 16
    night_commands: int = 200


QUICK = Size(minutes=0.4, clients=8, experts=2, prompts=2, tokens=6, night_commands=100)


# -- before the traffic ---------------------------------------------------------------------------


def prepare(client: Client, model: Path, data_dir: Path, size: Size) -> list[str]:
    """Tasks with a random active expert each; their names."""
    names = [f"soak-{number}" for number in range(size.experts)]
    for name in names:
        client.create_task(name, GRADER)
    store = ExpertStore(data_dir / "experts")
    with closing(Engine(model, lambda version: store.load(version).tensors)) as engine:
        engine.start()
        stored = publish(engine, store, names)
    activate(data_dir, stored)
    return names


def start_night(client: Client, size: Size) -> str:
    """A training job that lasts longer than the traffic; its id."""
    client.create_task("night", GRADER)
    commands = home.sample(0)[: size.night_commands]
    client.add_episodes(
        [
            {
                "task": "night",
                "messages": home.messages(command.sentence),
                "completion": home.reference(other),
                "item": home.item(command),
                "group": command.template,
            }
            for command, other in zip(commands, [*commands[1:], commands[0]], strict=True)
        ]
    )
    long = {"iterations": 100_000, "patience": 100_000}
    return client.create_job("night", {**TRAINING, **long}, seed=0).id


def known_prompts(size: Size) -> list[list[dict[str, str]]]:
    """Conversations whose answers are known: short ones, and long ones that begin alike."""
    commands = home.sample(3)[: size.prompts]
    short = [[{"role": "user", "content": f"Tell me: {c.sentence}?"}] for c in commands[::2]]
    return [*short, *(home.messages(c.sentence) for c in commands[1::2])]


# -- watching -------------------------------------------------------------------------------------


def watch(process: psutil.Process, traffic: Traffic, began: float) -> list[tuple[float, float]]:
    """(share of the time, MB) once a second; makes the waves."""
    seen = []
    whole_time = traffic.ends - began
    while (now := time.monotonic()) < traffic.ends:
        if (now - began) % (WAVE_S + REST_S) < WAVE_S:
            traffic.wave.set()
        else:
            traffic.wave.clear()
        seen.append(((now - began) / whole_time, process.memory_info().rss / 1e6))
        time.sleep(0.5)
    traffic.wave.set()
    return seen


def at_quarters(seen: list[tuple[float, float]]) -> dict[str, int]:
    """The median of the last tenth of the time before each quarter, MB."""
    return {
        f"rss_mb_at_{quarter}": round(
            statistics.median(
                mb for at, mb in seen if quarter / 100 - 0.1 <= at <= quarter / 100 + 0.01
            )
        )
        for quarter in QUARTERS
    }


def soak(model: Path, size: Size) -> dict[str, Any]:
    """Everything, as written to JSON."""
    with (
        serving(Options(model=str(model)), load_settings()) as service,
        Client(service.url, token := read_token(service.data_dir / "token")) as client,
    ):
        names = [*prepare(client, model, service.data_dir, size), client.health().engine["model"]]
        prompts = known_prompts(size)
        with connection(service.url, token, ALONE_S) as http:
            known = {
                (name, number): ask_alone(http, name, messages, size.tokens)
                for name in names
                for number, messages in enumerate(prompts)
            }
        job = start_night(client, size)
        traffic = Traffic(
            partial(connection, service.url, token),
            names,
            prompts,
            known,
            size.tokens,
            ends=time.monotonic() + 60 * size.minutes,
        )
        return run(traffic, client, psutil.Process(service.process.pid), job, size)


def run(
    traffic: Traffic, client: Client, process: psutil.Process, job: str, size: Size
) -> dict[str, Any]:
    """The traffic, and what came of it."""
    began = time.monotonic()
    threads = [
        threading.Thread(target=behave, args=(traffic, seed)) for seed in range(size.clients)
    ]
    for thread in threads:
        thread.start()
    seen = watch(process, traffic, began)
    for thread in threads:
        thread.join()
    night, health = client.job(job), client.health()
    if night.status in {"queued", "running"}:
        client.cancel_job(job)
    tally, counts = traffic.tally, traffic.tally.counts
    return {
        "minutes": size.minutes,
        "clients": size.clients,
        "requests": sum(counts[act] for act in counts if not act.startswith("compared")),
        "compared_same": counts["compared, the same"],
        "hangs": tally.errors["hang"],
        "wrong_expert_rows": tally.errors["wrong expert"],
        "mismatches": tally.errors["mismatch"],
        "near_ties": tally.errors["near-tie"],
        **at_quarters(seen),
        "peak_rss_mb": round(max(mb for _, mb in seen)),
        "training_status": night.status,
        "training_ended": (night.outcome or night.error or {}).get("reason"),
        "training_iterations": night.progress.get("iteration", 0),
        "engine_restarts": health.engine["restarts"],
        "rows_left": health.engine["active_rows"] + health.engine["waiting_rows"],
        "acts": dict(counts),
        "errors": dict(tally.errors),
        "rss_mb": [round(mb) for _, mb in seen[:: max(1, len(seen) // 100)]],
        "examples": tally.examples,
    }


def main(model: Path, size: Size, target: Path) -> None:
    """Measures, prints, writes."""
    result = soak(model, size)
    plain = [(key, value) for key, value in result.items() if not isinstance(value, dict | list)]
    table(("", ""), plain)
    print()
    table(("requests", "count"), sorted(result["acts"].items()))
    if result["errors"]:
        print()
        table(("errors", "count"), sorted(result["errors"].items()))
    write(target, result)


if __name__ == "__main__":
    parser = options("Mixed traffic beside a night.", "soak", BUILTIN)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--clients", type=int)
    given = parser.parse_args()
    chosen = QUICK if given.quick else Size()
    changes = {key: getattr(given, key) for key in ("minutes", "clients") if getattr(given, key)}
    main(base_model(given.model), replace(chosen, **changes), given.json)
