"""`nightowl expert`: the versions of each task's expert in the running service."""

from pathlib import Path
from typing import Annotated

import typer

from app import doctor
from app.api.schemas import ExpertPublic
from app.cli.common import Failure, Json, connect, print_json, print_table, say
from app.client import Client
from storage import atomic

cli = typer.Typer(help="Experts: list, activate, rollback, export.", no_args_is_help=True)
FILES = ("expert.safetensors", "manifest.json")
Expert = Annotated[str, typer.Argument(help="TASK@VERSION, or an expert's id.")]


@cli.command("list", epilog="Example: nightowl expert list --task home")
def list_all(
    context: typer.Context,
    task: Annotated[str | None, typer.Option(help="Only the versions of this task.")] = None,
    as_json: Json = False,
) -> None:
    """List the versions of all experts, or of one task's."""
    with connect(context) as client:
        experts = client.experts(task)
    if as_json:
        print_json(experts)
        return
    print_table(
        ("name", "state", "size", "held-out", "made", "id"),
        [
            (
                expert.name,
                expert.state,
                doctor.size(expert.bytes),
                _gate(expert),
                f"{expert.created_at:%Y-%m-%d %H:%M}Z",
                expert.id[:12],
            )
            for expert in experts
        ],
        "there are no experts yet: train one with `nightowl train TASK`",
    )


@cli.command(epilog="Example: nightowl expert activate home@2")
def activate(context: typer.Context, expert: Expert, as_json: Json = False) -> None:
    """Let a version answer for its task from the next request on."""
    with connect(context) as client:
        active = client.activate(_find(client, expert).id)
    if as_json:
        print_json(active)
    else:
        say(f"{active.name} answers for {active.task}")


@cli.command(epilog="Example: nightowl expert rollback home")
def rollback(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="The task's name.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Go back to the version that was active before, or to the base model."""
    with connect(context) as client:
        changed = client.rollback(task)
    if as_json:
        print_json(changed)
    else:
        say(f"{changed.active or 'the base model'} answers for {task}")


@cli.command(epilog="Example: nightowl expert export home@2 --output home-2")
def export(
    context: typer.Context,
    expert: Expert,
    output: Annotated[
        Path | None, typer.Option(help="A folder; TASK-VERSION here unless given.")
    ] = None,
) -> None:
    """Write a version's two files into a folder."""
    with connect(context) as client:
        found = _find(client, expert)
        folder = output or Path(f"{found.task}-{found.version}")
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            atomic.write_bytes(folder / name, client.download(found.id, name), mode=0o644)
    say(f"{found.name} is in {folder}: {', '.join(FILES)}")


def _find(client: Client, wanted: str) -> ExpertPublic:
    """The version of a name, an id, or the beginning of one. Raises Failure."""
    experts = client.experts()
    found = [expert for expert in experts if expert.name == wanted]
    if not found and len(wanted) >= 8:
        found = [expert for expert in experts if expert.id.startswith(wanted)]
    if len(found) != 1:
        raise Failure(f"there is no expert {wanted!r}: see `nightowl expert list`")
    return found[0]


def _gate(expert: ExpertPublic) -> str | None:
    """What the gate counted, before -> after; None for an expert it never saw."""
    gate = expert.gate
    if gate is None:
        return None
    return f"{gate['active_passed']} -> {gate['candidate_passed']} of {gate['n']}"
