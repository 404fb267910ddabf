"""Stock mlx-lm: the other side of the benchmarks. Nothing here imports nightowl.

    python -m benchmarks.stock MODEL PROMPTS.json [--rows 4]

As a program it is mlx-lm as it is installed, with its own BLAS, allocator and settings: it prints
what a token costs, measured on a slice. As a module it runs in the process that imports it, which
sets the platform up before.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm import batch_generate, load
from mlx_lm.models.cache import make_prompt_cache

Prompts = Sequence[Sequence[int]]
# Of a slice: tokens read and tokens written, short and long. A cost is the difference by length.
_SHORT, _LONG = 4, 12
_FEW, _MORE = 1, 4


@dataclass(frozen=True)
class Costs:
    """Seconds for one token of one row."""

    prefill_s: float
    decode_s: float

    def rollout_s(self, prompts: Prompts, new_tokens: int) -> float:
        """Seconds for one candidate, scaled up from the slice."""
        read = sum(len(prompt) for prompt in prompts)
        return self.prefill_s * read + self.decode_s * new_tokens * len(prompts)


def rollout(module: Any, tokenizer: Any, prompts: Prompts, new_tokens: int) -> list[list[int]]:
    """Greedy answers of one candidate, mlx-lm's own way: every prompt is read whole."""
    return _answers(
        batch_generate(
            module,
            tokenizer,
            [list(p) for p in prompts],
            max_tokens=new_tokens,
            return_token_ids=True,
        )
    )


def rollout_after(
    module: Any, tokenizer: Any, prompts: Prompts, shared: int, new_tokens: int
) -> list[list[int]]:
    """The same with ``prompt_caches``: the shared prefix is read once, and copied per row."""
    cache = make_prompt_cache(module)
    module(mx.array([list(prompts[0][:shared])]), cache=cache)
    mx.eval([layer.state for layer in cache])
    return _answers(
        batch_generate(
            module,
            tokenizer,
            [list(p[shared:]) for p in prompts],
            prompt_caches=[cache] * len(prompts),
            max_tokens=new_tokens,
            return_token_ids=True,
        )
    )


def _answers(response: Any) -> list[list[int]]:
    tokens: list[list[int]] = response.token_ids
    return tokens


def costs(module: Any, tokenizer: Any, prompts: Prompts) -> Costs:
    """Measured on the first tokens of the prompts."""

    def taken(read: int, written: int) -> float:
        begun = time.perf_counter()
        rollout(module, tokenizer, [prompt[:read] for prompt in prompts], written)
        return time.perf_counter() - begun

    taken(2, 1)  # what only the first call does
    base = taken(_SHORT, _FEW)
    rows = len(prompts)
    return Costs(
        (taken(_LONG, _FEW) - base) / (rows * (_LONG - _SHORT)),
        (taken(_SHORT, _MORE) - base) / (rows * (_MORE - _FEW)),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="mlx-lm as installed: the cost of a token.")
    parser.add_argument("model")
    parser.add_argument("prompts", type=Path, help="a JSON list of lists of tokens")
    parser.add_argument("--rows", type=int, default=4)
    arguments = parser.parse_args()
    read = json.loads(arguments.prompts.read_text())[: arguments.rows]
    loaded = load(arguments.model)
    print(json.dumps(asdict(costs(loaded[0], loaded[1], read))))
