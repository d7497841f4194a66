# SPDX-License-Identifier: Apache-2.0
"""Localization of one query: its concealed features against a map, matches, and a pose by COLMAP.

Against concealed landmarks distances are between subspaces, against public points between a point and a subspace.
Server side: never imports the clear types. A pose is reported only if it was estimated from the query's own matches,
and if wrong matches would not have given one as good.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lgamma, log, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError
from sfumato.geometry.cameras import refuse_other_sizes
from sfumato.geometry.colmap import PIXEL_CENTRE, from_rigid, load_pycolmap, to_colmap
from sfumato.geometry.maps import Map
from sfumato.matching.mutual import (
    MatchParams,
    Side,
    check_pair,
    match_prepared,
    prepare_side,
    side_of,
    space_name,
    warn_if_void,
)
from sfumato.subspace.subspace_set import SubspaceSet
from sfumato.types.arrays import frozen_array, whole_number
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.scene import Camera, Pose

# --- a pose from keypoints and the points they see; a wrong focal length shows only when it is left free


PERSPECTIVE = ("SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV", "FULL_OPENCV")
"""Models whose focal length COLMAP estimates along with the pose."""

OTHER_FOCAL = 1.15
"""Focal lengths that differ by more than this factor are different."""
MORE_INLIERS, FEWEST_MORE = 1.1, 10
"""This many times the inliers, and at least this many more, are clearly more."""
LESS_ERROR = 0.6
"""This share of the error is clearly less, if no inlier is lost."""
ENOUGH = 30
"""Of fewer inliers the error says little: one more unknown makes it smaller in any case."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Estimate:
    """A ``pose``, or None; how many pairs agree with it, their median error, and the focal length it has in pixels.

    ``camera`` is pycolmap's, with that focal length.
    """

    pose: Pose | None
    inliers: int = 0
    error_px: float = np.inf
    focal_px: float = 0.0
    camera: Any = None


def _estimate_pose(
    places: NDArray[np.float64],
    positions: NDArray[np.float64],
    camera: Camera,
    *,
    max_error_px: float = 12.0,
    seed: int = 0,
    free_focal: bool = False,
) -> Estimate:
    """Return the pose that most pairs agree with; with ``free_focal`` the focal length is estimated along with it.

    ``places`` (M, 2) pixels in COLMAP's convention, ``positions`` (M, 3) in the world.
    """
    pycolmap = load_pycolmap()
    estimation = pycolmap.AbsolutePoseEstimationOptions()
    estimation.ransac.max_error = float(max_error_px)
    estimation.ransac.max_num_trials = MOST_TRIALS
    estimation.ransac.random_seed = int(seed)
    estimation.estimate_focal_length = free_focal
    refinement = pycolmap.AbsolutePoseRefinementOptions()
    refinement.refine_focal_length = free_focal
    intrinsics = to_colmap(camera, 1, trusted=not free_focal)
    fit = pycolmap.estimate_and_refine_absolute_pose(places, positions, intrinsics, estimation, refinement)
    if fit is None:
        return Estimate(None)
    try:
        pose = from_rigid(fit["cam_from_world"])
    except (InputError, np.linalg.LinAlgError):  # not finite: the points do not determine it
        return Estimate(None)
    agreeing = np.asarray(fit["inlier_mask"], bool)
    projected = np.asarray(intrinsics.img_from_cam(positions[agreeing] @ pose.rotation.T + pose.translation))
    errors = np.linalg.norm(projected.reshape(-1, 2) - places[agreeing], axis=1)
    focal = [float(intrinsics.params[row]) for row in intrinsics.focal_length_idxs()]
    return Estimate(
        pose,
        int(fit["num_inliers"]),
        float(np.nan_to_num(np.median(errors), nan=np.inf)) if len(errors) else np.inf,
        float(np.mean(focal)) if focal else 0.0,
        intrinsics,
    )


