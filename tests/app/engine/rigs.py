"""Tiny models for the engine's tests, and references that share no code with the engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.engine import models  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import mlx_lm
import numpy as np
import numpy.typing as npt
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from app.engine.basis import dequantised, load_basis
from app.engine.batch import Runtime
from app.engine.layers import matrices
from trainers.spectral import Basis, BasisKind

FloatArray = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int32]
# Two logits closer than this are a tie that rounding may decide either way; they spread by 8.
TIE = 1e-3


def runtime_of(folder: Path, kind: BasisKind = "spectral") -> tuple[Runtime, Basis]:
    """A runtime as the engine has it on CPU, and its basis."""
    model = models.load(folder, dense_fp32=True)
    basis = load_basis(model, kind)
    return Runtime(model, basis), basis


def stock_of(folder: Path) -> Any:
    """The model as mlx-lm itself loads it, in fp32."""
    module, _ = mlx_lm.load(str(folder))
    module.set_dtype(mx.float32)
    return module


def edited(folder: Path, basis: Basis, flat: FloatArray) -> Any:
    """mlx-lm's model whose weights are W_j = U_j S_j (1 + e_j) V_j^T, by NumPy's full SVD."""
    module = stock_of(folder)
    stack = models.inner(module)
    for (name, linear), (_, part) in zip(
        list(matrices(stack)), basis.coordinates.slices(), strict=True
    ):
        _, index, owner, projection = name.split(".")
        dense = nn.Linear(1, 1, bias="bias" in linear)
        if "bias" in linear:
            dense.bias = linear.bias
        weight = np.array(dequantised(linear), dtype=np.float64)
        shape = basis.blocks[name].singular_values.shape
        dense.weight = mx.array(svd_edit(weight, flat[part].reshape(shape)).astype(np.float32))
        setattr(getattr(stack.layers[int(index)], owner), projection, dense)
    return module


def svd_edit(weight: npt.NDArray[np.float64], e: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Every column block's singular values times 1 + e, e being (n, b)."""
    blocks = np.split(weight, e.shape[0], axis=1)
    done = []
    for block, change in zip(blocks, e.astype(np.float64), strict=True):
        u, s, vt = np.linalg.svd(block, full_matrices=False)
        done.append((u * (s * (1 + change))) @ vt)
    return np.concatenate(done, axis=1)


def logits_of(module: Any, tokens: Sequence[int] | Tokens) -> FloatArray:
    """(L, vocabulary) logits of one sequence, by the model alone and without a cache."""
    return np.array(module(mx.array(np.asarray(tokens))[None])[0], dtype=np.float32)


def answer_logits(
    reader: Any, answerer: Any, prompt: Tokens, reference: Tokens
) -> npt.NDArray[np.float64]:
    """(reference tokens, vocabulary) logits where one model reads a prompt and another answers it.

    mlx-lm's models and cache: the answerer sees the prompt's last token and the answer, over the
    keys and values that the reader left of the rest.
    """
    cache = make_prompt_cache(reader)
    if len(prompt) > 1:
        mx.eval(reader(mx.array(prompt[:-1])[None], cache=cache))
    inputs = np.concatenate([prompt[-1:], reference[:-1]])
    return np.array(answerer(mx.array(inputs)[None], cache=cache)[0], dtype=np.float64)


def greedy_of(
    logits: Callable[[list[int]], FloatArray],
    prompt: Sequence[int] | Tokens,
    count: int,
    eos: Collection[int] = (),
) -> list[int]:
    """The greedy continuation up to an ending token, computed from scratch for every token."""
    tokens = [int(t) for t in prompt]
    for _ in range(count):
        tokens.append(int(np.argmax(logits(tokens)[-1])))
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]


def assert_same_tokens(
    got: Sequence[int],
    expected: Sequence[int],
    logits: Callable[[list[int]], FloatArray],
    prompt: Sequence[int] | Tokens,
) -> None:
    """Equal, or different from where the reference's two choices are a rounding error apart."""
    for at, (ours, theirs) in enumerate(zip(got, expected, strict=False)):
        if ours == theirs:
            continue
        there = logits([*(int(t) for t in prompt), *expected[:at]])[-1]
        assert there[theirs] - there[ours] < TIE, (at, there[theirs], there[ours])
        return
    assert len(got) == len(expected)


def finished(steps: Generator[None, None, Any]) -> Any:
    """Runs a rollout to its end."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def run_steps(steps: Generator[list[mx.array], None, None]) -> int:
    """Evaluates what a lane yields, as the engine does; returns how many steps there were."""
    count = 0
    for arrays in steps:
        mx.eval(arrays)
        count += 1
    return count


def experts(basis: Basis, count: int, seed: int = 0, scale: float = 0.3) -> FloatArray:
    """(count, coordinates) random experts, far enough from the base to answer differently."""
    rng = np.random.default_rng(seed)
    return rng.normal(0, scale, (count, basis.coordinates.total)).astype(np.float32)


def tensors_of(basis: Basis, flat: FloatArray) -> Mapping[str, FloatArray]:
    """An expert as its file holds it."""
    return basis.coordinates.split(flat)


def prompts_of(
    lengths: Sequence[int], shared: int = 0, seed: int = 0, vocabulary: int = 320
) -> list[Tokens]:
    """Random prompts without special tokens; the first ``shared`` tokens are the same."""
    rng = np.random.default_rng(seed)
    prefix = rng.integers(3, vocabulary, shared)
    return [
        np.concatenate([prefix, rng.integers(3, vocabulary, n - shared)]).astype(np.int32)
        for n in lengths
    ]


def weight_bytes(module: nn.Module) -> dict[str, bytes]:
    """The bytes of every parameter."""
    return {name: bytes(memoryview(array)) for name, array in tree_flatten(module.parameters())}
