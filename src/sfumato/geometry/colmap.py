# SPDX-License-Identifier: Apache-2.0
"""COLMAP: its cameras and poses, to and fro, its databases, and a silent log.

Knows positions and row numbers only: nothing that comes in here holds descriptors of any kind, so none can go out into
a database. Keypoints come with the centre of the first pixel at (0, 0) and are written with it at (0.5, 0.5), as COLMAP
has it. pycolmap's arrays hold quaternions as x y z w.
"""

import logging
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError, suggest
from sfumato.errors import load_pycolmap as load_pycolmap
from sfumato.geometry.cameras import NAME_EARLIER, check_camera, name_fault, name_list, nearest_rotation
from sfumato.matching.match_file import group_name
from sfumato.matching.pairs import SHOWN, Pair
from sfumato.types.arrays import frozen_array
from sfumato.types.scene import Camera, Matches, Pose

NOTHING = 3
"""COLMAP's number for a log that shows only what ends the process."""


@contextmanager
def silence() -> Iterator[None]:
    """Keep COLMAP from logging errors that are reported in another way."""
    log = load_pycolmap().logging
    before = int(log.minloglevel)
    log.minloglevel = max(before, NOTHING)
    try:
        yield
    finally:
        log.minloglevel = before


def to_colmap(camera: Camera, camera_id: int, *, trusted: bool = True) -> Any:
    """Return a camera as a ``pycolmap.Camera``; ``trusted`` says that its focal length is known, not guessed.

    Raises InputError for a model or number of parameters that COLMAP does not know.
    """
    check_camera(camera)
    pycolmap = load_pycolmap()
    try:
        made = pycolmap.Camera(model=camera.model, width=camera.width, height=camera.height, params=list(camera.params))
    except (TypeError, ValueError, RuntimeError) as cause:
        raise InputError(f"this pycolmap ({pycolmap.__version__}) knows no camera model {camera.model}") from cause
    made.camera_id = camera_id
    made.has_prior_focal_length = trusted
    return made


def to_rigid(pose: Pose) -> Any:
    """Return a pose as a ``pycolmap.Rigid3d``."""
    pycolmap = load_pycolmap()
    return pycolmap.Rigid3d(pycolmap.Rotation3d(np.array(pose.rotation)), np.array(pose.translation))


def from_rigid(rigid: Any) -> Pose:
    """Return a ``pycolmap.Rigid3d`` cam_from_world as a Pose."""
    matrix = np.asarray(rigid.matrix(), np.float64)
    return Pose(nearest_rotation(matrix[:, :3]), matrix[:, 3])


PIXEL_CENTRE = 0.5
"""Where COLMAP puts the centre of the first pixel; ours is at 0."""

PLENTY, MARGIN = 4, 2**20
"""Free space the disk should have: this many times the bytes of keypoints and matches, and this many more."""

Keypoints = Mapping[str, NDArray[np.float32]]
Rows = NDArray[np.uint32]

log = logging.getLogger(__name__)


