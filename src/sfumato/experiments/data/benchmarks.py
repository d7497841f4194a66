# SPDX-License-Identifier: Apache-2.0
"""Public benchmarks of localization and mapping: Aachen Day-Night, and the local-feature evaluation benchmark.

Aachen Day-Night, versions 1 and 1.1, is a mapped town with photos by day and by night to be localized. The layout is
that of visuallocalization.net and of hloc's pipelines: ``images_upright/`` or ``images/images_upright/`` with ``db/``
and ``query/``, ``queries/*_time_queries_with_intrinsics.txt``, and ``3D-models/`` with an NVM model (version 1) or a
COLMAP model in ``aachen_v_1_1/``. The poses of the queries are not published: results are sent in as a file. Thresholds
as used there: day and night (0.25 m, 2 deg), (0.5 m, 5 deg), (5 m, 10 deg); until the poses of the night photos were
improved in June 2020, night had (0.5, 2), (1, 5), (5, 10) (Sattler et al., CVPR 2018;
github.com/tsattler/visuallocalizationbenchmark, issues 3 and 34). The paper's Table 2 is from before.

The local-feature evaluation benchmark (Schoenberger et al., CVPR 2017) has internet photos of landmarks. A scene is a
folder with ``images/`` and a COLMAP ``database.db``, which lists the images of the benchmark and their cameras
(github.com/ahojnnes/local-feature-evaluation, INSTRUCTIONS.md). Its keypoints/, descriptors/, matches/ and sparse/ are
not read. There is no ground truth: results are statistics of the reconstruction.
"""

import os
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal
from urllib.parse import quote

import numpy as np

from sfumato.errors import FileError, InputError
from sfumato.experiments.data.colmap_models import read_colmap_model, read_nvm_poses
from sfumato.experiments.data.folders import PosedImages, parse_camera
from sfumato.files.atomic import write_text
from sfumato.images.folders import check_image, need_folder, read_lines, refuse
from sfumato.types.scene import CAMERA_MODELS, Camera, Pose

Version = Literal["1", "1.1"]
Threshold = tuple[float, float]

