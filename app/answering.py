"""How the answers of a task are decoded: the same in chat, in training and at the gate."""

from collections.abc import Mapping
from typing import Any, Protocol

from app.engine.grammar import Grammar


class Compiler(Protocol):
    """What of the engine compiles grammars."""

    def json_grammar(self, schema: Mapping[str, Any] | None) -> Grammar:
        """JSON that a schema allows."""
        ...


def grammar_of(engine: Compiler, response_schema: Mapping[str, Any] | None) -> Grammar | None:
    """What answers have to follow, ``None`` for free text; raises ``GrammarError``."""
    return None if response_schema is None else engine.json_grammar(response_schema)
