"""Counts of texts against texts that were made of so many parts."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.strategies import HOSTILE_TEXT
from verifiers.texts import (
    NUMBER_WORDS,
    count,
    has_word,
    is_bullet,
    item_number,
    normal,
    numbers_in_digits,
    numbers_in_words,
)

WORD = st.builds(
    "{}{}{}".format,
    st.text(alphabet="'’_-", max_size=1),
    st.sampled_from("abAäß03"),
    st.text(alphabet="bc5'_-", max_size=3),
).filter(lambda word: "--" not in word)
SENTENCE = st.lists(WORD, min_size=1, max_size=4).map(" ".join)
STOP = st.sampled_from([".", "!", "?", "...", "?!", '."', ".)", "…"])
BETWEEN = st.sampled_from([" ", "  ", "\n", " – ", " ... ", "—", "--", "…", ". "])
BLANK = st.text(alphabet=" \t\n", max_size=3)


@given(st.lists(WORD.filter(lambda word: word[-1] != "-"), max_size=8), BETWEEN, BLANK)
def test_words_are_what_stands_between_white_space_and_dashes(
    words: list[str], between: str, around: str
) -> None:
    assert count("words", around + between.join(words) + around) == len(words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("one—two", 2),
        ("one--two...three", 3),
        ("one,two;three", 3),
        ("well-known don't 1,000 12:30 e.g. a_b", 6),
        ("one\u200btwo \u200b \u3164", 1),
        ("cafe\u0301", 1),
        ("- – …", 0),
    ],
)
def test_signs_that_part_words_and_signs_in_words(text: str, words: int) -> None:
    assert count("words", text) == words


@given(st.lists(st.tuples(SENTENCE, STOP), min_size=1, max_size=5), st.booleans())
def test_sentences_are_counted_whether_or_not_the_last_has_its_stop(
    sentences: list[tuple[str, str]], stopped: bool
) -> None:
    # Without a first word it might begin like a numbered list.
    text = "so " + " ".join(sentence + stop for sentence, stop in sentences)
    if not stopped:
        text = text[: len(text) - len(sentences[-1][1])]
    assert count("sentences", text) == len(sentences)


@given(st.lists(st.lists(SENTENCE, min_size=1, max_size=3), max_size=3), BLANK)
def test_lines_and_paragraphs(paragraphs: list[list[str]], around: str) -> None:
    text = around + "\n \n\n".join("\n".join(lines) for lines in paragraphs) + around
    assert count("paragraphs", text) == len(paragraphs)
    assert count("lines", text) == sum(map(len, paragraphs))


@given(st.lists(st.tuples(st.sampled_from("-*+•"), SENTENCE), max_size=4), st.lists(SENTENCE))
def test_items_are_lines_with_a_bullet_or_a_number(
    bullets: list[tuple[str, str]], numbered: list[str]
) -> None:
    text = "\n".join(
        [
            "Here:",
            *(f"  {mark} {words}" for mark, words in bullets),
            "-5 degrees",
            "3.5 litres",
            "-",
        ]
        + [f"{place}. {words}" for place, words in enumerate(numbered, start=1)]
    )
    assert count("items", text) == len(bullets) + len(numbered)


@given(st.text(max_size=20))
def test_characters_are_code_points_between_the_blanks_at_the_ends(text: str) -> None:
    assert count("characters", text) == len(normal(text).strip())


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It costs 3.50 in all. Good?", 2),
        ("1. Buy milk.\n2. Go home.", 2),
        ("- one\n- two", 2),
        ("Dr. Smith waits.", 2),
        ("...", 0),
        ("はい。いいえ！", 2),
        ("a.b", 1),
        ('"Stop!" he said.', 2),
        ("", 0),
    ],
)
def test_what_ends_a_sentence(text: str, sentences: int) -> None:
    assert count("sentences", text) == sentences


@given(
    st.text(alphabet="ab_ .,+é", max_size=12), st.text(alphabet="ab_ .+é", min_size=1, max_size=4)
)
def test_a_whole_word_is_what_a_regular_expression_finds_between_borders(
    text: str, wanted: str
) -> None:
    before = r"(?<!\w)" if re.match(r"\w", wanted) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", wanted) else ""
    assert has_word(text, wanted) == bool(re.search(before + re.escape(wanted) + after, text))


def test_a_long_text_of_near_matches_is_searched_in_linear_time() -> None:
    assert not has_word("a" * 65_000, "a" * 1_000)
    assert not has_word("a ab " * 13_000, "a a")
    assert not has_word(".aa" * 20_000, ".a")


def test_the_kinds_of_list_items() -> None:
    assert all(map(is_bullet, ["- a", " * b", "+ c", "• d"]))
    assert not any(map(is_bullet, ["-a", "1. a", "a - b", "- ", "", "-- a"]))
    assert [item_number(line) for line in ("1. a", " 12) b")] == [1, 12]
    assert [item_number(line) for line in ("1 a", "1.5 a", "٣. a", "a", "- a")] == [None] * 5


NUMBER = st.sampled_from(
    ["three", "twenty-one", "ninety nine", "two hundred and five", "ZERO", "one thousand"]
)


@given(
    st.lists(NUMBER | st.sampled_from(["and", "lamps", "someone", "threefold", "one"]), max_size=6)
)
def test_numbers_in_words_are_runs_of_number_words(parts: list[str]) -> None:
    found, lone_ones = numbers_in_words(", ".join(parts))
    others = ("and", "lamps", "someone", "threefold")
    assert found == sum(part not in others for part in parts)
    assert lone_ones == parts.count("one")


@given(st.lists(st.sampled_from(["3", "1,000", "12:30", "2.5", "a", "x7", "٣", "²", "½", "Ⅷ"])))
def test_numbers_in_digits_are_runs_of_ascii_digits_and_others_are_counted_apart(
    parts: list[str],
) -> None:
    right = sum(part in ("3", "1,000", "12:30", "2.5", "x7") for part in parts)
    assert numbers_in_digits(" and ".join(parts)) == (
        right,
        len(parts) - right - parts.count("a"),
    )


def test_no_number_word_is_part_of_another_list() -> None:
    assert all(numbers_in_words(word) == (1, word == "one") for word in NUMBER_WORDS)


@given(HOSTILE_TEXT)
def test_any_text_can_be_counted(text: str) -> None:
    assert count("sentences", text) <= count("words", text) + text.count("。")
    assert count("items", text) <= count("lines", text) <= len(text)
    assert count("paragraphs", text) <= count("lines", text)


@given(st.text(alphabet="e\u0301é\u0327ç a\u030aåÅ\u212b가\u1100\u1161 क\u094d", max_size=12))
def test_composed_and_decomposed_texts_are_the_same(text: str) -> None:
    forms = {normal(unicodedata.normalize(form, text)) for form in ("NFC", "NFD")}
    assert forms == {unicodedata.normalize("NFC", text)}


UNSEEN = (
    "\u200b\u200c\u200d\u2060\ufeff\u00ad\u034f\u200e\u202e\u2066\ufe0f\u3164\U000e0041\U000e0100"
)


@given(st.lists(st.sampled_from([*"cat ,é—1", *UNSEEN]), max_size=12))
def test_characters_that_nobody_sees_make_no_difference(characters: list[str]) -> None:
    seen = [one for one in characters if one not in UNSEEN]
    assert normal("".join(characters)) == "".join(seen)


@pytest.mark.parametrize(
    "text",
    [
        "می\u200cخواهم",
        "क्\u200dष",
        "න්\u200dය",
        "👩\u200d🚀",
        "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
        "\u0600٣",
        "５ ﬁ а",
        "\ud800",
    ],
)
def test_what_is_seen_stays(text: str) -> None:
    assert normal(text) == text


def test_joiners_at_the_end_of_a_word_or_in_a_row_are_dropped() -> None:
    assert normal("می\u200c \u200cخواهم\u200d") == "می خواهم"
    assert normal("می\u200c\u200d\u200b\u200cخواهم") == "می\u200cخواهم"


@given(HOSTILE_TEXT | st.text(alphabet="a\u0301\u0316\u0345\u200d\u200b👩क", max_size=90))
def test_a_normal_text_stays_as_it_is(text: str) -> None:
    assert normal(normal(text)) == normal(text)


def test_long_rows_of_marks_are_cut_so_that_time_stays_linear() -> None:
    assert len(normal("a" + "\u0301\u0316" * 32_000)) <= 31
    assert normal(("e" + "\u0301") * 1_000) == "é" * 1_000
    assert normal("…" * 1_000 + "👩\u200d" * 1_000) == "…" * 1_000 + "👩\u200d" * 999 + "👩"
