"""Spectral experts: relative edits of the block singular values of frozen INT4 weights.

Claim (MobileSpec): rescaling the singular values of column blocks of the pretrained weights is
enough to specialise a model, costs ``in_features`` scalars per matrix, and never touches the
weights, because the edit can be moved to the layer's input.

Block layout (FuRA, arXiv 2605.22869): the columns of W (out x in) are cut into n blocks of width
b, with n * b = in the factor pair closest to square and n <= b.  With W_j = U_j S_j V_j^T and a
relative change e_j of the singular values,

    x'_j = x_j + V_j (e_j * (V_j^T x_j)),      y = W x'                                        (1)

equals replacing S_j by S_j (1 + e_j).  V_j comes from the b x b Gram matrix W_j^T W_j, never from
a full SVD.  Relative, not additive: the additive form divides by singular values near zero.

Choice where the sources are silent: the basis is computed in float64 and kept in float32; its
hash, not its recipe, is what experts are pinned to, since order and sign of near-equal singular
vectors differ between LAPACK builds.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Literal

import numpy as np
import numpy.typing as npt

BasisKind = Literal["spectral", "channel", "random", "global"]
BASIS_KINDS: tuple[BasisKind, ...] = ("spectral", "channel", "random", "global")
FloatArray = npt.NDArray[np.float32]

# The matrices of a decoder layer that carry coordinates: attention, then MLP.
ATTENTION_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP_TARGETS = ("gate_proj", "up_proj", "down_proj")
TARGETS = ATTENTION_TARGETS + MLP_TARGETS


def block_layout(in_features: int) -> tuple[int, int]:
    """``(n, b)``: number and width of column blocks, the factor pair closest to square, n <= b."""
    n = next(n for n in range(math.isqrt(in_features), 0, -1) if in_features % n == 0)
    return n, in_features // n


@dataclass(frozen=True)
class BlockBasis:
    """The right singular vectors of one matrix, or what stands in for them.

    Attributes:
        vectors: ``V``, (n, b, b) fp32, column k of block j is the k-th right singular vector;
            ``None`` for the ``channel`` basis, where V = I.
        singular_values: (n, b) fp32, ``|W_j v|`` of each column v of V_j: the singular values,
            descending in each block, where V holds singular vectors.
    """

    vectors: FloatArray | None
    singular_values: FloatArray


def block_basis(weight: npt.NDArray[np.floating], kind: BasisKind, seed: int = 0) -> BlockBasis:
    """Basis of ``weight`` (out, in): eigenvectors of each block's Gram matrix.

    ``channel`` is V = I; ``random`` an orthogonal matrix drawn from ``seed``; ``global`` one
    block over all columns.  Raises ``ValueError`` if a weight is not finite.
    """
    in_features = weight.shape[1]
    if not np.isfinite(weight).all():
        raise ValueError("the weight holds NaN or inf: no basis can be computed")
    n, b = (1, in_features) if kind == "global" else block_layout(in_features)
    # One (out, b) GEMM a block in float64: small, and no (out, in) float64 copy of the matrix.
    gram = np.empty((n, b, b))
    for j in range(n):
        block = weight[:, j * b : (j + 1) * b].astype(np.float64)
        gram[j] = block.T @ block
    vectors: npt.NDArray[np.float64] | None
    if kind == "channel":
        vectors, squares = None, np.einsum("jkk->jk", gram)
    elif kind == "random":
        rng = np.random.Generator(np.random.Philox(key=seed))
        vectors = np.linalg.qr(rng.standard_normal((n, b, b)))[0]
        squares = np.einsum("jkl,jkl->jl", vectors, gram @ vectors)
    else:
        ascending = np.linalg.eigh(gram)
        squares, vectors = ascending[0][:, ::-1], ascending[1][:, :, ::-1]
    # Rounding leaves what is zero in a rank-deficient block a little below zero.
    norms = np.sqrt(np.maximum(squares, 0.0))
    return BlockBasis(
        None if vectors is None else np.ascontiguousarray(vectors, dtype=np.float32),
        norms.astype(np.float32),
    )


@dataclass(frozen=True)
class Coordinates:
    """Where each matrix's coordinates lie in one flat vector.

    Attributes:
        sizes: matrix name -> in_features, in the order of the flat vector.
    """

    sizes: Mapping[str, int]

    @property
    def total(self) -> int:
        """Number of coordinates of an expert."""
        return sum(self.sizes.values())

    def slices(self) -> Iterator[tuple[str, slice]]:
        """Each matrix's name and its slice of the flat vector."""
        start = 0
        for name, size in self.sizes.items():
            yield name, slice(start, start + size)
            start += size

    def split(self, flat: FloatArray) -> dict[str, FloatArray]:
        """Flat (..., total) -> matrix name -> (..., in_features), as views."""
        if flat.shape[-1:] != (self.total,):
            raise ValueError(f"expected {self.total} coordinates, got shape {flat.shape}")
        return {name: flat[..., part] for name, part in self.slices()}

    def touched(self, flat: FloatArray) -> frozenset[str]:
        """Matrices of which any of the experts (P, total) changes a coordinate."""
        starts = [part.start for _, part in self.slices()]
        changed = np.logical_or.reduceat(flat.any(axis=0), starts)
        return frozenset(compress(self.sizes, changed))

    def join(self, tensors: Mapping[str, npt.NDArray[np.floating]]) -> FloatArray:
        """Matrix name -> (in_features,) to one flat fp32 vector; names and shapes must match."""
        if set(tensors) != set(self.sizes):
            odd = sorted(set(tensors) ^ set(self.sizes))[:3]
            raise ValueError(f"the expert's matrices are not this model's: {', '.join(odd)}")
        for name, size in self.sizes.items():
            if tensors[name].shape != (size,):
                raise ValueError(f"{name}: shape {tensors[name].shape}, expected ({size},)")
        return np.concatenate([tensors[name] for name in self.sizes], dtype=np.float32)


