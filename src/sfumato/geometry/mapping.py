# SPDX-License-Identifier: Apache-2.0
"""From keypoints, cameras and matches to a COLMAP model on disk: incremental, global, or with poses that are known.

A reconstruction that fails is a result with a reason, not an error. The model is made in a folder beside the place
where it belongs and takes that place at once. Knows no descriptors; what reads them is given from outside.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.errors import FileError, SfumatoError
from sfumato.geometry.database import Keypoints, real_names, write_database
from sfumato.geometry.mappers import DATABASE, MAPPERS, MapParams, triangulate
from sfumato.geometry.model_folder import new_model_folder, write_model
from sfumato.geometry.pycolmap import load_pycolmap, silenced
from sfumato.geometry.statistics import MapStatistics, statistics_of
from sfumato.geometry.verify import VerifyOutcome, verify
from sfumato.matching.pairs import Pair
from sfumato.types.scene import Camera, Matches, Pose

# ----------------------------------------------------------------
# Whether the focal lengths that were given fit a map: a copy of it is adjusted once more with them left free
# A wrong focal length bends a map without leaving large errors in it. Knows reconstructions as pycolmap has them; the
# one
# that is asked about is not changed.


OTHER_FOCAL = 1.1
"""A focal length that becomes so many times larger or smaller has moved."""
LESS_ERROR = 0.7
"""So much of the mean reprojection error is clearly less."""
MOST_STEPS = 50


def doubt_cameras(reconstruction: Any, is_fixed: Callable[[str], bool], *, threads: int = 1) -> str:
    """Return what speaks against the focal lengths of the images whose cameras were kept as given, or an empty text."""
    fixed = {
        number: reconstruction.image(number).camera_id
        for number in reconstruction.reg_image_ids()
        if is_fixed(str(reconstruction.image(number).name))
    }
    before = {camera: _focal(reconstruction, camera) for camera in set(fixed.values())}
    if not any(before.values()) or not reconstruction.num_points3D():
        return ""
    try:
        free = _adjusted(reconstruction, threads)
    except (RuntimeError, ValueError) as cause:  # the map is there all the same
        return f"the given focal lengths could not be checked: {str(cause).strip():.200}"
    errors = [float(one.compute_mean_reprojection_error()) for one in (reconstruction, free)]
    factors = {camera: _focal(free, camera) / given for camera, given in before.items() if given}
    moved = {camera for camera, factor in factors.items() if not 1 / OTHER_FOCAL <= factor <= OTHER_FOCAL}
    if not moved or not errors[1] <= LESS_ERROR * errors[0]:
        return ""
    count = sum(camera in moved for camera in fixed.values())
    typical = float(np.median([factors[camera] for camera in moved]))
    return (
        f"the given focal lengths of {count} of {len(fixed)} images do not fit: left free they become about "
        f"{typical:.2f} times as long and the reprojection error falls from {errors[0]:.2f} to {errors[1]:.2f} px. The "
        f"map may be bent: check the cameras, or let them be adjusted (--refine-intrinsics)"
    )


def _adjusted(reconstruction: Any, threads: int) -> Any:
    """Return a copy with all points, poses and focal lengths adjusted."""
    pycolmap = load_pycolmap()
    free = pycolmap.Reconstruction(reconstruction)
    options = pycolmap.BundleAdjustmentOptions()
    options.refine_focal_length, options.refine_extra_params, options.refine_principal_point = True, False, False
    options.print_summary = False
    options.ceres.solver_options.num_threads = threads
    options.ceres.solver_options.max_num_iterations = MOST_STEPS
    config = pycolmap.BundleAdjustmentConfig()
    for number in free.reg_image_ids():
        config.add_image(number)
    config.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
    with silenced():  # pycolmap.bundle_adjustment writes to the terminal all the same
        pycolmap.create_default_bundle_adjuster(options, config, free).solve()
    for one in (reconstruction, free):
        one.update_point_3d_errors()
    return free


def _focal(reconstruction: Any, camera: int) -> float:
    found = reconstruction.camera(camera)
    values = [float(found.params[row]) for row in found.focal_length_idxs()]
    return float(np.mean(values)) if values else 0.0


__all__ = ["MapOutcome", "MapParams", "Progress", "build_map", "triangulate_map"]

Progress = Callable[[str, Iterable[Any], int], Iterable[Any]]
"""Called with the name of a stage, what it goes through, and how many there are; returns an iterable of the same."""

HINT = (
    "the images see too little in common from different places, or their cameras are wrong: take photos with more "
    "overlap, step aside between them, or check the cameras"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOutcome:
    """What became of a reconstruction. ``folder`` is None where there is no map, and ``reason`` says why.

    ``unregistered`` are the images that are not in the map; ``other_models`` the sizes of the maps of other parts of
    the scene, which could not be joined with the largest one and are not kept. ``doubt`` says what speaks against the
    cameras that were given, where other focal lengths fit clearly better.
    """

    folder: Path | None
    statistics: MapStatistics
    verified: VerifyOutcome = field(default_factory=VerifyOutcome)
    seconds: float = 0.0
    reason: str = ""
    unregistered: tuple[str, ...] = ()
    other_models: tuple[int, ...] = ()
    doubt: str = ""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Scene:
    """What a map is made of; ``poses`` are None where they are not known."""

    keypoints: Keypoints
    cameras: Mapping[str, Camera]
    matches: Mapping[Pair, Matches]
    poses: Mapping[str, Pose] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How a map is shown while it is made, and what is added to its folder before it takes its place."""

    progress: Progress
    complete: Callable[[Path], object] | None


