# SPDX-License-Identifier: Apache-2.0
"""What an archive spends of a guarantee (``subset-W:eps=E``), counted feature by feature, and told in words.

A feature is known again by its keypoint: the same four numbers, bit by bit, stand for the same place of the same photo,
and where size and angle were left out the place alone does. Every row is a release of its own. Where positions are
whole pixels and sizes are missing, different photos may share a row by chance; they are then counted as one, and the
figures are too large, never too small.
"""

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.subset import privacy_spent
from sfumato.errors import ArchiveError
from sfumato.store import Archive, load
from sfumato.store.layout import Header

BARE = np.array([1, 0], np.float32)
"""Size and angle of a keypoint that has none."""


@dataclass(frozen=True, slots=True)
class Releases:
    """What was released with a guarantee: eps of a release from ``least`` to ``most``, what the ``feature`` and the
    ``photo`` that it costs most spent over all their releases, in how many ``images`` and ``rows`` that photo is."""

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
            f"eps {eps} a release of a descriptor; over all releases in this archive up to {self.feature:.10g} a "
            f"descriptor and {self.photo:.10g} a photo ({self.rows} features of {times}); positions and the number of "
            f"features are not covered; releases in other archives, and in what --overwrite replaced, are not known "
            f"here and add to it"
        )


def spent_by(path: Path) -> str | None:
    """Return in words what an archive spends of its photos' privacy; None for recipes without a guarantee."""
    with load(path) as archive:
        return spent_in(archive, archive.summary().images)


def spent_in(archive: Archive, entries: Iterable[Header]) -> str | None:
    """As ``spent_by``, of an open archive. Images that can not be read are told elsewhere."""
    keypoints, epsilons = list[NDArray[np.float32]](), list[float]()
    for entry in entries:
        spent = privacy_spent(entry.recipe, entry.count)
        if spent is not None:
            with suppress(ArchiveError):
                keypoints.append(archive[entry.name].keypoints)
                epsilons.append(spent.per_descriptor)
    return str(count_releases(keypoints, epsilons)) if keypoints else None


def count_releases(keypoints: list[NDArray[np.float32]], epsilons: list[float]) -> Releases:
    """Count what images of these keypoints (N, 4) spent, each row an eps of its image; there is one image or more.

    Images that share a row, or are linked by others that do, are of one photo.
    """
    image = np.repeat(np.arange(len(keypoints)), [len(rows) for rows in keypoints])
    if not len(image):
        return Releases(min(epsilons), max(epsilons), 0.0, 0.0, 1, 0)
    feature = _features(np.concatenate(keypoints))
    epsilon = np.asarray(epsilons)[image]
    photo = _photos(image, feature, len(keypoints))
    spent = np.bincount(photo[image], epsilon)
    dearest = int(spent.argmax())
    return Releases(
        least=min(epsilons),
        most=max(epsilons),
        feature=float(np.bincount(feature, epsilon).max()),
        photo=float(spent[dearest]),
        images=int((photo == dearest).sum()),
        rows=int((photo[image] == dearest).sum()),
    )


def _features(keypoints: NDArray[np.float32]) -> NDArray[np.intp]:
    """Return which feature each row (N, 4) is of; one without size and angle is the same as all at its place."""
    place = _same(keypoints[:, :2])
    is_bare = (keypoints[:, 2:] == BARE).all(axis=1)
    rows = keypoints.copy()
    rows[np.bincount(place, is_bare)[place] > 0, 2:] = BARE
    return _same(rows)


def _same(rows: NDArray[np.float32]) -> NDArray[np.intp]:
    """Return a number for each row, the same for rows that are equal to the bit."""
    whole = np.ascontiguousarray(rows, np.float32)
    found: NDArray[np.intp] = np.unique(whole.view(f"V{whole.shape[1] * 4}"), return_inverse=True)[1].ravel()
    return found


def _photos(image: NDArray[np.intp], feature: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """Return which photo (count,) each image is of, given the image and the feature of every row."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    first = np.full(feature.max() + 1, count)
    np.minimum.at(first, feature, image)
    one, other = np.divmod(np.unique(image * count + first[feature]), count)
    links = coo_array((np.ones(len(one)), (one, other)), shape=(count, count))
    photos: NDArray[np.intp] = connected_components(links, directed=False)[1].astype(np.intp)
    return photos
