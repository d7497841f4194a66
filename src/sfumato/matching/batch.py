# SPDX-License-Identifier: Apache-2.0
"""Matching of many image pairs of one archive: streamed, or into a match file that an interrupted run resumes.

The work is done in this process or by an Executor. Workers get the archive's path, names and plain numbers, never
arrays; each opens the archive itself, and what it reads must have the checksums seen at the start. Never imports the
clear types.
"""

import os
import threading
import time
import warnings
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato import __version__
from sfumato.errors import ArchiveError, InputError, SfumatoError, VoidDistanceWarning, WorkerError
from sfumato.matching.archive_images import CACHE_BYTES, ArchiveImages
from sfumato.matching.codebook import Codebook
from sfumato.matching.executors import local_processes
from sfumato.matching.match_writer import MatchWriter
from sfumato.matching.mutual import MatchParams, match
from sfumato.matching.pairs import Pair, PairList, PairsLike, list_pairs, parse_rule, refuse_unknown
from sfumato.matching.retrieval import PairChoice, RetrievalParams, choose_pairs
from sfumato.store.archive import Archive, open_archive
from sfumato.types.progress import Progress, StageProgress
from sfumato.types.scene import Matches

ChunkResult = tuple[NDArray[np.int32], NDArray[np.float32]] | str
"""Result of a pair in a worker: indices and distances, or the reason why there are none."""
Outcomes = Generator[tuple[Pair, Matches | SfumatoError], None, None]

LARGEST_CHUNK = 16
IN_FLIGHT = 64


@dataclass(slots=True)
class MatchOutcome:
    """Result of matching an archive: what was matched now, was there already, and could not be matched.

    ``pairs`` and ``matches`` count what was matched now, ``skipped`` the pairs that the file had before. ``failed``
    gives the reason for each pair that could not be matched. ``choice`` names the images left out.
    """

    choice: PairChoice
    pairs: int = 0
    matches: int = 0
    skipped: int = 0
    seconds: float = 0.0
    failed: dict[Pair, str] = field(default_factory=dict)

    @property
    def pairs_per_second(self) -> float:
        """Pairs matched per second; 0 if there were none."""
        return self.pairs / self.seconds if self.pairs and self.seconds else 0.0

    def __repr__(self) -> str:
        return (
            f"MatchOutcome({self.pairs} pairs with {self.matches} matches, {self.skipped} skipped, "
            f"{len(self.failed)} failed)"
        )


def match_archive(
    archive: str | os.PathLike[str] | Archive,
    output: str | os.PathLike[str],
    pairs: PairsLike = "exhaustive",
    params: MatchParams | None = None,
    *,
    workers: int = 1,
    executor: Executor | None = None,
    codebook: Codebook | None = None,
    inputs: Mapping[str, str | os.PathLike[str] | None] | None = None,
    overwrite: bool = False,
    progress: StageProgress = lambda stage, items, total: items,
    in_flight: int | None = None,
) -> MatchOutcome:
    """Match the images of an archive into a match file; pairs that are in the file already are skipped.

    ``pairs``: "exhaustive" for every image with every other; "sequential:10" for each image with the 10 next ones by
    name, as in a video; "votes:20" for each image with the 20 that look most like it (encoded features need a
    ``codebook``, see ``sfumato.codebook_for``); the path of a file with two names per line; or an iterable of pairs of
    names. ``params``: what counts as a match. ``workers``: processes of this machine; or give an ``executor``, as for
    ``sfumato.match_pairs``. ``inputs``: further files that must not be written to, by what they are. An interrupted
    call goes on where it stopped when it is called again; ``overwrite`` starts anew.

    A pair that cannot be matched is named in the outcome and does not stop the others.

    Raises InputError for pairs that cannot be chosen and for a device that is not there, FileError if the file cannot
    be written or was made with other parameters, WorkerError if a worker died.

    >>> import tempfile, numpy as np
    >>> from sfumato import ConcealedFeatures, Subspaces, save
    >>> lines = Subspaces(np.eye(8)[:3], np.eye(8)[3:6, None])
    >>> features = ConcealedFeatures(np.zeros((3, 4)), lines, "random-1")
    >>> folder = tempfile.mkdtemp()
    >>> save(f"{folder}/private.sfm", {"desk.jpg": features, "door.jpg": features})
    >>> match_archive(f"{folder}/private.sfm", f"{folder}/matches.h5", "exhaustive")
    MatchOutcome(1 pairs with 3 matches, 0 skipped, 0 failed)
    """
    params = params or MatchParams()
    if workers < 1:
        raise InputError(f"workers (--workers): expected 1 or more, got {workers}")
    if workers > 1 and executor is not None:
        raise InputError("workers are processes of this machine: give them or an executor, not both")
    with open_archive(archive) as images:
        read = {"the list of pairs": _path_of(pairs), **(inputs or {})}
        writer = MatchWriter(output, images, params, overwrite=overwrite, inputs=read)
        check_device(params.device, executor)
        votes = RetrievalParams(threads=params.threads, device=params.device)
        choice = choose_pairs(
            images, pairs, codebook, votes, progress=lambda names: progress("voting", names, len(images))
        )
        if not len(choice.pairs):
            count = len(choice.pairs.names)
            raise InputError(f"nothing to match: {count} image{'s make' if count != 1 else ' makes'} no pair")
        ahead = in_flight or max(IN_FLIGHT, 4 * workers)
        with local_processes(workers) if workers > 1 else nullcontext(executor) as pool:
            return _match_to_file(choice, writer, pool, progress, ahead)


