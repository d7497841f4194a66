# SPDX-License-Identifier: Apache-2.0
"""Where features come from: photos, an hloc file or a COLMAP database, told apart by what is in them."""

import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from operator import length_hint
from pathlib import Path
from typing import Any

from sfumato.errors import InputError, SfumatoError, SourceError
from sfumato.features import colmap, hloc
from sfumato.features.local import LocalParams, chosen, extract, prepare
from sfumato.features.results import Counted, Progress, Result, identity
from sfumato.images.read import SUFFIXES, image_format, list_images, read_image
from sfumato.types.clear import Features

# ----------------------------------------------------------------
# Local features of many pictures: parallel, in order, with memory for a few
# Threads do: OpenCV works without holding Python back. OpenCV's own number of threads belongs to the process
# and is not touched.


PIXELS_AT_ONCE = 24_000_000
"""SIFT needs about 240 bytes a pixel, 3 GB for a photo of 12 megapixels: so many may be worked on together."""


def extract_many(
    items: Iterable[tuple[str, str | os.PathLike[str]]],
    params: LocalParams | None = None,
    *,
    workers: int | None = None,
    progress: Progress = identity,
) -> Iterator[Result]:
    """Extract the features of images given as (name, path), by default on every core there is, in their
    order.

    An image that cannot be read comes as its error in place of its features. Any other error ends the work.
    ``progress`` wraps what is yielded, and can ask its length.

    Raises InputError for settings that are not valid, and what ``extract`` raises for networks and their weights.
    """
    params = chosen(params, {})
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise InputError(f"workers must be a whole number of 1 or more, got {workers!r:.80}")
    prepare(params)  # what is wrong with a network is no matter of a single image
    results = Counted(_extract_in_order(items, params, workers), length_hint(items, -1))
    return iter(progress(results))


class _Worker:
    """Extracts one image at a time in any thread, within the memory there is, until told to stop."""

    def __init__(self, params: LocalParams) -> None:
        self.params = params
        self.stopped = False
        self._pixels = 0
        self._changed = threading.Condition()

    def __call__(self, path: Path) -> Features | SfumatoError:
        try:
            if self.stopped:
                return SfumatoError("stopped")
            image = read_image(path)
            with self._room_for(image.size[0] * image.size[1]):
                return SfumatoError("stopped") if self.stopped else extract(image, self.params)
        except SfumatoError as problem:
            return problem

    @contextmanager
    def _room_for(self, pixels: int) -> Iterator[None]:
        """Wait until there is room for so many pixels; a picture too large for any room has it alone."""
        with self._changed:
            self._changed.wait_for(lambda: self._pixels == 0 or self._pixels + pixels <= PIXELS_AT_ONCE)
            self._pixels += pixels
        try:
            yield
        finally:
            with self._changed:
                self._pixels -= pixels
                self._changed.notify_all()


def _extract_in_order(
    items: Iterable[tuple[str, str | os.PathLike[str]]], params: LocalParams, workers: int
) -> Iterator[Result]:
    """Keep one more image under way than there are workers, and yield the oldest."""
    worker = _Worker(params)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="extract")
    under_way: deque[tuple[str, Future[Features | SfumatoError]]] = deque()
    try:
        for name, path in items:
            under_way.append((name, pool.submit(worker, Path(path))))
            if len(under_way) > workers:
                name, future = under_way.popleft()
                yield name, future.result()
        while under_way:
            name, future = under_way.popleft()
            yield name, future.result()
    finally:  # also when interrupted or given up: nothing new is begun, what has begun is waited for
        worker.stopped = True
        pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Features that can be read, image by image.

    ``kind`` is images, hloc or colmap; ``names`` are those of all images, known before anything is read.
    """

    path: Path
    kind: str
    names: tuple[str, ...]
    _read: Callable[[Iterable[str]], Iterator[Result]]

    def features(self, skip: Collection[str] = (), *, progress: Progress = identity) -> Iterator[Result]:
        """Yield (name, Features) of every image that is not to be skipped; what cannot be read comes as an error."""
        names = [name for name in self.names if name not in skip]
        return iter(progress(Counted(self._read(names), len(names))))

    def __iter__(self) -> Iterator[Result]:
        return self.features()

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"Source({str(self.path)!r}, {self.kind}, {len(self)} images)"


def open_source(
    path: str | os.PathLike[str],
    *,
    params: LocalParams | None = None,
    extractor: str | None = None,
    workers: int | None = None,
    **settings: Any,
) -> Source:
    """Open a folder of photos, a photo, an hloc features.h5 or a COLMAP database.

    For photos ``params``, ``workers`` and settings of LocalParams say how features are extracted; the others
    are read as they are, and ``extractor`` says what their descriptors are, where they do not say it
    themselves.

    Raises FileError naming the file if there is nothing to read in it, InputError for settings that are not
    valid.
    """
    params = chosen(params, settings)
    path = Path(path)
    kind = _kind(path)
    if kind == "hloc":
        names = hloc.names_in_hloc(path)
        name = hloc.named_extractor(path, extractor)
        return Source(path, kind, tuple(names), lambda some: hloc.features_in_hloc(path, some, extractor=name))
    if kind == "colmap":
        names = colmap.names_in_colmap(path)
        return Source(path, kind, tuple(names), lambda some: colmap.features_in_colmap(path, some, extractor=extractor))
    if extractor is not None and extractor != params.descriptor:
        raise InputError(
            f"extractor says what the descriptors of an hloc or COLMAP file are; {path} holds photos: choose their "
            f"descriptor instead, on the command line --descriptor"
        )
    paths = dict(list_images(path))
    return Source(
        path,
        kind,
        tuple(paths),
        lambda some: extract_many([(name, paths[name]) for name in some], params, workers=workers),
    )


def _kind(path: Path) -> str:
    """Tell what a path holds from its first bytes; the file's name decides only what a damaged one should have been."""
    if path.is_dir():
        return "images"
    try:
        with path.open("rb") as file:
            head = file.read(32)
    except (OSError, ValueError) as cause:
        reason = "is not there" if isinstance(cause, FileNotFoundError) else f"cannot be read: {cause}"
        raise SourceError(f"{str(path)!r} {reason}: check the path") from cause
    suffix = path.suffix.lower()
    if head.startswith(hloc.SIGNATURE) or suffix in (".h5", ".hdf5"):
        return "hloc"
    if head.startswith(colmap.SIGNATURE) or suffix in (".db", ".sqlite", ".sqlite3"):
        return "colmap"
    if suffix in SUFFIXES or image_format(head):
        return "images"
    raise SourceError(
        f"{path} holds no features: give a folder of photos, a photo, an hloc features.h5 or a COLMAP database"
    )
