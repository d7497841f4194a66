# SPDX-License-Identifier: Apache-2.0
"""Atomic writes of files and folders, and locks: one writer at a time.

A file is written beside its place and then moved there: after Ctrl-C, a kill or a full disk the old file is still
there, or none. Locks end with the process that holds them. They are made here and not by ``filelock``, because an
archive or journal in the making locks the file itself, refuses links and pipes in its place, and goes on with a warning
on file systems without locks; a lock beside a file then takes one more function.
"""

import logging
import os
import secrets
import shutil
import signal
import stat
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from sfumato.errors import ArchiveError, FileError, InputError, SfumatoError

log = logging.getLogger(__name__)


def write_file(
    path: str | os.PathLike[str], write: bytes | Callable[[BinaryIO], Any], *, with_folder: bool = False
) -> None:
    """Make or replace a file from bytes, or with a function that writes them; ``with_folder`` also makes its folder.

    A link is followed: its target is replaced.

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
                with suppress(FileNotFoundError):  # the new file has the access rights of the old one
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


def check_output(path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Check before long work that a file can be written: its folder exists, and it does not, unless ``overwrite``.

    Raises FileError.
    """
    target = Path(path)
    if target.exists() and not overwrite:
        raise FileError(
            f"{target} is already there: choose another file, or overwrite it (--overwrite, overwrite=True)"
        )
    if not target.parent.is_dir():
        raise FileError(f"{target.parent} is not a folder: make it first")


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


def replace_file(new: Path, target: Path) -> None:
    """Move a finished file to its place, at once, and wait until the disk knows."""
    os.replace(new, target)
    with suppress(OSError):  # some file systems cannot synchronise a folder
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def explain_errors(what: str, advice: str, error: type[FileError] = FileError) -> Iterator[None]:
    """Turn every problem of a file into an ``error`` that says what happened, where, and what to do."""
    try:
        yield
    except InputError as cause:
        raise error(f"{what}: {cause}; {advice}") from cause
    except SfumatoError:
        raise
    except (OSError, RuntimeError) as cause:
        raise error(f"{what}: {getattr(cause, 'strerror', None) or cause}; {advice}") from cause


# --- locks: for a file that is read, changed and replaced the lock is a file beside it

WAIT_SECONDS, PAUSE_SECONDS = 60.0, 0.02


@contextmanager
def file_lock(path: str | os.PathLike[str], wait: float = WAIT_SECONDS) -> Iterator[None]:
    """Keep other writers of a file away; wait for one that is at work, at most ``wait`` seconds.

    Raises FileError if another writer does not finish, or its folder cannot be written.
    """
    target = Path(os.path.realpath(path))
    beside, deadline = target.with_name(f".{target.name}.lock"), time.monotonic() + wait
    while True:
        try:
            lock = open_locked(beside)
            break
        except ArchiveError as cause:
            if time.monotonic() > deadline:
                raise FileError(f"{target} is being changed by another process; try again when it is done") from cause
            time.sleep(PAUSE_SECONDS)
        except OSError as cause:
            raise FileError(f"{target}: cannot be written: {cause.strerror or cause}; check its folder") from cause
    try:
        yield
    finally:
        with suppress(OSError):
            beside.unlink()  # a waiting writer sees that it is gone, and begins anew
        os.close(lock)


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
        os.close(fd)  # a writer that just finished moved the file away


def _lock(fd: int, path: Path) -> None:
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as cause:
        raise ArchiveError(f"{path} is being written by another writer; wait for it, or choose another path") from cause
    except OSError:
        log.warning("%s is on a file system without locks: nothing keeps a second writer away", path)


