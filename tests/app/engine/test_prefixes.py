"""What is kept of earlier prompts, against a plain list of entries."""

from __future__ import annotations

from collections import OrderedDict

from app.engine.prefixes import (  # isort: skip  (before MLX: it sets the platform up)
    Known,
    PrefixCache,
    PrefixEntry,
    entry_of,
    shared_prefix,
    whole,
)
import mlx.core as mx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

tokens_ = st.lists(st.integers(0, 2), max_size=6)


@given(tokens_, tokens_)
def test_shared_prefix_counts_leading_equal_tokens(a: list[int], b: list[int]) -> None:
    expected = 0
    while expected < min(len(a), len(b)) and a[expected] == b[expected]:
        expected += 1
    assert shared_prefix(np.array(a, np.int32), np.array(b, np.int32)) == expected


def tensors(tokens: list[int], mark: float) -> list[tuple[mx.array, mx.array]]:
    """One layer of 8 bytes a token, whose values tell whose it is."""
    return [(mx.full((1, 1, len(tokens), 1), mark), mx.full((1, 1, len(tokens), 1), -mark))]


Step = tuple[str, str, list[int]]
steps_ = st.lists(
    st.tuples(
        st.sampled_from(["add", "longest", "longest", "forget"]),
        st.sampled_from(["", "a", "b"]),
        st.lists(st.integers(0, 2), min_size=1, max_size=5),
    ),
    max_size=25,
)


class Model:
    """The prefix cache, written plainly: entries of (expert, tokens, mark), oldest use first."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.entries: OrderedDict[int, tuple[str, list[int], float]] = OrderedDict()

    def held(self) -> int:
        return sum(8 * len(tokens) for _, tokens, _ in self.entries.values())

    def add(self, number: int, expert: str, tokens: list[int]) -> None:
        if 8 * len(tokens) > self.budget:
            return
        self.entries[number] = (expert, tokens, float(number))
        while self.held() > self.budget:
            self.entries.popitem(last=False)

    def longest(self, expert: str, tokens: list[int]) -> int:
        best, best_key = 0, -1
        for key, (owner, known, _) in self.entries.items():
            shared = shared_prefix(np.array(known), np.array(tokens))
            if owner == expert and shared > best:
                best, best_key = shared, key
        if best:
            self.entries.move_to_end(best_key)
        return best


@given(st.integers(8, 100), steps_)
def test_the_prefix_cache_keeps_to_its_expert_its_bytes_and_the_recently_used(
    budget: int, steps: list[Step]
) -> None:
    cache, model = PrefixCache(budget), Model(budget)
    owners: dict[float, str] = {}
    for number, (action, expert, tokens) in enumerate(steps):
        ids = np.array(tokens, np.int32)
        if action == "add":
            owners[float(number)] = expert
            cache.add(expert, PrefixEntry(ids, tensors(tokens, float(number))))
            model.add(number, expert, tokens)
        elif action == "forget":
            cache.forget(expert)
            for key in [k for k, (owner, *_) in model.entries.items() if owner == expert]:
                del model.entries[key]
        else:
            known = cache.longest(expert, ids)
            assert (known.length if known else 0) == model.longest(expert, tokens)
            if known:
                keys, values = known.tensors()[0]
                assert owners[keys[0, 0, 0, 0].item()] == expert
                assert keys.shape == values.shape == (1, 1, known.length, 1)
        assert cache.held_bytes == model.held() <= budget


def test_a_beginning_and_what_follows_it_are_one() -> None:
    entry = entry_of(np.array([1, 2, 3], np.int32), tensors([1, 2, 3], 1))
    [(keys, values)] = whole(Known(entry, 2), tensors([7], 5))
    assert keys.reshape(-1).tolist() == [1, 1, 5]
    assert values.reshape(-1).tolist() == [-1, -1, -5]
    follows = tensors([7], 5)
    assert whole(None, follows) is follows
