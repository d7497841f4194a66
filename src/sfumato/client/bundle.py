# SPDX-License-Identifier: Apache-2.0
"""Bundles: a map of a server as one tar file, unpacked into a folder; and people's names put back into it.

Trusts no bundle. Regular files alone are taken, of the names that a map has, within limits, and one file at a time is
read; links, devices, long names and everything else that tar knows are refused.
"""

import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from sfumato.errors import FileError
from sfumato.geometry.cameras import name_fault
from sfumato.geometry.colmap import load_pycolmap
from sfumato.geometry.maps import rename_landmarks
from sfumato.geometry.model import read_model
from sfumato.geometry.model_folder import LANDMARKS, MAP_FILES, MODEL_FILES, OTHERS, write_model

BLOCK = 512
CHUNK = 2**20
MOST_FILES = 1000
LARGEST_BUNDLE = 32 * 2**30
REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)
MEMBER = re.compile(rf"(?:{OTHERS}/[1-9][0-9]{{0,3}}/)?([A-Za-z0-9.-]+)\Z")


def unpack(file: BinaryIO, folder: Path, most: int = LARGEST_BUNDLE) -> list[str]:
    """Write the files of a bundle below a folder that is empty, and return their names.

    ``most``: bytes of all files. Raises FileError for a bundle that holds anything but the files of one map; the caller
    drops the folder then.
    """
    names: list[str] = []
    while True:
        block = file.read(BLOCK)
        if len(block) < BLOCK or not any(block):
            break
        try:
            member = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        except (tarfile.HeaderError, UnicodeError, ValueError) as cause:
            raise _refuse("it is damaged") from cause
        name = member.name
        match = MEMBER.match(name)
        if member.type not in REGULAR or match is None or match[1] not in MAP_FILES or name in names:
            raise _refuse(f"it holds {name!r:.80}, which is no file of a map")
        most -= member.size
        if member.size < 0 or most < 0 or len(names) >= MOST_FILES:
            raise _refuse("it is too large")
        _write(file, folder / name, member.size)
        names.append(name)
    if not set(MODEL_FILES[:3]) <= set(names):
        raise _refuse("files of the map are missing")
    return names


def _write(file: BinaryIO, path: Path, size: int) -> None:
    """Write the next bytes of a bundle to a new file, and pass over the padding."""
    path.parent.mkdir(parents=True, exist_ok=True)
    left = size
    with open(path, "xb") as target:
        while left:
            chunk = file.read(min(left, CHUNK))
            if not chunk:
                raise _refuse("it ends too early")
            target.write(chunk)
            left -= len(chunk)
    file.read(-size % BLOCK)


def _refuse(reason: str) -> FileError:
    return FileError(f"the bundle of the map is refused: {reason}; nothing was written")


# --- people's names


def name_images(folder: Path, names: Mapping[str, str]) -> int:
    """Give the images of a map, and of the models beside it, people's names by their ids; return how many have one.

    Names that no model can hold, and ids that are not in ``names``, stay as they are. Raises FileError for a model that
    is damaged.
    """
    usable = {key: name for key, name in names.items() if not name_fault(name)}
    count = 0
    for place in (folder, *sorted((folder / OTHERS).glob("*"))):
        known = usable.keys() & set(read_model(place).names)  # reads it before COLMAP does, which trusts every file
        if not known:
            continue
        model = load_pycolmap().Reconstruction(str(place))
        for image in model.images.values():
            image.name = usable.get(image.name, image.name)
        write_model(model, place)
        if (place / LANDMARKS).is_file():
            rename_landmarks(place, usable)
        count += len(known)
    return count
