# SPDX-License-Identifier: Apache-2.0
"""Sources of clear features: a folder of photos, an hloc file or a COLMAP database, recognised by their content.

Photos are extracted in parallel threads, in order, and in bounded memory. Threads suffice: COLMAP and OpenCV release
Python's lock. OpenCV's own number of threads belongs to the process and is not touched.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import length_hint
from pathlib import Path
from typing import Any

from sfumato.errors import FileError, InputError, SfumatoError, SourceError
from sfumato.features import colmap, hloc
from sfumato.features.local import LocalParams, extract, extractor_of, prepare, resolve_params
from sfumato.files.atomic import ANY_SIZE, open_file
from sfumato.files.hdf5 import SIGNATURE as HDF5_SIGNATURE
from sfumato.images.read import SUFFIXES, image_format, list_images, read_image
from sfumato.types.clear import Features
from sfumato.types.extractor import Extractor
from sfumato.types.progress import Progress, SizedItems, identity

Result = tuple[str, Features | SfumatoError]
"""The name of an image, and its features or the reason why there are none."""

ARCHIVE_MARK = b"SfmA"
"""What an archive of concealed features says it is, in the first bytes of its SQLite file."""
PIXELS_AT_ONCE = 24_000_000
"""Pixels under way in all threads: SIFT needs about 240 bytes per pixel, 3 GB for a photo of 12 megapixels."""


def extract_many(
    items: Iterable[tuple[str, str | os.PathLike[str]]],
    params: LocalParams | None = None,
    *,
    workers: int | None = None,
    progress: Progress = identity,
) -> Iterator[Result]:
    """Extract the features of images (name, path) in their order, by default on every core.

    An image that cannot be read gives its error in place of its features. Any other error ends the work. ``progress``
    wraps the results, and can ask for their number.

    Raises InputError for settings that are not valid, and what ``extract`` raises for networks and their weights.
    """
    params = resolve_params(params, {})
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise InputError(f"workers must be a whole number of 1 or more, got {workers!r:.80}")
    prepare(params)  # a fault of a network concerns all images; COLMAP is to be loaded in the main thread
    results = SizedItems(_extract_in_order(items, params, workers), length_hint(items, -1))
    return iter(progress(results))


class _ImageExtractor:
    """Extracts one image at a time in any thread, within bounded memory, until it is stopped."""

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
        """Wait until there is room for this many pixels; a picture larger than the room gets it alone."""
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
    worker = _ImageExtractor(params)
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
    finally:  # also after an interruption: nothing new begins, and what runs is waited for
        worker.stopped = True
        pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True, slots=True, eq=False)
class FeatureSource:
    """Features to be read image by image.

    ``kind`` is images, hloc or colmap; ``names`` are those of all images, known before any feature is read; ``photos``
    the paths of photos by name, none for the other kinds.
    """

    path: Path
    kind: str
    names: tuple[str, ...]
    _read: Callable[[Iterable[str]], Iterator[Result]]
    photos: Mapping[str, Path] = field(default_factory=dict)
    _extractor: Callable[[], Extractor | None] = lambda: None

    @property
    def extractor(self) -> Extractor | None:
        """The extractor of all features, before any is read; None where each image says it for itself.

        Raises what ``prepare`` does for a network.
        """
        return self._extractor()

    def features(self, skip: Collection[str] = (), *, progress: Progress = identity) -> Iterator[Result]:
        """Yield (name, Features) of every image but those to skip; an unreadable image gives its error."""
        names = [name for name in self.names if name not in skip]
        return iter(progress(SizedItems(self._read(names), len(names))))

    def __iter__(self) -> Iterator[Result]:
        return self.features()

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"FeatureSource({str(self.path)!r}, {self.kind}, {len(self)} images)"


def open_source(
    path: str | os.PathLike[str],
    *,
    params: LocalParams | None = None,
    extractor: str | None = None,
    workers: int | None = None,
    **settings: Any,
) -> FeatureSource:
    """Open a folder of photos, a photo, an hloc features.h5 or a COLMAP database.

    For photos ``params``, ``workers`` and settings of LocalParams say how features are extracted, and ``extractor`` by
    whom. The others are read as they are, and ``extractor`` names their descriptors where the file does not.

    Raises FileError naming the file if there is nothing to read in it, InputError for settings that are not valid.
    """
    params = resolve_params(params, settings)
    path = Path(path)
    kind = _kind(path)
    if kind == "hloc":
        images, name = hloc.list_hloc(path, extractor)
        return FeatureSource(
            path,
            kind,
            tuple(images),
            lambda names: hloc.features_in_hloc(path, names, extractor=name),
            _extractor=lambda: Extractor(name, hloc.SETTINGS),
        )
    if kind == "colmap":
        names = colmap.names_in_colmap(path)
        return FeatureSource(
            path,
            kind,
            tuple(names),
            lambda names: colmap.features_in_colmap(path, names, extractor=extractor),
            _extractor=lambda: Extractor(extractor, colmap.SETTINGS) if extractor else None,
        )
    if extractor is not None:
        params = replace(params, extractor=extractor)
    paths = dict(list_images(path))
    return FeatureSource(
        path,
        kind,
        tuple(paths),
        lambda names: extract_many([(name, paths[name]) for name in names], params, workers=workers),
        paths,
        lambda: extractor_of(params),
    )


def _kind(path: Path) -> str:
    """Return the kind of a path by its first bytes; the ending decides only what a damaged file should have been."""
    if path.is_dir():
        return "images"
    try:
        with open_file(path, ANY_SIZE) as file:
            head = file.read(100)
    except FileError as cause:
        raise SourceError(str(cause)) from cause
    if head.startswith(colmap.SIGNATURE) and head[68:72] == ARCHIVE_MARK:
        raise SourceError(f"{path}: this is an archive of features that are already concealed; give clear ones")
    suffix = path.suffix.lower()
    if head.startswith(HDF5_SIGNATURE) or suffix in (".h5", ".hdf5"):
        return "hloc"
    if head.startswith(colmap.SIGNATURE) or suffix in (".db", ".sqlite", ".sqlite3"):
        return "colmap"
    if suffix in SUFFIXES or image_format(head):
        return "images"
    raise SourceError(
        f"{path} holds no features: give a folder of photos, a photo, an hloc features.h5 or a COLMAP database"
    )
