"""The grades of a task under one grader: counted, the missing ones found, stored."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlmodel import Session

from storage import episodes, grades, tasks
from storage.db import Database
from storage.episodes import EpisodeDraft, GradeDraft
from storage.errors import Invalid, NotFound
from storage.grades import Counts, FrequentError
from storage.tables import Task

DRAFT = EpisodeDraft(messages=[{"role": "user", "content": "light on"}], completion="on")
PASSED = GradeDraft("g1", "passed", 1.0, 0.0)
FAILED = GradeDraft("g1", "failed", 0.5, 0.0)


def errored(kind: str, error: str = "no answer") -> GradeDraft:
    return GradeDraft("g1", "errored", None, 0.0, error_kind=kind, error=error)


GRADES = [PASSED, FAILED, errored("item"), errored("timeout"), replace(PASSED, grader_hash="g2")]


@pytest.fixture
def home(session: Session, make_task: Callable[..., Task]) -> Session:
    """A transaction with the task `home`."""
    make_task(session)
    return session


def add(session: Session, *given: GradeDraft, task: str = "home") -> list[str]:
    """One episode for each grade; their ids."""
    return [episodes.add(session, task, DRAFT, grade)[0].id for grade in given]


def everything_waiting(session: Session, digest: str, limit: int, errored: bool) -> list[str]:
    """All that waits, asked for in steps of `limit`."""
    ids: list[str] = []
    after = 0
    while rows := grades.waiting(
        session, "home", digest, after=after, limit=limit, errored=errored
    ):
        assert len(rows) <= limit
        after = rows[-1].seq
        ids += [row.id for row in rows]
    return ids


# The row of each episode says which grades it has: one of GRADES for each position.
histories = st.lists(st.sampled_from(range(len(GRADES))), max_size=12)


@settings(deadline=None, max_examples=30)
@given(histories, st.integers(1, 5))
def test_counts_and_what_waits_agree_with_a_recount(
    migrated: Path, history: list[int], limit: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = Database(Path(shutil.copy(migrated, folder)))
        with database.session() as session:
            for name in ("home", "other"):
                tasks.create(session, name=name, grader={}, grader_hash="g1", base_model="base")
            ids = []
            for number in history:
                ids += add(session, GRADES[number])
                add(session, GRADES[0], task="other")
            statuses = Counter(history)
            expected = Counts(
                passed=statuses[0],
                failed=statuses[1],
                errored={k: statuses[n] for n, k in ((2, "item"), (3, "timeout")) if statuses[n]},
                ungraded=statuses[4],
            )
            assert grades.counts(session, "home", "g1") == expected
            assert expected.graded + expected.ungraded == len(history)
            for retried, numbers in ((False, {4}), (True, {2, 3, 4})):
                assert everything_waiting(session, "g1", limit, retried) == [
                    id for id, number in zip(ids, history, strict=True) if number in numbers
                ]
            last = [(row.id, grade) for row, grade in grades.newest(session, "home", "g1", limit)]
            assert [id for id, _ in last] == ids[-limit:]
            assert [grade is None for _, grade in last] == [n == 4 for n in history[-limit:]]
        database.close()


def test_the_error_share_is_of_what_was_graded() -> None:
    assert Counts(passed=1, failed=2, errored={"item": 1}, ungraded=99).error_share == 0.25
    assert Counts(ungraded=3).error_share is None


def test_the_most_frequent_error_is_named_with_its_count(home: Session) -> None:
    assert grades.most_frequent_error(home, "home", "g1") is None
    add(home, PASSED, errored("item", "b"), errored("timeout", "a"), errored("item", "b"))
    add(home, *[replace(errored("item", "c"), grader_hash="g2")] * 5)
    assert grades.most_frequent_error(home, "home", "g1") == FrequentError("item", "b", 2)


def test_of_errors_that_are_equally_frequent_always_the_same_is_named(home: Session) -> None:
    add(home, errored("item", "z"), errored("item", "a"), errored("item", "m"))
    assert grades.most_frequent_error(home, "home", "g1") == FrequentError("item", "a", 1)


def test_storing_skips_episodes_that_are_gone_and_keeps_the_other_graders_grades(
    home: Session,
) -> None:
    [id] = add(home, PASSED)
    new = replace(FAILED, grader_hash="g2")
    assert grades.store(home, "g2", {id: new, "ep_gone": new}) == 1
    [both] = episodes.grades_of(home, [id, "ep_gone"]).values()
    assert {(grade.grader_hash, grade.status.value) for grade in both} == {
        ("g1", "passed"),
        ("g2", "failed"),
    }


def test_storing_again_replaces_the_same_graders_grades(home: Session) -> None:
    ids = add(home, PASSED, errored("timeout"), replace(PASSED, grader_hash="g2"))
    assert grades.store(home, "g1", dict.fromkeys(ids, FAILED)) == 3
    assert grades.counts(home, "home", "g1") == Counts(failed=3)
    assert [grade.status.value for grade in episodes.grades_of(home, [ids[2]])[ids[2]]] == [
        "passed",
        "failed",
    ]


def test_a_grade_that_contradicts_itself_is_invalid(home: Session) -> None:
    [id] = add(home, PASSED)
    with pytest.raises(Invalid):
        grades.store(home, "g1", {id: replace(PASSED, score=None)})


def test_an_unknown_task_is_not_found_and_a_limit_below_one_invalid(home: Session) -> None:
    for error, task, limit in ((NotFound, "other", 1), (Invalid, "home", 0)):
        with pytest.raises(error):
            grades.newest(home, task, "g1", limit)
        with pytest.raises(error):
            grades.waiting(home, task, "g1", after=0, limit=limit, errored=False)