def _path_of(pairs: PairsLike) -> str | os.PathLike[str] | None:
    return pairs if isinstance(pairs, str | os.PathLike) and not parse_rule(pairs)[0] else None


def _match_to_file(
    choice: PairChoice, output: MatchWriter, executor: Executor | None, progress: StageProgress, in_flight: int
) -> MatchOutcome:
    outcome, pairs = MatchOutcome(choice), choice.pairs
    with output as writer:
        writer.expect(pairs.names)
        outcome.skipped = sum(pair in writer.done for pair in pairs) if len(writer.done) else 0
        total = len(pairs) - outcome.skipped
        stream = _stream(writer.images, pairs, writer.params, executor, skip=writer.done, in_flight=in_flight)
        started = time.perf_counter()
        with closing(stream):
            for pair, result in progress("matching", stream, total):
                if isinstance(result, SfumatoError):
                    outcome.failed[pair] = str(result)
                    continue
                writer.add(pair, result)
                outcome.pairs += 1
                outcome.matches += len(result)
        outcome.seconds = time.perf_counter() - started
    return outcome


def check_device(device: str | None, executor: Executor | None = None) -> None:
    """Refuse a device that is not here, or not where the executor works, before any pair is tried."""
    if device is None:
        return
    if executor is None:
        nothing = np.zeros((0, 1), np.float32)
        match(nothing, nothing, device=device)
        return
    try:
        executor.submit(check_device, device).result()
    except SfumatoError:
        raise
    except Exception as cause:  # whatever ended it
        raise WorkerError(f"no worker could say whether it has the device {device!r:.80}: {cause!s:.400}") from cause


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
    progress: Progress = iter,
    in_flight: int = IN_FLIGHT,
) -> Generator[tuple[Pair, Matches], None, None]:
    """Yield ((name0, name1), Matches) for pairs of images of an archive, each exactly once, as they finish.

    ``pairs``: an iterable of pairs of names, which is read to its end first: repeats, the other way round included, and
    pairs of an image with itself are left out. The order is one that reads images rarely. What counts as a match is as
    in ``sfumato.match``.

    With an ``executor`` from ``concurrent.futures`` (processes, threads, or ``Client.get_executor(retries=3,
    pure=False)`` of dask.distributed) the work is done there, with one thread each unless ``threads`` says
    otherwise; every worker must see the archive under the same path. At most ``in_flight`` parcels of up to 16 pairs
    are there at a time. Closing the iterator cancels what has not begun; the executor stays the caller's.

    Pairs in ``skip`` are left out. A pair that cannot be matched because an image is damaged goes to ``failed`` and
    the others go on; without ``failed`` the error is raised. ``progress`` wraps the stream.

    Raises InputError for names that are not in the archive, ArchiveError for an archive that is damaged or was
    replaced meanwhile, and WorkerError, after all that was finished, if a worker died.
    """
    params = MatchParams(mutual=mutual, ratio=ratio, max_distance=max_distance, threads=threads, device=device)
    if in_flight < 1:
        raise InputError(f"in_flight: expected 1 or more, got {in_flight}")
    images = ArchiveImages(archive if isinstance(archive, Archive) else Archive(archive))
    pair_list = pairs if isinstance(pairs, PairList) else list_pairs(pairs)
    refuse_unknown(pair_list.names, images.archive)
    stream = _stream(images, pair_list, params, executor, skip=skip, in_flight=in_flight)
    return _deliver(stream, progress, failed)


