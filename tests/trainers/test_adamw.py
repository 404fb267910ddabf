"""AdamW against MLX's own and a float64 reference; zero gradients are gradients."""

from app.engine import models  # noqa: F401  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
import pytest

from trainers import adamw
from trainers.adamw import Moments, Rates

RATES = Rates(lr=3e-3, beta1=0.9, beta2=0.99, weight_decay=0.1)


def drawn(seed: int) -> dict[str, mx.array]:
    rng = np.random.default_rng(seed)
    shapes = {"a": (3, 4), "b": (5,)}
    return {n: mx.array(rng.standard_normal(s).astype(np.float32)) for n, s in shapes.items()}


def test_twenty_updates_are_those_of_mlx():
    ours, moments, theirs = drawn(0), Moments.fresh(drawn(0)), drawn(0)
    reference = optim.AdamW(3e-3, betas=[0.9, 0.99], weight_decay=0.1, bias_correction=True)
    for step in range(20):
        gradients = drawn(step + 1)
        ours, moments = adamw.update(ours, moments, gradients, RATES)
        theirs = reference.apply_gradients(gradients, theirs)
    for name in ours:
        assert np.allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-6)


def test_missing_gradients_are_zeros_in_a_float64_reference():
    ours, moments = drawn(0), Moments.fresh(drawn(0))
    x = np.array(ours["b"], np.float64)
    m, v = np.zeros(5), np.zeros(5)
    for t in range(1, 30):
        gradients = drawn(t)
        if t % 3:
            del gradients["b"]
        ours, moments = adamw.update(ours, moments, gradients, RATES)
        g = np.array(gradients["b"], np.float64) if "b" in gradients else np.zeros(5)
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        change = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.99**t)) + 1e-8)
        x = x - 3e-3 * (change + 0.1 * x)
    assert np.allclose(ours["b"], x, rtol=1e-4, atol=1e-6)
    assert moments.updates == 29


def test_momentum_moves_a_parameter_without_a_gradient():
    rates = Rates(1e-2, 0.9, 0.99, 0.0)
    once, moments = adamw.update(drawn(0), Moments.fresh(drawn(0)), drawn(1), rates)
    twice, _ = adamw.update(once, moments, {}, rates)
    for name, before in drawn(0).items():
        first, second = np.array(once[name] - before), np.array(twice[name] - once[name])
        assert (np.sign(first) == np.sign(second)).all()
        assert (second != 0).all()


def test_decay_is_decoupled_from_the_gradient():
    before = drawn(0)
    after, _ = adamw.update(before, Moments.fresh(before), {}, RATES)
    for name, x in before.items():
        assert np.allclose(after[name], np.array(x) * (1 - 3e-4), rtol=1e-6)


def test_an_update_leaves_its_arguments_as_they_were():
    before, moments = drawn(0), Moments.fresh(drawn(0))
    adamw.update(before, moments, drawn(1), RATES)
    assert all(mx.array_equal(before[n], x).item() for n, x in drawn(0).items())
    assert not any(m.any().item() for m in moments.first.values())


def test_a_gradient_of_no_parameter_is_refused():
    with pytest.raises(KeyError, match="no parameter is called c"):
        adamw.update(drawn(0), Moments.fresh(drawn(0)), {"c": mx.zeros(1)}, RATES)
