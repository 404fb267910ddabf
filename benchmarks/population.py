"""How fast a population is evaluated: candidate-tokens per second, side by side.

    python -m benchmarks.population [--quick] [--json RESULT.json]

A population of candidates answers the demo's prompts, which share a long prefix, greedily. All
sides use a copy of the model whose end token does not exist: every row has the same number of new
tokens. Contestants, in one process but for the last, in turn within each round:

* `population`: `Engine.generate` with all candidates, edits in all layers.
* `one at a time`: the same engine, a candidate at a time.
* `base batch`: the same groups and rows through the same code without edits. Each group reads the
  prefix for itself, as a candidate has to: the difference is the price of the edits alone.
* `base batch, prefix once`: the same rows of the base as one group: what the base alone can do.
* `mlx-lm`: stock `batch_generate`, a candidate at a time, on our BLAS (all cores for its one
  stream), allocator and settings. The candidate is the plain base: applying an adapter is left out,
  which is in mlx-lm's favour. With dense fp32 weights, and 4-bit as loaded: that form does not use
  BLAS, so that only a slice is measured and scaled up.
* `mlx-lm, prefix cached`: the same with the shared prefix handed over as `prompt_caches`.
* `mlx-lm as installed`: a process of its own with none of our set-up; a slice, scaled up.

What runs one candidate at a time is measured on a few candidates. A decode rate is that of all new
tokens but the first, by the difference between this many new tokens and one. Ratios are of values
of the same round; shown are medians, lowest and highest.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from app.engine import models, platform
from app.engine.basis import load_basis
from app.engine.batch import Runtime
from app.engine.layers import Edits
from app.engine.rollout import Population
from app.engine.sampling import Sampling
from app.engine.scheduler import Engine
from app.engine.text import Completion
from app.engine.work import FloatArray, RolloutLimits, common_prefix
from benchmarks import stock
from benchmarks.base import base_model, candidates, endless, home_prompts
from benchmarks.measure import Spread, Work, options, ratio, rounds, spread, table, write

import mlx.core as mx  # isort: skip  (after the platform is set up)
import numpy as np

# What platform.py sets for this process; mlx-lm as installed has none of it.
_OURS = ("MLX_DISABLE_COMPILE", "MLX_BFS_MAX_WIDTH", "OPENBLAS_NUM_THREADS")
_DECODE = ", one token"  # the same work with a single new token


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        alone: candidates that are measured one at a time.
        slice_rows: rows of the slices.
        budget_s: more rounds are run while they fit into it.
    """

    population: int = 32
    prompts: int = 16
    new_tokens: int = 24
    alone: int = 2
    rounds: int = 3
    slice_rows: int = 4
    budget_s: float = 0.0

    @property
    def tokens_each(self) -> int:
        """New tokens of a candidate."""
        return self.prompts * self.new_tokens


QUICK = Size(population=4, prompts=8, new_tokens=8, alone=1, rounds=1, slice_rows=1, budget_s=20)


class PlainRuntime(Runtime):
    """A runtime on which every candidate is the base: the same batches, no edits."""

    def edits(
        self, flat: FloatArray | mx.array | None, touched: Collection[str] | None = None
    ) -> Edits | None:
        """None, whatever the candidates."""
        del flat, touched
        return None


