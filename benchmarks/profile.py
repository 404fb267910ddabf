"""Where a forward pass spends its time: every module of a model timed from inside.

Each module's class is replaced by a subclass that evaluates what enters and what leaves it and
adds up the time between, less that of the modules inside it. Whatever the engine is made of shows
up under its own name. The evaluations in between cost some microseconds each and keep lanes from
overlapping: shares are what to read, on one lane.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from app.engine import platform  # noqa: F401  (set up before MLX)

import mlx.core as mx  # isort: skip
from mlx import nn
from mlx.utils import tree_flatten

# What a module is called in the table, by the end of its name; others by their class.
_LABELS = (
    (("embed_tokens",), "embedding"),
    (("lm_head",), "head"),
    (("q_proj.linear", "k_proj.linear", "v_proj.linear"), "GEMM q, k, v"),
    (("o_proj.linear",), "GEMM o"),
    (("gate_proj.linear", "up_proj.linear"), "GEMM gate, up"),
    (("down_proj.linear",), "GEMM down"),
    (("rope",), "rope"),
    (("norm",), "norms"),
    (("_proj",), "edits"),
    (("self_attn",), "attention, key-value store"),
    (("mlp",), "activation"),
)
REST = "masks, sampling, Python"
Times = dict[str, dict[str, float]]  # stage -> component -> seconds


class Profile:
    """Times of the modules of one model, by stage: prefill or decode."""

    def __init__(self) -> None:
        self.times: Times = {}
        self.passes: dict[str, int] = defaultdict(int)
        self._stage = ""
        self._inside: list[float] = []  # seconds spent in the modules inside each open one

    def call(self, label: str, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """One call of a module."""
        if label == "embedding":
            self._stage = "decode" if args[0].shape[-1] == 1 else "prefill"
            self.passes[self._stage] += 1
        _settle((args, kwargs))
        begun = time.perf_counter()
        self._inside.append(0.0)
        result = run(*args, **kwargs)
        _settle(result)
        taken = time.perf_counter() - begun
        inside = self._inside.pop()
        if self._inside:
            self._inside[-1] += taken
        self._add(label, taken - inside)
        return result

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time of an engine step that is in no module."""
        begun = time.perf_counter()
        self._inside.append(0.0)
        yield
        inside = self._inside.pop()
        self._add(REST, time.perf_counter() - begun - inside)

    def _add(self, label: str, taken: float) -> None:
        stage = self.times.setdefault(self._stage, defaultdict(float))
        stage[label] += taken


def _settle(tree: Any) -> None:
    leaves: Any = tree_flatten(tree)
    mx.eval([leaf for _, leaf in leaves if isinstance(leaf, mx.array)])


def profiled(module: nn.Module, profile: Profile) -> None:
    """Has ``profile`` time every module of a model but the containers, from now on."""
    for name, part in module.named_modules():
        if not name or type(part).__call__ is nn.Module.__call__:
            continue
        part.__class__ = _timed(type(part), _label(name, part), profile)


def _label(name: str, part: nn.Module) -> str:
    for ends, label in _LABELS:
        if name.endswith(ends):
            return label
    return "residuals" if name.rsplit(".", maxsplit=1)[-1].isdigit() else type(part).__name__


def _timed(kind: type[nn.Module], label: str, profile: Profile) -> type[nn.Module]:
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        run = kind.__call__
        return profile.call(label, lambda *a, **k: run(self, *a, **k), args, kwargs)

    def as_linear(self: Any, *args: Any) -> Any:
        run = kind.as_linear  # type: ignore[attr-defined]
        return profile.call("head", lambda *a: run(self, *a), args, {})

    methods: dict[str, Any] = {"__call__": call}
    if hasattr(kind, "as_linear"):
        methods["as_linear"] = as_linear
    return type(kind.__name__, (kind,), methods)
