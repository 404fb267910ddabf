"""A population in shared batches against every candidate alone, however the work is cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from app.engine.rollout import Population  # isort: skip
from app.engine.work import RolloutLimits, common_prefix, share  # isort: skip
import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.batch import Runtime
from app.engine.sampling import Sampling
from app.engine.text import Completion
from tests import tiny
from tests.app.engine import rigs
from trainers.spectral import Basis

Runtimes = Callable[[str], tuple[Runtime, Basis]]
GREEDY = Sampling(max_tokens=6)
LENGTHS = [21, 14, 17, 15, 30]
LIMITS = [
    RolloutLimits(),
    RolloutLimits(step_tokens=1, batch_tokens=1),
    RolloutLimits(step_tokens=100, batch_tokens=100),
    RolloutLimits(step_tokens=150, batch_tokens=400),
]


@pytest.fixture(scope="module")
def streams() -> list[mx.Stream]:
    return [mx.new_stream(mx.default_device()) for _ in range(3)]


def population(
    runtime: Runtime, streams: list[mx.Stream], limits: RolloutLimits | None = None, lanes: int = 2
) -> Population:
    def decode(tokens: Any) -> str:
        return str(runtime.model.tokenizer.decode(list(tokens), skip_special_tokens=True))

    return Population(runtime, streams[:lanes], decode, limits or RolloutLimits())


def generated(
    people: Population, flat: rigs.FloatArray | None, sampling: Sampling = GREEDY
) -> list[list[Completion]]:
    result: list[list[Completion]] = rigs.finished(
        people.generate(flat, rigs.prompts_of(LENGTHS, 12), sampling)
    )
    return result


def tokens_of(lines: list[list[Completion]]) -> list[list[tuple[int, ...]]]:
    return [[completion.tokens for completion in line] for line in lines]


@pytest.fixture(scope="module")
def llama(runtimes: Runtimes) -> tuple[Runtime, Basis]:
    return runtimes("llama")


@pytest.fixture(scope="module")
def flat(llama: tuple[Runtime, Basis]) -> rigs.FloatArray:
    return rigs.experts(llama[1], 5)


@pytest.fixture(scope="module")
def edited(
    llama: tuple[Runtime, Basis], flat: rigs.FloatArray, folder_of: Callable[[str], Path]
) -> Callable[[int], Any]:
    """Candidate -> mlx-lm's model with its weights edited."""
    return cache(lambda candidate: rigs.edited(folder_of("llama"), llama[1], flat[candidate]))


def test_every_row_is_the_greedy_answer_of_the_explicitly_edited_model(
    llama: tuple[Runtime, Basis],
    flat: rigs.FloatArray,
    edited: Callable[[int], Any],
    streams: list[mx.Stream],
) -> None:
    lines = generated(population(llama[0], streams), flat)
    answers = set()
    for candidate, line in enumerate(lines):
        reference = edited(candidate)
        for prompt, completion in zip(rigs.prompts_of(LENGTHS, 12), line, strict=True):

            def logits(tokens: list[int], module: Any = reference) -> rigs.FloatArray:
                return rigs.logits_of(module, tokens)

            expected = rigs.greedy_of(logits, prompt, 6, llama[0].eos)
            rigs.assert_same_tokens(completion.tokens, expected, logits, prompt)
            assert completion.prompt_tokens == len(prompt)
            ended = completion.tokens[-1] in llama[0].eos
            assert completion.finish_reason == ("stop" if ended else "length")
            answers.add(completion.tokens)
    assert len(answers) > 10  # the candidates do not all say the same


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("lanes", [1, 3])
def test_answers_do_not_depend_on_how_the_work_is_cut(
    limits: RolloutLimits,
    lanes: int,
    llama: tuple[Runtime, Basis],
    flat: rigs.FloatArray,
    streams: list[mx.Stream],
) -> None:
    whole = generated(population(llama[0], streams, RolloutLimits(10**6, 10**6), 1), flat)
    assert generated(population(llama[0], streams, limits, lanes), flat) == whole


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_each_candidate_alone_answers_as_in_the_population(
    family: str, runtimes: Runtimes, streams: list[mx.Stream]
) -> None:
    runtime, basis = runtimes(family)
    people = population(runtime, streams)
    flat = rigs.experts(basis, 3)
    together = generated(people, flat)
    for candidate in range(3):
        [alone] = generated(people, flat[candidate : candidate + 1])
        assert together[candidate] == alone