def write_database(
    path: str | os.PathLike[str],
    keypoints: Keypoints,
    cameras: Mapping[str, Camera],
    matches: Mapping[Pair, Matches],
    *,
    trusted: bool | Collection[str] = True,
    shared: bool = False,
) -> dict[str, int]:
    """Write a new COLMAP database and return the number of each image in it, in the order of their names.

    ``keypoints``: for each image (N, 2 or more), of which x and y are used. ``cameras``: one for each image; more are
    ignored. ``matches`` may name a pair in both orders: it is written once, with the matches of both. ``trusted``:
    whether focal lengths are known rather than guessed, for all images or the names of those for which they are.
    ``shared``: all images were taken by one camera, given alike for all of them.

    Raises InputError naming all images without a camera, or with names that lead out of a folder or hold control
    characters, or matches of images and rows that are not there.
    """
    path = Path(path)
    if path.exists():
        raise FileError(f"{path} is there already: choose another path")
    names = sorted(keypoints)
    refuse_faulty(names)
    refuse_missing(names, cameras)
    if shared:
        refuse_different({name: cameras[name] for name in names})
    points = {name: check_points(name, keypoints[name]) for name in names}
    rows_of = gather_rows(matches, {name: len(rows) for name, rows in points.items()})
    known = {name for name in names if trusted is True or (trusted is not False and name in trusted)}
    if shared and len(known) < len(names):
        known = set()
    need_space(path, sum(array.nbytes for array in (*points.values(), *rows_of.values())))
    pycolmap = load_pycolmap()
    try:
        # Not in pycolmap's DatabaseTransaction: it ends the process if the disk is full.
        with silence(), pycolmap.Database.open(str(path)) as database:
            numbers = write_images(database, {name: cameras[name] for name in names}, known, shared=shared)
            for name, number in numbers.items():
                database.write_keypoints(number, points[name])
            for (name0, name1), rows in rows_of.items():
                database.write_matches(numbers[name0], numbers[name1], rows)
    except RuntimeError as cause:  # what SQLite says about a full disk or a folder that cannot be written to
        raise FileError(f"cannot write {path}, is the disk full? ({cause}) Free space or choose another") from cause
    return numbers


def need_space(path: Path, size: int) -> None:
    """Raise FileError if the disk has no room for a database of keypoints and matches, and what is made of it."""
    needed, free = PLENTY * size + MARGIN, shutil.disk_usage(path.parent).free
    if free < needed:
        raise FileError(f"cannot write {path}: about {needed} bytes are needed and {free} are free; free space")


def write_images(
    database: Any, cameras: Mapping[str, Camera], known: Collection[str], *, shared: bool
) -> dict[str, int]:
    """Write cameras, their rigs, images and frames; return the number of each image."""
    pycolmap = load_pycolmap()
    numbers: dict[str, int] = {}
    camera_id = rig_id = 0
    for name, camera in cameras.items():
        if not (shared and numbers):
            camera_id = database.write_camera(to_colmap(camera, 0, trusted=name in known))
            rig = pycolmap.Rig()
            rig.add_ref_sensor(pycolmap.sensor_t(pycolmap.SensorType.CAMERA, camera_id))
            rig_id = database.write_rig(rig)
        numbers[name] = int(database.write_image(pycolmap.Image(name=name, camera_id=camera_id)))
        frame = pycolmap.Frame()
        frame.rig_id = rig_id
        frame.add_data_id(database.read_image(numbers[name]).data_id)
        database.write_frame(frame)
    return numbers


def check_points(name: str, keypoints: Any) -> NDArray[np.float32]:
    """Return the x and y (N, 2) of keypoints in COLMAP's convention."""
    points = np.asarray(keypoints)
    if points.ndim != 2 or points.shape[1] < 2:
        raise InputError(f"keypoints of {name!r:.80}: expected shape (N, 2) or more columns, got {points.shape}")
    places = frozen_array(points[:, :2], f"keypoints of {name!r:.80}", (None, 2))
    return np.ascontiguousarray(places + np.float32(PIXEL_CENTRE), np.float32)


def gather_rows(matches: Mapping[Pair, Matches], counts: Mapping[str, int]) -> dict[Pair, Rows]:
    """Return the matched rows of each pair once, the earlier name first.

    Names in hloc's spelling, with - for /, are recognised. Pairs of an image with itself are left out, which is logged.
    """
    real = real_names(matches, counts)
    rows_of: dict[Pair, Rows] = {}
    selves = 0
    for pair in matches:
        name0, name1 = (real[name] for name in pair)
        if name0 == name1:
            selves += 1
            continue
        rows = check_rows((name0, name1), matches[pair], (counts[name0], counts[name1]))
        if name1 < name0:
            name0, name1, rows = name1, name0, np.ascontiguousarray(rows[:, ::-1])
        before = rows_of.get((name0, name1))
        rows_of[name0, name1] = rows if before is None else np.unique(np.concatenate([before, rows]), axis=0)
    if selves:
        log.warning("%d pairs of an image with itself were left out", selves)
    return rows_of


