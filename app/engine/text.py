"""From generated tokens to text: incremental decoding, end-of-text and stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from app.engine.sampling import Sampling

FinishReason = Literal["stop", "length", "cancelled", "error"]
Decode = Callable[[Sequence[int]], str]
_INCOMPLETE = "\ufffd"  # what a decoder shows for the first bytes of an unfinished character


@dataclass(frozen=True)
class TokenLogprob:
    """How likely the model found a token: at temperature 1, before truncation and grammar.

    Attributes:
        token, logprob: the chosen one.
        top: the most likely tokens and theirs, best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Completion:
    """What one row produced.

    Attributes:
        text: without the end-of-text token and without the stop string; what the row's deltas
            add up to.
        tokens: all generated token ids, the ending one included.
        finish_reason: stop, length, cancelled or error.
        prompt_tokens: length of the prompt.
        error: why, when ``finish_reason`` is error.
        logprobs: of each token, where the row asked for them.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    error: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None


class RowText:
    """The text of one row as its tokens arrive.

    Args:
        decode: token ids -> text, special tokens skipped.
        sampling: limits, stop strings and grammar of the row.
        eos: ids of the end-of-text tokens.

    Attributes:
        matcher: the row's place in its grammar.
        error: why the row cannot go on.
        finish: why the text is complete; ``text`` is final then.
    """

    def __init__(self, decode: Decode, sampling: Sampling, eos: frozenset[int]) -> None:
        self._decode = decode
        self.sampling = sampling
        self._eos = eos
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.matcher = sampling.grammar.start() if sampling.grammar else None
        self.error: str | None = None
        self.finish: FinishReason | None = None
        self.text = ""
        self._anchor = 0  # tokens before it are decoded for good
        self._settled = ""  # their text
        self._sent = ""  # what ``push`` has returned so far

    @property
    def over(self) -> bool:
        """The row needs no more tokens."""
        return self.finish is not None or self.error is not None

    def push(self, token: int, logprob: TokenLogprob | None = None) -> str:
        """Add a token; returns the text that is now certain to be part of the answer.

        Text that may be the start of a stop string, or of an unfinished character, is held back.
        Raises ``GrammarError`` for a token that the row's grammar does not allow.
        """
        self.tokens.append(token)
        if logprob is not None:
            self.logprobs.append(logprob)
        if token in self._eos:
            return self._end(self._whole(self.tokens[:-1]), "stop")
        if self.matcher is not None:
            self.matcher.accept(token)
        text = self._whole(self.tokens)
        cut = self._first_stop(text)
        if cut is not None:
            return self._end(text[:cut], "stop")
        if self.matcher is not None and self.matcher.finished:
            return self._end(text, "stop")
        if len(self.tokens) >= self.sampling.max_tokens:
            return self._end(text, "length")
        return self._release(text[: len(text) - self._held_back(text)])

    def completion(self, prompt_tokens: int, error: str | None = None) -> Completion:
        """The result; a row stopped from outside keeps the text it has handed out."""
        error = self.error if error is None else error
        text = self._sent if self.finish is None else self.text
        reason = "error" if error is not None else self.finish or "cancelled"
        logprobs = None if self.sampling.logprobs is None else tuple(self.logprobs)
        return Completion(text, tuple(self.tokens), reason, prompt_tokens, error, logprobs)

    def _whole(self, tokens: list[int]) -> str:
        """Text of all tokens, decoding only those after the anchor.

        The anchor moves at line ends. The last token of the line is decoded again, since some
        decoders take the space from the first word they are given.
        """
        tail = self._decode(tokens[self._anchor :])
        text = self._settled + tail
        if len(tokens) - self._anchor > 32 and tail.endswith("\n"):
            last = self._decode(tokens[-1:])
            if text.endswith(last):
                self._anchor, self._settled = len(tokens) - 1, text.removesuffix(last)
        return text

    def _first_stop(self, text: str) -> int | None:
        found = [text.find(stop) for stop in self.sampling.stop]
        return min((at for at in found if at >= 0), default=None)

    def _held_back(self, text: str) -> int:
        """Characters at the end of ``text`` that may still change or turn into a stop string."""
        whole = text.rstrip(_INCOMPLETE)
        held = 0
        for stop in self.sampling.stop:
            for size in range(min(len(stop) - 1, len(whole)), held, -1):
                if whole.endswith(stop[:size]):
                    held = size
                    break
        return len(text) - len(whole) + held

    def _release(self, text: str) -> str:
        """What ``text`` adds to what was handed out, which is never taken back."""
        delta = text[len(self._sent) :]
        self._sent += delta
        return delta

    def _end(self, text: str, reason: FinishReason) -> str:
        delta = self._release(text)
        self.text, self.finish = self._sent, reason
        return delta
