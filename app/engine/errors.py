"""Why the engine cannot do something; every message is fit for a user."""


class EngineError(Exception):
    """The engine cannot do this; the message is fit for a user."""


class EngineBusy(EngineError):
    """Too many rows are waiting."""


class EngineStopped(EngineError):
    """The engine is shutting down, or has failed for good."""


class EngineFailed(EngineStopped):
    """The engine has failed and could not be restarted: only a new start of the service helps."""


class EngineRestarting(EngineError):
    """The engine is being restarted, and what it was doing is lost.

    Attributes:
        retry_after_s: when it is worth trying again.
    """

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class WorkDropped(EngineError):
    """Background work was given up, to free the engine for something else."""


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
