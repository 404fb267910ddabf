"""What is kept of the lower layers: the same bits whatever was kept before, within its budget."""

from __future__ import annotations

from collections.abc import Callable

from app.engine.trunk import Trunk  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import numpy as np
import pytest

from app.engine.batch import Batch, Runtime
from tests.app.engine import rigs
from trainers.spectral import Basis

Runtimes = Callable[[str], tuple[Runtime, Basis]]
PREFIX = rigs.prompts_of([7])[0]
ROWS = rigs.prompts_of([5, 11, 2, 8], 0, seed=3)


@pytest.fixture(scope="module")
def llama(runtimes: Runtimes) -> tuple[Runtime, Basis]:
    return runtimes("llama")


def trunk(runtime: Runtime, lanes: int = 2, budget: int = 1 << 20) -> Trunk:
    return Trunk(runtime, [mx.new_stream(mx.default_device()) for _ in range(lanes)], budget)


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_states_are_those_of_the_layers_run_over_prefix_and_row(
    lanes: int, llama: tuple[Runtime, Basis]
) -> None:
    runtime, basis = llama
    centre = rigs.experts(basis, 1)[0]
    prefix, states = trunk(runtime, lanes).enter(1, centre, PREFIX, ROWS)
    for row, state in zip(ROWS, states, strict=True):
        tokens = np.concatenate([PREFIX, row])
        edits = runtime.edits(mx.array(centre[None]))
        nothing = np.zeros(1, dtype=np.int32)
        batch = Batch.fresh(runtime, 1, nothing, len(tokens), edits, span=range(1))
        whole = np.array(runtime.run(batch, runtime.embed(tokens[None]))[0])
        np.testing.assert_allclose(np.array(prefix[0]), whole[: len(PREFIX)], atol=1e-5)
        np.testing.assert_allclose(np.array(state), whole[len(PREFIX) :], atol=1e-5)


def test_a_rows_bits_do_not_depend_on_what_is_kept_or_asked_beside_it(
    llama: tuple[Runtime, Basis],
) -> None:
    """A run that goes on in a new process has kept nothing."""
    runtime, basis = llama
    centre = rigs.experts(basis, 1)[0]
    _, together = trunk(runtime).enter(1, centre, PREFIX, ROWS)
    kept = trunk(runtime)
    kept.enter(1, centre, PREFIX, ROWS[1:2])
    _, mixed = kept.enter(1, centre, PREFIX, ROWS)
    alone = [trunk(runtime).enter(1, centre, PREFIX, [row])[1][0] for row in ROWS]
    for one, two, three in zip(together, mixed, alone, strict=True):
        assert np.array(one).tobytes() == np.array(two).tobytes() == np.array(three).tobytes()


def test_another_centre_below_or_another_layer_is_computed_anew(
    llama: tuple[Runtime, Basis],
) -> None:
    runtime, basis = llama
    one, two = rigs.experts(basis, 2)
    same_below = two.copy()
    end = runtime.first_coordinate(1)
    same_below[:end] = one[:end]
    kept = trunk(runtime)
    [first] = kept.enter(1, one, PREFIX, ROWS[:1])[1]
    assert kept.enter(1, same_below, PREFIX, ROWS[:1])[1][0] is first
    for first_layer, centre in ((1, two), (0, one)):
        [other] = kept.enter(first_layer, centre, PREFIX, ROWS[:1])[1]
        assert not np.allclose(np.array(other), np.array(first))


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_no_more_is_kept_than_the_budget_and_the_latest_stay(
    rows: int, llama: tuple[Runtime, Basis]
) -> None:
    runtime, basis = llama
    centre = rigs.experts(basis, 1)[0]
    equal = rigs.prompts_of([6] * 5, 0, seed=4)
    each = 6 * runtime.embed(equal[0][None]).nbytes // 6
    kept = trunk(runtime, budget=rows * each)
    _, states = kept.enter(1, centre, PREFIX, equal)
    assert len(states) == 5
    assert kept._held == rows * each
    assert [key[3] for key in kept._rows] == [row.tobytes() for row in equal[5 - rows :]]
