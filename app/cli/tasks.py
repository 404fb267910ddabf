"""`nightowl task`: the tasks of the running service."""

from typing import Annotated, Any

import typer

from app.cli.common import (
    Json,
    connect,
    json_argument,
    pairs_argument,
    print_json,
    print_table,
    say,
    text_argument,
)

cli = typer.Typer(help="Tasks: list, show, create, delete.", no_args_is_help=True)
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
        ("name", "grader", "episodes", "active"),
        [(t.name, t.grader["type"], t.episodes, t.active or "base model") for t in tasks],
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
