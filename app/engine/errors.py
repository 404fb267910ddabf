"""Why the engine cannot do something; every message is fit for a user."""


class EngineError(Exception):
    """The engine cannot do this; the message is fit for a user."""


class EngineBusy(EngineError):
    """Too many rows are waiting."""


class EngineStopped(EngineError):
    """The engine is shutting down or has failed."""


class ContextOverflow(EngineError):
    """Prompt and answer do not fit the model's context.

    Attributes:
        prompt_tokens, max_tokens, limit: the numbers.
    """

    def __init__(self, prompt_tokens: int, max_tokens: int, limit: int) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens and {max_tokens} may be generated, "
            f"but the model's context is {limit}: shorten the messages or lower max_tokens"
        )
        self.prompt_tokens, self.max_tokens, self.limit = prompt_tokens, max_tokens, limit
