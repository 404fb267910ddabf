"""The values of JSON Schema's `format` that are checked, each by its name.

`email` is only looked at roughly: something, one @, something, and no white space.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from datetime import date, time

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]+)?(?:[Zz]|[+-]([0-9]{2}:[0-9]{2}))")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")
_IPV4 = re.compile(r"[0-9.]{7,15}")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]{2,45}")


def _reads(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


def is_date(text: str) -> bool:
    """RFC 3339's full-date, of the calendar."""
    return bool(_DATE.fullmatch(text)) and _reads(date.fromisoformat, text)


def is_time(text: str) -> bool:
    """RFC 3339's full-time, with its zone; leap seconds are not taken."""
    match = _TIME.fullmatch(text)
    return match is not None and all(
        _reads(time.fromisoformat, part) for part in match.groups() if part is not None
    )


def is_date_time(text: str) -> bool:
    """RFC 3339's date-time."""
    return text[10:11] in ("T", "t") and is_date(text[:10]) and is_time(text[11:])


FORMATS: dict[str, Callable[[str], bool]] = {
    "date": is_date,
    "time": is_time,
    "date-time": is_date_time,
    "email": lambda text: bool(_EMAIL.fullmatch(text)),
    "ipv4": lambda text: bool(_IPV4.fullmatch(text)) and _reads(ipaddress.IPv4Address, text),
    "ipv6": lambda text: bool(_IPV6.fullmatch(text)) and _reads(ipaddress.IPv6Address, text),
    "uuid": lambda text: bool(_UUID.fullmatch(text)),
}
