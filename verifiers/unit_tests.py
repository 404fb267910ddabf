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
come from, and not the code's fault:

* right code, which is at `reference` in the item, does not pass: the item is wrong, whatever a
  completion says. Names that setup or tests miss are the code's to define where it passes;
* setup alone takes longer than there is time, or raises with the code and without any, and not for
  want of a name;
* an import in their own lines found nothing, or is of what the sandbox lacks, or they are no Python
  for it;
* a test that uses no name from elsewhere raises in its own line, or takes more than half of the
  time;
* without a reference, a name is missing in their own lines, and the code defines others of those
  that they want. Code that defines none of them does not do what was asked.

Code that overruns its time is errored as `timeout`, code that needs what the sandbox lacks as
`sandbox`, code that lacks a name without a reference as above: none has been judged.
`unjudged: failed` counts all three as failures, which keeps a model from learning that an endless
loop costs less than a wrong answer. What the sandbox covers, and what it lacks, is written in
`verifiers.sandbox`, how code is found in a text in `verifiers.solutions`.
"""

from __future__ import annotations

import builtins
import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
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
from verifiers.carried import NotJson, are_genuine, json_value, same_json, scalar_value
from verifiers.names import binds, may_bind, names_of
from verifiers.python import Timeout, parse
from verifiers.solutions import solution
from verifiers.suites import Call, Check, Snippet, Suite, Tests, checks_of, read_tests
from verifiers.templates import item_value, parse_path
from verifiers.values import is_unicode

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
        description="The code is what defines the names that the tests use, of the blocks fenced"
        " by ``` or ~~~ or, without any, of the text; or all the text.",
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
        checks_of(tests)
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


_MEMORY = 256
"""Of so many suites it is remembered whether right code passes."""


@dataclass(frozen=True)
class UnitTests(Judge[UnitTestsConfig, Suite]):
    """Runs code and tests in a fresh interpreter. `checks`: the tests of the configuration.

    What setup does by itself, and what right code does, is the same every time and found out once.
    """

    checks: tuple[Check, ...]
    _setup_problem: Callable[[], str | None] = field(init=False, repr=False, compare=False)
    _problem_of: Callable[[Suite], str | None] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Remember what is found out."""
        object.__setattr__(self, "_setup_problem", functools.cache(self._find_setup_problem))
        remembered = functools.lru_cache(maxsize=_MEMORY)(self._find_problem)
        object.__setattr__(self, "_problem_of", remembered)

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
            return Suite(self.checks, "config", right_code)
        return Suite(read_tests(item, place), "item", right_code)

    def compare(self, sample: Sample, expected: Suite) -> Outcome:
        """Score the share of tests passed; sub-scores `runs` and `tests`."""
        suite = expected
        if not is_unicode(sample.output_text):
            raise OutputError
        if self.config.setup:
            self._setup_problem()
        if suite.right_code is not None and (problem := self._problem_of(suite)) is not None:
            raise Broken("item", f"the item's reference does not pass: {problem}")
        try:
            return self._judged(self._code(sample.output_text, suite), suite)
        except sandbox.Overran:
            return self._unjudged(
                "timeout", f"the code ran longer than {self.config.timeout_s:g} s"
            )
        except sandbox.NotCovered as error:
            return self._unjudged("sandbox", f"the sandbox does not have {error}")
        except sandbox.Died as error:
            raise Broken("sandbox", "the sandbox died of the code") from error

    def _code(self, text: str, suite: Suite) -> str:
        if self.config.code == "whole":
            return text
        used = names_of((self.config.setup, *suite.codes)).used
        return solution(text, used - sandbox.known_builtins().keys())

    def _judged(self, code: str, suite: Suite) -> Outcome:
        try:
            return self._run(code, suite, lenient=suite.right_code is not None)
        except _SetupRaised:
            if (problem := self._setup_problem()) is not None:
                raise Broken("config", f"setup raises by itself: {problem}") from None
            return self._no_test_passed()
        except _Unclear as unclear:
            about = f"nothing defines '{unclear}', which {_NAMED[unclear.whose]} use"
            return self._unjudged(unclear.whose, f"{about}; a `reference` would show whose it is")

    def _find_problem(self, suite: Suite) -> str | None:
        """Why the suite's right code does not pass, None if it does; raises Broken."""
        started = time.perf_counter()
        try:
            code = self._code(suite.right_code or "", suite)
            outcome = self._run(code, suite)
        except _SetupRaised:
            if (problem := self._setup_problem()) is not None:
                raise Broken("config", f"setup raises by itself: {problem}") from None
            return "setup raises after it"
        except _Unclear as unclear:
            about = f"nothing defines '{unclear}', which {_NAMED[unclear.whose]} use"
            raise Broken(unclear.whose, f"{about}; the reference fails, too") from unclear
        except sandbox.NotCovered as error:
            return f"the sandbox does not have {error}"
        except sandbox.Overran as error:
            raise self._overrun("item", started, "the item's reference takes") from error
        except sandbox.Died as error:
            raise Broken("sandbox", "the sandbox died of the item's reference") from error
        if outcome.passed:
            return None
        share = outcome.subscores["tests"]
        runs = outcome.subscores["runs"]
        return f"{share:.0%} of its tests do" if runs else "it raises by itself"

    def _overrun(self, whose: ErrorKind, started: float, what: str) -> Broken:
        """What to say of our own code that overran: it had the time, or the grade had no more."""
        seconds = self.config.timeout_s
        full = time.perf_counter() - started >= seconds
        return Broken(whose if full else "timeout", f"{what} longer than {seconds:g} s")

    def _no_test_passed(self) -> Outcome:
        return _outcome(self.config.runs_weight, 1.0, 0.0)

    def _find_setup_problem(self) -> str | None:
        """What setup raises without any code, but for a name; raises Broken if it has no end."""
        started = time.perf_counter()
        try:
            with sandbox.session(self.config.timeout_s) as session:
                session.run(self.config.setup)
        except sandbox.Raised as error:
            return str(error) if error.missing is None else None
        except sandbox.NotCovered:
            return None  # which is said when it runs after the code
        except sandbox.Overran as error:
            raise self._overrun("config", started, "setup alone takes") from error
        except sandbox.Died as error:
            raise Broken("sandbox", "the sandbox died of setup") from error
        return None

    def _run(self, code: str, suite: Suite, lenient: bool = False) -> Outcome:
        """Run code and tests. `lenient`: setup and tests are right, so missing names are missed.

        Raises Broken, _Unclear, _SetupRaised, and what of the sandbox does not judge the code.
        """
        names = names_of((self.config.setup, *suite.codes))
        known = sandbox.known_builtins() if names.used else {}
        theirs = {name: known[name] for name in names.used if name in known}
        with sandbox.session(self.config.timeout_s) as session:
            try:
                session.run(code)
            except sandbox.Raised:
                return _outcome(0.0, 0.0, 0.0)
            bound = binds(code, theirs)
            if bound or may_bind(code, names.bound | theirs.keys()):
                return self._no_test_passed()
            if bound is None and not are_genuine(session, theirs):
                return self._no_test_passed()
            wanted = frozenset() if lenient else names.used - theirs.keys()
            passed = self._passed(session, suite, wanted)
            if bound is None and not are_genuine(session, theirs):
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
        return [
            self._holds(session, check, suite.origin, origins, wanted) for check in suite.checks
        ]

    def _holds(
        self,
        session: sandbox.Session,
        check: Check,
        origin: ErrorKind,
        origins: dict[int, ErrorKind],
        wanted: frozenset[str],
    ) -> bool:
        """Whether a test passes; raises Broken for what is wrong with it."""
        started, place = time.perf_counter(), len(session.codes)
        origins[place] = origin
        try:
            if not check.is_call:
                session.run(check.code)
                return True
            if isinstance(check.equals, list | dict):
                value = json_value(session, check.code, check.parts)
            else:
                value = scalar_value(session, check.code)
            return same_json(value, check.equals)
        except NotJson:
            return False
        except (sandbox.Raised, sandbox.NotCovered) as error:
            _blame(error, origins, session, wanted)
            outgrew = isinstance(error, sandbox.OutOfMemory)
            if error.place == place and not outgrew and _stands_alone(check):
                raise Broken(origin, f"a test raises by itself: {error}") from error
            return False
        except sandbox.Overran as error:
            used_s = time.perf_counter() - started
            if used_s >= self.config.timeout_s / 2 and _stands_alone(check):
                raise Broken(origin, "a test overruns by itself") from error
            raise

    def _unjudged(self, kind: ErrorKind, message: str) -> Outcome:
        if self.config.unjudged == "failed":
            return _outcome(0.0, 0.0, 0.0)
        raise Broken(kind, message)


def _stands_alone(check: Check) -> bool:
    """Whether a test uses no name from elsewhere: no code can have a part in what it does."""
    return check.needs <= sandbox.known_builtins().keys()


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


def _outcome(weight: float, runs: float, share: float) -> Outcome:
    score = min(1.0, weight * runs + (1 - weight) * share)
    return Outcome(share == 1, score, {"runs": runs, "tests": share})


def _make(config: UnitTestsConfig) -> UnitTests:
    tests = config.tests
    return UnitTests(config, () if isinstance(tests, str) else checks_of(tests))


UNIT_TESTS = family(UnitTestsConfig, _make)
