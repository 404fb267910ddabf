"""The guard at the ASGI interface: what no HTTP client or server would let through."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.security import Guard, Refused, check_json

TOKEN = "t" * 43
LIMIT = 1024
HEADERS = [
    (b"host", b"localhost"),
    (b"authorization", f"Bearer {TOKEN}".encode()),
    (b"content-type", b"application/octet-stream"),
]


def exchange(
    *,
    method: str = "GET",
    path: str = "/v1/x",
    kind: str = "http",
    headers: list[tuple[bytes, bytes]] = HEADERS,
    chunks: Sequence[bytes] | None = (),
    complete: bool = True,
    app: Any = None,
    public: tuple[str, ...] = ("/healthz",),
    unread: list[Any] | None = None,
) -> tuple[int | None, list[bytes]]:
    """One exchange at the ASGI interface, for what no HTTP server would let through.

    `chunks=None` fails if the body is read at all. Returns the status (the close code of a
    WebSocket, None without an answer) and the bodies that reached the application; messages that
    nobody took are put into `unread`.
    """
    sent: list[dict[str, Any]] = []
    received: list[bytes] = []
    waiting: list[dict[str, Any]] = [
        {"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks or [b""]
    ]
    waiting[-1]["more_body"] = not complete

    async def receive() -> Any:
        assert chunks is not None
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def record(scope: Any, receive: Any, send: Any) -> None:
        received.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guard = Guard(app or record, token=TOKEN, max_body_bytes=LIMIT, public=public)
    scope = {"type": kind, "method": method, "path": path, "headers": headers}
    asyncio.run(guard(scope, receive, send))
    if unread is not None:
        unread.extend(waiting)
    first = sent[0] if sent else {}
    return first.get("status", first.get("code")), received


def test_a_second_host_header_is_refused():
    assert exchange(headers=[*HEADERS, (b"host", b"localhost")])[0] == 403


def test_an_empty_credential_is_refused():
    assert exchange(headers=[(b"host", b"localhost"), (b"authorization", b"Bearer ")])[0] == 401


def test_websockets_are_refused():
    assert exchange(kind="websocket")[0] == 1008


@pytest.mark.parametrize("declared", [b"9" * 30, b"0", b"-1", b"\xb2"])
def test_a_false_content_length_does_not_get_around_the_limit(declared):
    status, received = exchange(
        method="POST",
        headers=[*HEADERS, (b"content-length", declared)],
        chunks=[b"x" * LIMIT, b"x"],
    )
    assert (status, received) == (413, [])


def test_only_a_bounded_excess_is_read():
    chunks = [bytes(LIMIT)] * 4 + [b"x"] * 10
    left: list[Any] = []
    assert exchange(method="POST", chunks=chunks, unread=left)[0] == 413
    assert len(left) == 9


def test_no_body_is_read_before_the_token_was_seen():
    status, _ = exchange(method="POST", headers=[(b"host", b"localhost")], chunks=None)
    assert status == 401


def test_a_client_that_goes_away_while_sending_reaches_no_handler():
    assert exchange(method="POST", chunks=[b"x"], complete=False) == (None, [])


def test_lifespan_reaches_the_application():
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    guard = Guard(app, token=TOKEN, max_body_bytes=LIMIT)
    asyncio.run(guard({"type": "lifespan"}, None, None))  # type: ignore[arg-type]
    assert seen == ["lifespan"]


def test_a_handler_sees_the_client_leave_after_the_body():
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend([(await receive())["type"], (await receive())["type"]])

    exchange(method="POST", chunks=[b"x"], app=app)
    assert seen == ["http.request", "http.disconnect"]


def test_public_paths_can_be_named():
    status, _ = exchange(path="/", headers=[(b"host", b"localhost")], public=("/",))
    assert status == 200


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


trees = st.recursive(
    st.text(st.sampled_from('a"\\[]{}')) | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.sampled_from('"\\[{')), inner),
)


@given(trees, st.integers(0, 8))
def test_the_depth_check_agrees_with_the_parsed_value(value, limit):
    body = json.dumps(value).encode()
    if depth(value) <= limit:
        check_json(body, limit)
        return
    with pytest.raises(Refused):
        check_json(body, limit)
