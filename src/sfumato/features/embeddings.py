# SPDX-License-Identifier: Apache-2.0
"""Files of face embeddings that were computed elsewhere: npz and csv. Clear: they stay on the device.

npz: an array ``embedding`` or ``embeddings`` (N, n), optionally ``name`` or ``names`` (N,) and ``extractor``, a text;
other arrays are left alone. csv: a line ``name,number,number,...`` for each face; a first line that begins with
``name`` is a heading. Nothing is unpickled, and nothing much larger than the file is made of it.
"""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError
from sfumato.files.atomic import open_text, write_file
from sfumato.files.npz import Types, read_member
from sfumato.types.clear import Embeddings
from sfumato.types.extractor import Extractor

SUFFIXES = (".npz", ".csv")
VALUES, NAMES, EXTRACTOR = ("embedding", "embeddings"), ("name", "names"), ("extractor",)
LARGEST_TABLE = 2**32
FLOATS: Types = ("<f2", "<f4", "<f8")


def is_embedding_file(path: Path) -> bool:
    """Tell whether a path is named as a file of embeddings."""
    return path.suffix.lower() in SUFFIXES


def read_embeddings(path: Path | str, extractor: str | None = None) -> Embeddings:
    """Read a file of embeddings; ``extractor`` names the network where the file does not.

    Raises FileError for a file that is missing, damaged, hostile, or holds something else.
    """
    source = Path(path)
    reader = {".npz": _read_npz, ".csv": _read_csv}.get(source.suffix.lower())
    if reader is None:
        raise FileError(f"{source}: embeddings come in files named .npz or .csv")
    try:
        values, names, known = reader(source)
        return Embeddings(values, names, Extractor(known or extractor or "unknown"))
    except (FileError, InputError) as cause:
        reason = str(cause).removeprefix(f"{source}: ")
        raise FileError(f"{source}: not a usable file of embeddings: {reason}") from cause


def save_embeddings(path: Path | str, embeddings: Embeddings) -> None:
    """Write embeddings as npz, atomically. They are clear: anyone who reads the file knows the faces."""
    arrays = {
        "embedding": embeddings.values.astype("<f4"),
        "name": np.array(embeddings.names or [""], np.str_)[: len(embeddings)],
        "extractor": np.array(embeddings.extractor.name),
    }
    write_file(path, lambda file: np.savez(file, allow_pickle=False, **arrays), private=True)


def read_column(path: Path | str, name: str) -> NDArray[Any]:
    """Return another array (N,) of an npz file, for example labels; raise FileError if it has none of that name."""
    source = Path(path)
    column = read_member(source, (name,), None)
    if column is None or column.ndim != 1:
        raise FileError(f"{source}: it has no list {name!r:.80}")
    return column


def _read_npz(source: Path) -> tuple[Any, tuple[str, ...], str]:
    values = read_member(source, VALUES, FLOATS)
    names = read_member(source, NAMES, None)
    extractor = read_member(source, EXTRACTOR, None)
    if values is None:
        raise FileError(f"it has no array {' or '.join(VALUES)} of numbers")
    if names is not None and (names.dtype.kind not in "Uiu" or names.shape != values.shape[:1]):
        raise FileError(f"its names are not one text for each of {len(values)} rows")
    if extractor is not None and (extractor.dtype.kind != "U" or extractor.size != 1):
        raise FileError("its extractor is not a text")
    return (
        values,
        () if names is None else tuple(str(name) for name in names),
        "" if extractor is None else str(extractor.reshape(())[()]),
    )


def _read_csv(source: Path) -> tuple[Any, tuple[str, ...], str]:
    with open_text(source, largest=LARGEST_TABLE, newline="") as lines:
        try:
            rows = [(reader_line, row) for reader_line, row in enumerate(csv.reader(lines), 1) if row]
        except csv.Error as cause:
            raise FileError(f"it is not a table: {cause}") from cause
    if rows and rows[0][1][0].strip().lower() == "name":
        del rows[0]
    if not rows:
        raise FileError("it has no line")
    width, values = len(rows[0][1]), []
    for line, row in rows:
        try:
            values.append([float(cell) for cell in row[1:]])
        except ValueError as cause:
            raise FileError(f"line {line} is not 'name,number,number,...'") from cause
        if len(row) != width or width < 2:
            raise FileError(f"line {line} has {len(row) - 1} numbers, the first has {width - 1}")
    return np.array(values), tuple(row[0].strip() for _, row in rows), ""
