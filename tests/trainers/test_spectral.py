"""Block bases and coordinates, against brute force and explicit SVDs of each block."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.spectral import (
    ATTENTION_TARGETS,
    BASIS_KINDS,
    MLP_TARGETS,
    TARGETS,
    Coordinates,
    block_basis,
    block_layout,
    compute_basis,
    pack_basis,
    unpack_basis,
)

SHAPES = [(40, 24), (16, 48), (30, 30), (13, 7), (96, 36), (5, 1)]


def matrix(out: int, in_features: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((out, in_features)).astype(np.float32)


def column_blocks(weight: np.ndarray, n: int) -> list[np.ndarray]:
    return np.split(weight.astype(np.float64), n, axis=1)


def vectors_of(basis) -> np.ndarray:
    """V (n, b, b) in float64, the identity for the channel basis."""
    n, b = basis.singular_values.shape
    if basis.vectors is None:
        return np.broadcast_to(np.eye(b), (n, b, b))
    return basis.vectors.astype(np.float64)


def edited_output(weight: np.ndarray, basis, e: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Equation (1) of the module, in float64 and with loops: x (in,) -> y (out,)."""
    n, b = basis.singular_values.shape
    moved = []
    for v, change, part in zip(vectors_of(basis), e.reshape(n, b), x.reshape(n, b), strict=True):
        moved.append(part + v @ (change * (v.T @ part)))
    return weight.astype(np.float64) @ np.concatenate(moved)


# --- layout


@given(st.integers(1, 5000))
@settings(deadline=None)
def test_layout_is_the_factor_pair_closest_to_square(in_features):
    pairs = [(n, in_features // n) for n in range(1, in_features + 1) if in_features % n == 0]
    wide = [(n, b) for n, b in pairs if n <= b]
    assert block_layout(in_features) == min(wide, key=lambda pair: pair[1] - pair[0])


@pytest.mark.parametrize(
    ("in_features", "layout"),
    [
        (4096, (64, 64)),
        (2048, (32, 64)),
        (2560, (40, 64)),
        (12288, (96, 128)),
        (576, (24, 24)),
        (1536, (32, 48)),
        (7919, (1, 7919)),
    ],
)
def test_layout_of_known_widths(in_features, layout):
    assert block_layout(in_features) == layout


# --- one matrix


@pytest.mark.parametrize("kind", BASIS_KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_vectors_are_orthonormal_and_values_are_the_norms_of_their_images(kind, shape):
    weight = matrix(*shape)
    basis = block_basis(weight, kind, seed=3)
    n, b = basis.singular_values.shape
    assert (n, b) == ((1, shape[1]) if kind == "global" else block_layout(shape[1]))
    assert basis.singular_values.dtype == np.float32
    assert (basis.vectors is None) == (kind == "channel")
    assert basis.vectors is None or (
        basis.vectors.dtype == np.float32 and basis.vectors.flags.c_contiguous
    )
    scale = np.abs(basis.singular_values).max()
    for j, (v, block) in enumerate(zip(vectors_of(basis), column_blocks(weight, n), strict=True)):
        np.testing.assert_allclose(v.T @ v, np.eye(b), atol=1e-6)
        norms = np.linalg.norm(block @ v, axis=0)
        np.testing.assert_allclose(basis.singular_values[j], norms, atol=1e-6 * scale)


@pytest.mark.parametrize("kind", ["spectral", "global"])
@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_equal_the_svd_of_each_block(kind, shape):
    weight = matrix(*shape)
    basis = block_basis(weight, kind)
    n, b = basis.singular_values.shape
    for found, block in zip(basis.singular_values, column_blocks(weight, n), strict=True):
        exact = np.zeros(b)  # blocks wider than high have zeros after the first `out`
        exact[: min(block.shape)] = np.linalg.svd(block, compute_uv=False)
        np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-7 * exact[0])
        assert (np.diff(found) <= 0).all()


@pytest.mark.parametrize("kind", ["spectral", "global"])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[0] >= shape[1]])
def test_input_transform_equals_replacing_the_singular_values(kind, shape):
    weight = matrix(*shape)
    basis = block_basis(weight, kind)
    n, b = basis.singular_values.shape
    rng = np.random.default_rng(1)
    e, x = rng.normal(0, 0.3, n * b), rng.standard_normal(n * b)
    edited = []
    for block, change in zip(column_blocks(weight, n), e.reshape(n, b), strict=True):
        u, s, vt = np.linalg.svd(block, full_matrices=False)
        edited.append(u @ np.diag(s * (1 + change)) @ vt)
    wanted = np.concatenate(edited, axis=1) @ x
    found = edited_output(weight, basis, e, x)
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_channel_coordinates_scale_the_columns_of_the_weight():
    weight = matrix(20, 12)
    rng = np.random.default_rng(2)
    e, x = rng.standard_normal(12), rng.standard_normal(12)
    found = edited_output(weight, block_basis(weight, "channel"), e, x)
    np.testing.assert_allclose(found, (weight * (1 + e)) @ x)


