# SPDX-License-Identifier: Apache-2.0
"""Writer of archives, one image at a time, that loses nothing written.

Accepts ConcealedFeatures and nothing else. Never imports the clear types.
"""

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from sfumato.errors import ArchiveError, InputError, suggest
from sfumato.files.atomic import LockedFile, replace_file
from sfumato.files.hdf5 import SIGNATURE
from sfumato.store import hdf5
from sfumato.store.archive import (
    Archive,
    Arrays,
    archive_errors,
    prepare_image,
    read_arrays,
    read_block,
    read_header,
    read_image,
)
from sfumato.store.hdf5_reader import LARGEST_HEADER, FileBytes
from sfumato.store.layout import BITS, DTYPES, VERSION, ImageHeader, encode_name
from sfumato.types.concealed import ConcealedFeatures

# --- the file an archive is written to before it takes its place


MARK = b"sfumato-part".ljust(hdf5.SUPERBLOCK_SIZE, b"\0")
"""Stands where the superblock will be, so that nobody takes an unfinished file for an archive."""
MARGIN = 2**20
WINDOW = 2**20

log = logging.getLogger(__name__)


class Part(LockedFile):
    """An unfinished archive: append-only, and salvageable. ``addresses`` maps image names to their blocks.

    A block is on its way to the disk before the next begins. Knows blocks, not features.
    """

    def __init__(self, path: Path) -> None:
        self.addresses: dict[str, int] = {}
        self.version = VERSION
        self._table_size = 0
        with archive_errors(f"cannot write {path}", "check the folder and its permissions"):
            super().__init__(path)
        self.end = hdf5.SUPERBLOCK_SIZE
        try:
            start = os.pread(self.fd, len(MARK), 0)
            self.is_fresh = not start
            if not (MARK.startswith(start) or start.startswith(SIGNATURE)):
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

    def salvage(self) -> Iterator[ImageHeader]:
        """Yield the header of every intact image of an interrupted run; go on behind the last one."""
        source, address = FileBytes.of(self.fd), hdf5.SUPERBLOCK_SIZE
        while address < source.size:
            try:
                header, end = read_block(source, address)
            except InputError:
                following = _next_block(source, address + hdf5.ALIGNMENT)
                dropped = (following or source.size) - address
                log.warning("%s: dropped %d bytes at byte %d that are not an intact image", self.path, dropped, address)
                if following is None:
                    break
                self._blank(address, following)  # a second lifting beside a broken first one would reveal both
                address = following
                continue
            if header.name not in self.addresses:
                self.remember(header.name, address, header.version)
                yield header
            address = self.end = end
        if not self.addresses and os.pread(self.fd, 8, 0) == SIGNATURE:
            raise ArchiveError(f"{self.path} is in the way: an HDF5 file without an image in it; move it away")
        self._restart()

    def add(self, header: ImageHeader, arrays: Arrays) -> None:
        """Write a block. An error or an interrupt leaves the file as it was before."""
        head, addresses, end = hdf5.block_head(header, self.end)
        with archive_errors(
            f"cannot write {self.path}", f"{len(self.addresses)} images are in it; free space and run again"
        ):
            self._need(end - self.end)
            if self._table_size + len(encode_name(header.name)) > LARGEST_HEADER - MARGIN:
                raise InputError("too many images for one archive: begin another")
            with self.rollback():
                self.write(head, self.end)
                for array, address in zip(arrays, addresses, strict=True):
                    if array.size:
                        self.write(array.reshape(-1).view("u1").data, address)
        address, self.end = self.end, end
        self.remember(header.name, address, header.version)

    def remember(self, name: str, address: int, version: int) -> None:
        """Enter an image in the table of links; ``version`` of the format can hold it."""
        self.version = max(self.version, version)
        self.addresses[name] = address
        self._table_size += hdf5.LINK_SIZE + len(encode_name(name))

    def copy(self, source: FileBytes, size: int) -> None:
        """Begin with the blocks in the first ``size`` bytes of another file."""
        with archive_errors(f"cannot write {self.path}", "free space and run again"):
            self._need(size)
            for address in range(self.end, size, WINDOW):
                self.write(source.read(address, min(WINDOW, size - address), "the archive"), address)
        self.end = max(self.end, hdf5.aligned(size))

    def seal(self) -> None:
        """Write the table of links, the root and, last, the superblock; then wait for the disk."""
        links = {encode_name(name): address for name, address in self.addresses.items()}
        table, root, end = hdf5.tail(links, self.end, self.version)
        with archive_errors(
            f"cannot finish {self.path}", f"{len(self.addresses)} images are in it; free space and run again"
        ):
            self._need(len(table))
            self.write(table, self.end)
            os.ftruncate(self.fd, end)
            os.fsync(self.fd)
            self.write(hdf5.superblock(end, root), 0)
            os.fsync(self.fd)

    def move_to(self, target: Path) -> None:
        """Put the sealed file in the place of ``target``, at once."""
        with archive_errors(f"cannot replace {target}", f"the finished archive is {self.path}: move it there by hand"):
            replace_file(self.path, target)

    def _restart(self) -> None:
        """Mark the file as unfinished and cut what is behind the last block."""
        with archive_errors(f"cannot write {self.path}", "free space and run again"):
            self.write(MARK, 0)
            os.ftruncate(self.fd, self.end)

    def _blank(self, start: int, stop: int) -> None:
        """Overwrite a gap with zeros."""
        with archive_errors(f"cannot write {self.path}", "check its permissions"):
            for address in range(start, stop, WINDOW):
                self.write(bytes(min(WINDOW, stop - address)), address)

    def _need(self, size: int) -> None:
        free = shutil.disk_usage(self.path.parent).free
        if free < size + MARGIN:
            raise InputError(f"the disk is full: {size + MARGIN} bytes are needed and {free} are free")


