"""The grouped key-value store against attention written out in NumPy."""

from __future__ import annotations

from app.engine.cache import Context, GroupKV, Joined, Layout  # isort: skip
import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

HEADS, KV_HEADS, DEPTH = 4, 2, 8
SCALE = DEPTH**-0.5
Array = npt.NDArray[np.float32]


class Sequence_:
    """A row's queries, keys and values, without padding."""

    def __init__(self, rng: np.random.Generator, length: int) -> None:
        self.q = rng.normal(0, 1, (HEADS, length, DEPTH)).astype(np.float32)
        self.k = rng.normal(0, 1, (KV_HEADS, length, DEPTH)).astype(np.float32)
        self.v = rng.normal(0, 1, (KV_HEADS, length, DEPTH)).astype(np.float32)

    def attention(self, window: int | None) -> Array:
        """(heads, length, depth), one query at a time, in float64."""
        out = np.zeros(self.q.shape)
        for head in range(HEADS):
            keys, values = (part[head * KV_HEADS // HEADS] for part in (self.k, self.v))
            for at in range(self.q.shape[1]):
                first = 0 if window is None else max(0, at - window + 1)
                scores = keys[first : at + 1].astype(np.float64) @ self.q[head, at] * SCALE
                weights = np.exp(scores - scores.max())
                out[head, at] = weights @ values[first : at + 1] / weights.sum()
        return out.astype(np.float32)


def group_of(
    rng: np.random.Generator, lengths: list[int], prefix: int
) -> tuple[list[Sequence_], Sequence_]:
    """Rows that share their first ``prefix`` tokens, and that prefix."""
    shared = Sequence_(rng, prefix)
    rows = []
    for length in lengths:
        row = Sequence_(rng, length)
        for name in ("k", "v"):
            getattr(row, name)[:, :prefix] = getattr(shared, name)
        rows.append(row)
    return rows, shared


def run(
    groups: list[tuple[list[Sequence_], Sequence_]],
    window: int | None,
    steps: list[int],
    in_place: bool,
) -> list[list[Array]]:
    """Outputs (heads, own length, depth) of all rows, run in ``steps`` columns at a time.

    ``in_place``: prefixes are attended to in place; else each row has them as own columns.
    """
    rows = [row for members, _ in groups for row in members]
    split = groups[0][1].k.shape[1] if in_place else 0
    own = [row.k.shape[1] - split for row in rows]
    width = max(own)
    pad = np.array([width - n for n in own], np.int32)
    layout = Layout(len(groups), len(groups[0][0]), split, pad)
    prefix = None
    if in_place:
        prefix = (
            mx.array(np.stack([shared.k for _, shared in groups])),
            mx.array(np.stack([shared.v for _, shared in groups])),
        )
    kv = GroupKV(layout, width, prefix)

    def columns(name: str, start: int, stop: int) -> mx.array:
        parts = [getattr(row, name)[:, split:] for row in rows]
        padded = [np.pad(p, [(0, 0), (width - p.shape[1], 0), (0, 0)]) for p in parts]
        return mx.array(np.stack(padded)[:, :, start:stop])

    outputs, start = [], 0
    for step in steps:
        stop = min(width, start + step)
        layout.begin(stop - start)
        q, k, v = (columns(name, start, stop) for name in ("q", "k", "v"))
        outputs.append(np.array(kv.attend(q, k, v, SCALE, window)))
        layout.end()
        start = stop
    assert start == width
    whole = np.concatenate(outputs, axis=2)
    per_group = len(groups[0][0])
    flat = [whole[i, :, pad[i] :] for i in range(len(rows))]
    return [flat[i : i + per_group] for i in range(0, len(flat), per_group)]


def make(
    seed: int, lengths: list[list[int]], prefix: int
) -> list[tuple[list[Sequence_], Sequence_]]:
    rng = np.random.default_rng(seed)
    return [group_of(rng, members, prefix) for members in lengths]


WINDOWS = [None, 1, 3, 7, 100]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("steps", [[99], [4, 99], [1] * 9])
def test_left_padded_rows_attend_as_each_alone(window: int | None, steps: list[int]) -> None:
    groups = make(0, [[9], [4], [1]], 0)
    got = run(groups, window, steps, in_place=False)
    for (rows, _), outputs in zip(groups, got, strict=True):
        np.testing.assert_allclose(outputs[0], rows[0].attention(window), rtol=0, atol=1e-5)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("steps", [[99], [3, 99], [1] * 7])
def test_a_prefix_in_place_equals_the_prefix_repeated_in_every_row(
    window: int | None, steps: list[int]
) -> None:
    groups = make(1, [[12, 8, 6], [7, 6, 12]], 5)
    in_place = run(groups, window, steps, in_place=True)
    repeated = run(groups, window, [5, *steps], in_place=False)
    for (rows, _), ours, theirs in zip(groups, in_place, repeated, strict=True):
        for row, mine, other in zip(rows, ours, theirs, strict=True):
            np.testing.assert_allclose(mine, other[:, 5:], rtol=0, atol=1e-5)
            np.testing.assert_allclose(mine, row.attention(window)[:, 5:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("prefix", [0, 5])
@pytest.mark.parametrize("own", [[4, 4, 4], [1, 6, 3]])
@pytest.mark.parametrize("steps", [[99], [2, 99], [1] * 6])
def test_groups_share_one_prefix_and_a_context_for_each_place(
    window: int | None, prefix: int, own: list[int], steps: list[int]
) -> None:
    """Two groups of three rows; the rows of a place have equal keys up to their own part."""
    contexts = [2, 7, 4]
    rng = np.random.default_rng(3)
    shared = Sequence_(rng, prefix)
    before = [Sequence_(rng, length) for length in contexts]
    rows = [Sequence_(rng, prefix + c + n) for c, n in zip(contexts * 2, own * 2, strict=True)]
    for row, context in zip(rows, before * 2, strict=True):
        split = prefix + context.k.shape[1]
        for name in ("k", "v"):
            getattr(row, name)[:, :prefix] = getattr(shared, name)
            getattr(row, name)[:, prefix:split] = getattr(context, name)

    def right(parts: list[Array]) -> mx.array:
        width = max(part.shape[1] for part in parts)
        padded = [np.pad(p, [(0, 0), (width - p.shape[1], 0), (0, 0)]) for p in parts]
        return mx.array(np.stack(padded))

    width = max(own)
    pad = np.array([width - n for n in own * 2], np.int32)
    columns = Context(np.array([max(contexts) - c for c in contexts], np.int32), max(contexts))
    layout = Layout(2, 3, prefix, pad, columns)
    prefixes = (mx.array(shared.k[None]), mx.array(shared.v[None])) if prefix else None
    context = (right([c.k for c in before]), right([c.v for c in before]))
    kv = GroupKV(layout, width, prefixes, context=context)
    cut = {name: [] for name in ("q", "k", "v")}
    for row, n in zip(rows, own * 2, strict=True):
        for name, parts in cut.items():
            parts.append(getattr(row, name)[:, -n:])
    whole = {name: right(parts) for name, parts in cut.items()}
    outputs, start = [], 0
    for step in steps:
        stop = min(width, start + step)
        if start == stop:
            break
        layout.begin(stop - start)
        q, k, v = (whole[name][:, :, start:stop] for name in ("q", "k", "v"))
        outputs.append(np.array(kv.attend(q, k, v, SCALE, window)))
        layout.end()
        start = stop
    got = np.concatenate(outputs, axis=2)
    assert got.shape[2] == width
    for row, out, n in zip(rows, got, own * 2, strict=True):
        expected = row.attention(window)[:, -n:]
        np.testing.assert_allclose(out[:, -n:], expected, rtol=0, atol=1e-5)


@given(
    st.integers(0, 6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=4),
    st.integers(0, 8),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(1, 9)),
    st.one_of(st.none(), st.integers(3, 5)),
)
def test_masks_show_a_query_its_own_past_within_the_window(
    prefix: int,
    padding: list[tuple[int, int]],
    cursor: int,
    length: int,
    window: int | None,
    width: int | None,
) -> None:
    """``width``: columns of the context, whose rows start with up to three of padding."""
    pads = [own for own, _ in padding]
    empty = [before if width else 0 for _, before in padding]
    context = Context(np.array(empty, np.int32), width) if width else None
    read = [(width or 0) - skipped for skipped in empty]  # tokens between prefix and row
    layout = Layout(1, len(pads), prefix, np.array(pads, np.int32), context)
    layout.cursor = cursor
    layout.begin(length)

    def seen(row: int, query: int, position: int) -> bool:
        """Positions count tokens from the row's own first one; before it they are negative."""
        return position <= query and (window is None or query - position < window)

    for row, pad in enumerate(pads):
        own = [column - pad for column in range(cursor + length)]
        between = [column - empty[row] - read[row] for column in range(width or 0)]
        places = {
            "own": [(p, p >= 0) for p in own],
            "prefix": [(p - prefix - read[row], True) for p in range(prefix)],
            "context": [(p, p >= -read[row]) for p in between],
        }
        for part, columns in places.items():
            if part == "context" and context is None:
                continue
            mask = layout.mask(part, window)
            for at in range(length):
                query = cursor + at - pad
                if query < 0:
                    continue  # padding: nobody reads it
                expected = [real and seen(row, query, p) for p, real in columns]
                if mask is None:
                    assert all(expected)
                    continue
                lines = np.array(mask)[row if mask.shape[0] > 1 else 0, 0, 0]
                assert lines[at if len(lines) > 1 else 0].tolist() == expected
    first = np.array(layout.positions)
    assert first.tolist() == [
        prefix + before + cursor - pad for pad, before in zip(pads, read, strict=True)
    ]


def test_a_full_store_is_refused_not_overwritten() -> None:
    layout = Layout(1, 1, 0, np.zeros(1, np.int32))
    kv = GroupKV(layout, 2)
    part = mx.zeros((1, KV_HEADS, 3, DEPTH))
    layout.begin(3)
    with pytest.raises(ValueError, match="2 columns is full"):
        kv.attend(mx.zeros((1, HEADS, 3, DEPTH)), part, part, SCALE, None)


def test_a_row_of_padding_gives_numbers() -> None:
    layout = Layout(1, 2, 0, np.array([0, 3], np.int32))
    kv = GroupKV(layout, 2)
    layout.begin(2)
    part = mx.ones((2, KV_HEADS, 2, DEPTH))
    out = kv.attend(mx.ones((2, HEADS, 2, DEPTH)), part, part, SCALE, None)
    assert mx.isfinite(out).all().item()


def test_stores_side_by_side_hold_all_groups_columns_and_prefixes() -> None:
    stores = []
    rng = np.random.default_rng(2)
    pads = np.zeros(2, np.int32)
    for groups in (1, 2):
        layout = Layout(groups, 2, 3, np.tile(pads, groups))
        prefix = [mx.array(rng.normal(size=(groups, KV_HEADS, 3, DEPTH))) for _ in range(2)]
        layout.cursor = 4
        own = [mx.array(rng.normal(size=(2 * groups, KV_HEADS, 4, DEPTH))) for _ in range(2)]
        stores.append(GroupKV(layout, 6, (prefix[0], prefix[1]), (own[0], own[1])))
    joint = Layout(3, 2, 3, np.tile(pads, 3))
    joint.cursor = 4
    both = stores[0].beside(stores[1:], joint)
    for side in (0, 1):
        expected = np.concatenate([np.array(s.own()[side]) for s in stores])
        np.testing.assert_array_equal(np.array(both.own()[side]), expected)
        assert both.prefix is not None
        prefixes = [s.prefix for s in stores if s.prefix is not None]
        expected = np.concatenate([np.array(p[side]) for p in prefixes])
        np.testing.assert_array_equal(np.array(both.prefix[side]), expected)
    assert both.capacity == 6


@pytest.mark.parametrize("window", [None, 5])
def test_joined_stores_attend_as_each_alone(window: int | None) -> None:
    rng = np.random.default_rng(6)
    alone, joined = [], []
    for rows, prefix, width in [(2, 0, 7), (3, 4, 5), (1, 9, 1)]:
        shape = (rows, KV_HEADS, width, DEPTH)
        shared = [mx.array(rng.normal(0, 1, (1, KV_HEADS, prefix, DEPTH))) for _ in range(2)]
        own = [mx.array(rng.normal(0, 1, shape)) for _ in range(2)]
        pad = rng.integers(0, width, rows).astype(np.int32)
        for stores in (alone, joined):
            layout = Layout(1, rows, prefix, pad)
            layout.cursor = width
            before = (shared[0], shared[1]) if prefix else None
            stores.append(GroupKV(layout, width + 1, before, (own[0], own[1])))
            layout.begin(1)
    q, k, v = (
        mx.array(rng.normal(0, 1, (6, heads, 1, DEPTH))) for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    parts = [
        store.attend(q[a:b], k[a:b], v[a:b], SCALE, window)
        for store, a, b in zip(alone, (0, 2, 5), (2, 5, 6), strict=True)
    ]
    positions = mx.concatenate([store.positions for store in joined])
    together = Joined(joined, positions)
    np.testing.assert_array_equal(
        np.array(together.attend(q, k, v, SCALE, window)), np.array(mx.concatenate(parts))
    )
    assert together.positions.shape == (6,)
