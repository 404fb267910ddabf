"""Hypothesis without deadlines: how long an example takes depends on what else the machine does."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

import verifiers.pool
from tests.verifiers import misbehaving
from tests.verifiers.misbehaving import LONG
from verifiers import GraderPool, sandbox

settings.register_profile(
    "untimed",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.load_profile("untimed")


@pytest.fixture(scope="module")
def pool() -> Iterator[GraderPool]:
    """A pool for graders that behave."""
    with GraderPool(deadline_s=LONG) as made:
        yield made


@pytest.fixture(scope="module")
def patient() -> Iterator[None]:
    """More time for code in sandboxes than a configuration may ask for, for a machine under load.

    In this process, and in those of pools that are made meanwhile.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "MAX_TIMEOUT_S", LONG)
        start = "from verifiers.supervisor"
        boot = verifiers.pool._BOOT.replace(
            start, f"from verifiers import sandbox; sandbox.MAX_TIMEOUT_S = {LONG}; {start}"
        )
        patch.setattr(verifiers.pool, "_BOOT", boot)
        yield


@pytest.fixture(scope="module")
def tough() -> Iterator[GraderPool]:
    """A pool with a grader that misbehaves."""
    with misbehaving.pool(deadline_s=LONG) as made:
        yield made


@pytest.fixture(scope="module")
def hasty() -> Iterator[GraderPool]:
    """The same with a deadline that is soon there, for what is late on any machine."""
    with misbehaving.pool(deadline_s=0.3) as made:
        yield made
