"""Errors as OpenAI's clients expect them: `{"error": {message, type, code, param}}`.

Every error leaves the service in this shape, whoever raised it. Bodies carry no path, no traceback
and nothing of the request but the name of the offending field.
"""

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from app.engine.errors import (
    ContextOverflow,
    EngineBusy,
    EngineError,
    EngineFailed,
    EngineRestarting,
    EngineStopped,
)
from app.security import error_body
from storage.errors import (
    Busy,
    Conflict,
    Corrupt,
    Invalid,
    NoSpace,
    NotFound,
    StorageError,
)

logger = logging.getLogger("nightowl")

# Tags of unions: pydantic puts them into the place of an error, where they name no field.
UNION_TAGS = frozenset(
    {
        *("one episode", "many episodes", "a text", "a message"),
        *("any text", "any object", "a schema", "a word", "a tool"),
    }
)

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_STORAGE: dict[type[StorageError], tuple[int, str]] = {
    NotFound: (404, "not_found"),
    Conflict: (409, "conflict"),
    Invalid: (400, "invalid_value"),
    Corrupt: (409, "corrupt"),
    NoSpace: (507, "no_space"),
    Busy: (503, "busy"),
}
_ENGINE: dict[type[EngineError], tuple[int, str]] = {
    ContextOverflow: (400, "context_length_exceeded"),
    EngineBusy: (429, "queue_full"),
    EngineStopped: (503, "stopping"),
    EngineRestarting: (503, "restarting"),
    EngineFailed: (503, "engine_failed"),
}
_VALIDATION_CODES = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "json_invalid": "invalid_json",
}
_RETRY_AFTER = {429: "1", 503: "1"}


class ApiError(Exception):
    """An error an endpoint answers with; `message` is for the user, `param` names the field."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param


def error_event(error: ApiError | EngineError) -> dict[str, Any]:
    """The JSON of an error that breaks off a stream, where the status line has long been sent."""
    if isinstance(error, ApiError):
        return _body(error.status, error.message, error.code, error.param)
    status, code = _ENGINE.get(type(error), (500, "engine"))
    return _body(status, str(error), code, None)


def error_response(
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """An error as a response."""
    extra = dict(headers or {})
    if status in _RETRY_AFTER:
        extra.setdefault("Retry-After", _RETRY_AFTER[status])
    return JSONResponse(_body(status, message, code, param), status_code=status, headers=extra)


def validation_error(errors: Sequence[Any], inside: str | None = None) -> ApiError:
    """The first of pydantic's errors; `inside` is the field that was validated, None a request."""
    first = errors[0]
    code = _VALIDATION_CODES.get(first["type"], "invalid_value")
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", first["msg"])
        return ApiError(400, f"the body is not valid JSON: {reason}", code=code)
    place = first["loc"] if inside is not None else first["loc"][1:]
    steps = [inside] if inside is not None else []
    steps += [str(step) for step in place if step not in UNION_TAGS]
    if first["type"] == "misfit":
        steps.append(first["ctx"]["field"])
    param = ".".join(steps) or None
    reason = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        reason = "is not a field this service knows"
    return ApiError(400, f"{param or 'the body'}: {reason}", code=code, param=param)


def install(app: FastAPI) -> None:
    """Makes every error of the app leave in this shape."""
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(StorageError, _on_storage_error)
    app.add_exception_handler(EngineError, _on_engine_error)
    app.add_exception_handler(Exception, _on_bug)


def _body(status: int, message: str, code: str | None, param: str | None) -> dict[str, Any]:
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    place = None if param is None else _printable(param)
    return error_body(_printable(message), kind=kind, code=code, param=place)


def _printable(text: str) -> str:
    """Text that can be encoded: a request's JSON may name fields with lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


async def _on_api_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return error_response(error.status, error.message, code=error.code, param=error.param)


async def _on_validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return await _on_api_error(request, validation_error(error.errors()))


async def _on_http_error(_request: Request, error: Exception) -> JSONResponse:
    """What the framework refuses: no such path, no such method, a body that cannot be parsed."""
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    message = str(error.detail or phrase)
    return error_response(
        error.status_code,
        message,
        code=phrase.lower().replace(" ", "_"),
        headers=dict(error.headers or {}),
    )


async def _on_storage_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StorageError)
    status, code = _STORAGE.get(type(error), (500, "storage"))
    return error_response(status, str(error), code=code)


async def _on_engine_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, EngineError)
    status, code = _ENGINE.get(type(error), (500, "engine"))
    param = "messages" if isinstance(error, ContextOverflow) else None
    response = error_response(status, str(error), code=code, param=param)
    if isinstance(error, EngineRestarting):
        response.headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, EngineFailed):  # nothing will be different later
        del response.headers["Retry-After"]
    return response


async def _on_bug(_request: Request, _error: Exception) -> JSONResponse:
    """A bug: the server logs it with its traceback, the client learns only that it happened."""
    return error_response(500, "something went wrong inside nightowl", code="internal_error")
