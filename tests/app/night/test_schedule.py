"""When a night is due, under a clock the tests turn, and that APScheduler really wakes it up."""

import logging
import threading
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.night.schedule import (
    NightSchedule,
    Plan,
    last_due,
    local_zone,
    next_due,
    window_opens,
)

BERLIN = ZoneInfo("Europe/Berlin")
AT_THREE = Plan(enabled=True, at=time(3))
OFF = Plan(enabled=False, at=time(3))


def berlin(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).astimezone(UTC)


class House:
    """A schedule with a clock to turn, a stored last run, and a count of the nights run."""

    def __init__(self, now: str, last: str | None, plan: Plan = AT_THREE) -> None:
        self.now = berlin(now)
        self.last = berlin(last) if last is not None else None
        self.nights = 0
        self.ran = threading.Event()
        self.schedule = NightSchedule(
            plan,
            self.run,
            lambda: self.last,
            self.store,
            clock=lambda: self.now,
            zone=BERLIN,
        )

    def store(self, when: datetime) -> None:
        self.last = when

    def run(self) -> None:
        self.nights += 1
        self.ran.set()


def test_a_night_runs_at_its_local_time_and_not_before():
    house = House("2026-05-01 02:59:59", last="2026-04-30 03:00")
    assert not house.schedule.check()
    house.now = berlin("2026-05-01 03:00")
    assert house.schedule.check()
    assert house.nights == 1


def test_a_night_runs_once_however_often_it_is_checked():
    house = House("2026-05-01 03:00", last="2026-04-30 03:00")
    for minutes in range(0, 24 * 60, 5):
        house.now = berlin("2026-05-01 03:00") + timedelta(minutes=minutes)
        house.schedule.check()
    assert house.nights == 1


def test_many_missed_nights_are_caught_up_by_one_run():
    house = House("2026-05-09 14:00", last="2026-05-01 03:00")
    assert house.schedule.check()
    assert not house.schedule.check()
    assert house.nights == 1


def test_after_a_catch_up_the_next_night_runs_at_its_time():
    house = House("2026-05-09 14:00", last="2026-05-01 03:00")
    house.schedule.check()
    house.now = berlin("2026-05-10 03:00")
    assert house.schedule.check()


def test_nothing_was_missed_before_the_first_start():
    house = House("2026-05-01 14:00", last=None)
    assert not house.schedule.check()
    assert house.last == house.now


def test_a_service_that_only_runs_by_day_catches_up_each_day_from_the_second():
    house = House("2026-05-01 09:00", last=None)
    house.schedule.check()
    for day in (2, 3):
        house.now = berlin(f"2026-05-0{day} 09:00")
        assert house.schedule.check()


def test_the_last_run_is_stored_before_the_night_is_run():
    house = House("2026-05-01 03:00", last="2026-04-30 03:00")
    seen = []
    schedule = NightSchedule(
        AT_THREE,
        lambda: seen.append(house.last),
        lambda: house.last,
        house.store,
        clock=lambda: house.now,
        zone=BERLIN,
    )
    schedule.check()
    assert seen == [house.now]


def test_a_night_that_raises_is_raised_and_not_tried_again():
    house = House("2026-05-01 03:00", last="2026-04-30 03:00")

    def fail() -> None:
        raise OSError("no space")

    schedule = NightSchedule(
        AT_THREE, fail, lambda: house.last, house.store, clock=lambda: house.now, zone=BERLIN
    )
    with pytest.raises(OSError, match="no space"):
        schedule.check()
    assert not schedule.check()


def test_a_disabled_schedule_never_runs():
    house = House("2026-05-09 14:00", last="2026-05-01 03:00", plan=OFF)
    assert not house.schedule.check()
    assert house.schedule.next_run() is None


def test_a_last_run_far_in_the_future_does_not_stop_the_nights():
    house = House("2026-05-01 14:00", last="2031-01-01 03:00")
    assert not house.schedule.check()
    house.now = berlin("2026-05-02 03:00")
    assert house.schedule.check()


def test_a_clock_set_back_a_little_does_not_run_the_night_twice():
    house = House("2026-05-01 03:00", last="2026-04-30 03:00")
    house.schedule.check()
    house.now -= timedelta(minutes=1)
    house.schedule.check()
    house.now += timedelta(minutes=2)
    house.schedule.check()
    assert house.nights == 1


def test_a_replaced_plan_does_not_run_for_a_time_that_has_passed():
    house = House("2026-05-01 10:00", last="2026-05-01 03:00")
    house.schedule.replace(Plan(enabled=True, at=time(9)))
    assert not house.schedule.check()
    assert house.schedule.next_run() == berlin("2026-05-02 09:00")


def test_a_replaced_plan_runs_at_its_new_time_the_same_day():
    house = House("2026-05-01 10:00", last="2026-05-01 03:00")
    house.schedule.replace(Plan(enabled=True, at=time(11)))
    house.now = berlin("2026-05-01 11:00")
    assert house.schedule.check()


def test_the_same_plan_again_settles_nothing():
    house = House("2026-05-02 10:00", last="2026-05-01 03:00")
    house.schedule.replace(AT_THREE)
    assert house.schedule.check()


