"""When a night is run: daily at a local time, and once after nights that were missed.

One rule decides, `NightSchedule.check`: a night is due when the last due time lies after the stored
time of the last run. APScheduler only wakes that rule up, at the due time and every few minutes in
between, because a timer stands still while the computer sleeps. Asking too often, a restart, an
hour that daylight saving repeats or skips: none of them runs a night twice or loses one.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo

from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

CHECK_EVERY = timedelta(minutes=5)

logger = logging.getLogger("nightowl")


@dataclass(frozen=True)
class Plan:
    """Whether nights are run by themselves, and at which local time of day."""

    enabled: bool
    at: time


def last_due(plan: Plan, now: datetime, zone: tzinfo) -> datetime:
    """The latest time at or before `now` (aware) at which a night was due, in UTC."""
    today = now.astimezone(zone).date()
    # A local time that daylight saving skips is due when the clock has passed it, up to an hour
    # later; one that it repeats is due the first time.
    dues = (
        datetime.combine(today - timedelta(days=days), plan.at, zone).astimezone(UTC)
        for days in range(3)
    )
    return next(due for due in dues if due <= now)


def next_due(plan: Plan, now: datetime, zone: tzinfo) -> datetime | None:
    """The first time after `now` (aware) at which a night is due, in UTC; None when disabled."""
    if not plan.enabled:
        return None
    today = now.astimezone(zone).date()
    dues = (
        datetime.combine(today + timedelta(days=days), plan.at, zone).astimezone(UTC)
        for days in range(-1, 3)
    )
    return next(due for due in dues if due > now)


def window_opens(begins: time, ends: time, now: datetime, zone: tzinfo) -> datetime | None:
    """When the nightly window between two local times opens next, in UTC; None within one.

    A window that begins when it ends lasts all day.
    """
    opened = last_due(Plan(True, begins), now, zone)
    closes = next_due(Plan(True, ends), opened, zone)
    assert closes is not None
    return None if now < closes else next_due(Plan(True, begins), now, zone)


def local_zone() -> tzinfo:
    """The time zone of this computer."""
    zone: tzinfo = BackgroundScheduler().timezone
    return zone


class NightSchedule:
    """Calls `run` once for each time the plan is due while started, from a background thread.

    `read_last` and `store_last` keep the time up to which nights are settled: run, missed and
    caught up, or not wanted. It is stored *before* `run` is called, so a night that raises, or
    takes the service down with it, is not tried again until the next one is due; in the background
    what it raised is logged. `run` should return soon (queue a job); `stop` waits for it. All three
    are called from background threads, the two for the last run also from the caller's.
    """

    def __init__(
        self,
        plan: Plan,
        run: Callable[[], None],
        read_last: Callable[[], datetime | None],
        store_last: Callable[[datetime], None],
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        zone: tzinfo | None = None,
    ) -> None:
        self._plan = plan
        self._run = run
        self._read_last = read_last
        self._store_last = store_last
        self._clock = clock
        self._zone = zone or local_zone()
        self._lock = threading.Lock()
        self._scheduler = BackgroundScheduler(timezone=self._zone)

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self._plan

    def next_run(self) -> datetime | None:
        """When the next night is due, in UTC; None when disabled."""
        return next_due(self._plan, self._clock(), self._zone)

    def start(self) -> None:
        """Starts waking up. Nights missed since the last run are caught up by one run, at once."""
        with self._lock:
            if not self._plan.enabled:
                self._store_last(self._clock())
            self._apply()
        self._scheduler.start()

    def stop(self) -> None:
        """Stops for good, after a call of `run` that is under way has returned."""
        self._scheduler.shutdown(wait=True)

    def replace(self, plan: Plan) -> None:
        """Puts another plan in force. Due times before now are settled: it never runs at once."""
        with self._lock:
            if plan == self._plan:
                return
            self._store_last(self._clock())
            self._plan = plan
            self._apply()

    def check(self) -> bool:
        """Runs a night if one is due and says whether it did. What `run` raises is raised."""
        with self._lock:
            if not self._claim():
                return False
        logger.info("a night is due")
        self._run()
        return True

    def _claim(self) -> bool:
        """Settles the due night, if any, so that nobody else runs it."""
        if not self._plan.enabled:
            return False
        now, last = self._clock(), self._read_last()
        # Nothing was missed before the first start. A last run in the future was stored by a clock
        # that was wrong; waiting for it could take years.
        if last is None or last > now + timedelta(days=1):
            self._store_last(now)
            return False
        if last >= last_due(self._plan, now, self._zone):
            return False
        self._store_last(now)
        return True

    def _apply(self) -> None:
        """Makes APScheduler's jobs those of the plan."""
        self._scheduler.remove_all_jobs()
        if not self._plan.enabled:
            return
        daily = CronTrigger(
            hour=self._plan.at.hour, minute=self._plan.at.minute, timezone=self._zone
        )
        often = IntervalTrigger(seconds=int(CHECK_EVERY.total_seconds()), timezone=self._zone)
        options = {"coalesce": True, "misfire_grace_time": None, "max_instances": 1}
        self._scheduler.add_job(self.check, daily, **options)
        # The first of these comes at once: that is what catches up at the start.
        self._scheduler.add_job(
            self.check, often, next_run_time=datetime.now(self._zone), **options
        )
