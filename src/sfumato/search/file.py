# SPDX-License-Identifier: Apache-2.0
"""The file of an index: a header in JSON, then its arrays, mapped into memory when read.

16 bytes ``sfumato-index`` and a version; two 64-bit numbers, the length of the header and its checksum; the header;
then the arrays, each on a boundary of 64 bytes, in the order of the header, which tells type, shape, place and CRC-32
of each. Little-endian. A CRC finds damage, not malice: the kind that restores an index checks what its arrays point to.
"""

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError
from sfumato.files.atomic import write_file

if TYPE_CHECKING:
    from sfumato.search.index import Index

MAGIC, VERSION = b"sfumato-index\0\0", 2
ALIGNMENT, LARGEST_HEADER, CHUNK = 64, 2**24, 2**24
PREFIX = len(MAGIC) + 1 + 16
TYPES = {"|u1", "|i1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8"}
ADVICE = "copy it again, or build it again"
Arrays = dict[str, NDArray[Any]]


def write_index(path: str | os.PathLike[str], index: "Index") -> None:
    """Write an index, whole or not at all; raises FileError if it cannot be written."""
    arrays = {f"entries/{name}": array for name, array in index.entries.arrays().items()}
    arrays |= {f"{index.kind}/{name}": array for name, array in index.arrays().items()}
    header = {
        "kind": index.kind,
        "metric": index.metric,
        "params": index.saved_params(),
        "entries": index.entries.settings(),
        "settings": index.settings(),
    }
    write_arrays(path, header, arrays)


def write_arrays(path: str | os.PathLike[str], header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a header and named arrays."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    table, at = [], 0
    for name, array in contiguous.items():
        kind = array.dtype.newbyteorder("<").str
        if kind not in TYPES:
            raise TypeError(f"{name}: an index file holds no {array.dtype}")
        table.append([name, kind, list(array.shape), at, zlib.crc32(_bytes(array))])
        at += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    text = json.dumps({**header, "arrays": table}, sort_keys=True, allow_nan=False).encode("ascii")

    def write(file: BinaryIO) -> None:
        file.write(MAGIC + bytes([VERSION]))
        file.write(np.array([len(text), zlib.crc32(text)], "<u8").tobytes())
        file.write(text + b" " * (-(PREFIX + len(text)) % ALIGNMENT))
        for array in contiguous.values():
            data = _bytes(array.astype(array.dtype.newbyteorder("<"), copy=False))
            for start in range(0, len(data), CHUNK):
                file.write(data[start : start + CHUNK])
            file.write(b"\0" * (-len(data) % ALIGNMENT))

    write_file(path, write)


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def read_arrays(path: str | os.PathLike[str], *, verify: bool = True) -> tuple[dict[str, Any], Arrays]:
    """Return the header and the arrays of a file, mapped into memory and read-only.

    Sizes are always checked; ``verify`` also reads every array once and compares its checksum.

    Raises FileError for a file that is missing, of another kind or version, cut short or damaged.
    """
    place = Path(path)
    try:
        with place.open("rb") as file:
            header, data_at = _read_header(place, file)
            size = os.fstat(file.fileno()).st_size
            arrays, end = _map(place, file, header.pop("arrays"), data_at, size)
    except FileNotFoundError as cause:
        raise FileError(f"{place}: no such index") from cause
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as cause:
        raise FileError(f"{place}: the header of this index is damaged ({type(cause).__name__}); {ADVICE}") from cause
    except OSError as cause:
        if isinstance(cause, FileError):
            raise
        raise FileError(f"{place}: cannot be read: {cause.strerror or cause}") from cause
    if end != size:
        raise FileError(f"{place}: {size} bytes long, and should have {end}; {ADVICE}")
    sums = {name: checksum for name, (_, checksum) in arrays.items()}
    mapped = {name: array for name, (array, _) in arrays.items()}
    if verify:
        for name, array in mapped.items():
            if zlib.crc32(_bytes(array)) != sums[name]:
                raise FileError(f"{place}: damaged, the checksum of {name!r:.80} differs; {ADVICE}")
    return header, mapped


def _read_header(place: Path, file: BinaryIO) -> tuple[dict[str, Any], int]:
    start = file.read(PREFIX)
    if len(start) < PREFIX or start[: len(MAGIC)] != MAGIC:
        raise FileError(f"{place}: this is not an index; make one with: sfumato index build")
    if start[len(MAGIC)] != VERSION:
        raise FileError(
            f"{place}: an index of version {start[len(MAGIC)]}, this program reads {VERSION}; build it again"
        )
    length, checksum = (int(number) for number in np.frombuffer(start[len(MAGIC) + 1 :], "<u8"))
    if length > LARGEST_HEADER:
        raise FileError(f"{place}: the header of this index is damaged; {ADVICE}")
    text = file.read(length)
    if len(text) != length or zlib.crc32(text) != checksum:
        raise FileError(f"{place}: the header of this index is damaged; {ADVICE}")
    header = json.loads(text)
    if not isinstance(header, dict) or not isinstance(header.get("arrays"), list):
        raise FileError(f"{place}: the header of this index is damaged; {ADVICE}")
    return header, -(-(PREFIX + length) // ALIGNMENT) * ALIGNMENT


def _map(place: Path, file: BinaryIO, table: list[Any], data_at: int, size: int) -> tuple[dict[str, Any], int]:
    """Return the arrays with their checksums, and where the last of them ends."""
    arrays: dict[str, Any] = {}
    end = data_at
    for name, kind, shape, at, checksum in table:
        if kind not in TYPES or name in arrays or any(not isinstance(n, int) or n < 0 for n in shape):
            raise ValueError("array")
        count = 1
        for length in shape:
            count *= length
        nbytes = count * np.dtype(kind).itemsize
        if at != end - data_at or end + nbytes > size:
            raise FileError(f"{place}: cut short, or its header is damaged; {ADVICE}")
        if nbytes:
            mapped = np.asarray(np.memmap(file, kind, "r", data_at + at, tuple(shape)))
        else:
            mapped = np.zeros(tuple(shape), kind)
        arrays[name] = mapped, checksum
        end += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return arrays, end


def refuse_existing(
    path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str] | None], *, overwrite: bool
) -> None:
    """Raise FileError if a result cannot be written to a path: it is read, or it is there and not to be replaced."""
    if not os.path.exists(path):
        return
    for source in inputs:
        if source is not None and os.path.exists(source) and os.path.samefile(path, source):
            raise FileError(f"{path} is read by this command: choose another output")
    if not overwrite:
        raise FileError(f"{path} exists: choose another path, or overwrite it (--overwrite, overwrite=True)")


def is_index_file(path: str | os.PathLike[str]) -> bool:
    """Tell whether a file begins as an index does, whatever its version; False where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def part_of(arrays: Arrays, prefix: str) -> Arrays:
    """Return the arrays whose names begin with a prefix, without it."""
    return {name.removeprefix(f"{prefix}/"): array for name, array in arrays.items() if name.startswith(f"{prefix}/")}
