"""JSON values: bounds, look-up by path, and equality under normalisation.

Two values are equal when their `canonical` forms are. Canonical forms are tagged, so that Python's
own `True == 1` never makes a boolean equal to a number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from verifiers.texts import normal

MAX_DEPTH = 64
MAX_NODES = 100_000
MAX_DIGITS = 1_000
# The largest integer of MAX_DIGITS digits fits; one more digit may not.
_MAX_BITS = math.ceil(MAX_DIGITS * math.log2(10))

# The number grammar of JSON, ASCII digits only: "007" and "٣" stay text. The exponent is bounded
# so that no text can stand for a number with millions of digits.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)((?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,4})?)")
_LITERALS = frozenset({"true", "false", "null"})
# What BFCL's own checker leaves out of texts before it compares them.
_PUNCTUATION = str.maketrans({**dict.fromkeys(" ,./-_*^"), "'": '"'})
_INDEX = re.compile(r"0|[1-9][0-9]{0,5}")


class Normalise(BaseModel):
    """What counts as the same value. In keys and names, case, spaces and punctuation count."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    casefold: bool = Field(default=True, description="Upper and lower case are the same.")
    strip: bool = Field(
        default=True,
        description="White space at the ends is ignored and inside counts as one space.",
    )
    numbers: bool = Field(
        default=True, description="Numbers, true, false and null equal their JSON text."
    )
    punctuation: bool = Field(
        default=False,
        description="Spaces and , . / - _ * ^ in texts are ignored and ' equals \", as in BFCL.",
    )


def json_problem(value: object) -> str | None:
    """Say why a value is not plain JSON within the bounds on depth and size, None if it is.

    Works without recursion and stops at the bounds, so depth bombs and cycles are safe.
    """
    level: list[object] = [value]
    nodes = 0
    for _ in range(MAX_DEPTH + 1):
        nodes += len(level)
        if nodes > MAX_NODES:
            return f"has more than {MAX_NODES} values"
        below: list[object] = []
        for one in level:
            problem = _node_problem(one)
            if problem is not None:
                return problem
            below.extend(_children(one))
        if not below:
            return None
        level = below
    return f"is nested deeper than {MAX_DEPTH} levels"


def _node_problem(value: object) -> str | None:
    if value is None or isinstance(value, bool | list):
        return None
    if isinstance(value, str):
        return None if is_unicode(value) else "holds a string that is not valid Unicode"
    if isinstance(value, int):
        return None if value.bit_length() <= _MAX_BITS else "holds an integer that is too large"
    if isinstance(value, float):
        return None if math.isfinite(value) else "holds a number that is not finite"
    if isinstance(value, dict):
        good = all(isinstance(key, str) and is_unicode(key) for key in value)
        return None if good else "holds an object with a key that is not text"
    return f"holds a {type(value).__name__}, which is not JSON"


def _children(value: object) -> Sequence[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()


def is_unicode(text: str) -> bool:
    """Tell whether a text can be stored: JSON's escapes can spell halves of characters."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class SameKeys(ValueError):
    """Two keys of one object look the same."""


def with_normal_keys(value: Any) -> Any:
    """Return a JSON value with the keys of all objects in normal form (`texts.normal`).

    Raises SameKeys. Recursive: for values within MAX_DEPTH.
    """
    if isinstance(value, list):
        return [with_normal_keys(one) for one in value]
    if not isinstance(value, dict):
        return value
    result = {normal(key): with_normal_keys(one) for key, one in value.items()}
    if len(result) != len(value):
        raise SameKeys("two keys of one object look the same")
    return result


class Missing(Exception):
    """A path leads nowhere; the text names the path."""


def look_up(value: Any, path: Sequence[str]) -> Any:
    """Follow a path of object keys and list positions; raises Missing."""
    for step in path:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and _INDEX.fullmatch(step) and int(step) < len(value):
            value = value[int(step)]
        else:
            raise Missing(".".join(path))
    return value


def canonical(value: Any, normalise: Normalise) -> Hashable:
    """Return a hashable form that is equal for two JSON values exactly when they count as equal.

    Texts that look the same are the same, whatever is normalised.
    """
    if isinstance(value, dict):
        return "map", frozenset((key, canonical(one, normalise)) for key, one in value.items())
    if isinstance(value, list):
        return "list", tuple(canonical(one, normalise) for one in value)
    if isinstance(value, str):
        return _canonical_text(value, normalise)
    if value is None or isinstance(value, bool):
        return "literal", {True: "true", False: "false", None: "null"}[value]
    # repr of a float is its shortest exact text, so 0.1 equals the text "0.1".
    return "number", Decimal(repr(value) if isinstance(value, float) else value)


def _canonical_text(text: str, normalise: Normalise) -> Hashable:
    text = normal(text)
    if normalise.strip:
        text = " ".join(text.split())
    if normalise.casefold:
        text = text.casefold()
    if normalise.numbers and text in _LITERALS:
        return "literal", text
    if normalise.numbers and is_number(text):
        return "number", Decimal(text)
    return "text", text.translate(_PUNCTUATION) if normalise.punctuation else text


def is_number(text: str) -> bool:
    """Tell whether a text is a JSON number within the bounds that hold for JSON itself."""
    match = _NUMBER.fullmatch(text) if len(text) <= MAX_DIGITS else None
    if match is None:
        return False
    is_integer = not match.group(1)
    return is_integer or math.isfinite(float(text))


def exact(number: float) -> Fraction:
    """Return a finite number of JSON as the decimal that it is written as: 0.1 is a tenth."""
    return Fraction(Decimal(repr(number)))
