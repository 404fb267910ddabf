"""Hypothesis strategies that the verifier tests share."""

from typing import Any

from hypothesis import strategies as st

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
)
KEYS = st.from_regex(r"[a-z][a-z0-9_]{0,7}", fullmatch=True)
JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=4)
CALLS = st.fixed_dictionaries(
    {"name": KEYS, "arguments": st.dictionaries(KEYS, st.lists(SCALARS, min_size=1, max_size=3))}
)

# Texts that are near to being right, mixed with pieces that have broken parsers before.
HOSTILE_PIECES = st.sampled_from(
    [
        *"{}[](),:='\"\\\n\r\t ",
        "\\u", "\\ud800", "\x00", "\u2028", "\u0663", "\u2212", "５", "NaN", "-Infinity", "1e999",
        "null", "true", "none", "name", "arguments", '"name"', '"arguments"', "f(", "a=", "a=1",
        "9" * 5000, "[" * 500, '{"a":' * 200, '"' * 99, "\\" * 99, "{{item.answer}}", "\u0345" * 50,
    ]
)  # fmt: skip
HOSTILE_TEXT = st.one_of(st.text(max_size=60), st.lists(HOSTILE_PIECES, max_size=30).map("".join))
