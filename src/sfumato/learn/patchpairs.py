# SPDX-License-Identifier: Apache-2.0
"""Descriptor pairs from labelled patches, and labelled patches from photos.

Knows clear patches and clear descriptors, which only training and evaluation may.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfumato.features.cutpatches import describe_cut_patches
from sfumato.features.local import DETECTORS, LocalParams, extractor_of
from sfumato.features.results import Progress, identity
from sfumato.images.patchsets import LEVELS, PatchSet, join_patch_sets
from sfumato.images.read import read_image, to_grey
from sfumato.images.views import ViewParams, make_patch_sets
from sfumato.learn.pairs import DescriptorPairs


def pairs_from_patches(patch_set: PatchSet, params: LocalParams | None = None) -> DescriptorPairs:
    """Describe the patches of a set, and pair the first of each point with each other one of it.

    Patches without any contrast describe nothing and are in no pair. No pair at all gives empty arrays.
    """
    chosen = params or LocalParams()
    rows = describe_cut_patches(patch_set.patches, chosen)
    described = np.flatnonzero(rows.any(axis=1))
    first, second = pair_rows(patch_set.points[described], patch_set.views[described])
    return DescriptorPairs(
        rows[described[first]],
        rows[described[second]],
        patch_set.points[described[first]],
        patch_set.groups[described[first]],
        extractor_of(chosen),
    )


def pair_rows(points: NDArray[np.int64], views: NDArray[np.int32]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows (P,) and (P,) of all pairs of a point's first patch, by its view, with each other of its patches.

    >>> pair_rows(np.array([7, 8, 7, 7]), np.array([1, 0, 0, 2]))
    (array([2, 2]), array([0, 3]))
    """
    order = np.lexsort((views, points))
    ordered = points[order]
    starts = np.searchsorted(ordered, ordered, side="left")
    later = np.flatnonzero(starts != np.arange(len(ordered)))
    return order[starts[later]], order[later]


def patches_of_photos(
    photos: Sequence[str | os.PathLike[str]],
    seed: int,
    params: ViewParams | None = None,
    local: LocalParams | None = None,
    *,
    progress: Progress = identity,
) -> dict[str, PatchSet]:
    """Generate labelled patches from photos at every level; a group is a photo, by its place in the list.

    Keypoints are those ``local`` detects, by default the 600 strongest of DoG; what is drawn depends on ``seed`` and
    place alone. Photos without points are groups without patches.

    Raises ImageError for a file that can not be read.
    """
    chosen = replace(local or LocalParams(max_features=600), descriptor="sift", weights=None)
    found: dict[str, list[PatchSet]] = {level: [] for level in LEVELS}
    for number, path in enumerate(progress(photos)):
        image = read_image(Path(path))
        keypoints = DETECTORS[chosen.detector](to_grey(image), chosen).keypoints
        made = make_patch_sets(image, keypoints, np.random.default_rng([seed, number]), params)
        for level, one in made.items():
            found[level].append(one)
    return {level: join_patch_sets(sets) for level, sets in found.items()}
