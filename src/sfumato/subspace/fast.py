# SPDX-License-Identifier: Apache-2.0
"""Exact nearest neighbours between two sets of affine subspaces, at the speed of the machine.

The result is what ``reference`` defines, evaluated in float64; everything before that only skips pairs that cannot
matter (see ``kernels.sweep`` and docs/explanation/exact_search.md). The matrix of all distances is never stored.
Threads call compiled code that does its own products: no BLAS, no second pool of threads.
"""

import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.subspace.subspace_set import Frame, SubspaceSet, read_only

log = logging.getLogger(__name__)

Kernel = TypeVar("Kernel")

TILE_BYTES = 32 << 20
"""Bounds in memory at once, one byte each."""

TILE_COLUMNS = 16384
LARGEST_SYSTEM, LARGEST_STACK = 16, 400
"""For two subspaces both larger than the first, or with more products per pair than the second, compiling a bound would
take minutes: every pair is evaluated in float64."""

ROWS_AT_ONCE, COLUMNS_AT_ONCE = 48, 128

INDISTINCT = 2.5e-7
"""Distances below this, in units of the longer origin, are rounding errors of float32 and count as 0."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Neighbours:
    """The nearest of each row of either side, nearest first, of equals the lower number first.

    ``squared0`` (N0, keep0) float64 and ``rows0`` (N0, keep0) int64: for each row of side 0 the squared distances and
    rows of side 1; inf and -1 where there are fewer. ``squared1`` (N1, keep1), ``rows1``: the other way. ``head`` is
    the number of axes of the bound, 0 without a bound; ``bracketed`` and ``decided`` count the pairs that needed the
    full panels, and float64.
    """

    squared0: NDArray[np.float64]
    rows0: NDArray[np.int64]
    squared1: NDArray[np.float64]
    rows1: NDArray[np.int64]
    head: int = 0
    bracketed: int = 0
    decided: int = 0


def prepare(origin: NDArray[np.float32], basis: NDArray[np.float32]) -> SubspaceSet:
    """Return subspaces ready for searches; ``origin`` (N, n), ``basis`` (N, m, n) float32 in canonical form."""
    return SubspaceSet(read_only(origin), read_only(basis))


def search(
    a: SubspaceSet,
    b: SubspaceSet,
    keep: tuple[int, int],
    *,
    threads: int | None = None,
    limit: float = np.inf,
    head: int | None = None,
) -> Neighbours:
    """Find the ``keep`` nearest of each row of a in b, and of each row of b in a; 0 skips a direction.

    ``limit``: ignore pairs beyond this squared distance. ``head``: the number of axes of the bound, by default what is
    fastest; n projects nothing away. The result does not depend on ``threads`` or ``head``.
    """
    load_kernels()
    from sfumato.subspace.kernels.exact import compile_ahead
    from sfumato.subspace.plan import USELESS, choose_plan

    keep, factor = (min(keep[0], len(b)), min(keep[1], len(a))), _unit(a, b)
    if factor != 1:
        scaled = [prepare(side.origin * np.float32(factor), side.basis) for side in (a, b)]
        result = search(scaled[0], scaled[1], keep, threads=threads, limit=limit * factor**2, head=head)
        return replace(result, squared0=result.squared0 / factor**2, squared1=result.squared1 / factor**2)
    if a.dim < b.dim and keep[0] and keep[1]:  # rows stay in the cache, columns are fetched: rows are the large ones
        result = search(b, a, keep[::-1], threads=threads, limit=limit, head=head)
        swapped = result.squared1, result.rows1, result.squared0, result.rows0
        return Neighbours(*swapped, result.head, result.bracketed, result.decided)
    nearest = [
        (np.full((len(side), count), np.inf), np.full((len(side), count), -1, np.int64))
        for side, count in zip((a, b), keep, strict=True)
    ]
    if max(keep) == 0 or not len(a) or not len(b):
        return Neighbours(*nearest[0], *nearest[1])
    compile_ahead()
    for best, _ in nearest:
        best[...] = limit
    if min(a.dim, b.dim) > LARGEST_SYSTEM or (min(a.dim, b.dim) and (a.dim + 1) * (b.dim + 1) > LARGEST_STACK):
        return _search_all_pairs(a, b, nearest, thread_count(threads))
    frame = a.frame or b.frame or Frame.of(a.origin, b.origin)
    if len(frame.mean) != a.origin.shape[1]:
        raise InputError(f"frame: made for {len(frame.mean)} dimensions, the subspaces have {a.origin.shape[1]}")
    a.frame, b.frame = a.frame or frame, b.frame or frame
    with ThreadPoolExecutor(thread_count(threads)) as pool, one_blas_thread():  # the threads are ours
        plan = choose_plan(a, b, frame, keep, limit=limit, head=head, run=pool.map)
        counts = TiledSearch(a, b, frame, plan, limit, nearest, pool.map).run(pool, thread_count(threads))
    if plan.head and counts[0] > USELESS * len(a) * len(b):
        frame.plans.clear()
    for best, where in nearest:
        best[where < 0] = np.inf
    return Neighbours(*nearest[0], *nearest[1], plan.head, *counts)


def load_kernels() -> None:
    """Import the compiled code of subspaces."""

    def load() -> None:
        from sfumato.subspace.kernels import sweep  # noqa: F401

    load_compiled(load)


def load_compiled(load: Callable[[], Kernel]) -> Kernel:
    """Return what an import of compiled code gives; if numba finds no folder for its cache, make one for a while."""
    _forgive_full_disks()
    try:
        return load()
    except RuntimeError as problem:
        if "cannot cache" not in str(problem):
            raise
        import numba

        numba.config.CACHE_DIR = tempfile.mkdtemp(prefix="sfumato-kernels-")
        log.warning("no folder for compiled code: set NUMBA_CACHE_DIR to one, or each process compiles again")
        return load()


@cache
def _forgive_full_disks() -> None:
    """Let numba go on with compiled code that it cannot keep: a full disk would end the call that compiled it."""
    from numba.core.caching import Cache

    save = Cache.save_overload

    def save_if_possible(kernel_cache: Any, signature: Any, compiled: Any) -> None:
        try:
            save(kernel_cache, signature, compiled)
        except OSError as problem:
            log.warning("compiled code cannot be kept (%s): each process compiles again", problem.strerror)

    Cache.save_overload = save_if_possible


def _search_all_pairs(a: SubspaceSet, b: SubspaceSet, nearest: Sequence[Any], threads: int) -> Neighbours:
    """Evaluate every pair in float64."""
    from sfumato.subspace.kernels.exact import decide

    rows = _rows(a, b), _rows(b, a)

    def of_side(side: int, block: tuple[int, int]) -> int:
        mine, others = np.arange(*block, dtype=np.int32), np.arange(len((b, a)[side]), dtype=np.int32)
        own, other = np.repeat(mine, len(others)), np.tile(others, len(mine))
        pairs = own, other, np.zeros(len(own), np.float32), len(own)
        return int(decide(*rows, a.origin.shape[1], side == 1, *pairs, *nearest[side]))

    blocks = [
        (side, block)
        for side in (0, 1)
        if nearest[side][0].shape[1]
        for block in _blocks((0, len((a, b)[side])), ROWS_AT_ONCE)
    ]
    with ThreadPoolExecutor(threads) as pool:
        decided = sum(pool.map(lambda block: of_side(*block), blocks))
    for best, where in nearest:
        best[where < 0] = np.inf
    (best0, rows0), (best1, rows1) = nearest
    return Neighbours(best0, rows0, best1, rows1, decided=decided)


class TiledSearch:
    """One search: the compiled form of both sides, and the work cut into tiles and blocks."""

    def __init__(
        self,
        a: SubspaceSet,
        b: SubspaceSet,
        frame: Frame,
        plan: Any,
        limit: float,
        nearest: Sequence[Any],
        run: Any = map,
    ) -> None:
        from sfumato.subspace.kernels.panels import group_size, scales_of
        from sfumato.subspace.kernels.sweep import SearchRules

        self.counts, self.nearest, self.head, self.n = (len(a), len(b)), nearest, plan.head, a.origin.shape[1]
        self.keep = nearest[0][0].shape[1], nearest[1][0].shape[1]
        panels = [side.panel(frame, None, dual=dual, run=run) for side, dual in zip((a, b), plan.duals, strict=True)]
        dims, dual = [panel.values.shape[1] - 1 for panel in panels], any(plan.duals)
        self.stacked, self.group = (dims[0] + 1) * (dims[1] + 1), group_size(dims[1])
        self.sides = tuple(_side(panel, dual and not own) for panel, own in zip(panels, plan.duals, strict=True))
        self.rows = _rows(a, b), _rows(b, a)
        floor = max(float(side.zeros.max(initial=0.0)) for side in self.rows)
        self.rules = SearchRules(scales_of(panels[0], panels[1], *dims, dual=dual), np.float32(plan.step), limit, floor)
        if plan.head:
            self._bound(a, b, frame, plan, dims, run)

    def _bound(self, a: SubspaceSet, b: SubspaceSet, frame: Frame, plan: Any, dims: list[int], run: Any) -> None:
        """Make the coarse panels."""
        from sfumato.subspace.kernels.panels import column_layout, row_layout, scales_of
        from sfumato.subspace.kernels.simd import BLOCK

        coarse = [
            side.panel(frame, plan.head, pad_rows=pad, dual=own, run=run)
            for side, own, pad in zip((a, b), plan.duals, (BLOCK, self.group), strict=True)
        ]
        dual = any(plan.duals)
        norms = [_norms(panel, dual and not own) for panel, own in zip(coarse, plan.duals, strict=True)]
        self.coarse = (row_layout(coarse[0]), norms[0], column_layout(coarse[1]), norms[1])
        self.coarse_scales = scales_of(coarse[0], coarse[1], *dims, dual=dual)

    def run(self, pool: ThreadPoolExecutor | None = None, threads: int = 1) -> tuple[int, int]:
        """Search all tiles; return how many pairs were bracketed, and evaluated in float64."""
        width = min(self.counts[1], TILE_COLUMNS // self.group * self.group)
        height = min(self.counts[0], _even_part(self.counts[0], max(ROWS_AT_ONCE, TILE_BYTES // width)))
        self.stride = -(-width // self.group) * self.group
        self.bounds = np.zeros(height * self.stride + 64, np.uint8)  # scans read 64 at a time
        ceilings = np.full(self.counts[1], np.inf)
        self.columns_at_once = COLUMNS_AT_ONCE * min(max(len(self.sides[0].ones) // 2, 1), 8)  # large rows serve more
        team = [_SearchThread(self, height, width) for _ in range(threads)]
        for top in range(0, self.counts[0], height):
            for left in range(0, self.counts[1], width):
                tile = (top, min(top + height, self.counts[0])), (left, min(left + width, self.counts[1]))
                self._tile(tile, team, ceilings, pool)
        return sum(int(thread.room.counts[1]) for thread in team), sum(thread.decided for thread in team)

    def _tile(self, tile: Any, team: "list[_SearchThread]", ceilings: NDArray[np.float64], pool: Any) -> None:
        rows, columns = tile
        if not self.head:
            self.bounds[:] = 0  # no bound
        for thread in team:
            thread.upper = np.full((columns[1] - columns[0], self.keep[1]), np.inf, np.float32)
        _run_blocks(team, pool, _blocks(rows, ROWS_AT_ONCE), lambda thread, block: thread.sweep_rows(block, tile))
        if self.keep[1]:
            upper = np.sort(np.concatenate([thread.upper for thread in team], axis=1), axis=1)[:, self.keep[1] - 1]
            ceilings[slice(*columns)] = np.minimum(ceilings[slice(*columns)], upper)
            blocks = _blocks(columns, self.columns_at_once)
            _run_blocks(team, pool, blocks, lambda thread, block: thread.sweep_columns(block, tile, ceilings))


class _SearchThread:
    """The work and the scratch arrays of one thread."""

    def __init__(self, search: TiledSearch, height: int, width: int) -> None:
        from sfumato.subspace.kernels.sweep import scratch

        candidates = max(ROWS_AT_ONCE * width, min(search.columns_at_once, width) * height)  # hardly ever touched
        self.search, self.decided = search, 0
        self.room = scratch(max(height, width), candidates, search.stacked)
        self.upper: NDArray[np.float32] = np.empty((0, 0), np.float32)

    def sweep_rows(self, block: tuple[int, int], tile: Any) -> None:
        from sfumato.subspace.kernels import bounds, sweep

        s, ((top, _), columns) = self.search, tile
        lines = s.bounds[(block[0] - top) * s.stride :]
        if s.head:
            groups = (columns[0] // s.group, -(-columns[1] // s.group))
            ones = s.sides[0].ones, s.sides[1].ones
            bounds.fill(*s.coarse, block, groups, s.coarse_scales, np.float32(1 / s.rules.step), *ones, lines, s.stride)
        if s.keep[0]:
            best = s.nearest[0][0]
            sweep.sweep_rows(s.sides, s.rules, block, columns, lines, s.stride, best, self.upper, self.room)
            self._decide(0)

    def sweep_columns(self, block: tuple[int, int], tile: Any, ceilings: NDArray[np.float64]) -> None:
        from sfumato.subspace.kernels import sweep

        s, (rows, (left, _)) = self.search, tile
        best, at = s.nearest[1][0], block[0] - left
        sweep.sweep_columns(s.sides, s.rules, rows, block, s.bounds, at, s.stride, best, ceilings, self.room)
        self._decide(1)

    def _decide(self, side: int) -> None:
        from sfumato.subspace.kernels import sweep
        from sfumato.subspace.kernels.exact import decide, is_compiling

        s, room = self.search, self.room
        if is_compiling() and side == 0 and s.keep[1]:  # meanwhile, what comes next is compiled here
            nothing = (0, 0), (0, 0), s.bounds, 0, s.stride, s.nearest[1][0], np.zeros(1), room
            sweep.sweep_columns(s.sides, s.rules, *nothing)
        pairs = room.own, room.other, room.low, room.counts[0]
        self.decided += decide(*s.rows, s.n, side == 1, *pairs, *s.nearest[side])
        room.counts[0] = 0


def _run_blocks(
    threads: list[_SearchThread],
    pool: ThreadPoolExecutor | None,
    blocks: list[tuple[int, int]],
    task: Callable[[_SearchThread, tuple[int, int]], None],
) -> None:
    """Let each thread take the next block until none is left."""
    queue = iter(blocks)  # next() of a list's iterator is atomic

    def drain(thread: _SearchThread) -> None:
        for block in queue:
            task(thread, block)

    if pool is None or len(threads) == 1:
        drain(threads[0])
    else:
        for _ in pool.map(drain, threads):
            pass


def _blocks(span: tuple[int, int], size: int) -> list[tuple[int, int]]:
    return [(first, min(first + size, span[1])) for first in range(*span, size)]


def _even_part(count: int, most: int) -> int:
    """Return the size of the parts, at most ``most``, that cut ``count`` most evenly; a multiple of a block."""
    size = -(-count // -(-count // most))
    return -(-size // ROWS_AT_ONCE) * ROWS_AT_ONCE


def _unit(a: SubspaceSet, b: SubspaceSet) -> float:
    """Return the power of two that brings the coordinates to a size whose squares float32 holds with all digits."""
    largest = max(a.largest(), b.largest())
    return 1.0 if largest == 0 or 1e-6 < largest < 1e6 else float(2.0 ** -np.round(np.log2(largest)))


def _norms(panel: Any, omit: bool) -> NDArray[np.float32]:
    """Return the squared norms of a panel; 0 for the points of the dual form, which does without them."""
    norms: NDArray[np.float32] = np.minimum(panel.norms, 0) if omit else panel.norms
    return norms


def _side(panel: Any, omit_norms: bool) -> Any:
    from sfumato.subspace.kernels.sweep import PanelSide

    return PanelSide(panel.values.reshape(-1), _norms(panel, omit_norms), (0,) * (panel.values.shape[1] - 1))


def _rows(side: SubspaceSet, other: SubspaceSet) -> Any:
    from sfumato.subspace.kernels.exact import FlatSubspaces

    flat = read_only(side.origin).reshape(-1), read_only(side.basis).reshape(-1)
    return FlatSubspaces(*flat, zero_thresholds(side, other), side.dim)


def zero_thresholds(side: SubspaceSet, other: SubspaceSet) -> NDArray[np.float64]:
    """Return the squared distances (N,) up to which a pair counts as meeting; 0 between points."""
    if side.dim == other.dim == 0:
        return np.zeros(len(side))
    return INDISTINCT**2 * side.squared_norms()


def exact_distances(
    a: SubspaceSet, b: SubspaceSet
) -> Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]:
    """Return a function for the exact squared distances of rows i and j of two sides, as ``search`` compares them."""
    from sfumato.subspace.kernels.exact import exact_pairs

    zeros0, zeros1 = zero_thresholds(a, b), zero_thresholds(b, a)

    def exact(i: NDArray[np.int64], j: NDArray[np.int64]) -> NDArray[np.float64]:
        squared = exact_pairs(a.origin, a.basis, b.origin, b.basis, i, j)
        return np.where(squared <= np.maximum(zeros0[i], zeros1[j]), 0.0, squared)

    return exact


# --- threads

_limit = {"threads": sys.maxsize}


def limit_threads(most: int) -> None:
    """Set the default of ``thread_count`` to at most this many: for one of several workers on a machine."""
    _limit["threads"] = most


def thread_count(threads: int | None) -> int:
    """Return the number of threads to use: ``threads``, or by default the cores this process may use."""
    if threads is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(cores, _limit["threads"])
    if not isinstance(threads, int | np.integer) or isinstance(threads, bool) or threads < 1:
        raise InputError(f"threads: expected a whole number of 1 or more, got {threads!r:.80}")
    return int(threads)


_lock = threading.Lock()
_state: dict[str, Any] = {"users": 0, "limits": None, "libraries": None}


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit the BLAS to one thread while any caller is inside; the last one out restores its threads.

    Searches may overlap: limits set and restored by different threads, one inside another, would leave the process with
    the wrong one. Libraries are looked up once, which takes as long as a small search.
    """
    from threadpoolctl import ThreadpoolController

    with _lock:
        if _state["libraries"] is None:
            _state["libraries"] = ThreadpoolController()
        if _state["users"] == 0:
            _state["limits"] = _state["libraries"].limit(limits=1, user_api="blas")
        _state["users"] += 1
    try:
        yield
    finally:
        with _lock:
            _state["users"] -= 1
            if _state["users"] == 0:
                _state["limits"].restore_original_limits()
                _state["limits"] = None