class Sides:
    """The contestants of one process.

    Args:
        engine: started.
        model: the folder that the engine has loaded, too.
        size: how much.
    """

    def __init__(self, engine: Engine, model: Path, size: Size) -> None:
        self.size = size
        self.prompts = home_prompts(engine, size.prompts)
        self.shared = common_prefix([np.array(p, dtype=np.int32) for p in self.prompts])
        self._flat = candidates(size.population, engine.coordinates.total)
        self._engine = engine
        plain = models.load(model, dense_fp32=True)
        self._base = Population(
            PlainRuntime(plain, load_basis(plain)),
            platform.streams(),
            engine.decode,
            RolloutLimits(),
        )
        self._dense = models.load(model, dense_fp32=True)
        self.answers: dict[str, list[list[int]]] = {}  # of the base, by contestant

    def works(self) -> dict[str, Work]:
        """Contestant -> what it does in a round."""
        new, size = self.size.new_tokens, self.size
        runs: dict[str, Callable[[int], None]] = {
            "population": partial(self._ours, [self._flat]),
            "one at a time": partial(self._ours, [line[None] for line in self._flat[: size.alone]]),
            "base batch": self._base_batch,
        }
        whole: dict[str, Work] = {}
        for name, run in runs.items():
            whole[name] = partial(run, new)
            whole[name + _DECODE] = partial(run, 1)
        once = list(self.prompts) * size.population
        return whole | {
            "base batch, prefix once": lambda: self._engine.generate(None, once, self._greedy(new)),
            "mlx-lm": self._mlx_lm,
            "mlx-lm, prefix cached": self._mlx_lm_cached,
        }

    def slices(self, model: Path) -> dict[str, stock.Costs]:
        """What is too slow to be measured whole."""
        rows = [list(prompt) for prompt in self.prompts[: self.size.slice_rows]]
        quantised = models.load(model)
        return {
            "mlx-lm, 4-bit": stock.costs(quantised.module, quantised.tokenizer, rows),
            "mlx-lm as installed": as_installed(model, rows),
        }

    def warm_up(self) -> None:
        """What only the first call does."""
        few = self.prompts[:2]
        self._engine.generate(self._flat[:2], few, self._greedy(2))
        self._drive(self._base.generate(self._flat[:2], _arrays(few), self._greedy(2)))
        stock.rollout(self._dense.module, self._dense.tokenizer, few, 2)

    def _greedy(self, new_tokens: int) -> Sampling:
        return Sampling(max_tokens=new_tokens)

    def _ours(self, parts: Sequence[FloatArray], new_tokens: int) -> None:
        """Populations one after the other."""
        for flat in parts:
            done = self._engine.generate(flat, self.prompts, self._greedy(new_tokens))
            _check(done, len(flat) * self.size.prompts * new_tokens)

    def _base_batch(self, new_tokens: int) -> None:
        running = self._base.generate(self._flat, _arrays(self.prompts), self._greedy(new_tokens))
        done = self._drive(running)
        _check(done, len(self._flat) * self.size.prompts * new_tokens)
        if new_tokens == self.size.new_tokens:
            self.answers["nightowl"] = [list(row.tokens) for row in done[0]]

    @staticmethod
    def _drive(running: Generator[None, None, list[list[Completion]]]) -> list[list[Completion]]:
        while True:
            try:
                next(running)
            except StopIteration as end:
                result: list[list[Completion]] = end.value
                return result

    def _mlx_lm(self) -> None:
        module, tokenizer = self._dense.module, self._dense.tokenizer
        with all_cores():
            self.answers["mlx-lm"] = stock.rollout(
                module, tokenizer, self.prompts, self.size.new_tokens
            )

    def _mlx_lm_cached(self) -> None:
        module, tokenizer = self._dense.module, self._dense.tokenizer
        with all_cores():
            self.answers["mlx-lm, prefix cached"] = stock.rollout_after(
                module, tokenizer, self.prompts, self.shared, self.size.new_tokens
            )


@contextmanager
def all_cores() -> Iterator[None]:
    """BLAS on all cores, for a contestant with one MLX stream."""
    platform.set_blas_threads(platform.STATUS.cores)
    try:
        yield
    finally:
        platform.set_blas_threads(1)


