"""What the training commands say of a job that ended."""

from __future__ import annotations

from typing import Any

import pytest

from app.api.schemas import JobPublic
from app.cli.training import summary
from storage.values import utcnow


def job(**fields: Any) -> JobPublic:
    """A job that ended."""
    values: dict[str, Any] = {
        "id": "job_1",
        "task": "home",
        "status": "rejected",
        "trainer": "fura_s",
        "config": {},
        "seed": 1,
        "trigger": "cli",
        "progress": {},
        "outcome": None,
        "error": None,
        "version_id": None,
        "created_at": utcnow(),
        "started_at": None,
        "finished_at": None,
    }
    return JobPublic(**(values | fields))


def outcome(reason: str, trust: dict[str, Any] | None) -> dict[str, Any]:
    return {"reason": reason, "message": "It ended.", "trust": trust}


HACKABLE = {"hackable": True, "message": "Hackable: the empty text passes."}


@pytest.mark.parametrize(
    ("told", "lines"),
    [
        (outcome("not_better", None), ["home: rejected: It ended."]),
        (outcome("better", HACKABLE | {"hackable": False}), ["home: rejected: It ended."]),
        # The message of this reason says it already.
        (outcome("hackable", HACKABLE), ["home: rejected: It ended."]),
        (
            outcome("not_better_than_trivial", HACKABLE),
            ["home: rejected: It ended.", "home: Hackable: the empty text passes."],
        ),
    ],
)
def test_a_trivial_way_to_pass_is_told_beside_the_outcome(
    told: dict[str, Any], lines: list[str]
) -> None:
    assert list(summary([job(outcome=told)])) == lines


def test_a_failed_job_says_why_and_a_waiting_one_its_id() -> None:
    failed = job(status="failed", error={"message": "no space"})
    assert list(summary([failed, job(status="queued")])) == [
        "home: failed: no space",
        "home: queued: job_1",
    ]


def test_no_jobs_are_nothing_to_learn() -> None:
    assert list(summary([])) == ["no task has anything new to learn"]
