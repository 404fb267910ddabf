"""`unit_tests`: the completion is code; tests say whether it does what it should, in a sandbox.

A test is a text, a piece of Python that raises when the code is wrong (`assert add(1, 2) == 3`), or
an object: `{"call": "add(1, 2)", "equals": 3}`. The result of `call` leaves the sandbox before it
is compared (as JSON, tuples being lists), so that no code can pass by what it says of itself: an
object that calls itself equal to everything passes the first kind of test. The tests of the item,
or of the configuration, run one after the other in one interpreter, after the code and `setup`.

Tests are to mean what they say: code that gives builtins which setup or tests use another meaning,
or could do so with their names later (`global`, `exec`), fails. So code under test cannot bear the
name of a builtin. What setup defines stands in the same namespace as the code, and objects can be
changed by whoever has them.

Score = `runs_weight` * runs + (1 - `runs_weight`) * tests, where runs is 1 for code that runs at
all and tests is the share of tests passed. It passes when all tests do. Code that raises fails.

Setup and tests can be wrong themselves, which is errored as `config` or `item`, after where they
come from, and not the code's fault. What they raise is theirs when it was raised in their own
lines, and
* an import there found nothing, or is of what the sandbox lacks, or they are no Python for it;
* setup raises without any code, too, and not for want of a name;
* a name is missing there, which the code could have been asked to define. If `reference` says where
  right code is, and that passes, the name is the code's to define. If right code fails, too, the
  tests are wrong. Without a reference, code that defines none of the names that setup and tests
  want does not do what was asked; where it defines others of them, the name is taken for a mistake
  in the tests.

Code that overruns its time is errored as `timeout`, code that needs what the sandbox lacks as
`sandbox`, code that lacks a name without a reference as above: none has been judged.
`unjudged: failed` counts all three as failures, which keeps a model from learning that an endless
loop costs less than a wrong answer. What the sandbox covers, and what it lacks, is written in
`verifiers.sandbox`, how code is found in a text in `verifiers.blocks`.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, field_validator

from verifiers import sandbox
from verifiers.base import (
    Broken,
    ErrorKind,
    GraderConfig,
    ItemError,
    Judge,
    Outcome,
    OutputError,
    Sample,
    family,
)
from verifiers.blocks import code_of
from verifiers.names import bound_later, names_of
from verifiers.python import Timeout, parse
from verifiers.suites import Call, Snippet, Suite, Tests, check_tests, read_tests
from verifiers.templates import item_value, parse_path
from verifiers.values import Normalise, canonical, is_unicode, json_problem

_EXACTLY = Normalise(casefold=False, strip=False, numbers=False)
_NAMED = {"config": "the configuration's setup or tests", "item": "the item's tests"}


class UnitTestsConfig(GraderConfig):
    """Configuration of `unit_tests`."""

    type: Literal["unit_tests"]
    tests: str | Tests = Field(
        default="tests", description="Path of the tests in the item ({{item.x}} too), or the tests."
    )
    setup: Snippet = Field(default="", description="Code that runs before the tests, for them.")
    code: Literal["fenced", "whole"] = Field(
        default="fenced",
        description="The code is that of the blocks fenced by ``` or ~~~ (those of Python before"
        " others; several are joined), all the text where there is none; or always all the text.",
    )
    reference: str | None = Field(default=None, description="Path of right code in the item.")
    runs_weight: float = Field(default=0.1, ge=0, lt=1)
    unjudged: Literal["errored", "failed"] = Field(
        default="errored",
        description="What code is that overruns its time, or needs what the sandbox lacks, or"
        " lacks a name of which nothing says who should have defined it.",
    )
    timeout_s: Timeout = Field(default=1.0, description="Seconds for code, setup and all tests.")

    @field_validator("tests")
    @classmethod
    def _are_tests(cls, tests: str | list[str | Call]) -> str | list[str | Call]:
        if isinstance(tests, str):
            return ".".join(parse_path(tests))
        check_tests(tests)
        return tests

    @field_validator("setup")
    @classmethod
    def _is_python(cls, setup: str) -> str:
        parse(setup)
        return setup

    @field_validator("reference")
    @classmethod
    def _is_path(cls, text: str | None) -> str | None:
        return None if text is None else ".".join(parse_path(text))


class _Unclear(Exception):
    """A name is missing, and it is not known whether the code should have defined it."""

    def __init__(self, whose: ErrorKind, name: str) -> None:
        super().__init__(name)
        self.whose = whose


class _SetupRaised(Exception):
    """Setup raised after the code, for a reason that may be the code or not."""


@dataclass(frozen=True)
class UnitTests(Judge[UnitTestsConfig, Suite]):
    """Runs code and tests in a fresh interpreter."""

    def answers(self, item: dict[str, Any], expected: Suite) -> Iterable[str]:
        """The item's right code, where the configuration says where it is."""
        del item
        return () if expected.right_code is None else (expected.right_code,)

    def _right_code(self, item: dict[str, Any]) -> str | None:
        if self.config.reference is None:
            return None
        try:
            text = item_value(item, tuple(self.config.reference.split(".")))
        except ItemError:
            return None  # An item without an answer may still have tests.
        return text if isinstance(text, str) else None

    def expect(self, item: dict[str, Any]) -> Suite:
        """The tests, and the right code if there is any."""
        place = self.config.tests
        right_code = self._right_code(item)
        if not isinstance(place, str):
            return Suite(tuple(place), "config", right_code)
        return Suite(read_tests(item, place), "item", right_code)

    def compare(self, sample: Sample, expected: Suite) -> Outcome:
        """Score the share of tests passed; sub-scores `runs` and `tests`."""
        code = self._code(sample.output_text)
        if not is_unicode(code):
            raise OutputError
        try:
            return self._judged(code, expected)
        except sandbox.Overran:
            return self._unjudged(
                "timeout", f"the code ran longer than {self.config.timeout_s:g} s"
            )
        except sandbox.NotCovered as error:
            return self._unjudged("sandbox", f"the sandbox does not have {error}")
        except sandbox.Died as error:
            raise Broken("sandbox", "the sandbox died of the code") from error

    def _code(self, text: str) -> str:
        return code_of(text) if self.config.code == "fenced" else text

    def _judged(self, code: str, suite: Suite) -> Outcome:
        try:
            return self._run(code, suite)
        except _SetupRaised:
            self._check_setup()
            return self._no_test_passed()
        except _Unclear as unclear:
            about = f"nothing defines '{unclear}', which {_NAMED[unclear.whose]} use"
            if suite.right_code is None:
                return self._unjudged(
                    unclear.whose, f"{about}; a `reference` would show whose it is"
                )
            if not self._is_right(suite.right_code, suite):
                raise Broken(unclear.whose, f"{about}; the reference fails, too") from unclear
        try:
            return self._run(code, suite, lenient=True)
        except _SetupRaised:
            return self._no_test_passed()

    def _is_right(self, text: str, suite: Suite) -> bool:
        try:
            return self._run(self._code(text), suite, lenient=True).passed
        except (sandbox.NotCovered, _SetupRaised):
            return False

    def _no_test_passed(self) -> Outcome:
        return _outcome(self.config.runs_weight, 1.0, 0.0)

    def _check_setup(self) -> None:
        """Run setup without any code; raises Broken for what it raises then, but for a name."""
        with sandbox.session(self.config.timeout_s) as session:
            try:
                session.run(self.config.setup)
            except sandbox.Raised as error:
                if error.missing is None:
                    raise Broken("config", f"setup raises by itself: {error}") from error

    def _run(self, code: str, suite: Suite, lenient: bool = False) -> Outcome:
        """Run code and tests. `lenient`: setup and tests are right, so missing names are missed.

        Raises Broken, _Unclear, _SetupRaised, and what of the sandbox does not judge the code.
        """
        names = names_of((self.config.setup, *suite.codes()))
        known = sandbox.known_builtins() if names.used else {}
        theirs = {name: known[name] for name in names.used if name in known}
        with sandbox.session(self.config.timeout_s) as session:
            try:
                session.run(code)
            except sandbox.Raised:
                return _outcome(0.0, 0.0, 0.0)
            if _may_bind(code, names.bound | theirs.keys()) or not _genuine(session, theirs):
                return self._no_test_passed()
            wanted = frozenset() if lenient else names.used - theirs.keys()
            passed = self._passed(session, suite, wanted)
            if "eval" in code and not _genuine(session, theirs):
                return self._no_test_passed()
        return _outcome(self.config.runs_weight, 1.0, sum(passed) / len(passed))

    def _passed(self, session: sandbox.Session, suite: Suite, wanted: frozenset[str]) -> list[bool]:
        """Which tests pass, after setup; raises Broken for what is wrong with these."""
        origins: dict[int, ErrorKind] = {}
        if self.config.setup:
            origins[len(session.codes)] = "config"
            try:
                session.run(self.config.setup)
            except (sandbox.Raised, sandbox.NotCovered) as error:
                _blame(error, origins, session, wanted)
                raise _SetupRaised from error
        passed = []
        for test in suite.tests:
            origins[len(session.codes)] = suite.origin
            try:
                passed.append(_holds(session, test))
            except (sandbox.Raised, sandbox.NotCovered) as error:
                _blame(error, origins, session, wanted)
                passed.append(False)
        return passed

    def _unjudged(self, kind: ErrorKind, message: str) -> Outcome:
        if self.config.unjudged == "failed":
            return _outcome(0.0, 0.0, 0.0)
        raise Broken(kind, message)


