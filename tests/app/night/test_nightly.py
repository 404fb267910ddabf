"""Which tasks a night trains, and what of the schedule outlives the process."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from pathlib import Path

from app.config import Settings
from app.night import nightly
from app.night.schedule import Plan
from app.state import Parts
from storage import jobs
from storage.db import Database
from storage.tables import Job, JobStatus
from tests.app.serving import GRADER, Service, episode, fresh


def night_jobs(parts: Parts, task: str) -> list[Job]:
    with parts.database.reading() as session:
        rows, _ = jobs.page(session, task, None, 100)
    return [row for row in rows if row.trigger == "night"]


def test_a_night_trains_tasks_with_new_episodes_and_no_others(service: Service) -> None:
    client, parts = service.client, service.parts
    taught, empty = (client.create_task(fresh(), GRADER).name for _ in range(2))
    client.add_episode(episode(taught))
    nightly.queue_night(parts.database, parts.jobs)
    assert (len(night_jobs(parts, taught)), night_jobs(parts, empty)) == (1, [])
    list(client.job_events(night_jobs(parts, taught)[0].id))
    nightly.queue_night(parts.database, parts.jobs)
    assert len(night_jobs(parts, taught)) == 1
    client.add_episode(episode(taught, 1))
    nightly.queue_night(parts.database, parts.jobs)
    assert len(night_jobs(parts, taught)) == 2
    list(client.job_events(night_jobs(parts, taught)[0].id))


def test_a_task_with_an_unfinished_job_gets_no_second_one(service: Service, task: str) -> None:
    client, parts = service.client, service.parts
    with parts.database.session() as session:
        job = jobs.create(session, task=task, trainer="fura_s", config={}, seed=0, trigger="api")
        jobs.set_status(session, job.id, JobStatus.PAUSED)
    client.add_episode(episode(task))
    nightly.queue_night(parts.database, parts.jobs)
    assert night_jobs(parts, task) == []
    client.cancel_job(job.id)
    nightly.queue_night(parts.database, parts.jobs)
    [queued] = night_jobs(parts, task)
    list(client.job_events(queued.id))


def test_a_stored_plan_outranks_the_settings(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, night_enabled=True, night_at=time(2, 15))
    database = Database(settings.db)
    database.migrate()
    assert nightly.read_plan(database, settings) == Plan(True, time(2, 15))
    nightly.store_plan(database, Plan(False, time(23, 59)))
    assert nightly.read_plan(database, settings) == Plan(False, time(23, 59))
    database.close()


def test_the_settled_time_comes_back_exactly(tmp_path: Path) -> None:
    database = Database(tmp_path / "nightowl.db")
    database.migrate()
    assert nightly.read_last(database) is None
    now = datetime.now(UTC)
    for at in (now, now + timedelta(hours=1)):
        nightly.store_last(database, at)
        assert nightly.read_last(database) == at
    database.close()


def test_a_missed_night_queues_jobs_once(service: Service, task: str) -> None:
    parts = service.parts
    service.client.add_episode(episode(task))
    kept = nightly.read_plan(parts.database, parts.settings)
    nightly.store_plan(parts.database, Plan(True, time(3)))
    nightly.store_last(parts.database, datetime.now(UTC) - timedelta(days=2))
    schedule = nightly.schedule(parts.database, parts.settings, parts.jobs)
    nightly.store_plan(parts.database, kept)
    assert [schedule.check(), schedule.check()] == [True, False]
    [queued] = night_jobs(parts, task)
    list(service.client.job_events(queued.id))
