# SPDX-License-Identifier: Apache-2.0
"""HDF5 files of unknown origin, read with h5py: what a damaged or hostile file could do is refused first.

Links, data of other files, foreign filters and arrays larger than the file are refused. A damaged file fails in many
ways inside h5py; ``explain_damage`` turns all of them into a FileError. Knows no format that is kept in HDF5.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sfumato.errors import FileError, InputError, SfumatoError

SIGNATURE = b"\x89HDF\r\n\x1a\n"
FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
LARGEST_RATIO = 1100
"""No filter of these makes data smaller than one 1,032nd."""
DAMAGE = (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, SystemError)
"""Errors of h5py on a damaged file."""


def open_hdf5(path: Path, advice: str = "check where it comes from") -> Any:
    """Open a file to read; raises FileError if it is not a complete HDF5 file."""
    import h5py

    try:
        return h5py.File(path, "r", locking="best-effort")
    except (OSError, RuntimeError, ValueError) as cause:
        raise FileError(f"{path} is not a complete HDF5 file; {advice}") from cause


def is_member(group: Any, key: str) -> bool:
    """Tell whether a group holds a member itself, not by a link to somewhere else."""
    import h5py

    return isinstance(group.get(key, getlink=True), h5py.HardLink)


def find_group(parent: Any, key: str) -> Any:
    """Return a group in a group; raises InputError for anything else."""
    import h5py

    if not is_member(parent, key):
        raise InputError(f"{key!r:.80} is missing, or a link to somewhere else: links are refused")
    group = parent[key]
    if not isinstance(group, h5py.Group):
        raise InputError(f"{key!r:.80} is not a group")
    return group


def find_array(group: Any, key: str, file_size: int) -> Any:
    """Return the dataset of an array that the file really holds; raises InputError for anything else."""
    import h5py

    if not is_member(group, key):
        raise InputError(f"{key} is missing, or a link to somewhere else: links are refused")
    data = group[key]
    if not isinstance(data, h5py.Dataset):
        raise InputError(f"{key} is not an array")
    if data.is_virtual or data.external:
        raise InputError(f"{key} lies in another file: that is refused")
    plan = data.id.get_create_plist()
    filters = {plan.get_filter(i)[0] for i in range(plan.get_nfilters())}
    if not filters <= set(FILTERS):
        raise InputError(f"{key} is packed in a way other than {', '.join(FILTERS.values())}")
    stored = min(data.id.get_storage_size(), file_size)
    if data.size * data.dtype.itemsize > stored * (LARGEST_RATIO if filters else 1):
        raise InputError(f"{key} declares {data.shape} numbers, the file holds only {stored} bytes of them")
    return data


def find_plain_arrays(file: Any, kinds: Mapping[str, tuple[str, int]], file_size: int) -> dict[str, Any]:
    """Return the arrays of a file that holds exactly these: ``kinds`` are type and number of dimensions of each.

    Each must be stored in one piece and unpacked.
    """
    if set(file) != set(kinds):
        raise InputError("this is another kind of file")
    arrays = {}
    for key, (dtype, rank) in kinds.items():
        data = find_array(file, key, file_size)
        if data.dtype.str != dtype or len(data.shape) != rank:
            raise InputError(f"{key} is not an array of type {dtype} and {rank} dimensions")
        if data.chunks is not None or (data.size and data.id.get_storage_size() != data.size * data.dtype.itemsize):
            raise InputError(f"{key} is not stored in one piece")
        arrays[key] = data
    return arrays


@contextmanager
def explain_damage(where: str | os.PathLike[str], advice: str) -> Iterator[None]:
    """Say in which file, and where in it, something went wrong, and what to do."""
    try:
        yield
    except InputError as cause:
        raise FileError(f"{where}: {cause}; {advice}") from cause
    except SfumatoError:
        raise
    except DAMAGE as cause:
        raise FileError(f"{where} is damaged: {cause}; {advice}") from cause


class Hdf5File:
    """A file of unknown origin, open to read until it is closed; ``what`` it is and the ``advice`` stand in errors."""

    def __init__(self, path: str | os.PathLike[str], what: str, advice: str) -> None:
        self.path = Path(path)
        self._what, self._advice = what, advice
        if not self.path.is_file():
            raise FileError(f"{self.path}: no such {what}; check the path")
        self._file = open_hdf5(self.path, advice)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _explain_damage(self, where: str = "") -> Iterator[None]:
        """Say in which file, and where in it, something went wrong."""
        if not self._file:
            raise FileError(f"the {self._what} {self.path} is closed; load it again")
        with explain_damage(f"{self.path}{where}", self._advice):
            yield
