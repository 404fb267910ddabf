"""How runs of FuRA-S end, and what they report and count on the way."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.trainers.landscapes import (
    PROMPTS,
    SIZE,
    Landscape,
    Scripted,
    config,
    never,
    run,
    stored,
)
from trainers.fura_s import Progress, Scores, step, train
from trainers.state import State


def test_training_without_prompts_is_refused():
    with pytest.raises(ValueError, match="no training prompts"):
        train(config(), State.fresh(config(), 1, SIZE), 0, Landscape(), lambda *_: None, never)


@pytest.mark.parametrize("reason", ["cancelled", "paused", "interrupted"])
def test_a_wish_to_stop_is_heard_before_the_first_iteration(reason):
    settings_ = config(whitening=0.5)
    evaluator, state = Landscape(), State.fresh(settings_, 1, SIZE)
    assert train(settings_, state, PROMPTS, evaluator, lambda *_: None, lambda: reason) == reason
    assert evaluator.calls == []
    assert state.iteration == 0


def test_a_finished_run_ends_again_without_another_iteration():
    _, state, _ = run(config(), Landscape())
    evaluator = Landscape()
    assert run(config(), evaluator, state=state)[0] == "iterations"
    assert evaluator.calls == []


def test_the_minutes_are_counted_over_all_sessions(clock):
    class Slow(Landscape):
        def scores(self, candidates, prompts):
            clock.now += 20
            return super().scores(candidates, prompts)

    settings_ = config(minutes=2.0, iterations=100)
    state = State.fresh(settings_, 1, SIZE)
    answers = iter([None, None, "paused"])
    assert train(settings_, state, PROMPTS, Slow(), lambda *_: None, lambda: next(answers)) == (
        "paused"
    )
    clock.now += 10_000  # the time between two sessions is not training
    reason, resumed, seen = run(settings_, Slow(), state=State.unpack(stored(state)))
    assert (reason, resumed.iteration, resumed.elapsed_s) == ("minutes", 6, 120.0)
    assert [p.eta_s for p in seen] == [60.0, 40.0, 20.0, 0.0]


def test_the_learning_rate_falls_with_the_budget_that_is_further_used_up(clock):
    def length(iteration: int, elapsed_s: float) -> float:
        settings_ = config(momentum=0.0, iterations=100, minutes=1.0, lr=0.1, lr_end=0.2)
        state = State.fresh(settings_, 1, SIZE)
        state.iteration, state.elapsed_s = iteration, elapsed_s
        step(settings_, state, PROMPTS, Landscape(), 1)
        return float(np.linalg.norm(state.theta))

    assert length(10, 0) / length(10, 30) == pytest.approx((1 - 0.8 * 0.1) / (1 - 0.8 * 0.5))
    assert length(90, 0) / length(90, 30) == pytest.approx(1)
    assert length(0, 0) / length(0, 90) == pytest.approx(1 / 0.2)


def test_a_run_without_progress_ends_as_a_plateau():
    settings_ = config(fitness="likelihood", iterations=1000, patience=15)
    reason, state, seen = run(settings_, Scripted(lambda r: r % 1e-3))
    assert reason == "plateau"
    assert state.iteration == state.best_at + 15 == len(seen) < 100


def test_a_run_with_steady_progress_is_no_plateau():
    settings_ = config(fitness="likelihood", iterations=40, patience=10, lr=0.02)
    assert run(settings_, Landscape())[0] == "iterations"


@pytest.mark.parametrize("value", [0.3, math.nan])
@pytest.mark.parametrize("fitness", ["score", "likelihood", "mix", "auto"])
def test_a_run_of_equal_or_missing_rewards_ends_flat_at_the_base_model(fitness, value):
    settings_ = config(fitness=fitness, patience=7, iterations=100)
    reason, state, seen = run(settings_, Scripted(lambda r: np.full_like(r, value)))
    assert reason == "flat"
    assert state.iteration == state.zero_variance == 7
    assert seen[-1].zero_variance_share == 1.0
    assert not state.theta.any()
    assert not state.velocity.any()


# --- errors of the verifier


def without(*cells: tuple[int, int]) -> Callable[[np.ndarray], np.ndarray]:
    def change(reward: np.ndarray) -> np.ndarray:
        if len(reward) > 1:
            for cell in cells:
                reward[cell] = np.nan
        return reward

    return change


@pytest.mark.parametrize(("fitness", "kinds"), [("score", 1), ("likelihood", 1), ("mix", 2)])
def test_rewards_that_are_missing_are_counted(fitness, kinds):
    _, state, seen = run(config(fitness=fitness), Scripted(without((0, 1), (5, 2), (5, 3))))
    assert [p.non_finite for p in seen] == [3 * kinds * i for i in range(1, 13)]
    assert np.isfinite(state.theta).all()


def test_an_errored_row_counts_as_its_prompts_mean_in_a_whole_step():
    def filled(reward: np.ndarray) -> np.ndarray:
        reward[5, 2] = np.delete(reward[:, 2].astype(np.float64), 5).mean()
        return reward

    settings_ = config(fitness="likelihood", iterations=1)
    _, errored, _ = run(settings_, Scripted(without((5, 2)), level=9.0))
    _, imputed, _ = run(settings_, Scripted(filled, level=9.0))
    np.testing.assert_allclose(errored.theta, imputed.theta, atol=1e-5)


def test_an_errored_row_has_not_failed_in_the_pass_rate():
    class MostlyErrored(Landscape):
        def scores(self, candidates, prompts):
            score = np.ones((len(candidates), len(prompts)), dtype=np.float32)
            score[:, 1:] = np.nan
            return Scores(score, np.isfinite(score), 1)

    assert run(config(iterations=1), MostlyErrored())[2][0].pass_rate == 1.0
    _, warm, _ = run(config(fitness="auto", iterations=3), MostlyErrored())
    assert not warm.warm


def test_an_iteration_that_only_errored_reports_no_reward_and_no_pass_rate():
    _, _, seen = run(config(iterations=1), Scripted(lambda r: np.full_like(r, np.nan)))
    assert (seen[0].mean_reward, seen[0].best_reward, seen[0].pass_rate) == (None, None, None)


def test_what_an_evaluator_raises_comes_through():
    class Broken(Landscape):
        def scores(self, candidates, prompts):
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        run(config(), Broken())


# --- progress


def test_progress_reports_what_was_measured(clock):
    class Timed(Landscape):
        def scores(self, candidates, prompts):
            clock.now += 4
            self.last = super().scores(candidates, prompts)
            self.last.score[3] = np.nan
            self.last.score[4, 0] = np.nan
            return self.last

    evaluator, settings_ = Timed(), config(iterations=10)
    state = State.fresh(settings_, 1, SIZE)
    for iteration in range(1, 4):
        progress = step(settings_, state, PROMPTS, evaluator, 1)
        score = evaluator.last.score.astype(np.float64)
        means = [
            np.mean([v for v in row if np.isfinite(v)]) for i, row in enumerate(score) if i != 3
        ]
        graded = evaluator.last.passed[np.isfinite(score)]
        assert progress == Progress(
            iteration=iteration,
            iterations=10,
            fitness="score",
            depth=1,
            mean_reward=pytest.approx(np.mean(means)),
            best_reward=pytest.approx(max(means)),
            pass_rate=pytest.approx(np.mean(graded)),
            zero_variance_share=0.0,
            non_finite=5 * iteration,
            tokens_per_second=5 * 16 * 4 / 4,
            elapsed_s=4.0 * iteration,
            eta_s=pytest.approx(4.0 * (10 - iteration)),
        )


def test_probes_count_in_the_tokens(clock):
    class Timed(Landscape):
        def likelihood(self, candidates, prompts, centre, first):
            clock.now += 1
            return super().likelihood(candidates, prompts, centre, first)

    _, _, seen = run(config(fitness="likelihood", iterations=3), Timed())
    # The probe asks all twelve prompts, 5 tokens each, and takes one second.
    assert [p.tokens_per_second for p in seen] == [640, 640, (640 + 60) / 2]


def test_a_clock_that_does_not_move_is_no_error(clock):
    reason, state, seen = run(config(minutes=1.0), Landscape())
    assert (reason, state.elapsed_s) == ("iterations", 0.0)
    assert {(p.tokens_per_second, p.eta_s) for p in seen} == {(0.0, 0.0)}


def test_every_iteration_is_reported_once_with_the_state_after_it():
    settings_, state = config(), State.fresh(config(), 1, SIZE)
    seen: list[tuple[bool, int, int]] = []
    train(
        settings_,
        state,
        PROMPTS,
        Landscape(),
        lambda s, p: seen.append((s is state, s.iteration, p.iteration)),
        never,
    )
    assert seen == [(True, i, i) for i in range(1, 13)]


def test_fewer_prompts_than_asked_for_are_all_used():
    asked: list[list[int]] = []

    class Noting(Landscape):
        def scores(self, candidates, prompts):
            asked.append(sorted(prompts))
            return super().scores(candidates, prompts)

    state = State.fresh(config(), 1, SIZE)
    train(config(prompts=50), state, PROMPTS, Noting(), lambda *_: None, never)
    assert asked == [list(range(PROMPTS))] * 12


def test_progress_is_judged_by_an_average_that_remembers_thirty_iterations():
    _, state, seen = run(config(iterations=30), Landscape(noise_level=0.2))
    trend, best, best_at = seen[0].mean_reward, -math.inf, 0
    for progress in seen:
        trend += 0.03 * (progress.mean_reward - trend)
        if trend > best + 1e-4:
            best, best_at = trend, progress.iteration
    assert (state.trend, state.best) == (pytest.approx(trend), pytest.approx(best))
    assert state.best_at == best_at
