# SPDX-License-Identifier: Apache-2.0
"""Exact nearest neighbours between two sets of packed codes, by Hamming distance, on all cores.

``distances`` is the definition; ``search_bits`` gives what it defines, of equals the lower row first, without storing
the matrix of distances. Bits stay bits: nothing here is as large as one float for each of them.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sfumato.subspace.fast import Neighbours, load_compiled, thread_count
from sfumato.subspace.subspace_set import read_only

ROWS_AT_ONCE = 64
PAIRS_OF_A_THREAD = 1 << 19
"""So many take longer than to start a thread."""
FEW, MANY = 8, 16384
"""Up to so few rows against so many are compared without a transposed copy of the many."""
FARTHEST = 65535
"""More than any distance, and what a missing neighbour has while a search runs."""


def distances(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Return the number of different bits of all pairs (N, M) of packed codes (N, B / 8) and (M, B / 8).

    >>> distances(np.array([[0], [255]], np.uint8), np.array([[1]], np.uint8)).tolist()
    [[1], [7]]
    """
    different: NDArray[np.int32] = np.bitwise_count(a[:, None] ^ b[None]).sum(axis=2, dtype=np.int32)
    return different


@dataclass(slots=True, repr=False, eq=False)
class BitSet:
    """Packed codes (N, B / 8) uint8, and their words as the compiled sweep wants them, made on first use."""

    packed: NDArray[np.uint8]
    _words: NDArray[np.uint16] | None = field(default=None, init=False)
    _columns: NDArray[np.uint16] | None = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.packed)

    @property
    def dim(self) -> int:
        """0, as of points."""
        return 0

    @property
    def ambient_dim(self) -> int:
        """The number B of bits of each code."""
        return 8 * int(self.packed.shape[1])

    @property
    def words(self) -> NDArray[np.uint16]:
        """The codes as (N, W) words of 16 bits, W a multiple of 4; as they are where no filling is needed."""
        if self._words is None:
            missing = -self.packed.shape[1] % 8
            packed = np.pad(self.packed, ((0, 0), (0, missing))) if missing else self.packed
            self._words = read_only(np.ascontiguousarray(packed).view(np.uint16))
        return self._words

    @property
    def columns(self) -> NDArray[np.uint16]:
        """The words transposed, (W, N)."""
        if self._columns is None:
            self._columns = read_only(np.ascontiguousarray(self.words.T))
        return self._columns

    @property
    def has_columns(self) -> bool:
        """Whether the words were transposed before."""
        return self._columns is not None

    @property
    def nbytes(self) -> int:
        """The memory in use at present."""
        views = (self._words, self._columns)
        return self.packed.nbytes + sum(one.nbytes for one in views if one is not None and one.base is not self.packed)


