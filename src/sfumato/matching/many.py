# SPDX-License-Identifier: Apache-2.0
"""Matches of many image pairs of one archive, streamed: in this process, or on whatever an Executor stands for.

Workers are given the archive's path, names and plain numbers, never arrays; each opens the archive itself. What a
worker reads must have the checksums that were seen at the start. Never imports the clear types.
"""

import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato import __version__
from sfumato.errors import ArchiveError, InputError, SfumatoError, VoidDistanceWarning, WorkerError, suggest
from sfumato.matching.mutual import MatchParams, Side, check_pair, match_prepared, side_of
from sfumato.matching.pairs import Pair, PairList, listed, refuse_unknown
from sfumato.store import Archive
from sfumato.subspace.fast import prepare
from sfumato.subspace.prepared import Frame, Prepared
from sfumato.types.scene import Matches

# ----------------------------------------------------------------
# The images of one archive, ready to be matched: what their headers say, and the last few prepared ones
# Reads concealed features and hands out matches. Never imports the clear types.


CACHE_BYTES = 512 * 2**20
"""How much the prepared images that are kept may take: some twenty of 8,000 features at m = 2."""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What matching must know of an image beside its features: ``count`` of them, and what tells it from others."""

    count: int
    dim: int
    ambient_dim: int
    recipe: str
    checksum: str

    def is_void_with(self, other: "ImageFacts") -> bool:
        """Tell whether subspaces of the two meet whatever they stand for, so that distances say nothing."""
        return bool(self.dim and other.dim) and self.dim + other.dim >= self.ambient_dim


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class _Kept:
    prepared: Prepared
    side: Side  # without rows: where they come from


class ArchiveImages:
    """Images of one archive; headers are kept once read, prepared features within ``budget`` bytes.

    May be used by several threads.
    """

    def __init__(self, archive: Archive, budget: int = CACHE_BYTES) -> None:
        self.archive = archive
        self.budget = budget
        self.reads = 0
        self._facts: dict[str, ImageFacts] = {}
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._frames: dict[int, Frame] = {}  # one for all images of a dimension: each is projected once
        self._lock = threading.Lock()

    def facts(self, name: str) -> ImageFacts:
        """Return what the header of an image says; raises InputError for an unknown one, ArchiveError for damage."""
        found = self._facts.get(name)
        if found is None:
            if name not in self.archive:
                raise InputError(f"no image {name!r:.200} in {self.archive.path}{suggest(name, self.archive)}")
            header = self.archive.header(name)
            found = ImageFacts(header.count, header.dim, header.ambient_dim, str(header.recipe), header.checksum)
            self._facts[name] = found
        return found

    def match(self, pair: Pair, params: MatchParams) -> Matches:
        """Match two images; raises ArchiveError naming one that is damaged."""
        a, b = self._get(pair[0]), self._get(pair[1])
        try:
            check_pair(a.side, b.side)
        except InputError as cause:
            raise InputError(f"images {pair[0]!r:.200} and {pair[1]!r:.200}: {cause}") from cause
        if len(a.prepared) == 0 or len(b.prepared) == 0:
            return Matches(np.zeros((0, 2), np.int32), np.zeros(0, np.float32))
        matches = match_prepared(a.prepared, b.prepared, params, a.side.recipe)
        if a.prepared.frame is not None:
            self._frames.setdefault(a.prepared.origin.shape[1], a.prepared.frame)
        return matches

    def _get(self, name: str) -> _Kept:
        with self._lock:
            kept = self._kept.get(name)
            if kept is not None:
                self._kept.move_to_end(name)
                return kept
        self.facts(name)
        side = side_of(self.archive[name], name)
        nothing = Side(
            np.zeros((0, side.origin.shape[1]), np.float32),
            np.zeros((0, *side.basis.shape[1:]), np.float32),
            side.extractor,
            side.recipe,
        )
        kept = _Kept(prepare(side.origin, side.basis), nothing)
        kept.prepared.frame = self._frames.get(side.origin.shape[1])
        with self._lock:
            self.reads += 1
            self._kept[name] = kept
            while len(self._kept) > 2 and sum(_bytes_of(k.prepared) for k in self._kept.values()) > self.budget:
                self._kept.popitem(last=False)
        return kept


def _bytes_of(value: Any) -> int:
    """Return what the arrays in a value take, whatever it keeps by now."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(map(_bytes_of, list(value.values())))  # others may be adding
    if isinstance(value, list | tuple):
        return sum(map(_bytes_of, value))
    if is_dataclass(value):
        return sum(_bytes_of(getattr(value, field.name)) for field in fields(value))
    return int(getattr(value, "nbytes", 0))


