# SPDX-License-Identifier: Apache-2.0
"""Subset mechanism: a recipe with a guarantee, local differential privacy of every descriptor.

Over a dictionary of k entries, v the one nearest to the descriptor: with probability p = w e^eps / (w e^eps + k - w) a
set of v and w - 1 others is released, else one of w others, both uniformly. So any two descriptors give any set with
probabilities whose ratio is at most e^eps (Ye and Barg, Optimal schemes for discrete distribution estimation under
locally differential privacy, 2018). The affine hull of the set is released, which is a function of the set alone and so
costs nothing.

Optional: no other recipe uses it. A patent, US 12,462,057, claims the use of this mechanism for descriptors: ask before
you use it where that is in force. The guarantee does not cover keypoints.

An archive's spending is counted feature by feature. A feature is recognised by its keypoint: the same four numbers, bit
by bit, are the same point of the same photo; without size and angle the position alone is. Every row is a release of
its own. Where positions are whole pixels and sizes are missing, different photos may share a row by chance; they then
count as one, and the figures are too large, never too small.
"""

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.decoys import Decoys
from sfumato.concealment.randomness import Draws, KeyedDraws, distinct_integers
from sfumato.errors import ArchiveError, DecoyError, RecipeError
from sfumato.store.archive import Archive, load
from sfumato.store.layout import ImageHeader
from sfumato.subspace.reference import canonical_origin
from sfumato.types.concealed import Subspaces
from sfumato.types.recipe import Link, Recipe

Floats = NDArray[np.float32]

AT_ONCE = 2**22
"""Number of distances in memory while the nearest entries are searched."""


@dataclass(frozen=True, slots=True)
class PrivacyCost:
    """Privacy that releases spend: eps per descriptor, per image (all its descriptors), and over all its releases.

    Infinite if the draws can be repeated: there is no guarantee then.
    """

    per_descriptor: float
    per_image: float
    over_releases: float

    def __str__(self) -> str:
        if math.isinf(self.per_descriptor):
            return "no guarantee: the draws can be repeated"
        return (
            f"eps {self.per_descriptor:.10g} per descriptor, {self.per_image:.10g} per image, "
            f"{self.over_releases:.10g} over all releases of it that are counted here; positions and the number of "
            f"features are not covered"
        )


def privacy_spent(recipe: Recipe | str, features: int, releases: int = 1) -> PrivacyCost | None:
    """Return what releases of an image with this many features spend; None for recipes without a guarantee.

    Every row is drawn on its own, equal descriptors too: one that is in an image c times spends c eps, and the sum
    over rows covers it. Releases add up, whoever receives them.

    >>> str(privacy_spent("subset-4:eps=10", 500, releases=2))[:47]
    'eps 10 per descriptor, 5000 per image, 10000 ov'
    """
    chain = Recipe.of(recipe)
    epsilon = None if chain.lifting is None else chain.lifting.epsilon
    if epsilon is None:
        return None
    if chain.evaluation_seed is not None or chain.keyed:
        return PrivacyCost(math.inf, math.inf, math.inf)
    return PrivacyCost(epsilon, features * epsilon, releases * features * epsilon)


def exclusion_probability(entries: int, size: int, epsilon: float) -> float:
    """Return 1 - p = (k - w) / (w e^eps + k - w), the probability that a descriptor's own entry is not in its set."""
    if not 0 < size < entries:
        raise DecoyError(f"a subset of {size} entries needs a dictionary of more, it has {entries}")
    others = (entries - size) * math.exp(-epsilon)  # e^eps itself is too large a number from eps 710 on
    return others / (size + others)


def _set_probability(entries: int, size: int, epsilon: float, *, included: bool) -> float:
    """Return the probability of one certain set, for a descriptor whose own entry is in it or not."""
    left_out = exclusion_probability(entries, size, epsilon)
    if included:
        return (1 - left_out) / math.comb(entries - 1, size - 1)
    return left_out / math.comb(entries - 1, size)