class LockedFile:
    """A file that one writer appends to, locked until it is closed or the process ends.

    ``end`` is where the next append begins; nothing before it is ever changed, so whatever ends the process leaves it
    intact.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.end = path, 0
        self.fd = open_locked(path)

    def write(self, data: bytes | memoryview, address: int) -> None:
        """Write all of the data at an address."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self.fd, view[: 2**30], address)
            view, address = view[written:], address + written

    @contextmanager
    def rollback(self) -> Iterator[None]:
        """Cut what was written behind ``end`` if the block ends with an error or an interrupt."""
        try:
            yield
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self.fd, self.end)
            raise

    def remove(self) -> None:
        """Delete the file."""
        with suppress(FileNotFoundError):
            self.path.unlink()

    def close(self) -> None:
        """Close the file, which releases the lock."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


FRAME = struct.Struct("<II")
LARGEST_RECORD = 2**31
SYNC_SECONDS, SYNC_BYTES = 5.0, 64 * 2**20
"""Whichever comes first: what a power failure may cost at most. A kill costs nothing that was added."""


class RecordFile(LockedFile):
    """A journal of unfinished work: a mark, a record of its purpose, and a record for each piece that is done.

    A record is its length, the CRC-32 of its payload, and the payload, all little-endian. The file is readable after a
    kill at any moment. ``purpose`` says what is being made, and is empty as long as nothing does; ``kind`` names in
    errors what the file is.
    """

    def __init__(self, path: Path, mark: bytes, kind: str) -> None:
        self.mark, self.kind, self.purpose = mark, kind, ""
        self._sync_time, self._unsynced = time.monotonic(), 0
        with explain_errors(f"cannot write {path}", "check the folder and its permissions"):
            super().__init__(path)
        try:
            with explain_errors(f"cannot read {path}", "move it away"):
                self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        start = os.pread(self.fd, len(self.mark), 0)
        if not self.mark.startswith(start):
            raise FileError(f"{self.path} is in the way: it is not {self.kind}; move it away")
        payload = self.payload(len(self.mark))
        if payload is not None:
            self.purpose = payload.decode("utf-8", "replace")
            self.end = len(self.mark) + FRAME.size + len(payload)

    def begin(self, purpose: str) -> None:
        """Forget what is in the file and say what is being made."""
        with explain_errors(f"cannot write {self.path}", "free space and run again"):
            os.ftruncate(self.fd, 0)
            self.write(self.mark + framed(purpose.encode()), 0)
        self.purpose, self.end = purpose, len(self.mark) + FRAME.size + len(purpose.encode())

    def payloads(self) -> Iterator[tuple[int, bytes]]:
        """Yield every intact record of an interrupted run with its address; ``cut`` what is behind the last."""
        while (payload := self.payload(self.end)) is not None:
            yield self.end, payload
            self.end += FRAME.size + len(payload)

    def cut(self) -> None:
        """Cut off what is behind ``end``: the record that was being written when the process ended."""
        size = os.fstat(self.fd).st_size
        if size > self.end:
            log.warning("%s: dropped %d bytes at its end that are not a complete record", self.path, size - self.end)
            with explain_errors(f"cannot write {self.path}", "check its permissions"):
                os.ftruncate(self.fd, self.end)

    def add(self, payload: bytes) -> int:
        """Write a record and return its address. When this returns, a kill no longer loses it."""
        record = framed(payload)
        with explain_errors(f"cannot write {self.path}", "what is in it stays; free space and run again"):
            with self.rollback():
                self.write(record, self.end)
            self._unsynced += len(record)
            if self._unsynced > SYNC_BYTES or time.monotonic() - self._sync_time > SYNC_SECONDS:
                self.sync()
        address, self.end = self.end, self.end + len(record)
        return address

    def sync(self) -> None:
        """Wait until everything is on the disk."""
        os.fsync(self.fd)
        self._sync_time, self._unsynced = time.monotonic(), 0

    def payload(self, address: int) -> bytes | None:
        """Return the payload of the record at an address, or None if no intact one is there."""
        frame = os.pread(self.fd, FRAME.size, address)
        if len(frame) < FRAME.size:
            return None
        length, checksum = FRAME.unpack(frame)
        if length > min(LARGEST_RECORD, os.fstat(self.fd).st_size - address - FRAME.size):
            return None
        payload = os.pread(self.fd, length, address + FRAME.size)
        return payload if len(payload) == length and zlib.crc32(payload) == checksum else None


def framed(payload: bytes) -> bytes:
    """Return a payload as a record."""
    return FRAME.pack(len(payload), zlib.crc32(payload)) + payload


# --- files for libhdf5


class Sink:
    """A file for ``h5py.File(sink, ...)``; leaving the block raises the first ``error``, or synchronises the file.

    libhdf5 does not survive a write that fails: it ends the process with a segmentation fault when the file is closed.
    This file keeps the error until libhdf5 has closed it, and raises it then. Ctrl-C is such an error: raised inside a
    call from libhdf5 it would come out as another one, or not at all. So what a signal's handler raises inside the
    block is kept as ``error`` too: a long loop looks at it and stops. ``keep`` opens an existing file as it is.
    """

    def __init__(self, path: Path, *, keep: bool) -> None:
        self.error: BaseException | None = None
        self._handlers: dict[int, Callable[[int, Any], Any]] = {}
        self._position = 0
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
        """Write all of the data, or remember why not."""
        view = memoryview(data).cast("B")
        size = len(view)
        try:
            while view and self.error is None:
                written = os.pwrite(self._fd, view, self._position)
                view, self._position = view[written:], self._position + written
        except BaseException as problem:
            self._remember(problem)
        self._position += len(view)
        return size

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer; behind the end, and after an error that lost data, with zeros."""
        view = memoryview(buffer).cast("B")
        data = self._pread(len(view))
        view[: len(data)] = data
        view[len(data) :] = bytes(len(view) - len(data))
        self._position += len(view)
        return len(view)

    def read(self, size: int = -1) -> bytes:
        """Read as much as there is, at most ``size`` bytes."""
        data = self._pread(os.fstat(self._fd).st_size if size < 0 else size)
        self._position += len(data)
        return data

    def _pread(self, size: int) -> bytes:
        try:
            return os.pread(self._fd, size, self._position)
        except BaseException as problem:
            self._remember(problem)
            return b""

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: os.fstat(self._fd).st_size}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def truncate(self, size: int | None = None) -> int:
        """Set the length, or remember why not."""
        size = self._position if size is None else size
        try:
            if self.error is None:
                os.ftruncate(self._fd, size)
        except BaseException as problem:
            self._remember(problem)
        return size

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""
