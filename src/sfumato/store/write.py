# SPDX-License-Identifier: Apache-2.0
"""Write an archive of concealed features, one image at a time, so that nothing written is lost.

Accepts ConcealedFeatures and nothing else. Never imports the clear types.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType

from sfumato.errors import ArchiveError, InputError, suggest
from sfumato.store import encode
from sfumato.store.decode import Source
from sfumato.store.image import prepare_image, read_arrays, read_header, read_image
from sfumato.store.layout import BITS, DTYPES, Header, encode_name
from sfumato.store.part import Part
from sfumato.store.read import Archive, explained
from sfumato.types.concealed import ConcealedFeatures

Pairs = Iterable[tuple[str, ConcealedFeatures]]

log = logging.getLogger(__name__)


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

    Names of images that are there already, by resuming or appending, are in ``names``: ``if name in writer``
    tells that the work is done. ``resumed`` names those found in the ``.part``, and ``header(name)`` says
    what they are.
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
            raise ArchiveError(f"can not write {self.path}: there is no folder {self._target.parent}; create it")
        if os.path.exists(self._target) and not os.path.isfile(self._target):
            raise ArchiveError(f"can not write {self.path}: it exists and is not a file; choose another path")
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
        with explained(f"can not read image {name!r:.80} of {part.path}", "start afresh with resume=False"):
            return read_image(Source.of(part.fd), part.addresses[name], name)

    def header(self, name: str) -> Header:
        """Return what is known about an image that is there: counts, recipe, extractor."""
        part = self._open_part()
        if self._base is not None and name in self._base:
            return self._base.header(name)
        with explained(f"can not read image {name!r:.80} of {part.path}", "start afresh with resume=False"):
            return read_header(Source.of(part.fd), part.addresses[name], name)[0]

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
                f"{part.path} was begun with dtype={other.pop()!r}; continue with that, or start afresh with "
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
            source = Source.of(part.fd)
            for name, address in part.addresses.items():
                with explained(f"can not read image {name!r:.80} of {part.path}", "run again"):
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
    tail, _, end = encode.tail({encode_name(name): address for name, address in addresses.items()}, table, base.version)
    is_ours = end == source.size and source.read(table, len(tail), "the table of images") == tail
    merged.discard()
    merged.copy(source, table if is_ours else source.size)
    for name, address in addresses.items():
        merged.remember(name, address, base.version)
