# SPDX-License-Identifier: Apache-2.0
"""COLMAP's mappers, set up from a few parameters: incremental, global, and triangulation with known poses.

Each takes a folder with a verified database and returns reconstructions in memory. Knows no files beyond that folder.
``auto`` stands for runs of both with several seeds, which ``sfumato.geometry.mapping`` compares.
``doubt_cameras`` checks a finished map: a wrong focal length bends a map without leaving large errors in it.
"""

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.errors import InputError, suggest
from sfumato.geometry.colmap import load_pycolmap, silence, to_rigid
from sfumato.geometry.verify import VerifyParams
from sfumato.types.scene import Pose

DATABASE = "database.db"
SMALLEST_MODEL = 3
"""Images that a second map, beside the largest, has at least."""
AUTO = "auto"
"""Both mappers in turn, with one seed after the other, until the maps agree or the budget is spent."""

Ticks = Callable[[Iterable[Any], int], Iterable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapParams:
    """Settings of a map.

    ``mapper``: "incremental" or "global" for one run of it with ``seed``; "auto" for up to ``tries`` runs of both, with
    this seed and the next ones, of which the best is kept. ``seed`` and one thread give the same map again, to the last
    bit; more threads need not. ``guessed``: images whose camera is a guess. ``refine_intrinsics``: None adjusts guessed
    cameras and leaves the others alone, True adjusts all, False none; the principal point always stays.
    ``verification``: None takes the seed from here, and the cores there are, which change nothing.
    """

    mapper: str = AUTO
    tries: int = 4
    seed: int = 0
    threads: int = 1
    refine_intrinsics: bool | None = None
    guessed: Collection[str] = frozenset()
    shared_camera: bool = False
    overwrite: bool = False
    verification: VerifyParams | None = None

    def __post_init__(self) -> None:
        known = (AUTO, *MAPPERS)
        if self.mapper not in known:
            hint = suggest(str(self.mapper), known)
            raise InputError(f"mapper must be one of {', '.join(known)}, got {self.mapper!r:.40}{hint}")
        if self.tries < 1:
            raise InputError(f"tries must be 1 or more, got {self.tries!r:.40}")
        if self.threads < 1:
            raise InputError(f"threads must be 1 or more, got {self.threads!r:.40}")
        object.__setattr__(self, "guessed", frozenset(self.guessed))
        VerifyParams(seed=self.seed)

    @property
    def verify_params(self) -> VerifyParams:
        """The parameters of verification that apply."""
        return self.verification or VerifyParams(seed=self.seed)

    @property
    def runs(self) -> tuple[tuple[str, int], ...]:
        """Mapper and seed of each run there may be, the first one first."""
        if self.mapper != AUTO:
            return ((self.mapper, self.seed),)
        kinds = tuple(MAPPERS)
        return tuple((kinds[i % len(kinds)], (self.seed + i // len(kinds)) % 2**31) for i in range(self.tries))

    def is_fixed(self, name: str) -> bool:
        """Tell whether the camera of an image stays as it was given."""
        return name not in self.guessed if self.refine_intrinsics is None else not self.refine_intrinsics


def map_incrementally(work: Path, params: MapParams, ticks: Ticks) -> list[Any]:
    """Register image after image, beginning anew where no other can be added; return all reconstructions."""
    pycolmap = load_pycolmap()
    options = _pipeline_options(work, params)
    options.multiple_models = True
    options.min_model_size = SMALLEST_MODEL
    with _progress_ticks(ticks, len(_image_names(work))) as tick:

        def start() -> None:
            tick()
            tick()

        models = pycolmap.incremental_mapping(
            str(work / DATABASE),
            str(work),
            str(_folder(work, "incremental")),
            options,
            initial_image_pair_callback=start,
            next_image_callback=tick,
        )
    return list(models.values())


def map_globally(work: Path, params: MapParams, ticks: Ticks) -> list[Any]:
    """Find all poses at once from the pairs' geometries; return all reconstructions.

    Guessed focal lengths are calibrated from the pairs first. Cameras are refined all or none: all, unless every one
    of them stays as it was given.
    """
    pycolmap = load_pycolmap()
    fixed = all(params.is_fixed(name) for name in _image_names(work))
    if any(name in params.guessed for name in _image_names(work)):
        calibration = pycolmap.ViewGraphCalibrationOptions()
        calibration.random_seed = params.seed
        pycolmap.calibrate_view_graph(str(work / DATABASE), calibration)
    options = pycolmap.GlobalPipelineOptions()
    options.num_threads, options.random_seed = params.threads, params.seed
    options.min_num_matches = params.verify_params.min_inliers
    options.mapper.bundle_adjustment.refine_focal_length = not fixed
    options.mapper.bundle_adjustment.refine_extra_params = not fixed
    options.mapper.bundle_adjustment.refine_principal_point = False
    with _progress_ticks(ticks, 1) as tick:
        models = pycolmap.global_mapping(str(work / DATABASE), str(work), str(_folder(work, "global")), options)
        tick()
    return list(models.values())


MAPPERS: dict[str, Callable[[Path, MapParams, Ticks], list[Any]]] = {
    "incremental": map_incrementally,
    "global": map_globally,
}


def run_mapper(work: Path, params: MapParams, mapper: str, seed: int, ticks: Ticks) -> list[Any]:
    """Run one mapper on a copy of the verified database in a folder; return all reconstructions, the largest first.

    Mappers write to their database: the global one estimates the geometries of pairs again. So verification is done
    once for all runs, and what it found can be compared with each map.
    """
    place = _folder(work, f"{mapper}-{seed}")
    try:
        shutil.copyfile(work / DATABASE, place / DATABASE)
        settings = replace(params, mapper=mapper, seed=seed, verification=params.verify_params)
        models = MAPPERS[mapper](place, settings, ticks)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return sorted(models, key=lambda model: (model.num_reg_images(), model.num_points3D()), reverse=True)


def triangulate(work: Path, params: MapParams, poses: Mapping[str, Pose]) -> Any:
    """Place the images of the database at their poses, triangulate what was matched, and return the reconstruction."""
    pycolmap = load_pycolmap()
    placed = pycolmap.Reconstruction()
    with pycolmap.Database.open(str(work / DATABASE)) as database:
        for camera in database.read_all_cameras():
            placed.add_camera_with_trivial_rig(camera)
        for image in database.read_all_images():
            blank = pycolmap.Image(name=image.name, camera_id=image.camera_id, image_id=image.image_id)
            placed.add_image_with_trivial_frame(blank, to_rigid(poses[image.name]))
    options = _pipeline_options(work, params)
    options.triangulation.ignore_two_view_tracks = len(poses) > 2  # of two images there are no others
    return pycolmap.triangulate_points(
        placed,
        str(work / DATABASE),
        str(work),
        str(_folder(work, "triangulated")),
        clear_points=True,
        options=options,
        refine_intrinsics=False,
    )


def _pipeline_options(work: Path, params: MapParams) -> Any:
    """Return COLMAP's options of the incremental mapper; colours are never read, there are no pictures here."""
    pycolmap = load_pycolmap()
    options = pycolmap.IncrementalPipelineOptions()
    options.num_threads, options.random_seed = params.threads, params.seed
    options.min_num_matches = params.verify_params.min_inliers
    options.extract_colors = False
    with pycolmap.Database.open(str(work / DATABASE)) as database:
        images = database.read_all_images()
    loose = {image.camera_id for image in images if not params.is_fixed(image.name)}
    options.constant_cameras = {image.camera_id for image in images} - loose
    options.ba_refine_focal_length = options.ba_refine_extra_params = bool(loose)
    options.ba_refine_principal_point = False
    return options


def _image_names(work: Path) -> list[str]:
    """Return the names of the images in the database."""
    with load_pycolmap().Database.open(str(work / DATABASE)) as database:
        return [str(image.name) for image in database.read_all_images()]


@contextmanager
def _progress_ticks(ticks: Ticks, total: int) -> Iterator[Callable[[], None]]:
    """Turn a wrapper of iterables into a function that is called whenever one more is done."""
    bar = iter(ticks(range(total), total))
    next(bar, None)

    def tick() -> None:
        next(bar, None)

    try:
        yield tick
    finally:
        close = getattr(bar, "close", None)
        if close is not None:
            close()


def _folder(work: Path, name: str) -> Path:
    folder = work / name
    folder.mkdir(exist_ok=True)
    return folder


# --- whether the given focal lengths fit a map: a copy of it is adjusted once more with them left free


OTHER_FOCAL = 1.1
"""A focal length that becomes this many times larger or smaller has moved."""
LESS_ERROR = 0.7
"""This share of the mean reprojection error is clearly less."""
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
    errors = [float(model.compute_mean_reprojection_error()) for model in (reconstruction, free)]
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
    with silence():  # pycolmap.bundle_adjustment writes to the terminal all the same
        pycolmap.create_default_bundle_adjuster(options, config, free).solve()
    for model in (reconstruction, free):
        model.update_point_3d_errors()
    return free


def _focal(reconstruction: Any, camera: int) -> float:
    intrinsics = reconstruction.camera(camera)
    values = [float(intrinsics.params[row]) for row in intrinsics.focal_length_idxs()]
    return float(np.mean(values)) if values else 0.0