STRICT: tuple[Threshold, ...] = ((0.25, 2.0), (0.5, 5.0), (5.0, 10.0))
NIGHT_BEFORE_JUNE_2020: tuple[Threshold, ...] = ((0.5, 2.0), (1.0, 5.0), (5.0, 10.0))
AACHEN_PUBLISHED = {
    "1": {"database": 4328, "day": 824, "night": 98},
    "1.1": {"database": 6697, "day": 824, "night": 191},
}
"""How many images each version has."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Queries:
    """Photos to be localized: files and cameras under the names of their list, which begin with ``query/``."""

    paths: Mapping[str, Path]
    cameras: Mapping[str, Camera]

    @property
    def names(self) -> tuple[str, ...]:
        """The names, sorted."""
        return tuple(self.paths)

    def __repr__(self) -> str:
        return f"Queries({len(self.paths)})"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Aachen:
    """The posed images of the map and the queries of ``day`` and ``night``.

    ``remarks`` say where this is not the set that was published.
    """

    version: Version
    database: PosedImages
    day: Queries
    night: Queries
    remarks: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Aachen({self.version!r}, {self.database!r}, day {self.day!r}, night {self.night!r})"


def thresholds(condition: Literal["day", "night"], *, before_june_2020: bool = False) -> tuple[Threshold, ...]:
    """Return the (metres, degrees) within which queries count as localized.

    >>> thresholds("night", before_june_2020=True)[0]
    (0.5, 2.0)
    """
    if condition not in ("day", "night"):
        raise InputError(f"condition must be day or night, got {condition!r:.40}")
    return NIGHT_BEFORE_JUNE_2020 if condition == "night" and before_june_2020 else STRICT


def read_aachen_folder(path: str | os.PathLike[str], version: Version | None = None) -> Aachen:
    """Read the data set; its 3D model decides the version, unless it is given.

    Raises FileError naming everything that is wrong: lists or models that are missing, lines that are no cameras,
    images that are missing, damaged or of another size.
    """
    folder = Path(path)
    need_folder(folder, "Aachen Day-Night, with 3D-models, queries and images_upright in it")
    models = folder / "3D-models"
    version = version or ("1.1" if (models / "aachen_v_1_1").is_dir() else "1")
    if version not in AACHEN_PUBLISHED:
        raise InputError(f"version must be 1 or 1.1, got {version!r:.40}")
    roots = [root for root in (folder / "images" / "images_upright", folder / "images_upright") if root.is_dir()]
    problems = [] if roots else ["the folder images_upright is missing, also in images/"]
    database = PosedImages({}, {}, {})
    try:
        posed = read_colmap_model(models / "aachen_v_1_1") if version == "1.1" else _read_nvm(models)
        paths, wrong = _find(roots, posed.cameras)
        problems += wrong
        database = PosedImages(paths, posed.cameras, posed.poses)
    except FileError as problem:
        problems.append(str(problem))
    queries = {}
    for condition in ("day", "night"):
        try:
            cameras = _read_cameras(_query_list(folder / "queries", condition, version))
        except FileError as problem:
            cameras = {}
            problems.append(str(problem))
        paths, wrong = _find(roots, cameras)
        problems += wrong
        queries[condition] = Queries(MappingProxyType(paths), MappingProxyType(cameras))
    refuse(folder, problems)
    counts = {"database": len(database), **{name: len(found.paths) for name, found in queries.items()}}
    remarks = tuple(
        f"{counts[name]} {name} images, version {version} has {count}"
        for name, count in AACHEN_PUBLISHED[version].items()
        if counts[name] != count
    )
    return Aachen(version, database, queries["day"], queries["night"], remarks)


def write_submission(path: str | os.PathLike[str], poses: Mapping[str, Pose], queries: Aachen) -> tuple[str, ...]:
    """Write the file that visuallocalization.net takes, ``name qw qx qy qz tx ty tz``; return who is not in it.

    Names lose their folders, as asked for there; cam_from_world. A query without a pose is left out, it counts as not
    localized. Written whole or not at all.

    Raises InputError for poses of no query, and for queries that would share a name.
    """
    from scipy.spatial.transform import Rotation

    known = (*queries.day.names, *queries.night.names)
    strangers = sorted(set(poses) - set(known))
    if strangers:
        raise InputError(f"{len(strangers)} poses are of no query, the first is {strangers[0]!r:.80}")
    twice = [name for name, count in Counter(name.rpartition("/")[2] for name in known).items() if count > 1]
    if twice:
        raise InputError(f"{len(twice)} names are those of two queries in different folders, the first is {twice[0]}")
    lines = []
    for name in sorted(poses):
        x, y, z, w = Rotation.from_matrix(poses[name].rotation).as_quat(canonical=True)
        values = " ".join(repr(float(value)) for value in (w, x, y, z, *poses[name].translation))
        lines.append(f"{name.rpartition('/')[2]} {values}\n")
    write_text(path, "".join(lines))
    return tuple(name for name in known if name not in poses)


def _query_list(folder: Path, condition: str, version: Version) -> Path:
    """Return the list of a condition; some keep that of version 1.1 beside the old one, under a longer name."""
    longer = folder / f"{condition}_time_queries_with_intrinsics_v1_1.txt"
    plain = folder / f"{condition}_time_queries_with_intrinsics.txt"
    return longer if version == "1.1" and longer.is_file() else plain


def _read_cameras(path: Path) -> dict[str, Camera]:
    """Read ``name MODEL width height parameters...``, sorted; FileError naming every wrong line."""
    cameras: dict[str, Camera] = {}
    problems = []
    for number, line in enumerate(read_lines(path), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        camera = parse_camera(words[1:])
        if isinstance(camera, str):
            problems.append(f"line {number}: {camera}")
        elif words[0] in cameras:
            problems.append(f"line {number}: {words[0]} is there twice")
        else:
            cameras[words[0]] = camera
    if not cameras and not problems:
        problems.append("it names no image")
    refuse(path, problems)
    return dict(sorted(cameras.items()))


def _find(roots: list[Path], cameras: Mapping[str, Camera]) -> tuple[dict[str, Path], list[str]]:
    """Return where each image is, in the first folder that has it, and all that is wrong with them."""
    paths, problems = {}, []
    for name, camera in cameras.items():
        places = [root / name for root in roots]
        paths[name] = next((place for place in places if place.is_file()), places[0] if places else Path(name))
        if roots:
            problems += check_image(paths[name], name, (camera.width, camera.height))
    return paths, problems


def _read_nvm(models: Path) -> PosedImages:
    """Read cameras from database_intrinsics.txt and poses from the NVM model."""
    cameras = _read_cameras(models / "database_intrinsics.txt")
    path = models / "aachen_cvpr2018_db.nvm"
    poses = read_nvm_poses(path)
    problems = [f"{name} has a pose and no camera" for name in sorted(set(poses) - set(cameras))]
    problems += [f"{name} has a camera and no pose" for name in sorted(set(cameras) - set(poses))]
    refuse(path, problems)
    return PosedImages({}, cameras, poses)


# --- the local-feature evaluation benchmark


LANDMARK_PUBLISHED = {
    "Fountain": 11,
    "Herzjesu": 8,
    "South-Building": 128,
    "Madrid_Metropolis": 1344,
    "Gendarmenmarkt": 1463,
    "Tower_of_London": 1576,
    "Alamo": 2915,
    "Roman_Forum": 2364,
    "ArtsQuad_dataset": 6514,
}
"""Scenes by the name of their folder, and the number of images in the benchmark's table."""

