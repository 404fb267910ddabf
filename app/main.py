"""The service: its parts started in order, the HTTP application over them, the server.

`running` starts everything but HTTP and stops it in reverse, so that whatever goes wrong at the
start is an exception with a message, and whatever ends the service leaves running jobs
`interrupted`, to be resumed at the next start.
"""

import asyncio
import logging
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

import uvicorn
from fastapi import APIRouter, FastAPI

from app.api import (
    chat,
    episodes,
    errors,
    experts,
    graders,
    grading,
    models,
    schedule,
    system,
    tasks,
    training,
)
from app.config import Settings
from app.engine.models import resolve
from app.engine.scheduler import Care, Engine, EngineConfig, Manners
from app.night import nightly
from app.night.jobs import JobRunner
from app.security import Guard, load_or_create_token
from app.state import Parts
from storage.atomic import FolderLock
from storage.db import Database
from storage.experts import ExpertStore
from verifiers import GraderPool

logger = logging.getLogger("nightowl")

DRAIN_S = 20.0  # how long answers may go on after the service was told to stop
_FAREWELL_S = 5.0  # how long those that were ended then have to be sent
PUBLIC_PATHS = ("/healthz", "/")


class PortInUse(Exception):
    """The service cannot listen where it should; the message says where and why."""


@contextmanager
def running(settings: Settings) -> Iterator[Parts]:
    """The parts of the service, started; stopped in reverse order at the end.

    Raises FolderLocked when another process uses the data folder, TokenFileError, ModelError for a
    missing or broken base model, StorageError for what is wrong with the database.
    """
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(FolderLock(settings.data_dir))
        token = load_or_create_token(settings.token)
        database = Database(settings.db)
        stack.callback(database.close)
        database.migrate()
        store = _checked_store(settings)
        graders = stack.enter_context(GraderPool())  # starts while the model is loaded
        engine = _engine(settings, store)
        engine.start()
        jobs = JobRunner(
            database,
            store,
            engine,
            graders,
            settings,
            opens=lambda: nightly.opens(database, settings),
        )
        # The engine closes before the runner stops: a job in the middle of a long rollout is then
        # interrupted after one engine step, and goes on from its checkpoint at the next start.
        stack.callback(jobs.stop)
        stack.callback(engine.close)
        jobs.start()
        nights = nightly.schedule(database, settings, jobs)
        nights.start()
        stack.callback(nights.stop)
        parts = Parts(settings, token, database, store, engine, graders, jobs, nights)
        stack.callback(parts.stopping.set)
        yield parts


def create_app(parts: Parts) -> FastAPI:
    """The HTTP application over running parts, guarded."""
    app = FastAPI(title="nightowl", docs_url=None, redoc_url=None)
    app.state.parts = parts
    v1 = APIRouter(prefix="/v1")
    for noun in (tasks, grading, episodes, graders, training, experts, chat, models, schedule):
        v1.include_router(noun.router)
    app.include_router(v1)
    app.include_router(system.router)
    errors.install(app)
    app.add_middleware(
        Guard,
        token=parts.token,
        max_body_bytes=parts.settings.max_body_bytes,
        public=PUBLIC_PATHS,
    )
    return app


class Server(uvicorn.Server):
    """Uvicorn over running parts. When it shuts down, open event streams are told to end, and
    answers that are not finished after `drain_s` seconds end with an error.
    """

    def __init__(self, parts: Parts, drain_s: float = DRAIN_S) -> None:
        config = uvicorn.Config(
            create_app(parts),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=math.ceil(drain_s + _FAREWELL_S),
        )
        super().__init__(config)
        self._parts = parts
        self._drain_s = drain_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the streams, then waits for open requests as uvicorn does."""
        self._parts.stopping.set()
        # Uvicorn would cut them off without a word.
        patience = asyncio.get_running_loop().call_later(self._drain_s, self._parts.engine.dismiss)
        try:
            await super().shutdown(sockets)
        finally:
            patience.cancel()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, 0 for a free port. Raises PortInUse."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise PortInUse(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The address under which a listening socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(settings: Settings, ready: Callable[[str], None] = lambda _url: None) -> None:
    """Runs the service until SIGINT or SIGTERM; `ready` gets its address once it can answer.

    Raises PortInUse and what `running` raises.
    """
    engine: Engine | None = None
    try:
        with (
            _terminated_as_exit(),
            listen(settings.host, settings.port) as listener,
            running(settings) as parts,
        ):
            engine = parts.engine
            logger.info("listening on %s", url_of(listener))
            ready(url_of(listener))
            Server(parts).run(sockets=[listener])
    finally:
        if engine is not None and engine.lingering:
            _leave_at_once()


def _leave_at_once() -> None:
    """Ends the process: with a thread that is stuck in MLX, Python's own end would not end."""
    logger.error("an engine thread that is wedged is left behind")
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


def _checked_store(settings: Settings) -> ExpertStore:
    """The expert store, with damaged experts out of the way."""
    store = ExpertStore(settings.experts)
    for bad in store.verify_all():
        logger.error("expert %s was put into quarantine: %s", bad.name[:80], bad.reason)
    return store


def _engine(settings: Settings, store: ExpertStore) -> Engine:
    """The engine of the configured base model, not started."""
    config = EngineConfig(
        memory_bytes=settings.memory_budget,
        manners=Manners(
            when="idle" if settings.training == "idle" else "always",  # the night is the runner's
            quiet_s=settings.idle_after_s,
            duty_cycle=settings.duty_cycle,
        ),
        care=Care(step_limit_s=settings.step_limit_s, probe_after_s=settings.probe_after_s),
    )
    path = resolve(settings.base_model, settings.models)
    return Engine(path, lambda version_id: store.load(version_id).tensors, config)


@contextmanager
def _terminated_as_exit() -> Iterator[None]:
    """SIGTERM unwinds the stack once, as Ctrl-C does, also while the model is still loading."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not break the clean-up
        sys.exit(0)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
