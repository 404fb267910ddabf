"""What stands between the loopback port and everything else that can reach it.

A pure ASGI middleware, outermost, so that no route, document or stream is reachable around it. In
this order: the Host header (DNS rebinding), Origin and Sec-Fetch-Site (cross-site requests), the
bearer token, the size and the depth of the body. Covered: web pages in the user's browser, other
users of the computer, oversized and deeply nested bodies. Not covered: programs that run as the
user, who can read the token file as the user can.
"""

import hmac
import json
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from storage.errors import Invalid
from storage.values import check_name

MAX_JSON_DEPTH = 64

_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE | re.ASCII)
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,128}")
# A string that never ends runs to the end of the text: matched as well, the scan stays linear.
_JSON_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)


def error_body(
    message: str, *, kind: str, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """An error in OpenAI's shape; `kind` is its `type`, such as "invalid_request_error"."""
    return {"error": {"message": message, "type": kind, "code": code, "param": param}}


def _legal_name(text: str) -> str:
    """The text, if storage takes it as a name. Raises ValueError, as pydantic wants it, if not."""
    try:
        return check_name(text)
    except Invalid as error:
        raise ValueError(str(error)) from error


Name = Annotated[str, AfterValidator(_legal_name)]
"""The name of a task or model, in every path, query and body that takes one."""


class TokenFileError(Exception):
    """The token file cannot be used; the message says why and how to mend it."""


def read_token(path: Path) -> str:
    """The bearer token stored in a file that only its owner can read.

    Raises FileNotFoundError when there is none, TokenFileError for a link, a file open to others, a
    file of another user, or one that does not hold a token.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TokenFileError(f"{path.name} cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise TokenFileError(f"{path.name} is not a regular file; delete it")
        if status.st_uid != os.geteuid():
            raise TokenFileError(f"{path.name} belongs to another user; delete it")
        if status.st_mode & 0o077:
            raise TokenFileError(f"{path.name} is open to other users; run chmod 600 on it")
        text = os.read(descriptor, 256).decode("latin-1").strip()
    finally:
        os.close(descriptor)
    if not _TOKEN.fullmatch(text):
        raise TokenFileError(f"{path.name} does not hold a token; delete it to get a new one")
    return text


def load_or_create_token(path: Path) -> str:
    """The token of a data folder, created with its folder (0600, 0700) when there is none.

    The file appears at once with its whole content. Of several processes that create it one wins
    and all get its token. Raises TokenFileError as `read_token`, and when it cannot be written.
    """
    try:
        return read_token(path)
    except FileNotFoundError:
        pass
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _create_token(path)
    except OSError as error:
        raise TokenFileError(f"{path.name} cannot be written: {error.strerror}") from error
    return read_token(path)


def _create_token(path: Path) -> None:
    """Writes a new token of 32 random bytes, unless another process is faster."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".token-")  # mkstemp makes it 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32))
            file.flush()
            os.fsync(descriptor)
        # A link, unlike a rename, never replaces what is there.
        Path(path).hardlink_to(name)
    except FileExistsError:
        return
    finally:
        Path(name).unlink()


@dataclass(eq=False)
class Refused(Exception):
    """A request that goes no further."""

    status: int
    kind: str
    code: str
    message: str


class Guard:
    """The middleware. `public` paths need no token for GET and HEAD; all else applies to them too.

    Bodies are read here, up to `max_body_bytes`, and handed on whole: what arrives at the
    application is known to fit, whatever its Content-Length said. WebSockets are refused, as the
    service has none.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        max_body_bytes: int,
        public: Collection[str] = ("/healthz",),
    ) -> None:
        self._app = app
        self._token = token.encode()
        self._max_body_bytes = max_body_bytes
        self._public = frozenset(public)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one ASGI connection, or refuses it with an error in OpenAI's shape."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            _check_host(scope)
            _check_origin(scope)
            self._check_token(scope)
            body = await self._read_body(scope, receive)
        except Refused as refusal:
            await _respond(send, refusal)
            return
        if body is not None:
            await self._app(scope, _replay(body, receive), send)

    def _check_token(self, scope: Scope) -> None:
        """Refuses a request without the bearer token."""
        if scope["path"] in self._public and scope["method"] in ("GET", "HEAD"):
            return
        given = _header_values(scope, b"authorization")
        scheme, _, credential = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        matches = hmac.compare_digest(credential.strip(), self._token)
        if scheme.lower() != b"bearer" or not matches:
            raise Refused(
                401,
                "authentication_error",
                "invalid_api_key",
                "This request needs the token of the service's data folder: Authorization: Bearer.",
            )

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole body, counted as it streams in; None when the client went away."""
        chunks: list[bytes] = []
        size = 0
        more = True
        # Some of the excess is read and dropped: a client that is cut off while it sends may never
        # see the answer.
        while more and size <= 4 * self._max_body_bytes:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunk = message.get("body", b"")
            size += len(chunk)
            if size <= self._max_body_bytes:
                chunks.append(chunk)
            more = message.get("more_body", False)
        if size > self._max_body_bytes:
            raise Refused(
                413,
                "invalid_request_error",
                "body_too_large",
                f"The body is larger than {self._max_body_bytes} bytes.",
            )
        body = b"".join(chunks)
        content_type = b",".join(_header_values(scope, b"content-type")).lower()
        if body and (not content_type or b"json" in content_type):
            check_json(body)
        return body


def check_json(body: bytes, max_depth: int = MAX_JSON_DEPTH) -> None:
    """Refuses JSON that no parser should see: not UTF-8, or nested deeper than `max_depth`.

    Parsers and validators recurse, and end in a RecursionError on deep JSON. Anything else that is
    malformed is left to the parser. Raises Refused.
    """
    try:
        body.decode()
        text = b"\0" not in body  # UTF-16 and UTF-32, which Python's json module would guess
    except UnicodeDecodeError:
        text = False
    if not text:
        raise Refused(400, "invalid_request_error", "invalid_json", "The body is not UTF-8 text.")
    if body.count(b"[") + body.count(b"{") <= max_depth:
        return
    bare = np.frombuffer(_JSON_STRING.sub(b"", body), np.uint8)
    opens = (bare == ord("[")) | (bare == ord("{"))
    closes = (bare == ord("]")) | (bare == ord("}"))
    depths = np.cumsum(opens.astype(np.int32) - closes.astype(np.int32))
    if depths.max(initial=0) > max_depth:
        raise Refused(
            422,
            "invalid_request_error",
            "json_too_deep",
            f"The body is nested deeper than {max_depth} levels.",
        )


def _header_values(scope: Scope, name: bytes) -> list[bytes]:
    """All values of a header, whose name is lower case."""
    return [value for key, value in scope["headers"] if key == name]


def _check_host(scope: Scope) -> None:
    """Refuses a request that was not addressed to this computer by one of its loopback names."""
    hosts = _header_values(scope, b"host")
    if len(hosts) != 1 or not _HOST.fullmatch(hosts[0].decode("latin-1")):
        raise Refused(
            403,
            "permission_error",
            "host_not_allowed",
            "The Host header must be localhost, 127.0.0.1 or [::1], with any port.",
        )


def _check_origin(scope: Scope) -> None:
    """Refuses an unsafe request that a page of another origin made the browser send.

    Another port of this computer is another origin, though browsers call it the same site. Clients
    that are no browser send neither header.
    """
    if scope["method"] in _SAFE_METHODS:
        return
    host = _header_values(scope, b"host")[0].lower()
    origins = [origin.lower() for origin in _header_values(scope, b"origin")]
    sites = _header_values(scope, b"sec-fetch-site")
    foreign_origin = any(origin != b"http://" + host for origin in origins)
    if foreign_origin or any(site not in (b"same-origin", b"none") for site in sites):
        raise Refused(
            403,
            "permission_error",
            "cross_site_request",
            "Requests from pages of another origin are refused.",
        )


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that hands out the body that was read, then waits for the client as before."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed


async def _respond(send: Send, refusal: Refused) -> None:
    """Sends a refusal as the whole response."""
    body = json.dumps(error_body(refusal.message, kind=refusal.kind, code=refusal.code)).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