def release_subsets(points: Floats, link: Link, dictionary: Decoys, draws: Draws) -> Subspaces:
    """Return the hulls of the sets drawn for points (N, n), dimension ``link.dim`` - 1; every row on its own.

    Raises RecipeError with a device secret: it would give equal descriptors equal sets, and so show that they are.
    """
    if isinstance(draws, KeyedDraws):
        raise RecipeError(
            f"{link}: under a device secret equal descriptors get equal sets, which no eps covers: leave the secret out"
        )
    size, entries = link.dim or 0, dictionary.descriptors
    if entries.shape[1] != points.shape[1]:
        raise DecoyError(f"decoys have {entries.shape[1]} dimensions, descriptors {points.shape[1]}")
    if size > points.shape[1]:
        raise RecipeError(f"{link}: {size} entries span no hull in {points.shape[1]} dimensions")
    exclusion_probability(len(entries), size, link.epsilon or 0.0)  # checks the sizes
    drawn = draws.of_rows(np.arange(len(points)), 8 * (size + 1), 0)
    return hulls(entries, draw_sets(nearest_entries(points, entries), len(entries), link, drawn))


def draw_sets(own: NDArray[np.int64], entries: int, link: Link, drawn: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the sets (N, w), sorted, for the descriptors' own entries (N,), from bytes (N, 8 (w + 1)).

    The probability of exclusion is rounded up to a multiple of 2^-64, and never 0, which is on the safe side. A number
    of 64 bits taken modulo k is off from uniform by k 2^-64: the ratio of e^eps is kept to within 1e-12 of it.
    """
    size = link.dim or 0
    coin = np.ascontiguousarray(drawn[:, :8]).view("<u8")[:, 0]
    limit = max(1, math.ceil(exclusion_probability(entries, size, link.epsilon or 0.0) * 2**64))
    others = np.full(len(own), entries - 1, np.int64)
    many = distinct_integers(np.ascontiguousarray(drawn[:, 8:]), others)
    fewer = distinct_integers(np.ascontiguousarray(drawn[:, 16:]), others)
    included = coin >= np.uint64(min(limit, 2**64 - 1))
    sets = many + (many >= own[:, None])  # positions among the others, which leave out the own entry
    with_own = np.concatenate([own[:, None], fewer + (fewer >= own[:, None])], axis=1)
    sets[included] = with_own[included]
    sets.sort(axis=1)
    return sets


def hulls(entries: Floats, sets: NDArray[np.int64]) -> Subspaces:
    """Return the affine hulls of sets (N, w) of entries (k, n): canonical origin, a basis that the set determines.

    Where the entries of a set are dependent the basis is filled up by directions that are again a function of the set:
    drawing anew instead would change the probabilities.
    """
    corners = entries[sets].astype(np.float64)
    directions = (corners[:, 1:] - corners[:, :1]).transpose(0, 2, 1)  # (N, n, w - 1)
    basis = np.linalg.qr(directions)[0].transpose(0, 2, 1)
    origin = canonical_origin(corners[:, 0], basis)
    return Subspaces(origin.astype(np.float32), np.ascontiguousarray(basis, np.float32))


def nearest_entries(points: Floats, entries: Floats) -> NDArray[np.int64]:
    """Return the entry (N,) of a dictionary (k, n) nearest to each point (N, n)."""
    halves = 0.5 * np.einsum("ki,ki->k", entries, entries, dtype=np.float64).astype(np.float32)
    step = max(1, AT_ONCE // len(entries))
    nearest = np.empty(len(points), np.int64)
    for start in range(0, len(points), step):
        nearest[start : start + step] = (points[start : start + step] @ entries.T - halves).argmax(axis=1)
    return nearest


# --- what an archive spends

NO_FRAME = np.array([1, 0], np.float32)
"""Size and angle of a keypoint without either."""


@dataclass(frozen=True, slots=True)
class ArchivePrivacy:
    """Privacy that an archive spends: eps per release from ``least`` to ``most``; the largest sum over all releases of
    one ``feature`` and of one ``photo``; the number of ``images`` and ``rows`` of that photo."""

    least: float
    most: float
    feature: float
    photo: float
    images: int
    rows: int

    def __str__(self) -> str:
        if math.isinf(self.most):
            return "no guarantee: the draws can be repeated"
        eps = f"{self.least:.10g}" if self.least == self.most else f"{self.least:.10g} to {self.most:.10g}"
        times = f"{self.images} images that share keypoints" if self.images != 1 else "1 image"
        return (
            f"eps {eps} per release of a descriptor; over all releases in this archive up to {self.feature:.10g} per "
            f"descriptor and {self.photo:.10g} per photo ({self.rows} features of {times}); positions and the number "
            f"of features are not covered; releases in other archives, and in archives that --overwrite replaced, are "
            f"unknown here and add to it"
        )


def archive_privacy(path: Path) -> str | None:
    """Return in words what an archive spends; None for recipes without a guarantee."""
    with load(path) as archive:
        return privacy_of_images(archive, archive.summary().images)


def privacy_of_images(archive: Archive, entries: Iterable[ImageHeader]) -> str | None:
    """Return the same as ``archive_privacy`` for an open archive. Images that cannot be read are reported elsewhere."""
    keypoints, epsilons = list[NDArray[np.float32]](), list[float]()
    for entry in entries:
        spent = privacy_spent(entry.recipe, entry.count)
        if spent is not None:
            with suppress(ArchiveError):
                keypoints.append(archive[entry.name].keypoints)
                epsilons.append(spent.per_descriptor)
    return str(count_releases(keypoints, epsilons)) if keypoints else None


def count_releases(keypoints: list[NDArray[np.float32]], epsilons: list[float]) -> ArchivePrivacy:
    """Count what images with these keypoints (N, 4) spend, each row the eps of its image; at least one image.

    Images that share a row, or are linked by others that do, are of one photo.
    """
    image = np.repeat(np.arange(len(keypoints)), [len(rows) for rows in keypoints])
    if not len(image):
        return ArchivePrivacy(min(epsilons), max(epsilons), 0.0, 0.0, 1, 0)
    feature = _features(np.concatenate(keypoints))
    epsilon = np.asarray(epsilons)[image]
    photo = _photos(image, feature, len(keypoints))
    spent = np.bincount(photo[image], epsilon)
    dearest = int(spent.argmax())
    return ArchivePrivacy(
        least=min(epsilons),
        most=max(epsilons),
        feature=float(np.bincount(feature, epsilon).max()),
        photo=float(spent[dearest]),
        images=int((photo == dearest).sum()),
        rows=int((photo[image] == dearest).sum()),
    )


def _features(keypoints: NDArray[np.float32]) -> NDArray[np.intp]:
    """Return the feature of each row (N, 4); a row without size and angle is the same as all at its position."""
    position = _same(keypoints[:, :2])
    has_no_frame = (keypoints[:, 2:] == NO_FRAME).all(axis=1)
    rows = keypoints.copy()
    rows[np.bincount(position, has_no_frame)[position] > 0, 2:] = NO_FRAME
    return _same(rows)


def _same(rows: NDArray[np.float32]) -> NDArray[np.intp]:
    """Return a number for each row, the same for rows that are equal to the bit."""
    array = np.ascontiguousarray(rows, np.float32)
    numbers: NDArray[np.intp] = np.unique(array.view(f"V{array.shape[1] * 4}"), return_inverse=True)[1].ravel()
    return numbers


def _photos(image: NDArray[np.intp], feature: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """Return the photo (count,) of each image, from the image and the feature of every row."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    first = np.full(feature.max() + 1, count)
    np.minimum.at(first, feature, image)
    image0, image1 = np.divmod(np.unique(image * count + first[feature]), count)
    links = coo_array((np.ones(len(image0)), (image0, image1)), shape=(count, count))
    photos: NDArray[np.intp] = connected_components(links, directed=False)[1].astype(np.intp)
    return photos
