# SPDX-License-Identifier: Apache-2.0
"""Nearest neighbour and oracle attacks: the public descriptors nearest to a subspace stand for the clear one.

Section 4.1.4 of the embedding paper, and section 3 of its supplement. The search is exact and never holds a matrix of
all subspaces and all public descriptors. Knows what the attacker knows; the clear descriptors only as the oracle's.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from sfumato.attack.knowledge import Knowledge, Recovered
from sfumato.errors import InputError
from sfumato.matching.match import nearest
from sfumato.subspace.reference import project
from sfumato.types.concealed import ConcealedFeatures, Subspaces

NEIGHBOURS = 100
"""How many neighbours the oracle is asked about, unless told."""

NEAR = 0.3
"""A distance, of unit-norm descriptors, at which a guess is doubtful."""

GATHERED = 2**24
"""How many numbers of public descriptors are copied at once."""

Recover = Callable[[ConcealedFeatures, Knowledge], Recovered]


def certainty(distances: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return how sure a guess is whose distance (N,) to what it should agree with is known: 1 at 0, 0.6 at ``NEAR``."""
    sure: NDArray[np.float32] = np.exp(-0.5 * (distances / NEAR) ** 2).astype(np.float32)
    return sure


def nearest_public(
    subspaces: Subspaces, public: NDArray[np.float32], count: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return distances and rows (N, K) of the K public descriptors (V, n) nearest to each subspace, nearest first.

    K is ``count``, or V if that is less.
    """
    if len(public) == 0:
        raise InputError("public: there are no public descriptors to choose from")
    return nearest(subspaces, public, k=min(count, len(public)))


def recover_nearest(features: ConcealedFeatures, knowledge: Knowledge) -> Recovered:
    """Take the public descriptor nearest to each subspace."""
    return _take_nearest(features.subspaces, knowledge, projected=False)


def recover_nearest_projected(features: ConcealedFeatures, knowledge: Knowledge) -> Recovered:
    """Take the point of each subspace that is nearest to a public descriptor."""
    return _take_nearest(features.subspaces, knowledge, projected=True)


def oracle(neighbours: int = NEIGHBOURS, *, projected: bool = False) -> Recover:
    """Return the attack that asks an oracle which of the nearest public descriptors is nearest to the clear one."""
    if neighbours < 1:
        raise InputError(f"neighbours: expected a number of 1 or more, got {neighbours}")

    def recover(features: ConcealedFeatures, knowledge: Knowledge) -> Recovered:
        public, clear = _known(knowledge.public, "public"), _known(knowledge.clear, "clear")
        _, rows = nearest_public(features.subspaces, public, neighbours)
        guesses = np.empty(features.subspaces.origin.shape, np.float32)
        for block in row_blocks(len(rows), rows.shape[1] * public.shape[1]):
            chosen = _ask(public[rows[block]], clear[block])
            guesses[block] = public[np.take_along_axis(rows[block], chosen[:, None], axis=1)[:, 0]]
        return _finish(features.subspaces, guesses, np.linalg.norm(guesses - clear, axis=1), projected)

    return recover


def row_blocks(count: int, width: int) -> Iterator[slice]:
    """Cut rows in blocks that hold about ``GATHERED`` numbers, ``width`` of them a row."""
    step = max(1, GATHERED // max(1, width))
    yield from (slice(start, min(start + step, count)) for start in range(0, count, step))


def _ask(candidates: NDArray[np.float32], clear: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return which of the candidates (N, K, n) is nearest to the clear descriptor (N, n)."""
    chosen: NDArray[np.int64] = np.linalg.norm(candidates - clear[:, None], axis=2).argmin(axis=1)
    return chosen


def _take_nearest(subspaces: Subspaces, knowledge: Knowledge, *, projected: bool) -> Recovered:
    public = _known(knowledge.public, "public")
    distances, rows = nearest_public(subspaces, public, 1)
    return _finish(subspaces, public[rows[:, 0]], distances[:, 0], projected)


def _finish(
    subspaces: Subspaces, guesses: NDArray[np.float32], distances: NDArray[np.floating], projected: bool
) -> Recovered:
    if projected:
        guesses = project(guesses, subspaces.origin, subspaces.basis).astype(np.float32)
    return Recovered(guesses, certainty(distances))


def _known(array: NDArray[np.float32] | None, name: str) -> NDArray[np.float32]:
    if array is None:
        raise InputError(f"this attack needs {name} descriptors")
    return array
