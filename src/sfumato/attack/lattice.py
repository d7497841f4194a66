# SPDX-License-Identifier: Apache-2.0
"""The lattice of SIFT: OpenCV's and COLMAP's histograms are whole numbers over a common norm.

A corner of a subspace that is a descriptor (or a decoy made of descriptors' bytes) becomes whole numbers when scaled
rightly; any other point does not. So a guess is verified, and what rounding left of it is removed. Knows numbers, no
subspace.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SCALES = np.arange(500.0, 524.0, 0.1)
"""SIFT has the norm 512 before its values are rounded; the norm of what is rounded differs by a little."""

SMALLEST = 6
"""RootSIFT: the smallest value that is not zero is the root of one of the first so many whole numbers."""


def snap_sift(points: Array) -> tuple[Array, Array]:
    """Return the nearest lattice points (M, n) of unit norm, and the misfit (M,): 0 on the lattice, 0.29 by chance.

    The misfit is the root mean square distance of the scaled values from whole numbers.
    """
    best, scales = np.full(len(points), np.inf), np.full(len(points), SCALES[0])
    for scale in SCALES:
        scaled = scale * points
        misfit = np.sqrt(np.square(scaled - np.rint(scaled)).mean(axis=1))
        better = misfit < best
        best[better], scales[better] = misfit[better], scale
    return _snapped(points, scales)


def snap_rootsift(points: Array) -> tuple[Array, Array]:
    """Do the same with RootSIFT: its squares are whole numbers over their sum, which the smallest of them tells."""
    squares = np.square(points)
    smallest = np.where(squares > 1e-5, squares, np.inf).min(axis=1, initial=np.inf)
    best, sums = np.full(len(points), np.inf), np.ones(len(points))
    for first in range(1, SMALLEST + 1):
        for shift in range(-3, 4):
            total = np.rint(first / smallest) + shift
            scaled = total[:, None] * squares
            misfit = np.sqrt(np.square(scaled - np.rint(scaled)).mean(axis=1))
            better = (misfit < best) & (total > 0)
            best[better], sums[better] = misfit[better], total[better]
    whole = np.rint(sums[:, None] * squares)
    lengths = np.sqrt(np.maximum(whole.sum(axis=1, keepdims=True), 1))
    return np.sqrt(whole) / lengths, np.where(np.isfinite(best), best, 1.0)


def _snapped(points: Array, scales: Array) -> tuple[Array, Array]:
    """Round at the given scales; the norm of the whole numbers is the scale they should have had."""
    whole = np.rint(scales[:, None] * points)
    lengths = np.maximum(np.linalg.norm(whole, axis=1, keepdims=True), 1)
    misfit: Array = np.sqrt(np.square(lengths * points - whole).mean(axis=1))
    return whole / lengths, misfit


SNAPS = {"sift": snap_sift, "rootsift": snap_rootsift}
"""How guesses of these descriptors are snapped."""
