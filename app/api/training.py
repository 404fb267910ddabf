"""Training jobs: started, watched, cancelled, paused and resumed."""

import time
from collections.abc import AsyncIterator
from typing import Annotated

import anyio
from fastapi import APIRouter, Header, Query, status
from fastapi.responses import StreamingResponse
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from app.api import sse
from app.api.bodies import JsonRoute
from app.api.errors import validation_error
from app.api.schemas import JobCreate, JobEventPublic, JobPublic
from app.api.wire import Listed
from app.security import Name
from app.state import Parts, Running
from storage import jobs
from storage.jobs import FINAL
from storage.tables import Job, JobEvent

router = APIRouter(prefix="/training/jobs", route_class=JsonRoute)

POLL_S = 0.25
KEEP_ALIVE_S = 15.0


def public(job: Job) -> JobPublic:
    """A job as clients see it."""
    return JobPublic.model_validate(job, from_attributes=True)


@router.post("", status_code=status.HTTP_201_CREATED)
def create(body: JobCreate, parts: Running) -> JobPublic:
    """Queues a training run of a task."""
    try:
        job = parts.jobs.enqueue(body.task, body.trigger, body.config, body.seed)
    except ValidationError as error:
        raise validation_error(error.errors(), "config") from error
    return public(job)


@router.get("")
def list_page(
    parts: Running,
    task: Annotated[Name | None, Query()] = None,
    cursor: Annotated[str | None, Query(max_length=32)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Listed[JobPublic]:
    """Jobs, the newest first."""
    with parts.database.reading() as session:
        rows, following = jobs.page(session, task, cursor, limit)
        return Listed(data=[public(row) for row in rows], next_cursor=following)


@router.get("/{job_id}")
def get(job_id: str, parts: Running) -> JobPublic:
    """One job."""
    with parts.database.reading() as session:
        return public(jobs.get(session, job_id))


@router.post("/{job_id}/cancel")
def cancel(job_id: str, parts: Running) -> JobPublic:
    """Ends a job for good; a running one ends after its current step."""
    return public(parts.jobs.cancel(job_id))


@router.post("/{job_id}/pause")
def pause(job_id: str, parts: Running) -> JobPublic:
    """Stops a job after its current step, to be resumed later."""
    return public(parts.jobs.pause(job_id))


@router.post("/{job_id}/resume")
def resume(job_id: str, parts: Running) -> JobPublic:
    """Lets a paused job go on where it stopped."""
    return public(parts.jobs.resume(job_id))


@router.get("/{job_id}/events")
def events(
    job_id: str,
    parts: Running,
    last_event_id: Annotated[int, Header(ge=0)] = 0,
) -> StreamingResponse:
    """The job's events as they happen, from the one after `Last-Event-ID` on.

    The stream ends with an event `end`, whose data is the finished job. It also ends, without that
    event, when the service shuts down.
    """
    with parts.database.reading() as session:
        jobs.get(session, job_id)
    return sse.EventStream(_follow(parts, job_id, last_event_id))


async def _follow(parts: Parts, job_id: str, seen: int) -> AsyncIterator[str]:
    """Server-sent events of a job after number `seen`, until it is final."""
    quiet_since = time.monotonic()
    yield sse.KEEP_ALIVE  # the headers go out at once
    while not parts.stopping.is_set():
        job, fresh = await run_in_threadpool(_news, parts, job_id, seen)
        for row in fresh:
            seen = row.seq
            data = JobEventPublic.model_validate(row, from_attributes=True)
            yield sse.event(data.model_dump_json(), id=row.seq, type=row.type)
        if job.status in FINAL:
            yield sse.event(public(job).model_dump_json(), type="end")
            return
        if fresh:
            quiet_since = time.monotonic()
        elif time.monotonic() - quiet_since > KEEP_ALIVE_S:
            quiet_since = time.monotonic()
            yield sse.KEEP_ALIVE
        await anyio.sleep(POLL_S)


def _news(parts: Parts, job_id: str, seen: int) -> tuple[Job, list[JobEvent]]:
    """The job and its events after `seen`, of one moment: a final job has all its events."""
    with parts.database.reading() as session:
        return jobs.get(session, job_id), jobs.events_after(session, job_id, seen)
