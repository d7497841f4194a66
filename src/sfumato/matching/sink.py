# SPDX-License-Identifier: Apache-2.0
"""A file that libhdf5 can write to on a disk that becomes full.

libhdf5 does not survive a failing write: it ends the process with a segmentation fault when the file is closed. This
file swallows the error, plays along until libhdf5 has closed it, and raises the error then. Knows no HDF5.
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Any


class Sink:
    """A file for ``h5py.File(sink, ...)``; leaving the block raises the first ``error`` there was, or syncs the file.

    ``keep`` opens what is there instead of beginning anew.
    """

    def __init__(self, path: Path, *, keep: bool) -> None:
        self.error: OSError | None = None
        self._place = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if keep else os.O_TRUNC), 0o666)

    def __enter__(self) -> "Sink":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.flush()
            if self.error is None:
                os.fsync(self._fd)
        finally:
            os.close(self._fd)
        if self.error is not None:
            raise self.error

    def write(self, data: Any) -> int:
        """Write all of it, or remember why not."""
        view = memoryview(data).cast("B")
        size = len(view)
        try:
            while view and self.error is None:
                written = os.pwrite(self._fd, view, self._place)
                view, self._place = view[written:], self._place + written
        except OSError as problem:
            self.error = problem
        self._place += len(view)
        return size

    def readinto(self, buffer: Any) -> int:
        """Read all of it; behind the end, and once an error has lost something, there are zeros."""
        view = memoryview(buffer).cast("B")
        found = os.pread(self._fd, len(view), self._place)
        view[: len(found)] = found
        view[len(found) :] = bytes(len(view) - len(found))
        self._place += len(view)
        return len(view)

    def read(self, size: int = -1) -> bytes:
        """Read as much as there is, at most ``size`` bytes."""
        found = os.pread(self._fd, os.fstat(self._fd).st_size if size < 0 else size, self._place)
        self._place += len(found)
        return found

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: os.fstat(self._fd).st_size}[whence]
        self._place = start + offset
        return self._place

    def tell(self) -> int:
        """Return the place."""
        return self._place

    def truncate(self, size: int | None = None) -> int:
        """Set the length, or remember why not."""
        size = self._place if size is None else size
        try:
            if self.error is None:
                os.ftruncate(self._fd, size)
        except OSError as problem:
            self.error = problem
        return size

    def flush(self) -> None:
        """Do nothing: every write is on its way already."""
