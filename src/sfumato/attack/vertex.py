# SPDX-License-Identifier: Apache-2.0
"""The vertex attack: of the corners of a subspace cut by SIFT's constraints, the one that looks like SIFT.

Knows nothing but that descriptors are never negative, clamped and of unit norm: no photo, no decoy, no seed. Decoys of
hybrid and adversarial lifting lie in the subspace as well. They are told apart because k-means centres have hardly
any coordinates tied at the maximum, because decoys repeat within an image while descriptors do not, and, where the
database is known, because they stand in it. SIFT's values are whole numbers over a norm, which verifies a corner.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.attack.knowledge import Knowledge, Recovered, fallback
from sfumato.attack.lattice import SNAPS
from sfumato.attack.lookup import find_entries, find_repeats
from sfumato.attack.polytope import FLOAT16, FLOAT32, Corners, Precision, unit_corners
from sfumato.types.concealed import ConcealedFeatures, Subspaces

ON_LATTICE = 0.1
"""The misfit, of whole numbers, below which a corner is on the lattice; by chance it is 0.29."""

LIKENESS = np.array([10.1, 11.56, -1.25, 2.87, 1.73, 0.07, -124.9, 163.0, -1.02])
"""Weights of ``likeness``, from 40,000 SIFT of bsds500/train against 40,000 bundled decoys."""

GENERATED_LIKENESS = np.array([-19.96, 2.32, -0.283, 7.953, -2.981, 0.0448, 135.9, -190.9, 0.618])
"""The same where decoys are generated: from 16,000 SIFT of bsds500/train against 16,000 decoys generated from the
bundled ones. Of one and one it tells which is which in 78 % of cases."""

SAME = 40
"""Corners within so many times the precision are one point: where few constraints meet, rounding moves a corner."""

SAMPLE = 48
"""Subspaces that are looked at to tell float32 from float16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexParams:
    """``with_ties``: use that the largest coordinates are equal (planes only; beyond, it is always used)."""

    with_ties: bool = True


def recover_vertex(features: ConcealedFeatures, knowledge: Knowledge, params: VertexParams | None = None) -> Recovered:
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
    return Recovered(descriptors, confidence)


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
