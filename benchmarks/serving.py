"""What users wait for: throughput, time to first token, swaps, with and without a night running.

    python -m benchmarks.serving [--quick] [--json RESULT.json]

The model's end token does not exist (`benchmarks.base`): every answer has as many tokens as asked
for. Answers are greedy.

Traffic: 1, 8 and 32 rows at once through `Engine.submit` (HTTP adds nothing to these), of the base,
of one expert, and each of another expert: one that changes all layers, the worst case, or one that
changes the last third, as far down as the demo's nights go. Conversations are under way: the
beginning of the prompt has been read before under the row's expert, the rest is new. Tokens per
second of whole answers, with 32 rows also of all tokens but the first (by the difference to answers
of one token); time to first token over all rows.

Swaps: rows of more experts than there are slots, one after the other, so that each brings its
expert in; what the engine's health says of each.

Night: a real service, asked over HTTP by one user who streams a short answer and pauses; before and
while it trains the demo's task.

Two experts in turn: the service against `mlx_lm.server`, both over HTTP, one request after the
other. mlx_lm.server has our BLAS, allocator and settings, and dense fp32 weights, with which it is
fastest here.
"""

import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from app import home
from app.client import Client
from app.config import load_settings
from app.demo import GRADER, TRAINING, Options, serving
from app.engine.models import BUILTIN
from app.engine.sampling import Sampling
from app.engine.scheduler import Engine, EngineConfig
from app.security import read_token
from benchmarks.base import base_model, endless
from benchmarks.experts import activate, dense_copy, lora_adapter, publish
from benchmarks.measure import options, percentile, ratio, rounds, spread, table, write
from storage.experts import ExpertStore

ROWS = (1, 8, 32)
EXPERTS = ROWS[-1]
KINDS = ("base", "one expert", "different experts", "trained experts")
TRAINED_DEPTH = 1 / 3  # the deepest that the demo trains; the default is the last tenth
TASKS = ("left", "right")  # of the two experts in turn
NIGHT = "home"
NIGHT_COMMANDS = 160
NIGHT_HELDOUT = 8  # judged in the end, which is never reached
TURN_TOKENS = 16
START_S = 60


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        new_tokens: of an answer in the traffic.
        swaps: rows that bring an expert in.
        probes: short answers before the night, and during it.
        turns: requests to the two experts.
    """

    new_tokens: int = 48
    rounds: int = 3
    swaps: int = 100
    probes: int = 40
    turns: int = 12
    budget_s: float = 0.0


QUICK = Size(new_tokens=6, rounds=1, swaps=12, probes=5, turns=2)


def messages(sentence: str) -> list[dict[str, str]]:
    """A user's turn after the instruction."""
    return [
        {"role": "system", "content": home.SYSTEM_PROMPT},
        {"role": "user", "content": sentence},
    ]


# -- traffic --------------------------------------------------------------------------------------


class Traffic:
    """Rows of an engine, many at once.

    Args:
        experts: those that change all layers.
        trained: those that change as many as a night's.

    Attributes:
        first_s: (kind, rows) -> seconds to first token.
    """

    def __init__(self, engine: Engine, experts: Sequence[str], trained: Sequence[str]) -> None:
        self._engine = engine
        self._experts = experts
        self._trained = trained
        self._prompts = [engine.encode(messages(c.sentence)) for c in home.sample(0)]
        self._turn = count()
        self.first_s: dict[tuple[str, int], list[float]] = {}

    def run(self, kind: str, rows: int, new_tokens: int) -> None:
        """So many rows at once, each with a prompt that is new."""
        experts: dict[str, list[str | None]] = {
            "base": [None] * rows,
            "one expert": [self._experts[0]] * rows,
            "different experts": list(self._experts[:rows]),
            "trained experts": list(self._trained[:rows]),
        }
        with ThreadPoolExecutor(rows) as threads:
            waits = list(threads.map(partial(self._row, new_tokens), experts[kind]))
        if new_tokens > 1:
            self.first_s.setdefault((kind, rows), []).extend(waits)

    def _row(self, new_tokens: int, expert: str | None) -> float:
        """One answer; seconds until its first text."""
        prompt = self._prompts[next(self._turn) % len(self._prompts)]
        begun = time.perf_counter()
        stream = self._engine.submit(prompt, Sampling(max_tokens=new_tokens), expert)
        next(iter(stream), None)
        waited = time.perf_counter() - begun
        done = stream.result()
        if len(done.tokens) != new_tokens:
            raise RuntimeError(f"a row failed or ended early: {done.error}")
        return waited


