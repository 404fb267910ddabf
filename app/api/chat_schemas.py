"""Chat and models on the wire, in OpenAI's shapes."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from app.api.wire import MAX_SEED, Incoming, Label, Messages, Outgoing, Tools


class StreamOptions(Incoming):
    """How a stream ends."""

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class TextFormat(Incoming):
    """The one response format there is."""

    type: Literal["text"]


Zero = Annotated[float, Field(ge=0, le=0)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]


def listed_stop(stop: object) -> object:
    """One stop string as a list of one."""
    return [stop] if isinstance(stop, str) else stop


class ChatCreate(Incoming):
    """A chat request in OpenAI's shape; `top_k` and `min_p` are ours.

    Fields that cannot be honoured are refused, unless they have the value that changes nothing.
    Without `temperature` decoding is greedy, which is how experts are judged before they are
    published. `user` names the client's user and changes nothing.
    """

    model: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    messages: Messages
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    seed: Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED)] | None = None
    stop: Annotated[
        Annotated[list[Stop], Field(max_length=4)] | None, BeforeValidator(listed_stop)
    ] = None
    tools: Tools | None = None
    tool_choice: Literal["auto", "none"] | None = None
    response_format: TextFormat | None = None
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None
    frequency_penalty: Zero | None = None
    presence_penalty: Zero | None = None
    store: Literal[False] | None = None
    user: Label | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream to be true")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens and max_completion_tokens say the same: give one")
        return self


class Usage(Outgoing):
    """Tokens of a chat request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatMessage(Outgoing):
    """The model's answer."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(Outgoing):
    """The one choice of an answer."""

    index: Literal[0] = 0
    message: ChatMessage
    logprobs: None = None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(Outgoing):
    """A whole answer. `model` names what answered: the base model, or a version `task@3`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str


class ModelPublic(Outgoing):
    """A name a chat request can ask for: `parent` is what it stands on, `root` the base model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["nightowl"] = "nightowl"
    root: str
    parent: str | None
