"""The slot table: who is in it, who may be put out, what a bad expert leaves behind."""

from __future__ import annotations

from collections.abc import Callable

from app.engine.slots import ExpertSlots, NoFreeSlot, Tensors  # isort: skip
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.batch import Runtime
from tests.app.engine import rigs
from trainers.spectral import Basis

Runtimes = Callable[[str], tuple[Runtime, Basis]]


class Source:
    """Experts by name; every coordinate of one is its number. Counts what is read."""

    def __init__(self, basis: Basis) -> None:
        self.basis = basis
        self.read: list[str] = []
        self.broken: set[str] = set()

    def flat(self, name: str) -> rigs.FloatArray:
        return np.full(self.basis.coordinates.total, ord(name) - ord("a") + 1, np.float32)

    def __call__(self, name: str) -> Tensors:
        self.read.append(name)
        if name in self.broken:
            raise OSError(f"{name} is damaged")
        tensors = self.basis.coordinates.split(self.flat(name))
        return {key: part.astype(np.float16) for key, part in tensors.items()}


@pytest.fixture
def source(runtimes: Runtimes) -> Source:
    return Source(runtimes("llama")[1])


def slots_of(runtimes: Runtimes, source: Source, count: int = 2) -> ExpertSlots:
    return ExpertSlots(runtimes("llama")[0], count, source)


def held(slots: ExpertSlots, slot: int) -> float:
    """The number of the expert in a slot; all its coordinates must agree."""
    edits = slots.edits([slot, 0])
    if edits is None:
        return 0.0
    rows = np.array(edits._flat)
    assert (rows[1] == 0).all()
    assert (rows[0] == rows[0, 0]).all()
    return float(rows[0, 0])


def test_an_expert_in_a_slot_is_not_read_again(runtimes: Runtimes, source: Source) -> None:
    slots = slots_of(runtimes, source)
    first = slots.acquire("a")
    assert slots.acquire("a") == first
    assert source.read == ["a"]
    assert held(slots, first) == 1
    assert slots.last_swap_ms is not None


def test_the_base_needs_no_slot_and_no_edit(runtimes: Runtimes, source: Source) -> None:
    slots = slots_of(runtimes, source)
    assert slots.acquire(None) == 0
    slots.release(None)
    assert slots.edits([0, 0]) is None
    assert source.read == []


def test_the_least_recently_used_idle_expert_makes_room(runtimes: Runtimes, source: Source) -> None:
    slots = slots_of(runtimes, source)
    for name in "aba":
        slots.acquire(name)
        slots.release(name)
    slots.acquire("c")
    slots.acquire("a")
    assert source.read == ["a", "b", "c"]


def test_a_pinned_expert_is_never_put_out(runtimes: Runtimes, source: Source) -> None:
    slots = slots_of(runtimes, source)
    one, two = slots.acquire("a"), slots.acquire("b")
    slots.acquire("a")
    slots.release("a")
    with pytest.raises(NoFreeSlot):
        slots.acquire("c")
    assert source.read == ["a", "b"]  # a file is only read when there is a slot for it
    assert (held(slots, one), held(slots, two)) == (1, 2)
    slots.release("a")
    assert slots.acquire("c") == one
    assert held(slots, one) == 3


def test_an_expert_that_cannot_be_read_takes_no_slot_and_puts_nobody_out(
    runtimes: Runtimes, source: Source
) -> None:
    slots = slots_of(runtimes, source)
    for name in "ab":
        slots.acquire(name)
        slots.release(name)
    source.broken.add("c")
    for _ in range(3):
        with pytest.raises(OSError, match="c is damaged"):
            slots.acquire("c")
    slots.acquire("a")
    slots.acquire("b")
    assert source.read == ["a", "b", "c", "c", "c"]


def test_an_expert_of_another_model_is_refused(runtimes: Runtimes, source: Source) -> None:
    def foreign(name: str) -> Tensors:
        return {"layers.0.self_attn.q_proj": np.zeros(64, np.float16)}

    slots = ExpertSlots(runtimes("llama")[0], 1, foreign)
    with pytest.raises(ValueError, match="not this model's"):
        slots.acquire("a")


def test_a_forgotten_expert_is_read_anew(runtimes: Runtimes, source: Source) -> None:
    slots = slots_of(runtimes, source)
    slots.acquire("a")
    slots.forget("a")  # in use: stays
    assert slots.acquire("a") == slots.acquire("a")
    assert source.read == ["a"]
    for _ in range(3):
        slots.release("a")
    slots.forget("a")
    slots.forget("a")
    slots.forget("never seen")
    slots.acquire("a")
    assert source.read == ["a", "a"]


def test_edits_taken_before_a_swap_keep_their_expert(runtimes: Runtimes, source: Source) -> None:
    slots = slots_of(runtimes, source, count=1)
    slot = slots.acquire("a")
    edits = slots.edits([slot])
    assert edits is not None
    slots.release("a")
    slots.acquire("b")
    part = edits.of("layers.0.self_attn.q_proj")
    mx.eval(part)
    assert (np.array(part) == 1).all()


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), max_size=30))
def test_whatever_the_order_rows_get_their_own_expert(
    runtimes: Runtimes, steps: list[tuple[str, bool]]
) -> None:
    source = Source(runtimes("llama")[1])
    slots = slots_of(runtimes, source, count=3)
    rows: list[tuple[str, int]] = []
    for name, release in steps:
        if release and rows:
            slots.release(rows.pop(0)[0])
        try:
            rows.append((name, slots.acquire(name)))
        except NoFreeSlot:
            assert len({used for used, _ in rows} | {name}) > 3
        for used, slot in rows:
            assert held(slots, slot) == ord(used) - ord("a") + 1
