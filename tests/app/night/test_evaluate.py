"""Candidates against engine and grader used one by one."""

import functools

import numpy as np
import pytest

import verifiers
from app.engine.sampling import Sampling
from app.night.context import NoExpert
from app.night.data import Prompt
from app.night.evaluate import ENERGY_TEXTS, Evaluator
from tests.app.night import nights
from verifiers import Sample

GRADER = {"type": "string_check", "operation": "like"}
HAS_E = {"type": "string_check", "operation": "ilike", "reference": "e"}
TOKENS = 3
GREEDY = Sampling(max_tokens=TOKENS)
COUNT = 6


def grading(config=GRADER):
    return functools.partial(nights.graders().grade_many, config)


@pytest.fixture
def prompts(engine):
    reference = engine.encode_text(nights.ANSWER, end=True)
    return [
        Prompt(
            episode_id=f"ep_{number}",
            tokens=engine.encode([{"role": "user", "content": nights.text_of(7 * number)}]),
            item={"answer": nights.ANSWER},
            group=None,
            reference=reference,
        )
        for number in range(COUNT)
    ]


@pytest.fixture
def candidates(engine):
    noise = np.random.default_rng(0).standard_normal((4, engine.coordinates.total))
    return (0.1 * noise).astype(np.float32)


def without(prompt, **changes):
    return Prompt(**(vars(prompt) | changes))


def test_scores_are_those_of_each_candidate_answering_each_prompt_alone(
    engine, prompts, candidates
):
    grader = verifiers.build(HAS_E)
    scores = Evaluator(engine, grading(HAS_E), prompts, GREEDY).scores(candidates, range(COUNT))
    tokens = 0
    for row, flat in enumerate(candidates):
        for column, prompt in enumerate(prompts):
            greedy = Sampling(max_tokens=TOKENS)
            answer = engine.generate(flat[None], [prompt.tokens], greedy)[0][0]
            grade = grader.grade(Sample(output_text=answer.text), prompt.item)
            assert scores.score[row, column] == grade.score
            assert scores.passed[row, column] == grade.passed
            tokens += len(answer.tokens)
    assert scores.tokens == tokens
    assert 0 < scores.passed.sum() < scores.passed.size


def test_prompts_are_named_by_their_numbers_in_any_order(engine, prompts, candidates):
    evaluator = Evaluator(engine, grading(HAS_E), prompts, GREEDY)
    whole = evaluator.scores(candidates, range(COUNT)).score
    assert np.array_equal(evaluator.scores(candidates, [4, 1]).score, whole[:, [4, 1]])


def test_prompts_that_candidates_answer_differently_are_counted_and_those_told_apart(
    engine, prompts, candidates
):
    evaluator = Evaluator(engine, grading(HAS_E), prompts, GREEDY)
    grader = verifiers.build(HAS_E)
    asked = [p.tokens for p in prompts]
    answers = engine.generate(candidates, asked, Sampling(max_tokens=TOKENS))
    texts = [{line[column].text for line in answers} for column in range(COUNT)]
    scores = [
        {grader.grade(Sample(output_text=text), prompt.item).score for text in of}
        for of, prompt in zip(texts, prompts, strict=True)
    ]
    for part in ([0, 1, 2], [3, 4, 5], [0, 5]):
        evaluator.scores(candidates, part)
    assert evaluator.compared == {n for n, of in enumerate(texts) if len(of) > 1}
    assert evaluator.told_apart == {n for n, of in enumerate(scores) if len(of) > 1}
    assert evaluator.told_apart


def test_one_candidate_alone_is_compared_with_nobody(engine, prompts):
    evaluator = Evaluator(engine, grading(), prompts, GREEDY)
    evaluator.scores(None, range(COUNT))
    assert (evaluator.compared, evaluator.told_apart) == (set(), set())


def test_no_candidates_is_the_base_and_so_are_zeros(engine, prompts):
    evaluator = Evaluator(engine, grading(), prompts, GREEDY)
    base = evaluator.scores(None, range(COUNT))
    zeros = np.zeros((1, engine.coordinates.total), dtype=np.float32)
    assert base.score.shape == (1, COUNT)
    assert np.array_equal(base.score, evaluator.scores(zeros, range(COUNT)).score)


