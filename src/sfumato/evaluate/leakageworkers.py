# SPDX-License-Identifier: Apache-2.0
"""The leakage evaluation on several processes of this machine, with the same results as on one.

A worker is sent paths and settings, never arrays, and opens the attacker's tools itself. It is given one photo under
one recipe at a time, so that what the attacks on it share is made once. It writes the predictions, each in a file of
its own; scores, which share a file, come back and are written here. Knows how work is shared out, not what it is.
"""

import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sfumato.errors import InputError, WorkerError
from sfumato.evaluate.attackers import Toolbox
from sfumato.evaluate.leakage import LeakageProtocol, Work, Works, evaluate_leakage, plan_leakage
from sfumato.evaluate.results import Results
from sfumato.evaluate.runner import Measured, note
from sfumato.evaluate.task import Sample
from sfumato.matching.executors import local_processes
from sfumato.subspace.fast import limit_threads, thread_count
from sfumato.types.record import Record

PLAIN_BYTES, COPIES = 500 << 20, 4
"""What a worker takes by itself, and how many times the descriptors it is given: as they are, and to search them."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """All that is to be measured, as paths and settings: what a worker can be sent."""

    photos: tuple[tuple[str, Path], ...]
    protocol: LeakageProtocol
    toolbox: Toolbox

    def plan(self) -> Works:
        """Read the tools and return what there is to do; raises as ``plan_leakage`` does."""
        return plan_leakage(dict(self.photos), self.protocol, self.toolbox.open())


def count_workers(wanted: int | None, works: Works) -> int:
    """Return how many processes to use: so many, or by default one a core, a photo, and a share of the memory.

    Raises InputError for less than 1.
    """
    if wanted is not None:
        if wanted < 1:
            raise InputError(f"workers: expected 1 or more, got {wanted}")
        return wanted
    held = works.made[0].intruder.tools.held_bytes
    return max(1, min(thread_count(None), len(works.samples), free_bytes() // (PLAIN_BYTES + COPIES * held)))


def evaluate_on(
    workers: int,
    order: Order,
    works: Works,
    folder: str | Path,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    overwrite: bool = False,
) -> list[Record]:
    """Do what ``evaluate_leakage`` does with ``works``, the plan of ``order``, on so many processes; 1 is this one.

    Raises WorkerError if a worker dies; what was finished is kept.
    """
    if workers == 1:
        return evaluate_leakage(works, folder, progress=progress, overwrite=overwrite)
    by_digest = {work.task().settings_digest: work for work in works.made}
    for work in works.made:
        results = Results(folder, work.task())  # makes its folder: workers only add to it
        if overwrite:
            results.forget(works.samples)
    threads = max(1, thread_count(None) // workers)
    try:
        with local_processes(workers) as pool:
            tasks = {
                pool.submit(measure_photo, order, str(folder), threads, (sample.key, sample.digest), digests): sample
                for sample in works.samples
                for digests in _by_recipe(by_digest)
            }
            for _ in progress(_Units(tasks, by_digest, folder)):  # type: ignore[arg-type]
                pass
    except BrokenExecutor as cause:
        raise WorkerError(
            "leakage: a worker died; what was finished is kept, run it again, with fewer --workers if memory is short"
        ) from cause
    return works.summarise(folder)


class _Units:
    """Every photo under every attack, as they are finished; as many as there are, for whoever shows progress."""

    def __init__(self, tasks: Mapping[Future[Any], Sample], works: Mapping[str, Work], folder: str | Path) -> None:
        self._tasks, self._works, self._folder = tasks, works, folder

    def __len__(self) -> int:
        return len(self._works) * len(set(self._tasks.values()))

    def __iter__(self) -> Generator[tuple[Sample, Work], None, None]:
        for task in as_completed(self._tasks):
            sample = self._tasks[task]
            for digest, measured in task.result():
                if measured is not None:
                    note(self._works[digest].task(), self._folder, sample, measured)
                yield sample, self._works[digest]


def _by_recipe(works: Mapping[str, Work]) -> list[tuple[str, ...]]:
    """Return the digests of works, those on one recipe and seed together."""
    groups: dict[str, list[str]] = {}
    for digest, work in works.items():
        groups.setdefault(str(work.intruder.case.subject), []).append(digest)
    return [tuple(group) for group in groups.values()]


def free_bytes() -> int:
    """Return how much memory could be had now, as far as the system tells."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass  # not Linux
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, OSError, ValueError):
        return 4 << 30


# ---------------------------------------------------------------- what runs in a worker


def measure_photo(
    order: Order, folder: str, threads: int, named: tuple[str, str], digests: tuple[str, ...]
) -> list[tuple[str, Measured | None]]:
    """Attack one photo in the ways with these digests; return the new scores of each.

    Raises InputError if a file was changed since the work was planned.
    """
    works, sample = _opened(order, threads), Sample(*named)
    if sample not in works.samples or not all(digest in works.by_digest for digest in digests):
        raise InputError(f"{sample.key}: photos, decoys or models were changed while they were measured: run it again")
    return [(digest, works.by_digest[digest].measure(folder, sample)) for digest in digests]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class _Opened:
    samples: frozenset[Sample]
    by_digest: Mapping[str, Work]


@lru_cache(maxsize=1)
def _opened(order: Order, threads: int) -> _Opened:
    """Plan the work in this process, once, and keep it to its share of the cores."""
    from threadpoolctl import threadpool_limits

    limit_threads(threads)
    os.environ.update(dict.fromkeys(THREADS, str(threads)))  # for libraries that are loaded later
    threadpool_limits(threads)
    works = order.plan()
    return _Opened(frozenset(works.samples), {work.task().settings_digest: work for work in works.made})
