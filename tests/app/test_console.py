"""Progress on a terminal and in a log."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from app import console


def lines_of(*, terminal: bool) -> list[str]:
    file = io.StringIO()
    screen = Console(file=file, width=120, force_terminal=terminal)
    with console.Bar(screen, "work", 40, counts=True) as bar:
        for done in range(41):
            bar.at(done, "detail")
        bar.at(40, label="rest")
    return file.getvalue().splitlines()


def test_a_log_gets_a_line_for_every_tenth_and_every_new_stage() -> None:
    lines = lines_of(terminal=False)
    assert lines == [*(f"work {n}/40 detail" for n in range(0, 41, 4)), "rest 40/40"]


def test_a_terminal_gets_a_bar() -> None:
    text = "\n".join(lines_of(terminal=True))
    assert "40/40" in text
    assert "━" in text


@pytest.mark.parametrize(
    ("minutes", "share"), [(None, 0.25), (10.0, 0.5), (1.0, 1.0), (1000.0, 0.25)]
)
def test_the_bar_follows_the_budget_that_is_used_up_further(
    minutes: float | None, share: float
) -> None:
    assert console.share({"iteration": 15, "iterations": 60, "elapsed_s": 300}, minutes) == share


def test_seconds_are_shown_as_minutes_and_seconds() -> None:
    assert [console.clock(s) for s in (0, 59.9, 60, 3725)] == ["0:00", "0:59", "1:00", "62:05"]


def test_a_gradient_trainers_progress_shows_its_loss() -> None:
    progress = {"iteration": 3, "loss": 1.25, "tokens_per_second": 80.0, "eta_s": 61}
    assert console._detail(progress) == "iteration 3, loss 1.250, 80 tok/s, 1:01 left"
