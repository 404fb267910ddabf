"""What an answer has to be: free text, JSON that fits a schema, tool calls; and whether it is.

Chat, training and the gate decode and read the answers of a task by the same form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

from app.engine.grammar import Grammar, GrammarError
from app.engine.tool_calls import CallReader, Reading, read_whole
from app.engine.tool_form import ToolForm
from app.engine.tool_grammar import CallRules, argument_schema, call_grammar
from app.engine.validity import breach, checked_schema
from verifiers import ToolCall
from verifiers.parsing import Malformed, parse_json

Json = dict[str, Any]


class Compiler(Protocol):
    """What of the engine compiles grammars."""

    @property
    def tool_form(self) -> ToolForm:
        """How the model writes calls."""
        ...

    def json_grammar(self, schema: Mapping[str, Any] | None) -> Grammar:
        """JSON that a schema allows."""
        ...

    def lark_grammar(self, text: str) -> Grammar:
        """Text that a grammar allows."""
        ...


class FormError(GrammarError):
    """Answers cannot be held to a form; `part` says to what of it."""

    def __init__(self, part: Literal["schema", "tools"], error: GrammarError) -> None:
        super().__init__(str(error))
        self.part = part


@dataclass(frozen=True)
class AnswerForm:
    """What an answer may be.

    Attributes:
        schema: what its JSON fits; None: any text.
        tools: what may be called, in OpenAI's shape.
        required: the answer is a call.
        several: it may make more than one.
    """

    schema: Json | None = None
    tools: tuple[Json, ...] = ()
    required: bool = False
    several: bool = True

    @property
    def rules(self) -> CallRules:
        """The same, as a grammar of calls has it."""
        return CallRules(self.required, self.several, None if self.required else self.schema)

    def grammar(self, engine: Compiler) -> Grammar | None:
        """What decoding has to follow, None for free text with or without calls.

        Raises GrammarError for a schema that cannot be kept to.
        """
        schema = self._checked
        if not self.tools:
            return None if schema is None else engine.json_grammar(schema)
        held = any(self.rules.holds(tool) for tool in self.tools)
        if schema is None and self.several and not held:
            return None
        return engine.lark_grammar(call_grammar(engine.tool_form, self.tools, self.rules))

    def checked_grammar(self, engine: Compiler) -> Grammar | None:
        """The same; the schema is looked at first and by itself, so that FormError says whose."""
        part: Literal["schema", "tools"] = "schema"
        try:
            AnswerForm(schema=self.schema).grammar(engine)
            part = "tools"
            return self.grammar(engine)
        except GrammarError as error:
            raise FormError(part, error) from error

    def reader(self, form: ToolForm) -> CallReader:
        """Reads an answer's calls; one that is held to its tool's schema and breaks it is none."""
        return CallReader(form, self.tools, self._fits)

    def read(self, form: ToolForm, text: str) -> Reading:
        """What a whole answer says and calls."""
        return read_whole(self.reader(form), text) if self.tools else Reading(text, ())

    def fault(self, reading: Reading) -> str | None:
        """Why an answer that ended by itself is not what it has to be, None if it is."""
        if reading.calls:
            return None
        if self.required:
            return "the answer is no call of a tool"
        if self._checked is None:
            return None
        try:
            problem = breach(self._checked, parse_json(reading.content))
        except Malformed as error:
            problem = str(error)
        return None if problem is None else f"the answer does not fit the schema: {problem}"

    @cached_property
    def _checked(self) -> Json | None:
        return None if self.schema is None else checked_schema(self.schema)

    @cached_property
    def _arguments(self) -> dict[str, Json]:
        """Schemas of the arguments of tools that are held to them."""
        held = [tool for tool in self.tools if self.rules.holds(tool)]
        return {tool["function"]["name"]: argument_schema(tool) for tool in held}

    def _fits(self, call: ToolCall) -> bool:
        schema = self._arguments.get(call.name)
        return schema is None or breach(schema, call.arguments) is None


def task_form(tools: Sequence[Json] | None, response_schema: Json | None) -> AnswerForm:
    """The form of a task's answers where a request asks for nothing else."""
    return AnswerForm(schema=response_schema, tools=tuple(tools or ()))
