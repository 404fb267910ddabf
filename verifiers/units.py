"""Units of measure, as many as questions at home and at school use, and their conversion.

Symbols are case-sensitive, since `mW` and `MW` differ, as `Mb` and `MB` do; words are not, and may
have a plural s. Names of several words are joined by a space or a hyphen. Areas and volumes are
made of the lengths (`square feet`, `sq ft`, `ft²`), and a ratio of any two units that are not
temperatures or percentages is a unit, too (`km/min`, `litres per day`). A product of units is one
only where it has a name here, as `kilowatt hours` have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
"""What stands for a unit that is not in the table, and for other words where a unit could be."""

TEMPERATURE = "temperature"
SPEED = "length/time"

# dimension: factor, symbols (the first names the unit), words ("_" is a space)
_TABLE: dict[str, tuple[tuple[str, str, str], ...]] = {
    "length": (
        ("1e-9", "nm", "nanometre nanometer"),
        ("1e-6", "µm μm um", "micrometre micrometer micron"),
        ("1e-3", "mm mms", "millimetre millimeter"),
        ("1e-2", "cm cms", "centimetre centimeter"),
        ("1e-1", "dm", "decimetre decimeter"),
        ("1", "m", "metre meter"),
        ("1e3", "km kms", "kilometre kilometer"),
        ("0.0254", "in", "inch inches"),
        ("0.3048", "ft", "foot feet"),
        ("0.9144", "yd yds", "yard"),
        ("1609.344", "mi", "mile"),
        ("1852", "nmi", "nautical_mile"),
        ("9460730472580800", "ly", "light_year lightyear"),
    ),
    "area": (("1e4", "ha", "hectare"), ("4046.8564224", "ac", "acre")),
    "volume": (
        ("1e-6", "ml mL mls", "millilitre milliliter"),
        ("1e-5", "cl cL", "centilitre centiliter"),
        ("1e-4", "dl dL", "decilitre deciliter"),
        ("1e-3", "l L", "litre liter"),
    ),
    "mass": (
        ("1e-6", "mg", "milligram"),
        ("1e-3", "g", "gram"),
        ("1", "kg kgs", "kilogram kilo"),
        ("1e3", "t", "tonne metric_ton"),
        ("0.45359237", "lb lbs", "pound"),
        ("0.028349523125", "oz", "ounce"),
    ),
    "time": (
        ("1e-3", "ms", "millisecond"),
        ("1", "s sec secs", "second"),
        ("60", "min mins", "minute"),
        ("3600", "h hr hrs", "hour"),
        ("86400", "d", "day"),
        ("604800", "wk wks", "week"),
    ),
    SPEED: (
        ("5/18", "kmh kph kmph KM/H", ""),
        ("0.44704", "mph", ""),
        ("463/900", "kn kt kts", "knot"),
    ),
    "energy": (
        ("1", "J", "joule"),
        ("1e3", "kJ", "kilojoule"),
        ("1e6", "MJ", "megajoule"),
        ("3600", "Wh W·h W_h", "watt_hour watthour"),
        ("3.6e6", "kWh kW·h kW_h", "kilowatt_hour kilowatthour"),
        ("3.6e9", "MWh MW·h MW_h", "megawatt_hour megawatthour"),
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
        ("100", "hPa mbar", "hectopascal millibar"),
        ("1e3", "kPa", "kilopascal"),
        ("1e5", "bar", ""),
    ),
    "data": (
        ("1/8", "bit", "bit"),
        ("125", "kb kbit", "kilobit"),
        ("125e3", "Mb Mbit", "megabit"),
        ("125e6", "Gb Gbit", "gigabit"),
        ("1", "B", "byte"),
        ("1e3", "kB KB", "kilobyte"),
        ("1e6", "MB", "megabyte"),
        ("1e9", "GB", "gigabyte"),
        ("1e12", "TB", "terabyte"),
        ("1024", "KiB", "kibibyte"),
        ("1048576", "MiB", "mebibyte"),
        ("1073741824", "GiB", "gibibyte"),
    ),
    "data/time": (("125", "kbps", ""), ("125e3", "Mbps", ""), ("125e6", "Gbps", "")),
    "light": (("1", "lm", "lumen"),),
    "illuminance": (("1", "lx", "lux"),),
    "loudness": (("1", "dB", "decibel"),),
}
_TEMPERATURES = (
    (Unit("K", TEMPERATURE, Fraction(1)), "K", "kelvin"),
    (Unit("°C", TEMPERATURE, Fraction(1), Fraction("273.15")), "°C ℃ C", "celsius centigrade"),
    (Unit("°F", TEMPERATURE, Fraction(5, 9), Fraction("459.67") * 5 / 9), "°F ℉ F", "fahrenheit"),
)
_NO_RATIO = frozenset({TEMPERATURE, PERCENT.dimension})

Row = tuple[Unit, list[str], list[str]]


def _fraction(text: str) -> Fraction:
    top, _, bottom = text.partition("/")
    return Fraction(top) / Fraction(bottom or 1)


def _rows() -> Iterator[Row]:
    """The units of the table and the powers of its lengths, with their symbols and words."""
    for dimension, units in _TABLE.items():
        for factor, signs, names in units:
            symbols, words = (
                [name.replace("_", " ") for name in some.split()] for some in (signs, names)
            )
            unit = Unit(symbols[0], dimension, _fraction(factor))
            yield unit, symbols, words
            if dimension == "length":
                yield _power(unit, symbols, words, "area", 2, "²", ("square", "sq"))
                yield _power(unit, symbols, words, "volume", 3, "³", ("cubic", "cu"))


def _power(
    unit: Unit,
    symbols: list[str],
    words: list[str],
    dimension: str,
    exponent: int,
    raised: str,
    before: tuple[str, str],
) -> Row:
    signs = [one + mark for one in symbols for mark in (raised, f"^{exponent}", str(exponent))]
    signs += [f"{one}^{{{exponent}}}" for one in symbols]
    signs += ["sqm"] if signs[0] == "m²" else []
    signs += [f"{square} {one}" for one in symbols for square in (*before, f"{before[1]}.")]
    names = [f"{square} {one}" for one in words for square in before]
    return Unit(signs[0], dimension, unit.factor**exponent), signs, names


def _has_one_meaning(symbol: str, unit: Unit) -> bool:
    """Whether a symbol is the same unit in upper and lower case.

    `m` and `M` are milli and mega, bits and bytes differ by case, and a letter alone has many
    meanings, as `Nm`, `kN` and `Cal` have another one.
    """
    lower = symbol.lower()
    if "data" in unit.dimension or len(symbol) == 1 or "/" in symbol:
        return False
    if lower in ("nm", "kn", "kt", "kts", "cal"):
        return False
    return lower[0] != "m" or lower in ("mi", "min", "mins", "mph")


def _index() -> tuple[dict[str, Unit], dict[str, Unit]]:
    """The units by their symbols, and by their words in lower case."""
    symbols = {"%": PERCENT, "\\%": PERCENT, "°": DEGREE, "deg": DEGREE}
    words = dict.fromkeys(("percent", "per cent", "pct"), PERCENT)
    words.update(dict.fromkeys(("degree", "degrees"), DEGREE))
    for unit, signs, names in _rows():
        symbols.update(dict.fromkeys(signs, unit))
        words.update((sign.lower(), unit) for sign in signs if _has_one_meaning(sign, unit))
        for name in names:
            words.update({name: unit, name + "s": unit})
    for unit, signs_text, names_text in _TEMPERATURES:
        symbols.update(dict.fromkeys(signs_text.split(), unit))
        letter, *names = unit.symbol[-1].lower(), *names_text.split()
        words.update(dict.fromkeys((*names, *(f"{name}s" for name in names)), unit))
        for degree in ("degree ", "degrees ", "deg ", "deg. ", "° ", "°", "º ", "º", "˚"):
            words.update(dict.fromkeys((degree + name for name in (*names, letter)), unit))
    return symbols, words


_SYMBOLS, _WORDS = _index()


def _names() -> str:
    """An expression of all symbols and words, the longest first."""
    names = {name: re.escape(name) for name in _SYMBOLS}
    names.update((name, f"(?i:{re.escape(name)})") for name in _WORDS)
    longest_first = sorted(names, key=len, reverse=True)
    return "|".join(names[name].replace(r"\ ", r"[ \xa0\u202f-]") for name in longest_first)


_ONE = re.compile(rf"(?:{_names()})(?!\w)")
_SPACES = re.compile("[ \xa0\u202f-]")
_PER = re.compile(r"\s?/\s?(?=[^\W\d_]|°)|\s+per\s+|\s+an?\s+(?=(?:second|minute|hour|day|week)\b)")
_GOES_ON = re.compile(r"[/^²³·⋅]\w?|\s?[·⋅*×]\s?[^\W\d_]+")
_SPACE = re.compile(r"\s?")
_RAISED = re.compile(r"[ \xa0\u202f-](squared|cubed)(?!\w)")
_RAISED_BY = {"squared": "²", "cubed": "³"}
# Words that say how a number counts; what it counts may come after them.
_COUNTING = re.compile(
    r"\s?(?i:in\s+total|in\s+all|total|altogether|overall|more|remaining|each|exactly|also|again"
    r"|too)\s+(?=[^\W\d_])"
)
_JOINED = re.compile(r"-([^\W\d_]+)")
_PER_OTHER = re.compile(r"/\s?[^\W\d_]+")
_OTHER_WORD = re.compile(r"[^\W\d_][\w²³]*(?:[/^]\w*)*")
# Words after a number that are no unit: what the number is said of comes later, or came before.
_NO_UNIT_WORDS = (
    "about above after again all also altogether and any approximately are around as at away "
    "because before below but by deep each exactly for from given hence here high however i "
    "if in inside instead into is it long more now of off on only or out outside over "
    "overall please remain remaining right roughly since so tall than that the then there "
    "therefore these this thus to today together tomorrow tonight too total under until was "
    "we were when where which while wide will with within would yesterday you"
)
_NO_UNIT = frozenset(_NO_UNIT_WORDS.split())
_AFTER_INCH = re.compile(r"\s?(?:(?:wide|long|tall|high|deep|thick)\b|[^\w\s]|$)")


def find_unit(text: str, position: int) -> tuple[Unit | None, int]:
    """Read the unit at a position, after at most one space: the unit and where it ends.

    None where there is no word, or one that is no unit for certain; UNKNOWN for any other.
    """
    counting = _COUNTING.match(text, position)
    start = (counting or _SPACE.match(text, position)).end()  # type: ignore[union-attr]
    unit, end = _one(text, start)
    if unit is None:
        word = _OTHER_WORD.match(text, start) or _PER_OTHER.match(text, start)
        if word is None or word[0].lower() in _NO_UNIT:
            return None, position
        return UNKNOWN, word.end()
    per = _PER.match(text, end)
    if per is not None:
        below, below_end = _one(text, per.end())
        if below is None or {unit.dimension, below.dimension} & _NO_RATIO:
            return UNKNOWN, per.end()
        unit, end = _ratio(unit, below), below_end
    return _alone(text, unit, end)


def _one(text: str, position: int) -> tuple[Unit | None, int]:
    match = _ONE.match(text, position)
    if match is None:
        return None, position
    name = _SPACES.sub(" ", match[0])
    if name.lower() == "in" and not _AFTER_INCH.match(text, match.end()):
        return None, position
    unit = _SYMBOLS.get(name) or _WORDS[name.lower()]
    raised = _RAISED.match(text, match.end()) if unit.dimension == "length" else None
    if raised is not None:
        return _SYMBOLS[unit.symbol + _RAISED_BY[raised[1]]], raised.end()
    return unit, match.end()


def _ratio(above: Unit, below: Unit) -> Unit:
    return Unit(
        f"{above.symbol}/{below.symbol}",
        f"{above.dimension}/{below.dimension}",
        above.factor / below.factor,
    )


def _alone(text: str, unit: Unit, end: int) -> tuple[Unit, int]:
    """A unit is another, unknown one where a factor, a second unit or a hyphen follows it."""
    more = _GOES_ON.match(text, end)
    if more is not None:
        return UNKNOWN, more.end()
    if _SPACE.match(text, end).end() > end:  # type: ignore[union-attr]
        second, second_end = _one(text, end + 1)
        return (unit, end) if second is None else (UNKNOWN, second_end)
    joined = _JOINED.match(text, end)
    if joined is not None and joined[1].lower() not in _NO_UNIT:
        return UNKNOWN, joined.end()
    return unit, end


def part_of(larger: Unit, unit: Unit) -> Unit | None:
    """The smaller unit that goes on with a larger one; after time, `m` is minutes."""
    if unit.symbol == "m" and larger.dimension == "time":
        unit = _SYMBOLS["min"]
    goes_on = unit.dimension == larger.dimension and 0 < unit.factor < larger.factor
    return unit if goes_on and not unit.offset else None


def unit_named(text: str) -> Unit:
    """Return the unit of that symbol or word; raises ValueError."""
    unit, end = find_unit(text, 0)
    if unit is None or unit is UNKNOWN or end != len(text) or text != text.strip():
        raise ValueError(f"{text!r} is not a known unit, such as 'km', 'kWh', '°C' or 'percent'")
    return unit


def convert(value: Fraction, unit: Unit, into: Unit) -> Fraction:
    """Convert a value between units of the same dimension."""
    return (value * unit.factor + unit.offset - into.offset) / into.factor
