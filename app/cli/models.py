"""`nightowl model`: base models on this computer. Needs no running service."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from app import console, doctor
from app.cli.common import Json, print_json, print_table, say, settings_of
from app.engine.folder import BUILTIN, ModelInfo, resolve, show

cli = typer.Typer(help="Base models: pull, list, show.", no_args_is_help=True)


@cli.command(epilog="Example: nightowl model pull mlx-community/Qwen3-8B-4bit")
def pull(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(help="The embedded model, or a hub id ORG/REPO.")
    ] = BUILTIN,
    as_json: Json = False,
) -> None:
    """Install a base model. The only command that goes online."""
    from app.engine import models

    folder = settings_of(context).models
    with console.pull_bar(console.messages(), name) as progress:
        path = models.pull(name, folder, progress)
    info = show(path)
    if as_json:
        print_json(_public(info))
    else:
        say(f"{info.name} is installed: {_size(info.bytes)}, {info.quantisation}")


@cli.command("list", epilog="Example: nightowl model list")
def list_all(context: typer.Context, as_json: Json = False) -> None:
    """List the installed base models; broken ones with what is wrong."""
    good, broken = doctor.found_models(settings_of(context).models)
    if as_json:
        print_json([*map(_public, good), *broken])
        return
    print_table(
        ("name", "family", "quantisation", "size", "coordinates", "expert"),
        [
            (
                info.name,
                info.family,
                info.quantisation,
                _size(info.bytes),
                f"{info.spectral_coordinates:,}",
                _size(info.expert_bytes),
            )
            for info in good
        ],
        f"no base model is installed: run `nightowl model pull {BUILTIN}`",
    )
    for model in broken:
        say(f"{model['name']} is broken: {model['error']}")


@cli.command("show", epilog="Example: nightowl model show smollm2-135m")
def show_one(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="An installed name, or a folder.")],
    as_json: Json = False,
) -> None:
    """Show one base model: size, family, quantisation, what an expert of it takes."""
    info = show(resolve(name, settings_of(context).models))
    if as_json:
        print_json(_public(info))
        return
    share = info.spectral_coordinates / info.parameters
    rows = [
        ("name", info.name),
        ("folder", info.path),
        ("family", info.family),
        ("layers", info.layers),
        ("hidden size", info.hidden_size),
        ("vocabulary", info.vocab_size),
        ("quantisation", info.quantisation),
        ("parameters", f"{info.parameters:,}"),
        ("weight files", _size(info.bytes)),
        ("coordinates", f"{info.spectral_coordinates:,} ({share:.3%} of the parameters)"),
        ("expert", _size(info.expert_bytes)),
        ("hash", info.base_hash),
    ]
    for label, value in rows:
        say(f"{label:<14}{value}")


def _public(info: ModelInfo) -> dict[str, Any]:
    return asdict(info) | {"path": str(info.path)}


def _size(count: int) -> str:
    return doctor.size(count)
