"""Which version is active: one at most, and rolling back is a stack."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlmodel import Session

from storage import tasks, versions
from storage.db import Database
from storage.errors import Conflict, Invalid, NotFound
from storage.tables import Expert, Task, Version, VersionState

Make = Callable[..., Version]


@pytest.fixture
def home(session: Session, make_task: Callable[..., Task]) -> Session:
    """A transaction with the task `home`."""
    make_task(session)
    return session


def _states(session: Session) -> list[str]:
    return [version.state.value for version in versions.list_versions(session, "home")]


def test_versions_are_numbered_candidates(home: Session, make_version: Make) -> None:
    first, second = make_version(home, 11), make_version(home, 12, parent_id=f"{11:064x}")
    assert (first.number, second.number, second.parent_id) == (1, 2, first.id)
    assert _states(home) == ["candidate", "candidate"]
    assert versions.get(home, first.id) == first
    assert versions.resolve(home, "home", 2) == second
    assert (first.bytes, first.manifest) == (10, {"number": 11})
    assert versions.active(home, "home") is None


def test_the_same_files_are_the_same_version(
    home: Session, make_task: Callable[..., Task], make_version: Make
) -> None:
    first = make_version(home, 1)
    assert make_version(home, 1) is first
    make_task(home, "other")
    with pytest.raises(Conflict, match="belongs to task 'home'"):
        make_version(home, 1, task="other")
    assert [version.id for version in versions.list_versions(home)] == [first.id]


def test_a_number_is_never_given_out_twice(home: Session, make_version: Make) -> None:
    make_version(home, 1)
    versions.delete(home, make_version(home, 2).id)
    assert make_version(home, 3).number == 3
    with pytest.raises(NotFound, match="no expert version 2"):
        versions.resolve(home, "home", 2)


def test_an_expert_is_of_the_kind_of_its_newest_version(home: Session, make_version: Make) -> None:
    make_version(home, 1)
    make_version(home, 2, kind="lora")
    expert = home.get(Expert, "home")
    assert expert is not None
    assert (expert.kind, expert.last_number) == ("lora", 2)


def test_activating_retires_the_one_before(home: Session, make_version: Make) -> None:
    first, second = make_version(home, 1), make_version(home, 2)
    versions.activate(home, first.id)
    assert versions.active(home, "home") == first
    assert first.activated_at is not None
    versions.activate(home, second.id)
    assert versions.active(home, "home") == second
    assert _states(home) == ["retired", "active"]


def test_activating_the_active_version_changes_nothing(home: Session, make_version: Make) -> None:
    first = make_version(home, 1)
    at = versions.activate(home, first.id).activated_at
    assert versions.activate(home, first.id).activated_at == at
    assert versions.rollback(home, "home") is None


def test_a_rejected_version_cannot_be_activated(home: Session, make_version: Make) -> None:
    first = make_version(home, 1)
    assert versions.reject(home, first.id).state is VersionState.REJECTED
    with pytest.raises(Conflict, match="home@1 was rejected"):
        versions.activate(home, first.id)


def test_only_a_candidate_can_be_rejected(home: Session, make_version: Make) -> None:
    first = make_version(home, 1)
    versions.activate(home, first.id)
    with pytest.raises(Conflict, match="home@1 is active"):
        versions.reject(home, first.id)


def test_rolling_back_goes_through_what_was_active_down_to_the_base(
    home: Session, make_version: Make
) -> None:
    rows = [make_version(home, n) for n in range(3)]
    for row in rows:
        versions.activate(home, row.id)
    assert versions.rollback(home, "home") == rows[1]
    assert _states(home) == ["retired", "active", "retired"]
    assert versions.rollback(home, "home") == rows[0]
    assert versions.rollback(home, "home") is None
    assert tasks.get(home, "home").active_version_id is None
    assert _states(home) == ["retired"] * 3
    with pytest.raises(Conflict, match="no active expert"):
        versions.rollback(home, "home")


def test_a_version_that_was_rolled_back_is_not_what_the_next_one_goes_back_to(
    home: Session, make_version: Make
) -> None:
    rows = [make_version(home, n) for n in range(4)]
    for row in rows[:3]:
        versions.activate(home, row.id)
    versions.rollback(home, "home")
    versions.activate(home, rows[3].id)
    assert versions.rollback(home, "home") == rows[1]


def test_deleting_a_version_takes_it_out_of_the_history(home: Session, make_version: Make) -> None:
    first, second = make_version(home, 1), make_version(home, 2)
    for version_id in (first.id, second.id, first.id):
        versions.activate(home, version_id)
    versions.delete(home, second.id)
    assert versions.rollback(home, "home") is None


def test_the_active_version_cannot_be_deleted(home: Session, make_version: Make) -> None:
    first = make_version(home, 1)
    versions.activate(home, first.id)
    with pytest.raises(Conflict, match="home@1 is active"):
        versions.delete(home, first.id)
    versions.rollback(home, "home")
    versions.delete(home, first.id)
    assert versions.list_versions(home) == []


def test_an_activation_that_fails_half_way_did_not_happen(
    database: Database, make_task: Callable[..., Task], make_version: Make
) -> None:
    with database.session() as session:
        make_task(session)
        ids = [make_version(session, n).id for n in (1, 2)]
        versions.activate(session, ids[0])
    with pytest.raises(ZeroDivisionError), database.session() as session:
        versions.activate(session, ids[1])
        raise ZeroDivisionError
    with database.session() as session:
        assert _states(session) == ["active", "candidate"]
        assert versions.rollback(session, "home") is None


def test_what_is_unknown_is_not_found(session: Session, make_version: Make) -> None:
    unknown: list[Callable[[], Any]] = [
        lambda: make_version(session, 1),
        lambda: versions.list_versions(session, "home"),
        lambda: versions.resolve(session, "home", 1),
        lambda: versions.active(session, "home"),
        lambda: versions.rollback(session, "home"),
        lambda: versions.get(session, "x"),
        lambda: versions.activate(session, "x"),
        lambda: versions.reject(session, "x"),
        lambda: versions.delete(session, "x"),
    ]
    for operation in unknown:
        with pytest.raises(NotFound):
            operation()


def test_an_id_must_be_a_sha256(home: Session) -> None:
    with pytest.raises(Invalid, match="sha256"):
        versions.add(
            home,
            id="../x",
            task="home",
            kind="spectral",
            base_model="m",
            base_hash="b",
            basis_hash=None,
            nbytes=1,
            manifest={},
        )


STEPS = st.lists(
    st.tuples(st.sampled_from(["activate", "rollback", "delete"]), st.integers(0, 3)), max_size=25
)


@given(STEPS)
@settings(max_examples=40, deadline=None)
def test_any_history_agrees_with_a_plain_stack(
    migrated: Path, steps: list[tuple[str, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(migrated, Path(folder) / "n.db")
        database = Database(Path(folder) / "n.db")
        with database.session() as session:
            _follow(session, steps)
        database.close()


def _follow(session: Session, steps: list[tuple[str, int]]) -> None:
    """Runs the steps on storage and on a list of version ids, comparing after each."""
    tasks.create(session, name="home", grader={}, grader_hash="g", base_model="m")
    stack: list[str] = []
    for action, which in steps:
        version = versions.add(
            session,
            id=f"{which:064x}",
            task="home",
            kind="spectral",
            base_model="m",
            base_hash="b",
            basis_hash=None,
            nbytes=1,
            manifest={},
        )
        if action == "activate":
            versions.activate(session, version.id)
            if stack[-1:] != [version.id]:
                stack.append(version.id)
        elif action == "rollback" and stack:
            current = stack[-1]
            while stack and stack[-1] == current:
                stack.pop()
            versions.rollback(session, "home")
        elif action == "delete" and stack[-1:] != [version.id]:
            stack = [entry for entry in stack if entry != version.id]
            versions.delete(session, version.id)
        active = versions.active(session, "home")
        assert (active.id if active else None) == (stack[-1] if stack else None)
        states = [row.state for row in versions.list_versions(session, "home")]
        assert states.count(VersionState.ACTIVE) == bool(stack)
