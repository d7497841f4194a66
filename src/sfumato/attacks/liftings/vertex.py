# SPDX-License-Identifier: Apache-2.0
"""Vertex attack: of the corners of a subspace cut by SIFT's constraints, the one that looks like SIFT.

Knows nothing but that descriptors are never negative, clamped and of unit norm: no photo, no decoy, no seed. Decoys of
hybrid and adversarial lifting lie in the subspace as well. They are distinguished because k-means centres have hardly
any coordinates tied at the maximum, because decoys repeat within an image while descriptors do not, and, where the
database is known, because they stand in it. SIFT's values are whole numbers over a norm, which verifies a corner.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.knowledge import Knowledge, Recovery, fallback
from sfumato.attacks.liftings.corners import FLOAT16, FLOAT32, Corners, Precision, unit_corners
from sfumato.types.concealed import ConcealedFeatures, Subspaces

# --- the lattice of SIFT: OpenCV's and COLMAP's histograms are whole numbers over a common norm
#
# A corner of a subspace that is a descriptor (or a decoy made of descriptors' bytes) becomes whole numbers when
# scaled rightly; any other point does not. So a guess is verified, and what rounding left of it is removed.


Array = NDArray[np.float64]

SCALES = np.arange(500.0, 524.0, 0.1)
"""SIFT has the norm 512 before its values are rounded; the norm of what is rounded differs by a little."""

SMALLEST = 6
"""RootSIFT: the smallest value that is not zero is the root of one of the first this many whole numbers."""


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
    """Do the same with RootSIFT: COLMAP rounds the roots themselves; OpenCV's squares are whole over their sum."""
    rounded, misfit = snap_sift(points)
    roots, other = _snap_squares(points)
    is_rounded = misfit < other
    return np.where(is_rounded[:, None], rounded, roots), np.where(is_rounded, misfit, other)


def _snap_squares(points: Array) -> tuple[Array, Array]:
    """Return the nearest points whose squares are whole numbers over their sum, which the smallest of them tells."""
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
    integers = np.rint(sums[:, None] * squares)
    lengths = np.sqrt(np.maximum(integers.sum(axis=1, keepdims=True), 1))
    return np.sqrt(integers) / lengths, np.where(np.isfinite(best), best, 1.0)


def _snapped(points: Array, scales: Array) -> tuple[Array, Array]:
    """Round at the given scales; the norm of the whole numbers is the scale they should have had."""
    integers = np.rint(scales[:, None] * points)
    lengths = np.maximum(np.linalg.norm(integers, axis=1, keepdims=True), 1)
    misfit: Array = np.sqrt(np.square(lengths * points - integers).mean(axis=1))
    return integers / lengths, misfit


SNAPS = {"sift": snap_sift, "rootsift": snap_rootsift}
"""How guesses of these descriptors are snapped."""


# --- which points stand in a large table, or come again, up to rounding: a tree of projections, not all distances


AXES = 12
"""A projection to this many random axes never lengthens a distance, and parts what is different."""

CANDIDATES = 4


def find_entries(points: NDArray[Any], entries: NDArray[Any], tolerance: float) -> NDArray[np.int64]:
    """Return for each of ``points`` (M, n) an entry (W, n) within ``tolerance`` of it, the nearest found, or -1."""
    near, distances = _near(points, entries, tolerance)
    best = distances.argmin(axis=1) if near.size else np.zeros(len(points), np.int64)
    rows = np.arange(len(points))
    nearest_entries: NDArray[np.int64] = np.where(distances[rows, best] <= tolerance, near[rows, best], -1)
    return nearest_entries


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


ON_LATTICE = 0.1
"""The misfit, of whole numbers, below which a corner is on the lattice; by chance it is 0.29."""

LIKENESS = np.array([10.1, 11.56, -1.25, 2.87, 1.73, 0.07, -124.9, 163.0, -1.02])
"""Weights of ``likeness``, from 40,000 SIFT of bsds500/train against 40,000 bundled decoys."""

GENERATED_LIKENESS = np.array([-19.96, 2.32, -0.283, 7.953, -2.981, 0.0448, 135.9, -190.9, 0.618])
"""The same where decoys are generated: from 16,000 SIFT of bsds500/train against 16,000 decoys generated from the
bundled ones. Of one and one it tells which is which in 78 % of cases."""

SAME = 40
"""Corners within this many times the precision are one point: where few constraints meet, rounding moves a corner."""