@dataclass(frozen=True)
class Basis:
    """The basis of a whole base model: it belongs to the model, not to an expert.

    Attributes:
        kind: how V was chosen.
        blocks: matrix name -> basis, in layer order.
        sha256: hash of kind, names and bytes; what experts are pinned to.
    """

    kind: BasisKind
    blocks: Mapping[str, BlockBasis]
    sha256: str

    @property
    def coordinates(self) -> Coordinates:
        """Layout of an expert over this basis."""
        return Coordinates({n: b.singular_values.size for n, b in self.blocks.items()})


def _hash(kind: BasisKind, blocks: Mapping[str, BlockBasis]) -> str:
    digest = hashlib.sha256(kind.encode())
    for name, block in blocks.items():
        digest.update(name.encode())
        for part in (block.vectors, block.singular_values):
            if part is not None:
                digest.update(str(part.shape).encode() + np.ascontiguousarray(part).data)
    return digest.hexdigest()


def compute_basis(
    weights: Iterable[tuple[str, npt.NDArray[np.floating]]],
    kind: BasisKind = "spectral",
    progress: Callable[[str], None] | None = None,
) -> Basis:
    """Basis over ``(name, dequantised weight)`` pairs, read one at a time.

    The ``random`` basis numbers the matrices, so that equal shapes get different vectors.
    """
    blocks: dict[str, BlockBasis] = {}
    for index, (name, weight) in enumerate(weights):
        blocks[name] = block_basis(weight, kind, seed=index)
        if progress is not None:
            progress(name)
    return Basis(kind, blocks, _hash(kind, blocks))


def pack_basis(basis: Basis) -> dict[str, npt.NDArray[np.generic]]:
    """Arrays to store beside the model; ``unpack_basis`` reads them back."""
    meta = {"kind": basis.kind, "names": list(basis.blocks), "sha256": basis.sha256}
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "meta": np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    }
    for name, block in basis.blocks.items():
        arrays[f"{name}.s"] = block.singular_values
        if block.vectors is not None:
            arrays[f"{name}.v"] = block.vectors
    return arrays


def unpack_basis(arrays: Mapping[str, npt.NDArray[np.generic]]) -> Basis:
    """The inverse of ``pack_basis``; raises ``KeyError`` or ``ValueError`` on a damaged set.

    The stored hash is checked: one flipped bit, or one array that is missing, is damage.
    """
    match json.loads(arrays["meta"].tobytes()):
        case {"kind": kind, "names": [*names], "sha256": sha256} if kind in BASIS_KINDS:
            pass
        case _:
            raise ValueError("the basis does not say of what kind it is")
    blocks = {}
    for name in names:
        vectors = arrays.get(f"{name}.v")
        blocks[name] = BlockBasis(
            None if vectors is None else vectors.astype(np.float32, copy=False),
            arrays[f"{name}.s"].astype(np.float32, copy=False),
        )
    if _hash(kind, blocks) != sha256:
        raise ValueError("the basis is not the one that was stored: its hash differs")
    return Basis(kind, blocks, sha256)
