# SPDX-License-Identifier: Apache-2.0
"""The folder of a COLMAP model: made beside its place, put there at once, and replaced only if it is one.

Knows files; what is in them is COLMAP's business.
"""

import ctypes
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sfumato.errors import FileError
from sfumato.geometry.colmap import load_pycolmap

MODEL_FILES = ("cameras.bin", "images.bin", "points3D.bin", "rigs.bin", "frames.bin")
"""A reconstruction on disk, since COLMAP 3.12; older ones have the first three."""
CODES = "landmarks.safetensors"
"""The bits of all landmarks of a sealed map, to be mapped into memory: the same again as in ``LANDMARKS``."""
LANDMARKS, PUBLIC_POINTS = "landmarks.sfm", "public-points.sqlite"
MAP_FILES = frozenset((*MODEL_FILES, LANDMARKS, CODES, PUBLIC_POINTS))
"""Files that a folder of a map holds, beside ``others``; a folder with anything else is never deleted."""

OTHERS = "others"
"""The folder within that of a map for the models which could not be joined with it: 1, 2, ..., maps themselves."""

WORK, MODEL, OLD = "work", "model", "old"
EXCHANGE, HERE = 2, -100
"""RENAME_EXCHANGE (RENAME_SWAP on macOS) and AT_FDCWD of the system's headers."""
YOUNG_SECONDS = 60
"""A folder so young may belong to a process that has not locked it yet."""


@contextmanager
def new_model_folder(output: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[tuple[Path, Path]]:
    """Give two folders, one to work in and one to become ``output`` when the block ends.

    If it ends with an error or Ctrl-C, nothing is left of either and ``output`` is as it was; what a killed process
    left is removed by the next. Raises FileError if ``output`` is there already, unless it is empty, or a map and to be
    overwritten.
    """
    _clear_leftovers(Path(os.path.realpath(output)))
    target = refuse_taken(output, overwrite=overwrite)
    try:
        place = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    except OSError as cause:
        raise FileError(f"cannot write {output}: {cause.strerror or cause}; choose another folder") from cause
    lock = _lock(place)
    try:
        work, model = place / WORK, place / MODEL
        work.mkdir()
        model.mkdir()
        yield work, model
        refuse_taken(target, overwrite=overwrite)  # somebody else may have been quicker
        _put(model, target, place / OLD)
    except OSError as cause:
        if isinstance(cause, FileError):
            raise
        raise FileError(f"cannot write {output}: {cause.strerror or cause}; free space and run again") from cause
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _clear_leftovers(target: Path) -> None:
    """Remove the folders that killed processes left beside a map; a map that one had put aside comes back."""
    with suppress(OSError):
        for place in target.parent.iterdir():
            if place.name.startswith(f".{target.name}.") and place.name.endswith(".part") and _is_ours(place):
                lock = _lock(place)
                if lock is None:
                    continue  # somebody is at work there
                try:
                    if (place / OLD).is_dir() and not os.path.lexists(target):
                        os.rename(place / OLD, target)
                    shutil.rmtree(place, ignore_errors=True)
                finally:
                    os.close(lock)


def _is_ours(place: Path) -> bool:
    """Tell whether a folder is one that ``new_model_folder`` made a while ago."""
    try:
        info = place.stat(follow_symlinks=False)
        inside = {entry.name for entry in place.iterdir()} if stat.S_ISDIR(info.st_mode) else {""}
    except OSError:
        return False
    return inside <= {WORK, MODEL, OLD} and time.time() - info.st_mtime > YOUNG_SECONDS


def _lock(place: Path) -> int | None:
    """Return a descriptor that keeps a folder locked until it is closed; None if another process has it, or none can.

    The lock goes with the process, however that ends.
    """
    try:
        import fcntl
    except ImportError:  # not on this system
        return None
    descriptor = None
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if descriptor is not None:
            os.close(descriptor)
        return None
    return descriptor


def refuse_taken(output: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Return the folder that ``output`` stands for; raise FileError if a new map cannot take this place."""
    target = Path(os.path.realpath(output))
    if not target.parent.is_dir():
        raise FileError(f"cannot write {target}: there is no folder {target.parent}; create it")
    if not target.exists():
        return target
    if not target.is_dir():
        raise FileError(f"cannot write {target}: it exists and is not a folder; choose another path")
    names = sorted(entry.name for entry in target.iterdir())
    foreign = _find_foreign(target)
    if foreign:
        raise FileError(
            f"{target} holds {foreign[0]!r:.80}, which is not part of a map: choose another folder; this one is left "
            f"unchanged"
        )
    if names and not overwrite:
        raise FileError(
            f"{target} holds a map already: choose another folder, or overwrite it (--overwrite, overwrite=True)"
        )
    return target


def _find_foreign(target: Path) -> list[str]:
    """Return what is in a folder and not part of a map, sorted."""
    foreign = []
    for entry in target.iterdir():
        if entry.name == OTHERS and entry.is_dir() and not entry.is_symlink():
            for other in entry.iterdir():
                if other.name.isdecimal() and other.is_dir() and not other.is_symlink():
                    inside = (file.name for file in other.iterdir() if file.name not in MAP_FILES)
                    foreign += [f"{OTHERS}/{other.name}/{name}" for name in inside]
                else:
                    foreign.append(f"{OTHERS}/{other.name}")
        elif entry.name not in MAP_FILES:
            foreign.append(entry.name)
    return sorted(foreign)


def other_folder(folder: Path, number: int) -> Path:
    """Return the folder of another model of a map, the first one being 1."""
    return folder / OTHERS / str(number)


def write_model(reconstruction: Any, folder: Path) -> None:
    """Write a ``pycolmap.Reconstruction`` and read it back: COLMAP does not tell of a disk that was full."""
    pycolmap = load_pycolmap()
    try:
        reconstruction.write(str(folder))
        back = pycolmap.Reconstruction(str(folder))
    except (RuntimeError, ValueError, OSError) as cause:
        raise FileError(f"the model could not be written to {folder.parent.parent}: is the disk full?") from cause
    counts = [(m.num_reg_images(), m.num_points3D(), m.compute_num_observations()) for m in (reconstruction, back)]
    missing = [name for name in MODEL_FILES if not (folder / name).is_file()]
    if counts[0] != counts[1] or missing:
        raise FileError(f"the model was not written whole to {folder.parent.parent}: is the disk full?")


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step, so that a kill leaves no place empty; False where the system cannot."""
    paths = os.fsencode(first), os.fsencode(second)
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            return bool(library.renamex_np(*paths, EXCHANGE) == 0)
        return bool(library.renameat2(HERE, paths[0], HERE, paths[1], EXCHANGE) == 0)
    except (AttributeError, OSError, TypeError):  # no such function
        return False


def _put(model: Path, target: Path, aside: Path) -> None:
    """Let the new folder take the place of the old one, at once where the system can; if that fails the old is back."""
    old = os.path.lexists(target)
    if old:
        model.chmod(stat.S_IMODE(target.stat().st_mode))
    if old and _exchange(model, target):
        return
    try:
        if old:
            os.rename(target, aside)
        os.rename(model, target)
    except BaseException:
        if old and not os.path.lexists(target):
            os.rename(aside, target)
        raise