def test_enabling_does_not_catch_up_the_nights_that_were_not_wanted():
    house = House("2026-05-09 14:00", last="2026-05-01 03:00", plan=OFF)
    house.schedule.replace(AT_THREE)
    assert house.schedule.plan == AT_THREE
    assert not house.schedule.check()


def test_concurrent_checks_run_a_night_once():
    house = House("2026-05-01 03:00", last="2026-04-30 03:00")
    barrier = threading.Barrier(8)

    def check() -> None:
        barrier.wait()
        house.schedule.check()

    threads = [threading.Thread(target=check) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert house.nights == 1


def test_a_started_schedule_catches_up_by_itself():
    house = House("2026-05-09 14:00", last="2026-05-01 03:00")
    house.schedule.start()
    assert house.ran.wait(30)
    house.schedule.stop()
    assert house.nights == 1


def test_a_plan_replaced_at_runtime_is_woken_up():
    house = House("2026-05-09 14:00", last=None, plan=OFF)
    schedule = NightSchedule(
        OFF,
        house.run,
        lambda: berlin("2026-05-01 03:00"),
        lambda when: None,
        clock=lambda: house.now,
        zone=BERLIN,
    )
    schedule.start()
    schedule.replace(AT_THREE)
    assert house.ran.wait(30)
    schedule.stop()


def test_starting_disabled_settles_what_was_missed():
    house = House("2026-05-09 14:00", last="2026-05-01 03:00", plan=OFF)
    house.schedule.start()
    house.schedule.stop()
    assert house.last == house.now


def test_what_a_night_raises_in_the_background_is_logged():
    logged = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and "no space" in str(record.exc_info[1]):
                logged.set()

    def fail() -> None:
        raise OSError("no space")

    handler = Handler()
    logging.getLogger("apscheduler").addHandler(handler)
    schedule = NightSchedule(
        AT_THREE,
        fail,
        lambda: berlin("2026-05-01 03:00"),
        lambda when: None,
        clock=lambda: berlin("2026-05-09 14:00"),
        zone=BERLIN,
    )
    schedule.start()
    assert logged.wait(30)
    schedule.stop()
    logging.getLogger("apscheduler").removeHandler(handler)


def test_a_time_that_daylight_saving_skips_is_due_once_that_day():
    plan = Plan(enabled=True, at=time(2, 30))
    # On 2026-03-29 Berlin's clocks go from 02:00 to 03:00.
    due = last_due(plan, berlin("2026-03-29 12:00"), BERLIN)
    assert due == datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    assert next_due(plan, berlin("2026-03-29 01:59"), BERLIN) == due


def test_a_time_that_daylight_saving_repeats_is_due_once_that_day():
    plan = Plan(enabled=True, at=time(2, 30))
    # On 2026-10-25 Berlin's clocks go from 03:00 back to 02:00.
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert next_due(plan, first - timedelta(seconds=1), BERLIN) == first
    assert last_due(plan, first + timedelta(hours=1), BERLIN) == first


zones = st.sampled_from([ZoneInfo(name) for name in ("Europe/Berlin", "UTC", "Pacific/Apia")])
moments = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))


@given(moments, st.times().map(lambda at: at.replace(second=0, microsecond=0)), zones)
def test_now_lies_between_two_neighbouring_due_times(now, at, zone):
    plan = Plan(enabled=True, at=at)
    last, following = last_due(plan, now, zone), next_due(plan, now, zone)
    assert following is not None
    assert last <= now < following
    assert timedelta(hours=22) <= following - last <= timedelta(hours=26)
    assert last_due(plan, following - timedelta(microseconds=1), zone) == last
    assert last_due(plan, following, zone) == following


@given(moments, st.times().map(lambda at: at.replace(second=0, microsecond=0)))
def test_due_times_show_the_plan_on_a_local_clock(now, at):
    zone = ZoneInfo("Asia/Kolkata")  # No daylight saving.
    assert last_due(Plan(True, at), now, zone).astimezone(zone).time() == at


def test_the_zone_of_this_computer_has_an_offset():
    assert datetime.now(local_zone()).utcoffset() is not None


@pytest.mark.parametrize(
    ("now", "opens"),
    [
        ("2026-05-01 02:59", "2026-05-01 03:00"),
        ("2026-05-01 03:00", None),
        ("2026-05-01 06:59", None),
        ("2026-05-01 07:00", "2026-05-02 03:00"),
        ("2026-05-01 23:00", "2026-05-02 03:00"),
    ],
)
def test_the_nightly_window_is_open_from_its_beginning_to_its_end(now, opens):
    expected = None if opens is None else berlin(opens)
    assert window_opens(time(3), time(7), berlin(now), BERLIN) == expected


@pytest.mark.parametrize(
    ("now", "opens"),
    [
        ("2026-05-01 21:59", "2026-05-01 22:00"),
        ("2026-05-01 22:00", None),
        ("2026-05-02 05:59", None),
        ("2026-05-02 06:00", "2026-05-02 22:00"),
    ],
)
def test_a_nightly_window_may_last_past_midnight(now, opens):
    expected = None if opens is None else berlin(opens)
    assert window_opens(time(22), time(6), berlin(now), BERLIN) == expected


def test_a_window_that_ends_when_it_begins_is_always_open():
    for hour in range(24):
        assert window_opens(time(3), time(3), berlin(f"2026-05-01 {hour:02}:00"), BERLIN) is None
