"""Episodes: immutable, idempotent, graded, paged in order of arrival."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlmodel import Session

from storage import episodes, tasks
from storage.db import Database
from storage.episodes import EpisodeDraft, GradeDraft
from storage.errors import Conflict, Invalid, NotFound
from storage.tables import GradeRow, GradeStatus, Task

DRAFT = EpisodeDraft(
    messages=[{"role": "user", "content": "light on"}],
    completion="turn_on()",
    item={"call": {"name": "turn_on"}},
    group="light",
    model="smollm2-135m",
    client_id="phone",
)
GRADE = GradeDraft("g1", "failed", 0.5, 0.01, {"name": 0.5})


@pytest.fixture
def home(session: Session, make_task: Callable[..., Task]) -> Session:
    """A transaction with the task `home`."""
    make_task(session)
    return session


def test_an_episode_is_stored_with_its_grade(
    database: Database, make_task: Callable[..., Task]
) -> None:
    with database.session() as session:
        make_task(session)
        stored, new = episodes.add(session, "home", DRAFT, GRADE)
        assert new
    with database.reading() as session:
        row = episodes.get(session, stored.id)
        assert (row.messages, row.completion, row.item) == (
            DRAFT.messages,
            DRAFT.completion,
            DRAFT.item,
        )
        assert (row.group_key, row.model, row.client_id) == ("light", "smollm2-135m", "phone")
        [(episode, grade)] = episodes.graded(session, "home", "g1")
        assert episode.id == stored.id
        assert (grade.status, grade.score) == (GradeStatus.FAILED, 0.5)
        assert grade.subscores == {"name": 0.5}
        assert row.content_hash == DRAFT.content_hash()


def test_the_same_key_and_content_is_the_same_episode(home: Session) -> None:
    draft = replace(DRAFT, idempotency_key="k")
    first, new = episodes.add(home, "home", draft, GRADE)
    again, new_again = episodes.add(home, "home", draft, replace(GRADE, grader_hash="g2"))
    assert (new, new_again, again.id) == (True, False, first.id)
    assert episodes.count(home, "home") == 1
    assert episodes.graded(home, "home", "g2") == []


@pytest.mark.parametrize(
    "change",
    [
        {"messages": []},
        {"completion": "x"},
        {"item": {}},
        {"group": None},
        {"model": "other"},
        {"client_id": None},
        {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {}}}]},
    ],
)
def test_the_same_key_with_any_other_content_is_a_conflict(
    home: Session, change: dict[str, Any]
) -> None:
    draft = replace(DRAFT, idempotency_key="k")
    episodes.add(home, "home", draft, GRADE)
    with pytest.raises(Conflict, match="idempotency key 'k'"):
        episodes.add(home, "home", replace(draft, **change), GRADE)
    assert episodes.count(home, "home") == 1


def test_a_key_belongs_to_one_task_and_no_key_is_always_new(
    home: Session, make_task: Callable[..., Task]
) -> None:
    make_task(home, "other")
    keyed = replace(DRAFT, idempotency_key="k")
    ids = {
        episodes.add(home, task, draft, GRADE)[0].id
        for task, draft in [("home", keyed), ("other", keyed), ("home", DRAFT), ("home", DRAFT)]
    }
    assert len(ids) == 4


def test_an_unknown_task_or_episode_is_not_found(session: Session) -> None:
    with pytest.raises(NotFound, match="no task"):
        episodes.add(session, "home", DRAFT, GRADE)
    with pytest.raises(NotFound, match="no task"):
        episodes.page(session, "home", None, 1)
    for operation in (episodes.get, episodes.delete):
        with pytest.raises(NotFound, match="no episode 'ep_x'"):
            operation(session, "ep_x")
    with pytest.raises(NotFound):
        episodes.set_grade(session, "ep_x", GRADE)


@pytest.mark.parametrize(
    "change", [{"item": {"x": float("nan")}}, {"completion": "\ud800"}, {"item": {"x": b""}}]
)
def test_what_cannot_be_stored_is_invalid(home: Session, change: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        episodes.add(home, "home", replace(DRAFT, **change), GRADE)
    assert episodes.count(home, "home") == 0


@pytest.mark.parametrize(
    "grade",
    [
        replace(GRADE, status="maybe"),
        replace(GRADE, score=None),
        replace(GRADE, status="errored"),
        replace(GRADE, score=1.5),
        replace(GRADE, score=float("nan")),
    ],
)
def test_a_grade_that_contradicts_itself_is_invalid(home: Session, grade: GradeDraft) -> None:
    with pytest.raises(Invalid):
        episodes.add(home, "home", DRAFT, grade)
    assert episodes.count(home, "home") == 0


def test_an_invalid_grade_leaves_no_episode_behind(
    database: Database, make_task: Callable[..., Task]
) -> None:
    with database.session() as session:
        make_task(session)
    with pytest.raises(Invalid), database.session() as session:
        episodes.add(session, "home", DRAFT, replace(GRADE, status="maybe"))
    with database.reading() as session:
        assert episodes.count(session, "home") == 0


def test_grading_again_replaces_the_same_graders_grade_only(home: Session) -> None:
    episode, _ = episodes.add(home, "home", DRAFT, GRADE)
    errored = GradeDraft("g1", "errored", None, 0.2, error_kind="item", error="no answer")
    episodes.set_grade(home, episode.id, errored)
    row = GradeRow(
        episode_id="", grader_hash="g2", status=GradeStatus.PASSED, score=1.0, seconds=0.1
    )
    episodes.set_grade(home, episode.id, row)
    grades = episodes.grades_of(home, [episode.id, "ep_x"])
    assert [(g.grader_hash, g.status, g.score) for g in grades.pop(episode.id)] == [
        ("g1", GradeStatus.ERRORED, None),
        ("g2", GradeStatus.PASSED, 1.0),
    ]
    assert grades == {}
    first = episodes.grade_of(home, episode.id, "g1")
    assert first is not None
    assert (first.error_kind, first.error, first.subscores) == ("item", "no answer", {})
    assert episodes.grade_of(home, episode.id, "g3") is None


def test_graded_are_those_with_a_grade_of_that_grader(home: Session) -> None:
    episodes.add(home, "home", DRAFT, GRADE)
    second, _ = episodes.add(home, "home", DRAFT, replace(GRADE, grader_hash="g2"))
    assert [row.id for row, _ in episodes.graded(home, "home", "g2")] == [second.id]


def test_deleting_an_episode_deletes_its_grades(home: Session) -> None:
    episode, _ = episodes.add(home, "home", DRAFT, GRADE)
    kept, _ = episodes.add(home, "home", DRAFT, GRADE)
    episodes.delete(home, episode.id)
    assert list(episodes.grades_of(home, [episode.id, kept.id])) == [kept.id]
    with pytest.raises(NotFound):
        episodes.get(home, episode.id)


@pytest.mark.parametrize("limit", range(1, 9))
def test_pages_hold_every_episode_once_in_order_of_arrival(
    home: Session, make_task: Callable[..., Task], limit: int
) -> None:
    make_task(home, "other")
    ids: dict[str | None, list[str]] = {None: [], "home": [], "other": []}
    for task in ("home", "other", "home", "home", "other", "home", "home"):
        stored, _ = episodes.add(home, task, DRAFT, GRADE)
        ids[task].append(stored.id)
        ids[None].append(stored.id)
    for task, expected in ids.items():
        seen: list[str] = []
        cursor: str | None = None
        while True:
            rows, cursor = episodes.page(home, task, cursor, limit)
            assert 0 < len(rows) <= limit
            seen += [row.id for row in rows]
            if cursor is None:
                break
        assert seen == expected


def test_a_page_goes_on_when_the_episode_at_the_cursor_was_deleted(home: Session) -> None:
    ids = [episodes.add(home, "home", DRAFT, GRADE)[0].id for _ in range(4)]
    _, cursor = episodes.page(home, "home", None, 2)
    episodes.delete(home, ids[1])
    rows, after = episodes.page(home, "home", cursor, 2)
    assert ([row.id for row in rows], after) == (ids[2:], None)


@settings(deadline=None)
@given(st.text().filter(lambda text: not (text.isascii() and text.isdigit())))
def test_a_cursor_that_is_none_is_invalid(cursor: str) -> None:
    with pytest.raises(Invalid, match="cursor"):
        episodes.seq_of(cursor)


def test_a_huge_cursor_and_a_limit_below_one_are_invalid(home: Session) -> None:
    with pytest.raises(Invalid):
        episodes.page(home, "home", "9" * 19, 1)
    assert episodes.page(home, "home", "9" * 18, 1) == ([], None)
    with pytest.raises(Invalid, match="limit"):
        episodes.page(home, "home", None, 0)


def test_an_empty_task_has_an_empty_last_page(home: Session) -> None:
    assert episodes.page(home, None, None, 5) == ([], None)
    assert tasks.get(home, "home").name == "home"
