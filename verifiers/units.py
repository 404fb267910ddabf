"""Units of measure, as many as questions at home and at school use, and their conversion.

Symbols are case-sensitive, since `mW` and `MW` differ; words are not, and may have a plural s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Unit:
    """A unit: a value in it is `value * factor + offset` in its dimension's base unit."""

    symbol: str
    dimension: str
    factor: Fraction
    offset: Fraction = Fraction(0)


PERCENT = Unit("%", "percent", Fraction(1))
DEGREE = Unit("°", "angle", Fraction(1))
UNKNOWN = Unit("?", "unknown", Fraction(1))
"""What stands for a unit made of known ones that is not in the table itself, such as `km/min`."""

TEMPERATURE = "temperature"

# dimension: factor, symbols (the first names the unit), words
_TABLE: dict[str, tuple[tuple[str, str, str], ...]] = {
    "length": (
        ("1e-9", "nm", "nanometre nanometer"),
        ("1e-6", "µm μm um", "micrometre micrometer micron"),
        ("1e-3", "mm", "millimetre millimeter"),
        ("1e-2", "cm", "centimetre centimeter"),
        ("1e-1", "dm", "decimetre decimeter"),
        ("1", "m", "metre meter"),
        ("1e3", "km", "kilometre kilometer"),
        ("0.0254", "in", "inch inches"),
        ("0.3048", "ft", "foot feet"),
        ("0.9144", "yd", "yard"),
        ("1609.344", "mi", "mile"),
    ),
    "area": (
        ("1e-4", "cm² cm^2 cm2", ""),
        ("1", "m² m^2 m2 sqm", ""),
        ("1e4", "ha", "hectare"),
        ("1e6", "km² km^2 km2", ""),
    ),
    "volume": (
        ("1e-6", "ml mL cm³ cm^3 cm3", "millilitre milliliter"),
        ("1e-5", "cl cL", "centilitre centiliter"),
        ("1e-4", "dl dL", "decilitre deciliter"),
        ("1e-3", "l L", "litre liter"),
        ("1", "m³ m^3 m3", ""),
    ),
    "mass": (
        ("1e-6", "mg", "milligram"),
        ("1e-3", "g", "gram"),
        ("1", "kg", "kilogram kilo"),
        ("1e3", "t", "tonne"),
        ("0.45359237", "lb lbs", "pound"),
        ("0.028349523125", "oz", "ounce"),
    ),
    "time": (
        ("1e-3", "ms", "millisecond"),
        ("1", "s sec", "second secs"),
        ("60", "min", "minute mins"),
        ("3600", "h hr", "hour hrs"),
        ("86400", "d", "day"),
        ("604800", "wk", "week"),
    ),
    "speed": (
        ("1", "m/s", ""),
        ("5/18", "km/h kmh kph", ""),
        ("0.44704", "mph", ""),
    ),
    "energy": (
        ("1", "J", "joule"),
        ("1e3", "kJ", "kilojoule"),
        ("1e6", "MJ", "megajoule"),
        ("3600", "Wh", ""),
        ("3.6e6", "kWh", ""),
        ("3.6e9", "MWh", ""),
        ("4.184", "cal", "calorie"),
        ("4184", "kcal", "kilocalorie"),
    ),
    "power": (
        ("1e-3", "mW", "milliwatt"),
        ("1", "W", "watt"),
        ("1e3", "kW", "kilowatt"),
        ("1e6", "MW", "megawatt"),
    ),
    "voltage": (("1e-3", "mV", "millivolt"), ("1", "V", "volt"), ("1e3", "kV", "kilovolt")),
    "current": (("1e-3", "mA", "milliamp milliampere"), ("1", "A", "amp ampere")),
    "frequency": (
        ("1", "Hz", "hertz"),
        ("1e3", "kHz", "kilohertz"),
        ("1e6", "MHz", "megahertz"),
        ("1e9", "GHz", "gigahertz"),
    ),
    "pressure": (
        ("1", "Pa", "pascal"),
        ("100", "hPa mbar", "millibar"),
        ("1e3", "kPa", ""),
        ("1e5", "bar", ""),
    ),
    "data": (
        ("1", "B", "byte"),
        ("1e3", "kB KB", "kilobyte"),
        ("1e6", "MB", "megabyte"),
        ("1e9", "GB", "gigabyte"),
        ("1e12", "TB", "terabyte"),
        ("1024", "KiB", ""),
        ("1048576", "MiB", ""),
        ("1073741824", "GiB", ""),
    ),
    "light": (("1", "lm", "lumen"),),
    "illuminance": (("1", "lx", "lux"),),
    "loudness": (("1", "dB", "decibel"),),
}
_TEMPERATURES = (
    (Unit("K", TEMPERATURE, Fraction(1)), "K", "kelvin"),
    (
        Unit("°C", TEMPERATURE, Fraction(1), Fraction("273.15")),
        "°C ℃ C",
        "celsius",
    ),
    (
        Unit("°F", TEMPERATURE, Fraction(5, 9), Fraction("459.67") * 5 / 9),
        "°F ℉ F",
        "fahrenheit",
    ),
)


def _index() -> tuple[dict[str, Unit], dict[str, Unit]]:
    """The units by their symbols, and by their words in lower case."""
    symbols = {"%": PERCENT, "\\%": PERCENT, "°": DEGREE, "deg": DEGREE}
    words = {"percent": PERCENT, "per cent": PERCENT, "pct": PERCENT, "degree": DEGREE}
    words["degrees"] = DEGREE
    rows = [
        (Unit(signs.split()[0], dimension, Fraction(factor)), signs, names)
        for dimension, units in _TABLE.items()
        for factor, signs, names in units
    ]
    for unit, signs, names in (*rows, *_TEMPERATURES):
        symbols.update(dict.fromkeys(signs.split(), unit))
        for name in names.split():
            words.update({name: unit, name + "s": unit})
            if unit.dimension == TEMPERATURE:
                words.update({f"degree {name}": unit, f"degrees {name}": unit})
    return symbols, words


_SYMBOLS, _WORDS = _index()


def _any_of(names: dict[str, Unit]) -> str:
    return "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))


# A unit goes on as another, unknown one where a sign of multiplication or division follows.
_UNIT = re.compile(
    rf"\s?(?:(?P<symbol>{_any_of(_SYMBOLS)})|(?P<word>(?i:{_any_of(_WORDS)})))"
    r"(?:(?P<more>[/^²³·]\w?)|(?!\w))"
)


def find_unit(text: str, position: int) -> tuple[Unit | None, int]:
    """Read the unit at a position, after at most one space: the unit and where it ends."""
    match = _UNIT.match(text, position)
    if match is None:
        return None, position
    if match["more"]:
        return UNKNOWN, match.end()
    symbol, word = match["symbol"], match["word"]
    return (_SYMBOLS[symbol] if symbol else _WORDS[word.lower()]), match.end()


def unit_named(text: str) -> Unit:
    """Return the unit of that symbol or word; raises ValueError."""
    unit, end = find_unit(text, 0)
    if unit is None or unit is UNKNOWN or end != len(text) or text != text.strip():
        raise ValueError(f"{text!r} is not a known unit, such as 'km', 'kWh', '°C' or 'percent'")
    return unit


def convert(value: Fraction, unit: Unit, into: Unit) -> Fraction:
    """Convert a value between units of the same dimension."""
    return (value * unit.factor + unit.offset - into.offset) / into.factor
