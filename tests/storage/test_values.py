"""Canonical JSON as an identity, names, ids."""

import json
import re
from datetime import UTC
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import Invalid, is_no_space
from storage.values import (
    canonical_json,
    check_name,
    content_hash,
    is_sha256,
    new_id,
    stored_json,
    utcnow,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=8,
)  # fmt: skip


@settings(deadline=None)
@given(JSON)
def test_canonical_json_reads_back_and_is_stable(value: Any) -> None:
    text = canonical_json(value)
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text


@settings(deadline=None)
@given(st.dictionaries(TEXT, JSON, max_size=5))
def test_the_order_of_keys_changes_stored_json_and_not_the_identity(value: dict[str, Any]) -> None:
    turned = dict(reversed(value.items()))
    assert content_hash(turned) == content_hash(value)
    assert list(json.loads(stored_json(turned))) == list(turned)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, b"x", "\ud800"])
def test_what_is_no_json_is_invalid(value: Any) -> None:
    with pytest.raises(Invalid, match="not a JSON value"):
        canonical_json([value])


def test_json_that_is_too_deep_is_invalid() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(Invalid):
        canonical_json(deep)


@settings(deadline=None)
@given(st.from_regex(r"[a-z0-9][a-z0-9_-]{0,63}", fullmatch=True))
def test_legal_names_are_returned(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "-a", "_a", "A", "a/b", "..", "a\n", "é", "a" * 65, "a b"])
def test_illegal_names_are_refused(name: str) -> None:
    with pytest.raises(Invalid, match="not a legal name"):
        check_name(name)


def test_ids_have_a_prefix_and_24_hex_digits() -> None:
    assert re.fullmatch(r"ep_[0-9a-f]{24}", new_id("ep"))
    assert new_id("job") != new_id("job")


@pytest.mark.parametrize("text", ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 64 + "\n"])
def test_only_64_lower_case_hex_digits_are_a_sha256(text: str) -> None:
    assert is_sha256("0af9" * 16)
    assert not is_sha256(text)


def test_time_is_utc() -> None:
    assert utcnow().tzinfo is UTC


def test_only_a_full_disk_is_no_space() -> None:
    assert is_no_space(OSError(28, "full"))
    assert not is_no_space(OSError(5, "broken"))
    assert not is_no_space(None)
