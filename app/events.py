"""Server-sent events as a client reads them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class ServerEvent:
    """One server-sent event."""

    data: str
    type: str = "message"
    id: str | None = None


def parse_events(lines: Iterable[str]) -> Iterator[ServerEvent]:
    """Server-sent events out of lines; comments are skipped, an unfinished event is dropped."""
    fields: dict[str, str] = {}
    data: list[str] = []
    for line in lines:
        if not line:
            if data:
                yield ServerEvent("\n".join(data), fields.get("event", "message"), fields.get("id"))
            fields, data = {}, []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name:
            fields[name] = value