Found = tuple[NDArray[np.int32], NDArray[np.float32]] | str
"""What a worker returns for a pair: indices and distances, or why there are none."""
Outcomes = Generator[tuple[Pair, Matches | SfumatoError], None, None]

LARGEST_CHUNK = 16
IN_FLIGHT = 64

_here = threading.Lock()
_opened: dict[tuple[str | int, ...], ArchiveImages] = {}


def match_pairs(
    archive: str | os.PathLike[str] | Archive,
    pairs: Iterable[Pair],
    executor: Executor | None = None,
    *,
    mutual: bool = True,
    ratio: float | None = None,
    max_distance: float | None = None,
    threads: int | None = None,
    device: str | None = None,
    skip: Container[Pair] = (),
    failed: Callable[[Pair, SfumatoError], None] | None = None,
    progress: Callable[[Iterable[Any]], Iterable[Any]] = iter,
    in_flight: int = IN_FLIGHT,
) -> Generator[tuple[Pair, Matches], None, None]:
    """Yield ((name0, name1), Matches) for pairs of images of an archive, each exactly once, as they finish.

    ``pairs`` are made by ``sfumato.matching.pairs``, or any iterable of pairs of names, which is read to its end
    first: repeats, the other way round included, and pairs of an image with itself are left out. The order is one
    that reads images rarely. What counts as a match is as in ``sfumato.match``.

    With an ``executor`` from ``concurrent.futures`` (processes, threads, or ``Client.get_executor(retries=3,
    pure=False)`` of dask.distributed) the work is done there, with one thread each unless ``threads`` says
    otherwise; every worker must see the archive under the same path. At most ``in_flight`` parcels of up to 16 pairs
    are there at a time. Closing the iterator cancels what has not begun; the executor stays the caller's.

    Pairs in ``skip`` are left out. A pair that cannot be matched because an image is damaged goes to ``failed`` and
    the others go on; without it, it is raised. ``progress`` wraps the stream.

    Raises InputError for names that are not in the archive, ArchiveError for an archive that is damaged or was
    replaced meanwhile, and WorkerError, after all that was finished, if a worker died.
    """
    params = MatchParams(mutual=mutual, ratio=ratio, max_distance=max_distance, threads=threads, device=device)
    if in_flight < 1:
        raise InputError(f"in_flight: expected 1 or more, got {in_flight}")
    opened = archive if isinstance(archive, Archive) else Archive(archive)
    wanted = pairs if isinstance(pairs, PairList) else listed(pairs)
    refuse_unknown(wanted.names, opened)
    images = ArchiveImages(opened)
    left = _warned(images, (pair for pair in wanted if pair not in skip))
    if executor is None:
        outcomes = _match_here(images, left, params)
    else:
        size = max(1, min(LARGEST_CHUNK, len(wanted) // in_flight))
        outcomes = _match_there(executor, images, _chunks(left, size), replace(params, threads=threads or 1), in_flight)
    return _delivered(outcomes, progress, failed)


def _delivered(
    outcomes: Outcomes,
    progress: Callable[[Iterable[Any]], Iterable[Any]],
    failed: Callable[[Pair, SfumatoError], None] | None,
) -> Generator[tuple[Pair, Matches], None, None]:
    try:
        for pair, found in progress(outcomes):
            if isinstance(found, Matches):
                yield pair, found
            elif failed is None:
                raise found
            else:
                failed(pair, found)
    finally:
        outcomes.close()


def _warned(images: ArchiveImages, pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Pass pairs on; warn once if the distances of one say nothing."""
    warned = False
    for pair in pairs:
        if not warned:
            with suppress(SfumatoError):  # a damaged image is reported when it is matched
                first, second = images.facts(pair[0]), images.facts(pair[1])
                warned = first.is_void_with(second)
                if warned:
                    warnings.warn(
                        f"subspaces of dimension {first.dim} and {second.dim} meet in R^{first.ambient_dim}: matches "
                        f"of {pair[0]!r:.80} and {pair[1]!r:.80}, and of all such pairs, say nothing",
                        VoidDistanceWarning,
                        stacklevel=2,
                    )
        yield pair


def _match_here(images: ArchiveImages, pairs: Iterable[Pair], params: MatchParams) -> Outcomes:
    for pair in pairs:
        found: Matches | SfumatoError
        try:
            found = images.match(pair, params)
        except SfumatoError as problem:
            found = problem
        yield pair, found


def _chunks(pairs: Iterable[Pair], size: int) -> Iterator[tuple[Pair, ...]]:
    """Yield parcels of at most ``size`` neighbouring pairs, each sharing an image with one before it."""
    chunk: list[Pair] = []
    names: set[str] = set()
    for pair in pairs:
        if chunk and (len(chunk) == size or names.isdisjoint(pair)):
            yield tuple(chunk)
            chunk, names = [], set()
        chunk.append(pair)
        names.update(pair)
    if chunk:
        yield tuple(chunk)


def _match_there(
    executor: Executor, images: ArchiveImages, chunks: Iterator[tuple[Pair, ...]], params: MatchParams, in_flight: int
) -> Outcomes:
    """Keep ``in_flight`` parcels under way and yield what comes back; raise only after all that was finished."""
    path = os.path.abspath(images.archive.path)
    under_way: dict[Future[list[Found]], tuple[Pair, ...]] = {}
    trouble: Exception | None = None
    try:
        while True:
            while trouble is None and len(under_way) < in_flight and (chunk := next(chunks, None)) is not None:
                try:
                    task = executor.submit(match_chunk, path, chunk, _checksums(images, chunk), _plain(params))
                except Exception as problem:  # a pool that lost a process takes no more
                    trouble = problem
                else:
                    under_way[task] = chunk
            if not under_way:
                break
            for task in wait(under_way, return_when=FIRST_COMPLETED).done:
                chunk = under_way.pop(task, ())
                if not chunk:  # cancelled with the others
                    continue
                try:
                    found = task.result()
                except Exception as problem:  # whatever ended it, the others may have finished
                    trouble = trouble or problem
                    under_way = {other: rest for other, rest in under_way.items() if not other.cancel()}
                else:
                    yield from zip(chunk, map(_unpacked, found), strict=True)
    finally:
        for task in under_way:
            task.cancel()
        forget(path)
    if trouble is not None:
        raise _explained(trouble) from trouble


def _explained(trouble: Exception) -> SfumatoError:
    if isinstance(trouble, SfumatoError):
        return trouble
    reason = f"{type(trouble).__name__}: {trouble}".rstrip(": ")
    return WorkerError(f"a worker died or could not do its work ({reason:.400}); run again for what is missing")


def _checksums(images: ArchiveImages, chunk: Iterable[Pair]) -> dict[str, str]:
    """Return the checksum of each readable image of a parcel; a worker finds out about the others itself."""
    found = {}
    for name in {name for pair in chunk for name in pair}:
        with suppress(SfumatoError):
            found[name] = images.facts(name).checksum
    return found


def _plain(params: MatchParams) -> dict[str, Any]:
    return {**asdict(params), "version": __version__}


def _unpacked(found: Found) -> Matches | SfumatoError:
    return ArchiveError(found) if isinstance(found, str) else Matches(*found)


# ----------------------------------------------------------------
# what runs in a worker


def match_chunk(path: str, chunk: tuple[Pair, ...], checksums: dict[str, str], settings: dict[str, Any]) -> list[Found]:
    """Match pairs of an archive, in a worker; images must have the given checksums."""
    settings = dict(settings)
    if (version := settings.pop("version")) != __version__:
        raise WorkerError(f"a worker has sfumato {__version__}, this is {version}: install the same everywhere")
    params = MatchParams(**settings)
    images = opened_here(path)
    for name, checksum in checksums.items():
        _refuse_other(images, name, checksum)
    results: list[Found] = []
    for pair in chunk:
        try:
            matches = images.match(pair, params)
            results.append((matches.indices, matches.distances))
        except SfumatoError as problem:
            results.append(str(problem))
    return results


def _refuse_other(images: ArchiveImages, name: str, checksum: str) -> None:
    try:
        same = name in images.archive and images.facts(name).checksum == checksum
    except ArchiveError:  # damaged since: the pairs of this image will say so
        return
    if not same:
        raise ArchiveError(
            f"{images.archive.path} was replaced while it was being matched: image {name!r:.200} is another one now; "
            f"run again with the new archive"
        )


def opened_here(path: str) -> ArchiveImages:
    """Return the images of an archive, kept open by this process until another archive or version of it comes."""
    try:
        info = os.stat(path)
    except OSError as cause:
        raise ArchiveError(
            f"a worker cannot open the archive {path}: {cause.strerror}; every worker must see it under this path"
        ) from cause
    key = (path, info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
    with _here:
        if key not in _opened:
            images = ArchiveImages(Archive(path), CACHE_BYTES // 2)
            _opened.clear()
            _opened[key] = images
        return _opened[key]


def forget(path: str) -> None:
    """Close an archive that ``opened_here`` keeps in this process."""
    with _here:
        for key in [key for key in _opened if key[0] == path]:
            del _opened[key]
