# SPDX-License-Identifier: Apache-2.0
"""Quality of maps and poses: the figures of the paper's Table 1, errors against the truth, and doubts without it.

Knows reconstructions as pycolmap has them and true poses; no images and no descriptors.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.geometry.cameras import angle_between, nearest_rotation
from sfumato.geometry.colmap import from_rigid
from sfumato.geometry.verify import ExplainedPair
from sfumato.types.scene import Pose

Floats = NDArray[np.float64]

MOST_TRIPLES, MOST_PAIRS = 2000, 20_000
OUTLIER = 3.0
"""A camera this many robust deviations away from the others takes no part in the alignment."""
FLAT = 1e-6
"""Centres whose second extent is less than this share of the first stand on one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapStatistics:
    """The paper's Table 1: images given and registered, points, observations, and means of the three after them.

    ``track_length``: observations of a point. ``reprojection_error_px``: mean over the points of COLMAP's error.
    """

    images: int
    registered: int = 0
    points: int = 0
    observations: int = 0
    track_length: float = 0.0
    observations_per_image: float = 0.0
    reprojection_error_px: float = 0.0


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class MapErrors:
    """Errors of registered cameras against their true poses, after a similarity that aligns the camera centres.

    ``names`` of the N images in both; ``position`` (N,) in the unit of the truth and ``rotation`` (N,) in degrees.
    Without any alignment, for each of P pairs, all of them up to 20,000: ``relative_rotation`` (P,) and
    ``relative_direction`` (P,), the angle between the true and the found direction from one camera to the other, in
    degrees. ``missing`` are images that have a true pose and no place in the map. ``aligned`` is False where two or
    fewer cameras, or all on a line, leave nothing to align by centres: position and rotation are then nan.
    """

    names: tuple[str, ...]
    position: Floats
    rotation: Floats
    relative_rotation: Floats
    relative_direction: Floats
    missing: tuple[str, ...]
    aligned: bool

    @property
    def median_position(self) -> float:
        """Median distance of a camera centre from the true one."""
        return _median(self.position)

    @property
    def median_rotation(self) -> float:
        """Median angle in degrees."""
        return _median(self.rotation)

    @property
    def median_relative(self) -> float:
        """Median over the pairs of the larger of their two relative errors, in degrees."""
        return _median(np.maximum(self.relative_rotation, self.relative_direction))

    def __repr__(self) -> str:
        return (
            f"MapErrors({len(self.names)} images, {len(self.missing)} missing, medians {self.median_position:.3g} and "
            f"{self.median_rotation:.3g} deg, relative {self.median_relative:.3g} deg)"
        )


def statistics_of(reconstruction: Any, images: int) -> MapStatistics:
    """Return the figures of a ``pycolmap.Reconstruction`` made of this many images; None is a map that is not there."""
    if reconstruction is None:
        return MapStatistics(images=images)
    reconstruction.update_point_3d_errors()
    return MapStatistics(
        images=images,
        registered=int(reconstruction.num_reg_images()),
        points=int(reconstruction.num_points3D()),
        observations=int(reconstruction.compute_num_observations()),
        track_length=float(reconstruction.compute_mean_track_length()),
        observations_per_image=float(reconstruction.compute_mean_observations_per_reg_image()),
        reprojection_error_px=float(reconstruction.compute_mean_reprojection_error()),
    )


def poses_of(reconstruction: Any) -> dict[str, Pose]:
    """Return the poses of the registered images, sorted by name."""
    images = (reconstruction.image(number) for number in reconstruction.reg_image_ids())
    return dict(sorted((str(image.name), from_rigid(image.cam_from_world())) for image in images))


def compare_with_truth(reconstruction: Any, poses: Mapping[str, Pose]) -> MapErrors:
    """Compare the cameras of a ``pycolmap.Reconstruction`` with their true poses, joined by name."""
    return compare_poses(poses_of(reconstruction), poses)


