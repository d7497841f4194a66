# SPDX-License-Identifier: Apache-2.0
"""Files of galleries: HDF5, written atomically, read with checks, changed by one writer at a time.

The server's side: concealed templates and nothing clear. The format is in docs/faces.md. Arrays: ``header`` (JSON as
bytes), ``origin`` (N, n) and ``basis`` (N, m, n) float32. A change rewrites the file.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError
from sfumato.faces.compare import Threshold
from sfumato.faces.gallery import Gallery
from sfumato.files.atomic import Sink, file_lock
from sfumato.files.hdf5 import explain_damage, find_plain_arrays, open_hdf5
from sfumato.types.concealed import ConcealedTemplates, Subspaces
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe

FORMAT, VERSION = "sfumato-gallery", 1
HEADER, ORIGIN, BASIS = "header", "origin", "basis"
KINDS = {HEADER: ("|u1", 1), ORIGIN: ("<f4", 2), BASIS: ("<f4", 3)}
KEYS = {"format", "version", "ids", "releases", "recipe", "extractor", "thresholds", "data"}
LARGEST_HEADER = 2**28
PRIVATE = 0o600
"""The mode of a new gallery: readable by its owner only."""

ADVICE = "restore a copy; templates cannot be made again without releasing a second one"


@dataclass(slots=True)
class GalleryChange:
    """A change of a gallery: ``before`` is in the file, if there is one; ``after`` will be."""

    before: Gallery | None
    after: Gallery | None = None


@contextmanager
def change_gallery(path: str | os.PathLike[str]) -> Iterator[GalleryChange]:
    """Change the gallery of a file: the ``after`` that the block sets is written at its end.

    One writer at a time, among all processes: others wait. After an error, Ctrl-C, a kill or a full disk the file is as
    it was. Readers see the old gallery or the new one.

    Raises FileError for a file that cannot be read or written, or if another writer does not finish.
    """
    target = Path(os.path.realpath(path))
    with file_lock(target):
        change = GalleryChange(load_gallery(target) if target.exists() else None)
        yield change
        if change.after is not None:
            _write(target, change.after)


def load_gallery(path: str | os.PathLike[str]) -> Gallery:
    """Read a gallery.

    Raises FileError for a file that is missing, damaged, hostile, or of another kind or version.
    """
    source = Path(path)
    if source.is_dir():
        raise FileError(f"{source} is a folder: name the gallery's file, for example {source / 'gallery.h5'}")
    if not source.is_file():
        raise FileError(f"{source}: no such gallery; sfumato enroll makes one")
    with explain_damage(source, ADVICE):
        with open_hdf5(source, ADVICE) as file:
            data = find_plain_arrays(file, KINDS, source.stat().st_size)
            if data[HEADER].size > LARGEST_HEADER:
                raise InputError("its header is too large")
            arrays = {key: array[()] for key, array in data.items()}
        return _parse(arrays)


def _write(target: Path, gallery: Gallery) -> None:
    """Write a gallery beside its place, then move it there; access rights stay those of the old file."""
    import h5py

    subspaces = gallery.templates.subspaces
    arrays = {ORIGIN: subspaces.origin.astype("<f4", copy=False), BASIS: subspaces.basis.astype("<f4", copy=False)}
    header = np.frombuffer(_header_text(gallery, _digest_arrays(arrays)), np.uint8)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE))
        with Sink(part, keep=False) as sink, h5py.File(sink, "w", libver="latest") as file:
            for key, array in {HEADER: header, **arrays}.items():
                file.create_dataset(key, data=array)
        _keep_access(part, target)
        os.replace(part, target)
    except OSError as cause:
        raise FileError(
            f"{target} cannot be written: {cause.strerror or cause}. It is as it was: free space and try again"
        ) from cause
    finally:
        with suppress(OSError):
            part.unlink()


def _keep_access(part: Path, target: Path) -> None:
    """Give a file the mode of the one it replaces, and the owner where that is allowed; a new one is private."""
    try:
        before = target.stat()
    except FileNotFoundError:
        part.chmod(PRIVATE)
        return
    if (before.st_uid, before.st_gid) != (part.stat().st_uid, part.stat().st_gid):
        with suppress(OSError):
            os.chown(part, before.st_uid, before.st_gid)
    part.chmod(stat.S_IMODE(before.st_mode))


def _header_text(gallery: Gallery, data: str) -> bytes:
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "ids": list(gallery.templates.ids),
        "releases": dict(gallery.releases),
        "recipe": gallery.recipe.to_json(),
        "extractor": gallery.templates.extractor.to_json(),
        "thresholds": [threshold.to_dict() for threshold in gallery.thresholds],
        "data": data,
    }
    return json.dumps({**content, "checksum": _digest_content(content)}, sort_keys=True).encode("ascii")


def _parse(arrays: Mapping[str, NDArray[Any]]) -> Gallery:
    """Return the gallery in the arrays of a file; raise InputError if they are not what was written."""
    try:
        content: Any = json.loads(arrays[HEADER].tobytes())
    except (ValueError, RecursionError) as cause:
        raise InputError("its header cannot be read") from cause
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError("this is another kind of file, not a gallery")
    if content.get("version") != VERSION:
        raise InputError(
            f"it has version {content.get('version')!r:.20} of the format, this Sfumato reads {VERSION}: use another"
        )
    checksum = content.pop("checksum", None)
    if set(content) != KEYS or checksum != _digest_content(content):
        raise InputError("the checksum of its header is wrong: it was damaged or changed")
    if content["data"] != _digest_arrays(arrays):
        raise InputError("the checksum of its templates is wrong: they were damaged or changed")
    if not isinstance(content["ids"], list) or not isinstance(content["releases"], dict):
        raise InputError("its list of people cannot be read")
    if not isinstance(content["thresholds"], list):
        raise InputError("its thresholds cannot be read")
    recipe, extractor = Recipe.from_json(str(content["recipe"])), Extractor.from_json(str(content["extractor"]))
    for key in (ORIGIN, BASIS):
        arrays[key].setflags(write=False)
    templates = ConcealedTemplates(tuple(content["ids"]), Subspaces(arrays[ORIGIN], arrays[BASIS]), recipe, extractor)
    thresholds = tuple(Threshold.from_dict(values) for values in content["thresholds"])
    return Gallery(templates, content["releases"], thresholds)


def _digest_arrays(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.blake2b(digest_size=32, person=b"sfumato-gallery")
    for key in (ORIGIN, BASIS):
        digest.update(f"{arrays[key].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[key]).reshape(-1).view(np.uint8).data if arrays[key].size else b"")
    return digest.hexdigest()


def _digest_content(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")
    return hashlib.blake2b(text, digest_size=32, person=b"sfumato-gallery").hexdigest()
