"""Answers of a fixed form: which tokens may come next, so that a JSON schema or a grammar holds.

`llguidance` compiles the grammar and keeps each row's place in it; per step it gives one bit per
token.  A grammar is compiled once and shared; every row has a matcher of its own.  The masks of a
batch go to the device packed and are applied to all rows at once (``app.engine.choice``).

JSON is written as ``json.dumps`` writes it: a small model that may choose its white space may never
end it.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import llguidance.hf
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from app.engine.schema import GrammarError, check_schema

if TYPE_CHECKING:  # names of its stub alone
    from llguidance._lib import JsonCompileOptions

__all__ = ["Grammar", "GrammarError", "Grammars", "Matcher"]

Mask = npt.NDArray[np.uint32]

JSON_STYLE: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
_MAX_LARK_CHARS = 64 << 10
_KEPT = 16
_LEXER_STATES = 24_000  # of some 4 kB; a string of bounded length takes about four a character


class Grammar:
    """A compiled grammar: immutable, for any thread and any number of rows.

    Equal to itself alone.  Its rows share the states of its lexer, of which there may be so many;
    ``spent`` once there are, so that the next row gets a new one.
    """

    def __init__(self, start: LLMatcher) -> None:
        self._start = start
        self.spent = False

    def start(self) -> Matcher:
        """A row's place at the beginning."""
        return Matcher(self, self._start.deep_copy())


class Matcher:
    """One row's place in its grammar; for one thread at a time."""

    def __init__(self, grammar: Grammar, matcher: LLMatcher) -> None:
        self._grammar = grammar
        self._matcher = matcher

    @property
    def finished(self) -> bool:
        """Nothing but the end of the text may follow."""
        return not self._matcher.is_error() and self._matcher.is_stopped()

    def mask(self) -> Mask:
        """The tokens that may come next, 32 to a word, the lowest bit first; a word may follow.

        Raises ``GrammarError`` where none may, or where the matcher gives up.
        """
        words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint32)
        self._check()
        if not words.any():
            raise GrammarError("the grammar allows no token here")
        return words

    def accept(self, token: int) -> None:
        """Go on by a token; raises ``GrammarError`` where the grammar does not allow it."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if not self._matcher.is_error():
            return
        if self._matcher.stop_reason() in ("LexerTooComplex", "InternalError"):
            self._grammar.spent = True
        reason = self._matcher.get_error().split("\n<", 1)[0]
        raise GrammarError(f"the grammar cannot be followed: {reason}")


class Grammars:
    """Compiles grammars for one tokenizer and keeps the last ones; for any thread.

    Args:
        tokenizer: the Hugging Face tokenizer of the model.
        tokens: rows of the model's head; those beyond the tokenizer's vocabulary never come.
        eos: ids that end a text.
        lexer_states: bounds the memory of a grammar.
    """

    def __init__(
        self,
        tokenizer: Any,
        tokens: int,
        eos: frozenset[int],
        lexer_states: int = _LEXER_STATES,
    ) -> None:
        self._source = tokenizer
        self._tokens = tokens
        self._eos = sorted(eos)
        # The default limits of a step stay: some 20 ms at worst.
        self._limits = LLParserLimits(
            max_lexer_states=lexer_states, max_grammar_size=50_000, verbose_errors=False
        )
        self._lock = threading.Lock()
        self._loaded: LLTokenizer | None = None
        self._kept: OrderedDict[str, Grammar] = OrderedDict()

    def json(self, schema: Mapping[str, Any] | None) -> Grammar:
        """JSON that a schema allows; any JSON object for ``None``.

        Raises ``GrammarError`` naming the keyword that is not supported and where it stands.
        """
        wanted = {"type": "object"} if schema is None else dict(schema)
        check_schema(wanted)
        key = json.dumps(wanted, separators=(",", ":"))
        return self._compiled(
            f"json {key}",
            lambda: LLMatcher.grammar_from_json_schema(
                key, overrides={**JSON_STYLE, "lenient": False}
            ),
        )

    def lark(self, text: str) -> Grammar:
        """Text that a grammar in llguidance's dialect of Lark allows; raises ``GrammarError``."""
        if len(text) > _MAX_LARK_CHARS:
            raise GrammarError(f"the grammar has more than {_MAX_LARK_CHARS} characters")
        return self._compiled(f"lark {text}", lambda: LLMatcher.grammar_from_lark(text))

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; a special one's name."""
        return self._tokenizer().decode_bytes([token])

    def _compiled(self, key: str, source: Callable[[], str]) -> Grammar:
        with self._lock:
            known = self._kept.get(key)
            if known is not None and not known.spent:
                self._kept.move_to_end(key)
                return known
        grammar = self._compile(source())
        with self._lock:
            self._kept[key] = grammar
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return grammar

    def _compile(self, source: str) -> Grammar:
        tokenizer = self._tokenizer()
        failed, messages = LLMatcher.validate_grammar_with_warnings(
            source, tokenizer, limits=self._limits
        )
        if failed or messages:  # a warning says that something would not be enforced
            raise GrammarError("; ".join(messages))
        start = LLMatcher(tokenizer, source, log_level=0, limits=self._limits)
        grammar = Grammar(start)
        grammar.start().mask()
        return grammar

    def _tokenizer(self) -> LLTokenizer:
        """llguidance's view of the tokenizer: a second or two of work, done when first needed."""
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> LLTokenizer:
        try:
            return llguidance.hf.from_tokenizer(
                self._source, n_vocab=self._tokens, eos_token=self._eos
            )
        except ValueError as error:
            raise GrammarError(
                f"answers of a fixed form are not possible with this model's tokenizer: {error}"
            ) from error
