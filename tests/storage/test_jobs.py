"""The life cycle of a job and its numbered events."""

import itertools
from collections.abc import Callable

import pytest
from sqlmodel import Session

from storage import jobs
from storage.errors import Conflict, Invalid, NotFound
from storage.tables import Job, JobStatus, Task

S = JobStatus
# Written out once more, independently of the table under test.
LEGAL = {
    (S.QUEUED, S.RUNNING), (S.QUEUED, S.PAUSED), (S.QUEUED, S.CANCELLED),
    (S.RUNNING, S.PAUSED), (S.RUNNING, S.SUCCEEDED), (S.RUNNING, S.REJECTED),
    (S.RUNNING, S.FAILED), (S.RUNNING, S.CANCELLED), (S.RUNNING, S.INTERRUPTED),
    (S.PAUSED, S.QUEUED), (S.PAUSED, S.RUNNING), (S.PAUSED, S.FAILED),
    (S.PAUSED, S.CANCELLED), (S.PAUSED, S.INTERRUPTED),
    (S.INTERRUPTED, S.QUEUED), (S.INTERRUPTED, S.RUNNING),
    (S.INTERRUPTED, S.FAILED), (S.INTERRUPTED, S.CANCELLED),
}  # fmt: skip


@pytest.fixture
def home(session: Session, make_task: Callable[..., Task]) -> Session:
    """A transaction with the task `home`."""
    make_task(session)
    return session


def _job(session: Session, task: str = "home", status: JobStatus = S.QUEUED) -> Job:
    job = jobs.create(
        session, task=task, trainer="fura_s", config={"sigma": 0.04}, seed=7, trigger="api"
    )
    job.status = status
    session.flush()
    return job


def test_a_new_job_is_queued_with_its_config(home: Session) -> None:
    job = jobs.get(home, _job(home).id)
    assert (job.status, job.trainer, job.config) == (S.QUEUED, "fura_s", {"sigma": 0.04})
    assert (job.seed, job.trigger, job.progress) == (7, "api", {})
    assert (job.outcome, job.error, job.version_id) == (None, None, None)
    assert (job.started_at, job.finished_at) == (None, None)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(S, S)))
def test_a_transition_happens_exactly_when_it_is_legal(
    home: Session, old: JobStatus, new: JobStatus
) -> None:
    job = _job(home, status=old)
    if (old, new) in LEGAL:
        assert jobs.set_status(home, job.id, new).status is new
        return
    with pytest.raises(Conflict, match=f"is {old}, it cannot become {new}"):
        jobs.set_status(home, job.id, new, outcome={"x": 1})
    assert (jobs.get(home, job.id).status, job.outcome) == (old, None)


def test_allowed_from_narrows_and_never_widens(home: Session) -> None:
    job = _job(home)
    with pytest.raises(Conflict):
        jobs.set_status(home, job.id, S.RUNNING, {S.PAUSED})
    with pytest.raises(Conflict):
        jobs.set_status(home, job.id, S.SUCCEEDED, {S.QUEUED})
    assert jobs.set_status(home, job.id, S.RUNNING, {S.QUEUED}).status is S.RUNNING


def test_final_are_the_four_ends() -> None:
    assert {S.SUCCEEDED, S.REJECTED, S.FAILED, S.CANCELLED} == jobs.FINAL


def test_the_first_start_and_the_end_are_timed(home: Session) -> None:
    job = _job(home)
    started = jobs.set_status(home, job.id, S.RUNNING).started_at
    assert started is not None
    jobs.set_status(home, job.id, S.INTERRUPTED)
    assert jobs.set_status(home, job.id, S.RUNNING).started_at == started
    assert job.finished_at is None
    jobs.set_status(home, job.id, S.REJECTED, outcome={"reason": "not better"})
    assert job.finished_at is not None
    assert job.finished_at >= started


