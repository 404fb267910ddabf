"""The tensor file: what is written is read back, anything else is refused with a word."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save

from storage import tensors
from storage.errors import Corrupt, Invalid

GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
ARRAYS = hnp.arrays(
    st.sampled_from([np.float16, np.float32]),
    hnp.array_shapes(max_dims=4, max_side=4),
    elements=st.floats(-1000, 1000, width=16),
)
NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}", fullmatch=True)


def _file(header: Any, values: bytes = bytes(8)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + values


@given(st.dictionaries(NAMES, ARRAYS, min_size=1, max_size=4))
@settings(deadline=None)
def test_what_is_encoded_is_decoded_and_order_does_not_matter(arrays: dict[str, Any]) -> None:
    data = tensors.encode(arrays)
    assert tensors.encode(dict(reversed(arrays.items()))) == data
    decoded = tensors.decode(data)
    assert decoded.keys() == arrays.keys()
    for name, array in arrays.items():
        assert decoded[name].dtype == array.dtype
        np.testing.assert_array_equal(decoded[name], array)


def test_strided_views_are_stored_by_their_values() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]
    np.testing.assert_array_equal(tensors.decode(tensors.encode({"a": array}))["a"], array)


@pytest.mark.parametrize(
    "array",
    [
        np.ones(2),
        np.ones(2, np.int32),
        np.ones(2, ">f4"),
        np.ones(2, bool),
        np.array(["x"]),
        np.array([1.0, np.nan], np.float32),
        np.array([np.inf], np.float16),
        np.float32(1.0).reshape(()),
        np.ones(0, np.float32),
        np.ones((1,) * 5, np.float32),
    ],
)
def test_other_dtypes_shapes_and_values_are_not_encoded(array: Any) -> None:
    with pytest.raises(Invalid, match="tensor 'a'"):
        tensors.encode({"a": array})


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "a" * 201, "é", "a\n", "__metadata__ "])
def test_illegal_names_are_not_encoded(name: str) -> None:
    with pytest.raises(Invalid, match="legal tensor name"):
        tensors.encode({name: np.ones(1, np.float32)})


def test_an_expert_without_tensors_is_not_encoded() -> None:
    with pytest.raises(Invalid, match="list 1 to"):
        tensors.encode({})


def test_a_well_made_file_is_accepted() -> None:
    np.testing.assert_array_equal(tensors.decode(_file({"a": GOOD}))["a"], np.zeros(2))


def _with(**changes: Any) -> dict[str, Any]:
    return {"a": {**GOOD, **changes}}


@pytest.mark.parametrize(
    "header",
    [
        {},
        [],
        None,
        "a",
        b"{",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
        b'"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        {"a": None},
        {"a": []},
        {"a": {**GOOD, "more": 1}},
        {"a": {"dtype": "F32", "shape": [2]}},
        {"a": GOOD, "__metadata__": {"format": "pt"}},
        {"../a": GOOD},
        *(_with(dtype=dtype) for dtype in ("F64", "BF16", "I32", "U8", "f32", "", None, ["F32"])),
        *(
            _with(shape=shape)
            for shape in ([], [3], [2, 0], [-2], [-1, -2], [2.0], [True, 2], ["2"], None, 2)
        ),
        _with(shape=[2, 1, 1, 1, 1]),
        _with(shape=[2**40, 2**40]),
        *(
            _with(data_offsets=offsets)
            for offsets in ([8, 0], [0], [0, 8, 8], [0.0, 8.0], [-8, 0], None, "08", [False, 8])
        ),
        _with(data_offsets=[4, 12]),
        {"a": GOOD, "b": GOOD},
        {"a": GOOD, "b": {**GOOD, "data_offsets": [4, 12]}},
        {"a": GOOD, "b": {**GOOD, "data_offsets": [8, 16]}},
        {f"a{n}": GOOD for n in range(tensors.MAX_TENSORS + 1)},
    ],
)
def test_a_header_that_is_not_what_we_write_is_refused(header: Any) -> None:
    with pytest.raises(Corrupt):
        tensors.decode(_file(header))


@pytest.mark.parametrize("values", [b"", bytes(7), bytes(9)])
def test_values_of_another_length_are_refused(values: bytes) -> None:
    with pytest.raises(Corrupt, match="longer or shorter"):
        tensors.decode(_file({"a": GOOD}, values))


@pytest.mark.parametrize("length", [0, 1, 10**6, 2**32, 2**63, 2**64 - 1])
def test_a_wrong_header_length_is_refused(length: int) -> None:
    data = _file({"a": GOOD})
    with pytest.raises(Corrupt):
        tensors.decode(length.to_bytes(8, "little") + data[8:])


def test_a_header_above_the_limit_is_refused_without_being_parsed() -> None:
    padded = json.dumps({"a": GOOD}).encode().ljust(tensors.MAX_HEADER_BYTES + 1)
    with pytest.raises(Corrupt, match="than allowed"):
        tensors.decode(_file(padded))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_values_that_are_not_finite_are_refused(value: float, dtype: Any) -> None:
    with pytest.raises(Corrupt, match="'a' holds values that are not finite"):
        tensors.decode(save({"a": np.array([0, value], dtype)}))


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_damaged_bytes_are_refused_or_read_but_never_crash(data: st.DataObject) -> None:
    good = tensors.encode({"a.b": np.ones((2, 3), np.float16), "c": np.ones(4, np.float32)})
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(good)))])
    try:
        arrays = tensors.decode(cut)
    except Corrupt:
        return
    assert all(np.isfinite(array).all() for array in arrays.values())
    assert sum(array.nbytes for array in arrays.values()) == 28
