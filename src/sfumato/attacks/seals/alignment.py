# SPDX-License-Identifier: Apache-2.0
"""Alignment: sealed descriptors read without the key, by what many codes of one key share with other photos.

Codes tell near distances, so their principal components are those of a kernel over the descriptors (Raginsky and
Lazebnik, "Locality-sensitive binary codes from shift-invariant kernels", 2009, section 2). Descriptors of other photos
under a key of the attacker's own have the same components, but for sign, order and rotation among like ones. The
rotation under which both clouds have the same moments (moments.py) is taken to be the right one; from there, a
regression that the attacker practised on his own codes leads back to descriptors, and a last one from all bits to
those smooths them.

Knows codes, the recipe's bandwidth and public descriptors. Never a key: a function that took one would be no attack.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.seals.known_pairs import linear_map, unlike_none
from sfumato.errors import InputError
from sfumato.types.arrays import frozen_array

# --- the rotation between two clouds of points of which nobody knows which point belongs to which
#
# Clouds of one distribution have the same moments, once one is turned into the other: the third and fourth moments of
# directions, and the spread along each axis, are compared, and the rotation under which they agree best is climbed to
# from many starts (a rotation is found as that of Procrustes is, Schönemann 1966, with the gradient in place of the
# cross-covariance).


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
        climbed = climb(public, released, _moved(tops[place][1], rng, symmetries))
        if climbed[0] > tops[place][0] + SMALLEST_GAIN:
            tops[place] = climbed
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


Floats = NDArray[np.float32]
Coding = Callable[[Floats], Floats]

BLOCK = 8192
FEWEST = 64
"""Fewer codes, or public descriptors, have no moments to speak of."""
RIDGE, SMOOTHING = 1e-3, 0.05
CANDIDATES, SAME_TURN = 4, 0.1
MOST = 40_000
"""So many points have the moments of all."""
ENOUGH, LEAST_PUBLIC = 64, 8192
"""Public descriptors per code, and in all, that are enough: the moments of the fewer codes err more."""
CLIMBED = 24
"""Beyond this many axes fourth moments are not worth their cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentParams:
    """Effort of the attacker: ``axes`` aligned at first and in the end, number of ``starts`` and ``hops``, ``bits``
    of his own kernel, how many public descriptors he practises on, and the seed of his draws. ``odd``: the waves are
    those of faces."""

    axes: tuple[int, ...] = (12, 16, 24, 32)
    starts: int = 24
    hops: int = 100
    bits: int = 2048
    practice: int = 40_000
    seed: int = 0
    odd: bool = False


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Components:
    """The leading components of coded rows: ``scores`` (N, r), ``spread`` (r,), and how further rows get theirs."""

    scores: Floats
    spread: Floats
    of: Coding
    kept: dict[int, Moments] = field(default_factory=dict)

    def moments(self, count: int) -> Moments:
        """Return the moments of the first scores, worked out once."""
        if count not in self.kept:
            points = standardise(self.scores[:, :count])[:MOST]
            self.kept[count] = moments_of(points, self.spread[:count])
        return self.kept[count]

    def __repr__(self) -> str:
        return f"Components({self.scores.shape[0]} x {self.scores.shape[1]})"


def align(
    codes: Floats,
    public: Floats,
    bandwidth: float,
    params: AlignmentParams | None = None,
    mirrored: Sequence[Floats] = (),
) -> Floats:
    """Return a guess (N, n) at the descriptor behind each code (N, B); as ``learn_alignment`` finds it."""
    return learn_alignment(codes, public, bandwidth, params, mirrored)(codes)


