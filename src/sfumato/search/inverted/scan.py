# SPDX-License-Identifier: Apache-2.0
"""Scan of inverted lists: candidates by their codes, then exact ranks.

For a point, all entries of a few lists are bounded. For a subspace many cells vote first: it passes near many more
cells than a point, and each of their lists has few entries near the hidden descriptor.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.search.entries import Block
from sfumato.search.inverted.cells import InvertedLists
from sfumato.search.inverted.codes import COARSE, encode_queries
from sfumato.subspace.fast import INDISTINCT, load_kernels
from sfumato.subspace.subspace_set import read_only

Floats = NDArray[np.float32]

RANKED = 40
"""Candidates by codes for every cell probed; at least four for every answer."""

RANKED_VOTED = 128
"""The same for all voting cells together."""

COARSE_ONE, COARSE_MANY = 12, 24
"""Candidates by coarse codes for each of those, for one neighbour and for several."""

BOUNDS_PER_VOTE = 0.25
"""Entries bounded per vote cast, those with the most votes first."""

MOST_VOTERS = 255
HEAVIEST = 5
"""The weight of the nearest cell's vote; the farthest one's is 1. Their sum is at most 255, one byte."""

SLACK = 0.05
"""By how much a bound from bytes may be too large."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class CodeCandidates:
    """Entries that look nearest: ``rows`` (Q, R), -1 if there are fewer, with bounds ``lows`` (Q, R).

    ``shift`` (Q,): to be added to the bounds to get squared distances; ``looked_at``: how many entries were bounded.
    """

    lows: Floats
    rows: NDArray[np.int32]
    shift: Floats
    looked_at: int


def scan_lists(
    part: InvertedLists,
    alive: NDArray[np.uint8],
    heads: Floats,
    probes: NDArray[np.int32],
    k: int,
    *,
    linear: bool,
) -> CodeCandidates:
    """Return the entries that look nearest in the lists of cells ``probes`` (Q, P), nearest cell first.

    ``alive`` (N,): which entries are not removed; ``heads`` (Q, m + 1, HEAD): queries as ``Axes.heads`` makes them.
    """
    load_kernels()
    from sfumato.search.inverted.kernels import scan
    from sfumato.search.inverted.scan_kernels import scan_points, scan_voted

    alive = read_only(alive)
    stacked, scales, norms = encode_queries(heads)
    m0, voters = heads.shape[1] - 1, probes.shape[1]
    voted = m0 > 0 and not linear and 1 < voters <= MOST_VOTERS
    keep = int(min(len(part), max(4 * k, RANKED_VOTED if voted else RANKED * voters)))
    lows = np.full((len(heads), keep), np.inf, np.float32)
    rows = np.full((len(heads), keep), -1, np.int32)
    fine, marks = (stacked.reshape(-1), scales), np.zeros(len(part) // 64 + 1, np.uint64)
    if linear or (m0 and not voted):
        bounded = scan(part.compiled(), alive, *fine, m0, probes, linear, marks, lows, rows)
        return CodeCandidates(lows, rows, norms, int(bounded))
    first, first_scales, _ = encode_queries(heads, COARSE)
    coarse, keep_coarse = (first.reshape(-1), first_scales), keep * (COARSE_ONE if k == 1 else COARSE_MANY)
    if voted:
        voting = np.zeros(len(part) + 64, np.uint8), np.empty(len(part), np.int32), np.empty(len(part), np.float32)
        weights = vote_weights(voters)
        bounded = scan_voted(part.compiled(), alive, fine, coarse, m0, probes, weights, BOUNDS_PER_VOTE, voting,
                             keep_coarse, lows, rows)  # fmt: skip
    else:
        most = min(len(part), int((part.offsets[probes + 1] - part.offsets[probes]).sum(axis=1).max(initial=0)))
        room = np.empty(most + 1, np.float32), np.empty(most + 1, np.int32)
        bounded = scan_points(part.compiled(), alive, fine, coarse, probes, marks, room, keep_coarse, lows, rows)
    return CodeCandidates(lows, rows, norms, int(bounded))


def vote_weights(voters: int) -> NDArray[np.uint8]:
    """Return the weight (P,) of the vote of each cell, nearest first: falling, at most 255 in all.

    >>> vote_weights(5).tolist(), int(vote_weights(255).sum())
    ([5, 4, 3, 2, 1], 255)
    """
    falling = np.linspace(1, 0.2, voters)
    weights = np.maximum(1, falling * min(HEAVIEST, MOST_VOTERS / falling.sum()) + 1e-9)
    return np.asarray(weights, np.uint8)


def rank_exactly(
    block: Block, entries: tuple[Floats, Floats], candidates: CodeCandidates, k: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], int]:
    """Return squared distances and rows (Q, k), exact, and how many were compared.

    ``entries``: the origins (N, n) and bases (N, m, n) that the rows of the candidates point to.
    """
    from sfumato.search.inverted.kernels import settle

    origin, basis = entries
    zeros = np.zeros((len(block), 2))
    if block.dim or basis.shape[1]:
        zeros[:, 0] = INDISTINCT**2 * np.einsum("ni,ni->n", block.origin, block.origin, dtype=np.float64)
        zeros[:, 1] = INDISTINCT**2
    best, where = np.full((len(block), k), np.inf), np.full((len(block), k), -1, np.int64)
    evaluated = settle(
        (read_only(block.origin).reshape(-1), read_only(block.basis).reshape(-1), block.dim),
        (read_only(origin).reshape(-1), read_only(basis).reshape(-1), basis.shape[1]),
        origin.shape[1], candidates.lows, candidates.rows, candidates.shift, SLACK, zeros, best, where,
    )  # fmt: skip
    return best, where, int(evaluated)
