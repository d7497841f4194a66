# SPDX-License-Identifier: Apache-2.0
"""Replay attack: a lifting whose draws come from something guessable, such as the number of an image, is drawn again.

What is released is a function of the subspace and of one rotation. Who replays the rotation turns the basis back into
sampling order; its first direction then leads from the clear descriptor to a decoy. With the decoy known, found in the
database because it lies in the subspace, the line through it meets the unit sphere in one other point: the clear
descriptor. Directions that were drawn at random verify a seed but reveal nothing, so random lifting is not broken.

Sfumato's own evaluation seed is mixed with the clear descriptors, which an attacker lacks; ``GuessableDraws`` is the
lifting he hopes for. Knows the order of draws of ``concealment.lifting``.
"""

from itertools import islice, permutations

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.knowledge import Knowledge, Recovery, fallback
from sfumato.attacks.liftings.decoys import used_decoys
from sfumato.attacks.liftings.sphere import known_radius
from sfumato.concealment.randomness import normal, uniform
from sfumato.errors import InputError
from sfumato.subspace.reference import gram_schmidt
from sfumato.types.concealed import ConcealedFeatures, Subspaces
from sfumato.types.recipe import Link

Array = NDArray[np.float64]

VERIFIED = 3e-3
"""How far a replayed direction may be from the subspace."""


EXPLAINED = 0.9
"""The share of an image's rows that a seed must explain: signs alone explain half of them by chance."""

MOST_ORDERS = 120


class GuessableDraws:
    """Draws of a lifting seeded from a number anyone can guess, as the published reference code has them."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def of_rows(self, rows: NDArray[np.intp], count: int, attempt: int) -> NDArray[np.uint8]:
        drawn = [np.random.default_rng([self._seed, int(row), attempt]).bytes(count) for row in rows]
        return np.frombuffer(b"".join(drawn), np.uint8).reshape(-1, count)

    def of_image(self, rows: int) -> NDArray[np.uint64]:
        return np.full(rows, np.random.default_rng(self._seed).integers(2**64, dtype=np.uint64), np.uint64)


def recover_replay(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
    """Try every seed; where one explains the subspaces, follow the first direction from the decoy to the descriptor."""
    if knowledge.decoys is None or not knowledge.seeds:
        raise InputError("replay needs seeds to try and the decoy database")
    guess = fallback(features.subspaces)
    lifting = features.recipe.lifting
    if lifting is None or lifting.decoy_count == 0:
        return guess
    descriptors, confidence = guess.descriptors.copy(), guess.confidence.copy()
    rows, inside = used_decoys(features, knowledge.decoys)
    entries = knowledge.decoys[rows].astype(np.float64)
    radius = known_radius(features, knowledge) or 1.0
    for seed in knowledge.seeds:
        points, misfit = _replay(features.subspaces, lifting, GuessableDraws(seed), 0, (entries, radius))
        if ((misfit < VERIFIED) | ~inside.all(axis=1)).mean() < EXPLAINED:
            continue
        again, other = _replay(features.subspaces, lifting, GuessableDraws(seed), 1, (entries, radius))
        redrawn = (misfit >= VERIFIED)[:, None]  # rows whose first draw came out nearly dependent
        points, misfit = np.where(redrawn, again, points), np.where(redrawn[:, 0], other, misfit)
        good = (misfit < VERIFIED) & inside.all(axis=1)
        descriptors[good], confidence[good] = points[good], 1 - misfit[good] / (2 * VERIFIED)
        break
    return Recovery(descriptors, confidence)


def _replay(
    subspaces: Subspaces, link: Link, draws: GuessableDraws, attempt: int, known: tuple[Array, float]
) -> tuple[Array, Array]:
    """Return the points (N, n) that these draws would have concealed, and how badly (N,) the subspaces fit them."""
    entries, radius = known
    (count, m, n), decoys = subspaces.basis.shape, link.decoy_count
    sizes = [4 * n * (m - decoys), 8 * decoys, 8 * ((m * m + 1) // 2)]
    drawn = draws.of_rows(np.arange(count), sum(sizes), attempt)
    for_random, _, for_rotation = (np.ascontiguousarray(part) for part in np.split(drawn, np.cumsum(sizes)[:2], axis=1))
    rotation, _ = gram_schmidt(normal(for_rotation)[:, : m * m].reshape(-1, m, m))
    sampled = np.matmul(rotation.transpose(0, 2, 1), subspaces.basis.astype(np.float64))  # in sampling order
    misfit = _outside(uniform(for_random).reshape(count, m - decoys, n), subspaces)
    first = sampled[:, 0]
    points, error = np.zeros((count, n)), np.full(count, np.inf)
    for k in range(decoys):  # which of the decoys came first is not known
        decoy = entries[:, k]
        step = 2 * np.einsum("ni,ni->n", decoy, first)
        there = decoy - step[:, None] * first  # the other point of the line on the sphere around 0
        others = np.delete(entries, k, axis=1) - there[:, None]
        here = np.maximum(_out_of_order(others, sampled), misfit)
        here = np.maximum(here, np.abs(np.linalg.norm(there, axis=1) - radius))
        here = np.where(step > 0, here, np.inf)  # the first direction leads from the descriptor to the decoy
        points, error = np.where((here < error)[:, None], there, points), np.minimum(here, error)
    return points, error


def _out_of_order(others: Array, sampled: Array) -> Array:
    """Return how far (N,) the other differences (N, k, n) are from having been orthonormalised in some order.

    In that order the j-th has no part along directions after its own, and a positive one along its own. With many
    decoys only the first ``MOST_ORDERS`` orders are tried.
    """
    along = np.einsum("noi,nki->nok", others, sampled)
    count, several, _ = along.shape
    best = np.full(count, np.inf if several else 0.0)
    for order in islice(permutations(range(several)), MOST_ORDERS if several else 0):
        worst = np.zeros(count)
        for place, other in enumerate(order, 1):
            beyond = np.linalg.norm(along[:, other, place + 1 :], axis=1)
            worst = np.maximum(worst, np.where(along[:, other, place] > 0, beyond, np.inf))
        best = np.minimum(best, worst)
    return best


def _outside(directions: Array, subspaces: Subspaces) -> Array:
    """Return the greatest sine of the angle between replayed directions (N, k, n) and the subspaces; 0 of none."""
    unit = directions / np.linalg.norm(directions, axis=2, keepdims=True)
    along = np.einsum("nri,nki->nrk", unit, subspaces.basis.astype(np.float64))
    sines: Array = np.sqrt(np.maximum(1 - np.einsum("nrk,nrk->nr", along, along), 0)).max(axis=1, initial=0.0)
    return sines