def learn_alignment(
    codes: Floats,
    public: Floats,
    bandwidth: float,
    params: AlignmentParams | None = None,
    mirrored: Sequence[Floats] = (),
) -> Coding:
    """Return the way from codes (N, B) of a key to descriptors (N, n), from public descriptors (V, n) of their space.

    ``mirrored`` are the first public descriptors as other likely ones, in the mirror for example: such an image is
    nearly as good an alignment as the right one, so from each the others are tried.

    Raises InputError for too few codes or public descriptors.
    """
    settings = params or AlignmentParams()
    codes = frozen_array(codes, "codes", (None, None))
    public = frozen_array(public, "public descriptors", (None, None))
    if min(len(codes), len(public)) < FEWEST:
        raise InputError(
            f"alignment needs {FEWEST} codes and public descriptors or more, got {len(codes)} and {len(public)}"
        )
    rng, public = np.random.default_rng(settings.seed), _enough(public, codes)
    axes = _possible(settings.axes, codes, public)
    released = components(codes, lambda rows: rows, axes[-1])
    own = components(public, cosines(public.shape[1], settings.bits, bandwidth, rng, odd=settings.odd), axes[-1])
    turns = [symmetry_turn(own, image[: len(public)], axes[0]) for image in mirrored]
    tops = search(own.moments(axes[0]), released.moments(axes[0]), rng, settings.starts, settings.hops, turns)
    turn = max((grow(own, released, top[1], axes) for top in distinct(tops)), key=lambda grown: grown[0])[1]
    aligned = standardise(released.scores) @ turn.T
    rows = public[: settings.practice]
    sealed = components(rows, signs(rows.shape[1], codes.shape[1], bandwidth, rng, odd=settings.odd), axes[-1])
    back = practise(rows, own.scores[: len(rows)], sealed)
    return _smoothed(codes, unlike_none(back(aligned), public), public)


def learn_with_oracle(
    codes: Floats, clear: Floats, public: Floats, bandwidth: float, params: AlignmentParams | None = None
) -> Coding:
    """Return the way from codes (N, B) to descriptors by the best rotation there is, which the clear ones (N, n) show.

    Nobody has those: this bounds what alignment can come to, however well it searches.

    Raises InputError for too few codes or public descriptors.
    """
    if min(len(codes), len(public)) < FEWEST:
        raise InputError(f"alignment needs {FEWEST} codes and public descriptors or more, got {len(codes)}")
    settings, rng, public = params or AlignmentParams(), np.random.default_rng(0), _enough(public, codes)
    axes = _possible(settings.axes, codes, public)[-1]
    released = components(codes, lambda rows: rows, axes)
    own = components(public, cosines(public.shape[1], settings.bits, bandwidth, rng, odd=settings.odd), axes)
    points = standardise(np.concatenate([own.scores, own.of(clear)]))[len(public) :]
    turn = polar((points.T @ standardise(released.scores)).astype(np.float64))
    rows = public[: settings.practice]
    sealed = components(rows, signs(rows.shape[1], codes.shape[1], bandwidth, rng, odd=settings.odd), axes)
    back = practise(rows, own.scores[: len(rows)], sealed)
    return _smoothed(codes, unlike_none(back(standardise(released.scores) @ turn.T), public), public)


def _enough(public: Floats, codes: Floats) -> Floats:
    return public[: max(LEAST_PUBLIC, ENOUGH * len(codes))]


def _smoothed(codes: Floats, guesses: Floats, public: Floats) -> Coding:
    """Return the linear way from codes to guesses about them, which evens out their errors."""
    smooth = linear_map(codes, guesses, SMOOTHING)
    return lambda more: unlike_none(smooth(more), public)


def distinct(tops: Sequence[tuple[float, Doubles]]) -> list[tuple[float, Doubles]]:
    """Return the best few tops that differ from one another."""
    different: list[tuple[float, Doubles]] = []
    for top in tops:
        if all(np.abs(top[1] - other[1]).max() > SAME_TURN for other in different) and len(different) < CANDIDATES:
            different.append(top)
    return different


def grow(own: Components, released: Components, turn: Doubles, axes: Sequence[int]) -> tuple[float, Doubles]:
    """Return the rotation of more and more axes, and how well moments agreed at the most that were climbed.

    What the aligned axes tell about the others is learned on public descriptors.
    """
    value = 0.0
    for count in axes:
        before = len(turn)
        start, target = standardise(own.scores[:, :before]) @ turn, standardise(own.scores[:, :count])
        weights = _least_squares(_quadratic(start), target.astype(np.float32))
        guess = _quadratic(standardise(released.scores[:, :before])) @ weights
        turn = polar((guess.T @ standardise(released.scores[:, :count])).astype(np.float64))
        if count <= CLIMBED:
            value, turn = climb(own.moments(count), released.moments(count), turn, 40)
    return value, turn