def search_bits(
    a: BitSet, b: BitSet, keep: tuple[int, int], *, threads: int | None = None, limit: float = np.inf
) -> Neighbours:
    """Find the ``keep`` nearest of each row of a in b, and of each row of b in a; 0 skips a direction.

    ``limit``: ignore pairs beyond this squared distance. ``squared0`` and ``squared1`` of the result are squares of
    Hamming distances. The result does not depend on ``threads``.
    """
    keep = min(keep[0], len(b)), min(keep[1], len(a))
    if 0 < len(a) <= FEW and keep[0] and not keep[1] and len(b) >= MANY:
        return _scan_many(a, b, keep[0], threads, limit)
    if (a.has_columns, len(b)) > (b.has_columns, len(a)):  # one side is transposed: the one that is, or the smaller
        found = search_bits(b, a, keep[::-1], threads=threads, limit=limit)
        return Neighbours(found.squared1, found.rows1, found.squared0, found.rows0)
    most = _most(limit)
    best0, where0 = _empty(keep[0], len(a), most)
    if max(keep) == 0 or not len(a) or not len(b):
        return _neighbours((best0, where0), _empty(keep[1], len(b), most), most)
    sweep = load_compiled(_load_sweep)
    rows, columns, blocks = a.words, b.columns, RowBlocks(len(a))

    def work(_: int) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
        """Take blocks of rows until none is left; return the nearest rows of each column among them."""
        nearest = _empty(keep[1], len(b), most)
        for start, stop in blocks:
            sweep(rows, columns, start, stop, best0, where0, *nearest)
        return nearest

    workers = min(thread_count(threads), 1 + len(a) * len(b) // PAIRS_OF_A_THREAD, -(-len(a) // ROWS_AT_ONCE))
    if workers == 1:
        return _neighbours((best0, where0), work(0), most)
    with ThreadPoolExecutor(workers) as pool:
        return _neighbours((best0, where0), _merge(list(pool.map(work, range(workers)))), most)


def _scan_many(a: BitSet, b: BitSet, keep: int, threads: int | None, limit: float) -> Neighbours:
    """Find the ``keep`` nearest in b of each of the few rows of a: b is read once, as it lies in memory."""
    scan, most, blocks = load_compiled(_load_scan), _most(limit), RowBlocks(len(b), MANY)
    rows, probes = b.words.view(np.uint64), a.words.view(np.uint64)

    def work(_: int) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
        nearest = _empty(keep, len(a), most)
        for start, stop in blocks:
            scan(rows, probes, start, stop, *nearest)
        return nearest

    workers = min(thread_count(threads), -(-len(b) // MANY))
    with ThreadPoolExecutor(workers) as pool:
        nearest = _merge(list(pool.map(work, range(workers))))
    return _neighbours(nearest, _empty(0, len(b), most), most)


def _most(limit: float) -> int:
    """Return the largest Hamming distance within a squared one."""
    return FARTHEST - 1 if limit >= FARTHEST**2 else int(np.floor(np.sqrt(limit)))


def _load_scan() -> Callable[..., None]:
    from sfumato.hamming.kernel import scan

    kernel: Callable[..., None] = scan
    return kernel


def _load_sweep() -> Callable[..., None]:
    from sfumato.hamming.kernel import sweep

    kernel: Callable[..., None] = sweep
    return kernel


class RowBlocks(Iterator[tuple[int, int]]):
    """Blocks of rows, handed out once each in ascending order, to whichever thread asks."""

    def __init__(self, count: int, size: int = ROWS_AT_ONCE) -> None:
        self._starts, self._count, self._size = iter(range(0, count, size)), count, size

    def __next__(self) -> tuple[int, int]:
        start = next(self._starts)  # one step of the interpreter: no two threads get the same
        return start, min(start + self._size, self._count)


def _empty(keep: int, count: int, most: int) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    """Return lists (keep, count) of no neighbours, for distances up to ``most``."""
    return np.full((keep, count), most + 1, np.uint16), np.full((keep, count), -1, np.int32)


def _merge(parts: list[tuple[NDArray[np.uint16], NDArray[np.int32]]]) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    """Return the nearest of lists (K, M) of several threads, of equals the lower row."""
    keep = len(parts[0][0])
    best, where = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    key = (best.astype(np.int64) << 32) | where.view(np.uint32)  # a missing one has the greatest distance
    order = np.argsort(key, axis=0)[:keep]
    return np.take_along_axis(best, order, axis=0), np.take_along_axis(where, order, axis=0)


def _neighbours(
    a: tuple[NDArray[np.uint16], NDArray[np.int32]], b: tuple[NDArray[np.uint16], NDArray[np.int32]], most: int
) -> Neighbours:
    """Return lists (K, N) as the neighbours of each row, with squares of distances."""
    squared = [np.where(most < best.T, np.inf, np.square(best.T, dtype=np.float64)) for best, _ in (a, b)]
    return Neighbours(squared[0], a[1].T.astype(np.int64), squared[1], b[1].T.astype(np.int64))
