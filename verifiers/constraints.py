"""Constraints on a completion that a program can check; each says to which share it is kept.

A share of 1 means kept. The others are shaped: a text of 12 words where 10 are allowed is nearer
than one of 100. A blank completion is never asked: it would keep all that forbids something.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from verifiers.parsing import Malformed, parse_json
from verifiers.texts import (
    Unit,
    begins_with_word,
    count,
    ends_with_word,
    has_word,
    is_bullet,
    item_number,
    lines,
    normal,
    numbers_in_digits,
    numbers_in_words,
    plain,
)

Count = Annotated[int, Field(ge=0, le=1_000_000)]


def _seen(text: str) -> str:
    if not normal(text).strip():
        raise ValueError("is blank")
    return text


Text = Annotated[
    str,
    StringConstraints(min_length=1, max_length=1_000, pattern=r"\S"),
    AfterValidator(_seen),
]
Texts = Annotated[tuple[Text, ...], Field(min_length=1, max_length=100, strict=False)]


class _Constraint(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Length(_Constraint):
    """How many units the text has; `verifiers/texts.py` says what each of them is."""

    kind: Literal["length"]
    unit: Unit
    minimum: Count | None = None
    maximum: Count | None = None

    @model_validator(mode="after")
    def _bound_something(self) -> Self:
        if self.minimum is None and self.maximum is None:
            raise ValueError("needs a minimum or a maximum")
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError("the minimum is above the maximum")
        return self

    def share(self, text: str) -> float:
        """Return the quotient of the count and the bound that it misses."""
        found = count(self.unit, text)
        if self.minimum is not None and found < self.minimum:
            return found / self.minimum
        if self.maximum is not None and found > self.maximum:
            return self.maximum / found
        return 1.0


class OfTexts(_Constraint):
    """A constraint with texts to look for."""

    texts: Texts
    ignore_case: bool = True
    whole_words: bool = Field(
        default=True, description="A text does not count as part of a longer word."
    )

    def _folded(self, text: str) -> str:
        return plain(text).casefold() if self.ignore_case else plain(text)


class _Mentions(OfTexts):
    def _found(self, text: str) -> int:
        text = self._folded(text)
        wanted = [self._folded(one) for one in self.texts]
        return sum(has_word(text, one) if self.whole_words else one in text for one in wanted)


class MustContain(_Mentions):
    """Every one of the texts is in it."""

    kind: Literal["must_contain"]

    def share(self, text: str) -> float:
        """Return the share of the texts that are there."""
        return self._found(text) / len(self.texts)


class MustNotContain(_Mentions):
    """None of the texts is in it."""

    kind: Literal["must_not_contain"]

    def share(self, text: str) -> float:
        """Return the share of the texts that are not there."""
        return 1 - self._found(text) / len(self.texts)


class StartsWith(OfTexts):
    """It begins with one of the texts."""

    kind: Literal["starts_with"]

    def share(self, text: str) -> float:
        """Return 1 or 0."""
        text, texts = self._folded(text).strip(), map(self._folded, self.texts)
        begins = begins_with_word if self.whole_words else str.startswith
        return float(any(begins(text, one) for one in texts))


class EndsWith(OfTexts):
    """It ends with one of the texts."""

    kind: Literal["ends_with"]

    def share(self, text: str) -> float:
        """Return 1 or 0."""
        text, texts = self._folded(text).strip(), map(self._folded, self.texts)
        ends = ends_with_word if self.whole_words else str.endswith
        return float(any(ends(text, one) for one in texts))


class Format(_Constraint):
    """The form of the whole text."""

    kind: Literal["format"]
    form: Literal[
        "json",
        "json_object",
        "json_array",
        "bullet_list",
        "numbered_list",
        "single_line",
        "lowercase",
        "uppercase",
    ] = Field(
        description="json: one JSON value and nothing else. bullet_list, numbered_list: every "
        "line that is not blank is an item, the numbers 1, 2, 3 ... lowercase, uppercase: every "
        "letter that has a case, and there is one."
    )

    def share(self, text: str) -> float:
        """Return 1 or 0, for a list the share of lines that are its items."""
        match self.form:
            case "bullet_list":
                found = lines(text)
                return sum(map(is_bullet, found)) / len(found)
            case "numbered_list":
                found = lines(text)
                wanted = enumerate(map(item_number, found), start=1)
                return sum(number == place for place, number in wanted) / len(found)
            case "single_line":
                return float(len(text.strip().splitlines()) == 1)
            case "lowercase":
                return float(text.islower())
            case "uppercase":
                return float(text.isupper())
            case _:
                return float(self._is_json(text))

    def _is_json(self, text: str) -> bool:
        try:
            value = parse_json(text)
        except Malformed:
            return False
        wanted = {"json_object": dict, "json_array": list}.get(self.form, object)
        return isinstance(value, wanted)


class Numbers(_Constraint):
    """How numbers are written: in ASCII digits, or in English words.

    A mere "one" is a number where words are wanted and no mistake where digits are, since it is a
    pronoun as often.
    """

    kind: Literal["numbers"]
    written: Literal["digits", "words"]
    minimum: Count = Field(default=1, description="How many numbers there must be at least.")

    def share(self, text: str) -> float:
        """Return the share of numbers written as wanted, less where there are too few."""
        text = normal(text)
        in_digits, in_other_digits = numbers_in_digits(text)
        in_words, lone_ones = numbers_in_words(text)
        if self.written == "digits":
            right, wrong = in_digits, in_other_digits + in_words - lone_ones
        else:
            right, wrong = in_words, in_digits + in_other_digits
        share = right / (right + wrong) if wrong else 1.0
        return share * min(1.0, right / self.minimum) if self.minimum else share


Constraint = Annotated[
    Length | MustContain | MustNotContain | StartsWith | EndsWith | Format | Numbers,
    Field(discriminator="kind"),
]
