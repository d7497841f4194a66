# SPDX-License-Identifier: Apache-2.0
"""Files of public points: clear descriptors of mapped points that their owner published; see docs/format.md.

Reads and never writes: only ``sfumato.publish``, on the device, makes such a file. Trusts no file: three plain arrays
are expected and anything else is refused, and what is returned passed its checksum.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.files.hdf5 import Hdf5File, find_plain_arrays
from sfumato.types.concealed import PublicPoints
from sfumato.types.extractor import Extractor

FORMAT, VERSION = "sfumato-public-points", 1
HEADER, POINTS, DESCRIPTORS = "header", "points", "descriptors"
KINDS = {HEADER: ("|u1", 1), POINTS: ("<i8", 1), DESCRIPTORS: ("<f4", 2)}
"""Type and number of dimensions of each array of the file."""

LARGEST_HEADER = 2**26
ADVICE = "ask its owner for another copy"


@dataclass(frozen=True, slots=True)
class ImageRows:
    """One image in the header of a file: the number of its rows, and their digest."""

    name: str
    count: int
    data: str


def digest_rows(points: NDArray[np.int64], descriptors: NDArray[np.float32]) -> str:
    """Return the BLAKE2b-256 digest of the rows of an image."""
    state = hashlib.blake2b(digest_size=32, person=b"sfumato-public")
    state.update(np.ascontiguousarray(points, "<i8").tobytes())
    state.update(np.ascontiguousarray(descriptors, "<f4").tobytes())
    return state.hexdigest()


def header_text(extractor: Extractor, entries: list[ImageRows]) -> bytes:
    """Return the header of a file: JSON in ASCII, with its own digest."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "extractor": extractor.to_json(),
        "images": [[entry.name, entry.count, entry.data] for entry in entries],
    }
    return json.dumps({**content, "checksum": _digest_content(content)}, sort_keys=True).encode("ascii")


def load_public(path: str | os.PathLike[str]) -> "PublicPointsFile":
    """Open a file of public points; images are read on access.

    Raises FileError for a file that is missing, damaged, hostile, or of another kind or version.
    """
    return PublicPointsFile(path)


class PublicPointsFile(Hdf5File, Mapping[str, PublicPoints]):
    """A read-only mapping of image names, in sorted order, to PublicPoints."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, "file of public points", ADVICE)
        try:
            with self._explain_damage():
                self._arrays = find_plain_arrays(self._file, KINDS, self.path.stat().st_size)
                if self._arrays[HEADER].size > LARGEST_HEADER:
                    raise InputError("its header is too large")
                self.extractor, entries = _parse(self._arrays[HEADER][()].tobytes())
                self._places = self._lay_out(entries)
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> PublicPoints:
        start, entry = self._places[name]
        with self._explain_damage(f", image {name!r:.200}"):
            rows = slice(start, start + entry.count)
            points, descriptors = self._arrays[POINTS][rows], self._arrays[DESCRIPTORS][rows]
            if digest_rows(points, descriptors) != entry.data:
                raise InputError("the checksum of its rows is wrong: they were damaged or changed")
            return PublicPoints(points, descriptors, self.extractor)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    __eq__ = object.__eq__  # a comparison by content would read everything
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"PublicPointsFile({str(self.path)!r}, {len(self)} images)"

    def _lay_out(self, entries: list[ImageRows]) -> dict[str, tuple[int, ImageRows]]:
        starts = np.cumsum([0, *(entry.count for entry in entries)])
        rows, width = self._arrays[DESCRIPTORS].shape
        if len({entry.name for entry in entries}) != len(entries):
            raise InputError("an image is named twice")
        if not (starts[-1] == rows == len(self._arrays[POINTS])) or width == 0:
            raise InputError("its images have another number of rows than its arrays")
        places = {entry.name: (int(start), entry) for start, entry in zip(starts[:-1], entries, strict=True)}
        return dict(sorted(places.items()))


def _parse(raw: bytes) -> tuple[Extractor, list[ImageRows]]:
    try:
        content: Any = json.loads(raw)
    except (ValueError, RecursionError) as cause:
        raise InputError("its header cannot be read") from cause
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError("this is another kind of file, not public points")
    if content.get("version") != VERSION:
        raise InputError(
            f"it has version {content.get('version')!r:.20} of the format, this Sfumato reads {VERSION}: use another"
        )
    checksum = content.pop("checksum", None)
    if set(content) != {"format", "version", "extractor", "images"} or checksum != _digest_content(content):
        raise InputError("the checksum of its header is wrong: it was damaged or changed")
    try:
        entries = [ImageRows(str(name), int(count), str(data)) for name, count, data in content["images"]]
    except (TypeError, ValueError, ArithmeticError) as cause:
        raise InputError("its list of images cannot be read") from cause
    if any(entry.count < 0 for entry in entries):
        raise InputError("its list of images cannot be read")
    return Extractor.from_json(str(content["extractor"])), entries


def _digest_content(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")
    return hashlib.blake2b(text, digest_size=32, person=b"sfumato-public").hexdigest()
