# SPDX-License-Identifier: Apache-2.0
"""The file an archive is written to before it takes its place: locked, append-only, salvageable.

Knows blocks, not features. A block is on its way to the disk before the next begins, and nothing before it is
ever changed, so whatever ends the process leaves every finished block intact.
"""

import logging
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from sfumato.errors import ArchiveError, InputError
from sfumato.store import encode
from sfumato.store.decode import LARGEST_HEADER, Source
from sfumato.store.image import Arrays, read_block
from sfumato.store.layout import VERSION, Header, encode_name
from sfumato.store.read import explained

MARK = b"sfumato-part".ljust(encode.SUPERBLOCK_SIZE, b"\0")
"""Stands where the superblock will be, so that nobody takes an unfinished file for an archive."""
MARGIN = 2**20
WINDOW = 2**20

log = logging.getLogger(__name__)


class Part:
    """An unfinished archive, open and locked. ``addresses`` maps image names to their blocks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.addresses: dict[str, int] = {}
        self.end = encode.SUPERBLOCK_SIZE
        self.version = VERSION
        self._table_size = 0
        with explained(f"can not write {path}", "check the folder and its permissions"):
            self.fd = open_locked(path)
        try:
            start = os.pread(self.fd, len(MARK), 0)
            self.is_fresh = not start
            if not (MARK.startswith(start) or start.startswith(encode.SIGNATURE)):
                raise ArchiveError(f"{path} is in the way: it is not an unfinished archive; move it away")
        except BaseException:
            self.close()
            raise

    def discard(self) -> None:
        """Forget what is in the file."""
        size = os.fstat(self.fd).st_size
        if size > len(MARK):
            log.warning("discarding %s (%d bytes), left by an interrupted run", self.path, size)
        self._restart()

    def salvage(self) -> Iterator[Header]:
        """Yield the header of every intact image of an interrupted run; go on behind the last one."""
        source, address = Source.of(self.fd), encode.SUPERBLOCK_SIZE
        while address < source.size:
            try:
                header, end = read_block(source, address)
            except InputError:
                following = _next_block(source, address + encode.ALIGNMENT)
                dropped = (following or source.size) - address
                log.warning("%s: dropped %d bytes at byte %d that are no intact image", self.path, dropped, address)
                if following is None:
                    break
                self._blank(address, following)  # a second lifting beside a broken first one would reveal both
                address = following
                continue
            if header.name not in self.addresses:
                self.remember(header.name, address, header.version)
                yield header
            address = self.end = end
        if not self.addresses and os.pread(self.fd, 8, 0) == encode.SIGNATURE:
            raise ArchiveError(f"{self.path} is in the way: an HDF5 file without an image in it; move it away")
        self._restart()

    def add(self, header: Header, arrays: Arrays) -> None:
        """Write a block. An error or an interrupt leaves the file as it was before."""
        head, places, end = encode.block_head(header, self.end)
        with explained(
            f"can not write {self.path}", f"{len(self.addresses)} images are in it; free space and run again"
        ):
            self._need(end - self.end)
            if self._table_size + len(encode_name(header.name)) > LARGEST_HEADER - MARGIN:
                raise InputError("too many images for one archive: begin another")
            try:
                self._write(head, self.end)
                for array, place in zip(arrays, places, strict=True):
                    if array.size:
                        self._write(array.reshape(-1).view("u1").data, place)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(self.fd, self.end)
                raise
        address, self.end = self.end, end
        self.remember(header.name, address, header.version)

    def remember(self, name: str, address: int, version: int) -> None:
        """Enter an image in the table of links; ``version`` of the format can hold it."""
        self.version = max(self.version, version)
        self.addresses[name] = address
        self._table_size += encode.LINK_SIZE + len(encode_name(name))

    def copy(self, source: Source, size: int) -> None:
        """Begin with the blocks in the first ``size`` bytes of another file."""
        with explained(f"can not write {self.path}", "free space and run again"):
            self._need(size)
            for address in range(self.end, size, WINDOW):
                self._write(source.read(address, min(WINDOW, size - address), "the archive"), address)
        self.end = max(self.end, encode.aligned(size))

    def seal(self) -> None:
        """Write the table of links, the root and, last, the superblock; then wait for the disk."""
        links = {encode_name(name): address for name, address in self.addresses.items()}
        table, root, end = encode.tail(links, self.end, self.version)
        with explained(
            f"can not finish {self.path}", f"{len(self.addresses)} images are in it; free space and run again"
        ):
            self._need(len(table))
            self._write(table, self.end)
            os.ftruncate(self.fd, end)
            os.fsync(self.fd)
            self._write(encode.superblock(end, root), 0)
            os.fsync(self.fd)

    def move_to(self, target: Path) -> None:
        """Put the sealed file in the place of ``target``, at once."""
        with explained(f"can not replace {target}", f"the finished archive is {self.path}: move it there by hand"):
            os.replace(self.path, target)
            with suppress(OSError):  # some file systems can not synchronise a folder
                folder = os.open(target.parent, os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)

    def remove(self) -> None:
        """Delete the file."""
        with suppress(FileNotFoundError):
            self.path.unlink()

    def close(self) -> None:
        """Close the file, which releases the lock."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def _restart(self) -> None:
        """Mark the file as unfinished and cut what is behind the last block."""
        with explained(f"can not write {self.path}", "free space and run again"):
            self._write(MARK, 0)
            os.ftruncate(self.fd, self.end)

    def _blank(self, start: int, stop: int) -> None:
        """Overwrite a gap with zeros."""
        with explained(f"can not write {self.path}", "check its permissions"):
            for address in range(start, stop, WINDOW):
                self._write(bytes(min(WINDOW, stop - address)), address)

    def _need(self, size: int) -> None:
        free = shutil.disk_usage(self.path.parent).free
        if free < size + MARGIN:
            raise InputError(f"the disk is full: {size + MARGIN} bytes are needed and {free} are free")

    def _write(self, data: bytes | memoryview, address: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self.fd, view[: 2**30], address)
            view, address = view[written:], address + written


def _next_block(source: Source, address: int) -> int | None:
    """Return the address of the next intact block, searched for byte by byte."""
    while address < source.size:
        window = source.read(address, min(WINDOW + 4, source.size - address), "the next block")
        at = window.find(b"OHDR")
        while at >= 0:
            if (address + at) % encode.ALIGNMENT == 0:
                with suppress(InputError):
                    read_block(source, address + at)
                    return address + at
            at = window.find(b"OHDR", at + 1)
        address += WINDOW
    return None


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
