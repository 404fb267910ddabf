"""Several choices of one request, and the log-probabilities of their tokens."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pytest
from openai import OpenAI

SAY_HI: list[Any] = [{"role": "user", "content": "turn on the light"}]
SAMPLED: dict[str, Any] = {"model": "tiny", "messages": SAY_HI, "max_tokens": 12, "seed": 7}


def test_the_first_of_several_choices_is_the_only_choice_of_one(openai: OpenAI) -> None:
    one = openai.chat.completions.create(**SAMPLED, temperature=1.5)
    four = openai.chat.completions.create(**SAMPLED, temperature=1.5, n=4)
    assert [choice.index for choice in four.choices] == [0, 1, 2, 3]
    texts = [choice.message.content for choice in four.choices]
    assert texts[0] == one.choices[0].message.content
    assert len(set(texts)) == 4


def test_the_usage_of_several_choices_counts_the_prompt_once(openai: OpenAI) -> None:
    one = openai.chat.completions.create(**SAMPLED).usage
    three = openai.chat.completions.create(**SAMPLED, n=3).usage
    assert one is not None
    assert three is not None
    assert three.prompt_tokens == one.prompt_tokens
    assert three.completion_tokens == 36
    assert three.total_tokens == one.prompt_tokens + 36


def test_streamed_choices_say_what_whole_ones_say(openai: OpenAI) -> None:
    asked = SAMPLED | {"temperature": 1.5, "n": 3, "logprobs": True, "top_logprobs": 2}
    whole = openai.chat.completions.create(**asked)
    texts: defaultdict[int, str] = defaultdict(str)
    reasons: dict[int, str] = {}
    tokens: defaultdict[int, list[Any]] = defaultdict(list)
    for chunk in openai.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.logprobs is not None:
                tokens[choice.index] += choice.logprobs.content or []
            if choice.finish_reason is not None:
                reasons[choice.index] = choice.finish_reason
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    for choice in whole.choices:
        assert choice.logprobs is not None
        assert [one.token for one in tokens[choice.index]] == [
            one.token for one in choice.logprobs.content or []
        ]


@pytest.mark.parametrize("top", [None, 0, 3])
def test_log_probabilities_are_of_the_tokens_of_the_text(openai: OpenAI, top: int | None) -> None:
    asked: dict[str, Any] = {"logprobs": True} | ({} if top is None else {"top_logprobs": top})
    [choice] = openai.chat.completions.create(**SAMPLED, **asked).choices
    assert choice.logprobs is not None
    tokens = choice.logprobs.content or []
    said = b"".join(bytes(token.bytes or ()) for token in tokens)
    assert said.decode("utf-8", "replace") == choice.message.content
    assert all(math.isfinite(token.logprob) and token.logprob <= 0 for token in tokens)
    for token in tokens:
        best = [one.logprob for one in token.top_logprobs]
        assert len(best) == (top or 0)
        assert best == sorted(best, reverse=True)
        if best:  # decoding is greedy
            assert (token.top_logprobs[0].token, best[0]) == (token.token, token.logprob)


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_end_where_a_stop_string_ends_the_text(
    openai: OpenAI, stream: bool
) -> None:
    text = openai.chat.completions.create(**SAMPLED).choices[0].message.content or ""
    asked: dict[str, Any] = SAMPLED | {"stop": text[4:7], "logprobs": True, "stream": stream}
    answer = openai.chat.completions.create(**asked)
    parts = [c.choices[0] for c in answer] if stream else answer.choices
    listed = [token for part in parts for token in (part.logprobs.content if part.logprobs else [])]
    said = b"".join(bytes(token.bytes) for token in listed)
    cut = text[: text.index(text[4:7])].encode()
    assert said[: len(cut)] == cut
    assert len(said) - len(listed[-1].bytes) < len(cut)


def test_choices_have_no_log_probabilities_unless_asked(openai: OpenAI) -> None:
    for choice in openai.chat.completions.create(**SAMPLED, n=2).choices:
        assert choice.logprobs is None
