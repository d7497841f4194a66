# SPDX-License-Identifier: Apache-2.0
"""Aachen Day-Night, versions 1 and 1.1: a mapped town, and photos of it by day and by night to be localized.

The layout is that of visuallocalization.net and of hloc's pipelines: ``images_upright/`` or ``images/images_upright/``
with ``db/`` and ``query/``, ``queries/*_time_queries_with_intrinsics.txt``, and ``3D-models/`` with an NVM model
(version 1) or a COLMAP model in ``aachen_v_1_1/``. The poses of the queries are not published: results are sent in as
a file. Thresholds as used there: day and night (0.25 m, 2 deg), (0.5 m, 5 deg), (5 m, 10 deg); until the poses of the
night photos were improved in June 2020, night had (0.5, 2), (1, 5), (5, 10) (Sattler et al., CVPR 2018;
github.com/tsattler/visuallocalizationbenchmark, issues 3 and 34). The paper's Table 2 is from before.
"""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from sfumato.errors import FileError, InputError
from sfumato.images.folders.colmapmodel import read_colmap_model
from sfumato.images.folders.ground import (
    PosedImages,
    check_image,
    need_folder,
    parse_camera,
    read_lines,
    refuse,
)
from sfumato.images.folders.nvm import read_nvm_poses
from sfumato.types.scene import Camera, Pose
from sfumato.whole import write_text

Version = Literal["1", "1.1"]
Threshold = tuple[float, float]

STRICT: tuple[Threshold, ...] = ((0.25, 2.0), (0.5, 5.0), (5.0, 10.0))
NIGHT_BEFORE_JUNE_2020: tuple[Threshold, ...] = ((0.5, 2.0), (1.0, 5.0), (5.0, 10.0))
PUBLISHED = {
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
    """Read the data set; which version is told by its 3D model, unless it is given.

    Raises FileError naming everything that is wrong: lists or models that are missing, lines that are no cameras,
    images that are missing, damaged or of another size.
    """
    folder = Path(path)
    need_folder(folder, "Aachen Day-Night, with 3D-models, queries and images_upright in it")
    models = folder / "3D-models"
    version = version or ("1.1" if (models / "aachen_v_1_1").is_dir() else "1")
    if version not in PUBLISHED:
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
        for name, count in PUBLISHED[version].items()
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
