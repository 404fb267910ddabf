"""Bodies as one JSON value and no other: RFC 8259, read without guessing.

Python's parser takes the last of two keys with one name, NaN and Infinity, and gives up on numbers
of thousands of digits with an error that tells the client nothing. Every router uses `JsonRoute`.
"""

import json
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute

from verifiers.values import MAX_DIGITS


def strict_json(body: bytes) -> Any:
    """The value that a body holds; raises JSONDecodeError for what is not JSON, or ambiguous."""
    text = body.decode()

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for name, member in pairs:
            if name in value:
                refuse(f"an object has two members named {json.dumps(name[:64])}")
            value[name] = member
        return value

    def integer(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            refuse(f"a number has more than {MAX_DIGITS} digits")
        return int(digits)

    def refuse(reason: str) -> NoReturn:
        raise json.JSONDecodeError(reason, text, 0)

    return json.loads(
        text,
        object_pairs_hook=distinct,
        parse_int=integer,
        parse_constant=lambda word: refuse(f"{word} is not JSON"),
    )


class _JsonRequest(Request):
    """A request whose body is read strictly."""

    async def json(self) -> Any:
        return strict_json(await self.body())


class JsonRoute(APIRoute):
    """A route that reads bodies strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, given a request that reads strictly."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return strict
