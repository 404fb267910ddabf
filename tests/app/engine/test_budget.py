"""Shares of the memory budget: their sum holds, whatever the model and the budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.engine.budget import buffer_bytes, divided
from app.engine.config import EngineConfig

SIZES = st.integers(0, 1 << 40)


@given(SIZES, SIZES, st.integers(1, 1 << 20), st.integers(1, 8))
def test_all_shares_together_stay_within_the_budget(
    budget: int, model: int, token: int, lanes: int
) -> None:
    wanted = EngineConfig(memory_bytes=budget)
    sizes = divided(wanted, model, token, lanes)
    rollouts = sizes.limits.batch_tokens * token * lanes
    least = token * lanes  # a rollout of single rows always runs
    held = sizes.batch_bytes + sizes.prefix_bytes + sizes.limits.trunk_bytes
    held += buffer_bytes(wanted, model)
    assert held + rollouts <= max(0, budget - model) * 0.9 + least


@given(SIZES, st.integers(1, 1 << 20))
def test_no_size_is_raised_above_what_was_configured(budget: int, token: int) -> None:
    wanted = EngineConfig(memory_bytes=budget)
    sizes = divided(wanted, 0, token, 1)
    assert sizes.batch_bytes <= wanted.batch_bytes
    assert sizes.prefix_bytes <= wanted.prefix_bytes
    assert sizes.limits.batch_tokens <= wanted.limits.batch_tokens
    assert sizes.limits.trunk_bytes <= wanted.limits.trunk_bytes


def test_the_default_budget_leaves_the_embedded_models_rollouts_as_large_as_they_can_be() -> None:
    """SmolLM2-135M dense on two lanes: 46 kB of keys and values per token."""
    wanted = EngineConfig(memory_bytes=4 * 1000**3)
    sizes = divided(wanted, 600 * 10**6, 46_080, 2)
    assert sizes.limits == wanted.limits
    assert sizes.batch_bytes > 900 * 10**6
