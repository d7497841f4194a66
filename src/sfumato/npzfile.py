# SPDX-License-Identifier: Apache-2.0
"""Uncompressed npz files of known arrays, read with suspicion: nothing is unpickled or made larger than the file.

Knows names and types of arrays, not what they mean.
"""

import io
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError

Types = tuple[str, ...] | None
"""The types of numbers that an array may have, in numpy's notation; None for any but objects."""


def read_npz(source: Path, types: Mapping[str, Types], optional: Collection[str] = ()) -> dict[str, NDArray[Any]]:
    """Read the arrays of a file, by name: exactly those of ``types``, of which the ``optional`` may be missing.

    Raises FileError for other contents, OSError and what zipfile raises (BadZipFile, NotImplementedError, RuntimeError)
    for a file that can not be read; none of these names the file.
    """
    arrays = {}
    with zipfile.ZipFile(source) as archive:
        names = [info.filename.removesuffix(".npy") for info in archive.infolist()]
        wanted = set(types) - set(optional)
        if len(names) != len(set(names)) or not wanted <= set(names) <= set(types):
            perhaps = "".join(f" and perhaps {name}" for name in optional)
            raise FileError(f"it does not hold exactly {', '.join(one for one in types if one in wanted)}{perhaps}")
        for info, name in zip(archive.infolist(), names, strict=True):
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                raise FileError(f"{name} is compressed; these files are not")
            arrays[name] = parse_array(archive.read(info), name, types[name])
    return arrays


def parse_array(data: bytes, name: str, types: Types) -> NDArray[Any]:
    """Return the array of an npy file, checked against its declared shape before it is made; it is read-only."""
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    except Exception as cause:  # numpy's parser of headers lets errors of Python's own parser through
        raise FileError(f"{name} is not an npy array") from cause
    if version != (1, 0):
        raise FileError(f"{name} is not a version 1.0 npy array")
    if dtype.hasobject or fortran or (types is not None and dtype.str not in types):
        raise FileError(f"{name} has the wrong type of numbers")
    left = len(data) - stream.tell()
    if any(length < 0 for length in shape) or int(np.prod(shape, dtype=object)) * dtype.itemsize != left:
        raise FileError(f"{name} declares another size than it has")
    return np.frombuffer(data, dtype, offset=stream.tell()).reshape(shape)