def traffic(
    engine: Engine, experts: Sequence[str], trained: Sequence[str], size: Size
) -> dict[str, Any]:
    """Tokens per second and time to first token, and 32 experts as a share of the base."""
    load = Traffic(engine, experts, trained)
    for kind in ("base", "different experts", "trained experts"):
        load.run(kind, EXPERTS, 2)  # from now on the beginning has been read
    load.first_s.clear()
    works = {
        (kind, rows, new): partial(load.run, kind, rows, new)
        for rows in ROWS
        for kind in KINDS
        for new in ((size.new_tokens, 1) if rows == EXPERTS else (size.new_tokens,))
    }
    named = {f"{kind} {rows} {new}": work for (kind, rows, new), work in works.items()}
    taken = dict(zip(works, rounds(named, size.rounds, size.budget_s).values(), strict=True))
    decode = {
        kind: [
            whole - one
            for whole, one in zip(
                taken[kind, EXPERTS, size.new_tokens], taken[kind, EXPERTS, 1], strict=True
            )
        ]
        for kind in KINDS
    }
    later = EXPERTS * (size.new_tokens - 1)
    found = {}
    for kind in KINDS:
        for rows in ROWS:
            waits = [1000 * wait for wait in load.first_s[kind, rows]]
            seconds = taken[kind, rows, size.new_tokens]
            found[f"{kind}, {rows} at once"] = {
                "tokens_per_s": spread([rows * size.new_tokens / t for t in seconds]),
                "decode_tokens_per_s": spread([later / t for t in decode[kind]])
                if rows == EXPERTS
                else None,
                "ttft_p50_ms": percentile(waits, 0.5),
                "ttft_p95_ms": percentile(waits, 0.95),
            }
    whole = {kind: taken[kind, EXPERTS, size.new_tokens] for kind in KINDS}
    return {
        "traffic": found,
        "share": ratio(whole["base"], whole["different experts"]),
        "decode_share": ratio(decode["base"], decode["different experts"]),
        "trained_share": ratio(whole["base"], whole["trained experts"]),
    }


def swaps(engine: Engine, experts: Sequence[str], times: int) -> dict[str, Any]:
    """Milliseconds to bring an expert into a slot, and to read and check its file before that."""
    prompt = engine.encode_text("light")
    swapped, read = [], []
    for number in range(times):
        engine.submit(prompt, Sampling(max_tokens=1), experts[number % len(experts)]).result()
        health = engine.health()
        swapped.append(health["last_swap_ms"])
        read.append(health["last_read_ms"])
    return {"swap_ms": spread(swapped), "read_ms": spread(read)}


# -- a service ------------------------------------------------------------------------------------


def service_side(model: Path, engine: Engine, size: Size) -> dict[str, Any]:
    """The real service: two experts in turn, and a user before and during a night."""
    settings = load_settings(os.environ, {})
    with (
        serving(Options(model=str(model), min_heldout=NIGHT_HELDOUT), settings) as service,
        Client(service.url, read_token(service.data_dir / "token")) as client,
    ):
        names = _two_experts(client, engine, service.data_dir)
        turns = in_turn(partial(_answer, client), names, size)
        idle = probes(client, names[0], size.probes)
        job = _night(client)
        training = probes(client, names[0], size.probes)
        steps = client.job(job)
        client.cancel_job(job)
    if steps.status != "running":
        raise RuntimeError(f"the night was over before the probes: {steps.status}")
    return {"turns_s": turns, "idle_ms": idle, "training_ms": training}


def _two_experts(client: Client, engine: Engine, data_dir: Path) -> list[str]:
    """Two tasks with an active expert each, put where training would put them."""
    for task in TASKS:
        client.create_task(task, GRADER)
    activate(data_dir, publish(engine, ExpertStore(data_dir / "experts"), TASKS))
    return list(TASKS)


def _answer(client: Client, name: str, said: str) -> int:
    """Tokens of one answer."""
    done = client.chat(name, messages(said), max_tokens=TURN_TOKENS, temperature=0.0)
    return done.usage.completion_tokens


def _night(client: Client) -> str:
    """The demo's task in training; returns the job once an iteration is done."""
    client.create_task(NIGHT, GRADER)
    commands = home.sample(0)[:NIGHT_COMMANDS]
    episodes = [
        {
            "task": NIGHT,
            "messages": home.messages(command.sentence),
            "completion": home.reference(other),
            "item": home.item(command),
            "group": command.template,
        }
        for command, other in zip(commands, [*commands[1:], commands[0]], strict=True)
    ]
    client.add_episodes(episodes)
    long = {"iterations": 100_000, "patience": 100_000}
    job = client.create_job(NIGHT, {**TRAINING, **long}, seed=0)
    for event in client.job_events(job.id):
        if event.type == "progress":
            return job.id
    ended = client.job(job.id)
    raise RuntimeError(f"the night ended at once: {ended.status} {ended.error or ended.outcome}")


def probes(client: Client, name: str, times: int) -> list[float]:
    """Milliseconds to first text of short answers, with pauses of random length between."""
    draw = random.Random(0)
    commands = home.sample(1)
    waits = []
    for number in range(times):
        time.sleep(draw.uniform(0.0, 0.2))
        begun = time.perf_counter()
        answer = client.chat_stream(
            name, messages(commands[number].sentence), max_tokens=4, temperature=0.0
        )
        next(answer, None)
        waits.append(1000 * (time.perf_counter() - begun))
        for _ in answer:
            pass  # the service is done with this one before the next is asked
    return waits


# -- mlx_lm.server --------------------------------------------------------------------------------