def _blame(
    error: sandbox.Raised | sandbox.NotCovered,
    origins: dict[int, ErrorKind],
    session: sandbox.Session,
    wanted: frozenset[str],
) -> None:
    """Return when the code is to blame; raises Broken, _Unclear, or NotCovered where it is not."""
    whose = None if error.place is None else origins.get(error.place)
    if isinstance(error, sandbox.NotCovered):
        if whose is None:
            raise error
        raise Broken(whose, f"the sandbox does not have {error}, which {_NAMED[whose]} use")
    if whose is None:
        return
    if isinstance(error, sandbox.NoModule | sandbox.NoPython):
        raise Broken(whose, f"{_NAMED[whose]} cannot run: {error}")
    missing = error.missing
    if missing is None or missing not in wanted:
        return
    if hasattr(builtins, missing):
        raise Broken(whose, f"the sandbox does not have {missing}, which {_NAMED[whose]} use")
    if any(_defined(session, name) for name in wanted - {missing}):
        raise _Unclear(whose, missing)


def _defined(session: sandbox.Session, name: str) -> bool:
    try:
        session.run(name)
    except sandbox.Raised:
        return False
    return True


def _may_bind(code: str, names: frozenset[str]) -> bool:
    """Whether the functions of the code may bind some of the names when they are called."""
    later = bound_later(code)
    return bool(names) if later is None else not later.isdisjoint(names)