@pytest.mark.parametrize("kind", BASIS_KINDS)
@pytest.mark.parametrize("change", [0.0, 0.25])
def test_one_change_for_all_coordinates_scales_the_whole_matrix(kind, change):
    weight, x = matrix(20, 12), np.random.default_rng(3).standard_normal(12)
    basis = block_basis(weight, kind)
    found = edited_output(weight, basis, np.full(12, change), x)
    np.testing.assert_allclose(found, (1 + change) * (weight @ x), rtol=1e-5)


def test_random_vectors_follow_the_seed_and_not_the_weight():
    first = block_basis(matrix(20, 12, seed=0), "random", seed=1).vectors
    other_weight = block_basis(matrix(20, 12, seed=9), "random", seed=1).vectors
    other_seed = block_basis(matrix(20, 12, seed=0), "random", seed=2).vectors
    assert (first == other_weight).all()
    assert (first != other_seed).any()


@pytest.mark.parametrize("kind", BASIS_KINDS)
@pytest.mark.parametrize(
    "weight",
    [
        np.zeros((16, 12), np.float32),
        np.ones((16, 12), np.float32),
        np.outer(matrix(16, 1), matrix(1, 12)).astype(np.float32),
        matrix(2, 12),
        matrix(16, 12) * np.float32(1e-30),
        matrix(16, 12) * np.float32(1e30),
        matrix(16, 12) * np.logspace(0, -30, 12, dtype=np.float32),
        matrix(16, 12).astype(np.float16) * np.float16(1e-7),
        np.full((16, 12), 60000, np.float16),
    ],
    ids=["zero", "ones", "rank-1", "wide", "tiny", "huge", "graded", "small-half", "big-half"],
)
def test_degenerate_weights_give_a_finite_orthonormal_basis(kind, weight):
    basis = block_basis(weight, kind)
    assert np.isfinite(basis.singular_values).all()
    assert (basis.singular_values >= 0).all()
    for v in vectors_of(basis):
        np.testing.assert_allclose(v.T @ v, np.eye(len(v)), atol=1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.sampled_from(BASIS_KINDS))
@settings(deadline=None, max_examples=60)
def test_rank_deficient_weights_never_have_a_square_root_of_less_than_zero(seed, rank, kind):
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((9, rank)) @ rng.standard_normal((rank, 12))
    assert np.isfinite(block_basis(weight.astype(np.float32), kind).singular_values).all()


