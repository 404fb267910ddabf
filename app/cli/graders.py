"""`nightowl grader`: the grader types, and a configuration tried before a task gets it."""

from typing import Annotated

import typer

from app.cli.common import Json, connect, json_argument, print_json, print_table, say

cli = typer.Typer(help="Graders: list, validate.", no_args_is_help=True)


@cli.command("list", epilog="Example: nightowl grader list")
def list_all(context: typer.Context, as_json: Json = False) -> None:
    """List the grader types; as JSON with their schemas and an example each."""
    with connect(context) as client:
        graders = client.graders()
    if as_json:
        print_json(graders)
        return
    print_table(("type", "what"), [(g.id, g.description) for g in graders], "there are none")


@cli.command(epilog="Example: nightowl grader validate @grader.json --task home")
def validate(
    context: typer.Context,
    grader: Annotated[
        str, typer.Argument(help="A configuration: JSON, or @FILE.", show_default=False)
    ],
    task: Annotated[str | None, typer.Option(help="Try it on this task's last episodes.")] = None,
    episodes: Annotated[int, typer.Option(min=1, max=1000, help="On so many at most.")] = 100,
    as_json: Json = False,
) -> None:
    """Check a configuration; with --task, show what it would say of stored episodes.

    A mistake is named with its place in the configuration. Nothing is stored.
    """
    with connect(context) as client:
        valid = client.validate_grader(json_argument(grader), task, episodes)
    if as_json:
        print_json(valid)
        return
    say(f"the configuration is valid, its hash is {valid.grader_hash}")
    tried = valid.dry_run
    if tried is None:
        return
    say(
        f"of the last {tried.graded} episodes {tried.passed} pass, {tried.failed} fail,"
        f" {sum(tried.errored.values())} cannot be graded; of {tried.compared} with a grade"
        f" {tried.changed} would change"
    )
    for change in tried.changes:
        say(f"{change.episode_id}  {change.before} -> {change.after}")
    for error in tried.errors:
        say(f"{error.episode_id}  {error.error_kind}: {error.error}")