def _next_block(source: FileBytes, address: int) -> int | None:
    """Return the address of the next intact block, searched for byte by byte."""
    while address < source.size:
        window = source.read(address, min(WINDOW + 4, source.size - address), "the next block")
        at = window.find(b"OHDR")
        while at >= 0:
            if (address + at) % hdf5.ALIGNMENT == 0:
                with suppress(InputError):
                    read_block(source, address + at)
                    return address + at
            at = window.find(b"OHDR", at + 1)
        address += WINDOW
    return None


# --- writing


Pairs = Iterable[tuple[str, ConcealedFeatures]]


def save(
    path: str | os.PathLike[str],
    features: Mapping[str, ConcealedFeatures] | Pairs,
    *,
    append: bool = False,
    overwrite: bool = True,
    dtype: str = "float32",
    progress: Callable[[Pairs], Pairs] | None = None,
) -> None:
    """Write concealed features of images to an archive.

    ``features`` maps image names to ConcealedFeatures, or yields such pairs; an iterable is consumed one
    image at a time. The archive takes the place of an existing one at the end and at once; ``append`` adds to
    an existing one instead, and goes on with an append that was interrupted; ``overwrite=False`` refuses.
    ``dtype`` float16 halves the size at a loss given in docs/format.md. The points of a seal are stored as bits,
    without loss, whatever ``dtype`` is; with ``dtype`` bits nothing else is accepted. ``progress`` wraps the iterable.

    Raises InputError for what is not concealed, ArchiveError for files.
    """
    if not append and not overwrite and os.path.lexists(path):
        raise ArchiveError(f"{Path(path)} exists; pass overwrite=True to replace it or append=True to add to it")
    if isinstance(features, ConcealedFeatures) or not isinstance(features, Iterable):
        raise InputError(
            f"features: expected a mapping of image names to ConcealedFeatures, got {type(features).__name__}"
            "; name it: {'desk.jpg': features}"
        )
    pairs: Pairs = features.items() if isinstance(features, Mapping) else features
    with ArchiveWriter(path, append=append, resume=append, dtype=dtype) as writer:
        for pair in progress(pairs) if progress else pairs:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise InputError(f"features: expected pairs of name and ConcealedFeatures, got {type(pair).__name__}")
            if pair[0] not in writer.resumed:
                writer.add(*pair)


