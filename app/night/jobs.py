"""Training jobs: queued, run one at a time by one thread, interrupted, resumed.

The database alone says which status a job has. Whoever cancels or pauses a running job changes its
status; what the job does in the engine is dropped, and the thread leaves the job as it is. So
nothing a user decided is ever overwritten, and a job that ends at that very moment either ended
before or does not end at all.

A job goes on from its checkpoint by itself when the engine was restarted under it, and when a night
begins after the one in which it was not finished.
"""

import hashlib
import logging
import re
import shutil
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlmodel import Session

from app.config import Settings
from app.engine.errors import EngineError, EngineRestarting, EngineStopped, WorkDropped
from app.engine.scheduler import Engine
from app.night import configs
from app.night.context import House, NightError, Stopped
from app.night.run import run_job
from storage import jobs, tasks
from storage.db import Database
from storage.errors import NoSpace, StorageError
from storage.experts import ExpertStore
from storage.tables import Job, JobStatus
from verifiers import GraderPool

logger = logging.getLogger("nightowl")

RETRY_S = 60.0
"""How long the thread rests after it could not read or write the database."""

MAX_RESTARTS = 3
"""Restarts of the engine that one run of a job survives: it may be the job that breaks it."""

_LOOK_S = 60.0  # how often a job that waits for the night looks at the clock
_CHECK_S = 1.0  # how often one that waits for the engine looks whether the service ends
_NIGHT_IS_OVER = "the night is over"

_FOLDER = re.compile(r"job_[0-9a-f]{24}")