def practise(rows: Floats, scores: Floats, sealed: Components) -> Callable[[Doubles], Floats]:
    """Return the way from aligned scores to descriptors, learned on rows ``sealed`` under the attacker's own key."""
    points = standardise(sealed.scores)
    turn = polar(standardise(scores).T @ points)
    back = _least_squares(_quadratic(points @ turn.T), rows)
    return lambda aligned: _quadratic(aligned) @ back


def symmetry_turn(own: Components, image: Floats, axes: int) -> Doubles:
    """Return what mirroring descriptors does to their first scores, as a rotation; ``image`` (M, n) of the first M."""
    turned = own.of(image)[:, :axes]
    return polar(standardise(own.scores[: len(image), :axes]).T @ standardise(turned))


def cosines(width: int, bits: int, bandwidth: float, rng: np.random.Generator, *, odd: bool = False) -> Coding:
    """Return random Fourier features of the kernel that codes tell (Rahimi and Recht 2007, section 3); or sines."""
    directions = (rng.standard_normal((width, bits)) / bandwidth).astype(np.float32)
    phases = rng.uniform(0, 2 * np.pi, bits).astype(np.float32)
    if odd:
        phases[:] = -np.pi / 2
    return lambda rows: np.cos(rows @ directions + phases) * np.float32(np.sqrt(2 / bits))


def signs(width: int, bits: int, bandwidth: float, rng: np.random.Generator, *, odd: bool = False) -> Coding:
    """Return a seal under a key of the attacker's own."""
    waves = cosines(width, bits, bandwidth, rng, odd=odd)
    return lambda rows: np.where(waves(rows) < 0, -1, 1).astype(np.float32) / np.float32(np.sqrt(bits))


def components(rows: Floats, coding: Coding, count: int) -> Components:
    """Return the leading principal components of rows as a coding makes them."""
    import scipy.linalg

    middle = coding(rows[:BLOCK]).mean(axis=0)  # near the mean: what is left is taken off below
    size = len(middle)
    total, products = np.zeros(size), np.zeros((size, size), np.float32)
    for part in _blocks(rows):
        centred = coding(part) - middle
        total += centred.sum(axis=0, dtype=np.float64)
        products += centred.T @ centred
    rest = (total / len(rows)).astype(np.float32)
    spread = products / np.float32(len(rows)) - np.outer(rest, rest)
    middle = middle + rest
    values, vectors = scipy.linalg.eigh(spread, subset_by_index=(size - count, size - 1))
    leading = np.ascontiguousarray(vectors[:, ::-1], np.float32)
    of: Coding = lambda more: (coding(more) - middle) @ leading  # noqa: E731
    scores = np.concatenate([of(part) for part in _blocks(rows)])
    return Components(scores, np.maximum(values[::-1], 0).astype(np.float32), of)


def _possible(axes: Sequence[int], codes: Floats, public: Floats) -> tuple[int, ...]:
    most = max(2, min(codes.shape[1], public.shape[1], len(codes) // 16, len(public) // 16))
    return tuple(min(count, most) for count in axes)


def _quadratic(points: NDArray[np.floating]) -> Floats:
    first, second = np.triu_indices(points.shape[1])
    return np.hstack([np.ones((len(points), 1)), points, points[:, first] * points[:, second]]).astype(np.float32)


def _least_squares(inputs: Floats, targets: Floats) -> Floats:
    spread = inputs.T @ inputs
    spread[np.diag_indices(len(spread))] += RIDGE * np.trace(spread) / len(spread)
    solved: Floats = np.linalg.solve(spread, inputs.T @ targets)
    return solved


def _blocks(rows: Floats) -> Iterator[Floats]:
    for start in range(0, len(rows), BLOCK):
        yield rows[start : start + BLOCK]
