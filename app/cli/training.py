"""`nightowl train` and `nightowl night`: training jobs, now instead of at night."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from app import console
from app.api.schemas import JobPublic, TaskPublic
from app.cli.common import Failure, Json, connect, pairs_argument, print_json, say
from app.client import Client

UNFINISHED = ("queued", "running", "paused", "interrupted")
Wait = Annotated[bool, typer.Option(help="Wait until it is over, with a bar.")]


def add_to(cli: typer.Typer) -> None:
    """Adds the commands."""
    cli.command(epilog="Example: nightowl train home --minutes 30")(train)
    cli.command(epilog="Example: nightowl night --no-wait")(night)


def train(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="The task's name.", show_default=False)],
    minutes: Annotated[float | None, typer.Option(min=0.1, help="Train this long.")] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Iterations at most.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the training.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A trainer setting; may be repeated."),
    ] = None,
    wait: Wait = True,
    as_json: Json = False,
) -> None:
    """Train a task's expert now; the gate decides whether it is published.

    Ctrl-C ends the watching, not the job. Exit code 0 also when the gate rejects the expert.
    """
    config: dict[str, Any] = pairs_argument(set_ or [])
    given = {"minutes": minutes, "iterations": iterations}
    config |= {key: value for key, value in given.items() if value is not None}
    with connect(context) as client:
        job = client.create_job(task, config, seed, trigger="cli")
        done = _watched(client, job, wait=wait)
    if as_json:
        print_json(done)
    else:
        say("\n".join(summary([done])))
    _fail_if_one_failed([done])


def night(context: typer.Context, wait: Wait = True, as_json: Json = False) -> None:
    """Run the night now, for every task with episodes that no job has seen."""
    with connect(context) as client:
        queued = [client.create_job(task.name, trigger="cli") for task in _due(client)]
        done = [_watched(client, job, wait=wait) for job in queued]
    if as_json:
        print_json(done)
    else:
        say("\n".join(summary(done)))
    _fail_if_one_failed(done)


def _due(client: Client) -> Iterator[TaskPublic]:
    """Tasks with something to learn and no job under way, as in a scheduled night.

    Without new episodes another run would only ask the same held-out prompts again until chance
    says yes.
    """
    for task in client.tasks():
        newest = next(client.jobs(task.name), None)
        if newest is None:
            if task.episodes:
                yield task
            continue
        unfinished = any(job.status in UNFINISHED for job in client.jobs(task.name))
        if not unfinished and any(
            episode.created_at > newest.created_at for episode in client.episodes(task.name)
        ):
            yield task


def _watched(client: Client, job: JobPublic, *, wait: bool) -> JobPublic:
    if not wait:
        return job
    screen = console.messages()
    try:
        return console.follow(client, job, screen)
    except KeyboardInterrupt:
        screen.print(f"{job.id} goes on in the service")
        raise


def summary(jobs: list[JobPublic]) -> Iterator[str]:
    """How jobs ended, a line each, and a second one for a task that a trivial answer passes."""
    if not jobs:
        yield "no task has anything new to learn"
    for job in jobs:
        yield f"{job.task}: {job.status}: {_message(job)}"
        outcome = job.outcome or {}
        trust = outcome.get("trust")
        if trust is not None and trust["hackable"] and outcome["reason"] != "hackable":
            yield f"{job.task}: {trust['message']}"


def _fail_if_one_failed(jobs: list[JobPublic]) -> None:
    failed = [job for job in jobs if job.status in ("failed", "cancelled")]
    if failed:
        raise Failure(f"{failed[0].id} of task {failed[0].task} {_ending(failed[0])}")


def _message(job: JobPublic) -> str:
    if job.outcome is not None:
        return str(job.outcome["message"])
    return str(job.error["message"]) if job.error else job.id


def _ending(job: JobPublic) -> str:
    if job.error is None:
        return "was cancelled"
    return f"failed: {job.error['message']}"
