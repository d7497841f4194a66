# SPDX-License-Identifier: Apache-2.0
"""The local-feature evaluation benchmark (Schoenberger et al., CVPR 2017): internet photos of landmarks.

A scene is a folder with ``images/`` and a COLMAP ``database.db``, which says which images belong to the benchmark and
what their cameras are (github.com/ahojnnes/local-feature-evaluation, INSTRUCTIONS.md). Its keypoints/, descriptors/,
matches/ and sparse/ are not read. There is no ground truth: results are statistics of the reconstruction.
"""

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

import numpy as np

from sfumato.errors import FileError, InputError
from sfumato.images.folders.ground import check_image, need_folder, refuse
from sfumato.types.cameramodels import CAMERA_MODELS
from sfumato.types.scene import Camera

PUBLISHED = {
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
"""Scenes by the name of their folder, and how many images the benchmark's table counts in each."""

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
    expected = PUBLISHED.get(folder.name, len(paths))
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
