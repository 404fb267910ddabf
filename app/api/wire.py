"""What all of the wire shares: the base models, texts, and messages in OpenAI's shape."""

import json
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from verifiers.values import json_problem

MAX_LISTED = 1000
MAX_TEXT_CHARS = 1_000_000
MAX_SEED = 2**63 - 1

Text = Annotated[str, StringConstraints(max_length=MAX_TEXT_CHARS)]
Label = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Json = dict[str, Any]


class Incoming(BaseModel):
    """A request's body. Values have the JSON types that are asked for: "5" is no number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Outgoing(BaseModel):
    """An answer."""

    model_config = ConfigDict(frozen=True)


def misfit(field: str, reason: str) -> PydanticCustomError:
    """What is wrong with several fields together, put down to one: `param` of the answer."""
    return PydanticCustomError("misfit", "{reason}", {"field": field, "reason": reason})


Entry = TypeVar("Entry")


class Listed(Outgoing, Generic[Entry]):
    """A page of things; `next_cursor` asks for the page after it, None is the end."""

    object: Literal["list"] = "list"
    data: list[Entry]
    next_cursor: str | None = None


class Deleted(Outgoing):
    """What is left of a deleted thing."""

    id: str
    object: str
    deleted: Literal[True] = True


# Messages


def joined_text(content: object) -> object:
    """OpenAI's list of text parts as one text; anything else as it is."""
    if not isinstance(content, list):
        return content
    for part in content:
        known = isinstance(part, dict) and part.keys() == {"type", "text"}
        if not known or part["type"] != "text" or not isinstance(part["text"], str):
            raise ValueError("only parts of the form {type: text, text: ...} are supported")
    return "".join(part["text"] for part in content)


def parsed_arguments(arguments: object) -> object:
    """Arguments of a tool call as an object; OpenAI's clients send them as JSON text."""
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    # JSON inside a text: the body's check of its depth has not seen it, and an episode that cannot
    # be serialised would break every list it is in.
    problem = json_problem(value)
    if problem is not None:
        raise ValueError(problem)
    return value


class MessageFunction(Incoming):
    """The function an assistant's message called, with its arguments."""

    name: Label
    arguments: Annotated[Json, BeforeValidator(parsed_arguments)]


class MessageToolCall(Incoming):
    """A tool call inside an assistant's message."""

    id: Label
    type: Literal["function"] = "function"
    function: MessageFunction


class Message(Incoming):
    """One message of a conversation, in OpenAI's shape. `developer` is another word for system."""

    role: Annotated[
        Literal["system", "user", "assistant", "tool"],
        BeforeValidator(lambda role: "system" if role == "developer" else role),
    ]
    content: Annotated[Text | None, BeforeValidator(joined_text)] = None
    name: Label | None = None
    tool_calls: Annotated[list[MessageToolCall], Field(max_length=64)] | None = None
    tool_call_id: Label | None = None
    refusal: None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        calls = self.role == "assistant" and bool(self.tool_calls)
        if self.content is None and not calls:
            raise misfit("content", "a message needs content")
        if self.tool_calls and self.role != "assistant":
            raise misfit("tool_calls", "only an assistant's message has tool calls")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise misfit("tool_call_id", "a tool's message has one, and no other message")
        return self

    def plain(self) -> Json:
        """The message as chat templates take it and as it is stored."""
        return self.model_dump(exclude_none=True) | {"content": self.content or ""}


def answered_calls(messages: list[Message]) -> list[Message]:
    """The messages themselves; raises where a tool answers a call that nobody has made before."""
    made: set[str] = set()
    for index, message in enumerate(messages):
        if message.role == "tool" and message.tool_call_id not in made:
            raise misfit(f"{index}.tool_call_id", "no message before it makes this call")
        made |= {call.id for call in message.tool_calls or ()}
    return messages


Messages = Annotated[
    list[Message], Field(min_length=1, max_length=MAX_LISTED), AfterValidator(answered_calls)
]


class Answered(Message):
    """An answer as a message: what it says, and the tools that it calls."""

    role: Literal["assistant"]


Completion = Annotated[
    Annotated[Text, Tag("a text")] | Annotated[Answered, Tag("a message")],
    Discriminator(lambda answer: "a text" if isinstance(answer, str) else "a message"),
]


def said(completion: str | Answered) -> str:
    """What an answer says besides its calls."""
    return completion if isinstance(completion, str) else completion.content or ""


def called(completion: str | Answered) -> list[Json] | None:
    """The calls of an answer that is a message, as they are stored."""
    if isinstance(completion, str) or not completion.tool_calls:
        return None
    return [call.model_dump() for call in completion.tool_calls]


class ToolFunction(Incoming):
    """What a tool is called and takes; `parameters` is a JSON schema, which `strict` holds to."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: Text | None = None
    parameters: Annotated[Json, BeforeValidator(lambda given: {} if given is None else given)] = (
        Field(default_factory=dict)
    )
    strict: bool | None = None


class Tool(Incoming):
    """A tool the model may call."""

    type: Literal["function"]
    function: ToolFunction

    def plain(self) -> Json:
        """The tool as chat templates take it and as it is stored."""
        return self.model_dump(exclude_none=True)


def distinct_tools(tools: list[Tool]) -> list[Tool]:
    """The tools themselves; raises ValueError where two of them have one name."""
    names = [tool.function.name for tool in tools]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two tools are called {twice[0]!r}")
    return tools


Tools = Annotated[list[Tool], Field(max_length=128), AfterValidator(distinct_tools)]
