# SPDX-License-Identifier: Apache-2.0
"""Reader of the features in a COLMAP database, of any version from 3 on.

COLMAP puts the centre of the first pixel at (0.5, 0.5): 0.5 is taken off. Its keypoints are (x, y), (x, y,
sigma, angle in radians) or (x, y, a11, a12, a21, a22), where sigma is the mean length of the columns and the
angle that of the first one, turning as OpenCV's does. Its SIFT is 128 bytes of norm 512, the square root of
SIFT by default: unit norm here, ``rootsift``. Row i stays row i, so matches can go back
into the database, if what is made of the features keeps the order too (an archive with frames does).
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, SourceError
from sfumato.files.atomic import ANY_SIZE, open_file
from sfumato.types.clear import Features
from sfumato.types.extractor import Extractor

SIGNATURE = b"SQLite format 3\0"
COLUMNS = {
    "images": {"image_id", "name", "camera_id"},
    "cameras": {"camera_id", "width", "height"},
    "keypoints": {"image_id", "rows", "cols", "data"},
    "descriptors": {"image_id", "rows", "cols", "data"},
}
SETTINGS = {"source": "colmap"}
"""What is known of how features in a database were made."""
FLOAT_KINDS = {1: "aliked-n16rot", 2: "aliked-n32"}
"""COLMAP's numbers of descriptors that are float32; -1 (not stated) and 0 are SIFT."""


