# SPDX-License-Identifier: Apache-2.0
"""A file that libhdf5 can write to on a disk that becomes full.

libhdf5 does not survive a failing write: it ends the process with a segmentation fault when the file is closed. This
file swallows the error, plays along until libhdf5 has closed it, and raises the error then. Ctrl-C is such an error:
raised inside a call from libhdf5 it would come out as another one, or not at all. Knows no HDF5.
"""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any


class Sink:
    """A file for ``h5py.File(sink, ...)``; leaving the block raises the first ``error`` there was, or syncs the file.

    ``keep`` opens what is there instead of beginning anew. Inside the block, what a signal's handler raises is kept as
    ``error`` too: whoever writes for long looks at it and stops.
    """

    def __init__(self, path: Path, *, keep: bool) -> None:
        self.error: BaseException | None = None
        self._handlers: dict[int, Callable[[int, Any], Any]] = {}
        self._place = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if keep else os.O_TRUNC), 0o666)

    def __enter__(self) -> "Sink":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: Any) -> None:
        try:
            self._handlers[number](number, frame)
        except BaseException as problem:
            self._remember(problem)

    def _remember(self, problem: BaseException) -> None:
        self.error = self.error or problem

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.flush()
            if self.error is None:
                os.fsync(self._fd)
        finally:
            os.close(self._fd)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
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
        except BaseException as problem:
            self._remember(problem)
        self._place += len(view)
        return size

    def readinto(self, buffer: Any) -> int:
        """Read all of it; behind the end, and once an error has lost something, there are zeros."""
        view = memoryview(buffer).cast("B")
        found = self._pread(len(view))
        view[: len(found)] = found
        view[len(found) :] = bytes(len(view) - len(found))
        self._place += len(view)
        return len(view)

    def read(self, size: int = -1) -> bytes:
        """Read as much as there is, at most ``size`` bytes."""
        found = self._pread(os.fstat(self._fd).st_size if size < 0 else size)
        self._place += len(found)
        return found

    def _pread(self, size: int) -> bytes:
        try:
            return os.pread(self._fd, size, self._place)
        except BaseException as problem:
            self._remember(problem)
            return b""

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
        except BaseException as problem:
            self._remember(problem)
        return size

    def flush(self) -> None:
        """Do nothing: every write is on its way already."""
