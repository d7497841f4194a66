# SPDX-License-Identifier: Apache-2.0
"""Archives of concealed features, read one image at a time.

Trusts no file: headers and blobs are checked before they are believed, and what is returned passed its checksums, is
canonical, and is concealed. Never imports the clear types.
"""

import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import ArchiveError, InputError
from sfumato.files.sqlite import Database, Row, explain, open_reader
from sfumato.store.layout import (
    ARCHIVE,
    HEADER_COLUMNS,
    ImageHeader,
    checked_name,
    header_of,
    image_of,
    release_of,
    tags_of,
)
from sfumato.types.concealed import ConcealedFeatures

SMALLEST_ROW = 150
"""Bytes that a row takes at least: two digests and a text. A file has no more names than it has room for."""
NAMES = """SELECT NULL, max(rowid) FROM {table}
UNION ALL SELECT name, rowid FROM (SELECT name, rowid FROM {table} ORDER BY name LIMIT ?)"""
"""The last number of a row, and name and number of every row out of the index, as they are at one moment."""
LISTS = {"image": "list of images", "tags": "list of tags", "release": "list of released positions"}


@dataclass(frozen=True, slots=True)
class ArchiveSummary:
    """Headers of the images of an archive, and what is wrong with the images that have none."""

    path: Path
    size_bytes: int
    images: tuple[ImageHeader, ...]
    damaged: Mapping[str, str]


def load(path: str | os.PathLike[str]) -> "Archive":
    """Open an archive that ``sfumato.save`` wrote; images are read on access.

    Raises ArchiveError for a file that is missing, damaged, hostile, or of another kind or version.
    """
    return Archive(path)


@contextmanager
def open_archive(archive: "str | os.PathLike[str] | Archive") -> Iterator["Archive"]:
    """Give the archive at a path, open for the block; one that is open already stays open."""
    if isinstance(archive, Archive):
        yield archive
    else:
        with Archive(archive) as opened:
            yield opened


class Archive(Mapping[str, ConcealedFeatures]):
    """A read-only mapping of image names, in sorted order, to ConcealedFeatures.

    Only names are kept in memory; each access reads and checks one image. An image that is damaged raises
    ArchiveError when it is read, and the others stay readable. The archive sees the file as it was when
    opened, even after images were added or another file took its place. May be used by several threads.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._database = open_reader(self.path, ARCHIVE)
        self._close = weakref.finalize(self, self._database.close)
        try:
            self._database.pin()
            self.size_bytes = self._database.size_bytes
            self._names = dict.fromkeys(list_names(self._database))
        except BaseException:
            self._close()
            raise

    def __getitem__(self, name: str) -> ConcealedFeatures:
        self._need(name)
        return read_image(self._database, name)

    def header(self, name: str) -> ImageHeader:
        """Return everything about an image but its arrays, which are not read."""
        self._need(name)
        return read_header(self._database, name)

    def summary(self) -> ArchiveSummary:
        """Return the headers of all images, and what is wrong with those that have none."""
        images, damaged = [], {}
        for name in self:
            try:
                images.append(self.header(name))
            except ArchiveError as problem:
                damaged[name] = str(problem)
        return ArchiveSummary(self.path, self.size_bytes, tuple(images), damaged)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    __eq__ = object.__eq__  # a comparison by content would read everything
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Archive({str(self.path)!r}, {len(self)} images)"

    def close(self) -> None:
        """Close the file; images can no longer be read."""
        self._close()

    def __enter__(self) -> "Archive":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _need(self, name: str) -> None:
        if name not in self._names:
            raise KeyError(name)
        if not self._close.alive:
            raise ArchiveError(f"the archive {self.path} is closed; load it again")


# --- what readers and writers of an archive ask an open file


def list_names(database: Database) -> list[str]:
    """Return the names of all images, sorted; only the indexes of names are read.

    Rows of each table are numbered from 1 without gaps, so that a row or an entry of an index that was lost is noticed.
    """
    with explain(database.path, database.kind):
        names, *_ = [_list_rows(database, table) for table in (LISTS if database.version > 1 else ("image",))]
    return sorted(names)


def _list_rows(database: Database, table: str) -> list[str]:
    most = database.size_bytes // SMALLEST_ROW + 1
    (_, last), *rows = database.rows(NAMES.format(table=table), (most + 1,))
    names = [checked_name(name) for name, _ in rows]
    if len(set(names)) != len(names) or len(names) > most:
        raise InputError(f"its {LISTS[table]} is damaged: a name comes twice")
    if {number for _, number in rows} != set(range(1, len(rows) + 1)) or (last or 0) != len(rows):
        raise InputError(f"its {LISTS[table]} is damaged: some were lost or removed")
    return names


def read_row(database: Database, columns: str, name: str) -> Row:
    """Return columns of the row of an image."""
    rows = database.rows(f"SELECT {columns} FROM image WHERE name = ? LIMIT 2", (name,))
    if len(rows) != 1:
        raise InputError(f"it is there {len(rows)} times")
    return rows[0]


def read_header(database: Database, name: str) -> ImageHeader:
    """Return everything about an image but its arrays, which are not read; its checksum is verified."""
    with _explain_image(database, name):
        return header_of(read_row(database, HEADER_COLUMNS, name), name)


def read_image(database: Database, name: str) -> ConcealedFeatures:
    """Return the features of an image; its header is checked before its blobs are read."""
    header = read_header(database, name)
    with _explain_image(database, name):
        features = image_of(header, *read_row(database, "keypoints, code", name))
        if not header.is_home or database.version == 1:
            return features
        for row in database.rows("SELECT name, photo, checksum, tags FROM tags WHERE name = ? LIMIT 1", (name,)):
            features = replace(features, tags=tags_of(row, header))
        release = read_release(database, header)
        return features if release is None else features.with_positions(*release)


def read_release(database: Database, header: ImageHeader) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
    """Return numbers and positions of the rows of an image that were released; None if none were."""
    query = "SELECT name, count, checksum, numbers, positions FROM release WHERE name = ? LIMIT 1"
    rows = database.rows(query, (header.name,)) if database.version > 1 else []
    with _explain_image(database, header.name):
        return release_of(rows[0], header) if rows else None


@contextmanager
def _explain_image(database: Database, name: str) -> Iterator[None]:
    """Say of which image of which archive something is wrong, and what to do."""
    try:
        yield
    except InputError as cause:
        raise ArchiveError(
            f"cannot read image {name!r:.80} of the archive {database.path}: {cause}; the other images can still be "
            f"read; restore the archive from a copy, or make it again"
        ) from cause
    except ArchiveError as cause:
        raise ArchiveError(f"cannot read image {name!r:.80}: {cause}") from cause
