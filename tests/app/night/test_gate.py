"""The split and the exact paired test, against enumeration and published tables."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.night.gate import GateResult, decide, mcnemar, split

rows = st.lists(
    st.tuples(st.none() | st.sampled_from("abcdefgh"), st.sampled_from("12345678")), max_size=40
)
fractions = st.floats(0.01, 0.99)


def split_rows(pairs, fraction=0.3, minimum=1, salt="home"):
    return split(
        [group for group, _ in pairs],
        [prompt for _, prompt in pairs],
        fraction=fraction,
        minimum=minimum,
        salt=salt,
    )


def enumerated_p(wins: int, losses: int) -> float:
    """Counts the coin sequences at least as far from half as the observed one."""
    n = wins + losses
    distance = abs(2 * wins - n)
    outcomes = list(itertools.product((0, 1), repeat=n))
    return sum(abs(2 * sum(coins) - n) >= distance for coins in outcomes) / len(outcomes)


@pytest.mark.parametrize("wins", range(7))
@pytest.mark.parametrize("losses", range(7))
def test_mcnemar_equals_enumeration_of_all_coin_sequences(wins, losses):
    assert mcnemar(wins, losses) == enumerated_p(wins, losses)


@pytest.mark.parametrize(
    ("wins", "losses", "p"),
    [
        # Two-sided critical values of the sign test at 0.05: n = 5 has none, 6 needs 0, 9 needs 1,
        # 12 needs 2, 15 needs 3, 20 needs 5 of the rarer sign.
        (5, 0, 0.0625),
        (6, 0, 0.03125),
        (8, 1, 0.0390625),
        (10, 2, 0.03857421875),
        (12, 3, 0.03515625),
        (15, 5, 0.04138946533203125),
        (14, 6, 0.11531829833984375),
    ],
)
def test_mcnemar_agrees_with_the_sign_test_table(wins, losses, p):
    assert mcnemar(wins, losses) == pytest.approx(p, rel=1e-12)


def test_mcnemar_is_one_without_disagreement():
    assert mcnemar(0, 0) == 1.0


def test_mcnemar_stays_exact_for_large_counts():
    assert mcnemar(0, 1000) == 2.0**-999


def test_mcnemar_refuses_negative_counts():
    with pytest.raises(ValueError, match="negative"):
        mcnemar(-1, 3)


@given(st.integers(0, 200), st.integers(0, 200))
def test_mcnemar_is_symmetric_and_a_probability(wins, losses):
    assert mcnemar(wins, losses) == mcnemar(losses, wins)
    assert 0 < mcnemar(wins, losses) <= 1


@given(rows, rows)
def test_adding_episodes_never_moves_a_group(before, added):
    old, new = split_rows(before), split_rows(before + added)
    assert set(old.training_groups) <= set(new.training_groups)
    assert set(old.heldout_groups) <= set(new.heldout_groups)


@given(rows, rows)
def test_adding_episodes_never_moves_a_prompt_to_the_other_side(before, added):
    pairs = before + added
    old, new = split_rows(before), split_rows(pairs)
    trained = {before[row][1] for row in old.training}
    held_out = {before[row][1] for row in old.heldout}
    assert not trained & {pairs[row][1] for row in new.heldout}
    assert not held_out & {pairs[row][1] for row in new.training}


@given(rows, fractions)
def test_no_prompt_and_no_group_is_on_both_sides(pairs, fraction):
    result = split_rows(pairs, fraction)
    assert not set(result.training_groups) & set(result.heldout_groups)
    trained = {pairs[row][1] for row in result.training}
    assert not trained & {pairs[row][1] for row in result.heldout}


@given(rows, fractions)
def test_every_prompt_is_trained_on_or_held_out_or_conflicting(pairs, fraction):
    result = split_rows(pairs, fraction)
    used = {*result.training, *result.heldout, *result.conflicting}
    assert {pairs[row][1] for row in used} == {prompt for _, prompt in pairs}


@given(rows, fractions)
def test_held_out_rows_are_the_newest_of_distinct_prompts(pairs, fraction):
    result = split_rows(pairs, fraction)
    for row in result.heldout:
        assert pairs[row][1] not in {prompt for _, prompt in pairs[row + 1 :]}


@given(rows, fractions, fractions)
def test_a_larger_fraction_only_adds_held_out_groups(pairs, one, other):
    small, large = sorted((one, other))
    assert set(split_rows(pairs, small).heldout_groups) <= set(
        split_rows(pairs, large).heldout_groups
    )


@given(rows, st.integers(0, 100))
def test_the_minimum_never_moves_a_group(pairs, minimum):
    assert split_rows(pairs, minimum=minimum).heldout == split_rows(pairs, minimum=0).heldout


def test_the_held_out_share_of_many_groups_is_near_the_fraction():
    pairs = [(f"group {i}", f"prompt {i}") for i in range(5000)]
    # Binomial(5000, 0.2): standard deviation 28; the hash is fixed, so this cannot flicker.
    assert abs(len(split_rows(pairs, 0.2).heldout) - 1000) < 4 * 28


def test_salts_hold_out_different_groups():
    pairs = [(f"group {i}", f"prompt {i}") for i in range(50)]
    assert (
        split_rows(pairs, salt="home").heldout_groups
        != split_rows(pairs, salt="mail").heldout_groups
    )


def test_a_prompt_in_groups_of_both_sides_is_used_on_neither():
    groups = [f"group {i}" for i in range(50)]
    sides = split_rows([(group, group) for group in groups])
    trained, held_out = sides.training_groups[0], sides.heldout_groups[0]
    result = split_rows([(trained, "shared"), (held_out, "shared"), (held_out, "own")])
    assert result.conflicting == (0, 1)
    assert result.training == ()
    assert result.heldout == (2,)


def test_too_few_held_out_prompts_are_a_problem_with_the_numbers():
    pairs = [(f"group {i}", f"prompt {i}") for i in range(50)]
    held_out = len(split_rows(pairs).heldout)
    assert split_rows(pairs, minimum=held_out).problem is None
    problem = split_rows(pairs, minimum=held_out + 1).problem
    assert problem is not None
    assert f" {held_out}, at least {held_out + 1} " in problem


def test_repeated_prompts_do_not_count_towards_the_minimum():
    pairs = [(f"group {i}", f"prompt {i}") for i in range(50)]
    assert split_rows(pairs * 3).heldout == tuple(row + 100 for row in split_rows(pairs).heldout)


def test_nothing_to_train_on_is_a_problem():
    problem = split_rows([], minimum=0).problem
    assert problem is not None
    assert "no episode to train on" in problem


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_split_refuses_a_fraction_outside_the_open_interval(fraction):
    with pytest.raises(ValueError, match="fraction"):
        split_rows([], fraction)


def test_split_refuses_groups_that_do_not_match_the_prompts():
    with pytest.raises(ValueError, match="match"):
        split(["a"], [], fraction=0.5, minimum=1, salt="")


def test_a_clearly_better_candidate_is_published_with_the_numbers():
    result = decide([True] * 40 + [False] * 20, [True] * 10 + [False] * 50, minimum=48)
    assert result == GateResult(
        publish=True,
        reason=(
            "Published: the candidate is better at p < 0.05. It passes 40 of 60 held-out prompts, "
            "the active one 10: 30 gained, 0 lost, 0 errored, p = 1.9e-09."
        ),
        n=60,
        candidate_passed=40,
        active_passed=10,
        candidate_only=30,
        active_only=0,
        errored=0,
        p_value=2.0**-29,
    )


def test_a_clearly_worse_candidate_is_rejected_however_small_p_is():
    result = decide([False] * 30, [True] * 30, minimum=10)
    assert not result.publish
    assert result.p_value < 0.001
    assert "not better" in result.reason


def test_an_equal_candidate_is_rejected():
    assert not decide([True, False] * 20, [False, True] * 20, minimum=10).publish


def test_better_by_chance_is_rejected():
    result = decide([True] * 5 + [False] * 35, [False] * 40, minimum=10)
    assert (result.publish, result.p_value) == (False, 0.0625)
    assert "beyond chance" in result.reason


def test_p_equal_to_alpha_is_not_enough():
    candidate, active = [True] * 6, [False] * 6
    assert not decide(candidate, active, minimum=1, alpha=0.03125).publish
    assert decide(candidate, active, minimum=1, alpha=0.0313).publish


def test_too_few_judged_prompts_are_rejected():
    assert decide([True] * 20, [False] * 20, minimum=20).publish
    result = decide([True] * 19 + [None], [False] * 20, minimum=20)
    assert not result.publish
    assert "19 held-out prompts were judged, at least 20" in result.reason


def test_no_prompt_at_all_is_rejected_even_without_a_minimum():
    assert not decide([], [], minimum=0).publish


def test_an_errored_grade_on_either_side_drops_the_pair():
    result = decide([None, True, True, None], [True, None, False, None], minimum=1)
    assert (result.n, result.errored, result.candidate_only) == (1, 3, 1)


def test_too_many_errored_pairs_are_rejected():
    grades = [True] * 90, [False] * 90
    assert decide(grades[0] + [None] * 10, grades[1] + [True] * 10, minimum=10).publish
    result = decide(grades[0] + [None] * 11, grades[1] + [True] * 11, minimum=10)
    assert not result.publish
    assert "11 of 101 held-out pairs could not be graded" in result.reason


@given(
    st.lists(st.tuples(st.sampled_from([True, False, None]), st.sampled_from([True, False, None])))
)
def test_the_counts_of_a_verdict_add_up(pairs):
    result = decide([new for new, _ in pairs], [old for _, old in pairs], minimum=1)
    assert result.n + result.errored == len(pairs)
    gain = result.candidate_only - result.active_only
    assert result.candidate_passed - result.active_passed == gain
    assert not result.publish or (gain > 0 and result.p_value < 0.05)


def test_a_candidate_without_any_effect_is_seldom_published():
    draw = random.Random(0)
    published = sum(
        decide(
            [draw.random() < 0.5 for _ in range(60)],
            [draw.random() < 0.5 for _ in range(60)],
            minimum=48,
        ).publish
        for _ in range(1000)
    )
    # Only the better half of a two-sided level of 0.05 can publish: at most 25 expected, sd 5.
    assert published <= 40


def test_a_candidate_must_pass_more_than_a_trivial_answer_where_there_is_one():
    candidate, active = [True] * 40 + [False] * 20, [False] * 60
    equal = decide(candidate, active, minimum=48, trivial=[False] * 20 + [True] * 40)
    assert not equal.publish
    assert equal.trivial_passed == 40
    assert "not better than a trivial answer, which passes 40" in equal.reason
    assert decide(candidate, active, minimum=48, trivial=[True] * 39 + [False] * 21).publish


def test_a_trivial_answer_counts_on_judged_prompts_only_and_its_errors_are_no_passes():
    result = decide(
        [True, True, None, True], [False] * 4, minimum=1, trivial=[True, None, True, False]
    )
    assert (result.n, result.trivial_passed) == (3, 1)


@given(st.lists(st.tuples(*[st.sampled_from([True, False, None])] * 3), max_size=40))
def test_a_trivial_answer_only_ever_takes_a_publication_away(triples):
    candidate, active, trivial = ([row[side] for row in triples] for side in range(3))
    without = decide(candidate, active, minimum=1)
    judged = decide(candidate, active, minimum=1, trivial=trivial)
    assert judged.publish == (without.publish and judged.candidate_passed > judged.trivial_passed)
    assert judged.p_value == without.p_value


@pytest.mark.parametrize("alpha", [0.0, 1.0, float("nan")])
def test_decide_refuses_an_alpha_outside_the_open_interval(alpha):
    with pytest.raises(ValueError, match="alpha"):
        decide([True], [False], minimum=1, alpha=alpha)


def test_decide_refuses_an_error_fraction_outside_the_unit_interval():
    with pytest.raises(ValueError, match="error fraction"):
        decide([True], [False], minimum=1, max_errored_fraction=1.1)


def test_decide_refuses_unpaired_grades():
    for active, trivial in (([], None), ([False], [])):
        with pytest.raises(ValueError, match="pair"):
            decide([True], active, minimum=1, trivial=trivial)
