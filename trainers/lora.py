"""LoRA experts: a low-rank change beside each frozen matrix (Hu et al., arXiv 2106.09685).

    y = W x + s (x A) B,      A: (in, r),  B: (r, out),  both fp32                     (section 4.1)

A is drawn uniformly from +-1/sqrt(in), the Kaiming initialisation of linear layers, and B is zero:
a fresh expert is the base model.  The scale s is what other code calls alpha / r.

Names, shapes and scale are those of mlx-lm's adapter folders: ``to_adapter`` and ``from_adapter``
only put the model's prefix before a name, or take it off, after strict checks.  Inside a run a
parameter is called ``layers.<i>.<part>.<projection>.lora_a`` (or ``lora_b``).

Dropout and DoRA are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from trainers.keys import generator
from trainers.spectral import ATTENTION_TARGETS

Params = dict[str, mx.array]
Shape = tuple[int, int]
Target = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

ALL: tuple[Target, ...] = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
)
PREFIX = "model."
"""Before ``layers.<i>`` in mlx-lm's names; a model with a vision part has a longer one."""
_SUFFIXES = (".lora_a", ".lora_b")


class LoraConfig(BaseModel):
    """Which matrices get factors, and of which rank."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rank: int = Field(16, ge=1, le=256, description="columns of A")
    scale: float = Field(2.0, gt=0, le=1000, description="factor of the change: alpha / rank")
    targets: tuple[Target, ...] = Field(
        ALL, min_length=1, max_length=len(ALL), description="projections of a layer"
    )
    layers: int | None = Field(None, ge=1, description="layers from the top; none = all")


@dataclass(frozen=True)
class Factors:
    """One matrix's change: ``a`` (in, r), ``b`` (r, out), and its scale."""

    a: mx.array
    b: mx.array
    scale: float


def apply(linear_output: mx.array, x: mx.array, params: Factors) -> mx.array:
    """W x + s (x A) B from ``linear_output`` = W x, (..., out), and x, (..., in).

    The change is computed in the wider precision of x and the factors, as mlx-lm does.
    """
    change = params.scale * ((x @ params.a) @ params.b)
    return linear_output + change.astype(x.dtype)


@dataclass(frozen=True)
class LoraEdit:
    """LoRA as an edit of linear layers (``trainers.decoder.Edit``)."""

    scale: float

    def __call__(
        self,
        matrix: str,
        linear: Callable[[mx.array], mx.array],
        x: mx.array,
        params: Mapping[str, mx.array],
    ) -> mx.array:
        """The layer's output under ``params``; a matrix without factors is the base's."""
        a, b = (params.get(matrix + suffix) for suffix in _SUFFIXES)
        y = linear(x)
        return y if a is None or b is None else apply(y, x, Factors(a, b, self.scale))


def expected_shapes(config: LoraConfig, matrices: Mapping[str, Shape]) -> dict[str, Shape]:
    """Parameter name -> shape, in the order of ``matrices`` (name -> (out, in))."""
    count = 1 + max(_layer(name) for name in matrices)
    first = 0 if config.layers is None else count - config.layers
    shapes: dict[str, Shape] = {}
    for name, (out, columns) in matrices.items():
        if name.rsplit(".", 1)[1] in config.targets and _layer(name) >= first:
            shapes[name + ".lora_a"] = (columns, config.rank)
            shapes[name + ".lora_b"] = (config.rank, out)
    return shapes


def _layer(name: str) -> int:
    return int(name.split(".")[1])


def initial(config: LoraConfig, matrices: Mapping[str, Shape], seed: int) -> Params:
    """A fresh expert, fp32: A drawn by (seed, number of the factor), B zero."""
    params: Params = {}
    for index, (name, shape) in enumerate(expected_shapes(config, matrices).items()):
        if name.endswith(".lora_b"):
            params[name] = mx.zeros(shape)
            continue
        bound = shape[0] ** -0.5
        drawn = generator(seed, "initial", index).uniform(-bound, bound, shape)
        params[name] = mx.array(drawn.astype(np.float32))
    return params


def to_adapter(params: Mapping[str, mx.array], prefix: str = PREFIX) -> dict[str, mx.array]:
    """The tensors of mlx-lm's ``adapters.safetensors``."""
    return {prefix + name: value for name, value in params.items()}


def from_adapter(
    tensors: Mapping[str, npt.NDArray[Any]], expected: Mapping[str, Shape], prefix: str = PREFIX
) -> Params:
    """The expert in an adapter's tensors, in the order of ``expected_shapes``.

    Raises ``ValueError`` for a tensor that is missing, unknown, of another shape, not of floating
    point, or not finite.
    """
    wanted = {prefix + name for name in expected}
    if odd := sorted(wanted ^ set(tensors)):
        kind = "is missing" if odd[0] in wanted else "is not a factor of this model's matrices"
        raise ValueError(f"the adapter does not fit: {odd[0]} {kind} ({len(odd)} such names)")
    return {name: _checked(name, tensors[prefix + name], expected[name]) for name in expected}


def _checked(name: str, value: npt.NDArray[Any], shape: Shape) -> mx.array:
    if value.shape != shape:
        raise ValueError(f"{name}: shape {value.shape}, expected {shape}")
    if not np.issubdtype(value.dtype, np.floating):
        raise ValueError(f"{name}: {value.dtype} is not a floating-point type")
    with np.errstate(over="ignore"):  # too large for fp32 becomes infinity, which is refused
        exact = value.astype(np.float32)
    if not np.isfinite(exact).all():
        raise ValueError(f"{name} holds NaN or infinity")
    return mx.array(exact)


def adapter_config(config: LoraConfig, layers: int) -> dict[str, Any]:
    """mlx-lm's ``adapter_config.json`` for a model of so many layers."""
    return {
        "fine_tune_type": "lora",
        "num_layers": layers if config.layers is None else min(config.layers, layers),
        "lora_parameters": {
            "rank": config.rank,
            "scale": config.scale,
            "dropout": 0.0,
            "keys": [_key(target) for target in config.targets],
        },
    }


def read_adapter_config(document: Mapping[str, Any], layers: int) -> LoraConfig:
    """The inverse of ``adapter_config``.

    Raises ``ValueError`` where the adapter is no LoRA, or has factors of other matrices.
    """
    match document:
        case {"num_layers": int(count), "lora_parameters": {"rank": rank, "scale": scale} as rest}:
            pass
        case _:
            raise ValueError("the adapter's configuration lacks num_layers, rank or scale")
    if document.get("fine_tune_type", "lora") != "lora":
        raise ValueError(f"the adapter is of the kind {document['fine_tune_type']}, not lora")
    known = {_key(target): target for target in ALL}
    keys = rest.get("keys") or list(known)  # mlx-lm: none = every linear layer of a block
    if unknown := [key for key in keys if key not in known]:
        raise ValueError(f"the adapter changes {unknown[0]}, which no expert can")
    return LoraConfig(
        rank=rank,
        scale=scale,
        targets=tuple(known[key] for key in keys),
        layers=count if 0 < count < layers else None,
    )


def _key(target: str) -> str:
    return f"{'self_attn' if target in ATTENTION_TARGETS else 'mlp'}.{target}"
