# SPDX-License-Identifier: Apache-2.0
"""Codes: subspaces projected on the axes along which they vary most, one byte per coordinate.

Every entry has two: a coarse one on the first axes, one cache line for a plane, and a fine one on all of them. Coarse
codes reduce the entries to a few hundred for the fine ones. A projection shortens every offset, so distances of
projected subspaces, made canonical again, never exceed the true ones, up to the rounding to bytes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.subspace.fast import load_kernels
from sfumato.subspace.reference import gram_schmidt

HEAD = 32
"""Axes of a fine code: 1 + m rows of this many bytes, and 12 bytes for their scales."""

COARSE = 16
"""Axes of a coarse code."""

MOST_DIRECTIONS = 32
"""Directions of a query that are compared with a code: as many span all its axes."""

LINE = 64
"""Bytes of a cache line; every code begins with one."""

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

    def project(self, origin: Floats, basis: Floats, width: int = HEAD) -> tuple[Floats, Floats]:
        """Return subspaces (N, n), (N, m, n) in canonical form on the first axes: (N, width) and (N, m, width)."""
        axes = self.axes[:, :width]
        heads = (basis.reshape(-1, basis.shape[2]) @ axes).reshape(len(basis), basis.shape[1], width)
        basis_head = gram_schmidt(heads)[0]
        offset = ((origin - self.mean) @ axes).astype(np.float64)
        for _ in range(2):
            offset -= np.einsum("nk,nki->ni", np.einsum("nki,ni->nk", basis_head, offset), basis_head)
        return offset.astype(np.float32), basis_head.astype(np.float32)

    def heads(self, origin: Floats, basis: Floats) -> Floats:
        """Return queries (Q, n), (Q, m, n) on the axes, measured from the mean: (Q, m + 1, HEAD).

        Of more than MOST_DIRECTIONS directions only the first are taken, for which kernels have room.
        """
        stack = np.concatenate([(origin - self.mean)[:, None], basis[:, :MOST_DIRECTIONS]], axis=1)
        return np.asarray(stack.reshape(-1, stack.shape[2]) @ self.axes).reshape(*stack.shape[:2], HEAD)


def code_bytes(m: int, width: int = HEAD) -> int:
    """Return how many bytes the code of a subspace of dimension m takes: whole cache lines."""
    return -(-(12 + (m + 1) * width) // LINE) * LINE


def _aligned(count: int, width: int) -> NDArray[np.int8]:
    """Return zeros (count, width) that begin with a cache line."""
    room = np.zeros(count * width + LINE, np.int8)
    first = -room.ctypes.data % LINE
    return room[first : first + count * width].reshape(count, width)


def encode(axes: Axes, origin: Floats, basis: Floats, width: int = HEAD) -> NDArray[np.int8]:
    """Return codes (N, code_bytes) of subspaces: squared norm, scale of the origin, of the basis; then the rows."""
    count, m = basis.shape[:2]
    codes, end = _aligned(count, code_bytes(m, width)), 12 + (m + 1) * width
    for start in range(0, count, AT_ONCE):
        part = slice(start, start + AT_ONCE)
        offset, heads = axes.project(origin[part], basis[part], width)
        scale0 = np.maximum(np.abs(offset).max(axis=1), 1e-30) / 127
        scale1 = np.maximum(np.abs(heads).max(axis=(1, 2), initial=0.0), 1e-30) / 127
        norms = np.einsum("ni,ni->n", offset, offset)
        codes[part, :12] = np.stack([norms, scale0, scale1], axis=1).astype(np.float32).view(np.int8)
        codes[part, 12 : 12 + width] = np.rint(offset / scale0[:, None])
        codes[part, 12 + width : end] = np.rint(heads / scale1[:, None, None]).reshape(len(offset), -1)
    return codes


def encode_queries(heads: Floats, width: int = HEAD) -> tuple[NDArray[np.int16], Floats, Floats]:
    """Return queries on the axes (Q, m + 1, HEAD) as int16 rows (Q, m + 1, width) of the first of them.

    Also returned are their scales (Q, 2) and squared norms (Q,) on these axes.
    """
    load_kernels()
    from sfumato.search.inverted.kernels import encode_rows

    count, stack = heads.shape[:2]
    rows = np.zeros((count, stack, width), np.int16)
    scales, norms = np.empty((count, 2), np.float32), np.empty(count, np.float32)
    encode_rows(heads, rows, scales, norms)
    return rows, scales, norms
