"""Every error leaves in OpenAI's shape and says no more than the client needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from app.api import errors
from app.engine.errors import ContextOverflow, EngineBusy, EngineError, EngineStopped
from storage.errors import Busy, Conflict, Corrupt, Invalid, NoSpace, NotFound, SchemaTooNew
from tests.app.serving import GRADER, fresh

RAISED: list[tuple[Exception, int, str, str]] = [
    (NotFound("no such thing"), 404, "invalid_request_error", "not_found"),
    (Conflict("taken"), 409, "invalid_request_error", "conflict"),
    (Invalid("not a name"), 400, "invalid_request_error", "invalid_value"),
    (Corrupt("damaged"), 409, "invalid_request_error", "corrupt"),
    (NoSpace("no space left"), 507, "server_error", "no_space"),
    (Busy("try again"), 503, "server_error", "busy"),
    (SchemaTooNew("newer"), 500, "server_error", "storage"),
    (EngineBusy("256 wait"), 429, "rate_limit_error", "queue_full"),
    (EngineStopped("shutting down"), 503, "server_error", "stopping"),
    (ContextOverflow(9, 9, 10), 400, "invalid_request_error", "context_length_exceeded"),
    (EngineError("failed"), 500, "server_error", "engine"),
]


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "code", "param"}
    error: dict[str, Any] = body["error"]
    return error


@pytest.fixture
def raising() -> Iterator[tuple[FastAPI, TestClient]]:
    """An application with this error handling and nothing else."""
    app = FastAPI()
    errors.install(app)
    with TestClient(app, raise_server_exceptions=False) as bare:
        yield app, bare


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"), RAISED, ids=lambda value: type(value).__name__
)
def test_known_errors_have_their_status(
    raising: tuple[FastAPI, TestClient], error: Exception, status: int, kind: str, code: str
) -> None:
    app, bare = raising

    def endpoint() -> None:
        raise error

    app.add_api_route("/boom", endpoint)
    response = bare.get("/boom")
    assert response.status_code == status
    body = response.json()["error"]
    assert (body["message"], body["type"], body["code"]) == (str(error), kind, code)
    assert ("retry-after" in response.headers) == (status in (429, 503))


def test_a_bug_tells_the_client_nothing_about_itself(
    raising: tuple[FastAPI, TestClient],
) -> None:
    app, bare = raising

    def endpoint() -> None:
        raise RuntimeError("/home/someone/secret")

    app.add_api_route("/boom", endpoint)
    response = bare.get("/boom")
    assert response.status_code == 500
    assert "secret" not in response.text
    assert response.json()["error"]["code"] == "internal_error"


def test_unknown_path_is_404(http: httpx.Client) -> None:
    response = http.get("/v1/nothing")
    assert response.status_code == 404
    assert error_of(response)["code"] == "not_found"


def test_wrong_method_is_405_and_names_the_right_ones(http: httpx.Client) -> None:
    response = http.put("/v1/tasks")
    assert response.status_code == 405
    assert error_of(response)["type"] == "invalid_request_error"
    assert "allow" in response.headers


def test_too_large_a_body_is_413(http: httpx.Client) -> None:
    response = http.post("/v1/tasks", content=b" " * (2 * 1024**2 + 1))
    assert response.status_code == 413
    assert error_of(response)["code"] == "body_too_large"


@pytest.mark.parametrize("body", ["", "{", "[1,", "nul", '{"name": "x"} trailing'])
def test_what_is_no_json_is_400(http: httpx.Client, body: str) -> None:
    response = http.post("/v1/tasks", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    error_of(response)


def test_json_without_its_content_type_is_400(http: httpx.Client) -> None:
    response = http.post("/v1/tasks", content='{"name": "x"}')
    assert response.status_code == 400
    error_of(response)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"grader": GRADER}, "name", "missing_required_parameter"),
        ({"name": "Not A Name", "grader": GRADER}, "name", "invalid_value"),
        ({"name": "trailing\n", "grader": GRADER}, "name", "invalid_value"),
        ({"name": "x", "grader": GRADER, "colour": 1}, "colour", "unknown_parameter"),
        ({"name": "x", "grader": {"type": "multi"}}, "grader.graders", "invalid_grader"),
        ({"name": "x", "grader": {}}, "grader.type", "invalid_grader"),
        (
            {"name": "x", "grader": GRADER, "training": {"sigma": -1}},
            "training.sigma",
            "invalid_value",
        ),
        (
            {"name": "x", "grader": GRADER, "tools": [{"type": "function", "function": {}}]},
            "tools.0.function.name",
            "missing_required_parameter",
        ),
    ],
)
def test_a_bad_field_is_named(
    http: httpx.Client, body: dict[str, Any], param: str, code: str
) -> None:
    response = http.post("/v1/tasks", json=body)
    assert response.status_code == 400
    error = error_of(response)
    assert (error["param"], error["code"]) == (param, code)


def test_a_field_named_by_a_lone_surrogate_is_answered(http: httpx.Client) -> None:
    response = http.post(
        "/v1/tasks",
        content=b'{"\\ud800": 1, "name": "x", "grader": {"type": "string_check"}}',
        headers={"Content-Type": "application/json"},
    )
    assert response.status_code == 400
    error_of(response)


def test_text_that_is_no_unicode_is_refused_and_nothing_is_stored(http: httpx.Client) -> None:
    name = fresh()
    body = f'{{"name": "{name}", "grader": {{"type": "string_check"}}, "system_prompt": "\\ud800"}}'
    response = http.post("/v1/tasks", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    error_of(response)
    assert http.get(f"/v1/tasks/{name}").status_code == 404


def test_the_service_answers_after_all_of_it(http: httpx.Client) -> None:
    assert http.get("/healthz").status_code == 200