class JobRunner:
    """Runs the training jobs of one service. Every method may be called from any thread.

    `notify` gets the id of a job after something new was stored about it, from the thread that
    stored it. `opens` is asked when jobs may run: None for now, else a time to come.
    """

    def __init__(
        self,
        database: Database,
        store: ExpertStore,
        engine: Engine,
        graders: GraderPool,
        settings: Settings,
        notify: Callable[[str], None] = lambda _: None,
        opens: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        self._opens = opens
        self._database = database
        self._settings = settings
        self._notify = notify
        self._house = House(database, store, engine, graders, settings, notify)
        self._stopping = threading.Event()
        self._awake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="nightowl-jobs", daemon=True)

    def start(self) -> None:
        """Queues the jobs that the end of an earlier process interrupted, and starts the thread."""
        with self._database.session() as session:
            jobs.interrupt_running(session)
            for job in jobs.with_status(session, JobStatus.INTERRUPTED):
                jobs.set_status(session, job.id, JobStatus.QUEUED)
                jobs.append_event(session, job.id, "queued", {"after": "interrupted"})
        self._thread.start()

    def stop(self) -> None:
        """Interrupts the running job before its next use of the engine, and ends the thread.

        Whoever cannot wait for the engine closes it first: the job is interrupted all the same.
        """
        self._stopping.set()
        self._awake.set()
        if self._thread.is_alive():
            self._thread.join()

    def wake(self) -> None:
        """Has the thread look for a queued job."""
        self._awake.set()

    def enqueue(
        self, task: str, trigger: str, config: dict[str, Any], seed: int | None = None
    ) -> Job:
        """Queues a run of a task; `config` overrides the task's own (`app.night.configs`).

        Without a seed the job's id gives one. Raises NotFound for the task, and pydantic's
        ValidationError, which names the field, for a configuration the trainer refuses.
        """
        with self._database.session() as session:
            job = _create(session, task, trigger, config, seed)
        self._changed(job.id)
        return job

    def cancel(self, job_id: str) -> Job:
        """Ends a job for good. Raises NotFound, Conflict for one that has ended."""
        return self._move(job_id, JobStatus.CANCELLED, "cancelled")

    def pause(self, job_id: str) -> Job:
        """Lays a queued or running job aside. Raises NotFound, Conflict."""
        return self._move(job_id, JobStatus.PAUSED, "paused")

    def resume(self, job_id: str) -> Job:
        """Queues a paused or interrupted job, to go on where it was. Raises as `pause` does."""
        return self._move(job_id, JobStatus.QUEUED, "queued")

    def _move(self, job_id: str, status: JobStatus, event: str) -> Job:
        with self._database.session() as session:
            was = jobs.get(session, job_id).status
            job = jobs.set_status(session, job_id, status)
            job.error = None  # of an earlier pause for want of space
            session.add(job)
            jobs.append_event(session, job_id, event, {})
        if was is JobStatus.RUNNING:
            self._house.engine.stand_down()
        self._changed(job_id)
        return job

    def _changed(self, job_id: str) -> None:
        self._notify(job_id)
        self.wake()

    # in the thread

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._awake.clear()
            try:
                self._sweep()
                opens = self._opens()
                job_id = self._take() if opens is None else None
                if opens is not None and self._tell_waiting(opens):
                    self._awake.wait(_LOOK_S)
                elif job_id is None:
                    self._awake.wait()
                elif not self._run(job_id):
                    return
            except Exception:
                # Not the job's failure but that of keeping its books: it stays `running`, and is
                # found interrupted after a restart. The thread goes on, as the disk may.
                logger.exception("the job thread could not use the data folder")
                self._stopping.wait(RETRY_S)

    def _take(self) -> str | None:
        """The id of the job that has waited longest, now running; None if there is none."""
        with self._database.session() as session:
            job = jobs.next_queued(session)
            if job is None:
                return None
            jobs.set_status(session, job.id, JobStatus.RUNNING)
            jobs.append_event(session, job.id, "running", {})
        self._notify(job.id)
        return job.id

    def _tell_waiting(self, opens: datetime) -> bool:
        """Has queued jobs say what they wait for; whether there are any."""
        until = opens.isoformat()
        with self._database.session() as session:
            queued = jobs.with_status(session, JobStatus.QUEUED)
            told = [job.id for job in queued if job.progress.get("until") != until]
            for job in queued:
                if job.id in told:
                    waits = {"phase": "waiting", "until": until, "reason": "training runs at night"}
                    jobs.set_progress(session, job.id, job.progress | waits)
                    jobs.append_event(session, job.id, "waiting", waits)
        for job_id in told:
            self._notify(job_id)
        return bool(queued)

    def _run(self, job_id: str) -> bool:
        """Runs a job; False when the engine has stopped, and with it the work of this thread."""
        try:
            self._run_through(job_id)
        except Stopped as stop:
            logger.info("job %s was stopped: %s", job_id, stop.reason)
            self._leave(job_id, JobStatus.INTERRUPTED, None)
            if stop.reason == _NIGHT_IS_OVER:
                self._requeue(job_id)
        except EngineStopped as stop:
            logger.info("job %s was interrupted: %s", job_id, stop)
            self._leave(job_id, JobStatus.INTERRUPTED, None)
            return False
        except NoSpace as error:
            # Hours of training shall not be lost for want of a few megabytes.
            logger.warning("job %s was paused: %s", job_id, error)
            self._leave(job_id, JobStatus.PAUSED, _readable(error))
        except Exception as error:
            logger.exception("job %s failed", job_id)
            self._leave(job_id, JobStatus.FAILED, _readable(error))
        finally:
            self._house.engine.stand_down()
        return True

    def _run_through(self, job_id: str) -> None:
        """Runs a job to its end, from its checkpoint again when the engine was restarted."""
        restarts = 0
        while True:
            try:
                run_job(self._house, job_id, lambda: self._should_stop(job_id))
                return
            except WorkDropped:  # for this job, which then is to stop, or for the one before it
                reason = self._should_stop(job_id)
                if reason is not None:
                    raise Stopped(reason) from None
            except EngineRestarting as error:
                restarts += 1
                logger.warning("job %s: %s", job_id, error)
                if restarts > MAX_RESTARTS:
                    raise NightError(
                        f"the engine had to be restarted {restarts} times while this job ran"
                    ) from error
                self._await_engine(job_id)

    def _await_engine(self, job_id: str) -> None:
        """Waits until the engine has been restarted or given up. Raises Stopped."""
        with self._database.session() as session:
            jobs.append_event(session, job_id, "engine_restarting", {})
        self._notify(job_id)
        while not self._house.engine.await_restart(_CHECK_S):
            reason = self._should_stop(job_id)
            if reason is not None:
                raise Stopped(reason)

    def _should_stop(self, job_id: str) -> str | None:
        """Why the job is no longer to be run, None while it is."""
        if self._stopping.is_set():
            return "interrupted"
        with self._database.reading() as session:
            job = session.get(Job, job_id)
        if job is None:
            return "deleted"
        if job.status is not JobStatus.RUNNING:
            return job.status.value
        return None if self._opens() is None else _NIGHT_IS_OVER

    def _leave(self, job_id: str, status: JobStatus, error: dict[str, Any] | None) -> None:
        """Stores how a run went that did not end by itself, unless somebody changed its status."""
        with self._database.session() as session:
            job = session.get(Job, job_id)
            if job is None or job.status is not JobStatus.RUNNING:
                return
            jobs.set_status(session, job_id, status, error=error)
            jobs.append_event(session, job_id, status.value, error or {})
        self._notify(job_id)

    def _requeue(self, job_id: str) -> None:
        """Has a job that was interrupted at the end of the night go on in the next one."""
        with self._database.session() as session:
            job = session.get(Job, job_id)
            if job is None or job.status is not JobStatus.INTERRUPTED:
                return
            jobs.set_status(session, job_id, JobStatus.QUEUED)
            jobs.append_event(session, job_id, "queued", {"after": "interrupted"})
        self._notify(job_id)

    def _sweep(self) -> None:
        """Deletes the folders of jobs that have ended or are gone."""
        if not self._settings.runs.is_dir():
            return
        found = [path for path in self._settings.runs.iterdir() if _FOLDER.fullmatch(path.name)]
        with self._database.reading() as session:
            ended = [path for path in found if not _goes_on(session, path.name)]
        for path in ended:
            shutil.rmtree(path)


def _create(
    session: Session, task: str, trigger: str, config: dict[str, Any], seed: int | None
) -> Job:
    trainer, whole = configs.merged(tasks.get(session, task).training, config)
    job = jobs.create(
        session, task=task, trainer=trainer, config=whole, seed=seed or 0, trigger=trigger
    )
    if seed is None:
        # 31 bits: a seed that every client's JSON reader keeps exact.
        digest = hashlib.sha256(job.id.encode()).digest()
        job.seed = int.from_bytes(digest[:4], "big") >> 1
        session.add(job)
    jobs.append_event(session, job.id, "queued", {})
    return job


def _goes_on(session: Session, job_id: str) -> bool:
    job = session.get(Job, job_id)
    return job is not None and job.status not in jobs.FINAL


def _readable(error: Exception) -> dict[str, Any]:
    """An error as users see it: no path, no content, no traceback; those are in the log."""
    if isinstance(error, (StorageError, EngineError, NightError)):
        return {"type": type(error).__name__, "message": str(error)}
    message = f"{type(error).__name__} inside nightowl; the service's log has the details"
    return {"type": "internal", "message": message}
