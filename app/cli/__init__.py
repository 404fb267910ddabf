"""The command `nightowl`.

Exit codes: 0 done, 1 failed (one line on standard error says why), 2 wrong usage or settings.
Results go to standard output, bars and remarks to standard error. What needs MLX is imported by the
command that needs it, so that the others start fast.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from app.cli import episodes, experts, graders, models, schedule, service, tasks, training
from app.cli.common import Common, Failure
from app.client import ServiceError, ServiceUnreachable
from app.config import ConfigError
from app.engine.folder import ModelError
from app.security import TokenFileError
from storage.errors import StorageError

FAILURES = (Failure, ServiceError, ServiceUnreachable, TokenFileError, ModelError, StorageError)

cli = typer.Typer(
    name="nightowl",
    help="Personal experts, trained on your own device while you sleep.",
    epilog="Example: nightowl demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@cli.callback()
def common(
    context: typer.Context,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="The data folder. Setting NIGHTOWL_DATA_DIR does the same."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Where the service is, if not at the configured host and port."),
    ] = None,
) -> None:
    """Options before the command's name."""
    overrides = {} if data_dir is None else {"data_dir": str(data_dir)}
    context.obj = Common(overrides, url)


service.add_to(cli)
training.add_to(cli)
cli.add_typer(models.cli, name="model")
cli.add_typer(tasks.cli, name="task")
cli.add_typer(graders.cli, name="grader")
cli.add_typer(episodes.cli, name="episode")
cli.add_typer(experts.cli, name="expert")
cli.add_typer(schedule.cli, name="schedule")


def main() -> None:
    """Runs the command line and exits."""
    try:
        cli(prog_name="nightowl")
    except ConfigError as error:
        _fail(str(error), 2)
    except FAILURES as error:
        _fail(str(error), 1)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}", 1)
    except Exception as error:
        if os.environ.get("NIGHTOWL_LOG_LEVEL") == "debug":
            raise
        told = f"{type(error).__name__}: {error}"
        _fail(f"a bug: {told} (NIGHTOWL_LOG_LEVEL=debug shows where)", 1)


def _fail(message: str, code: int) -> None:
    typer.echo(f"nightowl: {' '.join(message.split())}", err=True)
    raise SystemExit(code)
