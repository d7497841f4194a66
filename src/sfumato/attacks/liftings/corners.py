# SPDX-License-Identifier: Apache-2.0
"""Corners of subspaces cut by what the last step of a descriptor implies: never negative, clamped at a maximum.

SIFT is never negative, and what was above 0.2 is cut to one common maximum. So the clear descriptor lies where many
of the hyperplanes x_i = 0 and x_i = max x meet: it is a corner of { (c, t) : 0 <= p + B'c <= t }. In planes all
corners are enumerated, beyond they are looked for by linear programs. Knows subspaces and geometry, not which corner
is the clear descriptor (``vertex`` chooses).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.types.concealed import Subspaces

Array = NDArray[np.float64]

ROOM = 24
"""Corners of unit norm kept for a subspace: more than there ever are."""

ROWS_AT_ONCE = 4096
STARTS, LEAST_STARTS, MOST_STARTS = 30, 6, 240
"""Objectives a dimension, and the fewest and most: beyond planes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What rounding leaves of an equality: ``relaxed`` constraints, how ``near`` active ones are, the ``norm``."""

    relaxed: float
    near: float
    norm: float


FLOAT32 = Precision(relaxed=1e-6, near=2e-5, norm=2e-5)
FLOAT16 = Precision(relaxed=1e-4, near=5e-4, norm=1e-3)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Corners:
    """M corners: ``rows`` (M,) the subspace of each, ``points`` (M, n), how many coordinates are ``zeros`` (M,) and
    how many share the maximum, ``ties`` (M,)."""

    rows: NDArray[np.int64]
    points: Array
    zeros: NDArray[np.int64]
    ties: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, mask: NDArray[np.bool_]) -> "Corners":
        """Select corners by a mask."""
        return Corners(self.rows[mask], self.points[mask], self.zeros[mask], self.ties[mask])

    def __repr__(self) -> str:
        return f"Corners({len(self)} of {np.unique(self.rows).size} subspaces)"


def unit_corners(subspaces: Subspaces, precision: Precision = FLOAT32, *, with_ties: bool = True) -> Corners:
    """Return the corners of unit norm of N subspaces. Without ties only non-negativity is used (planes only).

    The position of each is sharpened by least squares over all constraints that meet in it.
    """
    blocks = [
        _block(subspaces, start, min(start + ROWS_AT_ONCE, len(subspaces)), precision, with_ties)
        for start in range(0, len(subspaces), ROWS_AT_ONCE)
    ]
    if subspaces.dim == 0 or not blocks:
        none = np.empty(0, np.int64)
        return Corners(none, np.empty((0, subspaces.ambient_dim)), none, none)
    return Corners(
        np.concatenate([block.rows for block in blocks]),
        np.concatenate([block.points for block in blocks]),
        np.concatenate([block.zeros for block in blocks]),
        np.concatenate([block.ties for block in blocks]),
    )


def _block(subspaces: Subspaces, start: int, stop: int, precision: Precision, with_ties: bool) -> Corners:
    origin = subspaces.origin[start:stop].astype(np.float64, order="C")
    basis = subspaces.basis[start:stop].astype(np.float64, order="C")  # one layout, compiled once
    found, counts = _find(origin, basis, precision, with_ties)
    rows = np.repeat(np.arange(len(origin)), counts)
    coordinates = found[np.arange(found.shape[1]) < counts[:, None]]
    coordinates, zeros, ties = sharpen(origin[rows], basis[rows], coordinates, precision.near)
    points = origin[rows] + np.einsum("kj,kji->ki", coordinates, basis[rows])
    corners = Corners(rows + start, points, zeros, ties)
    lengths = np.linalg.norm(points, axis=1)
    feasible = points.min(axis=1, initial=0.0) >= -precision.near
    return corners[feasible & (np.abs(lengths - 1) <= precision.norm) & _is_first(rows, coordinates)]


def _find(origin: Array, basis: Array, precision: Precision, with_ties: bool) -> tuple[Array, NDArray[np.int64]]:
    """Return coordinates (N, room, m) of corners near unit norm, and the number of them in each row."""
    m, loose = basis.shape[1], 4 * precision.norm + 20 * precision.relaxed
    if m == 0:
        return np.zeros((len(origin), 0, 0)), np.zeros(len(origin), np.int64)
    if m == 2:
        from sfumato.attacks.liftings.kernels import clip_rows

        return clip_rows(origin, basis, precision.relaxed, loose, with_ties, ROOM)  # type: ignore[no-any-return]
    from sfumato.attacks.liftings.kernels import search_rows

    return search_rows(origin, basis, _search(m, origin.shape[1], precision, loose), ROOM)  # type: ignore[no-any-return]


def _search(m: int, n: int, precision: Precision, loose: float) -> Any:
    """Return what to try: objectives at random, the maximum weighing more or less; corners multiply with m."""
    from sfumato.attacks.liftings.kernels import CornerSearch

    draw = np.random.default_rng(0)
    starts = min(STARTS * m, MOST_STARTS)
    ceilings = 0.3 * 10.0 ** (-2.5 * draw.random(starts))
    objectives = np.column_stack([draw.normal(size=(starts, m)), 0.1 * n * ceilings])
    relaxed = precision.relaxed * (1 + draw.random(2 * n))
    return CornerSearch(relaxed, precision.near, loose, objectives, ceilings, 2, LEAST_STARTS, 4)


def sharpen(
    origin: Array, basis: Array, coordinates: Array, near: float
) -> tuple[Array, NDArray[np.int64], NDArray[np.int64]]:
    """Move corners to where all constraints that nearly meet in them meet best; count zeros and ties.

    Least squares in (c, t) of x_i = 0 for the nearly zero and x_i = t for the nearly largest coordinates.
    """
    m = basis.shape[1]
    coordinates = coordinates.copy()
    for _ in range(2):
        points = origin + np.einsum("kj,kji->ki", coordinates, basis)
        at_zero = np.abs(points) < near
        at_top = points > points.max(axis=1, keepdims=True, initial=-np.inf) - near
        weights = (at_zero | at_top).astype(np.float64)
        rows = np.concatenate([basis, np.where(at_zero, 0.0, -1.0)[:, None]], axis=1)  # derivatives by c and t
        weighted = rows * weights[:, None]
        normal = np.matmul(weighted, rows.transpose(0, 2, 1)) + 1e-12 * np.eye(m + 1)
        solved = np.linalg.solve(normal, -np.einsum("kji,ki->kj", weighted, origin)[:, :, None])[:, :m, 0]
        moved = np.linalg.norm(solved - coordinates, axis=1, keepdims=True)
        coordinates = np.where(moved < 20 * near, solved, coordinates)
    points = origin + np.einsum("kj,kji->ki", coordinates, basis)
    zeros = (np.abs(points) < near).sum(axis=1)
    ties = (points > points.max(axis=1, keepdims=True, initial=-np.inf) - near).sum(axis=1)
    return coordinates, zeros, ties


def _is_first(rows: NDArray[np.int64], coordinates: Array) -> NDArray[np.bool_]:
    """Tell which corners were not there before in the same row; rows come sorted."""
    first = np.ones(len(rows), np.bool_)
    for back in range(1, ROOM):
        if back >= len(rows):
            break
        same = (rows[back:] == rows[:-back]) & (
            np.abs(coordinates[back:] - coordinates[:-back]).max(axis=1, initial=0.0) < 1e-3
        )
        first[back:] &= ~same
    return first
