"""`nightowl schedule`: when the running service runs its nights."""

from datetime import time
from typing import Annotated

import typer

from app.api.schemas import SchedulePublic
from app.cli.common import Json, connect, print_json, say
from app.config import parse_clock

cli = typer.Typer(help="The nightly schedule: show, set.", no_args_is_help=True)


@cli.command(epilog="Example: nightowl schedule show")
def show(context: typer.Context, as_json: Json = False) -> None:
    """Show when nights are run."""
    with connect(context) as client:
        _print(client.schedule(), as_json=as_json)


@cli.command("set", epilog="Example: nightowl schedule set --at 02:30")
def change(
    context: typer.Context,
    at: Annotated[str | None, typer.Option(metavar="HH:MM", help="Local time of day.")] = None,
    on: Annotated[
        bool | None, typer.Option("--on/--off", help="Whether nights are run by themselves.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Change when nights are run; a time alone also switches them on."""
    if at is None and on is None:
        raise typer.BadParameter("give --at, --on or --off")
    with connect(context) as client:
        plan = client.schedule()
        enabled = on if on is not None else True
        _print(client.set_schedule(enabled, _clock(at, plan.at)), as_json=as_json)


def _clock(text: str | None, otherwise: time) -> time:
    try:
        return otherwise if text is None else parse_clock(text)
    except ValueError as error:
        raise typer.BadParameter(f"--at {error}") from error


def _print(plan: SchedulePublic, *, as_json: bool) -> None:
    if as_json:
        print_json(plan)
    elif plan.enabled:
        following = f"{plan.next_run_at:%Y-%m-%d %H:%M}Z"
        say(f"nights are run at {plan.at:%H:%M} ({plan.timezone}), the next one at {following}")
    else:
        say(f"nights are not run by themselves (their time would be {plan.at:%H:%M})")
