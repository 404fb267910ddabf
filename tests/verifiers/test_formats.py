"""Formats against texts that have them and texts that nearly do."""

import uuid
from datetime import datetime, timedelta, timezone
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.formats import FORMATS

ZONES = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(timezones=ZONES))
def test_what_is_written_by_the_standard_library_has_its_format(moment: datetime) -> None:
    if moment.utcoffset() == timedelta(0):
        assert FORMATS["date-time"](moment.replace(tzinfo=None).isoformat() + "Z")
    assert FORMATS["date-time"](moment.isoformat())
    assert FORMATS["date"](moment.date().isoformat())
    assert FORMATS["time"](moment.timetz().isoformat())


@given(st.uuids(), st.ip_addresses(v=4), st.ip_addresses(v=6))
def test_identifiers_and_addresses(one: uuid.UUID, four: IPv4Address, six: IPv6Address) -> None:
    assert FORMATS["uuid"](str(one)) and FORMATS["uuid"](str(one).upper())
    assert FORMATS["ipv4"](str(four)) and not FORMATS["ipv6"](str(four))
    assert FORMATS["ipv6"](str(six)) and not FORMATS["ipv4"](str(six))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("date", "2023-02-29"),
        ("date", "20230228"),
        ("date", "2023-W01-1"),
        ("date", "2023-2-8"),
        ("date", "٢٠٢٣-٠٢-٢٨"),
        ("date", "2023-02-28\n"),
        ("time", "12:00:00"),
        ("time", "24:00:00Z"),
        ("time", "12:00Z"),
        ("time", "12:00:00+25:00"),
        ("time", "12:00:00.Z"),
        ("date-time", "2023-02-28 12:00:00Z"),
        ("date-time", "2023-02-28T12:00:00"),
        ("date-time", "2023-02-30T12:00:00Z"),
        ("email", "a@b@c"),
        ("email", "a b@c"),
        ("email", "@c"),
        ("ipv4", "1.2.3"),
        ("ipv4", "1.2.3.256"),
        ("ipv4", "01.2.3.4"),
        ("ipv4", "1.2.3.٤"),
        ("ipv6", "::1%eth0"),
        ("ipv6", "1::2::3"),
        ("uuid", "123e4567e89b12d3a456426614174000"),
        ("uuid", "123e4567-e89b-12d3-a456-42661417400g"),
    ],
)
def test_what_is_nearly_right_is_wrong(name: str, text: str) -> None:
    assert not FORMATS[name](text)


@pytest.mark.parametrize("name", FORMATS)
@given(text=st.text(max_size=40))
def test_any_text_has_a_format_or_not(name: str, text: str) -> None:
    assert FORMATS[name](text) in (True, False)


def test_an_address_of_mail_is_looked_at_roughly() -> None:
    assert FORMATS["email"]("owl@example.com")
