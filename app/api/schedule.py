"""The schedule: whether nights run by themselves, and when."""

from fastapi import APIRouter

from app.api.bodies import JsonRoute
from app.api.schemas import SchedulePublic, SchedulePut
from app.night.nightly import read_last, store_plan
from app.night.schedule import Plan, local_zone
from app.state import Running

router = APIRouter(prefix="/schedule", route_class=JsonRoute)


@router.get("")
def get(parts: Running) -> SchedulePublic:
    """The schedule in force."""
    plan = parts.schedule.plan
    return SchedulePublic(
        enabled=plan.enabled,
        at=plan.at,
        timezone=str(local_zone()),
        next_run_at=parts.schedule.next_run(),
        settled_until=read_last(parts.database),
    )


@router.put("")
def put(body: SchedulePut, parts: Running) -> SchedulePublic:
    """Puts another schedule in force, and keeps it for the next start."""
    plan = Plan(body.enabled, body.at)
    store_plan(parts.database, plan)
    parts.schedule.replace(plan)
    return get(parts)