def compare_poses(poses: Mapping[str, Pose], truth: Mapping[str, Pose]) -> MapErrors:
    """Compare poses in a world of their own with the true ones, joined by name."""
    names = tuple(sorted(set(poses) & set(truth)))
    missing = tuple(sorted(set(truth) - set(poses)))
    centres, true_centres = (_centres([side[name] for name in names]) for side in (poses, truth))
    relative = [_relative_error((poses[a], poses[b]), (truth[a], truth[b])) for a, b in _pairs(names)]
    turns, directions = np.array(relative, np.float64).reshape(-1, 2).T
    similarity = align(centres, true_centres)
    if similarity is None:
        nothing = np.full(len(names), np.nan)
        return MapErrors(names, nothing, nothing, turns, directions, missing, False)
    scale, turn, shift = similarity
    position = np.linalg.norm(scale * centres @ turn.T + shift - true_centres, axis=1)
    rotation = np.array([angle_between(poses[n].rotation @ turn.T, truth[n].rotation) for n in names])
    return MapErrors(names, position, rotation, turns, directions, missing, True)


def _relative_error(poses: tuple[Pose, Pose], truth: tuple[Pose, Pose]) -> tuple[float, float]:
    """Return by how many degrees the motion from one camera to another is wrong: its rotation and its direction.

    Neither depends on the world or its scale. Where there is no true motion, the direction is not wrong.
    """
    motions = []
    for first, second in (poses, truth):
        turn = second.rotation @ first.rotation.T
        motions.append((turn, second.translation - turn @ first.translation))
    (turn, shift), (true_turn, true_shift) = motions
    if not np.linalg.norm(true_shift) > 0:
        return angle_between(turn, true_turn), 0.0
    sine = np.linalg.norm(np.cross(shift, true_shift))
    direction = float(np.rad2deg(np.arctan2(sine, shift @ true_shift))) if np.linalg.norm(shift) > 0 else 180.0
    return angle_between(turn, true_turn), direction


def align(source: Floats, target: Floats) -> tuple[float, Floats, Floats] | None:
    """Return scale, rotation and translation that take points (N, 3) nearest to others; a minority may be wrong.

    Triples of points are tried, all of them or always the same; the one with the least median distance tells which
    points agree, and those are aligned with least squares. None if there are fewer than three, or all on a line.
    """
    if len(source) < 3 or _is_flat(source) or _is_flat(target):
        return None
    best, least = None, np.inf
    for triple in _triples(len(source)):
        if _is_flat(source[triple]) or _is_flat(target[triple]):
            continue
        distances = _distances(similarity_of(source[triple], target[triple]), source, target)
        middle = float(np.median(distances))
        if middle < least:
            best, least = distances, middle
    agreeing = np.ones(len(source), bool) if best is None else best <= OUTLIER * 1.4826 * least + 1e-9
    for _ in range(10):
        if agreeing.sum() < 3 or _is_flat(source[agreeing]):
            agreeing = np.ones(len(source), bool)
        result = similarity_of(source[agreeing], target[agreeing])
        distances = _distances(result, source, target)
        now = distances <= OUTLIER * 1.4826 * float(np.median(distances)) + 1e-9
        if (now == agreeing).all():
            break
        agreeing = now
    return result


def similarity_of(source: Floats, target: Floats) -> tuple[float, Floats, Floats]:
    """Return the scale, rotation and translation of least squares (Umeyama 1991)."""
    mean, true_mean = source.mean(axis=0), target.mean(axis=0)
    spread = (target - true_mean).T @ (source - mean)
    turn = nearest_rotation(spread)
    scale = float(np.sum(turn * spread) / np.sum((source - mean) ** 2))
    return scale, turn, true_mean - scale * turn @ mean


def _distances(similarity: tuple[float, Floats, Floats], source: Floats, target: Floats) -> Floats:
    scale, turn, shift = similarity
    distances: Floats = np.linalg.norm(scale * source @ turn.T + shift - target, axis=1)
    return distances


def _triples(count: int) -> list[list[int]]:
    if count * (count - 1) * (count - 2) // 6 <= MOST_TRIPLES:
        return [list(triple) for triple in combinations(range(count), 3)]
    rng = np.random.default_rng(0)
    return [sorted(rng.choice(count, 3, replace=False).tolist()) for _ in range(MOST_TRIPLES)]


def _pairs(names: tuple[str, ...]) -> Iterable[tuple[str, str]]:
    if len(names) * (len(names) - 1) // 2 <= MOST_PAIRS:
        return combinations(names, 2)
    rows = np.random.default_rng(0).integers(len(names), size=(MOST_PAIRS, 2))
    return [(names[i], names[j]) for i, j in rows.tolist() if i != j]


def _is_flat(points: Floats) -> bool:
    """Tell whether points stand on one line, or on one spot."""
    extents = np.linalg.svd(points - points.mean(axis=0), compute_uv=False)
    return not extents[1] > FLAT * extents[0]


