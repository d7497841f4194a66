# SPDX-License-Identifier: Apache-2.0
"""COLMAP's mappers, set up from a few parameters: incremental, global, and triangulation with poses that are known.

Each takes a folder with a verified database and returns reconstructions in memory. Knows no files beyond that folder.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.errors import InputError, suggest
from sfumato.geometry.cameras import to_rigid
from sfumato.geometry.pycolmap import load_pycolmap
from sfumato.geometry.verify import VerifyParams
from sfumato.types.scene import Pose

DATABASE = "database.db"
SMALLEST_MODEL = 3
"""Images that a second map, beside the largest, has at least."""

Ticks = Callable[[Iterable[Any], int], Iterable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapParams:
    """How a map is made.

    ``seed`` and one thread give the same map again, to the last bit; more threads need not. ``guessed``: images whose
    camera is a guess. ``refine_intrinsics``: None adjusts guessed cameras and leaves the others alone, True adjusts
    all, False none; the principal point always stays. ``verification``: None takes the seed from here, and the cores
    there are, which change nothing.
    """

    mapper: str = "incremental"
    seed: int = 0
    threads: int = 1
    refine_intrinsics: bool | None = None
    guessed: Collection[str] = frozenset()
    shared_camera: bool = False
    overwrite: bool = False
    verification: VerifyParams | None = None

    def __post_init__(self) -> None:
        if self.mapper not in MAPPERS:
            hint = suggest(str(self.mapper), MAPPERS)
            raise InputError(f"mapper must be one of {', '.join(MAPPERS)}, got {self.mapper!r:.40}{hint}")
        if self.threads < 1:
            raise InputError(f"threads must be 1 or more, got {self.threads!r:.40}")
        object.__setattr__(self, "guessed", frozenset(self.guessed))
        VerifyParams(seed=self.seed)

    @property
    def verify_params(self) -> VerifyParams:
        """The parameters of verification that apply."""
        return self.verification or VerifyParams(seed=self.seed)

    def is_fixed(self, name: str) -> bool:
        """Tell whether the camera of an image stays as it was given."""
        return name not in self.guessed if self.refine_intrinsics is None else not self.refine_intrinsics


def map_incrementally(work: Path, params: MapParams, ticks: Ticks) -> list[Any]:
    """Register image after image, beginning anew where no other can be added; return all reconstructions."""
    pycolmap = load_pycolmap()
    options = pipeline_options(work, params)
    options.multiple_models = True
    options.min_model_size = SMALLEST_MODEL
    with ticking(ticks, len(image_names(work))) as tick:

        def begun() -> None:
            tick()
            tick()

        found = pycolmap.incremental_mapping(
            str(work / DATABASE),
            str(work),
            str(_folder(work, "incremental")),
            options,
            initial_image_pair_callback=begun,
            next_image_callback=tick,
        )
    return list(found.values())


def map_globally(work: Path, params: MapParams, ticks: Ticks) -> list[Any]:
    """Find all poses at once from the pairs' geometries; return all reconstructions.

    Guessed focal lengths are calibrated from the pairs first. Cameras are refined all or none: all, unless every one
    of them stays as it was given.
    """
    pycolmap = load_pycolmap()
    fixed = all(params.is_fixed(name) for name in image_names(work))
    if any(name in params.guessed for name in image_names(work)):
        pycolmap.calibrate_view_graph(str(work / DATABASE))
    options = pycolmap.GlobalPipelineOptions()
    options.num_threads, options.random_seed = params.threads, params.seed
    options.min_num_matches = params.verify_params.min_inliers
    options.mapper.bundle_adjustment.refine_focal_length = not fixed
    options.mapper.bundle_adjustment.refine_extra_params = not fixed
    options.mapper.bundle_adjustment.refine_principal_point = False
    with ticking(ticks, 1) as tick:
        found = pycolmap.global_mapping(str(work / DATABASE), str(work), str(_folder(work, "global")), options)
        tick()
    return list(found.values())


MAPPERS: dict[str, Callable[[Path, MapParams, Ticks], list[Any]]] = {
    "incremental": map_incrementally,
    "global": map_globally,
}


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
    options = pipeline_options(work, params)
    return pycolmap.triangulate_points(
        placed,
        str(work / DATABASE),
        str(work),
        str(_folder(work, "triangulated")),
        clear_points=True,
        options=options,
        refine_intrinsics=False,
    )


def pipeline_options(work: Path, params: MapParams) -> Any:
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


def image_names(work: Path) -> list[str]:
    """Return the names of the images in the database."""
    with load_pycolmap().Database.open(str(work / DATABASE)) as database:
        return [str(image.name) for image in database.read_all_images()]


@contextmanager
def ticking(ticks: Ticks, total: int) -> Iterator[Callable[[], None]]:
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
