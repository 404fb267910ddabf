"""The schedule over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, time
from typing import Any

import httpx
import pytest

from app.client import Client
from app.night.nightly import read_plan
from app.night.schedule import Plan
from tests.app.serving import Service


def test_a_new_schedule_is_in_force_and_kept(service: Service, client: Client) -> None:
    before = client.schedule()
    assert (before.enabled, before.next_run_at) == (False, None)
    changed = client.set_schedule(True, time(4, 30))
    assert changed == client.schedule()
    assert (changed.enabled, changed.at) == (True, time(4, 30))
    assert changed.next_run_at is not None
    assert changed.next_run_at > datetime.now(UTC)
    assert read_plan(service.parts.database, service.parts.settings) == Plan(True, time(4, 30))
    client.set_schedule(False, time(3))


@pytest.mark.parametrize(
    "body", [{}, {"enabled": True}, {"enabled": True, "at": "25:00"}, {"enabled": True, "at": 3}]
)
def test_a_malformed_schedule_is_refused(http: httpx.Client, body: dict[str, Any]) -> None:
    before = http.get("/v1/schedule").json()
    assert http.put("/v1/schedule", json=body).status_code == 400
    assert http.get("/v1/schedule").json() == before