def test_outcome_error_and_version_are_kept_once_known(
    home: Session, make_version: Callable[..., object]
) -> None:
    job = _job(home, status=S.RUNNING)
    make_version(home, 1)
    jobs.set_status(home, job.id, S.PAUSED, error={"message": "hot"})
    jobs.set_status(home, job.id, S.RUNNING)
    jobs.set_status(home, job.id, S.SUCCEEDED, outcome={"p": 0.1}, version_id=f"{1:064x}")
    assert (job.error, job.outcome, job.version_id) == (
        {"message": "hot"},
        {"p": 0.1},
        f"{1:064x}",
    )


def test_progress_is_replaced(home: Session) -> None:
    job = _job(home)
    jobs.set_progress(home, job.id, {"iteration": 1, "eta_s": 5})
    assert jobs.set_progress(home, job.id, {"iteration": 2}).progress == {"iteration": 2}


def test_events_are_numbered_within_their_job(home: Session) -> None:
    first, second = _job(home), _job(home)
    for number in range(3):
        jobs.append_event(home, first.id, "progress", {"n": number})
    jobs.append_event(home, second.id, "progress", {"n": 9})
    assert [(e.seq, e.data) for e in jobs.events_after(home, first.id, 0)] == [
        (1, {"n": 0}),
        (2, {"n": 1}),
        (3, {"n": 2}),
    ]
    assert [e.seq for e in jobs.events_after(home, first.id, 2)] == [3]
    assert jobs.events_after(home, first.id, 3) == []
    assert [e.seq for e in jobs.events_after(home, second.id, 0)] == [1]


def test_the_job_that_waited_longest_is_next(home: Session) -> None:
    assert jobs.next_queued(home) is None
    first, second = _job(home), _job(home)
    assert jobs.next_queued(home) == first
    jobs.set_status(home, first.id, S.RUNNING)
    assert jobs.next_queued(home) == second


def test_only_running_jobs_are_interrupted(home: Session) -> None:
    stored = {status: _job(home, status=status).id for status in S}
    assert [job.id for job in jobs.interrupt_running(home)] == [stored[S.RUNNING]]
    for status, job_id in stored.items():
        expected = S.INTERRUPTED if status is S.RUNNING else status
        assert jobs.get(home, job_id).status is expected
    assert [job.id for job in jobs.with_status(home, S.INTERRUPTED)] == [
        stored[S.RUNNING],
        stored[S.INTERRUPTED],
    ]
    assert jobs.interrupt_running(home) == []


@pytest.mark.parametrize("limit", range(1, 7))
def test_pages_hold_every_job_once_newest_first(
    home: Session, make_task: Callable[..., Task], limit: int
) -> None:
    make_task(home, "other")
    made = [(task, _job(home, task).id) for task in ("home", "other", "home", "home", "other")]
    for task in (None, "home", "other"):
        expected = [job_id for owner, job_id in reversed(made) if task in (None, owner)]
        seen: list[str] = []
        cursor: str | None = None
        while True:
            rows, cursor = jobs.page(home, task, cursor, limit)
            seen += [row.id for row in rows]
            if cursor is None:
                break
        assert seen == expected


def test_what_is_unknown_is_not_found(session: Session) -> None:
    with pytest.raises(NotFound, match="no task"):
        _job(session)
    with pytest.raises(NotFound, match="no task"):
        jobs.page(session, "home", None, 1)
    with pytest.raises(NotFound, match="no job 'job_x'"):
        jobs.get(session, "job_x")
    with pytest.raises(NotFound):
        jobs.set_status(session, "job_x", S.RUNNING)
    with pytest.raises(NotFound):
        jobs.append_event(session, "job_x", "a", {})
    with pytest.raises(NotFound):
        jobs.events_after(session, "job_x", 0)


def test_a_page_needs_a_real_cursor_and_a_limit(session: Session) -> None:
    with pytest.raises(Invalid):
        jobs.page(session, None, "newest", 1)
    with pytest.raises(Invalid):
        jobs.page(session, None, None, 0)
