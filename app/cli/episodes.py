"""`nightowl episode`: episodes as JSON lines, into the running service and out of it."""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from app import console
from app.cli.common import Failure, connect, say
from app.client import Client, ServiceError
from storage import atomic

cli = typer.Typer(help="Episodes as JSON lines: import, export.", no_args_is_help=True)

BATCH = 200  # episodes per request
BATCH_BYTES = 1_000_000  # the service takes bodies of 2 MiB unless configured otherwise
SERVER_FIELDS = frozenset({"id", "object", "created_at", "grade"})  # what an export has besides


@cli.command("import", epilog="Example: nightowl episode import episodes.jsonl --task home")
def import_file(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="One episode per line; - is standard input.")],
    task: Annotated[str | None, typer.Option(help="The task of lines that name none.")] = None,
) -> None:
    """Store the episodes of a file; each is graded.

    Importing a file again changes nothing: a line without an idempotency key gets one from its
    content. What `nightowl episode export` wrote can be imported.
    """
    with ExitStack() as stack:
        client = stack.enter_context(connect(context))
        text = sys.stdin if str(file) == "-" else stack.enter_context(file.open(encoding="utf-8"))
        episodes = list(_read(text, task))
        bar = console.Bar(console.messages(), "episodes", len(episodes), counts=True)
        stack.enter_context(bar)
        passed = 0
        for start, batch in _batches(episodes):
            passed += _store(client, batch, start)
            bar.at(start + len(batch))
    say(f"{len(episodes)} episodes are stored, {passed} of them passed")


@cli.command("export", epilog="Example: nightowl episode export --task home > episodes.jsonl")
def export_file(
    context: typer.Context,
    task: Annotated[str | None, typer.Option(help="Only the episodes of this task.")] = None,
    output: Annotated[Path | None, typer.Option(help="A file, instead of standard output.")] = None,
) -> None:
    """Write episodes with their grades, one JSON object per line, in order of arrival."""
    with connect(context) as client:
        lines = (episode.model_dump_json() + "\n" for episode in client.episodes(task))
        if output is None:
            sys.stdout.writelines(lines)
            return
        temporary = atomic.temporary_beside(output)
        with atomic.removed_on_error(temporary):
            with temporary.open("x", encoding="utf-8") as file:
                file.writelines(lines)
            temporary.replace(output)


def _read(lines: Iterable[str], task: str | None) -> Iterator[dict[str, Any]]:
    """The episodes of a file, ready to be posted. Raises Failure with the line's number."""
    seen: Counter[str] = Counter()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            episode = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Failure(f"line {number} is not JSON: {error}") from error
        if not isinstance(episode, dict):
            raise Failure(f"line {number} is not a JSON object")
        if task is not None:
            episode.setdefault("task", task)
        if "task" not in episode:
            raise Failure(f"line {number} names no task: name one with --task")
        yield _keyed(episode, seen)


def _keyed(episode: dict[str, Any], seen: Counter[str]) -> dict[str, Any]:
    """The episode as the service takes it, with a key that the same line always gets.

    Two equal lines of one file are two episodes: the key counts them.
    """
    plain = {key: value for key, value in episode.items() if key not in SERVER_FIELDS}
    calls = plain.pop("tool_calls", None)
    if calls:  # an export has what the answer called beside what it said
        said = plain.get("completion") or None
        plain["completion"] = {"role": "assistant", "content": said, "tool_calls": calls}
    if plain.get("idempotency_key") is not None:
        return plain
    text = json.dumps(plain, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    seen[digest] += 1
    return plain | {"idempotency_key": f"import-{digest[:48]}-{seen[digest]}"}


def _batches(
    episodes: list[dict[str, Any]],
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Parts that fit into a request, each with the number of episodes before it."""
    start, size = 0, 0
    for at, episode in enumerate(episodes):
        size += len(json.dumps(episode))
        if at > start and (at - start == BATCH or size > BATCH_BYTES):
            yield start, episodes[start:at]
            start, size = at, len(json.dumps(episode))
    if start < len(episodes):
        yield start, episodes[start:]


def _store(client: Client, batch: list[dict[str, Any]], before: int) -> int:
    """Stores a batch and returns how many passed. Raises Failure with how many were stored."""
    try:
        stored = client.add_episodes(batch)
    except ServiceError as error:
        place = ""
        index, _, field = (error.param or "").partition(".")
        if index.isdigit():
            place = f"episode {before + int(index) + 1}{f', {field}' if field else ''}: "
        raise Failure(f"{place}{error.message} ({before} episodes are stored)") from error
    return sum(episode.grade is not None and episode.grade.passed for episode in stored)
