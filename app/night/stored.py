"""What the database keeps of the schedule: the user's plan, and up to when nights are settled."""

from collections.abc import Callable
from datetime import UTC, datetime

from app.config import Settings, parse_clock
from app.night.schedule import NightSchedule, Plan
from storage import settings as stored
from storage.db import Database

_PLAN = "schedule"
_LAST = "last_night"


def schedule(database: Database, settings: Settings, run: Callable[[], None]) -> NightSchedule:
    """The schedule of this database, not started; `run` queues a night."""
    return NightSchedule(
        read_plan(database, settings),
        run,
        read_last=lambda: read_last(database),
        store_last=lambda at: store_last(database, at),
    )


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
