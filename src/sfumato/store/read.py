# SPDX-License-Identifier: Apache-2.0
"""Read an archive of concealed features, one image at a time.

Trusts no file: what is returned passed its checksums, is canonical, and is concealed. Never imports the clear
types.
"""

import os
import stat
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from sfumato.errors import ArchiveError, InputError
from sfumato.store.decode import LARGEST_HEADER, Source, read_group, read_superblock
from sfumato.store.image import read_header, read_image
from sfumato.store.layout import BITS_VERSION, FORMAT, VERSION, Header, decode_name, digest_names
from sfumato.types.concealed import PAYLOADS, ConcealedFeatures


@dataclass(frozen=True, slots=True)
class Summary:
    """What an archive says it holds: headers of the images, and what is wrong with the others."""

    path: Path
    size_bytes: int
    images: tuple[Header, ...]
    damaged: Mapping[str, str]


def load(path: str | os.PathLike[str]) -> "Archive":
    """Open an archive written by ``sfumato.save``; images are read when they are asked for.

    Raises ArchiveError for a file that is missing, damaged, hostile, or of another kind or version.
    """
    return Archive(path)


class Archive(Mapping[str, ConcealedFeatures]):
    """A read-only mapping of image names, in sorted order, to ConcealedFeatures.

    Only names are kept in memory; each access reads and checks one image. An image that is damaged raises
    ArchiveError when it is read, and the others stay readable. The archive sees the file as it was when
    opened, even after another one took its place.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with explained(f"can not open the archive {self.path}", "check the path, or make the archive again"):
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            self._close = weakref.finalize(self, os.close, fd)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise InputError("this is not a file")
                self._source = Source.of(fd)
                self.version, self._table, self._addresses = _read_table(self._source)
            except BaseException:
                self._close()
                raise

    def __getitem__(self, name: str) -> ConcealedFeatures:
        address = self._addresses[name]
        with self._explained(name):
            return read_image(self._source, address, name)

    def header(self, name: str) -> Header:
        """Return everything about an image but its arrays, which are not read."""
        address = self._addresses[name]
        with self._explained(name):
            return read_header(self._source, address, name)[0]

    def summary(self) -> Summary:
        """Return the headers of all images, and what is wrong with those that have none."""
        images, damaged = [], {}
        for name in self:
            try:
                images.append(self.header(name))
            except ArchiveError as problem:
                damaged[name] = str(problem)
        return Summary(self.path, self._source.size, tuple(images), damaged)

    def __iter__(self) -> Iterator[str]:
        return iter(self._addresses)

    def __len__(self) -> int:
        return len(self._addresses)

    def __contains__(self, name: object) -> bool:
        return name in self._addresses

    __eq__ = object.__eq__  # a comparison by content would read everything
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Archive({str(self.path)!r}, {len(self)} images)"

    @property
    def places(self) -> tuple[Source, int, Mapping[str, int]]:
        """The open file, and the addresses of the table of links and of the images: for a writer."""
        return self._source, self._table, self._addresses

    def close(self) -> None:
        """Close the file; images can no longer be read."""
        self._close()

    def __enter__(self) -> "Archive":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        if not self._close.alive:
            raise ArchiveError(f"the archive {self.path} is closed; load it again")
        where = f"can not read image {name!r:.80} of the archive {self.path}"
        with explained(where, "the other images can still be read; restore the archive from a copy, or make it anew"):
            yield


def _read_table(source: Source) -> tuple[int, int, dict[str, int]]:
    """Return the version, the address of the table of links, and the images in the order of their names."""
    root = read_group(source, read_superblock(source), "the root group")
    found = root.attributes
    if found.get("format") != FORMAT:
        raise InputError("this is an HDF5 file, but not a Sfumato archive")
    version = found.get("version")
    if version not in (VERSION, BITS_VERSION) or not isinstance(version, int):
        known = f"{VERSION} and {BITS_VERSION}"
        raise InputError(f"it has version {version!r:.80} of the format, this Sfumato reads {known}: use another")
    if found.get("payload") not in PAYLOADS:
        raise InputError(f"unknown payload {found.get('payload')!r:.80}: this version knows {', '.join(PAYLOADS)}")
    if set(root.links) != {"images"} or set(found) != {"format", "version", "payload", "images", "names"}:
        raise InputError("the root group has other members or attributes than an archive")
    images = read_group(source, root.links["images"], "the group of images", LARGEST_HEADER)
    if images.attributes:
        raise InputError("the group of images has attributes, which archives do not use")
    if len(images.links) != found["images"] or digest_names(images.links) != found["names"]:
        raise InputError("the list of images is damaged: some were lost, added or renamed")
    names = {decode_name(encoded): address for encoded, address in images.links.items()}
    return version, root.links["images"], dict(sorted(names.items()))


@contextmanager
def explained(what: str, advice: str) -> Iterator[None]:
    """Turn every problem of a file into an ArchiveError that says what, where, and what to do."""
    try:
        yield
    except ArchiveError:
        raise
    except OSError as cause:
        raise ArchiveError(f"{what}: {cause.strerror or cause}; {advice}") from cause
    except InputError as cause:
        raise ArchiveError(f"{what}: {cause}; {advice}") from cause
