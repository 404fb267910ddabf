"""`python`: a function of the user's own says how good a completion is, in a sandbox.

The source defines `grade(sample, item)`, which returns a score in [0, 1]; `sample` is a dict with
`output_text`, `output_json` (None where the text is no JSON) and `output_tools` (dicts with `name`
and `arguments`), `item` the episode's item. A score of `pass_threshold` or more passes. The source
may define `reference(item)`, which returns a completion that passes, or None.

What the function raises, and anything but a number in [0, 1], is the configuration's error: it says
nothing about the completion. So does a grade that overruns its time. Of what the source says when
it raises, one short line is shown, without control characters: completions and items may be in it.
What the sandbox covers, and what it lacks, is written in `verifiers.sandbox`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from verifiers import sandbox
from verifiers.base import (
    Broken,
    Grader,
    GraderConfig,
    Judge,
    Outcome,
    OutputError,
    Sample,
    family,
)
from verifiers.parsing import Malformed, parse_json
from verifiers.values import is_unicode, json_problem

MAX_SOURCE_CHARS = 65_536


def _honoured(timeout_s: float) -> float:
    if timeout_s > sandbox.MAX_TIMEOUT_S:
        raise ValueError(
            f"is at most {sandbox.MAX_TIMEOUT_S:g}, because every grade is ended after 2 s:"
            " lower it, and have the code or its tests do less"
        )
    return timeout_s


Timeout = Annotated[
    float,
    Field(ge=0.1, json_schema_extra={"maximum": sandbox.MAX_TIMEOUT_S}),
    AfterValidator(_honoured),
]
"""Seconds for a grade that a pool with its usual deadline can honour."""


class PythonConfig(GraderConfig):
    """Configuration of `python`."""

    type: Literal["python"]
    source: str = Field(
        max_length=MAX_SOURCE_CHARS,
        description="Python that defines grade(sample, item), which returns a score in [0, 1].",
    )
    pass_threshold: float = Field(default=1.0, gt=0, le=1, description="The least passing score.")
    timeout_s: Timeout = Field(default=1.0, description="Seconds for a grade.")

    @field_validator("source")
    @classmethod
    def _defines_grade(cls, source: str) -> str:
        function = _functions(source).get("grade")
        if function is None:
            raise ValueError("does not define a function grade(sample, item)")
        if not _takes(function, 2):
            raise ValueError(f"line {function.lineno}: grade takes two arguments: sample, item")
        return source


@dataclass(frozen=True)
class Python(Judge[PythonConfig, dict[str, Any]]):
    """Calls the source's functions, each time in a fresh interpreter."""

    writes_references: bool

    def expect(self, item: dict[str, Any]) -> dict[str, Any]:
        """The item as it is: the source reads it."""
        return item

    def answers(self, item: dict[str, Any], expected: dict[str, Any]) -> Iterable[str]:
        """What the source's `reference` returns, if it defines one."""
        del expected
        if not self.writes_references:
            return ()
        try:
            text = self._call("reference(item)", item=item)
        except Broken:
            return ()  # The grade of any completion says what is wrong.
        return (text,) if isinstance(text, str) else ()

    def compare(self, sample: Sample, expected: dict[str, Any]) -> Outcome:
        """What the source's `grade` returns."""
        score = self._call("grade(sample, item)", sample=_plain(sample), item=expected)
        if not isinstance(score, int | float):
            raise Broken("config", f"grade returned a {type(score).__name__}, not a number")
        if not 0 <= score <= 1:
            raise Broken("config", "grade returned a number outside of [0, 1]")
        return Outcome(score >= self.config.pass_threshold, float(score))

    def _call(self, call: str, **inputs: Any) -> Any:
        """Run the source and a call of what it defines; raises Broken."""
        try:
            with sandbox.session(self.config.timeout_s) as session:
                session.run(self.config.source)
                return session.value(call, **inputs)
        except sandbox.OutOfMemory as error:
            raise Broken("sandbox", f"the source ran out of memory: {error}") from error
        except sandbox.Raised as error:
            place = "" if error.line is None else f" (line {error.line})"
            raise Broken("config", f"the source raised {error}{place}") from error
        except sandbox.NotCovered as error:
            raise Broken("config", f"the sandbox does not have {error}") from error
        except sandbox.Overran as error:
            message = f"the source took longer than {self.config.timeout_s:g} s"
            raise Broken("timeout", message) from error
        except sandbox.Died as error:
            raise Broken("sandbox", "the sandbox died of the source") from error


def _plain(sample: Sample) -> dict[str, Any]:
    """The sample as the source sees it; raises OutputError for what no model can have said."""
    tools = [{"name": call.name, "arguments": call.arguments} for call in sample.output_tools]
    if not is_unicode(sample.output_text) or json_problem(tools) is not None:
        raise OutputError
    try:
        value = parse_json(sample.output_text)
    except Malformed:
        value = None
    if json_problem(value) is not None:  # escapes that are no Unicode
        value = None
    return {"output_text": sample.output_text, "output_json": value, "output_tools": tools}


def _functions(source: str) -> dict[str, ast.FunctionDef]:
    """The functions that a source defines at its top; raises ValueError for what is no Python."""
    body = parse(source).body
    return {one.name: one for one in body if isinstance(one, ast.FunctionDef)}


def _takes(function: ast.FunctionDef, count: int) -> bool:
    """Whether a function can be called with so many positional arguments."""
    args = function.args
    most = len(args.posonlyargs) + len(args.args)
    least = most - len(args.defaults)
    named = any(default is None for default in args.kw_defaults)
    return least <= count and (count <= most or args.vararg is not None) and not named


def parse(source: str) -> ast.Module:
    """Parse Python; raises ValueError with the line."""
    try:
        return ast.parse(source)
    except SyntaxError as error:
        place = "" if error.lineno is None else f"line {error.lineno}: "
        raise ValueError(f"is not Python: {place}{error.msg}") from error
    except (RecursionError, MemoryError, ValueError) as error:
        raise ValueError("is not Python: nested too deep, or with a null character") from error


def _make(config: PythonConfig) -> Grader:
    reference = _functions(config.source).get("reference")
    return Python(config, reference is not None and _takes(reference, 1))


PYTHON = family(PythonConfig, _make)