@pytest.mark.parametrize("kind", BASIS_KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_refused(kind, bad):
    weight = matrix(16, 12)
    weight[7, 5] = bad
    with pytest.raises(ValueError, match="NaN or inf"):
        block_basis(weight, kind)


@pytest.mark.parametrize("kind", BASIS_KINDS)
def test_the_weight_is_not_written(kind):
    weight = matrix(16, 12)
    weight.flags.writeable = False
    before = weight.copy()
    block_basis(weight, kind)
    assert (weight == before).all()


# --- coordinates


SIZES = st.dictionaries(
    st.from_regex(r"layers\.[0-9]\.[a-z_]{1,6}", fullmatch=True),
    st.integers(1, 4),
    min_size=1,
    max_size=3,
)
HALVES = st.floats(width=16, allow_nan=False, allow_infinity=False)


@given(SIZES, st.data())
@settings(deadline=None)
def test_join_is_the_inverse_of_split(sizes, data):
    coordinates = Coordinates(sizes)
    values = data.draw(st.lists(HALVES, min_size=coordinates.total, max_size=coordinates.total))
    flat = np.array(values, dtype=np.float32)
    parts = coordinates.split(flat)
    assert {name: part.shape for name, part in parts.items()} == {n: (s,) for n, s in sizes.items()}
    assert list(np.concatenate(list(parts.values()))) == values
    order = data.draw(st.permutations(list(sizes)))
    joined = coordinates.join({name: parts[name].astype(np.float16) for name in order})
    assert joined.dtype == np.float32
    assert joined.tobytes() == flat.tobytes()


@given(SIZES, st.lists(st.integers(1, 3), max_size=2))
@settings(deadline=None)
def test_split_gives_views_of_each_candidate(sizes, leading):
    coordinates = Coordinates(sizes)
    flat = np.zeros((*leading, coordinates.total), dtype=np.float32)
    for number, (name, part) in enumerate(coordinates.split(flat).items()):
        assert part.shape == (*leading, sizes[name])
        part[...] = number + 1
    for number, (_, part) in enumerate(coordinates.slices()):
        assert (flat[..., part] == number + 1).all()


@pytest.mark.parametrize("shape", [(), (0,), (4,), (6,), (5, 4), (5, 1)])
def test_split_refuses_another_number_of_coordinates(shape):
    with pytest.raises(ValueError, match="expected 5 coordinates"):
        Coordinates({"a": 2, "b": 3}).split(np.zeros(shape, dtype=np.float32))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"a": (2,)}, "not this model's: b"),
        ({"a": (2,), "b": (3,), "c": (1,)}, "not this model's: c"),
        ({"a": (2,), "x": (3,)}, "not this model's: b, x"),
        ({}, "not this model's: a, b"),
        ({"a": (3,), "b": (2,)}, "a: shape"),
        ({"a": (2,), "b": (1, 3)}, "b: shape"),
        ({"a": (2,), "b": ()}, "b: shape"),
    ],
)
def test_join_refuses_other_names_and_shapes(shapes, message):
    tensors = {name: np.zeros(shape, dtype=np.float16) for name, shape in shapes.items()}
    with pytest.raises(ValueError, match=message):
        Coordinates({"a": 2, "b": 3}).join(tensors)


@pytest.mark.parametrize(
    ("layers", "hidden", "attention", "mlp", "total"),
    [
        pytest.param(36, 4096, 4096, 12288, 1_327_104, id="Qwen3-8B"),
        pytest.param(28, 2048, 2048, 6144, 516_096, id="Qwen3-1.7B"),
        pytest.param(30, 576, 576, 1536, 149_760, id="SmolLM2-135M"),
    ],
)
def test_an_expert_has_one_scalar_per_input_of_every_target(layers, hidden, attention, mlp, total):
    inputs = dict.fromkeys(TARGETS, hidden) | {"o_proj": attention, "down_proj": mlp}
    sizes = {f"layers.{i}.{name}": size for i in range(layers) for name, size in inputs.items()}
    assert Coordinates(sizes).total == total


def test_targets_are_the_seven_matrices_of_a_layer():
    assert len(set(TARGETS)) == 7
    assert (*ATTENTION_TARGETS, *MLP_TARGETS) == TARGETS


# --- a whole model's basis


def weights() -> list[tuple[str, np.ndarray]]:
    return [("layers.0.q", matrix(9, 12, 0)), ("layers.0.k", matrix(9, 12, 1)), ("z", matrix(8, 6))]