def _doubt_focal(
    places: NDArray[np.float64],
    positions: NDArray[np.float64],
    camera: Camera,
    estimate: Estimate,
    *,
    max_error_px: float = 12.0,
    seed: int = 0,
) -> str:
    """Return what speaks against the focal length of a camera, or an empty text; ``given`` was estimated with it."""
    if camera.model not in PERSPECTIVE:
        return ""
    free = _estimate_pose(places, positions, camera, max_error_px=max_error_px, seed=seed, free_focal=True)
    focal = estimate.focal_px or float(camera.params[0])
    if free.pose is None or not free.focal_px > 0 or 1 / OTHER_FOCAL < free.focal_px / focal < OTHER_FOCAL:
        return ""
    more = free.inliers >= max(MORE_INLIERS * estimate.inliers, estimate.inliers + FEWEST_MORE)
    better = free.inliers >= max(estimate.inliers, ENOUGH) and free.error_px <= LESS_ERROR * estimate.error_px
    if not more and not better:
        return ""
    error = "" if estimate.pose is None else f" within {estimate.error_px:.1f} px"
    return (
        f"a focal length of about {free.focal_px:.0f} px instead of {focal:.0f} explains more, {free.inliers} matches "
        f"within {free.error_px:.1f} px instead of {estimate.inliers}{error}: check the camera, the pose may be far off"
    )


# --- how easily a pose comes about by chance; a query of another place has thousands of wrong matches


MOST_TRIALS = 10_000
"""Poses drawn for a query at most, COLMAP's own number."""
SAMPLES = {False: (3, 4), True: (4, 10)}
"""Matches that determine a pose, and the most poses they have; the second if the focal length is free."""
SHUFFLES = 20


def _log_false_poses(
    estimate: Estimate,
    places: NDArray[np.float64],
    positions: NDArray[np.float64],
    pairs: tuple[NDArray[np.int64], NDArray[np.int64]],
    *,
    max_error_px: float = 12.0,
    free_focal: bool = False,
) -> tuple[float, float]:
    """Return the logarithm to base 10 of the number of poses that would fit as many wrong matches, and how many do.

    ``pairs``: of each match the row of its keypoint and of its landmark, (M,) each. As for pairs of images (Moisan and
    Stival 2004): the number of poses drawn, times the number of sets of inliers there can be beyond the sample, times
    the probability that all of one fit by chance. That is measured, as the share of keypoints that fit after their
    places were exchanged at random. So it knows of poses from far away, which gather all points in one spot, and of
    keypoints that crowd. A keypoint counts once, whatever it is matched with, and so does a landmark. The second
    number is that of keypoints which fit by chance, in the mean.
    """
    assert estimate.pose is not None
    local = positions @ estimate.pose.rotation.T + estimate.pose.translation
    front = local[:, 2] > 0
    with np.errstate(all="ignore"):
        projected = estimate.camera.img_from_cam(np.where(front[:, None], local, [0.0, 0.0, 1.0]))
    projected = np.where(front[:, None], np.asarray(projected, np.float64).reshape(-1, 2), np.inf)
    rows, landmarks = pairs
    keypoints, first, order = np.unique(rows, return_index=True, return_inverse=True)

    def fit(at: NDArray[np.float64]) -> NDArray[np.bool_]:
        return np.asarray(((projected - at) ** 2).sum(axis=1) <= max_error_px**2)

    fitting = fit(places)
    inliers = min(len(np.unique(rows[fitting])), len(np.unique(landmarks[fitting])))
    rng, chance = np.random.default_rng(0), 0
    for _ in range(SHUFFLES):
        exchanged = places[first][rng.permutation(len(keypoints))][order]
        chance += len(np.unique(rows[fit(exchanged)]))
    sample, solutions = SAMPLES[free_focal]
    others, beyond = len(keypoints) - sample, inliers - sample
    if others < 1 or beyond < 1:
        return np.inf, chance / SHUFFLES
    sets = (lgamma(others + 1) - lgamma(beyond + 1) - lgamma(others - beyond + 1)) / log(10)
    share = (chance + 1) / (SHUFFLES * len(keypoints) + 1)
    return log10(MOST_TRIALS * solutions) + sets + beyond * log10(share), chance / SHUFFLES


# --- one query