def _genuine(session: sandbox.Session, known: dict[str, Any]) -> bool:
    """Whether builtins have the meaning that they have in a fresh interpreter."""
    if not known:
        return True
    try:
        seen = session.value(f"[{', '.join(known)}]")
    except sandbox.Raised:
        return False
    pairs = zip(seen, known.values(), strict=True)
    return all(type(one) is type(other) and one == other for one, other in pairs)


def _outcome(weight: float, runs: float, share: float) -> Outcome:
    score = min(1.0, weight * runs + (1 - weight) * share)
    return Outcome(share == 1, score, {"runs": runs, "tests": share})


def _holds(session: sandbox.Session, test: str | Call) -> bool:
    if isinstance(test, str):
        session.run(test)
        return True
    return _same(session.value(test.call), test.equals)


def _same(value: Any, wanted: Any) -> bool:
    """Whether a value is a JSON value, tuples being lists.

    The steps are bounded by what is wanted: of a value from the sandbox, whose lists may hold each
    other many times over, no more is looked at.
    """
    if isinstance(wanted, list):
        if not isinstance(value, list | tuple) or len(value) != len(wanted):
            return False
        return all(map(_same, value, wanted))
    if isinstance(wanted, dict):
        if not isinstance(value, dict) or value.keys() != wanted.keys():
            return False
        return all(_same(value[key], one) for key, one in wanted.items())
    if isinstance(value, list | dict) or json_problem(value) is not None:
        return False
    return canonical(value, _EXACTLY) == canonical(wanted, _EXACTLY)


UNIT_TESTS = family(UnitTestsConfig, UnitTests)
