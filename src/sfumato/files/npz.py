# SPDX-License-Identifier: Apache-2.0
"""Reader of npz files that nobody trusts: nothing is unpickled, and nothing much larger than the file is allocated.

Our own files hold known arrays, uncompressed (``read_npz``); from other files one array is read (``read_member``).
"""

import io
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError
from sfumato.files.atomic import ANY_SIZE, open_file

Types = tuple[str, ...] | None
"""The types of numbers that an array may have, in numpy's notation; None for any but objects."""


DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, MemoryError)
"""Errors of zipfile, zlib and numpy on a damaged file."""


@contextmanager
def _open_zip(source: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive; raise FileError for everything that zipfile and zlib raise for a damaged one."""
    with open_file(source, ANY_SIZE) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                yield archive
        except FileError as cause:
            raise FileError(f"{source}: {cause}; check the path") from cause
        except (*DAMAGE, OSError) as cause:
            raise FileError(f"{source}: not an npz file, or a damaged one ({cause}); check the path") from cause


def read_npz(source: Path, types: Mapping[str, Types], optional: Collection[str] = ()) -> dict[str, NDArray[Any]]:
    """Read the arrays of a file, by name: exactly those of ``types``, of which the ``optional`` may be missing.

    Raises FileError for a file that cannot be read, and for other contents.
    """
    arrays = {}
    with _open_zip(source) as archive:
        names = [info.filename.removesuffix(".npy") for info in archive.infolist()]
        required = set(types) - set(optional)
        if len(names) != len(set(names)) or not required <= set(names) <= set(types):
            also = "".join(f" and optionally {name}" for name in optional)
            raise FileError(f"it does not hold exactly {', '.join(name for name in types if name in required)}{also}")
        for info, name in zip(archive.infolist(), names, strict=True):
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                raise FileError(f"{name} is compressed; these files are not")
            arrays[name] = parse_array(archive.read(info), name, types[name])
    return arrays


LARGEST_GROWTH, LARGEST_SMALL = 64, 2**26
"""A compressed array may be this many times as large as its file, or this many bytes, whichever is more."""


def read_member(source: Path, names: Collection[str], types: Types) -> NDArray[Any] | None:
    """Read the one array of a file that has one of these names, compressed or not; None if there is none.

    Raises what ``read_npz`` raises.
    """
    with _open_zip(source) as archive:
        members = [info for info in archive.infolist() if info.filename.removesuffix(".npy") in names]
        if not members:
            return None
        if len(members) > 1:
            raise FileError(f"it has more than one array {' or '.join(names)}")
        largest = max(LARGEST_SMALL, LARGEST_GROWTH * source.stat().st_size)
        if members[0].file_size > largest:
            raise FileError(f"{members[0].filename} would become much larger than its file")
        with archive.open(members[0]) as stream:
            data = stream.read(largest + 1)
        return parse_array(data, members[0].filename.removesuffix(".npy"), types)


def parse_array(data: bytes, name: str, types: Types) -> NDArray[Any]:
    """Return the array of an npy file, read-only; its declared shape is checked first."""
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    except Exception as cause:  # numpy's parser of headers lets errors of Python's own parser through
        raise FileError(f"{name} is not an npy array") from cause
    if version != (1, 0):
        raise FileError(f"{name} is not a version 1.0 npy array")
    if dtype.hasobject or (types is not None and dtype.str not in types):
        raise FileError(f"{name} has the wrong type of numbers")
    if fortran:
        raise FileError(f"{name} is stored column by column: save numpy.ascontiguousarray of it")
    left = len(data) - stream.tell()
    if any(length < 0 for length in shape) or int(np.prod(shape, dtype=object)) * dtype.itemsize != left:
        raise FileError(f"{name} declares another size than it has")
    return np.frombuffer(data, dtype, offset=stream.tell()).reshape(shape)
