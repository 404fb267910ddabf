"""Templates of grader configurations: text with places for parts of the item and of the completion.

As in OpenAI's graders there are two name spaces, and a path goes deeper by `.key` and `[0]`:

* `{{ item.a.b }}`: a field of the item;
* `{{ sample.output_text }}`: the completion;
* `{{ sample.output_json.a[0] }}`: a value of the completion, which is one JSON value;
* `{{ sample.output_tools[0].function.name }}`: a value of the tool calls, in the shape they have in
  chat completions, without ids; `function.arguments` is JSON text. Where no tool calls were parsed
  from the completion, they are the calls that its text spells as JSON, `{"name", "arguments"}`.

`output_json` and `output_tools` can also be written as filters, `sample.output_text | output_json`.

A template is parsed once, when the grader is built. Filling it in is one pass: braces that come out
of an item or a completion are plain text. Text goes in as it is, any other value as JSON writes it:
1.0 of an item is `1.0`. Only where a place reads a JSON value of the completion are whole numbers
written `1`, those of the item too, since a completion may write the same number either way. What
the item lacks is the item's mistake; what the completion lacks makes the completion fail.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import AfterValidator

from verifiers.base import ItemError, OutputError, Sample
from verifiers.calls import read_calls
from verifiers.parsing import Malformed, parse_json
from verifiers.readings import Shape
from verifiers.values import Missing, is_unicode, look_up

Source: TypeAlias = Literal["output_text", "output_json", "output_tools"]
Steps: TypeAlias = tuple[str, ...]

_EXPRESSION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_ITEM_EXPRESSION = re.compile(r"\{\{\s*item\.(.*?)\s*\}\}")
_DEEPER = r"(?:\.[A-Za-z0-9_-]+|\[(?:0|[1-9][0-9]{0,5})\])*"
_PATH = re.compile(rf"[A-Za-z0-9_-]+{_DEEPER}")
_SAMPLE = re.compile(
    r"sample\.(?:(output_text)|(?:output_text\s*\|\s*)?(output_json|output_tools)"
    rf"({_DEEPER}))"
)
_INDEX = re.compile(r"\[([0-9]+)\]")


@dataclass(frozen=True)
class OutputPlace:
    """A place in a template that stays open until there is a completion."""

    source: Source
    path: Steps = ()

    def text(self, sample: Sample) -> str:
        """Return what the completion has there; raises OutputError if that is nothing or null."""
        if self.source == "output_text":
            return sample.output_text
        try:
            value = look_up(_output_value(self.source, sample), self.path)
        except (Malformed, Missing) as error:
            raise OutputError from error
        text = _text(_whole(value))
        if value is None or not is_unicode(text):
            raise OutputError
        return text


@dataclass(frozen=True)
class Bound:
    """A template whose item fields are filled in; only the completion is open."""

    pieces: tuple[str | OutputPlace, ...]

    @property
    def text(self) -> str | None:
        """The whole text if the completion has no place in it, else None."""
        texts = [piece for piece in self.pieces if isinstance(piece, str)]
        return "".join(texts) if len(texts) == len(self.pieces) else None

    def render(self, sample: Sample) -> str:
        """Return the text with the completion in its places; raises OutputError."""
        return "".join(
            piece if isinstance(piece, str) else piece.text(sample) for piece in self.pieces
        )


@dataclass(frozen=True)
class Template:
    """A parsed template: literal texts, paths into the item, places of the completion."""

    pieces: tuple[str | Steps | OutputPlace, ...]

    @property
    def uses_output(self) -> bool:
        """True when the completion has a place in the template."""
        return any(isinstance(piece, OutputPlace) for piece in self.pieces)

    @property
    def reads_json(self) -> bool:
        """True when a place reads a JSON value of the completion, not its text."""
        places = (piece for piece in self.pieces if isinstance(piece, OutputPlace))
        return any(place.source != "output_text" for place in places)

    @property
    def constant(self) -> str | None:
        """The text that the template always gives, None if it depends on anything."""
        texts = [piece for piece in self.pieces if isinstance(piece, str)]
        return "".join(texts) if len(texts) == len(self.pieces) else None

    def bind(self, item: dict[str, Any], beside_json: bool = False) -> Bound:
        """Fill in the item's fields; raises ItemError for one that is missing or null.

        `beside_json`: what it is compared with reads a JSON value of the completion.
        """
        whole = beside_json or self.reads_json
        return Bound(
            tuple(
                _item_text(item, piece, whole) if isinstance(piece, tuple) else piece
                for piece in self.pieces
            )
        )


def parse_template(text: str) -> Template:
    """Parse a template; raises ValueError that says which expression is wrong."""
    pieces: list[str | Steps | OutputPlace] = []
    position = 0
    for match in _EXPRESSION.finditer(text):
        pieces.append(_literal(text[position : match.start()]))
        pieces.append(_expression(match.group(1).strip()))
        position = match.end()
    pieces.append(_literal(text[position:]))
    return Template(tuple(pieces))


def parse_path(text: str) -> Steps:
    """Parse a path into the item, bare or as `{{ item.path }}`; raises ValueError."""
    match = _ITEM_EXPRESSION.fullmatch(text)
    path = match.group(1) if match else text
    if not _PATH.fullmatch(path):
        raise ValueError(f"{text!r} is not a path into the item, such as 'answer' or 'wanted.call'")
    return _steps(path)


def item_value(item: dict[str, Any], path: Steps | str) -> Any:
    """Return the item's value at a path, null included; raises ItemError."""
    try:
        return look_up(item, path.split(".") if isinstance(path, str) else path)
    except Missing as error:
        raise ItemError(f"the item has no field '{error}'") from error


