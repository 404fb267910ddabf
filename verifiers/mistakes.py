"""Where a configuration is wrong: pydantic's errors as one dotted path and a sentence.

Pydantic puts the names of union members into the place of an error. They name nothing in the
configuration, so the path is walked along the configuration itself. Where a value fits no member of
a union, the member that was got furthest into is taken to be the one that was meant.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

Path = tuple[str | int, ...]


def first_mistake(error: ValidationError, config: Any) -> tuple[str, str]:
    """Return the dotted path of the first mistake in a configuration, and what is wrong there."""
    found = [
        (_path(one, config), one["msg"].removeprefix("Value error, "))
        for one in error.errors(include_url=False, include_input=False)
    ]
    first, _ = found[0]
    meant = max((path for path, _ in found if path[: len(first)] == first), key=len)
    messages = dict.fromkeys(message for path, message in found if path == meant)
    return ".".join(map(str, meant)), " or ".join(messages)


def _path(error: Any, config: Any) -> Path:
    """The steps of an error's place that lead somewhere in the configuration."""
    path: list[str | int] = []
    value = config
    for step in error["loc"]:
        if _leads(value, step):  # else it is the name of a union's member
            value = value[step]
            path.append(step)
    if error["type"] == "missing":
        path.append(error["loc"][-1])
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        path.append(error["ctx"]["discriminator"].strip("'"))
    return tuple(path)


def _leads(value: Any, step: str | int) -> bool:
    if isinstance(value, dict):
        return step in value
    return isinstance(value, list) and isinstance(step, int) and step < len(value)
