# SPDX-License-Identifier: Apache-2.0
"""Files and folders that appear whole or not at all: written beside their place, then moved there.

Knows bytes and paths. After Ctrl-C, a kill or a full disk the old file is still there, or none.
"""

import logging
import os
import secrets
import shutil
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from sfumato.errors import ArchiveError, FileError, InputError

log = logging.getLogger(__name__)


def write_file(
    path: str | os.PathLike[str], write: bytes | Callable[[BinaryIO], Any], *, with_folder: bool = False
) -> None:
    """Make or replace a file from bytes, or by a function that writes them; ``with_folder`` also makes its folder.

    A link is followed: what it leads to is replaced.

    Raises FileError if it cannot be written.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        if with_folder:
            target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            try:
                file.write(write) if isinstance(write, bytes) else write(file)
                file.flush()
                os.fsync(file.fileno())
                with suppress(FileNotFoundError):  # who might read the old file may read the new one, and nobody else
                    temporary.chmod(stat.S_IMODE(target.stat().st_mode))
                os.replace(temporary, target)
            except BaseException:
                temporary.unlink()
                raise
    except OSError as cause:
        if isinstance(cause, FileError):
            raise
        raise FileError(
            f"{path}: cannot be written: {cause.strerror or cause}; choose another path or free space"
        ) from cause


def write_text(path: str | os.PathLike[str], text: str, *, with_folder: bool = False) -> None:
    """Make or replace a text file; raises FileError if it cannot be written."""
    write_file(path, text.encode("utf-8"), with_folder=with_folder)


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give an empty folder that takes the place ``path`` when the block ends, and is removed if it ends with an error.

    Raises FileError if something other than an empty folder is there, or the folder cannot be written.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise FileError(f"{target} is already there: choose another folder")
        temporary.mkdir(parents=True)
        yield temporary
        os.replace(temporary, target)
    except OSError as cause:
        if isinstance(cause, FileError):
            raise
        raise FileError(f"{target}: cannot be written: {cause.strerror or cause}") from cause
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


# ----------------------------------------------------------------
# One writer at a time for a file that is read, changed and replaced: others wait for their turn
# The lock is a file beside it, which ends with the process that holds it. Knows paths, not what the files hold.


WAIT_SECONDS, PAUSE_SECONDS = 60.0, 0.02


@contextmanager
def locked(path: str | os.PathLike[str], wait: float = WAIT_SECONDS) -> Iterator[None]:
    """Keep other writers of a file away; waits for one that is there, but not for ever.

    Raises FileError if another writer does not finish, or its folder cannot be written.
    """
    target = Path(os.path.realpath(path))
    beside, until = target.with_name(f".{target.name}.lock"), time.monotonic() + wait
    while True:
        try:
            lock = open_locked(beside)
            break
        except ArchiveError as cause:
            if time.monotonic() > until:
                raise FileError(f"{target} is being changed by another process; try again when it is done") from cause
            time.sleep(PAUSE_SECONDS)
        except OSError as cause:
            raise FileError(f"{target}: cannot be written: {cause.strerror or cause}; check its folder") from cause
    try:
        yield
    finally:
        with suppress(OSError):
            beside.unlink()  # who waits for it sees that it is gone, and begins anew
        os.close(lock)


# ----------------------------------------------------------------
# A file that libhdf5 can write to on a disk that becomes full
# libhdf5 does not survive a failing write: it ends the process with a segmentation fault when the file is closed. This
# file swallows the error, plays along until libhdf5 has closed it, and raises the error then. Ctrl-C is such an error:
# raised inside a call from libhdf5 it would come out as another one, or not at all. Knows no HDF5.


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


def open_locked(path: Path) -> int:
    """Open or create a file and lock it; the lock ends with the process."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            _lock(fd, path)
            here = os.fstat(fd)
            if not stat.S_ISREG(here.st_mode):
                raise InputError("it is not a file")
            with suppress(FileNotFoundError):
                if os.path.samestat(here, os.stat(path, follow_symlinks=False)):
                    return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # a writer that just finished had moved it to its place


def _lock(fd: int, path: Path) -> None:
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as cause:
        raise ArchiveError(f"{path} is being written by another writer; wait for it, or choose another path") from cause
    except OSError:
        log.warning("%s is on a file system without locks: nothing keeps a second writer away", path)