class NoMap(Exception):
    """Why there is no map; never leaves this module."""


def build_map(
    keypoints: Keypoints,
    cameras: Mapping[str, Camera],
    matches: Mapping[Pair, Matches],
    output: str | os.PathLike[str],
    params: MapParams | None = None,
    *,
    progress: Progress = lambda stage, items, total: items,
    complete: Callable[[Path], object] | None = None,
) -> MapOutcome:
    """Build a map of images whose poses are not known, and write it as a COLMAP model to the folder ``output``.

    ``keypoints`` and ``cameras`` for every image, ``matches`` of pairs of them. ``complete`` is called with the folder
    of the finished model before it takes its place: what it writes there belongs to the map.

    Raises InputError for cameras or matches that do not fit the images, FileError if the output is there already or
    cannot be written; never because the images cannot be mapped.
    """
    course = Course(progress=progress, complete=complete)
    return _make(Scene(keypoints, cameras, matches), Path(output), params or MapParams(), course)


def triangulate_map(
    keypoints: Keypoints,
    cameras: Mapping[str, Camera],
    poses: Mapping[str, Pose],
    matches: Mapping[Pair, Matches],
    output: str | os.PathLike[str],
    params: MapParams | None = None,
    *,
    progress: Progress = lambda stage, items, total: items,
    complete: Callable[[Path], object] | None = None,
) -> MapOutcome:
    """Build a map of images whose poses are known: points are triangulated, the cameras stay where they are.

    Images without a pose or keypoints are left out, and so are their matches; matches of images that have not even a
    camera are an InputError. Otherwise as ``build_map``.
    """
    real = real_names(matches, {**dict.fromkeys(keypoints), **dict.fromkeys(cameras), **dict.fromkeys(poses)})
    posed = {name: keypoints[name] for name in keypoints if name in poses}
    known = {pair: matches[pair] for pair in matches if real[pair[0]] in posed and real[pair[1]] in posed}
    course = Course(progress=progress, complete=complete)
    return _make(Scene(posed, cameras, known, poses), Path(output), params or MapParams(), course)


def _make(scene: Scene, output: Path, params: MapParams, course: Course) -> MapOutcome:
    started = time.perf_counter()
    names, verified, found = sorted(scene.keypoints), VerifyOutcome(), []
    reason = doubt = ""
    try:
        with new_model_folder(output, overwrite=params.overwrite) as (work, model):
            _need_features(scene)
            trusted = [name for name in names if name not in params.guessed]
            write_database(
                work / DATABASE, scene.keypoints, scene.cameras, scene.matches,
                trusted=trusted, shared=params.shared_camera,
            )  # fmt: skip
            with _explained(output):
                verified = verify(
                    work / DATABASE, params.verify_params, poses=scene.poses,
                    progress=lambda pairs: course.progress("verifying", pairs, len(scene.matches)),
                )  # fmt: skip
                _need_verified(verified)
                found = _reconstruct(scene, work, params, course)
                if not found or not found[0].num_points3D():
                    raise NoMap(f"none of the {verified.verified} verified pairs of images could begin a map: {HINT}")
                doubt = "" if scene.poses else doubt_cameras(found[0], params.is_fixed, threads=params.threads)
            write_model(found[0], model)
            if course.complete is not None:
                course.complete(model)
    except NoMap as problem:
        reason, found = str(problem), []
    registered = {one.image(number).name for one in found[:1] for number in one.reg_image_ids()}
    return MapOutcome(
        folder=output if found else None,
        statistics=statistics_of(found[0] if found else None, len(names)),
        verified=verified,
        seconds=time.perf_counter() - started,
        reason=reason,
        unregistered=tuple(name for name in names if name not in registered),
        doubt=doubt,
        other_models=tuple(int(other.num_reg_images()) for other in found[1:]),
    )


def _reconstruct(scene: Scene, work: Path, params: MapParams, course: Course) -> list[Any]:
    """Return all reconstructions, the largest first."""
    if scene.poses is not None:
        return [triangulate(work, params, scene.poses)]
    found = MAPPERS[params.mapper](work, params, lambda items, total: course.progress("mapping", items, total))
    return sorted(found, key=lambda one: (one.num_reg_images(), one.num_points3D()), reverse=True)


def _need_features(scene: Scene) -> None:
    count = len(scene.keypoints)
    if count < 2:
        raise NoMap(f"a map needs two images or more, there {'is one' if count else 'are none'}")
    empty = sum(len(scene.keypoints[name]) == 0 for name in scene.keypoints)
    if empty > count - 2:
        raise NoMap(f"{empty} of {count} images have no features: a map needs two images with features")
    if not any(len(scene.matches[pair]) for pair in scene.matches):
        raise NoMap(f"no two of {count} images have a match ({len(scene.matches)} pairs were compared)")


def _need_verified(verified: VerifyOutcome) -> None:
    if not verified.verified:
        raise NoMap(
            f"none of {len(verified.pairs)} pairs of images, with {verified.matches} matches, agrees with one scene: "
            f"{HINT}"
        )


@contextmanager
def _explained(output: Path) -> Iterator[None]:
    """Take what COLMAP raises for a reason why there is no map, unless it is the disk's fault."""
    try:
        with silenced():
            yield
    except SfumatoError:
        raise
    except (RuntimeError, ValueError, LookupError) as cause:
        told = str(cause).strip().split("\n")[0]
        if "disk" in told.lower() or "sqlite" in told.lower():
            raise FileError(f"cannot write {output}, is the disk full? ({told}) Free space and run again") from cause
        raise NoMap(f"COLMAP stopped: {told:.300}") from cause
