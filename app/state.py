"""The running parts of the service, as every endpoint gets them."""

import threading
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from fastapi import Depends, Request

from app.config import Settings
from app.engine.scheduler import Engine
from app.night.jobs import JobRunner
from app.night.schedule import NightSchedule
from storage.db import Database
from storage.experts import ExpertStore
from storage.values import utcnow
from verifiers import GraderPool


@dataclass(frozen=True)
class Parts:
    """What `app.main.running` has started. All of it is safe to use from any thread.

    `stopping` is set when the service begins to shut down, so that open event streams end.
    """

    settings: Settings
    token: str
    database: Database
    experts: ExpertStore
    engine: Engine
    graders: GraderPool
    jobs: JobRunner
    schedule: NightSchedule
    started_at: datetime = field(default_factory=utcnow)
    stopping: threading.Event = field(default_factory=threading.Event)


def _parts(request: Request) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


Running = Annotated[Parts, Depends(_parts)]
