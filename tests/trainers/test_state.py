"""What a FuRA-S run stores and is configured with: exact round trips, damage refused."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pydantic import ValidationError

from trainers.state import FuraSConfig, State

SEEDS = st.integers(0, 2**64 - 1) | st.sampled_from([2**63 - 1, 2**63, 2**64 - 1])
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(
    st.integers(0, 20).flatmap(lambda n: arrays(np.float32, (3, n), elements=FLOATS)),
    SEEDS,
    st.tuples(st.booleans(), st.floats(), st.floats(), st.floats(), st.floats(0, 1e9)),
    st.lists(st.integers(0, 10**9), min_size=4, max_size=4),
)
@settings(deadline=None)
def test_unpack_is_the_exact_inverse_of_pack(vectors, seed, values, counts):
    warm, pass_rate, trend, best, elapsed_s = values
    iteration, zero_variance, non_finite, best_at = counts
    state = State(
        theta=vectors[0],
        velocity=vectors[1],
        scale=vectors[2],
        seed=seed,
        iteration=iteration,
        warm=warm,
        elapsed_s=elapsed_s,
        zero_variance=zero_variance,
        non_finite=non_finite,
        pass_rate=pass_rate,
        trend=trend,
        best=best,
        best_at=best_at,
    )
    again = State.unpack(state.pack())
    for name in ("theta", "velocity", "scale"):
        assert getattr(again, name).tobytes() == getattr(state, name).tobytes()
    for name in vars(state).keys() - {"theta", "velocity", "scale"}:
        found, wanted = getattr(again, name), getattr(state, name)
        assert type(found) is type(wanted)
        assert found == wanted or (math.isnan(found) and math.isnan(wanted))


def damaged(**changes) -> dict[str, np.ndarray]:
    return State.fresh(FuraSConfig(), 1, 3).pack() | changes


def meta(**changes) -> np.ndarray:
    fields = json.loads(State.fresh(FuraSConfig(), 1, 3).pack()["meta"].tobytes()) | changes
    known = {name: value for name, value in fields.items() if value is not None}
    return np.frombuffer(json.dumps(known).encode(), dtype=np.uint8)


@pytest.mark.parametrize(
    "arrays_",
    [
        damaged(theta=np.zeros(4, np.float32)),
        damaged(velocity=np.zeros(2, np.float32)),
        damaged(scale=np.zeros(4, np.float32)),
        damaged(**dict.fromkeys(("theta", "velocity", "scale"), np.zeros((3, 1), np.float32))),
        damaged(theta=np.zeros(3, np.float64)),
        damaged(velocity=np.zeros(3, np.int32)),
        damaged(theta=np.array([0, np.nan, 0], np.float32)),
        damaged(velocity=np.array([0, np.inf, 0], np.float32)),
        damaged(scale=np.ones(3, np.float64)),
        damaged(scale=np.array([1, np.nan, 1], np.float32)),
        damaged(meta=np.frombuffer(b"[]", np.uint8)),
        damaged(meta=np.frombuffer(b"{", np.uint8)),
        damaged(meta=np.frombuffer(b"\xff", np.uint8)),
        damaged(meta=meta(iteration=None)),
        damaged(meta=meta(iteration="3")),
        damaged(meta=meta(iteration=3.0)),
        damaged(meta=meta(warm=1)),
        damaged(meta=meta(theta=[])),
        damaged(meta=meta(another=1)),
        {},
        {name: array for name, array in damaged().items() if name != "velocity"},
        {name: array for name, array in damaged().items() if name != "scale"},
    ],
)
def test_a_damaged_state_is_refused(arrays_):
    with pytest.raises((KeyError, ValueError)):
        State.unpack(arrays_)


def test_a_fresh_run_starts_at_the_base_with_isotropic_noise():
    state = State.fresh(FuraSConfig(), 7, 5)
    for name, value in (("theta", 0), ("velocity", 0), ("scale", 1)):
        vector = getattr(state, name)
        assert vector.dtype == np.float32
        assert vector.tolist() == [value] * 5
    assert (state.seed, state.iteration, state.best_at) == (7, 0, 0)
    for fitness in ("auto", "score", "likelihood", "mix"):
        assert State.fresh(FuraSConfig(fitness=fitness), 7, 5).warm == (fitness == "auto")


# --- config


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("population", [3, 0, 1, 514, -2, 2.5]),
        ("prompts", [0, 257]),
        ("sigma", [0, -0.1, 1.01, math.nan, math.inf]),
        ("lr", [0, -1, 10.5, math.nan, math.inf]),
        ("lr_end", [0, 1.5]),
        ("momentum", [-0.1, 1, math.nan]),
        ("shaping", ["rank", None]),
        ("fitness", ["reward", ""]),
        ("depths", [[], [0.0], [1.5], [0.1] * 9]),
        ("whitening", [-0.1, 1.1, math.nan]),
        ("iterations", [0, 100_001]),
        ("minutes", [0, -1, math.nan, math.inf]),
        ("max_tokens", [0, 4097]),
        ("probe_every", [0]),
        ("patience", [0]),
        ("learning_rate", [0.1]),
        ("warm_until", [0.5]),
    ],
)
def test_config_refuses_what_is_out_of_range_or_unknown(field, values):
    for value in values:
        with pytest.raises(ValidationError, match=field):
            FuraSConfig(**{field: value})


def test_config_is_frozen_small_and_survives_json():
    settings_ = FuraSConfig()
    assert len(FuraSConfig.model_fields) <= 15
    assert all(field.description for field in FuraSConfig.model_fields.values())
    assert FuraSConfig.model_validate_json(settings_.model_dump_json()) == settings_
    with pytest.raises(ValidationError, match="frozen"):
        settings_.lr = 1.0


def test_an_odd_population_is_refused_with_the_reason():
    with pytest.raises(ValidationError, match="antithetic pairs"):
        FuraSConfig(population=5)
