# SPDX-License-Identifier: Apache-2.0
"""Descriptors of the same point, two by two: what an encoder learns its use from.

Knows clear descriptors, which only training may; nothing here conceals. Pairs come from photos and warped views of
them through known homographies (here), from labelled patches (``patchpairs``), and from the tracks of a map
(``geometry.trackpairs``). The first way is the distribution the product works on: a detector found both keypoints.
"""

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import ImageError, InputError
from sfumato.features.local import DESCRIPTORS, DETECTORS, Described, Detected, LocalParams, extractor_of
from sfumato.features.results import Progress, identity
from sfumato.images.homography import HomographyParams, make_pair
from sfumato.images.keypointwarp import Tolerance, same_keypoints
from sfumato.images.read import read_image, to_grey
from sfumato.images.settings import Range, refuse_unknown, settle_numbers
from sfumato.types.arrays import frozen_array
from sfumato.types.clear import Image
from sfumato.types.extractor import Extractor

Floats = NDArray[np.float32]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class DescriptorPairs:
    """P pairs of clear descriptors: row i of ``first`` and of ``second`` describe one point.

    ``first`` and ``second`` (P, n) float32; ``points`` (P,) int64, the same number for the same point, also in several
    pairs; ``groups`` (P,) int32, the photo or sequence of origin; ``extractor`` what described them.
    """

    first: Floats
    second: Floats
    points: NDArray[np.int64]
    groups: NDArray[np.int32]
    extractor: Extractor = Extractor()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        first = frozen_array(self.first, "first", (None, None))
        if first.shape[1] == 0:
            raise InputError("first: need at least one dimension")
        for name, value in (
            ("first", first),
            ("second", frozen_array(self.second, "second", first.shape)),
            ("points", frozen_array(self.points, "points", (len(first),), np.int64)),
            ("groups", frozen_array(self.groups, "groups", (len(first),), np.int32)),
        ):
            object.__setattr__(self, name, value)
        if not isinstance(self.extractor, Extractor):
            raise InputError(f"extractor: expected an Extractor, got {type(self.extractor).__name__}")

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, rows: Any) -> "DescriptorPairs":
        """Select pairs by a slice, a mask or a list of indices."""
        index = np.atleast_1d(np.arange(len(self))[rows])
        return DescriptorPairs(
            self.first[index], self.second[index], self.points[index], self.groups[index], self.extractor
        )

    def __repr__(self) -> str:
        points, groups = len(np.unique(self.points)), len(np.unique(self.groups))
        return (
            f"DescriptorPairs({len(self)} of {self.first.shape[1]} numbers, {self.extractor.name}, {points} points, "
            f"{groups} groups, clear)"
        )


