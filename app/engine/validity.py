"""Whether a JSON value fits a schema, told again once it is written, in bounded time.

A schema is taken when both can be done with it: decoding under it, and checking what came of it.
"""

from __future__ import annotations

from typing import Any

from app.engine import schema as enforceable
from app.engine.schema import GrammarError
from verifiers.schemas import SchemaProblem, check_schema
from verifiers.validation import TooComplex, problems

Json = dict[str, Any]


def checked_schema(schema: Json) -> Json:
    """The schema without the name of its dialect; raises GrammarError with what is wrong where.

    Read as draft 2020-12: what an older draft means otherwise is refused.
    """
    plain = {keyword: value for keyword, value in schema.items() if keyword != "$schema"}
    enforceable.check_schema(plain)
    try:
        check_schema(plain, check_formats=False)
    except SchemaProblem as problem:
        place = f"{problem.path}: " if problem.path else ""
        raise GrammarError(f"{place}{problem}") from problem
    return plain


def breach(schema: Json, value: Any) -> str | None:
    """How a value breaks a checked schema, None if it does not."""
    try:
        found = problems(schema, value, check_formats=False)
    except TooComplex:
        return "it is too complex to be checked"
    if not found:
        return None
    place = ".".join(map(str, found[0].path)) or "its top"
    return f"{found[0].keyword} does not hold at {place}"
