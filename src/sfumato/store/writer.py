# SPDX-License-Identifier: Apache-2.0
"""Writer of archives, one image at a time, that loses nothing written.

Accepts ConcealedFeatures and nothing else. Never imports the clear types.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import ArchiveError, InputError, suggest
from sfumato.files.sqlite import Database, open_writer, remove, remove_stale, replacement
from sfumato.store.archive import list_names, read_header, read_image, read_release
from sfumato.store.layout import (
    ARCHIVE,
    DTYPES,
    ImageHeader,
    check_release,
    encode_image,
    is_name,
    merge_releases,
    release_row,
    tags_row,
)
from sfumato.types.concealed import ConcealedFeatures

INSERT = f"INSERT INTO image VALUES ({', '.join('?' * 14)})"
RELEASE_MORE = """INSERT INTO release VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET
count = excluded.count, checksum = excluded.checksum, numbers = excluded.numbers, positions = excluded.positions"""
"""A row keeps its number."""

Pairs = Iterable[tuple[str, ConcealedFeatures]]


def save(
    path: str | os.PathLike[str],
    features: Mapping[str, ConcealedFeatures] | Pairs,
    *,
    append: bool = False,
    overwrite: bool = True,
    dtype: str = "float32",
    progress: Callable[[Pairs], Pairs] | None = None,
) -> None:
    """Write concealed features of images to an archive.

    ``features`` maps image names to ConcealedFeatures, or yields such pairs; an iterable is consumed one
    image at a time. The archive takes the place of an existing one at the end and at once; ``append`` adds to
    an existing one instead, and passes over images that are in it with the same content, so that an append that was
    interrupted goes on when it is repeated; ``overwrite=False`` refuses. ``dtype`` float16 halves the size at a loss
    given in docs/reference/file_formats.md. The bits of a seal are stored as they are, whatever ``dtype`` is; with
    ``dtype`` bits nothing else is accepted. ``progress`` wraps the iterable.

    Raises InputError for what is not concealed, ArchiveError for files.
    """
    if not append and not overwrite and os.path.lexists(path):
        raise ArchiveError(f"{Path(path)} exists; pass overwrite=True to replace it or append=True to add to it")
    if isinstance(features, ConcealedFeatures) or not isinstance(features, Iterable):
        raise InputError(
            f"features: expected a mapping of image names to ConcealedFeatures, got {type(features).__name__}"
            "; name it: {'desk.jpg': features}"
        )
    pairs: Pairs = features.items() if isinstance(features, Mapping) else features
    with ArchiveWriter(path, append=append, dtype=dtype) as writer:
        for pair in progress(pairs) if progress else pairs:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise InputError(f"features: expected pairs of name and ConcealedFeatures, got {type(pair).__name__}")
            if not (append and _is_there(writer, *pair, dtype)):
                writer.add(*pair)


def _is_there(writer: "ArchiveWriter", name: str, features: ConcealedFeatures, dtype: str) -> bool:
    """Tell whether an image is in an archive with exactly this content."""
    if name not in writer or not isinstance(features, ConcealedFeatures):
        return False
    return encode_image(name, features, dtype)[0].checksum == writer.header(name).checksum


class ArchiveWriter:
    """Writes an archive image by image, inside a ``with`` block.

    ``append`` adds to the archive that is there, or to a new one: an image is in the file when ``add`` returns, and a
    kill no longer loses it. Other writers may add at the same time, in turns. Without ``append`` a new archive takes
    the place of the old one when the block ends, at once; if it ends with an error or Ctrl-C, the old one stays.

    ``names`` are the images that are there: ``if name in writer`` the work is done, and ``header(name)`` says what
    it is.
    """

    def __init__(self, path: str | os.PathLike[str], *, append: bool = False, dtype: str = "float32") -> None:
        if dtype not in DTYPES:
            raise InputError(
                f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r:.80}{suggest(str(dtype), DTYPES)}"
            )
        self.path = Path(path)
        self._append, self._dtype = append, dtype
        self._database: Database | None = None
        self._stack = ExitStack()

    def __enter__(self) -> "ArchiveWriter":
        if self._database is not None:
            raise ArchiveError(f"{self.path} is being written by this writer already")
        file = _addition(self.path) if self._append else replacement(self.path, ARCHIVE)
        self._database = self._stack.enter_context(file)
        return self

    def add(self, name: str, features: ConcealedFeatures) -> None:
        """Write the features of an image. When this returns, a kill no longer loses them if the writer appends.

        Raises InputError for what is not concealed, and for a name that is there or that no archive takes.
        """
        database = self._open()
        if not isinstance(features, ConcealedFeatures):
            raise InputError(
                f"image {name!r:.80}: an archive holds ConcealedFeatures only, got {type(features).__name__}"
                "; conceal first: sfumato.conceal(features, 'sub-hybrid-2', decoys)"
            )
        header, keypoints, code = encode_image(name, features, self._dtype)
        with database.transaction():
            if database.is_replaced:
                raise ArchiveError(f"{self.path} was replaced or removed while images were added to it; run again")
            if name in self:
                raise InputError(f"image {name!r:.80} is in the archive already; names must differ")
            database.rows(INSERT, (*header.values, header.checksum, keypoints, code))
            if features.tags is not None and header.is_home:
                database.rows("INSERT INTO tags VALUES (?, ?, ?, ?)", tags_row(name, features.tags))
            shown = np.flatnonzero(features.is_shown)
            if header.is_home and len(shown):
                row = release_row(name, shown, features.keypoints[shown, :2])
                database.rows("INSERT INTO release VALUES (?, ?, ?, ?, ?)", row)

    def release(self, name: str, numbers: NDArray[np.int64], positions: NDArray[np.float32]) -> int:
        """Write the positions (K, 2) of rows (K,) of an image, ascending, beside those that were released before.

        Returns how many are new. Raises InputError for a row that was released at another position, and for an image
        that is not there or has all its positions; nothing is written then.
        """
        database = self._open()
        with database.transaction():
            if database.is_replaced:
                raise ArchiveError(f"{self.path} was replaced or removed while positions were released; run again")
            if name not in self:
                raise InputError(f"image {name!r:.80} is not in the archive: nothing of it can be released")
            header = self.header(name)
            if not header.is_home:
                raise InputError(f"image {name!r:.80} holds its positions already: nothing is left to release")
            check_release(numbers, positions, header.count)
            before = read_release(database, header)
            if before is not None:
                try:
                    numbers, positions = merge_releases(before, (numbers, positions))
                except InputError as cause:
                    raise InputError(f"image {name!r:.80}: {cause}") from cause
            row = release_row(name, numbers, positions)
            database.rows(RELEASE_MORE, row)
            return len(numbers) - (0 if before is None else len(before[0]))

    def __contains__(self, name: object) -> bool:
        return is_name(name) and bool(self._open().rows("SELECT 1 FROM image WHERE name = ?", (name,)))

    def __len__(self) -> int:
        return _count(self._open())

    @property
    def names(self) -> tuple[str, ...]:
        """The images that are there at present, sorted."""
        return tuple(list_names(self._open()))

    def read(self, name: str) -> ConcealedFeatures:
        """Return the features of an image that is there."""
        return read_image(self._open(), name)

    def header(self, name: str) -> ImageHeader:
        """Return what is known about an image that is there: counts, recipe, extractor."""
        return read_header(self._open(), name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database = None
        self._stack.__exit__(kind, error, trace)

    def _open(self) -> Database:
        if self._database is None:
            raise ArchiveError(f"the writer of {self.path} is not open; use it in a with block")
        return self._database


@contextmanager
def _addition(path: Path) -> Iterator[Database]:
    """Give the archive at a path to add to, or a new one, which is removed again if nothing was added."""
    target = Path(os.path.realpath(path))
    is_new = not os.path.lexists(target)
    with open_writer(path, ARCHIVE) as database:
        remove_stale(target)
        database.upgrade()
        try:
            yield database
        finally:
            if is_new and not database.is_replaced and not _count(database) and _is_alone(database):
                remove(target)


def _is_alone(database: Database) -> bool:
    """Tell whether no one else has the file open, which then has nothing beside it."""
    database.rows("PRAGMA busy_timeout=0")
    try:
        return database.rows("PRAGMA journal_mode=DELETE") == [("delete",)]
    except ArchiveError:
        return False


def _count(database: Database) -> int:
    ((count,),) = database.rows("SELECT count(*) FROM image")
    return int(count)