def mlx_lm_side(model: Path, scratch: Path, size: Size) -> list[float]:
    """Seconds of the same requests to mlx_lm.server, two adapters in turn."""
    dense = dense_copy(model, scratch / "dense")
    adapters = [str(lora_adapter(dense, scratch / f"lora-{n}", n)) for n in range(len(TASKS))]
    with mlx_lm_server(dense) as url, httpx.Client(base_url=url, timeout=600) as http:

        def answer(adapter: str, said: str) -> int:
            body = {
                "model": str(dense),
                "adapters": adapter,
                "messages": messages(said),
                "max_tokens": TURN_TOKENS,
                "temperature": 0.0,
            }
            response = http.post("/v1/chat/completions", json=body).raise_for_status()
            tokens: int = response.json()["usage"]["completion_tokens"]
            return tokens

        return in_turn(answer, adapters, size)


@contextmanager
def mlx_lm_server(model: Path) -> Iterator[str]:
    """mlx_lm.server in a process of its own; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.mlx_server"]
    command += ["--model", str(model), "--port", str(port), "--log-level", "ERROR"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        _await(url, process)
        yield url
    finally:
        process.terminate()
        process.wait()


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            httpx.get(f"{url}/health", timeout=5).raise_for_status()
        except httpx.HTTPError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError("mlx_lm.server did not start")


def in_turn(answer: Callable[[str, str], int], names: Sequence[str], size: Size) -> list[float]:
    """Seconds of each request; the first to each expert is not counted."""
    taken = []
    commands = home.sample(2)
    for number in range(size.turns + len(names)):
        begun = time.perf_counter()
        if answer(names[number % len(names)], commands[number].sentence) != TURN_TOKENS:
            raise RuntimeError("an answer ended early")
        taken.append(time.perf_counter() - begun)
    return taken[len(names) :]


# -- all of it ------------------------------------------------------------------------------------


def show(result: Mapping[str, Any]) -> None:
    """Prints the tables."""
    table(
        ("", "tokens/s", "decode tokens/s", "TTFT p50 ms", "TTFT p95 ms"),
        [(name, *row.values()) for name, row in result["traffic"].items()],
    )
    print()
    table(("", "median (lowest..highest)"), list(result["spread"].items()))


def measure(model: Path, scratch: Path, size: Size) -> dict[str, Any]:
    """Everything, as written to JSON."""
    store = ExpertStore(scratch / "experts")
    config = EngineConfig(slots=2 * EXPERTS, prefix_bytes=1 << 30)
    with closing(Engine(model, lambda version: store.load(version).tensors, config)) as engine:
        engine.start()
        names = [f"task-{number}" for number in range(3 * EXPERTS)]
        experts = [stored.sha for stored in publish(engine, store, names)]
        nights = publish(engine, store, names[:EXPERTS], TRAINED_DEPTH)
        trained = [stored.sha for stored in nights]
        loaded = traffic(engine, experts[:EXPERTS], trained, size)
        swapped = swaps(engine, experts, size.swaps)
        served = service_side(model, engine, size)
    theirs = mlx_lm_side(model, scratch, size)
    ours = served["turns_s"]
    spreads = {
        "share of base, 32 trained experts": loaded["trained_share"],
        "share of base, 32 experts": loaded["share"],
        "share of base, 32 experts, decode": loaded["decode_share"],
        "swap, ms": swapped["swap_ms"],
        "read and check before a swap, ms": swapped["read_ms"],
        "two experts in turn, nightowl, s": spread(ours),
        "two experts in turn, mlx_lm.server, s": spread(theirs),
        "TTFT over HTTP, idle, ms": spread(served["idle_ms"]),
        "TTFT over HTTP, night running, ms": spread(served["training_ms"]),
    }
    return {
        "share_of_base_32_trained_experts": round(loaded["trained_share"].median, 4),
        "share_of_base_32_experts": round(loaded["share"].median, 4),
        "share_of_base_32_experts_decode": round(loaded["decode_share"].median, 4),
        "swap_ms": round(swapped["swap_ms"].median, 3),
        "ttft_p50_idle_ms": round(percentile(served["idle_ms"], 0.5), 1),
        "ttft_p95_idle_ms": round(percentile(served["idle_ms"], 0.95), 1),
        "ttft_p50_training_ms": round(percentile(served["training_ms"], 0.5), 1),
        "ttft_p95_training_ms": round(percentile(served["training_ms"], 0.95), 1),
        "ratio_vs_mlx_lm_server": round(median(theirs) / median(ours), 2),
        "traffic": loaded["traffic"],
        "spread": spreads,
        "size": asdict(size),
    }


def main(model_name: str, size: Size, target: Path) -> None:
    """Measures, prints, writes."""
    with tempfile.TemporaryDirectory() as scratch:
        model = endless(base_model(model_name), Path(scratch) / "endless")
        result = measure(model, Path(scratch), size)
    show(result)
    write(target, result)


if __name__ == "__main__":
    arguments = options("Users' rows: throughput, waiting, swaps.", "serving", BUILTIN).parse_args()
    main(arguments.model, QUICK if arguments.quick else Size(), arguments.json)
