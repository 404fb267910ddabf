"""Commands about the service as a whole: serve, demo, doctor."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from app import console, doctor
from app.cli.common import Common, Failure, Json, overrides_of, print_json, say, settings_of
from app.config import Settings
from app.engine.folder import BUILTIN


def add_to(cli: typer.Typer) -> None:
    """Adds the commands."""
    cli.command(epilog="Example: nightowl serve --port 8077")(serve)
    cli.command(epilog="Example: nightowl demo --minutes 60 --json result.json")(demo)
    cli.command("doctor", epilog="Example: nightowl doctor --json")(show_doctor)


def serve(
    context: typer.Context,
    port: Annotated[int | None, typer.Option(help="TCP port; 0 takes a free one.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Base model: an installed name, or a folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the service until Ctrl-C or SIGTERM.

    Prints its address once it can answer. The log goes to standard error.
    """
    settings = settings_of(context, port=port, base_model=model)
    _log_to_stderr(settings)

    from app.engine.errors import EngineError
    from app.main import PortInUse
    from app.main import serve as run

    def ready(url: str) -> None:
        if as_json:
            print_json({"url": url, "token_file": str(settings.token)})
        else:
            say(f"nightowl answers at {url} (token: {settings.token})")

    try:
        run(settings, ready)
    except KeyboardInterrupt:
        return  # Ctrl-C is how it is meant to end
    except (PortInUse, EngineError) as error:
        raise Failure(str(error)) from error


def demo(
    context: typer.Context,
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="Train this long instead of a few minutes.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the commands and the training.")] = 0,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the demo's service; 0: a free one.")
    ] = 0,
    model: Annotated[
        str, typer.Option(help="Base model: an installed name, or a folder.")
    ] = BUILTIN,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the numbers to this file.")
    ] = None,
    keep: Annotated[bool, typer.Option(help="Leave service and data folder.")] = False,
) -> None:
    """Show the whole night on smart-home commands: before, training, gate, after.

    Starts a service of its own with a fresh data folder, and stops it at the end. The same seed
    gives the same expert on the same machine, unless --minutes lets the clock decide.
    """
    from app import demo as show

    options = show.Options(
        minutes=minutes, seed=seed, port=port, model=model, json_file=json_file, keep=keep
    )
    try:
        result = show.run(options, settings_of(context), console.output())
    except show.DemoError as error:
        raise Failure(str(error)) from error
    if not result.published:
        raise Failure("the gate did not publish the expert")


def show_doctor(context: typer.Context, as_json: Json = False) -> None:
    """Show what nightowl found on this machine, and what it means."""
    settings, origins = doctor.settings_with_origins(overrides_of(context))
    common: Common = context.obj
    report = doctor.examine(settings, origins, common.url)
    if as_json:
        print_json(report)
        return
    for line in doctor.lines(report):
        say(line)


def _log_to_stderr(settings: Settings) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("nightowl").setLevel(settings.log_level.upper())