def test_the_base_is_the_candidate_of_zeros(
    llama: tuple[Runtime, Basis], flat: rigs.FloatArray, streams: list[mx.Stream]
) -> None:
    people = population(llama[0], streams)
    assert generated(people, None) == generated(people, np.zeros_like(flat[:1]))


def test_rows_that_finish_early_leave_without_changing_the_others(
    llama: tuple[Runtime, Basis], flat: rigs.FloatArray, streams: list[mx.Stream]
) -> None:
    """A stop string ends rows at different steps; what they said before is what they say anyway."""
    people = population(llama[0], streams)
    long = generated(people, flat, Sampling(max_tokens=16))
    letters = [c for line in long for completion in line for c in completion.text if c.isalpha()]
    stop = max(sorted(set(letters)), key=letters.count)
    short = generated(people, flat, Sampling(max_tokens=16, stop=(stop,)))
    lengths = set()
    for line, stopped in zip(long, short, strict=True):
        for whole, part in zip(line, stopped, strict=True):
            assert part.text == whole.text.split(stop)[0]
            assert part.tokens == whole.tokens[: len(part.tokens)]
            lengths.add(len(part.tokens))
    assert len(lengths) > 3


def test_sampled_rows_depend_on_seed_candidate_and_prompt_alone(
    llama: tuple[Runtime, Basis], flat: rigs.FloatArray, streams: list[mx.Stream]
) -> None:
    warm = Sampling(temperature=3.0, seed=5, max_tokens=6)
    same = np.tile(flat[:1], (4, 1))
    first = generated(population(llama[0], streams), same, warm)
    again = generated(population(llama[0], streams, LIMITS[2], 3), same, warm)
    assert tokens_of(first) == tokens_of(again)
    assert len({completion.tokens for line in first for completion in line}) > 15
    other = generated(population(llama[0], streams), same, Sampling(3.0, seed=6, max_tokens=6))
    assert tokens_of(other) != tokens_of(first)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_candidate_that_is_no_number_fails_alone(
    bad: float, llama: tuple[Runtime, Basis], flat: rigs.FloatArray, streams: list[mx.Stream]
) -> None:
    people = population(llama[0], streams)
    sound = generated(people, flat)
    broken = flat.copy()
    broken[3, 17] = bad
    lines = generated(people, broken)
    assert all(completion.finish_reason == "error" for completion in lines[3])
    assert all("not finite" in (completion.error or "") for completion in lines[3])
    assert [lines[i] for i in (0, 1, 2, 4)] == [sound[i] for i in (0, 1, 2, 4)]
    prompts, references = asked()
    centre = flat.mean(axis=0)
    scores = rigs.finished(people.likelihood(broken, prompts, references, centre))
    np.testing.assert_array_equal(np.isnan(scores).all(axis=1), [False, False, False, True, False])
    np.testing.assert_array_equal(np.isnan(scores).any(axis=1), [False, False, False, True, False])


def asked() -> tuple[list[rigs.Tokens], list[rigs.Tokens]]:
    return rigs.prompts_of(LENGTHS, 12), rigs.prompts_of([3, 1, 7, 2, 4], 0, seed=9)