FEWEST = 4
"""Inliers without which no pose is determined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalizeParams:
    """Settings of localization.

    ``max_error_px``: how far from its keypoint a projected point may be and count as an inlier. ``min_inliers``: with
    fewer, no pose is reported. ``max_false_alarms``: how many of the poses drawn may be expected to fit as well if all
    matches were wrong; with more, no pose is reported, and inf does not ask. ``ratio`` and ``max_distance`` as in
    matching. ``seed`` makes the estimation repeatable.
    """

    max_error_px: float = 12.0
    min_inliers: int = 20
    max_false_alarms: float = 0.01
    ratio: float | None = None
    max_distance: float | None = None
    seed: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.max_error_px < np.inf:
            raise InputError(f"max_error_px: expected a number of pixels above 0, got {self.max_error_px!r:.40}")
        if whole_number(self.min_inliers, "min_inliers") < FEWEST:
            raise InputError(f"min_inliers: expected {FEWEST} or more, got {self.min_inliers}")
        if not self.max_false_alarms > 0:
            raise InputError(f"max_false_alarms: expected a number above 0, got {self.max_false_alarms!r:.40}")
        if not 0 <= whole_number(self.seed, "seed") < 2**31:
            raise InputError(f"seed: expected 0 to {2**31 - 1}, got {self.seed}")
        self.matching  # noqa: B018 (checks)

    @property
    def matching(self) -> MatchParams:
        """Settings of its matching."""
        return MatchParams(ratio=self.ratio, max_distance=self.max_distance, threads=self.threads)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Localization:
    """Result of a query: ``pose`` cam_from_world, or None and the ``reason``.

    ``matches`` counts distinct pairs of a keypoint and a mapped point, ``inliers`` those that agree with the pose, or
    with the best there was; ``candidates`` are the images of the map it was compared with. ``doubt`` is what speaks
    against the focal length that was given, where another one explains clearly more: the pose is then not to be relied
    on.
    """

    pose: Pose | None
    inliers: int
    matches: int
    candidates: tuple[str, ...]
    reason: str = ""
    doubt: str = ""

    def __repr__(self) -> str:
        result = "localized" if self.pose is not None else f"not localized: {self.reason}"
        return f"Localized({result}, {self.inliers} inliers of {self.matches} matches)"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class LandmarkMatches:
    """Matches of a query with mapped points, all that a pose needs beside the query's own positions.

    ``rows`` (M,) of the query and ``landmarks`` (M,), rows of ``positions`` (L, 3) in the world, each pair once;
    ``distances`` (M,) of their codes; ``candidates``: the images of the map that were compared.
    """

    rows: NDArray[np.int64]
    landmarks: NDArray[np.int64]
    positions: NDArray[np.float64]
    distances: NDArray[np.float32]
    candidates: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.rows)
        rows = frozen_array(self.rows, "rows", (None,), np.int64)
        landmarks = frozen_array(self.landmarks, "landmarks", (count,), np.int64)
        positions = frozen_array(self.positions, "positions", (None, 3), np.float64)
        if count and (rows.min() < 0 or landmarks.min() < 0 or landmarks.max() >= len(positions)):
            raise InputError("landmarks: a match names a row or a point that is not there")
        values = rows, landmarks, positions, frozen_array(self.distances, "distances", (count,))
        for name, value in zip(("rows", "landmarks", "positions", "distances"), values, strict=True):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.rows)

    def nearest(self, most: int) -> "LandmarkMatches":
        """Return the ``most`` matches of nearest codes, with their points alone."""
        chosen = np.sort(np.argsort(self.distances, kind="stable")[:most])
        points, landmarks = np.unique(self.landmarks[chosen], return_inverse=True)
        return replace(
            self, rows=self.rows[chosen], landmarks=landmarks.astype(np.int64), positions=self.positions[points],
            distances=self.distances[chosen],
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"LandmarkMatches({len(self)} with {len(self.positions)} points)"


def localize_query(
    query: ConcealedFeatures,
    camera: Camera,
    map_: Map,
    candidates: Sequence[str],
    params: LocalizeParams | None = None,
    *,
    keypoints: NDArray[np.float32] | None = None,
    guessed_camera: bool = False,
) -> Localization:
    """Estimate the pose of a query from its matches with candidate images of a map.

    ``find_landmarks``, then ``solve_pose``: the first needs no position of the query, the second no map.
    ``keypoints``: those of a query whose positions stay home, on its device. With ``guessed_camera`` the focal length
    is estimated with the pose.

    Raises InputError for a camera of another image size, for features that the map's cannot be compared with, and for a
    query whose positions are on its device.
    """
    refuse_other_sizes({"the query": camera}, {"the query": query.image_size})
    keypoints = known_keypoints(query) if keypoints is None else keypoints
    matches = find_landmarks(query, map_, candidates, params)
    return solve_pose(matches, keypoints, camera, params, guessed_camera=guessed_camera)


def known_keypoints(query: ConcealedFeatures) -> NDArray[np.float32]:
    """Return the keypoints of a query that holds them; raises InputError for one whose positions are on its device."""
    if not query.is_shown.all():
        raise InputError(
            "the positions of this query stay on its device, where the pose can be solved: localize there, or write "
            "the landmarks that it needs (--landmarks) and solve with them there (--solve)"
        )
    return query.keypoints


def solve_pose(
    matches: LandmarkMatches,
    keypoints: NDArray[np.float32],
    camera: Camera,
    params: LocalizeParams | None = None,
    *,
    guessed_camera: bool = False,
) -> Localization:
    """Estimate a pose from matches with mapped points and the keypoints (N, 2 or more) of the query's rows.

    Runs on the device that took the query: the positions need not leave it. A keypoint may be matched with several
    points; each such pair counts once. Raises InputError for matches of rows that the query does not have.
    """
    params, known = params or LocalizeParams(), matches.candidates
    if len(keypoints) == 0:
        return Localization(None, 0, 0, known, "the query has no features")
    if not known:
        return Localization(None, 0, 0, known, "no image of the map to compare with")
    if len(matches) and int(matches.rows.max()) >= len(keypoints):
        raise InputError(f"landmarks: they are matched with rows that a query of {len(keypoints)} features lacks")
    if len(matches) < params.min_inliers:
        return Localization(
            None, 0, len(matches), known, f"too few matches: {len(matches)} of at least {params.min_inliers}"
        )
    rows, landmarks = matches.rows, matches.landmarks
    places = keypoints[rows, :2].astype(np.float64) + PIXEL_CENTRE
    positions, error, seed = matches.positions[landmarks], params.max_error_px, params.seed
    estimate = _estimate_pose(places, positions, camera, max_error_px=error, seed=seed, free_focal=guessed_camera)
    doubt = "" if guessed_camera else _doubt_focal(places, positions, camera, estimate, max_error_px=error, seed=seed)
    reason = ""
    if estimate.pose is None:
        reason = f"no pose agrees with {len(rows)} matches"
    elif estimate.inliers < params.min_inliers:
        reason = f"too few inliers: {estimate.inliers} of at least {params.min_inliers}"
    else:
        alarms, chance = _log_false_poses(
            estimate, places, positions, (rows, landmarks), max_error_px=error, free_focal=guessed_camera
        )
        if alarms > log10(params.max_false_alarms):
            reason = (
                f"no better than chance: {estimate.inliers} of {len(rows)} matches agree with a pose, and {chance:.0f} "
                f"would if all were wrong"
            )
    return Localization(None if reason else estimate.pose, estimate.inliers, len(rows), known, reason, doubt)


def find_landmarks(
    query: ConcealedFeatures, map_: Map, candidates: Sequence[str], params: LocalizeParams | None = None
) -> LandmarkMatches:
    """Return the mapped points that rows of a query are matched with; positions of the query are not looked at.

    Candidates that the map does not have are left out, and so is an image of the map that is damaged, which the map
    names then.

    Raises InputError for features that the map's cannot be compared with.
    """
    known = tuple(name for name in dict.fromkeys(candidates) if name in map_)
    own = side_of(query, "query")
    prepared, matching = prepare_side(own), (params or LocalizeParams()).matching
    if isinstance(prepared, SubspaceSet):
        prepared.frame = map_.frame
    codes, distances, count = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)], len(map_.positions)
    for name in known if len(query) else ():
        try:
            view = map_.view(name)
        except FileError as problem:
            map_.damaged[name] = str(problem)
            continue
        if len(view.landmarks) == 0:
            continue
        check_comparable(own, view.side)
        warn_if_void(own, view.side)
        matches = match_prepared(prepared, view.prepared, matching, own.recipe)
        if isinstance(prepared, SubspaceSet):
            map_.frame = map_.frame or prepared.frame  # one for all: each image is projected once
        codes.append(matches.indices[:, 0].astype(np.int64) * count + view.landmarks[matches.indices[:, 1]])
        distances.append(matches.distances)
    nearest_first = np.argsort(np.concatenate(distances), kind="stable")
    pairs, first = np.unique(np.concatenate(codes)[nearest_first], return_index=True)
    first = nearest_first[first]
    rows, numbers = np.divmod(pairs, max(count, 1))
    points, landmarks = np.unique(numbers, return_inverse=True)
    return LandmarkMatches(
        rows, landmarks.astype(np.int64), map_.positions[points], np.concatenate(distances)[first], known
    )


def check_comparable(query: Side, reference: Side) -> None:
    """Raise InputError for a query that lives in another space than the map: another descriptor, or encoder."""
    check_pair(query, reference)
    if reference.recipe is None and query.recipe is not None and query.recipe.has_encoder:  # public points
        raise InputError(
            f"these features live in different spaces: {space_name(query)} and {space_name(reference)}; localize "
            f"against the concealed landmarks of the map, without --public"
        )
