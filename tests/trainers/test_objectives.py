"""The losses: which tokens are trained on, with what weight, and the mistakes not to make."""

from pathlib import Path
from typing import Any

from app.engine import models  # noqa: F401  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tiny
from tests.trainers import gradients
from trainers import backprop, lora
from trainers.backprop import Plan
from trainers.objectives import Attempt, Batch, anchored, imitation, policy_gradient

TOKENS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def attempt(score: float | None, completion: tuple[int, ...] = (5, 6), **more: Any) -> Attempt:
    return Attempt((1, 2, 3), completion, score, **more)


def passed(prompt: list[int], completion: list[int]) -> Attempt:
    return Attempt(prompt, completion, 1.0, True)


def trained(batch: Batch | None) -> list[tuple[list[int], int, float]]:
    """(tokens read, token predicted, weight) of each trained token."""
    assert batch is not None
    tokens, width = np.array(batch.tokens), batch.tokens.shape[1]
    found = []
    for row, target, weight in zip(
        batch.rows.tolist(), batch.targets.tolist(), batch.weights.tolist(), strict=True
    ):
        found.append((tokens[row // width, : row % width + 1].tolist(), target, weight))
    return found


@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=4), st.integers(1, 14))
@settings(deadline=None, max_examples=50)
def test_imitation_predicts_each_token_from_prompt_and_tokens_before(pairs, max_tokens):
    wanted = []
    for prompt, completion in pairs:
        sequence = (prompt + completion)[:max_tokens]
        wanted += [(sequence[:i], sequence[i]) for i in range(len(prompt), len(sequence))]
    batch = imitation([passed(p, c) for p, c in pairs], max_tokens)
    if not wanted:
        assert batch is None
        return
    found = trained(batch)
    assert [(read, target) for read, target, _ in found] == wanted
    assert [weight for *_, weight in found] == pytest.approx([1 / len(wanted)] * len(wanted))


def test_a_batch_whose_targets_were_all_truncated_is_skipped():
    assert imitation([passed([1, 2, 3], [4]), passed([1] * 9, [4])], 3) is None
    assert policy_gradient([[attempt(1.0), attempt(0.0)]], 10, 4) is None
    cut = [attempt(1.0, truncated=True), attempt(0.0, truncated=True)]
    assert policy_gradient([cut], 10, 64) is None


def test_an_attempt_that_errored_is_never_trained_on():
    errored = Attempt((1, 2), (7, 8), None, passed=True)
    assert imitation([errored], 64) is None
    targets = [target for _, target, _ in trained(imitation([errored, passed([1], [5])], 64))]
    assert targets == [5]
    with_it = policy_gradient([[attempt(1.0), attempt(0.0, (4,)), errored]], 10, 64)
    without = policy_gradient([[attempt(1.0), attempt(0.0, (4,))]], 10, 64)
    assert trained(with_it) == trained(without)


def test_imitation_leaves_out_what_did_not_pass():
    assert imitation([attempt(0.9)], 64) is None


def test_the_policy_gradient_weighs_by_score_minus_the_group_s_mean():
    groups = [
        [attempt(1.0), attempt(0.0, (4,)), attempt(0.5, (9,))],
        [attempt(0.2, (8,)), attempt(0.6, (7,))],
    ]
    found = trained(policy_gradient(groups, length=20, max_tokens=64))
    # 5 attempts, 20 tokens; the one at its group's mean adds nothing.
    assert [(target, weight * 100) for _, target, weight in found] == [
        (5, pytest.approx(0.5)),
        (6, pytest.approx(0.5)),
        (4, pytest.approx(-0.5)),
        (8, pytest.approx(-0.2)),
        (7, pytest.approx(0.2)),
    ]


def test_the_weight_of_a_token_does_not_depend_on_the_completion_s_length():
    short, long = (
        trained(policy_gradient([[attempt(1.0, (5,) * n), attempt(0.0)]], 10, 64)) for n in (1, 9)
    )
    assert short[0][2] == long[0][2]


def test_a_truncated_completion_has_no_gradient_but_counts_for_the_mean():
    found = trained(policy_gradient([[attempt(1.0), attempt(0.0, (4,), truncated=True)]], 10, 64))
    assert [(target, weight * 20) for _, target, weight in found] == [
        (5, pytest.approx(0.5)),
        (6, pytest.approx(0.5)),
    ]


def test_a_group_of_equal_scores_is_skipped():
    assert policy_gradient([[attempt(1.0), attempt(1.0)]], 10, 64) is None
    assert policy_gradient([[attempt(0.5)]], 10, 64) is None
    assert policy_gradient([], 10, 64) is None


def test_a_completion_without_a_prompt_is_refused():
    with pytest.raises(ValueError, match="needs a prompt"):
        imitation([passed([], [4])], 64)


def head(hidden: mx.array) -> mx.array:
    """(n, 4) -> 10 logits."""
    weight = np.random.default_rng(7).standard_normal((4, 10)).astype(np.float32)
    return hidden @ mx.array(weight)


def log_softmax(hidden: mx.array) -> np.ndarray:
    logits = np.array(head(hidden), dtype=np.float64)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


@pytest.fixture
def scored() -> tuple[Batch, mx.array]:
    batch = policy_gradient([[attempt(1.0), attempt(0.0, (4, 9, 1))]], 10, 64)
    assert batch is not None
    rows = np.random.default_rng(3).standard_normal((5, 4)).astype(np.float32)
    return batch, mx.array(rows)


def test_the_loss_is_minus_the_weighted_log_probabilities(scored):
    batch, hidden = scored
    chosen = log_softmax(hidden)[np.arange(5), np.array(batch.targets)]
    wanted = -(np.array(batch.weights) * chosen).sum()
    assert batch.loss(head, hidden, slice(None)).item() == pytest.approx(wanted, rel=1e-5)
    parts = [batch.loss(head, hidden[s], s).item() for s in (slice(0, 2), slice(2, 7))]
    assert sum(parts) == pytest.approx(wanted, rel=1e-5)


def test_an_anchor_adds_the_kl_to_the_base(scored):
    batch, hidden = scored
    base = mx.array(np.random.default_rng(4).standard_normal((5, 4)).astype(np.float32))
    p, q = log_softmax(hidden), log_softmax(base)
    kl = (np.exp(p) * (p - q)).sum()
    plain = batch.loss(head, hidden, slice(None)).item()
    found = anchored(batch, base, 0.3).loss(head, hidden, slice(None)).item()
    assert found - plain == pytest.approx(0.3 * kl / 20, rel=1e-4)
    itself = anchored(batch, hidden, 0.3).loss(head, hidden, slice(None)).item()
    assert itself == pytest.approx(plain, rel=1e-6)


@pytest.fixture(scope="module")
def expert(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tiny.build(tmp_path_factory.mktemp("objectives") / "llama", "llama")
    module = gradients.module_of(folder, quantised=True)
    params = gradients.lora_params(module)
    return gradients.decoder_of(module, lora.LoraEdit(1.5)), params


def loss_of(expert: Any, batch: Batch | None) -> float:
    assert batch is not None
    return backprop.gradients(*expert, batch, Plan.full(2), lambda *_: None)


@pytest.mark.parametrize("objective", [imitation, lambda a, n: policy_gradient([a], 8, n)])
def test_changing_the_prompt_changes_the_loss(expert: Any, objective: Any):
    prompts = ([9, 20, 30], [10, 99, 30])
    groups = [[Attempt(p, (40, 41), 1.0, True), Attempt(p, (50,), 0.0)] for p in prompts]
    losses = [loss_of(expert, objective(group, 64)) for group in groups]
    assert abs(losses[0] - losses[1]) > 1e-3


def test_padding_changes_nothing(expert: Any):
    short, long = passed([9, 20], [30]), passed([9, 20, 8], [31, 40, 41, 42, 43, 44])
    alone = [loss_of(expert, imitation([a], 64)) for a in (short, long)]
    together = loss_of(expert, imitation([short, long], 64))
    assert together == pytest.approx((alone[0] + 6 * alone[1]) / 7, rel=1e-5)


def test_the_kl_s_gradient_is_that_of_the_whole_loss(expert: Any):
    decoder, params = expert
    group = [Attempt((9, 20), (40, 41, 60), 1.0), Attempt((9, 20), (50,), 0.0)]
    batch = policy_gradient([group], 8, 64)
    assert batch is not None
    batch = anchored(batch, backprop.hidden_at(decoder, {}, batch), 2.0)

    def whole(own: dict[str, mx.array]) -> mx.array:
        hidden = backprop.by_layer(own, 2)
        rows = decoder.embed(batch.tokens)
        for index, layer in enumerate(hidden):
            rows = decoder.layer(index, layer, rows)
        rows = rows.reshape(-1, rows.shape[-1])[batch.rows]
        return batch.loss(decoder.head, rows, slice(None))

    wanted_loss, wanted = mx.value_and_grad(whole)(params)
    found: dict[str, mx.array] = {}
    loss = backprop.gradients(
        decoder, params, batch, Plan.full(2), lambda _, own: found.update(own), chunk_rows=2
    )
    assert loss == pytest.approx(wanted_loss.item(), rel=1e-5)
    assert gradients.relative_error(found, wanted) <= 1e-5
