"""What the guard lets through and refuses, at the ASGI interface and behind a real uvicorn."""

import http.client
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from app.security import (
    MAX_JSON_DEPTH,
    Guard,
    Name,
    error_body,
)

TOKEN = "t" * 43
LIMIT = 1024 * 1024
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def service() -> FastAPI:
    """A small application of the shapes that the service has."""
    app = FastAPI()

    @app.get("/healthz")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/v1/episodes")
    async def episodes(body: Any = None) -> Any:
        return {"stored": True}

    @app.post("/v1/echo")
    async def echo(body: dict[str, Any]) -> Any:
        return body

    @app.post("/v1/size")
    async def size(request: Request) -> int:
        return len(await request.body())

    @app.post("/v1/ignores-its-body")
    async def ignores() -> dict[str, bool]:
        return {"done": True}

    @app.get("/v1/tasks/{task}")
    async def task(task: Name) -> dict[str, str]:
        return {"task": task}

    @app.get("/v1/events")
    async def events() -> StreamingResponse:
        async def lines() -> AsyncIterator[str]:
            for number in range(3):
                yield f"data: {number}\n\n"

        return StreamingResponse(lines(), media_type="text/event-stream")

    return app


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a running service behind its guard."""
    listener = socket.create_server(("127.0.0.1", 0))
    app = Guard(service(), token=TOKEN, max_body_bytes=LIMIT)
    server = uvicorn.Server(uvicorn.Config(app, ws="none", log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()
    listener.close()


@pytest.fixture
def client(port: int) -> Iterator[httpx.Client]:
    """A client with the token, as a program of the user would be."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=BEARER, verify=False) as client:
        yield client


@pytest.fixture
def stranger(port: int) -> Iterator[httpx.Client]:
    """A client without the token, as a web page or another user would be."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", verify=False) as client:
        yield client


def raw(port: int, head: str, body: bytes = b"") -> tuple[int, dict[str, Any]]:
    """Sends a request byte by byte as written; returns the status and the JSON of the answer."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body)
        response = http.client.HTTPResponse(connection)
        response.begin()
        text = response.read()
    return response.status, json.loads(text) if text.startswith(b"{") else {}


def refusal(response: httpx.Response) -> tuple[int, str]:
    """Status and code of a refusal, after checking that it has OpenAI's shape and no more."""
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "code", "param"}
    return response.status_code, body["error"]["code"]


# Row 1: DNS rebinding.


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost", "127.0.0.1", "[::1]", "localhost:1", "127.0.0.1:8077", "[::1]:80"],
)
def test_loopback_hosts_with_any_port_are_served(client, host):
    assert client.get("/v1/tasks/home", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "localhost.",
        "127.0.0.1.",
        "localhost.evil.example",
        "evil.example:8077",
        "127.0.0.1.nip.io",
        "localhost:",
        "localhost:80:80",
        "localhost:80a",
        "localhost@evil.example",
        "evil.example#localhost",
        "xlocalhost",
        "0.0.0.0",
        "127.1",
        "127.0.0.2",
        "2130706433",
        "::1",
        "[::1",
        "[::ffff:127.0.0.1]",
        "localhost:123456",
    ],
)
@pytest.mark.parametrize("path", ["/healthz", "/docs", "/openapi.json", "/v1/events"])
def test_no_page_is_served_under_a_foreign_host(client, host, path):
    response = client.get(path, headers={"Host": host})
    assert refusal(response) == (403, "host_not_allowed")


def test_a_request_without_a_host_is_refused(port):
    assert raw(port, "GET /healthz HTTP/1.0")[0] in (400, 403)
    assert raw(port, "GET /healthz HTTP/1.1\nHost:")[0] == 403


def test_a_second_host_header_is_refused(port):
    head = "GET /healthz HTTP/1.1\nHost: localhost\nHost: evil.example"
    assert raw(port, head)[0] in (400, 403)


# Row 2: cross-site requests.


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "PURGE", "TRACE"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost"},  # another port is another origin
        {"Origin": "https://127.0.0.1:{port}"},
        {"Origin": "http://127.0.0.1:{port}.evil.example"},
        {"Origin": "http://localhost:{port}"},  # not the name that the request was sent to
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "new-word"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://evil.example"},
    ],
)
def test_an_unsafe_request_of_another_origin_is_refused_even_with_the_token(
    client, port, method, headers
):
    headers = {name: value.format(port=port) for name, value in headers.items()}
    response = client.request(method, "/v1/episodes", headers=headers)
    assert refusal(response) == (403, "cross_site_request")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://127.0.0.1:{port}"},
        {"Origin": "http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_unsafe_requests_of_programs_and_of_the_own_page_are_served(client, port, headers):
    headers = {name: value.format(port=port) for name, value in headers.items()}
    assert client.post("/v1/episodes", headers=headers).status_code == 200


def test_a_cross_site_post_without_a_body_is_refused_before_it_is_handled(port):
    head = "POST /v1/ignores-its-body HTTP/1.1\nHost: localhost\nOrigin: https://evil.example"
    assert raw(port, head)[1]["error"]["code"] == "cross_site_request"


def test_a_preflight_gets_no_permission(stranger):
    response = stranger.options(
        "/v1/episodes",
        headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"},
    )
    assert refusal(response) == (401, "invalid_api_key")
    assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "credential",
    [
        None,
        "",
        "Bearer",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN.upper()}",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer Bearer {TOKEN}",
        "Bearer \xe4",
    ],
)
@pytest.mark.parametrize("path", ["/v1/tasks/home", "/docs", "/openapi.json", "/healthz/", "/no"])
def test_nothing_but_healthz_is_served_without_the_token(stranger, path, credential):
    headers = {} if credential is None else {"Authorization": credential.encode("latin-1")}
    response = stranger.get(path, headers=headers)
    assert refusal(response) == (401, "invalid_api_key")
    assert response.headers["WWW-Authenticate"] == "Bearer"


