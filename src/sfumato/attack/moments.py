# SPDX-License-Identifier: Apache-2.0
"""The rotation between two clouds of points of which nobody knows which point belongs to which.

Clouds of one distribution have the same moments, once one is turned into the other: the third and fourth moments of
directions, and the spread along each axis, are compared, and the rotation under which they agree best is climbed to
from many starts (a rotation is found as that of Procrustes is, Schönemann 1966, with the gradient in place of the
cross-covariance). Knows points, not what they stand for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

FOURTH, SECOND = 1.0, 0.5
"""How much fourth moments and spreads count, beside third moments."""
REACH = 1.2
"""Points farther out than this share of the typical norm are pulled in to it, so that few far ones decide nothing."""
CLIMB_STEPS, SMALLEST_GAIN, INERTIA = 150, 1e-5, 0.5
SPREAD_OUT, SHAKE = 0.4, 0.3
KEPT = 4


def polar(matrix: Doubles) -> Doubles:
    """Return the rotation (or reflection) nearest to a square matrix."""
    left, _, right = np.linalg.svd(matrix)
    rotation: Doubles = left @ right
    return rotation


def standardise(points: NDArray[np.floating]) -> Doubles:
    """Return points (N, r) centred, each axis of unit spread, far ones pulled in."""
    centred = points.astype(np.float64) - points.mean(axis=0)
    centred /= np.maximum(centred.std(axis=0), 1e-12)
    norms = np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    pulled: Doubles = centred * np.minimum(1, REACH * np.sqrt(points.shape[1]) / norms)
    return pulled


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Moments:
    """What is compared of a cloud: ``third`` (r, r, r) and ``fourth`` (r, r, r, r) without what spread explains, and
    ``spread`` (r,); each of norm 1."""

    third: Doubles
    fourth: Doubles
    spread: Doubles

    def __repr__(self) -> str:
        return f"Moments({len(self.spread)} axes)"


def moments_of(points: Doubles, spread: NDArray[np.floating]) -> Moments:
    """Return the moments of standardised points (N, r), whose axes had this spread (r,)."""
    centred = (points - points.mean(axis=0)).astype(np.float32)
    count, r = centred.shape
    products = (centred[:, :, None] * centred[:, None, :]).reshape(count, r * r)
    third = (centred.T @ products / count).reshape(r, r, r).astype(np.float64)
    fourth = (products.T @ products / count).reshape(r, r, r, r).astype(np.float64)
    second = (centred.T @ centred / count).astype(np.float64)
    for axes in ("ab,cd->abcd", "ac,bd->abcd", "ad,bc->abcd"):
        fourth -= np.einsum(axes, second, second)
    scaled = np.asarray(spread, np.float64)
    return Moments(*(one / max(float(np.linalg.norm(one)), 1e-12) for one in (third, fourth, scaled)))


def agreement(public: Moments, released: Moments, turn: Doubles) -> tuple[float, Doubles]:
    """Return how well moments agree if released points are public ones times ``turn``, and its gradient (r, r).

    At most 1 + FOURTH + SECOND, of equal clouds.
    """
    r = len(turn)
    third = public.third.reshape(r * r, r) @ turn
    third = np.swapaxes(third.reshape(r, r, r), 1, 2).reshape(r * r, r) @ turn
    slope3 = third.reshape(r, r * r) @ released.third.reshape(r, r * r).T  # tensors are symmetric
    fourth = public.fourth.reshape(r**3, r) @ turn
    for axis in (2, 1):
        moved = np.ascontiguousarray(np.moveaxis(fourth.reshape(r, r, r, r), axis, 3))
        fourth = moved.reshape(r**3, r) @ turn
    slope4 = fourth.reshape(r, r**3) @ released.fourth.reshape(r, r**3).T
    slope2 = public.spread[:, None] * turn * released.spread[None]
    value = float(((slope3 + FOURTH * slope4 + SECOND * slope2) * turn).sum())
    return value, slope3 + FOURTH * slope4 * 4 / 3 + SECOND * slope2 * 2 / 3


def climb(public: Moments, released: Moments, turn: Doubles, steps: int = CLIMB_STEPS) -> tuple[float, Doubles]:
    """Return the agreement at the nearest top, and the rotation there."""
    before = -np.inf
    value, slope = agreement(public, released, turn)
    for _ in range(steps):
        if value - before < SMALLEST_GAIN:
            break
        before = value
        turn = polar(slope + INERTIA * np.linalg.norm(slope) / np.sqrt(len(turn)) * turn)
        value, slope = agreement(public, released, turn)
    return value, turn


def search(
    public: Moments,
    released: Moments,
    rng: np.random.Generator,
    starts: int,
    hops: int,
    symmetries: Sequence[Doubles] = (),
) -> list[tuple[float, Doubles]]:
    """Return the best rotations found, best first: from random starts, then by flips of axes of the best of them.

    Axes have no sign, and many clouds nearly agree with their mirror images: most wrong tops differ by signs, or by one
    of the ``symmetries``, rotations (r, r) that public points were found to have.
    """
    r = len(public.spread)
    tops = []
    for number in range(starts):
        signs = np.diag(rng.choice([-1.0, 1.0], r))
        begun = signs if number % 2 else polar(signs + SPREAD_OUT * rng.standard_normal((r, r)))
        tops.append(climb(public, released, begun))
    tops = sorted(tops, key=lambda top: -top[0])[:KEPT]
    for number in range(hops):
        place = number % len(tops)
        found = climb(public, released, _moved(tops[place][1], rng, symmetries))
        if found[0] > tops[place][0] + SMALLEST_GAIN:
            tops[place] = found
    tops += [climb(public, released, turned @ top[1]) for top in tops for turned in symmetries]
    return sorted(tops, key=lambda top: -top[0])


def _moved(turn: Doubles, rng: np.random.Generator, symmetries: Sequence[Doubles]) -> Doubles:
    """Return a rotation some way off: axes flipped, two of them exchanged, all shaken, or a symmetry."""
    r, kind = len(turn), rng.random()
    tried = turn.copy()
    if symmetries and kind < 0.2:
        tried = symmetries[int(rng.integers(len(symmetries)))] @ tried
    elif kind < 0.65:
        tried[:, rng.permutation(r)[: rng.integers(1, max(2, r // 2) + 1)]] *= -1
    else:
        one, other = rng.permutation(r)[:2]
        tried[:, [one, other]] = tried[:, [other, one]] * rng.choice([-1.0, 1.0], 2)
    return polar(tried + SHAKE * rng.random() * rng.standard_normal((r, r)))