def _stream(
    images: ArchiveImages,
    pairs: PairList,
    params: MatchParams,
    executor: Executor | None,
    *,
    skip: Container[Pair],
    in_flight: int,
) -> Outcomes:
    """Yield what becomes of each pair of images of the archive."""
    todo = _warn_once(images, (pair for pair in pairs if pair not in skip))
    if executor is None:
        return _match_here(images, todo, params)
    chunks = _chunks(todo, max(1, min(LARGEST_CHUNK, len(pairs) // in_flight)))
    return _match_there(executor, images, chunks, replace(params, threads=params.threads or 1), in_flight)


def _deliver(
    outcomes: Outcomes,
    progress: Progress,
    failed: Callable[[Pair, SfumatoError], None] | None,
) -> Generator[tuple[Pair, Matches], None, None]:
    try:
        for pair, result in progress(outcomes):
            if isinstance(result, Matches):
                yield pair, result
            elif failed is None:
                raise result
            else:
                failed(pair, result)
    finally:
        outcomes.close()


def _warn_once(images: ArchiveImages, pairs: Iterable[Pair]) -> Iterator[Pair]:
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
                        f"of {pair[0]!r:.80} and {pair[1]!r:.80}, and of all such pairs, are meaningless",
                        VoidDistanceWarning,
                        stacklevel=2,
                    )
        yield pair


def _match_here(images: ArchiveImages, pairs: Iterable[Pair], params: MatchParams) -> Outcomes:
    for pair in pairs:
        result: Matches | SfumatoError
        try:
            result = images.match(pair, params)
        except SfumatoError as problem:
            result = problem
        yield pair, result


# --- parcels of pairs, given to an executor


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
    path, settings = os.path.abspath(images.archive.path), {**asdict(params), "version": __version__}
    under_way: dict[Future[list[ChunkResult]], tuple[Pair, ...]] = {}
    trouble: Exception | None = None
    try:
        while True:
            while trouble is None and len(under_way) < in_flight and (chunk := next(chunks, None)) is not None:
                try:
                    task = executor.submit(match_chunk, path, chunk, _checksums(images, chunk), settings)
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
                    results = task.result()
                except Exception as problem:  # whatever ended it, the others may have finished
                    trouble = trouble or problem
                    under_way = {other: rest for other, rest in under_way.items() if not other.cancel()}
                else:
                    yield from zip(chunk, map(_unpack, results), strict=True)
    finally:
        for task in under_way:
            task.cancel()
        _close_images(path)
    if trouble is not None:
        raise _explain(trouble) from trouble


def _explain(trouble: Exception) -> SfumatoError:
    if isinstance(trouble, SfumatoError):
        return trouble
    reason = f"{type(trouble).__name__}: {trouble}".rstrip(": ")
    return WorkerError(f"a worker died or could not do its work ({reason:.400}); run again for what is missing")


def _checksums(images: ArchiveImages, chunk: Iterable[Pair]) -> dict[str, str]:
    """Return the checksum of each readable image of a parcel; a worker finds out about the others itself."""
    checksums = {}
    for name in {name for pair in chunk for name in pair}:
        with suppress(SfumatoError):
            checksums[name] = images.facts(name).checksum
    return checksums


def _unpack(result: ChunkResult) -> Matches | SfumatoError:
    return ArchiveError(result) if isinstance(result, str) else Matches(*result)


# --- what runs in a worker


_lock = threading.Lock()
_open_images: dict[tuple[str | int, ...], ArchiveImages] = {}


def match_chunk(
    path: str, chunk: tuple[Pair, ...], checksums: dict[str, str], settings: dict[str, Any]
) -> list[ChunkResult]:
    """Match pairs of an archive, in a worker; images must have the given checksums."""
    settings = dict(settings)
    if (version := settings.pop("version")) != __version__:
        raise WorkerError(f"a worker has sfumato {__version__}, this is {version}: install the same everywhere")
    params = MatchParams(**settings)
    images = _images_at(path)
    for name, checksum in checksums.items():
        _refuse_other(images, name, checksum)
    results: list[ChunkResult] = []
    for pair in chunk:
        try:
            matches = images.match(pair, params)
            results.append((matches.indices, matches.distances))
        except SfumatoError as problem:
            results.append(str(problem))
    return results


def _refuse_other(images: ArchiveImages, name: str, checksum: str) -> None:
    try:
        is_same = name in images.archive and images.facts(name).checksum == checksum
    except ArchiveError:  # damaged since: the pairs of this image will say so
        return
    if not is_same:
        raise ArchiveError(
            f"{images.archive.path} was replaced while it was being matched: image {name!r:.200} is another one now; "
            f"run again with the new archive"
        )


def _images_at(path: str) -> ArchiveImages:
    """Return the images of an archive, which stays open in this process until another archive or version comes."""
    try:
        info = os.stat(path)
    except OSError as cause:
        raise ArchiveError(
            f"a worker cannot open the archive {path}: {cause.strerror}; every worker must see it under this path"
        ) from cause
    key = (path, info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
    with _lock:
        if key not in _open_images:
            images = ArchiveImages(Archive(path), CACHE_BYTES // 2)
            _open_images.clear()
            _open_images[key] = images
        return _open_images[key]


def _close_images(path: str) -> None:
    """Close an archive that ``_images_at`` left open in this process."""
    with _lock:
        for key in [key for key in _open_images if key[0] == path]:
            del _open_images[key]