def real_names(pairs: Iterable[Pair], known: Collection[str]) -> dict[str, str]:
    """Return, for each name in pairs, the image it stands for: itself, or one that hloc spells so, with - for /.

    Raises InputError naming those that stand for none of the ``known`` images, or for several.
    """
    spelling: dict[str, list[str]] = {}
    for name in known:
        spelling.setdefault(group_name(name), []).append(name)
    used = sorted({name for pair in pairs for name in pair})
    matching = {name: [name] if name in known else spelling.get(name, []) for name in used}
    unknown = [name for name in used if not matching[name]]
    if unknown:
        shown = ", ".join(f"{name!r:.80}{suggest(name, known)}" for name in unknown[:SHOWN])
        raise InputError(f"{len(unknown)} of the matched images have no keypoints here: {shown}")
    ambiguous = [name for name in used if len(matching[name]) > 1]
    if ambiguous:
        shown = " and ".join(f"{name!r:.80}" for name in matching[ambiguous[0]])
        raise InputError(f"matches of {ambiguous[0]!r:.80} may be of {shown}, which hloc spells alike: match again")
    return {name: matching[name][0] for name in used}


def check_rows(pair: Pair, matches: Matches, counts: tuple[int, int]) -> Rows:
    """Return matched rows as COLMAP takes them; rows that the images do not have are an InputError."""
    rows = matches.indices
    if len(rows) and (rows.max(axis=0) >= counts).any():
        raise InputError(
            f"matches of {pair[0]!r:.80} and {pair[1]!r:.80} name rows that these images, of {counts[0]} and "
            f"{counts[1]} keypoints, do not have: they were made from other features"
        )
    return rows.astype(np.uint32)


class ShownMatches(Mapping[Pair, Matches]):
    """Matches of the rows whose positions were released, numbered as these are; read on access.

    ``shown``: of each image, which rows (N,) were released.
    """

    def __init__(self, matches: Mapping[Pair, Matches], shown: Mapping[str, NDArray[np.bool_]]) -> None:
        real = real_names(matches, shown)
        self._matches, self._shown = matches, {name: shown[real[name]] for name in real}
        self._number = {name: np.cumsum(rows) - 1 for name, rows in self._shown.items()}

    def __getitem__(self, pair: Pair) -> Matches:
        matches = self._matches[pair]
        first, second = (self._shown[name] for name in pair)
        rows = check_rows(pair, matches, (len(first), len(second)))
        stays = first[rows[:, 0]] & second[rows[:, 1]]
        numbers = [self._number[name][rows[stays, side]] for side, name in enumerate(pair)]
        return Matches(np.stack(numbers, axis=1).astype(np.int32), matches.distances[stays])

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._matches)

    def __len__(self) -> int:
        return len(self._matches)


def refuse_faulty(names: Iterable[str]) -> None:
    """Raise InputError for names that must not go into a model, which others take for paths."""
    wrong = [name for name in names if name_fault(name)]
    if wrong:
        raise InputError(f"a map cannot hold the name {name_list(wrong)}: {name_fault(wrong[0])}; {NAME_EARLIER}")


def refuse_missing(names: Collection[str], cameras: Mapping[str, Camera]) -> None:
    """Raise InputError naming the images without a camera."""
    missing = [name for name in names if name not in cameras]
    if missing:
        others = set(cameras) - set(names)  # a camera that has its image was not meant for another
        shown = ", ".join(f"{name!r:.80}{suggest(name, others)}" for name in missing[:SHOWN])
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise InputError(
            f"{len(missing)} of {len(names)} images have no camera: {shown}{more}; name one for every image"
        )


def refuse_different(cameras: Mapping[str, Camera]) -> None:
    """Raise InputError if images that are said to share a camera have different ones."""
    first = next(iter(cameras), None)
    other = [name for name, camera in cameras.items() if camera != cameras[first or name]]
    if other:
        raise InputError(
            f"--shared-camera: {len(other)} images have another camera than {first!r:.80}, such as {other[0]!r:.80}; "
            f"give all of them the same, or leave the option out"
        )
