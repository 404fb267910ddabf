"""How near the engine is to what the machine can do, and what takes the time.

    python -m benchmarks.roofline [--quick] [--json RESULT.json]

Peaks, on all MLX streams at once: fp32 matmul at 2048^3 and at the shapes of the model's own
matrices, with as many rows as a step of prefill or of a population's decoding has; bytes per second
read by matrix-vector products, by sums, and copied.

Achieved, against the highest of each, in the same rounds: floating-point operations of prompts that
share nothing, of a population's prefill and of its decoding; bytes of weights, keys and values that
a single row's decoding has to read for a token. Only operations that the method needs are counted:
matrices, attention over what a token may see, the head where a token is chosen, the edits' two
block products. A stage's time is a difference (of two lengths), medians of rounds.

Components: the same model with every module timed from inside (`benchmarks.profile`), on one lane:
a population's prefill and decoding, and the decoding of a single row.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from app.engine import models, platform
from app.engine.basis import load_basis
from app.engine.batch import Runtime
from app.engine.layers import matrices
from app.engine.rollout import Population
from app.engine.sampling import Sampling
from app.engine.scheduler import Engine
from app.engine.work import RolloutLimits, common_prefix
from benchmarks.base import base_model, candidates, endless, home_prompts
from benchmarks.measure import Work, fastest, options, rounds, short, spread, table, write
from benchmarks.profile import Profile, Times, profiled

import mlx.core as mx  # isort: skip  (after the platform is set up)
import numpy as np

FP32 = 4  # bytes


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        prompts, length: of the prefill without anything shared.
        population, rows: candidates and prompts of the population.
        new_tokens: decoded, for the difference to one.
        big: side of the large square matmul.
        vector_mib: what a stream reads for the bandwidth.
    """

    prompts: int = 16
    length: int = 256
    population: int = 8
    rows: int = 16
    new_tokens: int = 9
    single_tokens: int = 49
    big: int = 2048
    vector_mib: int = 256
    rounds: int = 3
    budget_s: float = 0.0


QUICK = Size(prompts=8, length=128, population=4, rows=8, new_tokens=5, single_tokens=17, rounds=1)


@dataclass(frozen=True)
class Counts:
    """What a model needs, counted from its shapes.

    Attributes:
        shapes: (in, out) of a layer's matrices.
        layers: how many.
        edit_flops: of the edits' products, one token.
        attention_width: queries of a layer, all heads.
        kv_width: keys of a layer.
        head: (hidden, vocabulary).
    """

    shapes: tuple[tuple[int, int], ...]
    layers: int
    edit_flops: int
    attention_width: int
    kv_width: int
    head: tuple[int, int]

    def flops(self, tokens: int, seen: int, chosen: int, edited: bool = False) -> float:
        """Of reading tokens that see ``seen`` columns altogether and choosing ``chosen`` new."""
        matmuls = 2 * self.layers * sum(i * o for i, o in self.shapes) * tokens
        attention = 4 * self.layers * self.attention_width * seen
        edits = self.edit_flops * tokens if edited else 0
        return matmuls + attention + edits + 2 * self.head[0] * self.head[1] * chosen

    def decode_bytes(self, columns: float) -> float:
        """Weights, and keys and values of so many columns, in fp32."""
        weights = self.layers * sum(i * o for i, o in self.shapes) + self.head[0] * self.head[1]
        return FP32 * (weights + 2 * self.layers * self.kv_width * columns)


def count(model: models.LoadedModel) -> Counts:
    """Counts of a loaded dense model whose layers have not been replaced yet."""
    stack: Any = models.inner(model.module)
    blocks = load_basis(model).blocks
    edit_flops = sum(
        4 * b.singular_values.shape[1] * b.singular_values.size for b in blocks.values()
    )
    shapes = {name: linear.weight.shape for name, linear in matrices(stack)}
    first = [shape for name, shape in shapes.items() if name.startswith("layers.0.")]
    return Counts(
        tuple((i, o) for o, i in first),
        model.info.layers,
        edit_flops,
        shapes["layers.0.self_attn.q_proj"][0],
        shapes["layers.0.self_attn.k_proj"][0],
        (model.info.hidden_size, model.info.vocab_size),
    )


# -- peaks ----------------------------------------------------------------------------------------


def matmul_work(
    streams: Sequence[mx.Stream], rows: int, shape: tuple[int, int]
) -> tuple[Work, float]:
    """(rows, in) @ (in, out) on every stream, and its operations."""
    inner, outer = shape
    left, right = mx.random.normal((rows, inner)), mx.random.normal((outer, inner))
    mx.eval(left, right)
    repeats = min(64, max(1, int(1e9 / (2 * rows * inner * outer))))
    places = [stream for stream in streams for _ in range(repeats)]

    def work() -> None:
        mx.eval([mx.matmul(left, right.T, stream=stream) for stream in places])

    return work, 2.0 * rows * inner * outer * len(places)