def _centres(poses: list[Pose]) -> Floats:
    return np.array([pose.center for pose in poses], np.float64).reshape(-1, 3)


def _median(values: Floats) -> float:
    return float(np.median(values)) if len(values) else float("nan")


# --- whether to believe a map, where nobody knows the truth


AGREEING_DEG = 2.0
"""Two runs agree if the median difference of their relative poses is at most this."""
FEW_IMAGES = 5
"""Of so few images another seed often makes the very same map, right or wrong: that is no agreement."""
IMAGE_DEG = 5.0
"""An image is in doubt if its poses in two runs that agree differ by more, in the median over the other images."""
MOSTLY_EXPLAINED = 0.8
"""Of the verified matches between its images a right map explains this share, or more."""
SHORT_TRACKS = 2.2
"""A mean track length below is nearly that of pairs: no third image confirms a point."""
FEW_OBSERVATIONS = 40
"""Points seen by an image, in the mean: with fewer, chance decides about poses."""
WEAK_IMAGE = 12
"""Points without which the pose of a single image is in doubt."""
SHORT_BASELINE = 0.1
"""Cameras nearer to each other than this share of the median have no direction between them worth comparing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRun:
    """One run of a mapper: the size of the map it made, and how well that fits, judged without any truth.

    Where a run made several maps, this is the one that shares most images with the map it is compared with.
    ``verified`` counts the verified matches between the images of the map, ``explained`` those that agree with its
    poses. ``difference_deg``: by how much relative poses differ from those of the run that was kept, in the median over
    pairs of images, rotation or direction, whichever is more; nan where nothing can be compared. ``is_best`` says that
    this run is the map.
    """

    mapper: str
    seed: int
    registered: int = 0
    points: int = 0
    track_length: float = 0.0
    verified: int = 0
    explained: int = 0
    difference_deg: float = float("nan")
    is_best: bool = False

    @property
    def explained_share(self) -> float:
        """Share of the verified matches that the map explains."""
        return self.explained / self.verified if self.verified else 0.0

    @property
    def score(self) -> int:
        """Verified matches that speak for the map, less those that speak against it."""
        return 2 * self.explained - self.verified


def pose_differences(poses: Mapping[str, Pose], others: Mapping[str, Pose]) -> tuple[float, dict[str, float]]:
    """Return by how many degrees two maps differ, in the median over pairs of images, and the same for each image.

    Of each pair the larger counts of the differences in relative rotation and direction; neither depends on the world
    or its scale. Without two images in both, the result is nan and empty.
    """
    names = tuple(sorted(set(poses) & set(others)))
    pairs = list(_pairs(names))
    if not pairs:
        return float("nan"), {}
    centres = {name: poses[name].center for name in names}
    baselines = np.array([np.linalg.norm(centres[a] - centres[b]) for a, b in pairs])
    near = baselines < SHORT_BASELINE * np.median(baselines)
    errors = np.array([_relative_error((poses[a], poses[b]), (others[a], others[b])) for a, b in pairs])
    larger = np.where(near, errors[:, 0], errors.max(axis=1))
    of_image: dict[str, list[float]] = {}
    for pair, value in zip(pairs, larger.tolist(), strict=True):
        for name in pair:
            of_image.setdefault(name, []).append(value)
    return _median(larger), {name: float(np.median(values)) for name, values in sorted(of_image.items())}


def doubt_map(statistics: MapStatistics, run: MapRun) -> list[str]:
    """Return what speaks against a map, in words: few images, few points, short tracks, contradicted matches.

    ``statistics.images`` counts the images that verified pairs connect with the map; those of other scenes do not.
    """
    reasons = []
    if 2 * statistics.registered < statistics.images:
        reasons.append(
            f"only {statistics.registered} of {statistics.images} images that verified pairs connect are in it"
        )
    if statistics.observations_per_image < FEW_OBSERVATIONS:
        reasons.append(f"an image sees {statistics.observations_per_image:.0f} of its points in the mean")
    if statistics.registered > 2 and statistics.track_length < SHORT_TRACKS:
        reasons.append(
            f"the mean track length is {statistics.track_length:.2f}: hardly a point is confirmed by a third image"
        )
    if run.verified and run.explained_share < MOSTLY_EXPLAINED:
        reasons.append(
            f"it explains {run.explained_share:.0%} of the {run.verified} verified matches between its images, a right "
            f"map {MOSTLY_EXPLAINED:.0%} or more"
        )
    return reasons


def doubt_agreement(runs: Sequence[MapRun]) -> list[str]:
    """Return whether no other run confirms the map that was kept.

    The nearest map of the other mapper decides. Only where that made none do runs of one mapper confirm each other,
    and not for few images.
    """
    if len(runs) < 2:
        return []
    kept = next(run for run in runs if run.is_best)
    compared = [run for run in runs if run is not kept and run.difference_deg >= 0]
    if not compared:
        return [f"only one of {len(runs)} runs made a map of these images"]
    deciding = [run for run in compared if run.mapper != kept.mapper] or compared
    mapper, nearest = deciding[0].mapper, min(run.difference_deg for run in deciding)
    if nearest > AGREEING_DEG:
        other = "other " if mapper == kept.mapper else ""
        if len(deciding) == 1:
            return [f"the {mapper} mapper's {other}map of these images differs from it by {nearest:.1f} degrees"]
        return [f"the {mapper} mapper's {other}maps of these images differ from it by {nearest:.1f} degrees or more"]
    if mapper == kept.mapper and kept.registered <= FEW_IMAGES:
        return [
            f"only the {mapper} mapper made a map of these images: for {kept.registered} images, two runs of one "
            f"mapper that agree prove little"
        ]
    return []


def doubt_images(
    reconstruction: Any, explained: Iterable[ExplainedPair], differences: Mapping[str, float]
) -> dict[str, str]:
    """Return the images of a map whose poses are in doubt, and why.

    ``explained``: verified matches that the map explains, by pair; ``differences`` of each image from a run that agrees
    with the map in general, in degrees.
    """
    inliers: dict[str, int] = {}
    agreeing: dict[str, int] = {}
    for pair in explained:
        for name in pair.names:
            inliers[name] = inliers.get(name, 0) + pair.inliers
            agreeing[name] = agreeing.get(name, 0) + pair.explained
    doubts = {}
    for number in reconstruction.reg_image_ids():
        image = reconstruction.image(number)
        name, points = str(image.name), int(image.num_points3D)
        if differences.get(name, 0.0) > IMAGE_DEG:
            doubts[name] = f"its pose differs by {differences[name]:.0f} degrees between two runs"
        elif 2 * agreeing.get(name, 0) < inliers.get(name, 0):
            doubts[name] = f"the map explains {agreeing.get(name, 0)} of its {inliers[name]} verified matches"
        elif points < WEAK_IMAGE:
            doubts[name] = f"it sees {points} points of the map"
    return dict(sorted(doubts.items()))


# --- recall of a set of queries, from pose errors alone


PoseError = tuple[float, float]
"""Metres and degrees."""

THRESHOLDS: tuple[PoseError, ...] = ((0.25, 2), (0.5, 5), (5, 10))
"""High, medium and coarse precision of the long-term visual localization benchmark."""


def recalls(errors: Iterable[PoseError | None], thresholds: Sequence[PoseError] = THRESHOLDS) -> tuple[float, ...]:
    """Return for each threshold (metres, degrees) the share of queries within both; None is a query without a pose.

    >>> recalls([(0.1, 0.5), (0.1, 3.0), None, (9.0, 0.1)])
    (0.25, 0.5, 0.5)
    """
    table = _table(errors)
    if len(table) == 0:
        return tuple(0.0 for _ in thresholds)
    return tuple(float((table <= np.asarray(limit, float)).all(axis=1).mean()) for limit in thresholds)


def median_errors(errors: Iterable[PoseError | None]) -> PoseError:
    """Return the medians of metres and of degrees over all queries; those without a pose are infinitely far.

    >>> median_errors([(0.1, 2.0), (0.3, 1.0), None])
    (0.3, 2.0)
    """
    table = _table(errors)
    if len(table) == 0:
        return float("inf"), float("inf")
    with np.errstate(invalid="ignore"):
        metres, degrees = np.sort(table, axis=0)[[(len(table) - 1) // 2, len(table) // 2]].mean(axis=0)
    return float(metres), float(degrees)


def _table(errors: Iterable[PoseError | None]) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    rows = [(float("inf"), float("inf")) if error is None else (float(error[0]), float(error[1])) for error in errors]
    table = np.array(rows, np.float64).reshape(-1, 2)
    if np.isnan(table).any() or (table < 0).any():
        raise InputError("errors: expected metres and degrees of 0 or more, or None for a query without a pose")
    return table