TRAINING_VIEWS = HomographyParams(
    rotation=45, scale=1.5, perspective=0.25, translation=0.05, brightness=30, contrast=0.3, blur=1.0, noise=4
)
"""How much a view may differ from its photo: more than in the pairs that ``evaluate homography`` generates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairParams:
    """How pairs are made from photos: ``views`` of each, changed up to ``change``, drawn from ``seed``.

    Features are found and described by ``local`` in the photo and in each view. At most ``most`` pairs are kept (0: no
    limit), an equal share of each photo, points drawn evenly from all that were found again.
    """

    views: int = 3
    seed: int = 0
    most: int = 0
    local: LocalParams = field(default_factory=lambda: LocalParams(max_features=1000))
    change: HomographyParams = TRAINING_VIEWS
    tolerance: Tolerance = Tolerance()  # noqa: RUF009 (frozen)

    def __new__(cls, **settings: object) -> "PairParams":
        """Refuse misspelt settings before anything is made."""
        refuse_unknown(cls, settings)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        ranges = {
            "views": Range(1, 1000, whole=True),
            "seed": Range(0, 2**62, whole=True),
            "most": Range(0, 2**40, whole=True),
        }
        problems = settle_numbers(self, ranges)
        if problems:
            raise InputError("; ".join(problems))


def pairs_from_photos(
    photos: Sequence[str | os.PathLike[str]],
    params: PairParams | None = None,
    *,
    executor: Executor | None = None,
    progress: Progress = identity,
) -> DescriptorPairs:
    """Extract features in photos and in warped views of them, and pair those that the homography says are the same.

    The same photos and params give the same pairs, with or without an ``executor``, which works on several photos at
    once. Groups are the places of the photos in the list; a photo without features or pairs gives none, nor does one
    that can not be read, which is told.

    Raises InputError if no photo gives a pair.
    """
    params = params or PairParams()
    share = -(-params.most // max(1, len(photos))) if params.most else 0
    jobs = [(Path(path), number, params, share) for number, path in enumerate(photos)]
    run: Callable[..., Iterable[Any]] = map if executor is None else executor.map
    first, second, points, groups = [], [], [], []
    known = 0
    for number, (a, b, own, count) in enumerate(progress(run(pairs_of_photo, jobs))):
        first.append(a)
        second.append(b)
        points.append(own + known)
        groups.append(np.full(len(a), number, np.int32))
        known += count
    if not sum(map(len, first)):
        raise InputError("no point of these photos is found again in their views: give more, or sharper photos")
    return DescriptorPairs(
        np.concatenate([rows for rows in first if len(rows)]),
        np.concatenate([rows for rows in second if len(rows)]),
        np.concatenate(points),
        np.concatenate(groups),
        extractor_of(params.local),
    )


def pairs_of_photo(job: tuple[Path, int, PairParams, int]) -> tuple[Floats, Floats, NDArray[np.int64], int]:
    """Return the two sides (P, n), the points (P,) of one photo, and how many points it may have named.

    A job is a path, its place in the list, the params, and how many pairs to keep at most (0: all). What is drawn
    depends on seed and place alone.
    """
    path, number, params, share = job
    rng = np.random.default_rng([params.seed, number])
    try:
        photo = Image(to_grey(read_image(path)), path.name)
    except ImageError as cause:
        log.warning("%s is left out: %s", path.name, cause)
        return np.zeros((0, 0), np.float32), np.zeros((0, 0), np.float32), np.zeros(0, np.int64), 0
    detect = DETECTORS[params.local.detector]
    reference = detect(photo.pixels, params.local)
    found: list[tuple[Detected, NDArray[np.int64]]] = []
    for _ in range(params.views if len(reference.keypoints) else 0):
        pair = make_pair(photo, rng, params.change)
        view = detect(pair.second.pixels, params.local)
        same = same_keypoints(reference.keypoints, view.keypoints, pair.homography, params.tolerance)
        found.append((view, same))
    points = np.concatenate([np.zeros(0, np.int64), *(same[:, 0] for _, same in found)])
    kept = keep_some(points, share, rng)
    first, second, points = _describe(reference, found, kept, params.local)
    return first, second, points, len(reference.keypoints)


def _describe(
    reference: Detected, found: list[tuple[Detected, NDArray[np.int64]]], kept: NDArray[np.int64], local: LocalParams
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Describe the kept pairs alone, for networks are slow; a pair one side of which describes nothing is left out.

    ``found`` are the views with their pairs of rows (M, 2), ``kept`` rows of all these pairs, view after view.
    """
    pairs = np.concatenate([np.zeros((0, 2), np.int64), *(same for _, same in found)])
    starts = np.cumsum([0, *(len(same) for _, same in found)])
    used, place = np.unique(pairs[kept, 0], return_inverse=True)
    rows, norms = _described(reference, used, local)
    sides = [
        _described(view, pairs[kept[(kept >= start) & (kept < start + len(same))], 1], local)
        for (view, same), start in zip(found, starts, strict=False)
    ]
    second = np.concatenate([rows[:0], *(side for side, _ in sides)])
    good = (norms[place] > 0) & (np.concatenate([norms[:0], *(lengths for _, lengths in sides)]) > 0)
    return rows[place[good]], second[good], pairs[kept[good], 0]


def _described(detected: Detected, rows: NDArray[np.int64], local: LocalParams) -> Described:
    """Return the descriptors of some keypoints, of unit norm, and their norms before."""
    histograms = None if detected.histograms is None else detected.histograms[rows]
    return DESCRIPTORS[local.descriptor](Detected(detected.grey, detected.keypoints[rows], histograms), local)


def keep_some(points: NDArray[np.int64], most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return rows (K,) of pairs of points drawn evenly, all pairs of a point or none, at most ``most``; 0 is all."""
    if not most or len(points) <= most:
        return np.arange(len(points))
    names, counts = np.unique(points, return_counts=True)
    order = rng.permutation(len(names))
    chosen = names[order[np.cumsum(counts[order]) <= most]]
    return np.flatnonzero(np.isin(points, chosen))
