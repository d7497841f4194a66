# SPDX-License-Identifier: Apache-2.0
"""Databases larger than memory: many index files searched one after another, or each by some worker.

Each shard is the file of an index. Only the answers travel between workers, k ids and distances a query. Any Executor
of ``concurrent.futures`` will do: threads, the processes and the clusters of ``sfumato.matching.executors``.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.search.entries import check_effort, check_k
from sfumato.search.factory import build, load, load_entries
from sfumato.search.index import SearchStats

_FileAnswer = tuple[NDArray[np.float32], NDArray[np.int64], tuple[int, int, int, int]]

State = tuple[str, int, int]

_intact: set[State] = set()
"""Files, as they were, whose checksums this process has compared."""


@dataclass(frozen=True, slots=True)
class _Span:
    """A file as it was, and the ids of its entries: from ``first`` to ``last``; of no entry, ``last`` is below."""

    path: str
    state: State
    first: int
    last: int


_spans: dict[State, tuple[int, int]] = {}
"""First and last id of files, as they were, that this process has read."""


class Shards:
    """Index files that are searched like one. Ids must be different in all of them: see ``build_shards``.

    A search raises InputError for two files with an id in common. Only files whose ids lie among one another's are
    compared id by id, once for as long as they stay as they are.
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        if isinstance(paths, str | os.PathLike):
            raise InputError(f"paths: expected a list of index files, got one path; write [{os.fspath(paths)!r:.80}]")
        self.paths = tuple(os.fspath(path) for path in paths)
        if not self.paths:
            raise InputError("paths: expected at least one index")
        self._apart: tuple[_Span, ...] = ()

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"Shards({len(self)} files)"

    def search(
        self, queries: Any, k: int = 10, effort: float | None = None, *, executor: Executor | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the distances and ids (Q, k) of the nearest found in all shards; inf and -1 where there are fewer.

        Without ``executor`` one shard after another is mapped, searched and let go: memory holds one at a time.
        """
        distances, ids, _ = self.search_counted(queries, k, effort, executor=executor)
        return distances, ids

    def search_counted(
        self, queries: Any, k: int = 10, effort: float | None = None, *, executor: Executor | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], SearchStats]:
        """Return what ``search`` does, and what it took."""
        check_k(k), check_effort(effort)
        self._refuse_shared_ids(executor)
        work = [(path, queries, k, effort) for path in self.paths]
        answers: Iterator[_FileAnswer] = map(search_file, work) if executor is None else executor.map(search_file, work)
        distances, ids, counts = next(answers)
        stats = SearchStats(*counts)
        for more, their_ids, counts in answers:
            distances, ids = merge((distances, ids), (more, their_ids), k)
            stats += SearchStats(*counts)
        empty = int((ids[:, 0] < 0).sum())
        return distances, ids, SearchStats(len(ids), stats.looked_at, stats.evaluated, empty)

    def _refuse_shared_ids(self, executor: Executor | None) -> None:
        run: Callable[..., Iterable[Any]] = map if executor is None else executor.map
        spans = tuple(run(span_of, self.paths))
        if spans == self._apart:
            return
        for group in _overlapping_spans(spans):
            _refuse_shared([span.path for span in group], list(run(ids_of, [span.path for span in group])))
        self._apart = spans


def search_file(work: tuple[str, Any, int, float | None]) -> _FileAnswer:
    """Search one file: what a worker does. Its checksums are compared when the process first meets it as it is."""
    path, queries, k, effort = work
    state = _state_of(path)
    index = load(path, verify=state not in _intact)
    _intact.add(state)
    distances, ids, stats = index.search_counted(queries, k, effort)
    return distances, ids, astuple(stats)


def span_of(path: str) -> _Span:
    """Return where the ids of a file lie, read when the process first meets it as it is."""
    state = _state_of(path)
    if state not in _spans:
        ids = ids_of(path)
        _spans[state] = (int(ids.min()), int(ids.max())) if ids.size else (0, -1)
    return _Span(path, state, *_spans[state])


def ids_of(path: str) -> NDArray[np.int64]:
    """Return the ids of a file, without those of entries that were removed."""
    return load_entries(path)[3].alive_ids()


def _overlapping_spans(spans: Iterable[_Span]) -> list[list[_Span]]:
    """Return groups of two files or more whose ids lie among one another's; files that stand apart are left out."""
    groups: list[list[_Span]] = []
    last = -1
    for span in sorted((span for span in spans if span.first <= span.last), key=lambda span: span.first):
        if span.first > last:
            groups.append([])
        groups[-1].append(span)
        last = max(last, span.last)
    return [group for group in groups if len(group) > 1]


def _refuse_shared(paths: Sequence[str], ids: Sequence[NDArray[np.int64]]) -> None:
    """Raise InputError, naming two files, if an id is in several of them."""
    merged = np.sort(np.concatenate(ids))
    repeats = merged[1:][merged[1:] == merged[:-1]]
    holders = [path for path, own in zip(paths, ids, strict=True) if repeats.size and (own == repeats[0]).any()]
    if len(holders) > 1:  # one alone is damaged, as its search will tell
        raise InputError(
            f"{holders[0]} and {holders[1]} both have an entry of id {repeats[0]}: an answer could "
            f"mean either. Ids must differ in all shards: build_shards numbers them, or give ids when they are built"
        )


def _state_of(path: str) -> State:
    """Return what tells a file from a changed one; nothing of the kind where there is no file."""
    try:
        info = os.stat(path)
    except OSError:
        return path, -1, -1  # load says what is wrong
    return os.path.realpath(path), info.st_size, info.st_mtime_ns


def merge(
    first: tuple[NDArray[np.float32], NDArray[np.int64]],
    second: tuple[NDArray[np.float32], NDArray[np.int64]],
    k: int,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the k nearest (Q, k) of two answers, of equals the lower id first."""
    distances, ids = np.concatenate([first[0], second[0]], axis=1), np.concatenate([first[1], second[1]], axis=1)
    order = np.lexsort((ids, distances), axis=1)[:, :k]
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(ids, order, axis=1)


def build_shards(
    parts: Iterable[Any], paths: Sequence[str | os.PathLike[str]], *, kind: str | None = None, **settings: Any
) -> Shards:
    """Build and save an index of each part, numbered through, and return them as shards; memory holds one part.

    ``parts``: what ``sfumato.search.build`` takes, one for each path; ``settings``: its metric and params.
    """
    if isinstance(paths, str | os.PathLike):
        raise InputError("paths: expected one path for each part, got a single path")
    first, remaining, places = 0, iter(parts), list(paths)
    for number, path in enumerate(places):
        part = next(remaining, None)
        if part is None:
            raise InputError(f"parts: expected one for each of {len(places)} paths, got {number}")
        index = build(part, kind, ids=None, **settings)
        _renumber(index, first)
        index.save(path)
        first = index.entries.next_id
    if next(remaining, None) is not None:
        raise InputError(f"parts: there are more of them than the {len(places)} paths")
    return Shards(places)


def _renumber(index: Any, first: int) -> None:
    """Let the ids of a fresh index begin with ``first``."""
    from dataclasses import replace

    entries = index.entries
    entries.segments = [replace(segment, ids=segment.ids + first) for segment in entries.segments]
    entries.next_id += first
