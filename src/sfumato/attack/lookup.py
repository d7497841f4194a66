# SPDX-License-Identifier: Apache-2.0
"""Which points stand in a large table, or come again, up to rounding: a tree of projections, not all distances.

Knows arrays only; holds nothing of the size of points times entries.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

AXES = 12
"""A projection to so many random axes never lengthens a distance, and parts what is different."""

CANDIDATES = 4


def find_entries(points: NDArray[Any], entries: NDArray[Any], tolerance: float) -> NDArray[np.int64]:
    """Return for each of ``points`` (M, n) an entry (W, n) within ``tolerance`` of it, the nearest found, or -1."""
    near, distances = _near(points, entries, tolerance)
    best = distances.argmin(axis=1) if near.size else np.zeros(len(points), np.int64)
    rows = np.arange(len(points))
    found: NDArray[np.int64] = np.where(distances[rows, best] <= tolerance, near[rows, best], -1)
    return found


def find_repeats(points: NDArray[Any], owners: NDArray[np.int64], tolerance: float) -> NDArray[np.bool_]:
    """Tell which points (M, n) come again, within ``tolerance``, with another owner (M,)."""
    near, distances = _near(points, points, tolerance)
    others = np.append(owners, -1)[near] != owners[:, None]
    again: NDArray[np.bool_] = ((distances <= tolerance) & others).any(axis=1)
    return again


def _near(
    points: NDArray[Any], entries: NDArray[Any], tolerance: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return a few entries whose projections are near those of points, (M, k), and their true distances."""
    from scipy.spatial import cKDTree

    if not len(points) or not len(entries):
        return np.full((len(points), 1), len(entries), np.int64), np.full((len(points), 1), np.inf)
    n = entries.shape[1]
    axes = np.linalg.qr(np.random.default_rng(0).normal(size=(n, min(n, AXES))))[0]
    tree = cKDTree(entries @ axes)
    _, near = tree.query(points @ axes, k=CANDIDATES, distance_upper_bound=tolerance * (1 + 1e-9) + 1e-12)
    distances = np.full(near.shape, np.inf)
    for k in range(CANDIDATES):
        rows = np.flatnonzero(near[:, k] < len(entries))
        distances[rows, k] = np.linalg.norm(points[rows] - entries[near[rows, k]].astype(np.float64), axis=1)
    return near.astype(np.int64), distances
