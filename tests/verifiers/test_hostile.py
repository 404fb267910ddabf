"""Thousands of hostile inputs through the pool: no crash, no hang, no wrong status.

Over every grader of the registry, as `test_registry` has them. Graders that misbehave all the same
are in `test_pool`; how long a bomb takes, and what others wait, is measured by
`benchmarks/grading.py`.
"""

from collections.abc import Callable, Iterator
from itertools import groupby

import psutil
import pytest

from tests.verifiers import hostile
from tests.verifiers.hostile import Case
from verifiers import Grade, GraderPool, Sample

DEADLINE_S = 60.0  # of which a machine under load may take a good part


@pytest.fixture(scope="module")
def pool(patient: None) -> Iterator[GraderPool]:
    """The pool that has to take it all."""
    with GraderPool(deadline_s=DEADLINE_S) as made:
        assert made.grade({"type": "string_check"}, Sample(output_text="a"), {"answer": "a"}).passed
        yield made


def said(grade: Grade) -> str:
    """The status, or the kind of error."""
    return grade.error_kind or grade.status.value


def test_there_are_enough_inputs() -> None:
    sources = (hostile.completions, hostile.items, hostile.configurations, hostile.code)
    assert sum(1 for cases in sources for _ in cases()) >= 2000


@pytest.mark.parametrize(
    "cases", [hostile.completions, hostile.items, hostile.configurations, hostile.code]
)
def test_no_hostile_input_has_a_wrong_status(
    pool: GraderPool, cases: Callable[[], Iterator[Case]]
) -> None:
    supervisor = pool._supervisor._process.pid
    wrong = []
    for _, group in groupby(cases(), key=lambda case: id(case.config)):
        asked = list(group)
        pairs = [(Sample(output_text=case.text), case.item) for case in asked]
        grades = pool.grade_many(asked[0].config, pairs)
        wrong += [
            (case.name, said(grade), grade.error)
            for case, grade in zip(asked, grades, strict=True)
            if said(grade) not in case.right
        ]
    assert wrong == []
    assert pool._supervisor._process.pid == supervisor
    workers = psutil.Process(supervisor).children()
    assert len(workers) > 0
    assert all(one.status() != psutil.STATUS_ZOMBIE for one in workers)
