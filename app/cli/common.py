"""What all commands share: settings, the client, output, and how they fail."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.table import Table

from app import console
from app.client import Client
from app.config import Settings, load_settings


class Failure(Exception):
    """The command failed; the message is the one line that the user sees."""


@dataclass(frozen=True)
class Common:
    """The options before the command's name."""

    overrides: dict[str, Any]
    url: str | None


Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def settings_of(context: typer.Context, **options: Any) -> Settings:
    """The settings in force; `options` that are not None come first. Raises ConfigError."""
    return load_settings(overrides=overrides_of(context, **options))


def overrides_of(context: typer.Context, **options: Any) -> dict[str, Any]:
    """The settings that were given as options."""
    common: Common = context.obj
    return common.overrides | {key: value for key, value in options.items() if value is not None}


def connect(context: typer.Context) -> Client:
    """A client of the running service. Raises ServiceUnreachable, TokenFileError, ConfigError."""
    common: Common = context.obj
    return Client.of(settings_of(context), common.url)


def print_json(value: Any) -> None:
    """A model, or a list of them, or plain data."""
    typer.echo(json.dumps(_plain(value), indent=2, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return value


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """A table; `empty` is printed instead when there are no rows."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*("-" if cell is None else str(cell) for cell in row))
    if table.row_count:
        console.output().print(table, markup=False)
    else:
        console.output().print(empty, markup=False)


def say(text: str) -> None:
    """A line of result, as it is."""
    typer.echo(text)


def shown(text: str) -> str:
    """A text of any length as one short line."""
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:59]}…"


def text_argument(value: str) -> str:
    """A text, or with `@FILE` what a file holds. Raises BadParameter."""
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise typer.BadParameter(f"{value[1:]} cannot be read: {reason}") from error


def json_argument(value: str) -> Any:
    """A JSON value given as text or as `@FILE`. Raises BadParameter."""
    try:
        return json.loads(text_argument(value))
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"is not valid JSON: {error}") from error


def pairs_argument(values: Sequence[str]) -> dict[str, Any]:
    """`["lr=0.1", "fitness=score"]` as an object; values that are JSON are read as such."""
    pairs: dict[str, Any] = {}
    for value in values:
        key, sign, text = value.partition("=")
        if not key or not sign:
            raise typer.BadParameter(f"{value!r} is not of the form KEY=VALUE")
        try:
            pairs[key] = json.loads(text)
        except ValueError:
            pairs[key] = text  # a word such as `score` needs no quotes
    return pairs