MODEL_NAMES = tuple(CAMERA_MODELS)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class LandmarkScene:
    """The images of one scene, and their cameras in COLMAP's convention.

    ``trusted`` names the images whose focal length is known, from EXIF as a rule; that of the others is a guess.
    ``remarks`` say where this is not the set that was published.
    """

    name: str
    paths: Mapping[str, Path]
    cameras: Mapping[str, Camera]
    trusted: frozenset[str] = frozenset()
    remarks: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the images, sorted."""
        return tuple(self.paths)

    def __repr__(self) -> str:
        return f"LandmarkScene({self.name!r}, {len(self.paths)} images)"


def read_landmark_folder(path: str | os.PathLike[str]) -> list[LandmarkScene]:
    """Read one scene, or a folder of scenes sorted by name.

    Raises FileError naming everything that is wrong: databases that are missing or damaged, images that are missing,
    damaged or of another size than their camera's, cameras that are none.
    """
    folder = Path(path)
    need_folder(folder, "scenes, or one scene with images/ and database.db in it")
    places = [folder] if _looks_like_scene(folder) else sorted(filter(_looks_like_scene, folder.iterdir()))
    if not places:
        raise FileError(f"{folder} holds no scene: expected folders with images/ and database.db in them")
    scenes, problems = [], []
    for place in places:
        scene, wrong = _read_scene(place)
        problems += [f"{place.name}: {text}" for text in wrong]
        scenes.append(scene)
    refuse(folder, problems)
    return scenes


def _looks_like_scene(folder: Path) -> bool:
    return (folder / "images").is_dir() or (folder / "database.db").is_file()


def _read_scene(folder: Path) -> tuple[LandmarkScene, list[str]]:
    paths, cameras, trusted = {}, {}, set()
    try:
        rows, problems = _read_database(folder / "database.db")
    except FileError as problem:
        rows, problems = {}, [str(problem)]
    for name, (camera, known) in sorted(rows.items()):
        paths[name], cameras[name] = folder / "images" / name, camera
        problems += check_image(paths[name], name, (camera.width, camera.height))
        if known:
            trusted.add(name)
    expected = LANDMARK_PUBLISHED.get(folder.name, len(paths))
    remarks = () if expected == len(paths) else (f"{len(paths)} images, the published set has {expected}",)
    views = MappingProxyType(paths), MappingProxyType(cameras)
    return LandmarkScene(folder.name, *views, frozenset(trusted), remarks), problems


def _read_database(path: Path) -> tuple[dict[str, tuple[Camera, bool]], list[str]]:
    """Return the camera of every image and whether its focal length is known, and all that is wrong with them."""
    if not path.is_file():
        raise FileError(f"{path.name} is missing")
    question = (
        "SELECT images.name, cameras.model, cameras.width, cameras.height, cameras.params, "
        "cameras.prior_focal_length FROM images LEFT JOIN cameras ON images.camera_id = cameras.camera_id"
    )
    try:
        address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA cell_size_check = ON")
            for table in ("images", "cameras"):  # a view can run for ever
                kinds = database.execute("SELECT type FROM sqlite_master WHERE name = ?", (table,)).fetchall()
                if kinds != [("table",)]:
                    raise FileError(f"{path.name} is no COLMAP database: it has no table {table}")
            rows = database.execute(question).fetchall()
    except (sqlite3.Error, OverflowError) as cause:
        raise FileError(f"{path.name} is no COLMAP database: {cause}") from cause
    found, problems = {}, []
    for name, model, width, height, params, known in rows:
        try:
            found[str(name)] = _camera(model, width, height, params), bool(known)
        except InputError as problem:
            problems.append(f"camera of {name!r:.80}: {problem}")
    if not rows:
        problems.append(f"{path.name} names no image")
    return found, problems


def _camera(model: object, width: object, height: object, params: object) -> Camera:
    """Return a camera from a row of the database; InputError if it is none."""
    if not isinstance(model, int) or not 0 <= model < len(MODEL_NAMES):
        raise InputError("missing" if model is None else f"unknown model {model!r:.20}")
    name = MODEL_NAMES[model]
    if not isinstance(params, bytes) or len(params) != 8 * len(CAMERA_MODELS[name]):
        raise InputError(f"{name} needs {len(CAMERA_MODELS[name])} parameters")
    if not isinstance(width, int) or not isinstance(height, int):
        raise InputError("width and height must be whole numbers")
    return Camera(name, width, height, tuple(np.frombuffer(params, "<f8").tolist()))