def test_an_answer_that_cannot_be_graded_is_nan_and_counted_never_a_zero(
    engine, prompts, candidates
):
    broken = [without(prompts[0], item={"unknown": 1}), *prompts[1:]]
    evaluator = Evaluator(engine, grading(), broken, GREEDY)
    scores = evaluator.scores(candidates, range(COUNT))
    assert np.isnan(scores.score[:, 0]).all()
    assert not scores.passed[:, 0].any()
    assert np.isfinite(scores.score[:, 1:]).all()
    assert (evaluator.errored, evaluator.graded) == (len(candidates), scores.score.size)
    assert "answer" in evaluator.last_error


def test_a_row_the_engine_cannot_finish_is_nan_and_leaves_the_others_alone(
    engine, prompts, candidates
):
    candidates[1] = 3e38
    evaluator = Evaluator(engine, grading(), prompts, GREEDY)
    scores = evaluator.scores(candidates, range(COUNT)).score
    assert np.isnan(scores[1]).all()
    assert np.isfinite(scores[[0, 2, 3]]).all()
    assert evaluator.errored == COUNT
    assert "finite" in evaluator.last_error


def test_likelihood_is_the_engines_where_there_is_a_reference_and_nan_elsewhere(
    engine, prompts, candidates
):
    mixed = [without(p, reference=None) if i % 2 else p for i, p in enumerate(prompts)]
    values, tokens = Evaluator(engine, grading(), mixed, GREEDY).likelihood(
        candidates, range(COUNT), candidates[1]
    )
    assert values.shape == (len(candidates), COUNT)
    assert np.isnan(values[:, 1::2]).all()
    for column in range(0, COUNT, 2):
        prompt = prompts[column]
        alone = engine.likelihood(candidates, [prompt.tokens], [prompt.reference], candidates[1])
        assert np.allclose(values[:, [column]], alone, rtol=1e-4)
    assert tokens == len(candidates) * sum(len(p.reference) for p in prompts[::2])


def test_likelihood_without_any_reference_does_not_ask_the_engine(engine, prompts, candidates):
    bare = [without(prompt, reference=None) for prompt in prompts]
    values, tokens = Evaluator(engine, grading(), bare, GREEDY).likelihood(
        candidates, range(COUNT), candidates[1]
    )
    assert np.isnan(values).all()
    assert tokens == 0


def test_energies_are_those_of_prompts_with_their_right_answers(engine, prompts, candidates):
    mixed = [without(p, reference=None) if i % 2 else p for i, p in enumerate(prompts)]
    energies = Evaluator(engine, grading(), mixed, GREEDY).energies(candidates[1])
    texts = [p.tokens if i % 2 else p.tokens + p.reference for i, p in enumerate(prompts)]
    wanted = engine.energies(candidates[1:2], texts)
    assert energies.shape == (engine.coordinates.total,)
    assert np.array_equal(energies, wanted)
    assert not np.allclose(energies, engine.energies(None, texts), rtol=1e-3)


def test_energies_of_many_prompts_are_measured_on_the_first(engine, prompts, candidates):
    many = [prompts[number % 2] for number in range(ENERGY_TEXTS)] + prompts[2:]
    first = Evaluator(engine, grading(), many[:ENERGY_TEXTS], GREEDY).energies(candidates[0])
    assert np.array_equal(Evaluator(engine, grading(), many, GREEDY).energies(candidates[0]), first)


def test_energies_that_are_not_finite_end_the_night_with_the_reason(engine, prompts, candidates):
    candidates[0] = 3e38
    with pytest.raises(NoExpert, match="not finite") as end:
        Evaluator(engine, grading(), prompts, GREEDY).energies(candidates[0])
    assert end.value.reason == "diverged"


def test_the_check_comes_before_each_use_of_the_engine(engine, prompts, candidates):
    class Stop(Exception):
        pass

    def check():
        raise Stop

    evaluator = Evaluator(engine, grading(), prompts, GREEDY, check)
    with pytest.raises(Stop):
        evaluator.scores(candidates, [0])
    with pytest.raises(Stop):
        evaluator.likelihood(candidates, [0], candidates[0])
    with pytest.raises(Stop):
        evaluator.energies(candidates[0])
    assert evaluator.graded == 0
