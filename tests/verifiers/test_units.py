"""Units against equalities that everyone knows, and their names."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.units import UNKNOWN, convert, find_unit, unit_named


@pytest.mark.parametrize(
    ("one", "unit", "other", "into"),
    [
        ("1", "km", "1000", "m"),
        ("1", "mile", "1.609344", "km"),
        ("1", "ft", "12", "in"),
        ("3", "feet", "1", "yd"),
        ("1", "m²", "10000", "cm^2"),
        ("1", "ha", "0.01", "km²"),
        ("1", "L", "1000", "ml"),
        ("1", "m3", "1000", "litres"),
        ("1", "lb", "16", "oz"),
        ("1", "tonne", "1000", "kg"),
        ("1", "week", "168", "h"),
        ("90", "minutes", "1.5", "hours"),
        ("36", "km/h", "10", "m/s"),
        ("1", "kWh", "3.6", "MJ"),
        ("1", "kcal", "4.184", "kJ"),
        ("1", "bar", "1000", "mbar"),
        ("1", "GB", "1000", "MB"),
        ("1", "GiB", "1024", "MiB"),
        ("100", "°C", "212", "°F"),
        ("-40", "C", "-40", "fahrenheit"),
        ("0", "K", "-273.15", "degrees Celsius"),
        ("5", "%", "5", "per cent"),
        ("1", "kilowatt hour", "3.6", "MJ"),
        ("1", "kilowatt-hours", "1", "kW·h"),
        ("1", "mph", "1", "miles per hour"),
        ("36", "km per hour", "10", "meters per second"),
        ("1", "knot", "1", "nautical miles / hour"),
        ("1", "square yard", "9", "sq. ft"),
        ("1", "cubic metre", "1000", "l"),
        ("1", "m^{2}", "1", "square meters"),
        ("1", "MB", "8", "Mb"),
        ("8", "Mbps", "1", "MB/s"),
        ("1", "kg/m³", "1000", "g/m3"),
        ("60", "litres per hour", "1", "l/min"),
        ("68", "deg. f", "20", "° C"),
        ("1", "KM", "1", "Km"),
        ("42", "kwh", "42", "KWH"),
        ("50", "kmph", "50", "KM/H"),
        ("21.5", "ºC", "21.5", "°C"),
        ("12", "meters squared", "12", "square m"),
        ("1", "foot cubed", "1", "cu ft"),
    ],
)
def test_known_equalities(one: str, unit: str, other: str, into: str) -> None:
    assert convert(Fraction(one), unit_named(unit), unit_named(into)) == Fraction(other)
    assert convert(Fraction(other), unit_named(into), unit_named(unit)) == Fraction(one)
    assert unit_named(unit).dimension == unit_named(into).dimension


@pytest.mark.parametrize(
    ("text", "symbol", "end"),
    [
        (" km", "km", 3),
        ("km.", "km", 2),
        (" kilometres away", "km", 11),
        (" KILOMETERS", "km", 11),
        ("km/h", "km/h", 4),
        (" mi", "mi", 3),
        (" min", "min", 4),
        (" minutes", "min", 8),
        ("mW", "mW", 2),
        ("MW", "MW", 2),
        ("m^2", "m²", 3),
        ("°", "°", 1),
        (" degrees", "°", 8),
        (" degrees fahrenheit", "°F", 19),
        ("\\%", "%", 2),
        ("\u00a0kg", "kg", 3),
        (" square feet of it", "ft²", 12),
        ("° Fahrenheit", "°F", 12),
        (" in.", "in", 3),
        (" in wide", "in", 3),
        (" m in total", "m", 2),
        (" litres a day", "l/d", 13),
    ],
)
def test_the_longest_unit_is_read(text: str, symbol: str, end: int) -> None:
    unit, found_end = find_unit(text, 0)
    assert unit is not None and (unit.symbol, found_end) == (symbol, end)


@pytest.mark.parametrize("text", ["", " ", "  km", " in total", " of", ".", "!", " outside"])
def test_what_only_goes_on_with_the_sentence_is_none(text: str) -> None:
    assert find_unit(text, 0) == (None, 0)


@pytest.mark.parametrize(
    "text",
    [
        " apples", " parsecs", "kmx", "km2x", "MM", "Mm", " per hour", "m_", "/day", "公里", "m³s",
        "kg·m", "kg-force", "pound feet", "m m", "m/s²", "km/parsec", "°C/h", "km per 5", "gb",
        "mwh", "NM",
    ],
)  # fmt: skip
def test_other_words_are_unknown_units(text: str) -> None:
    assert find_unit(text, 0)[0] is UNKNOWN


@pytest.mark.parametrize("text", ["", "apples", " km", "km ", "km/pc", "5 km"])
def test_a_name_that_is_no_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a known unit"):
        unit_named(text)


@given(st.text(max_size=20), st.integers(0, 5))
def test_any_text_is_read(text: str, position: int) -> None:
    unit, end = find_unit(text, position)
    assert end == position if unit is None else end > position