def _checked(text: str) -> str:
    parse_template(text)
    return text


def _with_output(text: str) -> str:
    if not parse_template(text).uses_output:
        raise ValueError("the completion is not used: no sample.output_...")
    return text


def _without_output(text: str) -> str:
    if parse_template(text).uses_output:
        raise ValueError("has a place for the completion")
    return text


AnyTemplate = Annotated[str, AfterValidator(_checked)]
"""A field of a configuration that is a template."""

OutputTemplate = Annotated[str, AfterValidator(_with_output)]
"""A template in which the completion has a place."""

ItemTemplate = Annotated[str, AfterValidator(_without_output)]
"""A template in which it has none."""

ItemPath = Annotated[str, AfterValidator(lambda text: ".".join(parse_path(text)))]
"""A field of a configuration that is a path into the item, kept in its bare form, with dots."""


def _literal(text: str) -> str:
    if "{{" in text or "}}" in text:
        raise ValueError("unbalanced '{{' or '}}'")
    return text


def _expression(text: str) -> Steps | OutputPlace:
    root, _, path = text.partition(".")
    if root == "item" and _PATH.fullmatch(path):
        return _steps(path)
    match = _SAMPLE.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is neither 'item.<field>' nor 'sample.output_text', "
            "'sample.output_json.<key>' or 'sample.output_tools[0].function.<key>'"
        )
    return OutputPlace(cast(Source, match[1] or match[2]), _steps(match[3] or ""))


def _steps(path: str) -> Steps:
    return tuple(step for step in _INDEX.sub(r".\1", path).split(".") if step)


def _output_value(source: Source, sample: Sample) -> Any:
    if source == "output_json":
        return parse_json(sample.output_text)
    readings = read_calls(sample, "tools" if sample.output_tools else "json", True)
    return [
        {
            "type": "function",
            "function": {"name": call.name, "arguments": _text(_whole(dict(call.arguments)))},
        }
        for call in readings
        if call.shape is not Shape.BROKEN
    ]


def _item_text(item: dict[str, Any], path: Steps, whole: bool) -> str:
    value = item_value(item, path)
    if value is None:
        raise ItemError(f"the item's field '{'.'.join(path)}' is null")
    return _text(_whole(value) if whole else value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _whole(value: Any) -> Any:
    """A value with its whole numbers as integers: 1.0 is the number that 1 is."""
    if isinstance(value, dict):
        return {key: _whole(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
