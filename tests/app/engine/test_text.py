"""What a row hands out adds up to its text, whatever the tokens, and never holds a stop string."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from app.engine.sampling import Sampling
from app.engine.text import Completion, RowText

EOS = 0


class Bytes:
    """A byte-level tokenizer of arbitrary pieces: a token's id is its number, from 1."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self.decoded = 0

    def __call__(self, tokens: Sequence[int]) -> str:
        self.decoded += len(tokens)
        whole = b"".join(self.pieces[token - 1] for token in tokens if token != EOS)
        return whole.decode("utf-8", errors="replace")


def cut(data: bytes, at: Sequence[int]) -> list[bytes]:
    """The bytes in pieces, cut anywhere, characters included."""
    places = [0, *sorted({i % (len(data) + 1) for i in at}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


def run(
    pieces: Sequence[bytes], sampling: Sampling, end: bool
) -> tuple[list[str], Completion, RowText]:
    """Pushes all pieces, or until the row has finished; then the end-of-text token, if ``end``."""
    row = RowText(Bytes(pieces), sampling, frozenset([EOS]))
    deltas = []
    for token in [*range(1, len(pieces) + 1), *([EOS] if end else [])]:
        deltas.append(row.push(token))
        if row.finish is not None:
            break
    return deltas, row.completion(7), row


def first_stop(pieces: Sequence[bytes], stop: tuple[str, ...]) -> str | None:
    """The text before the stop string that begins first, once one is complete."""
    for count in range(1, len(pieces) + 1):
        text = b"".join(pieces[:count]).decode("utf-8", errors="replace")
        found = [at for s in stop if (at := text.find(s)) >= 0]
        if found:
            return text[: min(found)]
    return None


alphabet = st.sampled_from("abAB .\n€é日😀\u0301")
texts = st.text(alphabet, max_size=30) | st.text(max_size=12)
cuts = st.lists(st.integers(0, 120), max_size=30)
stops = st.lists(st.text(alphabet, min_size=1, max_size=4), max_size=3).map(tuple)


@given(texts, cuts, stops, st.booleans())
def test_deltas_add_up_to_the_text_before_the_first_stop_string(
    text: str, at: list[int], stop: tuple[str, ...], end: bool
) -> None:
    pieces = cut(text.encode(), at)
    deltas, completion, _ = run(pieces, Sampling(stop=stop), end)
    assert "".join(deltas) == completion.text
    assert not any(s in completion.text for s in stop)
    expected = first_stop(pieces, stop)
    if expected is not None:
        assert (completion.finish_reason, completion.text) == ("stop", expected)
    elif end:
        assert (completion.finish_reason, completion.text) == ("stop", text)
    else:  # what is held back is not in it
        assert completion.finish_reason == "cancelled"
        assert text.startswith(completion.text)


@given(texts, cuts, stops)
def test_no_prefix_of_what_is_handed_out_holds_a_stop_string_or_part_of_the_one_found(
    text: str, at: list[int], stop: tuple[str, ...]
) -> None:
    deltas, completion, _ = run(cut(text.encode(), at), Sampling(stop=stop), end=True)
    handed_out = ""
    for delta in deltas:
        handed_out += delta
        assert completion.text.startswith(handed_out)


@given(st.binary(max_size=40), cuts, stops)
def test_deltas_of_bytes_that_are_no_text_add_up_too(
    data: bytes, at: list[int], stop: tuple[str, ...]
) -> None:
    pieces = cut(data, at)
    deltas, completion, _ = run(pieces, Sampling(stop=stop), end=True)
    assert "".join(deltas) == completion.text
    assert not any(s in completion.text for s in stop)
    if not stop:
        assert completion.text == data.decode("utf-8", errors="replace")


@given(texts, cuts, st.integers(1, 20))
def test_the_token_limit_ends_a_row_with_all_of_its_text(
    text: str, at: list[int], limit: int
) -> None:
    pieces = cut(text.encode(), at)
    deltas, completion, row = run(pieces, Sampling(max_tokens=limit), end=True)
    assert "".join(deltas) == completion.text
    assert completion.tokens == tuple(row.tokens)
    if limit <= len(pieces):
        assert completion.finish_reason == "length"
        assert len(completion.tokens) == limit
        assert completion.text == b"".join(pieces[:limit]).decode(errors="replace")
    else:
        assert (completion.finish_reason, completion.text) == ("stop", text)


@given(st.lists(st.text(alphabet, max_size=8), min_size=10, max_size=60), stops)
def test_long_texts_of_many_lines_are_decoded_the_same(
    lines: list[str], stop: tuple[str, ...]
) -> None:
    text = "\n".join(lines)
    pieces = [character.encode() for character in text]
    deltas, completion, _ = run(pieces, Sampling(max_tokens=10_000, stop=stop), end=True)
    assert "".join(deltas) == completion.text
    expected = first_stop(pieces, stop)
    assert completion.text == (text if expected is None else expected)


def test_lines_that_are_over_are_not_decoded_again() -> None:
    pieces = [b"x", b"y", b"\n"] * 500
    _, completion, row = run(pieces, Sampling(max_tokens=10_000), end=True)
    assert len(completion.text) == 1500
    assert isinstance(row._decode, Bytes)
    assert row._decode.decoded < 40 * 1500


def test_a_decoder_that_takes_the_first_words_space_keeps_those_of_later_lines() -> None:
    """As Llama 2's: pieces mark spaces with a low line, and the first piece loses its."""
    decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    words = ["▁a", "▁b", "<0x0A>", "▁▁c"] * 20
    row = RowText(lambda ids: decoder.decode([words[i - 1] for i in ids]), Sampling(), frozenset())
    deltas = [row.push(number) for number in range(1, len(words) + 1)]
    assert "".join(deltas) == decoder.decode(words)


def test_a_character_that_later_bytes_break_is_not_taken_back() -> None:
    """Byte-fallback decoders show a run of bytes that is no text as one mark for each byte."""
    decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    words = ["x", "<0xE2>", "<0x82>", "<0xAC>", "<0xF0>", "<0x9F>"]
    sampling = Sampling(max_tokens=6)
    row = RowText(lambda ids: decoder.decode([words[i - 1] for i in ids]), sampling, frozenset())
    deltas = [row.push(number) for number in range(1, 7)]
    assert "".join(deltas) == row.completion(1).text
    assert row.completion(1).text.startswith("x€")


def pushed(text: str, sampling: Sampling, count: int) -> tuple[str, RowText]:
    pieces = [character.encode() for character in text]
    row = RowText(Bytes(pieces), sampling, frozenset([EOS]))
    return "".join(row.push(token) for token in range(1, count + 1)), row


def test_text_that_may_become_a_stop_string_is_held_back_and_no_more() -> None:
    sampling = Sampling(stop=("STOP", "Ta"))
    assert pushed("abSTOr", sampling, 5)[0] == "ab"
    assert pushed("abSTOr", sampling, 6)[0] == "abSTOr"
    assert pushed("abSTa", sampling, 5)[0] == "abS"


def test_the_start_of_a_stop_string_before_an_unfinished_character_is_held_back() -> None:
    row = RowText(Bytes([b"xS", b"\xe2", b"\x82\xac"]), Sampling(stop=("S€",)), frozenset())
    assert [row.push(token) for token in (1, 2, 3)] == ["x", "", ""]
    assert row.completion(1) == Completion("x", (1, 2, 3), "stop", 1)


def test_the_end_of_text_token_is_counted_but_not_shown() -> None:
    row = RowText(Bytes([b"hi"]), Sampling(), frozenset([EOS]))
    assert row.push(1) + row.push(EOS) == "hi"
    assert row.completion(5) == Completion("hi", (1, EOS), "stop", 5)


def test_a_row_stopped_from_outside_has_the_text_it_handed_out() -> None:
    delta, row = pushed("abST", Sampling(stop=("STOP",)), 4)
    assert row.completion(2) == Completion(delta, (1, 2, 3, 4), "cancelled", 2)
    assert delta == "ab"


def test_a_failed_row_says_why_and_keeps_its_text() -> None:
    delta, row = pushed("abc", Sampling(), 2)
    assert row.completion(2, "no memory") == Completion(delta, (1, 2), "error", 2, "no memory")
