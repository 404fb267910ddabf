"""A step's tokens: masks against plain NumPy, log-probabilities against a dense forward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from app.engine.choice import decide  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from app.engine.sampling import Sampling, choose
from app.engine.scheduler import Engine
from app.engine.text import RowText
from tests.app.engine import rigs

VOCABULARY = 320


def row(sampling: Sampling) -> RowText:
    return RowText(lambda ids: "".join(chr(97 + i % 26) for i in ids), sampling, frozenset({2}))


def random_logits(rows: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(0, 3, (rows, VOCABULARY)).astype(np.float32))


def hidden(rows: int) -> mx.array:
    return mx.zeros((rows, 4))


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def test_rows_with_a_grammar_take_the_best_that_it_allows_and_others_are_untouched(
    engine: Engine,
) -> None:
    grammar = engine.json_grammar({"type": "boolean"})
    logits = random_logits(4)
    rows = [row(Sampling()), row(Sampling(grammar=grammar)), None, row(Sampling(grammar=grammar))]
    bits = np.unpackbits(grammar.start().mask().view(np.uint8), bitorder="little")[:VOCABULARY]
    choice = decide(hidden(4), logits, rows)
    plain = np.array(logits)
    masked = np.where(bits == 1, plain, -np.inf)
    best = [plain[0].argmax(), masked[1].argmax(), plain[2].argmax(), masked[3].argmax()]
    assert np.array(choice.tokens).tolist() == best
    assert choice.failed == {}


def test_without_grammars_or_log_probabilities_the_step_is_the_plain_choice() -> None:
    logits = random_logits(2)
    choice = decide(hidden(2), logits, [row(Sampling()), row(Sampling())])
    assert len(choice.arrays) == 2
    assert mx.array_equal(choice.tokens, choose(logits, [(Sampling(), 0)] * 2))


def test_a_row_that_is_over_costs_no_mask_and_takes_no_token(engine: Engine) -> None:
    over = row(Sampling(grammar=engine.lark_grammar('start: "a"')))
    [token] = engine.encode_text("a")
    over.push(token)
    assert over.finish == "stop"
    choice = decide(hidden(1), random_logits(1), [over])
    assert choice.hand_out([over]) == [""]
    assert (over.tokens, over.error) == ([token], None)


def test_log_probabilities_are_of_the_whole_distribution_and_best_first(engine: Engine) -> None:
    grammar = engine.lark_grammar('start: "red" | "green" | "blue"')
    logits = random_logits(3)
    rows = [
        row(Sampling(temperature=0.3, top_k=2, seed=5, logprobs=4)),
        row(Sampling()),
        row(Sampling(grammar=grammar, logprobs=0)),
    ]
    choice = decide(hidden(3), logits, rows)
    choice.hand_out(rows)
    expected = log_softmax(np.array(logits))
    [warm], [held] = rows[0].logprobs, rows[2].logprobs
    assert warm.logprob == pytest.approx(expected[0, warm.token], abs=1e-5)
    ranked = np.argsort(-expected[0])[:4]
    assert [token for token, _ in warm.top] == ranked.tolist()
    assert [value for _, value in warm.top] == pytest.approx(expected[0, ranked], abs=1e-5)
    assert held.logprob == pytest.approx(expected[2, held.token], abs=1e-5)
    assert held.top == ()
    assert rows[1].logprobs == []


def test_more_alternatives_than_tokens_are_all_tokens() -> None:
    wants = row(Sampling(logprobs=20))
    decide(hidden(1), mx.array([[0.0, 2.0, 1.0]]), [wants]).hand_out([wants])
    assert [token for token, _ in wants.logprobs[0].top] == [1, 2, 0]


def test_rows_without_a_finite_output_end_alone() -> None:
    logits = random_logits(3)
    logits[1] = mx.nan
    states = hidden(3)
    states[2, 1] = mx.inf
    rows = [row(Sampling()) for _ in range(3)]
    deltas = decide(states, logits, rows).hand_out(rows)
    assert [text.error is None for text in rows] == [True, False, False]
    assert len(rows[0].tokens) == 1
    assert deltas[1:] == ["", ""]


def test_a_row_whose_text_cannot_be_decoded_ends_alone() -> None:
    def refuse(_: object) -> str:
        raise KeyError("token 7 has no text")

    rows = [row(Sampling()), RowText(refuse, Sampling(), frozenset())]
    decide(hidden(2), random_logits(2), rows).hand_out(rows)
    assert rows[0].error is None
    assert "token 7 has no text" in (rows[1].error or "")


def test_an_answers_log_probabilities_are_those_of_the_dense_model(
    engine: Engine, stocks: Callable[[str], object], folder_of: Callable[[str], Path]
) -> None:
    prompt = rigs.prompts_of([6])[0]
    sampling = Sampling(temperature=0.8, seed=3, max_tokens=5, logprobs=3)
    completion = engine.submit(prompt, sampling).result()
    assert completion.logprobs is not None
    assert [entry.token for entry in completion.logprobs] == list(completion.tokens)
    logits = rigs.logits_of(stocks("llama"), [*map(int, prompt), *completion.tokens])
    expected = log_softmax(logits[len(prompt) - 1 : -1])
    for entry, line in zip(completion.logprobs, expected, strict=True):
        assert entry.logprob == pytest.approx(line[entry.token], abs=2e-3)
        for token, value in entry.top:
            assert value == pytest.approx(line[token], abs=2e-3)
        assert entry.top[0][1] == pytest.approx(line.max(), abs=2e-3)