@pytest.mark.parametrize("kind", BASIS_KINDS)
def test_basis_holds_every_matrix_in_order_and_is_deterministic(kind):
    seen: list[str] = []
    basis = compute_basis(iter(weights()), kind, seen.append)
    assert seen == list(basis.blocks) == ["layers.0.q", "layers.0.k", "z"]
    assert basis.coordinates.sizes == {"layers.0.q": 12, "layers.0.k": 12, "z": 6}
    assert basis.sha256 == compute_basis(weights(), kind).sha256


def test_equal_shapes_get_different_random_vectors():
    blocks = compute_basis(weights(), "random").blocks
    assert (blocks["layers.0.q"].vectors != blocks["layers.0.k"].vectors).any()


@pytest.mark.parametrize("kind", BASIS_KINDS)
def test_unpack_is_the_exact_inverse_of_pack(kind):
    basis = compute_basis(weights(), kind)
    again = unpack_basis(pack_basis(basis))
    assert (again.kind, again.sha256) == (basis.kind, basis.sha256)
    assert again.coordinates == basis.coordinates
    for name, block in basis.blocks.items():
        found = again.blocks[name]
        assert found.singular_values.tobytes() == block.singular_values.tobytes()
        assert vectors_of(found).tobytes() == vectors_of(block).tobytes()


def test_hash_depends_on_kind_names_and_order():
    first, second, third = weights()
    renamed = [("layers.1.q", first[1]), second, third]
    orders = [weights(), renamed, [second, first, third], [first, second]]
    bases = [compute_basis(order, kind) for order in orders for kind in BASIS_KINDS]
    assert len({basis.sha256 for basis in bases}) == len(bases)


@given(st.sampled_from(BASIS_KINDS), st.data())
@settings(deadline=None)
def test_any_flipped_bit_of_a_stored_basis_is_refused(kind, data):
    arrays = dict(pack_basis(compute_basis(weights(), kind)))
    name = data.draw(st.sampled_from(sorted(arrays)))
    raw = bytearray(arrays[name].tobytes())
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    flipped = np.frombuffer(bytes(raw), dtype=arrays[name].dtype)
    arrays[name] = flipped.reshape(arrays[name].shape)
    with pytest.raises((KeyError, ValueError)):
        unpack_basis(arrays)


@pytest.mark.parametrize("kind", BASIS_KINDS)
def test_a_stored_basis_without_one_of_its_arrays_is_refused(kind):
    arrays = pack_basis(compute_basis(weights(), kind))
    for name in arrays:
        with pytest.raises((KeyError, ValueError)):
            unpack_basis({other: array for other, array in arrays.items() if other != name})


@pytest.mark.parametrize(
    "meta",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"7",
        b"\xff\xfe",
        b'{"kind": "spectral"}',
        b'{"kind": "spectral", "names": []}',
        b'{"kind": "spectral", "names": 3, "sha256": ""}',
        b'{"kind": "spectral", "names": [3], "sha256": ""}',
        b'{"kind": "spectral", "names": "z", "sha256": ""}',
        b'{"kind": "spectral", "names": [], "sha256": ""}',
        b'{"kind": "other", "names": [], "sha256": ""}',
        b'{"kind": [], "names": [], "sha256": ""}',
    ],
)
def test_a_damaged_description_of_a_stored_basis_is_refused(meta):
    arrays = pack_basis(compute_basis(weights())) | {"meta": np.frombuffer(meta, dtype=np.uint8)}
    with pytest.raises((KeyError, ValueError)):
        unpack_basis(arrays)


def test_vectors_of_another_shape_are_refused():
    arrays = pack_basis(compute_basis(weights()))
    arrays["z.v"] = arrays["z.v"].reshape(-1)
    with pytest.raises(ValueError, match="hash differs"):
        unpack_basis(arrays)


def test_a_relabelled_basis_is_refused():
    arrays = pack_basis(compute_basis(weights(), "spectral"))
    meta = json.loads(arrays["meta"].tobytes()) | {"kind": "random"}
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    with pytest.raises(ValueError, match="hash differs"):
        unpack_basis(arrays)
