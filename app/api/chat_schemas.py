"""Chat and models on the wire, in OpenAI's shapes."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    Tag,
    model_serializer,
    model_validator,
)

from app.api.wire import (
    MAX_SEED,
    Incoming,
    Json,
    Label,
    Messages,
    Outgoing,
    Text,
    Tools,
    misfit,
)

MAX_CHOICES = 8
MAX_TOP_LOGPROBS = 20


class StreamOptions(Incoming):
    """How a stream ends."""

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class TextFormat(Incoming):
    """Any text."""

    type: Literal["text"]


class ObjectFormat(Incoming):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Incoming):
    """A JSON schema. Answers are held to it whether `strict` or not."""

    # Named `schema` for users; pydantic's models have a method of that name.
    model_config = ConfigDict(serialize_by_alias=True)

    name: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Text | None = None
    body: Json = Field(alias="schema")
    strict: bool | None = None


class SchemaFormat(Incoming):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


def _format_tag(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    kinds = {"text": "any text", "json_object": "any object", "json_schema": "a schema"}
    return kinds.get(kind) if isinstance(kind, str) else None


ResponseFormat = Annotated[
    Annotated[TextFormat, Tag("any text")]
    | Annotated[ObjectFormat, Tag("any object")]
    | Annotated[SchemaFormat, Tag("a schema")],
    Discriminator(
        _format_tag,
        custom_error_type="response_format",
        custom_error_message="has type text, json_object or json_schema",
    ),
]


class FunctionName(Incoming):
    """Which function."""

    name: Label


class NamedTool(Incoming):
    """A tool that has to be called."""

    type: Literal["function"]
    function: FunctionName


ToolChoice = Annotated[
    Annotated[Literal["auto", "none", "required"], Tag("a word")]
    | Annotated[NamedTool, Tag("a tool")],
    Discriminator(lambda choice: "a word" if isinstance(choice, str) else "a tool"),
]
Zero = Annotated[float, Field(ge=0, le=0)]
Empty = Annotated[Json, Field(max_length=0)]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=256)]


def listed_stop(stop: object) -> object:
    """One stop string as a list of one."""
    return [stop] if isinstance(stop, str) else stop


class ChatCreate(Incoming):
    """A chat request in OpenAI's shape; `top_k` and `min_p` are ours.

    Fields that cannot be honoured are refused, unless they have the value that changes nothing.
    Without `temperature` decoding is greedy, which is how experts are judged before they are
    published. `user` and `safety_identifier` name the client's user, `prompt_cache_key` hints at
    what the prefix cache finds by itself: they change nothing.
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
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    frequency_penalty: Zero | None = None
    presence_penalty: Zero | None = None
    logit_bias: Empty | None = None
    metadata: Empty | None = None
    modalities: Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None
    audio: None = None
    function_call: None = None
    functions: None = None
    prediction: None = None
    reasoning_effort: None = None
    verbosity: None = None
    web_search_options: None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise misfit("stream_options", "needs stream to be true")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise misfit("max_tokens", "max_completion_tokens says the same: give one of them")
        if self.top_logprobs is not None and not self.logprobs:
            raise misfit("top_logprobs", "needs logprobs to be true")
        return self


class Usage(Outgoing):
    """Tokens of a chat request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CalledFunction(Outgoing):
    """What is called; `arguments` is JSON text."""

    name: str
    arguments: str


class ChatToolCall(Outgoing):
    """A tool call of an answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Outgoing):
    """The model's answer; `content` is null where it consists of tool calls alone."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[ChatToolCall] | None = None

    @model_serializer(mode="wrap")
    def _plain(self, handler: SerializerFunctionWrapHandler) -> Json:
        """Without `tool_calls` where there are none, as OpenAI has it."""
        fields: Json = handler(self)
        if fields["tool_calls"] is None:
            del fields["tool_calls"]
        return fields


class TopLogprob(Outgoing):
    """A token that could have come; `token` is its text, which may be part of a character."""

    token: str
    bytes: list[int]
    logprob: float


class TokenLogprob(TopLogprob):
    """A token of the answer."""

    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(Outgoing):
    """The tokens of an answer with their log-probabilities."""

    content: list[TokenLogprob]
    refusal: None = None


class ChatChoice(Outgoing):
    """One of the answers."""

    index: int
    message: ChatMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: Literal["stop", "length", "tool_calls"]


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