def as_installed(model: Path, prompts: Sequence[Sequence[int]]) -> stock.Costs:
    """Costs of mlx-lm in a process that has none of our set-up."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(prompts, file)
        file.flush()
        command = [sys.executable, "-m", "benchmarks.stock", str(model), file.name]
        environment = {key: value for key, value in os.environ.items() if key not in _OURS}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return stock.Costs(**json.loads(ran.stdout))


def _arrays(prompts: Sequence[Sequence[int]]) -> list[np.ndarray[tuple[int], np.dtype[np.int32]]]:
    return [np.asarray(prompt, dtype=np.int32) for prompt in prompts]


def _check(done: Sequence[Sequence[Completion]], expected: int) -> None:
    """Raises ``RuntimeError`` where rows have failed or ended early: nothing to compare then."""
    rows = [row for line in done for row in line]
    errors = {row.error for row in rows if row.error}
    if errors or sum(len(row.tokens) for row in rows) != expected:
        raise RuntimeError(f"rows failed or ended early: {errors}")


def result_of(
    taken: Mapping[str, Sequence[float]], slices: Mapping[str, stock.Costs], sides: Sides
) -> dict[str, Any]:
    """Rates and ratios, as written to JSON."""
    size = sides.size
    candidates_of = {
        name: size.population if "batch" in name or name.startswith("population") else 1
        for name in taken
    } | dict.fromkeys(("one at a time", "one at a time" + _DECODE), size.alone)
    each = {name: [t / candidates_of[name] for t in times] for name, times in taken.items()}
    scaled = {
        name: [costs.rollout_s(sides.prompts, size.new_tokens)] * len(each["mlx-lm"])
        for name, costs in slices.items()
    }
    each |= scaled
    decode = {
        name: [whole - one for whole, one in zip(each[name], each[name + _DECODE], strict=True)]
        for name in ("population", "one at a time", "base batch")
    }
    best_mlx = [min(pair) for pair in zip(each["mlx-lm"], each["mlx-lm, 4-bit"], strict=True)]
    ours, base = each["population"], each["base batch"]
    ratios = {
        "ratio_vs_one_at_a_time": ratio(each["one at a time"], ours),
        "decode_ratio_vs_one_at_a_time": ratio(decode["one at a time"], decode["population"]),
        "ratio_vs_mlx_lm": ratio(best_mlx, ours),
        "ratio_vs_mlx_lm_prefix_cached": ratio(each["mlx-lm, prefix cached"], ours),
        "ratio_vs_stock": ratio(each["mlx-lm as installed"], ours),
        "share_of_base": ratio(base, ours),
        "share_of_base_decode": ratio(decode["base batch"], decode["population"]),
        "share_of_base_prefix_once": ratio(each["base batch, prefix once"], ours),
    }
    rows = [
        (
            name,
            spread([size.tokens_each / t for t in times]),
            spread(times),
            _rate(decode, name, size),
        )
        for name, times in each.items()
        if not name.endswith(_DECODE)
    ]
    return {
        **{name: round(value.median, 4) for name, value in ratios.items()},
        "spread": ratios,
        "contestants": {
            name: {"tokens_per_s": rate, "candidate_s": took, "decode_tokens_per_s": decoded}
            for name, rate, took, decoded in rows
        },
        "same_answers_as_mlx_lm": _same(sides.answers),
        "size": asdict(size) | {"shared_prefix": sides.shared},
    }


def _rate(decode: Mapping[str, Sequence[float]], name: str, size: Size) -> Spread | None:
    if name not in decode:
        return None
    tokens = size.prompts * (size.new_tokens - 1)
    return spread([tokens / t for t in decode[name]])


def _same(answers: Mapping[str, list[list[int]]]) -> float:
    """Share of the base's answers that are token for token those of mlx-lm on the same weights."""
    pairs = list(zip(answers["nightowl"], answers["mlx-lm"], strict=True))
    return sum(ours == theirs for ours, theirs in pairs) / len(pairs)


def show(result: Mapping[str, Any]) -> None:
    """Prints the tables."""
    size = result["size"]
    print(
        f"{size['population']} candidates x {size['prompts']} prompts, {size['shared_prefix']}"
        f" tokens shared, {size['new_tokens']} new tokens each; median (lowest..highest)\n"
    )
    table(
        ("", "candidate-tokens/s", "s per candidate", "decode tokens/s"),
        [(name, *row.values()) for name, row in result["contestants"].items()],
    )
    print()
    table(("", "population"), list(result["spread"].items()))
    print(f"\nanswers of the base that equal mlx-lm's: {result['same_answers_as_mlx_lm']:.0%}")


def main(model_name: str, size: Size, target: Path) -> None:
    """Measures, prints, writes."""
    with tempfile.TemporaryDirectory() as scratch:
        model = endless(base_model(model_name), Path(scratch) / "endless")
        with closing(Engine(model, lambda _: {})) as engine:
            engine.start()
            sides = Sides(engine, model, size)
            sides.warm_up()
            slices = sides.slices(model)
            taken = rounds(sides.works(), size.rounds, size.budget_s)
            result = result_of(taken, slices, sides)
    show(result)
    write(target, result)


if __name__ == "__main__":
    parser = options(
        "A population against one candidate at a time and mlx-lm.", "population", models.BUILTIN
    )
    for field in ("population", "prompts", "new_tokens", "rounds"):
        parser.add_argument(f"--{field.replace('_', '-')}", type=int)
    arguments = parser.parse_args()
    chosen = QUICK if arguments.quick else Size()
    changes = {k: v for k, v in vars(arguments).items() if k in asdict(chosen) and v is not None}
    main(arguments.model, Size(**(asdict(chosen) | changes)), arguments.json)
