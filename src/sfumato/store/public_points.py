# SPDX-License-Identifier: Apache-2.0
"""Files of public points: clear descriptors of mapped points that their owner published.

The format is in docs/reference/file_formats.md.
Reads and never writes: only ``sfumato.publish``, on the device, makes such a file. Trusts no file: types and sizes are
checked before arrays are read, and what is returned passed its checksums.
"""

import os
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from sfumato.errors import FileError, InputError
from sfumato.files.hdf5 import SIGNATURE
from sfumato.files.sqlite import Database, FileKind, Row, explain, open_reader
from sfumato.store.archive import list_names, read_row
from sfumato.store.layout import checked_name, digest, digest_lines, parse_extractor
from sfumato.types.concealed import PublicPoints
from sfumato.types.extractor import Extractor

TABLE = """CREATE TABLE image (
    name TEXT PRIMARY KEY NOT NULL,
    count INTEGER NOT NULL,
    dim INTEGER NOT NULL,
    extractor TEXT NOT NULL,
    data TEXT NOT NULL,
    checksum TEXT NOT NULL,
    points BLOB NOT NULL,
    descriptors BLOB NOT NULL
) STRICT"""

PUBLIC_POINTS = FileKind(
    name="a file of public points",
    mark=0x53666D50,
    version=1,
    tables=(TABLE,),
    advice="ask its owner for another copy",
    earlier=(SIGNATURE, "this is an HDF5 file, as public points of earlier versions were: publish them again"),
)

HEADER_COLUMNS = (
    "name, count, dim, extractor, data, checksum, "
    "typeof(points), length(points), typeof(descriptors), length(descriptors)"
)
TYPES = (str, int, int, str, str, str, str, int, str, int)


def row_of(name: str, points: PublicPoints) -> tuple[Any, ...]:
    """Return the row of an image."""
    blobs = points.points.astype("<i8").tobytes(), points.descriptors.astype("<f4").tobytes()
    values = checked_name(name), len(points), points.descriptors.shape[1], points.extractor.to_json(), digest(blobs)
    return *values, digest_lines(values), *blobs


def load_public(path: str | os.PathLike[str]) -> "PublicPointsFile":
    """Open a file of public points; images are read on access.

    Raises FileError for a file that is missing, damaged, hostile, or of another kind or version.
    """
    return PublicPointsFile(path)


class PublicPointsFile(Mapping[str, PublicPoints]):
    """A read-only mapping of image names, in sorted order, to PublicPoints of one ``extractor``.

    May be used by several threads.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._database = open_reader(self.path, PUBLIC_POINTS)
        self._close = weakref.finalize(self, self._database.close)
        try:
            with explain(self.path, PUBLIC_POINTS):
                self._database.pin()
                self._headers = {name: _header(self._database, name) for name in list_names(self._database)}
                kinds = {(header[3], header[2]) for header in self._headers.values()}
                if len(kinds) != 1:
                    raise InputError("its images are of no kind of descriptor, or of several")
                self.extractor: Extractor = parse_extractor(kinds.pop()[0])
        except BaseException:
            self._close()
            raise

    def __getitem__(self, name: str) -> PublicPoints:
        _, count, dim, _, data, *_ = self._headers[name]
        if not self._close.alive:
            raise FileError(f"the file of public points {self.path} is closed; load it again")
        with explain(Path(f"{self.path}, image {name!r:.200}"), PUBLIC_POINTS):
            blobs = read_row(self._database, "points, descriptors", name)
            if digest(blobs) != data:
                raise InputError("the checksum of its rows is wrong: they were damaged or changed")
            points, descriptors = np.frombuffer(blobs[0], "<i8"), np.frombuffer(blobs[1], "<f4")
            return PublicPoints(points, descriptors.reshape(count, dim), self.extractor)

    def __iter__(self) -> Iterator[str]:
        return iter(self._headers)

    def __len__(self) -> int:
        return len(self._headers)

    def __contains__(self, name: object) -> bool:
        return name in self._headers

    __eq__ = object.__eq__  # a comparison by content would read everything
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"PublicPointsFile({str(self.path)!r}, {len(self)} images)"

    def close(self) -> None:
        """Close the file."""
        self._close()

    def __enter__(self) -> "PublicPointsFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _header(database: Database, name: str) -> Row:
    """Return the row of an image without its arrays, after checking it."""
    row = read_row(database, HEADER_COLUMNS, name)
    if tuple(map(type, row)) != TYPES or (row[6], row[8]) != ("blob", "blob"):
        raise InputError(f"some columns of the image {name!r:.200} have another type")
    count, dim = row[1:3]
    if digest_lines(row[:5]) != row[5] or row[0] != name:
        raise InputError(f"the checksum of the image {name!r:.200} is wrong: it was damaged or changed")
    if count < 0 or dim < 1 or (row[7], row[9]) != (8 * count, 4 * count * dim):
        raise InputError(f"the image {name!r:.200} has another number of rows than it says")
    return row
