"""Bodies are JSON without ambiguities, at every endpoint that takes one."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.bodies import strict_json
from app.main import create_app
from tests.app.serving import Service

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
TWICE = [
    '{"a": 1, "a": 1}',
    '{"a": 1, "\\u0061": 2}',
    '[{"b": {"a": 1, "c": 2, "a": 1}}]',
]


@given(VALUES)
def test_json_is_read_as_python_reads_it(value: Any) -> None:
    text = json.dumps(value)
    assert strict_json(text.encode()) == json.loads(text)


@pytest.mark.parametrize("text", TWICE)
def test_two_members_of_one_name_are_refused(text: str) -> None:
    with pytest.raises(json.JSONDecodeError, match='two members named "a"'):
        strict_json(text.encode())


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_in_json_is_refused(word: str) -> None:
    with pytest.raises(json.JSONDecodeError, match=f"{word} is not JSON"):
        strict_json(f'{{"a": [{word}]}}'.encode())


def test_a_number_of_thousands_of_digits_is_refused_and_one_of_a_thousand_is_read() -> None:
    assert strict_json(b"9" * 1000) == 10**1000 - 1
    with pytest.raises(json.JSONDecodeError, match="more than 1000 digits"):
        strict_json(b"9" * 5000)


def test_every_endpoint_that_takes_a_body_refuses_an_ambiguous_one(
    service: Service, http: httpx.Client
) -> None:
    paths = create_app(service.parts).openapi()["paths"]
    taking = [
        (method.upper(), path)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if "requestBody" in operation
    ]
    assert ("POST", "/v1/chat/completions") in taking
    assert len(taking) >= 8
    for method, path in taking:
        response = http.request(
            method,
            re.sub(r"\{[^}]*\}", "x", path),
            content='{"x": 1, "x": 2}',
            headers={"Content-Type": "application/json"},
        )
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "invalid_json"), path
        assert 'two members named "x"' in error["message"]
