"""Training jobs, their life cycle, their events. All functions work in the caller's transaction."""

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from storage import tasks
from storage.episodes import checked_limit, seq_of
from storage.errors import Conflict, NotFound
from storage.tables import Job, JobEvent, JobStatus
from storage.values import new_id, utcnow

# What may follow what. A status that is no key is final.
TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.QUEUED: frozenset({JobStatus.RUNNING, JobStatus.PAUSED, JobStatus.CANCELLED}),
    JobStatus.RUNNING: frozenset(
        {
            JobStatus.PAUSED,
            JobStatus.SUCCEEDED,
            JobStatus.REJECTED,
            JobStatus.FAILED,
            JobStatus.CANCELLED,
            JobStatus.INTERRUPTED,
        }
    ),
    JobStatus.PAUSED: frozenset(
        {
            JobStatus.QUEUED,
            JobStatus.RUNNING,
            JobStatus.FAILED,
            JobStatus.CANCELLED,
            JobStatus.INTERRUPTED,
        }
    ),
    JobStatus.INTERRUPTED: frozenset(
        {JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.FAILED, JobStatus.CANCELLED}
    ),
}
FINAL = frozenset(JobStatus) - TRANSITIONS.keys()


def create(
    session: Session,
    *,
    task: str,
    trainer: str,
    config: dict[str, Any],
    seed: int,
    trigger: str,
) -> Job:
    """Queues a job; `trigger` says who asked: api, night or cli. Raises NotFound (the task)."""
    tasks.get(session, task)
    last = session.exec(select(sa.func.max(col(Job.seq)))).one() or 0
    job = Job(
        id=new_id("job"),
        seq=last + 1,
        task=task,
        trainer=trainer,
        config=config,
        seed=seed,
        trigger=trigger,
    )
    session.add(job)
    session.flush()
    return job


def get(session: Session, job_id: str) -> Job:
    """The job with that id; raises NotFound."""
    job = session.get(Job, job_id)
    if job is None:
        raise NotFound(f"there is no job {job_id[:80]!r}")
    return job


def page(
    session: Session, task: str | None, cursor: str | None, limit: int
) -> tuple[list[Job], str | None]:
    """Up to `limit` jobs, newest first, and the cursor of the next page (None: the end).

    Raises NotFound for an unknown task, Invalid for a malformed cursor or a limit below 1.
    """
    query = select(Job).order_by(col(Job.seq).desc())
    if task is not None:
        tasks.get(session, task)
        query = query.where(Job.task == task)
    if cursor is not None:
        query = query.where(col(Job.seq) < seq_of(cursor))
    rows = list(session.exec(query.limit(checked_limit(limit) + 1)))
    more = len(rows) > limit
    return rows[:limit], str(rows[limit - 1].seq) if more else None


def set_status(
    session: Session,
    job_id: str,
    new: JobStatus,
    allowed_from: Collection[JobStatus] | None = None,
    *,
    outcome: dict[str, Any] | None = None,
    error: dict[str, Any] | None = None,
    version_id: str | None = None,
) -> Job:
    """Moves a job to a new status, with what is known at that moment.

    `allowed_from` narrows TRANSITIONS, it never widens it. The first start and the end are timed.
    Raises NotFound, and Conflict (nothing changed) for a transition that is not allowed.
    """
    job = get(session, job_id)
    legal = new in TRANSITIONS.get(job.status, frozenset())
    if not legal or (allowed_from is not None and job.status not in allowed_from):
        raise Conflict(f"job {job_id} is {job.status}, it cannot become {new}")
    job.status = JobStatus(new)
    if job.status is JobStatus.RUNNING and job.started_at is None:
        job.started_at = utcnow()
    if job.status in FINAL:
        job.finished_at = utcnow()
    job.outcome = outcome if outcome is not None else job.outcome
    job.error = error if error is not None else job.error
    job.version_id = version_id if version_id is not None else job.version_id
    session.add(job)
    session.flush()
    return job


def set_progress(session: Session, job_id: str, progress: dict[str, Any]) -> Job:
    """Replaces what a job last said about itself; raises NotFound."""
    job = get(session, job_id)
    job.progress = progress
    session.add(job)
    session.flush()
    return job


def append_event(session: Session, job_id: str, type: str, data: dict[str, Any]) -> JobEvent:
    """Adds an event with the job's next number; raises NotFound."""
    get(session, job_id)
    last = session.exec(select(sa.func.max(col(JobEvent.seq))).where(JobEvent.job_id == job_id))
    event = JobEvent(job_id=job_id, seq=(last.one() or 0) + 1, type=type, data=data)
    session.add(event)
    session.flush()
    return event


def events_after(session: Session, job_id: str, seq: int) -> list[JobEvent]:
    """The job's events with a number above `seq` (0: all), in order; raises NotFound."""
    get(session, job_id)
    query = select(JobEvent).where(JobEvent.job_id == job_id, col(JobEvent.seq) > seq)
    return list(session.exec(query.order_by(col(JobEvent.seq))))


def next_queued(session: Session) -> Job | None:
    """The job that has waited longest, or None."""
    query = select(Job).where(Job.status == JobStatus.QUEUED).order_by(col(Job.seq))
    return session.exec(query.limit(1)).one_or_none()


def with_status(session: Session, status: JobStatus) -> list[Job]:
    """All jobs in that status, oldest first."""
    return list(session.exec(select(Job).where(Job.status == status).order_by(col(Job.seq))))


def interrupt_running(session: Session) -> list[Job]:
    """Marks every running job interrupted (the process ends, or ended unasked); returns them."""
    jobs = with_status(session, JobStatus.RUNNING)
    return [set_status(session, job.id, JobStatus.INTERRUPTED) for job in jobs]
