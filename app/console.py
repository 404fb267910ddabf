"""What the command and the demo show on a terminal, and what they print where there is none."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from app.api.schemas import JobEventPublic, JobPublic
from app.client import Client

_WIDTH_WITHOUT_TERMINAL = 160  # a pipe has no width: long ids should not be folded


def output() -> Console:
    """Standard output."""
    return _console(stderr=False)


def messages() -> Console:
    """Standard error: bars and remarks, so that standard output holds results only."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDTH_WITHOUT_TERMINAL
    return Console(stderr=stderr, width=width, highlight=False)


class Bar:
    """A progress bar on a terminal, a line for every tenth elsewhere. A context manager."""

    def __init__(self, console: Console, label: str, total: float, *, counts: bool = False) -> None:
        """`total` is what `at` counts up to; `counts` shows both as whole numbers."""
        self._console = console
        self._label, self._total, self._counts = label, total, counts
        self._tenth = -1
        percent = TextColumn("{task.percentage:>3.0f} %")
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(30),
            MofNCompleteColumn() if counts else percent,
            TextColumn("{task.fields[detail]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._id: TaskID = self._progress.add_task(label, total=total, detail="")

    def __enter__(self) -> Self:
        """Shows the bar."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leaves the bar as it is."""
        self._progress.stop()

    def at(self, done: float, detail: str = "", label: str | None = None) -> None:
        """How far it is."""
        if label is not None and label != self._label:
            self._label, self._tenth = label, -1
        self._progress.update(self._id, completed=done, detail=detail, description=self._label)
        tenth = int(10 * done / self._total) if self._total else 10
        if not self._console.is_terminal and tenth > self._tenth:
            self._tenth = tenth
            amount = f"{done:.0f}/{self._total:.0f}" if self._counts else f"{10 * tenth} %"
            self._console.print(f"{self._label} {amount} {detail}".rstrip(), soft_wrap=True)


def follow(client: Client, job: JobPublic, console: Console) -> JobPublic:
    """Shows a job's progress until it is over, and returns it as it ended.

    Raises ServiceUnreachable when the service goes away; the job goes on at its next start.
    """
    with Bar(console, "waiting", 1.0) as bar:
        for event in client.job_events(job.id):
            _show(bar, event, job.config.get("minutes"))
    return client.job(job.id)


def _show(bar: Bar, event: JobEventPublic, minutes: float | None) -> None:
    data = event.data
    match event.type:
        case "progress":
            bar.at(share(data, minutes), _detail(data), "training")
        case "split":
            bar.at(0.0, f"{data['training']} prompts to train on, {data['heldout']} held out")
        case "phase" if data["phase"] == "plan":
            bar.at(0.0, "", "planning")
        case "phase" if data["phase"] == "gate":
            bar.at(1.0, "asking the held-out prompts", "gate")
        case "published" | "rejected":
            bar.at(1.0, str(data["reason"]), event.type)
        case "paused" | "interrupted" | "queued" | "running" | "cancelled" | "failed":
            bar.at(0.0, "", event.type)


def share(progress: dict[str, Any], minutes: float | None) -> float:
    """How much of the budget is used up, in [0, 1]: of iterations or of time, whichever is more."""
    share: float = progress["iteration"] / progress["iterations"]
    if minutes is not None:
        share = max(share, progress["elapsed_s"] / (60 * minutes))
    return min(1.0, share)


def _detail(progress: dict[str, Any]) -> str:
    parts = [f"iteration {progress['iteration']}"]
    if progress.get("loss") is not None:  # of a gradient trainer
        parts.append(f"loss {progress['loss']:.3f}")
    if progress.get("mean_reward") is not None:
        parts.append(f"{progress['fitness']} {progress['mean_reward']:.3f}")
    if progress.get("pass_rate") is not None:
        parts.append(f"{progress['pass_rate']:.0%} passed")
    parts.append(f"{progress['tokens_per_second']:.0f} tok/s")
    parts.append(f"{clock(progress['eta_s'])} left")
    return ", ".join(parts)


def clock(seconds: float) -> str:
    """Seconds as m:ss."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


@contextmanager
def pull_bar(console: Console, name: str) -> Iterator["PullBar"]:
    """A bar for `app.engine.models.pull`."""
    with Bar(console, name, 1.0) as bar:
        yield PullBar(bar)


class PullBar:
    """The progress function that a pull wants: each stage fills the bar anew."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar

    def __call__(self, stage: str, fraction: float) -> None:
        """Shows how far a stage is."""
        self._bar.at(fraction, label=stage)
