# SPDX-License-Identifier: Apache-2.0
"""Where several templates of one face nearly meet: what someone guesses who kept them all.

Two guesses: one needs nothing but the templates, the other takes away the decoys of a public database first. Knows
subspaces; neither faces nor who they belong to.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.decoys import Decoys
from sfumato.evaluate.attributeguess import found_decoys, stripped_features
from sfumato.types.concealed import Subspaces

PRIOR = 0.5
"""Noise of a photo over the spread of faces, a dimension: how much a guess is drawn to 0 where releases say little."""


def meeting_points(releases: Sequence[Subspaces], prior: float = PRIOR) -> NDArray[np.float64]:
    """Return the point (N, n) with the least squared distances to all releases of a face, drawn a little to 0.

    Solves (sum_i (I - B_i' B_i) + t I) x = sum_i p_i through the eigenvectors of sum_i B_i' B_i, of which there are no
    more than all directions together; t is the ``prior``, 0 < t, which may be tiny for releases of one and the same
    embedding. Needs neither decoys nor recipe.
    """
    if not releases:
        return np.zeros((0, 0))
    count = len(releases)
    pulled = np.sum([one.origin.astype(np.float64) for one in releases], axis=0)
    stacked = np.concatenate([one.basis.astype(np.float64) for one in releases], axis=1)
    strength, axes = np.linalg.eigh(np.matmul(stacked, stacked.transpose(0, 2, 1)))
    solid = strength > 1e-9
    scale = np.where(solid, 1 / np.sqrt(np.where(solid, strength, 1)), 0)
    directions = np.einsum("nkj,nki,nj->nji", axes, stacked, scale)  # orthonormal, or 0
    gain = 1 / (count - strength + prior) - 1 / (count + prior)
    along = np.einsum("nji,ni->nj", directions, pulled)
    met: NDArray[np.float64] = pulled / (count + prior) + np.einsum("nj,nj,nji->ni", gain, along, directions)
    return met


def stripped_points(releases: Sequence[Subspaces], decoys: Decoys | None, count: int) -> NDArray[np.float64]:
    """Return the mean (N, n) of what releases show once their public decoys are taken away.

    Releases whose decoys are not found, such as those parallel to an earlier one, count only where there is no other.
    """
    if not releases:
        return np.zeros((0, 0))
    people, n = releases[0].origin.shape
    total, weight = np.zeros((people, n)), np.zeros((people, 1))
    for one in releases:
        whole = np.ones(len(one)) if decoys is None or not count else found_decoys(one, decoys, count)[1].all(axis=1)
        share = np.where(whole, 1.0, 1e-6)[:, None]
        total += share * stripped_features(one, decoys, count)[:, :n]
        weight += share
    return total / weight


def unit_length(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return rows (N, n) scaled to length 1; a row of zeros stays."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1), np.float64)
