# SPDX-License-Identifier: Apache-2.0
"""Files that results may replace: those of their own kind, with ``overwrite``, and never what is read.

Judges a file by what it holds, not by its name. An archive that is lost cannot be made again: a second lifting of the
same descriptors reveals the first.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sfumato.errors import FileError, InputError
from sfumato.files.hdf5 import Hdf5Reader
from sfumato.geometry.cameras import read_cameras, read_poses
from sfumato.geometry.maps import PICTURE_MAKER
from sfumato.geometry.model_folder import MAP_FILES, OTHERS
from sfumato.geometry.shortlist import read_shortlists
from sfumato.matching.match_file import is_match_file, refuse_inputs
from sfumato.store.public_points import load_public

LARGEST_TABLE, LARGEST_PICTURE = 2**30, 2**28

Inputs = Mapping[str, str | os.PathLike[str] | None]
"""Files that are read, by what they are; None for one not given."""


@dataclass(frozen=True, slots=True)
class OutputKind:
    """A kind of file, and how it is recognised."""

    what: str
    fits: Callable[[Path], bool]


def refuse_existing(path: str | os.PathLike[str], kind: OutputKind, inputs: Inputs, *, overwrite: bool) -> None:
    """Raise FileError if a result cannot be written to ``path``: it is read, it is there, or it is something else."""
    refuse_inputs(path, inputs)
    target = Path(os.path.realpath(path))
    if not os.path.lexists(target):
        return
    if not target.is_file():
        raise FileError(f"cannot write {path}: it is there and no file; choose another")
    if not overwrite:
        raise FileError(f"{path} exists: choose another file, or overwrite it (--overwrite, overwrite=True)")
    if target.stat().st_size and not kind.fits(target):
        raise FileError(f"{path} is not {kind.what}: nothing else is ever replaced; choose another, or move it away")


def map_paths(folder: str | os.PathLike[str]) -> dict[str, Path]:
    """Return the files of a map, and of the models beside it, by what they are."""
    folder = Path(folder)
    files = {f"{name} of the map": folder / name for name in sorted(MAP_FILES)}
    for path in sorted(folder.glob(f"{OTHERS}/*/*")):
        files[f"{path.relative_to(folder).as_posix()} of the map"] = path
    return files


def _is_poses(path: Path) -> bool:
    try:
        read_poses(path)
    except FileError:
        return False
    return True


def _is_cameras(path: Path) -> bool:
    try:
        read_cameras(path, ())
    except FileError:
        return False
    return True


def _is_table(path: Path) -> bool:
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.stat().st_size < LARGEST_TABLE else None
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and {"params", "queries"} <= content.keys()


def _is_pairs(path: Path) -> bool:
    try:
        read_shortlists(path)
    except (FileError, UnicodeError):
        return False
    return True


def _is_public(path: Path) -> bool:
    try:
        load_public(path).close()
    except FileError:
        return False
    return True


def _is_picture(path: Path) -> bool:
    return path.stat().st_size < LARGEST_PICTURE and PICTURE_MAKER.encode() in path.read_bytes()


def _is_features(path: Path) -> bool:
    """Tell whether a file is hloc's features: groups of images with keypoints, down to the first one."""
    try:
        with Hdf5Reader(path, "file of features", "choose another") as file:
            if "format" in file.texts():
                return False
            name = ""
            while members := next(file.members([name])):
                if any(member.name == "keypoints" for member in members):
                    return any((member.name, member.kind) == ("keypoints", "array") for member in members)
                name = f"{name}/{members[0].name}" if name else members[0].name
            return not name  # a file without images
    except (FileError, InputError):
        return False


CAMERAS = OutputKind("a list of cameras", _is_cameras)
POSES = OutputKind("a list of poses", _is_poses)
TABLE = OutputKind("a table of localized queries", _is_table)
HLOC_FEATURES = OutputKind("a file of features as hloc has them", _is_features)
HLOC_MATCHES = OutputKind("a match file", is_match_file)
HLOC_PAIRS = OutputKind("a list of pairs", _is_pairs)
PICTURE = OutputKind("a picture of a map", _is_picture)
PUBLIC = OutputKind("a file of public points", _is_public)