def log_softmax_mean(logits: npt.NDArray[np.float64], reference: rigs.Tokens) -> float:
    """Mean log-likelihood of the reference's tokens, in float64."""
    logits = logits - logits.max(-1, keepdims=True)
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return float(logp[np.arange(len(reference)), reference].mean())


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("lanes", [1, 3])
def test_likelihood_is_the_mean_log_softmax_of_answers_to_what_the_centre_has_read(
    limits: RolloutLimits,
    lanes: int,
    llama: tuple[Runtime, Basis],
    flat: rigs.FloatArray,
    edited: Callable[[int], Any],
    streams: list[mx.Stream],
) -> None:
    whole = replace(limits, shortlist=tiny.VOCAB)
    people = population(llama[0], streams, whole, lanes)
    prompts, references = asked()
    got = rigs.finished(people.likelihood(flat, prompts, references, flat[2]))
    expected = [
        [
            log_softmax_mean(rigs.answer_logits(edited(2), edited(c), p, r), r)
            for p, r in zip(prompts, references, strict=True)
        ]
        for c in range(len(flat))
    ]
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-3)
    again = rigs.finished(people.likelihood(flat, prompts, references, flat[2]))
    np.testing.assert_array_equal(again, got)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_likelihood_of_the_base_is_mlx_lms(
    family: str, runtimes: Runtimes, stocks: Callable[[str], Any], streams: list[mx.Stream]
) -> None:
    runtime, basis = runtimes(family)
    base = np.zeros((1, basis.coordinates.total), np.float32)
    prompts, references = asked()
    [got] = rigs.finished(
        population(runtime, streams).likelihood(base, prompts, references, base[0])
    )
    expected = []
    for prompt, reference in zip(prompts, references, strict=True):
        logits = rigs.logits_of(stocks(family), np.concatenate([prompt, reference]))
        expected.append(log_softmax_mean(logits[len(prompt) - 1 : -1].astype(float), reference))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-3)


def test_a_rollout_gives_the_thread_back_after_every_step(
    llama: tuple[Runtime, Basis], flat: rigs.FloatArray, streams: list[mx.Stream]
) -> None:
    people = population(llama[0], streams, RolloutLimits(step_tokens=1), lanes=1)
    prompts, references = asked()
    reading = 1
    steps = len(list(people.likelihood(flat, prompts, references, flat[0])))
    assert steps == reading + len(flat)
    steps = len(list(people.generate(flat, prompts, GREEDY)))
    assert steps == len(flat) + GREEDY.max_tokens - 1


def test_rollouts_can_run_in_turns(
    llama: tuple[Runtime, Basis], flat: rigs.FloatArray, streams: list[mx.Stream]
) -> None:
    """Between two steps of one rollout the engine serves others on the same layers."""
    people = population(llama[0], streams)
    prompts, references = asked()
    alone = generated(people, flat)
    steps = people.generate(flat, prompts, GREEDY)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            assert stop.value == alone
            break
        rigs.finished(people.likelihood(flat[:2] * -1, prompts[:2], references[:2], flat[0]))


def test_training_leaves_every_byte_of_the_base_weights(
    llama: tuple[Runtime, Basis], flat: rigs.FloatArray, streams: list[mx.Stream]
) -> None:
    before = rigs.weight_bytes(llama[0].model.module)
    people = population(llama[0], streams)
    prompts, references = asked()
    rigs.finished(people.likelihood(flat, prompts, references, flat[0]))
    generated(people, flat)
    assert rigs.weight_bytes(llama[0].model.module) == before


def test_equal_prompts_and_prompts_of_one_token_are_evaluated(
    llama: tuple[Runtime, Basis], flat: rigs.FloatArray, streams: list[mx.Stream]
) -> None:
    people = population(llama[0], streams)
    [prompt] = rigs.prompts_of([9])
    one, two = rigs.finished(people.generate(flat[:1], [prompt, prompt], GREEDY))[0]
    assert one == two
    short = [np.array([5], np.int32), np.array([6], np.int32)]
    together = rigs.finished(people.generate(None, short, GREEDY))[0]
    assert together == [rigs.finished(people.generate(None, [p], GREEDY))[0][0] for p in short]