SAMPLE = 48
"""Subspaces that are looked at to tell float32 from float16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexParams:
    """``with_ties``: use that the largest coordinates are equal (planes only; beyond, it is always used)."""

    with_ties: bool = True


def recover_vertex(features: ConcealedFeatures, knowledge: Knowledge, params: VertexParams | None = None) -> Recovery:
    """Return the best corner of each subspace; confidence says how many more constraints meet in it than must.

    Works on archives in float32 and float16: the corners themselves tell how exact they are.
    """
    params = params or VertexParams()
    guess = fallback(features.subspaces)
    descriptors, confidence = guess.descriptors.copy(), guess.confidence.copy()
    precision = guess_precision(features.subspaces)
    corners = unit_corners(features.subspaces, precision, with_ties=params.with_ties)
    known = known_decoys(corners, features.subspaces, knowledge.decoys, precision)
    lifting = features.recipe.lifting
    weights = GENERATED_LIKENESS if lifting is not None and lifting.is_generated else LIKENESS
    rows, points, sure = choose_corners(corners, known, features.subspaces.dim, features.extractor.name, weights)
    descriptors[rows], confidence[rows] = points, sure
    return Recovery(descriptors, confidence)


def guess_precision(subspaces: Subspaces) -> Precision:
    """Tell from some corners in which many constraints meet how far from unit norm rounding left them."""
    sample = subspaces[np.unique(np.linspace(0, len(subspaces) - 1, min(len(subspaces), SAMPLE)).astype(np.int64))]
    corners = unit_corners(sample, FLOAT16)
    clear_cut = corners.zeros + corners.ties > subspaces.dim + 4
    error = np.abs(np.linalg.norm(corners.points[clear_cut], axis=1) - 1)
    return FLOAT16 if error.size and np.median(error) > FLOAT32.norm / 2 else FLOAT32


def known_decoys(
    corners: Corners, subspaces: Subspaces, decoys: NDArray[np.float32] | None, precision: Precision
) -> NDArray[np.bool_]:
    """Tell which corners are decoys: they come again in the image, or stand in the database where it is known."""
    same = SAME * precision.near
    owners = np.unique(np.rint(subspaces.origin / 1e-3), axis=0, return_inverse=True)[1].ravel()  # equal rows share one
    known = find_repeats(corners.points, owners[corners.rows], same)
    if decoys is not None:
        known |= find_entries(corners.points, decoys, same) >= 0
    return known


def choose_corners(
    corners: Corners,
    known: NDArray[np.bool_],
    dim: int,
    kind: str,
    weights: NDArray[np.float64] = LIKENESS,
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    """Return the rows that have a corner, the likeliest descriptor of each (K, n), and the confidence (K,).

    Confidence grows with the constraints that meet beyond the dim + 1 that must, with the lead over the next best
    corner, and with the lattice of ``kind`` where it has one.
    """
    points = np.maximum(corners.points, 0)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    meeting = 1 - np.exp(-np.maximum(corners.zeros + corners.ties - (dim + 1), 0) / 2)
    off = np.zeros(len(corners))
    if kind in SNAPS and len(corners):
        snapped, misfit = SNAPS[kind](points)
        fits = misfit < ON_LATTICE
        points = np.where(fits[:, None], snapped, points)
        meeting, off = np.where(fits, np.maximum(meeting, 0.9), 0.3 * meeting), np.where(fits, 0.0, 20.0)
        zeros = np.where(fits, (points == 0).sum(axis=1), corners.zeros)
        ties = np.where(fits, (points == points.max(axis=1, keepdims=True)).sum(axis=1), corners.ties)
        corners = Corners(corners.rows, points, zeros, ties)
    score = likeness(corners, kind, weights) - off
    score = np.where(known, score - 100, score)
    order = np.lexsort((-score, corners.rows))
    rows, at = np.unique(corners.rows[order], return_index=True)
    best = order[at]
    second = np.full(len(rows), -np.inf)
    has_rival = at + 1 < np.append(at[1:], len(order))
    second[has_rival] = score[order[at[has_rival] + 1]]
    lead = 1 / (1 + np.exp(np.minimum(second - score[best], 50.0)))
    confidence = np.where(known[best], 0.01, np.maximum(meeting[best], 0.02)) * lead
    return rows, points[best].astype(np.float32), confidence.astype(np.float32)


def likeness(corners: Corners, kind: str, weights: NDArray[np.float64] = LIKENESS) -> NDArray[np.float64]:
    """Return how much corners look like SIFT of a photo rather than a k-means centre, as a logarithm of odds.

    Of SIFT nine in ten have four to nine coordinates at the maximum and half have fourteen zeros or more; of centres
    three in four have one or two at the maximum, and half have no zero. Fitted by logistic regression.
    """
    top = corners.points.max(axis=1, initial=0.0)
    if kind == "rootsift":  # the maximum of the SIFT it is the root of
        top = top**2 / np.linalg.norm(np.square(corners.points), axis=1)
    ties, zeros = np.log(np.maximum(corners.ties, 1)), np.log1p(corners.zeros)
    columns = (
        np.ones(len(corners)), ties, np.minimum(corners.ties, 8), corners.ties <= 1,
        zeros, np.minimum(corners.zeros, 40), top, top**2, ties * zeros,
    )  # fmt: skip
    likely: NDArray[np.float64] = np.column_stack(columns) @ weights
    return likely