def names_in_colmap(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of all images in the database, sorted."""
    path = Path(path)
    with _connected(path) as database:
        names = [name for (name,) in database.execute("SELECT name FROM images")]
    if not names:
        raise SourceError(f"{path} holds no images: extract features with COLMAP first")
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise SourceError(f"{path}: image names must be texts, each different")
    return sorted(names)


def features_in_colmap(
    path: str | os.PathLike[str], names: Iterable[str], *, extractor: str | None = None
) -> Iterator[tuple[str, Features | SourceError]]:
    """Yield the features of the named images; a damaged image gives its error.

    ``extractor`` names the descriptors: by default ``rootsift``, which COLMAP makes; say ``sift`` if it ran with the
    normalisation L2.
    """
    path = Path(path)
    with _connected(path) as database:
        for name in names:
            try:
                yield name, _read_image(database, name, extractor)
            except (SourceError, sqlite3.Error, ValueError, OverflowError) as problem:
                yield name, SourceError(f"{path}, image {name}: {problem}")


def _read_image(database: sqlite3.Connection, name: str, extractor: str | None) -> Features:
    row = database.execute(
        "SELECT image_id, width, height FROM images LEFT JOIN cameras USING (camera_id) WHERE name = ?", (name,)
    ).fetchone()
    if row is None:
        raise SourceError("there is no such image")
    image_id, width, height = row
    points = _table(database, "keypoints", image_id)
    rows = _table(database, "descriptors", image_id)
    keypoints = _keypoints(np.empty((0, 2), np.float32) if points is None else _matrix(points, np.float32))
    if rows is None and len(keypoints):
        raise SourceError("it has keypoints and no descriptors: extract its features with COLMAP again")
    kind = 0 if rows is None else rows[0]
    values = np.empty((0, 128), np.uint8) if rows is None else _matrix(rows, np.uint8)
    if len(values) != len(keypoints):
        raise SourceError(f"it has {len(keypoints)} keypoints and {len(values)} descriptors")
    descriptors = _descriptors(kind, values)
    label = Extractor(extractor or FLOAT_KINDS.get(kind, "rootsift"), SETTINGS)
    return Features(keypoints, descriptors, label, None if width is None else (width, height))


def _table(database: sqlite3.Connection, table: str, image_id: int) -> tuple[Any, ...] | None:
    """Return (kind, rows, cols, data) of an image, or None."""
    columns = _columns(database, table)
    kind = "type" if "type" in columns else "0"
    query = f"SELECT {kind}, rows, cols, data FROM {table} WHERE image_id = ?"
    entry: tuple[Any, ...] | None = database.execute(query, (image_id,)).fetchone()
    return entry


def _matrix(entry: tuple[Any, ...], dtype: type[np.generic]) -> NDArray[Any]:
    """Return a stored matrix after checking that its bytes are as many as it says."""
    _, rows, cols, data = entry
    data = b"" if data is None else data
    if not (isinstance(rows, int) and isinstance(cols, int) and isinstance(data, bytes) and rows >= 0 and cols > 0):
        raise SourceError("a matrix is not stored as COLMAP stores it")
    expected = rows * cols * np.dtype(dtype).itemsize
    if len(data) != expected:
        raise SourceError(f"a matrix of {rows} x {cols} needs {expected} bytes, there are {len(data)}")
    return np.frombuffer(data, dtype).reshape(rows, cols)


def _keypoints(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return keypoints (N, 4) in our convention from COLMAP's (N, 2), (N, 4) or (N, 6)."""
    values = matrix.astype(np.float64)
    place = values[:, :2] - 0.5
    if matrix.shape[1] == 2:
        sigma, angle = np.ones(len(values)), np.zeros(len(values))
    elif matrix.shape[1] == 4:
        sigma, angle = values[:, 2], values[:, 3]
    elif matrix.shape[1] == 6:
        a11, a12, a21, a22 = values[:, 2:].T
        sigma, angle = (np.hypot(a11, a21) + np.hypot(a12, a22)) / 2, np.arctan2(a21, a11)
    else:
        raise SourceError(f"keypoints have {matrix.shape[1]} columns, expected 2, 4 or 6")
    if (sigma < 0).any():
        raise SourceError("keypoints have a negative scale")
    with np.errstate(over="ignore", invalid="ignore"):
        return np.column_stack([place, sigma, np.mod(np.rad2deg(angle), 360)]).astype(np.float32)


def _descriptors(kind: Any, values: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return descriptors (N, n) float32: SIFT of unit norm, others as they are."""
    if kind in FLOAT_KINDS and values.shape[1] % 4 == 0:
        return values.view(np.float32)
    if kind not in (-1, 0) or values.shape[1] != 128:
        raise SourceError(
            f"its descriptors are of COLMAP's kind {kind!r:.20} with {values.shape[1]} bytes each; known are SIFT "
            f"(kind 0, 128 bytes) and {', '.join(FLOAT_KINDS.values())}"
        )
    norms = np.linalg.norm(values.astype(np.float64), axis=1)
    if (norms == 0).any():
        raise SourceError(f"{(norms == 0).sum()} of its {len(norms)} descriptors are all zero: extract them again")
    unit: NDArray[np.float32] = (values / norms[:, None]).astype(np.float32)
    return unit


@contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database for reading only, and check that it has COLMAP's tables; nothing is written beside it."""
    _check_header(path)
    leftovers = [Path(f"{path}{end}") for end in ("-wal", "-journal")]
    busy = any(file.exists() and file.stat().st_size for file in leftovers)
    uri = f"{path.resolve().as_uri()}?{'mode=ro' if busy else 'mode=ro&immutable=1'}"
    try:
        # Whoever drops this generator half read may have it closed by another thread, never used by two at once.
        with closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA cell_size_check = ON")
            for table, columns in COLUMNS.items():
                missing = columns - _columns(database, table)
                if missing:
                    raise SourceError(
                        f"{path} is not a COLMAP database: its table {table} has no {', '.join(sorted(missing))}"
                    )
            yield database
    except (sqlite3.Error, UnicodeDecodeError) as cause:
        raise SourceError(f"{path} cannot be read as a COLMAP database: {cause}") from cause


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    """Return the columns of a table; none if it is missing or only looks like one (a view can run for ever)."""
    kinds = database.execute("SELECT type FROM sqlite_master WHERE name = ?", (table,)).fetchall()
    if kinds != [("table",)]:
        return set()
    return {name for _, name, *_ in database.execute(f"PRAGMA table_info({table})")}


def _check_header(path: Path) -> None:
    """Refuse what is no database or shorter than it says it is."""
    try:
        with open_file(path, ANY_SIZE) as file:
            head, size = file.read(100), os.fstat(file.fileno()).st_size
    except FileError as cause:
        raise SourceError(str(cause)) from cause
    if not head.startswith(SIGNATURE) or len(head) < 100:
        raise SourceError(f"{path} is not an SQLite database, or a damaged one: give COLMAP's database.db")
    page = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big") if head[24:28] == head[92:96] else 0
    if pages * (65536 if page == 1 else page) > size:
        raise SourceError(f"{path} is cut off: it should have {pages} pages of {page} bytes, it has {size} bytes")