def test_nothing_to_evaluate_is_refused(
    llama: tuple[Runtime, Basis], flat: rigs.FloatArray, streams: list[mx.Stream]
) -> None:
    people = population(llama[0], streams)
    prompts, references = asked()
    empty = np.array([], np.int32)
    for steps in (
        people.generate(flat, [], GREEDY),
        people.generate(flat[:0], prompts, GREEDY),
        people.generate(flat, [*prompts, empty], GREEDY),
        people.likelihood(flat, prompts, [*references[:-1], empty], flat[0]),
    ):
        with pytest.raises(ValueError, match="rollout needs"):
            rigs.finished(steps)
    with pytest.raises(ValueError, match="shorter"):
        rigs.finished(people.likelihood(flat, prompts, references[:-1], flat[0]))


@given(
    st.integers(0, 9),
    st.integers(1, 20),
    st.integers(1, 4),
    st.integers(1, 300),
    st.integers(0, 40),
    st.integers(1, 30),
)
def test_work_is_cut_without_loss_within_the_budget(
    count: int, prompts: int, lanes: int, budget: int, prefix: int, each: int
) -> None:
    flat = None if count == 0 else np.arange(count, dtype=np.float32)[:, None]
    rounds = share(flat, prompts, lanes, budget, prefix, each)
    seen = []
    for pieces in rounds:
        assert 1 <= len(pieces) <= lanes
        for work in pieces:
            seen += [(c, p) for c in work.candidates for p in work.prompts]
            rows = len(work.candidates) * len(work.prompts)
            tokens = prefix * len(work.candidates) + each * rows
            assert tokens <= budget or rows == 1
            if flat is not None:
                assert work.flat is not None
                assert work.flat[:, 0].tolist() == list(work.candidates)
    assert sorted(seen) == [(c, p) for c in range(max(1, count)) for p in range(prompts)]


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=4))
def test_the_common_prefix_leaves_every_prompt_a_token(prompts: list[list[int]]) -> None:
    split = common_prefix([np.array(p, np.int32) for p in prompts])
    assert all(p[:split] == prompts[0][:split] for p in prompts)
    assert split < min(len(p) for p in prompts)
    longer = [p[: split + 1] for p in prompts]
    assert split + 1 == min(len(p) for p in prompts) or any(p != longer[0] for p in longer)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("lengths", [LENGTHS, [9, 12]])
def test_layers_that_candidates_share_give_the_same_likelihood_when_run_once(
    runtimes: Runtimes, streams: list[mx.Stream], family: str, lengths: list[int]
) -> None:
    runtime, basis = runtimes(family)
    flat = rigs.experts(basis, 5)
    start = runtime.first_coordinate(1)
    flat[:, :start] = flat[0, :start]
    prompts = rigs.prompts_of(lengths, 7)
    references = [prompt[: 2 + index] for index, prompt in enumerate(prompts)]
    people = population(runtime, streams)
    plain = rigs.finished(people.likelihood(flat, prompts, references, flat[1]))
    for _ in range(2):  # the second time the layers below are not run at all
        once = rigs.finished(people.likelihood(flat, prompts, references, flat[1], 1))
        np.testing.assert_allclose(once, plain, atol=2e-5)
    assert np.ptp(once, axis=0).min() > 1e-4


def test_candidates_that_differ_from_their_centre_in_shared_layers_are_refused(
    llama: tuple[Runtime, Basis], streams: list[mx.Stream], flat: rigs.FloatArray
) -> None:
    prompts = rigs.prompts_of([5, 6], 3)
    with pytest.raises(ValueError, match="differ from their centre below layer 1"):
        rigs.finished(population(llama[0], streams).likelihood(flat, prompts, prompts, flat[0], 1))
