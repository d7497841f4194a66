# SPDX-License-Identifier: Apache-2.0
"""Codes: subspaces projected on the axes along which they vary most, a byte a coordinate.

Knows arrays only. Projection is a contraction, so that distances of projected subspaces, made canonical again, are
never greater than the true ones, up to the rounding to bytes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.subspace.reference import INDEPENDENT, gram_schmidt

HEAD = 32
"""Axes of a code: 1 + m rows of so many bytes, and 12 bytes for their scales."""

MOST_DIRECTIONS = 32
"""Of a query of more dimensions only so many are looked at in a code, which keeps the bound low, not exact."""

LINE = 64
"""Bytes that come from memory at once; every code begins with such a line."""

AT_ONCE = 65_536
SAMPLE = 100_000
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Axes:
    """The point ``mean`` (n,) that codes are measured from, and ``axes`` (n, HEAD), zero where n is less."""

    mean: Floats
    axes: Floats

    @staticmethod
    def of(points: Floats, *, linear: bool) -> "Axes":
        """Return the axes of greatest variance of points (N, n); through 0 where all is ``linear``."""
        n = points.shape[1]
        sample = points[:: max(1, len(points) // SAMPLE)].astype(np.float64)
        mean = np.zeros(n) if linear or not len(sample) else sample.mean(axis=0)
        centred = sample - mean
        vectors = np.linalg.eigh(centred.T @ centred).eigenvectors[:, ::-1][:, :HEAD]
        axes = np.zeros((n, HEAD), np.float32)
        axes[:, : vectors.shape[1]] = vectors
        return Axes(mean.astype(np.float32), axes)

    def project(self, origin: Floats, basis: Floats) -> tuple[Floats, Floats]:
        """Return subspaces (N, n), (N, m, n) in canonical form on the axes: (N, HEAD) and (N, m, HEAD)."""
        heads = (basis.reshape(-1, basis.shape[2]) @ self.axes).reshape(len(basis), basis.shape[1], HEAD)
        basis_head = _orthonormal(heads.astype(np.float64))
        offset = ((origin - self.mean) @ self.axes).astype(np.float64)
        for _ in range(2):
            offset -= np.einsum("nk,nki->ni", np.einsum("nki,ni->nk", basis_head, offset), basis_head)
        return offset.astype(np.float32), basis_head.astype(np.float32)


def _orthonormal(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows (N, m, HEAD) orthonormalised; zero where they span fewer dimensions, as on few axes they may."""
    if not 1 < rows.shape[1] <= HEAD:
        return gram_schmidt(rows)[0]
    factors = np.linalg.qr(rows.transpose(0, 2, 1))  # for a single query a fifth of the time
    spans = np.abs(np.einsum("nkk->nk", factors.R)) > INDEPENDENT
    return np.ascontiguousarray(factors.Q.transpose(0, 2, 1) * spans[:, :, None])


def code_bytes(m: int) -> int:
    """Return how many bytes the code of a subspace of dimension m takes: whole cache lines."""
    return -(-(12 + (m + 1) * HEAD) // LINE) * LINE


def _aligned(count: int, width: int) -> NDArray[np.int8]:
    """Return zeros (count, width) that begin with a cache line."""
    room = np.zeros(count * width + LINE, np.int8)
    first = -room.ctypes.data % LINE
    return room[first : first + count * width].reshape(count, width)


def encode(axes: Axes, origin: Floats, basis: Floats) -> NDArray[np.int8]:
    """Return codes (N, code_bytes) of subspaces: squared norm, scale of the origin, of the basis; then the rows."""
    count, m = basis.shape[:2]
    codes, end = _aligned(count, code_bytes(m)), 12 + (m + 1) * HEAD
    for start in range(0, count, AT_ONCE):
        part = slice(start, start + AT_ONCE)
        offset, heads = axes.project(origin[part], basis[part])
        scale0 = np.maximum(np.abs(offset).max(axis=1), 1e-30) / 127
        scale1 = np.maximum(np.abs(heads).max(axis=(1, 2), initial=0.0), 1e-30) / 127
        norms = np.einsum("ni,ni->n", offset, offset)
        codes[part, :12] = np.stack([norms, scale0, scale1], axis=1).astype(np.float32).view(np.int8)
        codes[part, 12 : 12 + HEAD] = np.rint(offset / scale0[:, None])
        codes[part, 12 + HEAD : end] = np.rint(heads / scale1[:, None, None]).reshape(len(offset), -1)
    return codes


def encode_queries(axes: Axes, origin: Floats, basis: Floats) -> tuple[NDArray[np.int16], Floats, Floats]:
    """Return queries as int16 rows (Q, m + 1, HEAD), their scales (Q, 2) and squared norms (Q,) on the axes."""
    offset, heads = axes.project(origin, basis)
    stack = np.concatenate([offset[:, None], heads], axis=1)
    scales = np.empty((len(offset), 2), np.float32)
    scales[:, 0] = np.maximum(np.abs(offset).max(axis=1), 1e-30) / 16383
    scales[:, 1] = np.maximum(np.abs(heads).max(axis=(1, 2), initial=0.0), 1e-30) / 16383
    stack[:, :1] /= scales[:, 0, None, None]
    stack[:, 1:] /= scales[:, 1, None, None]
    return np.rint(stack).astype(np.int16), scales, np.einsum("ni,ni->n", offset, offset)
