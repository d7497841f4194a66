# SPDX-License-Identifier: Apache-2.0
"""Looking into the lists of filed entries: which look nearest by their codes, and which of those are.

Points look at everything in few lists. Subspaces let many cells vote first: a subspace passes near many more cells than
a point, and each of their lists holds little of what is near the hidden descriptor. Knows arrays only.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.search.entries import Block
from sfumato.search.inverted.cells import InvertedLists
from sfumato.search.inverted.codes import COARSE, encode_queries
from sfumato.subspace.fast import INDISTINCT, load_kernels

Floats = NDArray[np.float32]

RANKED = 40
"""So many are kept by their codes for every cell probed, and four for every answer wanted."""

RANKED_VOTED = 128
"""The same for all cells that vote."""

LEFT, LEFT_OF_MANY = 12, 24
"""For each of those so many are left by their coarse codes, where the nearest is wanted, and where more are."""

VOTED = 0.25
"""For so many of the votes cast an entry is bounded, those with the most votes first."""

MOST_VOTERS = 255
HEAVIEST = 5
"""What the nearest cell's vote counts; the farthest one's counts 1. All together at most 255, one byte."""

SLACK = 0.05
"""How much too great a bound from bytes may be."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class CodeCandidates:
    """Entries that look nearest: ``rows`` (Q, R), -1 where there are fewer, with bounds ``lows`` (Q, R).

    ``lacking`` (Q,): what the bounds lack of squared distances; ``looked_at``: how many entries were bounded.
    """

    lows: Floats
    rows: NDArray[np.int32]
    lacking: Floats
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
    """Return what looks nearest in the lists of cells ``probes`` (Q, P), nearest cell first.

    ``alive`` (N,): which entries are not removed; ``heads`` (Q, m + 1, HEAD): queries as ``Axes.heads`` makes them.
    """
    load_kernels()
    from sfumato.search.inverted.kernels import scan
    from sfumato.search.inverted.point_kernels import scan_points
    from sfumato.search.inverted.vote_kernels import scan_voted

    stacked, scales, norms = encode_queries(heads)
    m0, voters = heads.shape[1] - 1, probes.shape[1]
    voted = m0 > 0 and not linear and 1 < voters <= MOST_VOTERS
    kept = int(min(len(part), max(4 * k, RANKED_VOTED if voted else RANKED * voters)))
    lows = np.full((len(heads), kept), np.inf, np.float32)
    rows = np.full((len(heads), kept), -1, np.int32)
    fine, seen = (stacked.reshape(-1), scales), np.zeros(len(part) // 64 + 1, np.uint64)
    if linear or (m0 and not voted):
        looked = scan(part.compiled(), alive, *fine, m0, probes, linear, seen, lows, rows)
        return CodeCandidates(lows, rows, norms, int(looked))
    first, first_scales, _ = encode_queries(heads, COARSE)
    coarse, left = (first.reshape(-1), first_scales), kept * (LEFT if k == 1 else LEFT_OF_MANY)
    if voted:
        voting = np.zeros(len(part) + 64, np.uint8), np.empty(len(part), np.int32), np.empty(len(part), np.float32)
        looked = scan_voted(part.compiled(), alive, fine, coarse, m0, probes, vote_weights(voters), VOTED, voting,
                            left, lows, rows)  # fmt: skip
    else:
        most = min(len(part), int((part.offsets[probes + 1] - part.offsets[probes]).sum(axis=1).max(initial=0)))
        room = np.empty(most + 1, np.float32), np.empty(most + 1, np.int32)
        looked = scan_points(part.compiled(), alive, fine, coarse, probes, seen, room, left, lows, rows)
    return CodeCandidates(lows, rows, norms, int(looked))


def vote_weights(voters: int) -> NDArray[np.uint8]:
    """Return what the vote of each cell counts (P,), nearest first: falling, 255 in all at most.

    >>> vote_weights(5).tolist(), int(vote_weights(255).sum())
    ([5, 4, 3, 2, 1], 255)
    """
    falling = np.linspace(1, 0.2, voters)
    weights = np.maximum(1, falling * min(HEAVIEST, MOST_VOTERS / falling.sum()) + 1e-9)
    return np.asarray(weights, np.uint8)


def rank_exactly(
    block: Block, entries: tuple[Floats, Floats], found: CodeCandidates, k: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], int]:
    """Return squared distances and rows (Q, k), exact, and how many were compared.

    ``entries``: the origins (N, n) and bases (N, m, n) that the rows of ``found`` count.
    """
    from sfumato.search.inverted.kernels import settle

    origin, basis = entries
    zeros = np.zeros((len(block), 2))
    if block.dim or basis.shape[1]:
        zeros[:, 0] = INDISTINCT**2 * np.einsum("ni,ni->n", block.origin, block.origin, dtype=np.float64)
        zeros[:, 1] = INDISTINCT**2
    best, where = np.full((len(block), k), np.inf), np.full((len(block), k), -1, np.int64)
    evaluated = settle(
        (block.origin.reshape(-1), block.basis.reshape(-1), block.dim),
        (origin.reshape(-1), basis.reshape(-1), basis.shape[1]),
        origin.shape[1], found.lows, found.rows, found.lacking, SLACK, zeros, best, where,
    )  # fmt: skip
    return best, where, int(evaluated)
