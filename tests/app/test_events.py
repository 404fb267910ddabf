"""Server-sent events as a client reads them."""

from __future__ import annotations

from app.events import ServerEvent, parse_events


def test_events_are_read_as_the_standard_says() -> None:
    lines = [
        ": comment",
        "",
        "id: 1",
        "event: progress",
        'data: {"a":',
        "data:1}",
        "",
        "data: last",
        "",
        "data: unfinished",
    ]
    assert list(parse_events(lines)) == [
        ServerEvent('{"a":\n1}', "progress", "1"),
        ServerEvent("last"),
    ]