def test_the_scheme_is_read_in_any_case(stranger):
    headers = {"Authorization": f"bearer {TOKEN}"}
    assert stranger.get("/v1/tasks/home", headers=headers).status_code == 200


def test_two_credentials_are_refused(stranger):
    headers = [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer other")]
    response = stranger.get("/v1/tasks/home", headers=headers)
    assert refusal(response) == (401, "invalid_api_key")


def test_healthz_needs_no_token_to_be_read_and_one_for_all_else(stranger):
    assert stranger.get("/healthz").status_code == 200
    assert refusal(stranger.post("/healthz")) == (401, "invalid_api_key")


def test_cookies_are_no_credential(stranger):
    headers = {"Cookie": f"token={TOKEN}"}
    assert stranger.get("/v1/tasks/home", headers=headers).status_code == 401


# Row 3: path traversal (links: test_security_token.py).


@pytest.mark.parametrize(
    "name",
    ["..", "%2e%2e", "..%2f..%2fetc", "a%2fb", "a%5cb", "a%00", "a%0a", "A", "-a", "_a", "a.b"],
)
def test_a_name_that_is_no_name_reaches_no_handler(port, name):
    status, body = raw(
        port, f"GET /v1/tasks/{name} HTTP/1.1\nHost: localhost\nAuthorization: Bearer {TOKEN}"
    )
    assert status in (404, 422)
    assert "task" not in body


@pytest.mark.parametrize("length", [1, 64])
def test_names_of_the_whole_length_are_served(client, length):
    assert client.get(f"/v1/tasks/{'a' * length}").json() == {"task": "a" * length}
    assert client.get(f"/v1/tasks/{'a' * 65}").status_code == 422


# Row 4: oversized input.


def test_a_body_of_exactly_the_limit_is_served(client):
    assert client.post("/v1/size", content=b"x" * LIMIT, headers=BINARY).json() == LIMIT


@pytest.mark.parametrize("excess", [1, 3 * LIMIT])
def test_a_declared_body_over_the_limit_is_413(client, excess):
    response = client.post("/v1/size", content=b"x" * (LIMIT + excess), headers=BINARY)
    assert refusal(response) == (413, "body_too_large")


@pytest.mark.parametrize("path", ["/v1/size", "/v1/episodes", "/v1/ignores-its-body", "/no"])
def test_a_streamed_body_over_the_limit_is_413_on_every_path(client, path):
    chunks = (b"x" * 65536 for _ in range(LIMIT // 65536 + 1))
    assert refusal(client.post(path, content=chunks)) == (413, "body_too_large")


def test_a_streamed_body_arrives_whole(client):
    chunks = (bytes([number]) * 1000 for number in range(100))
    assert client.post("/v1/size", content=chunks, headers=BINARY).json() == 100_000


DEEP = [
    b"[" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    b'{"messages": ' + b'[{"a":' * 5_000 + b"1" + b"}]" * 5_000 + b"}",
    b"[" * (MAX_JSON_DEPTH + 1) + b"]" * (MAX_JSON_DEPTH + 1),
]


@pytest.mark.parametrize("body", DEEP)
@pytest.mark.parametrize("kind", ["application/json", "application/vnd.x+json; charset=utf-8", ""])
def test_deep_json_is_422(client, body, kind):
    response = client.post("/v1/echo", content=body, headers={"Content-Type": kind})
    assert refusal(response) == (422, "json_too_deep")


def test_json_of_the_deepest_allowed_nesting_is_served(client):
    value: Any = "[[[[" * 100
    for _ in range(MAX_JSON_DEPTH):
        value = {"a": value}
    assert client.post("/v1/echo", json=value).json() == value


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32-be", "latin-1"])
def test_json_that_is_not_utf8_is_400(client, encoding):
    body = ('{"ä": ' + "[" * 1000 + "]" * 1000 + "}").encode(encoding)
    response = client.post("/v1/echo", content=body, headers={"Content-Type": "application/json"})
    assert refusal(response) == (400, "invalid_json")


def test_malformed_json_is_a_client_error_and_the_service_stays_up(client):
    for body in (b"{", b"]]]]", b'{"a": "' + b'\\"' * 10_000, b"1" * 10_000, b'"\\'):
        response = client.post(
            "/v1/echo", content=body, headers={"Content-Type": "application/json"}
        )
        assert response.status_code in (400, 422)
    assert client.get("/healthz").status_code == 200


def test_a_stream_passes_through_the_guard(client):
    assert client.get("/v1/events").text == "data: 0\n\ndata: 1\n\ndata: 2\n\n"


def test_errors_have_the_shape_of_openai():
    assert error_body("No.", kind="invalid_request_error", param="model") == {
        "error": {
            "message": "No.",
            "type": "invalid_request_error",
            "code": None,
            "param": "model",
        }
    }


BINARY = {"Content-Type": "application/octet-stream"}
