"""The nights of this database: when they are due, and which tasks each of them trains.

A task is trained when episodes have arrived since its last job was queued and no job of it is
unfinished. Without new episodes another run would only ask the same held-out prompts again until
chance says yes.
"""

import logging
from datetime import UTC, datetime

from pydantic import ValidationError
from sqlmodel import Session, col, select

from app.config import Settings, parse_clock
from app.night.jobs import JobRunner
from app.night.schedule import NightSchedule, Plan, local_zone, window_opens
from storage import jobs, tasks
from storage import settings as stored
from storage.db import Database
from storage.tables import Episode, Job

logger = logging.getLogger("nightowl")

_PLAN = "schedule"
_LAST = "last_night"


def schedule(database: Database, settings: Settings, runner: JobRunner) -> NightSchedule:
    """The schedule of this database, not started."""
    return NightSchedule(
        read_plan(database, settings),
        lambda: queue_night(database, runner),
        read_last=lambda: read_last(database),
        store_last=lambda at: store_last(database, at),
    )


def queue_night(database: Database, runner: JobRunner) -> None:
    """Queues a job for every task that has something to learn."""
    with database.reading() as session:
        names = [task.name for task in tasks.list_tasks(session) if _is_due(session, task.name)]
    for name in names:
        try:
            job = runner.enqueue(name, "night", {}, None)
            logger.info("night: queued %s", job.id)
        except ValidationError:
            # Stored by another version: the other tasks shall have their night.
            logger.exception("night: the trainer refuses the configuration of task %s", name)


def opens(database: Database, settings: Settings) -> datetime | None:
    """When training may go on, in UTC; None: now."""
    if settings.training != "night":
        return None
    begins = read_plan(database, settings).at
    return window_opens(begins, settings.night_until, datetime.now(UTC), local_zone())


def read_plan(database: Database, settings: Settings) -> Plan:
    """The plan the user has put, else the one of the settings."""
    with database.reading() as session:
        plan = stored.get(session, _PLAN)
    if plan is None:
        return Plan(settings.night_enabled, settings.night_at)
    return Plan(bool(plan["enabled"]), parse_clock(plan["at"]))


def store_plan(database: Database, plan: Plan) -> None:
    """Keeps the plan for the next start."""
    with database.session() as session:
        stored.put(session, _PLAN, {"enabled": plan.enabled, "at": plan.at.strftime("%H:%M")})


def read_last(database: Database) -> datetime | None:
    """Up to when nights are settled, in UTC; None before the first start."""
    with database.reading() as session:
        last = stored.get(session, _LAST)
    return None if last is None else datetime.fromisoformat(last)


def store_last(database: Database, at: datetime) -> None:
    """Keeps up to when nights are settled."""
    with database.session() as session:
        stored.put(session, _LAST, at.astimezone(UTC).isoformat())


def _is_due(session: Session, task: str) -> bool:
    """Whether the task has episodes that no job has seen, and no job under way."""
    newest, _ = jobs.page(session, task, None, 1)
    unfinished = select(Job.id).where(Job.task == task, col(Job.status).not_in(jobs.FINAL))
    fresh = select(Episode.id).where(Episode.task == task)
    if newest:
        fresh = fresh.where(col(Episode.created_at) > newest[0].created_at)
    return (
        session.exec(unfinished.limit(1)).first() is None
        and session.exec(fresh.limit(1)).first() is not None
    )