class ArchiveWriter:
    """Writes an archive image by image, inside a ``with`` block.

    Everything goes to ``<path>.part``; leaving the block puts it in place at once. If the block ends with an
    error or Ctrl-C, or the process is killed, ``path`` is untouched, and the next ``ArchiveWriter(path)``
    goes on with every image that was added (``resume=False`` starts afresh). ``append`` adds to the archive
    that is there. One writer at a time.

    ``names`` are the images that are there already, by resuming or appending: ``if name in writer`` the work is
    done. ``resumed`` names those of the ``.part``, and ``header(name)`` says what they are.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        append: bool = False,
        resume: bool = True,
        dtype: str = "float32",
    ) -> None:
        if dtype not in DTYPES:
            raise InputError(
                f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r:.80}{suggest(str(dtype), DTYPES)}"
            )
        self.path = Path(path)
        self.resumed: tuple[str, ...] = ()
        self._append, self._resume, self._dtype = append, resume, dtype
        self._target = Path(os.path.realpath(path))
        self._part: Part | None = None
        self._base: Archive | None = None

    def __enter__(self) -> "ArchiveWriter":
        if self._part:
            raise ArchiveError(f"{self.path} is being written by this writer already")
        if not os.path.isdir(self._target.parent):
            raise ArchiveError(f"cannot write {self.path}: there is no folder {self._target.parent}; create it")
        if os.path.exists(self._target) and not os.path.isfile(self._target):
            raise ArchiveError(f"cannot write {self.path}: it exists and is not a file; choose another path")
        self._part = Part(self._target.with_name(self._target.name + ".part"))
        try:
            if self._append and os.path.exists(self._target):
                self._base = Archive(self._target)
            self._start(self._part)
        except BaseException:
            if self._part.is_fresh:
                self._part.remove()
            self._close()
            raise
        return self

    def add(self, name: str, features: ConcealedFeatures) -> None:
        """Write the features of an image. When this returns, a kill no longer loses them."""
        part = self._open_part()
        if not isinstance(features, ConcealedFeatures):
            raise InputError(
                f"image {name!r:.80}: an archive holds ConcealedFeatures only, got {type(features).__name__}"
                "; conceal first: sfumato.conceal(features, 'sub-hybrid-2', decoys)"
            )
        encode_name(name)
        if name in self:
            raise InputError(f"image {name!r:.80} is in the archive already; names must differ")
        header, arrays = prepare_image(name, features, self._dtype)
        part.add(header, arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._open_part().addresses or (self._base is not None and name in self._base)

    def __len__(self) -> int:
        return len(self._open_part().addresses) + len(self._base or ())

    @property
    def names(self) -> tuple[str, ...]:
        """The images the archive would hold if the block ended now."""
        return (*(self._base or ()), *self._open_part().addresses)

    def read(self, name: str) -> ConcealedFeatures:
        """Return the features of an image that is there."""
        part = self._open_part()
        if self._base is not None and name in self._base:
            return self._base[name]
        with archive_errors(f"cannot read image {name!r:.80} of {part.path}", "start afresh with resume=False"):
            return read_image(FileBytes.of(part.fd), part.addresses[name], name)

    def header(self, name: str) -> ImageHeader:
        """Return what is known about an image that is there: counts, recipe, extractor."""
        part = self._open_part()
        if self._base is not None and name in self._base:
            return self._base.header(name)
        with archive_errors(f"cannot read image {name!r:.80} of {part.path}", "start afresh with resume=False"):
            return read_header(FileBytes.of(part.fd), part.addresses[name], name)[0]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        part = self._open_part()
        try:
            if kind is None:
                self._finish(part)
            elif part.addresses:
                log.info("%s keeps the %d images written so far", part.path, len(part.addresses))
            else:
                part.remove()
        finally:
            self._close()

    def _start(self, part: Part) -> None:
        """Take over what an interrupted run left, or discard it."""
        if not self._resume:
            part.discard()
            return
        other = {header.dtype for header in part.salvage()} - {self._dtype, BITS}
        if other:
            raise ArchiveError(
                f"{part.path} was started with dtype={other.pop()!r}; continue with that, or start afresh with "
                "resume=False"
            )
        for name in [name for name in part.addresses if self._base is not None and name in self._base]:
            log.warning("%s: dropped image %r, which is in the archive already", part.path, name)
            del part.addresses[name]
        self.resumed = tuple(part.addresses)

    def _finish(self, part: Part) -> None:
        if self._base is None:
            part.seal()
            part.move_to(self._target)
            return
        if not part.addresses:  # nothing was added: the archive stays as it is
            part.remove()
            return
        merged = Part(self._target.with_name(self._target.name + ".new.part"))
        try:
            _copy_base(self._base, merged)
            source = FileBytes.of(part.fd)
            for name, address in part.addresses.items():
                with archive_errors(f"cannot read image {name!r:.80} of {part.path}", "run again"):
                    header, datasets = read_header(source, address, name)
                    arrays = read_arrays(source, header, datasets)
                merged.add(header, arrays)
            merged.seal()
            merged.move_to(self._target)
        except BaseException:
            merged.remove()
            raise
        finally:
            merged.close()
        part.remove()

    def _open_part(self) -> Part:
        if self._part is None:
            raise ArchiveError(f"the writer of {self.path} is not open; use it in a with block")
        return self._part

    def _close(self) -> None:
        if self._base is not None:
            self._base.close()
        if self._part is not None:
            self._part.close()
        self._part = self._base = None


def _copy_base(base: Archive, merged: Part) -> None:
    """Start ``merged`` with the blocks of an archive, as they are; what comes behind them is left out."""
    source, table, addresses = base.places
    tail, _, end = hdf5.tail({encode_name(name): address for name, address in addresses.items()}, table, base.version)
    is_ours = end == source.size and source.read(table, len(tail), "the table of images") == tail
    merged.discard()
    merged.copy(source, table if is_ours else source.size)
    for name, address in addresses.items():
        merged.remember(name, address, base.version)
