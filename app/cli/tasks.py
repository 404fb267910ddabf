"""`nightowl task`: the tasks of the running service."""

from typing import Annotated, Any

import typer

from app import console
from app.api.grading_schemas import GradeCounts
from app.cli.common import (
    Json,
    connect,
    json_argument,
    pairs_argument,
    print_json,
    print_table,
    say,
    shown,
    text_argument,
)

cli = typer.Typer(help="Tasks: list, show, create, regrade, trust, delete.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="The task's name.", show_default=False)]


@cli.command("list", epilog="Example: nightowl task list --json")
def list_all(context: typer.Context, as_json: Json = False) -> None:
    """List all tasks."""
    with connect(context) as client:
        tasks = client.tasks()
    if as_json:
        print_json(tasks)
        return
    print_table(
        ("name", "grader", "episodes", "passed", "errored", "ungraded", "active"),
        [
            (
                t.name,
                t.grader["type"],
                t.episodes,
                t.grades.passed,
                sum(t.grades.errored.values()),
                t.grades.ungraded,
                t.active or "base model",
            )
            for t in tasks
        ],
        "there are no tasks: make one with `nightowl task create`",
    )


@cli.command(epilog="Example: nightowl task show home")
def show(context: typer.Context, task: Name) -> None:
    """Show one task, as JSON."""
    with connect(context) as client:
        print_json(client.task(task))


@cli.command(
    epilog="""Example: nightowl task create home --grader '{"type": "function_call", "syntax": """
    """"call"}' --system-prompt @prompt.txt"""
)
def create(
    context: typer.Context,
    task: Name,
    grader: Annotated[
        str, typer.Option(help="The grader's configuration: JSON, or @FILE.", show_default=False)
    ],
    system_prompt: Annotated[str | None, typer.Option(help="Text, or @FILE.")] = None,
    tools: Annotated[
        str | None, typer.Option(help="OpenAI's list of tools: JSON, or @FILE.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A trainer setting; may be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Define a task."""
    fields: dict[str, Any] = {"training": pairs_argument(set_ or [])}
    if system_prompt is not None:
        fields["system_prompt"] = text_argument(system_prompt)
    if tools is not None:
        fields["tools"] = json_argument(tools)
    with connect(context) as client:
        made = client.create_task(task, json_argument(grader), **fields)
    if as_json:
        print_json(made)
    else:
        say(f"task {made.name} is there: post episodes, then run `nightowl train {made.name}`")


@cli.command(epilog="Example: nightowl task regrade home")
def regrade(
    context: typer.Context,
    task: Name,
    errored: Annotated[
        bool, typer.Option("--errored", help="Also what could not be graded before.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Grade the episodes that the task's current grader has not seen.

    Ctrl-C loses nothing: the next call goes on where this one stopped.
    """
    with connect(context) as client:
        found = client.task(task)
        waiting = found.grades.ungraded
        if errored:
            waiting += sum(found.grades.errored.values())
        with console.Bar(console.messages(), "episodes", waiting, counts=True) as bar:
            graded, cursor, first = 0, None, True
            while first or cursor is not None:
                answer = client.regrade(task, errored=errored, cursor=cursor)
                graded, cursor, first = graded + answer.graded, answer.next_cursor, False
                bar.at(graded)
    if as_json:
        print_json(answer)
        return
    counts = answer.grades
    say(
        f"{graded} episodes are graded anew; now {counts.passed} passed, {counts.failed} failed,"
        f" {_errored(counts)}"
    )


def _errored(counts: GradeCounts) -> str:
    kinds = ", ".join(f"{number} {kind}" for kind, number in counts.errored.items())
    return f"{sum(counts.errored.values())} errored" + (f" ({kinds})" if kinds else "")


@cli.command(epilog="Example: nightowl task trust home")
def trust(context: typer.Context, task: Name, as_json: Json = False) -> None:
    """Show whether the task's grader can be satisfied without doing the task."""
    with connect(context) as client:
        report = client.trust(task)
    if as_json:
        print_json(report)
        return
    say(report.message)
    if report.example is not None:
        say(f"asked     {shown(report.example.prompt)}")
        say(f"answered  {shown(report.example.completion)}")
    print_table(
        ("trivial answer", "text", "passed", "errored"),
        [(b.kind, b.text and shown(b.text), b.passed, b.errored) for b in report.baselines],
        "nothing was tried",
    )
    told = report.discrimination
    if told.share is not None:
        say(
            f"the grader tells {told.differing} of {told.prompts} prompts' different answers"
            f" apart ({told.share:.0%})"
        )


@cli.command(epilog="Example: nightowl task delete home --yes")
def delete(
    context: typer.Context,
    task: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a task with its episodes, jobs and experts."""
    with connect(context) as client:
        found = client.task(task)
        question = f"delete {task} with its {found.episodes} episodes and all its experts?"
        if not yes:
            typer.confirm(question, abort=True)
        client.delete_task(task)
    say(f"{task} is deleted")
