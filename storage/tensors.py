"""Safetensors bytes, checked by hand before the library reads them.

Format: 8 bytes little-endian length of the header; the header, JSON
`{name: {"dtype", "shape", "data_offsets": [begin, end]}}`; the values.
We write F16 and F32 only, no metadata and no gaps, so that is all we read.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from storage.errors import Corrupt, Invalid

MAX_HEADER_BYTES = 1 << 20
MAX_TENSORS = 10_000
MAX_DIMENSIONS = 4
_LENGTH_BYTES = 8
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_ITEM_BYTES = {"F16": 2, "F32": 4}
_DTYPES = (np.dtype("<f2"), np.dtype("<f4"))

Tensors = dict[str, NDArray[Any]]


class _Span(NamedTuple):
    """Where a tensor's values lie in the file, in bytes from the end of the header."""

    begin: int
    end: int
    name: str


def encode(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """The file of these tensors: the same tensors in any order give the same bytes.

    Raises Invalid for a dtype other than float16 and float32 (little-endian) and for whatever
    `decode` would refuse.
    """
    for name, array in tensors.items():
        if array.dtype not in _DTYPES:
            raise Invalid(f"tensor {name!r} is {array.dtype}; only float16 and float32 are stored")
    # The library copies raw memory, so a strided view would be written wrong.
    data: bytes = save({name: np.asarray(array, order="C") for name, array in tensors.items()})
    try:
        decode(data)
    except Corrupt as error:
        raise Invalid(str(error)) from error
    return data


def decode(data: bytes) -> Tensors:
    """The tensors of a file, after every check. Raises Corrupt with what is wrong."""
    header, values = _split(data)
    spans = sorted(_span(name, entry) for name, entry in header.items())
    _check_no_gaps(spans, values)
    tensors: Tensors = load(data)
    for name, array in tensors.items():
        if not np.isfinite(array).all():
            raise Corrupt(f"tensor {name!r} holds values that are not finite")
    return tensors


def _split(data: bytes) -> tuple[dict[str, Any], int]:
    """The parsed header, and the number of bytes after it."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if len(data) < _LENGTH_BYTES or length > min(MAX_HEADER_BYTES, len(data) - _LENGTH_BYTES):
        raise Corrupt("the tensor file's header is longer than the file or than allowed")
    end = _LENGTH_BYTES + length
    try:
        header = json.loads(data[_LENGTH_BYTES:end].decode(), object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as error:
        raise Corrupt("the tensor file's header is not JSON") from error
    if not isinstance(header, dict) or not 1 <= len(header) <= MAX_TENSORS:
        raise Corrupt(f"the tensor file's header does not list 1 to {MAX_TENSORS} tensors")
    return header, len(data) - end


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; two readers could disagree about a repeated key."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is repeated")
    return result


def _span(name: str, entry: Any) -> _Span:
    """The place of one tensor, once its name, dtype, shape and length agree."""
    if not _NAME.fullmatch(name):
        raise Corrupt(f"{name[:80]!r} is not a legal tensor name")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise Corrupt(f"tensor {name!r} is not described by dtype, shape and offsets alone")
    item_bytes = _ITEM_BYTES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if item_bytes is None:
        raise Corrupt(f"tensor {name!r} has another dtype than F16 or F32")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _whole_numbers(shape) or 0 in shape or not 1 <= len(shape) <= MAX_DIMENSIONS:
        raise Corrupt(f"tensor {name!r} does not have 1 to {MAX_DIMENSIONS} positive dimensions")
    if not _whole_numbers(offsets) or len(offsets) != 2:
        raise Corrupt(f"tensor {name!r} does not have two offsets")
    begin, end = offsets
    if end - begin != math.prod(shape) * item_bytes:
        raise Corrupt(f"tensor {name!r} does not have the length of its shape")
    return _Span(begin, end, name)


def _whole_numbers(value: Any) -> bool:
    """True for a list of integers >= 0 (True and False are none)."""
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)


def _check_no_gaps(spans: list[_Span], values: int) -> None:
    """Every byte after the header belongs to exactly one tensor."""
    expected = 0
    for span in spans:
        if span.begin != expected:
            raise Corrupt(f"tensor {span.name!r} does not start where the one before it ends")
        expected = span.end
    if expected != values:
        raise Corrupt("the tensor file is longer or shorter than its header says")
