"""Fixtures of the trainers' tests."""

from types import SimpleNamespace

import pytest

from trainers import fura_s


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when told to."""
    hands = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(fura_s, "time", SimpleNamespace(monotonic=lambda: hands.now))
    return hands
