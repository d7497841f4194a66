# SPDX-License-Identifier: Apache-2.0
"""Geometric verification: which matches of two images can belong to one rigid scene.

Works on a COLMAP database, pair by pair, and writes the result into it. Each pair is drawn for from the same seed, so
neither the order nor the number of threads changes anything. Knows positions, cameras and rows; no descriptors.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.geometry.library import load_pycolmap
from sfumato.geometry.twoview import Estimate, Side, VerifyParams, estimator, known_geometry
from sfumato.types.scene import Pose

__all__ = ["VerifiedPair", "VerifyOutcome", "VerifyParams", "verify"]

Progress = Callable[[Iterable[Any]], Iterable[Any]]

AT_ONCE = 64
KEPT_IMAGES = 512


@dataclass(frozen=True, slots=True)
class VerifiedPair:
    """How many matches of two images were verified; none, where the pair was refused. COLMAP's word for the kind."""

    names: tuple[str, str]
    matches: int
    inliers: int
    configuration: str


@dataclass(frozen=True, slots=True)
class VerifyOutcome:
    """What became of every matched pair of a database."""

    pairs: tuple[VerifiedPair, ...] = ()

    @property
    def verified(self) -> int:
        """Pairs with inliers."""
        return sum(pair.inliers > 0 for pair in self.pairs)

    @property
    def matches(self) -> int:
        """Matches of all pairs."""
        return sum(pair.matches for pair in self.pairs)

    @property
    def inliers(self) -> int:
        """Verified matches of all pairs."""
        return sum(pair.inliers for pair in self.pairs)

    def __repr__(self) -> str:
        return f"VerifyOutcome({self.verified} of {len(self.pairs)} pairs, {self.inliers} of {self.matches} matches)"


def verify(
    database: str | os.PathLike[str],
    params: VerifyParams | None = None,
    *,
    poses: Mapping[str, Pose] | None = None,
    progress: Progress = iter,
) -> VerifyOutcome:
    """Verify every matched pair of a COLMAP database and write the two-view geometries into it.

    Without ``poses`` the geometry of a pair is estimated. With them it is known, and matches must agree with it;
    pairs of images without a pose are refused. ``progress`` wraps the pairs.
    """
    params, pycolmap = params or VerifyParams(), load_pycolmap()
    estimate = estimator(params) if poses is None else known_geometry(params, poses)
    pairs: list[VerifiedPair] = []
    with pycolmap.Database.open(str(database)) as opened:
        images = {image.image_id: image for image in opened.read_all_images()}

        @lru_cache(KEPT_IMAGES)
        def side(number: int) -> Side:
            camera = opened.read_camera(images[number].camera_id)
            points = np.asarray(opened.read_keypoints(number), np.float64).reshape(-1, 2)
            return Side(images[number].name, camera, points)

        def task(pair_id: int) -> tuple[tuple[int, int], Side, Side, NDArray[np.uint32]]:
            first, second = pycolmap.pair_id_to_image_pair(pair_id)
            return (first, second), side(first), side(second), opened.read_matches(first, second)

        pair_ids = sorted(opened.read_num_matches()[0])
        with ThreadPoolExecutor(params.threads or os.cpu_count() or 1) as pool:
            for (numbers, side0, side1, rows), geometry in progress(_mapped(pool, estimate, map(task, pair_ids))):
                opened.write_two_view_geometry(*numbers, geometry)
                kind = pycolmap.TwoViewGeometryConfiguration(int(geometry.config)).name.lower()
                inliers = len(geometry.inlier_matches)
                pairs.append(VerifiedPair((side0.name, side1.name), len(rows), inliers, kind))
    return VerifyOutcome(tuple(pairs))


def _mapped(pool: ThreadPoolExecutor, estimate: Estimate, tasks: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each task with its result, in order, with a bounded number of them under way."""
    while batch := list(islice(tasks, AT_ONCE)):
        futures = [pool.submit(estimate, *task[1:]) for task in batch]
        try:
            for task, future in zip(batch, futures, strict=True):
                yield task, future.result()
        finally:
            for future in futures:
                future.cancel()
