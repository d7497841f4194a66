# SPDX-License-Identifier: Apache-2.0
"""Positions that stayed home: a file of this device beside an archive, for the rows of each of its images.

``private.sfm`` goes to a server; ``private.sfm.positions`` does not, and only its owner may read it. It holds where the
features of each photo lie, in the order of the archive's rows, as they would be released. Lost, it comes again from the
photos.
"""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError
from sfumato.files.sqlite import Database, FileKind, explain, open_reader, open_writer
from sfumato.geometry.localization import known_keypoints
from sfumato.store.layout import checked_name, digest, digest_lines
from sfumato.types.concealed import ConcealedFeatures

END = ".positions"

TABLE = """CREATE TABLE photo (
    name TEXT NOT NULL,
    photo TEXT NOT NULL,
    checksum TEXT NOT NULL,
    positions BLOB NOT NULL,
    PRIMARY KEY (name, photo)
) STRICT"""
"""``photo``: the name of the photo under its key, as in the archive; ``positions``: x and y of each row, float32. An
archive that is made anew takes the old one's place in the end: until then the positions of both are here."""

POSITIONS = FileKind(
    name="a file of positions",
    mark=0x53666D48,
    version=1,
    tables=(TABLE,),
    advice="name the photos instead (--photos), from which positions come again",
)


def positions_path(archive: str | os.PathLike[str]) -> Path:
    """Return where the positions of an archive are on the device that made it."""
    return Path(f"{os.fspath(archive)}{END}")


class PositionsWriter:
    """Keeps the positions of the photos of an archive, each before the archive has its rows: a kill loses none.

    Use it in a ``with`` statement. The file is made when there is something to keep.
    """

    def __init__(self, archive: str | os.PathLike[str]) -> None:
        self.path = positions_path(archive)
        self._database: Database | None = None

    def keep(self, name: str, photo: str, positions: NDArray[np.float32]) -> None:
        """Write the positions (N, 2) of the rows of a photo, in their order, beside those of other archives of it."""
        if self._database is None:
            self._database = open_writer(self.path, POSITIONS, private=True)
        blob = np.ascontiguousarray(positions, "<f4").tobytes()
        row = checked_name(name), photo, digest_lines((name, photo, digest([blob]))), blob
        with self._database.transaction():
            self._database.rows("INSERT OR REPLACE INTO photo VALUES (?, ?, ?, ?)", row)

    def __enter__(self) -> "PositionsWriter":
        return self

    def __exit__(self, *_: object) -> None:
        if self._database is not None:
            self._database.close()


class Positions:
    """Positions of the photos of an archive, read one at a time; use it in a ``with`` statement.

    Raises FileError for a file that is missing, damaged or of another kind.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._database = open_reader(self.path, POSITIONS)

    def read(self, name: str, photo: str) -> NDArray[np.float32] | None:
        """Return the positions (N, 2) of the rows of a photo; None if the file has none, or those of another release.

        Raises FileError for damage.
        """
        with explain(self.path, POSITIONS):
            query = "SELECT name, photo, checksum, positions FROM photo WHERE name = ? AND photo = ? LIMIT 1"
            for found, of, checksum, blob in self._database.rows(query, (name, photo)):
                if not isinstance(blob, bytes) or digest_lines((found, of, digest([blob]))) != checksum:
                    raise InputError(f"the checksum of the positions of {name!r:.80} is wrong: they were damaged")
                if of == photo and len(blob) % 8 == 0:
                    return np.frombuffer(blob, "<f4").reshape(-1, 2)
        return None

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def __enter__(self) -> "Positions":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Positions({str(self.path)!r})"


def own_keypoints(archive: str | os.PathLike[str]) -> Callable[[str, ConcealedFeatures], NDArray[np.float32]]:
    """Return a function that gives the keypoints of an image of an archive: its own, or those that stay on this device.

    It raises InputError for an image whose positions are not here.
    """

    def keypoints_of(name: str, image: ConcealedFeatures) -> NDArray[np.float32]:
        if image.is_shown.all() or image.tags is None or not positions_path(archive).is_file():
            return known_keypoints(image)
        with open_positions(archive) as kept:
            places = kept.read(name, image.tags.photo)
        if places is None or len(places) != len(image):
            return known_keypoints(image)
        return places

    return keypoints_of


def open_positions(archive: str | os.PathLike[str]) -> Positions:
    """Open the positions of an archive; raises FileError if they are not on this device."""
    path = positions_path(archive)
    if not path.is_file():
        raise FileError(
            f"{path} is not here: positions are on the device that made {archive}; release on that device, or name "
            f"the photos, from which they come again (--photos)"
        )
    return Positions(path)