def gemm_peaks(counts: Counts, streams: Sequence[mx.Stream], size: Size) -> dict[str, float]:
    """What is multiplied -> operations per second."""
    limits = RolloutLimits()
    shapes = {f"{size.big} x {size.big} x {size.big}": (size.big, (size.big, size.big))}
    for rows in (limits.step_tokens, size.population * size.rows // len(streams)):
        for shape in sorted(set(counts.shapes)):
            shapes[f"{rows} x {shape[0]} x {shape[1]}"] = (rows, shape)
    peaks = {}
    for name, (rows, shape) in shapes.items():
        work, flops = matmul_work(streams, rows, shape)
        peaks[name] = flops / fastest(work, 5)
    return peaks


def bandwidths(streams: Sequence[mx.Stream], mib: int) -> dict[str, float]:
    """Way -> bytes per second, on all cores."""
    columns = 1024
    nbytes = mib << 20
    held = [mx.random.normal((nbytes // FP32 // columns, columns)) for _ in streams]
    vector = mx.random.normal((1, columns))
    mx.eval(held, vector)

    def products() -> None:
        pairs = zip(held, streams, strict=True)
        mx.eval([mx.matmul(vector, matrix.T, stream=stream) for matrix, stream in pairs])

    sources = [np.ones(nbytes // FP32, dtype=np.float32) for _ in streams]
    targets = [np.empty_like(source) for source in sources]
    with ThreadPoolExecutor(len(streams)) as threads:
        total = nbytes * len(streams)
        return {
            "matrix-vector products": total / fastest(products, 3),
            "sums": total / fastest(lambda: list(threads.map(np.sum, sources)), 3),
            "copies, read and written": 2
            * total
            / fastest(lambda: list(threads.map(np.copyto, targets, sources)), 3),
        }


# -- achieved -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """What the engine did: the seconds are those of ``work`` less those of ``less``."""

    name: str
    work: str
    less: str | None
    amount: float  # operations, or bytes
    limit: str  # "GFLOP/s" | "GB/s"


def stages(engine: Engine, counts: Counts, size: Size) -> tuple[dict[str, Work], list[Stage]]:
    """What is run in each round, and what follows from it."""
    draw = np.random.default_rng(0)
    apart = [
        tuple(int(t) for t in draw.integers(100, 300, size.length)) for _ in range(size.prompts)
    ]
    apart = [(100 + number, *prompt[1:]) for number, prompt in enumerate(apart)]
    shared = home_prompts(engine, size.rows)
    flat = candidates(size.population, engine.coordinates.total)
    works: dict[str, Work] = {
        "apart": lambda: engine.generate(None, apart, Sampling(max_tokens=1)),
        "population": lambda: engine.generate(flat, shared, Sampling(max_tokens=1)),
        "population decodes": lambda: engine.generate(
            flat, shared, Sampling(max_tokens=size.new_tokens)
        ),
        "single": lambda: engine.submit(shared[0], Sampling(max_tokens=1)).result(),
        "single decodes": lambda: engine.submit(
            shared[0], Sampling(max_tokens=size.single_tokens)
        ).result(),
    }
    prefix = common_prefix([np.array(p, dtype=np.int32) for p in shared])
    own = [len(p) - prefix for p in shared]
    read = size.population * (prefix + sum(own))
    seen = size.population * (_triangle(prefix) + sum(n * prefix + _triangle(n) for n in own))
    rows, more = size.population * size.rows, size.new_tokens - 1
    later = size.population * sum(sum(len(p) + 1 + step for step in range(more)) for p in shared)
    steps = size.single_tokens - 1
    columns = len(shared[0]) + steps / 2
    length = size.length
    found = [
        Stage(
            "prompts that share nothing",
            "apart",
            None,
            counts.flops(size.prompts * length, size.prompts * _triangle(length), size.prompts),
            "GFLOP/s",
        ),
        Stage(
            "population, prefill",
            "population",
            None,
            counts.flops(read, seen, rows, True),
            "GFLOP/s",
        ),
        Stage(
            "population, decode",
            "population decodes",
            "population",
            counts.flops(rows * more, later, rows * more, True),
            "GFLOP/s",
        ),
        Stage(
            "single row, decode",
            "single decodes",
            "single",
            steps * counts.decode_bytes(columns),
            "GB/s",
        ),
    ]
    return works, found


def _triangle(length: int) -> int:
    return length * (length + 1) // 2


def achieved(
    taken: Mapping[str, Sequence[float]], found: Sequence[Stage], peaks: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    """Stage -> its rate, and its share of the peak of its kind, by round."""
    shares: dict[str, dict[str, Any]] = {}
    for stage in found:
        less = taken[stage.less] if stage.less else [0.0] * len(taken[stage.work])
        rates = [
            stage.amount / (whole - part)
            for whole, part in zip(taken[stage.work], less, strict=True)
        ]
        shares[stage.name] = {
            "rate": spread([rate / 1e9 for rate in rates]),
            "unit": stage.limit,
            "share": spread([rate / peaks[stage.limit] for rate in rates]),
        }
    return shares


# -- components -----------------------------------------------------------------------------------


def components(model: models.LoadedModel, prompts: Sequence[Sequence[int]], size: Size) -> Times:
    """Stage -> component -> milliseconds of one pass, each timed from inside on one lane."""
    profile = Profile()
    basis = load_basis(model)
    runtime = Runtime(model, basis)
    profiled(model.module, profile)
    lane = platform.streams()[:1]
    population = Population(runtime, lane, model.tokenizer.decode, RolloutLimits())
    flat = candidates(size.population, runtime.coordinates.total)
    many = [np.asarray(prompt, dtype=np.int32) for prompt in prompts]
    new = Sampling(max_tokens=size.new_tokens)
    drive(partial(population.generate, flat, many, new), profile)
    found = {f"population, {stage}": times for stage, times in per_pass(profile).items()}
    profile.times.clear()
    profile.passes.clear()
    platform.set_blas_threads(platform.STATUS.cores)
    drive(partial(population.generate, None, many[:1], new), profile)
    platform.set_blas_threads(1)
    return found | {"single row, decode": per_pass(profile)["decode"]}


def drive(start: Callable[[], Any], profile: Profile) -> None:
    """Runs a rollout to its end, timing each step."""
    running = start()
    while True:
        with profile.step():
            over = next(running, True)
        if over:
            return


def per_pass(profile: Profile) -> Times:
    """Milliseconds of one forward pass; of prefill: of all passes together."""
    return {
        stage: {
            name: 1000 * taken / (profile.passes[stage] if stage == "decode" else 1)
            for name, taken in times.items()
        }
        for stage, times in profile.times.items()
    }


def show(result: Mapping[str, Any]) -> None:
    """Prints the tables."""
    print("peaks, all streams")
    table(("", "GFLOP/s"), [(name, rate / 1e9) for name, rate in result["gemm_peaks"].items()])
    print()
    table(("", "GB/s"), [(name, rate / 1e9) for name, rate in result["bandwidths"].items()])
    print("\nachieved; median (lowest..highest)")
    table(
        ("", "rate", "", "share of peak"),
        [
            (name, row["rate"], row["unit"], row["share"])
            for name, row in result["achieved"].items()
        ],
    )
    names = list(result["components_ms"])
    print("\ncomponents on one lane: ms (share); prefill all of it, decode one step")
    labels = {label: None for times in result["components_ms"].values() for label in times}
    sums = [sum(times.values()) for times in result["components_ms"].values()]
    rows = []
    for label in sorted(labels, key=lambda x: -result["components_ms"][names[0]].get(x, 0.0)):
        cells = [
            f"{short(times.get(label, 0.0))} ({times.get(label, 0.0) / total:.0%})"
            for times, total in zip(result["components_ms"].values(), sums, strict=True)
        ]
        rows.append((label, *cells))
    table(("", *names), [*rows, ("sum", *sums)])


def main(model_name: str, size: Size, target: Path) -> None:
    """Measures, prints, writes."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = endless(base_model(model_name), Path(scratch) / "endless")
        model = models.load(folder, dense_fp32=True)
        counts = count(model)
        streams = platform.streams()
        with closing(Engine(folder, lambda _: {})) as engine:
            engine.start()
            works, found = stages(engine, counts, size)
            prompts = home_prompts(engine, size.rows)
            gemms = gemm_peaks(counts, streams, size)
            bytes_per_s = bandwidths(streams, size.vector_mib)
            works["single"]()  # what only the first row does
            taken = rounds(works, size.rounds, size.budget_s)
        peaks = {"GFLOP/s": max(gemms.values()), "GB/s": max(bytes_per_s.values())}
        shares = achieved(taken, found, peaks)
        result = {
            "prefill_share_of_gemm_peak": round(shares[found[0].name]["share"].median, 4),
            "decode_share_of_bandwidth": round(shares[found[-1].name]["share"].median, 4),
            "achieved": shares,
            "gemm_peaks": gemms,
            "bandwidths": bytes_per_s,
            "components_ms": components(model, prompts, size),
            "size": asdict(size),
        }
    show(result)
    write(target, result)


if __name__ == "__main__":
    parser = options("Share of this machine's peaks.", "roofline", models.BUILTIN)
    arguments = parser.parse_args()
    main(arguments.model, QUICK if arguments.quick else Size(), arguments.json)
