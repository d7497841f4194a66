# SPDX-License-Identifier: Apache-2.0
"""Exact distances of pairs of subspaces in float64, as ``reference`` defines them, and the nearest of a row; compiled.

Only values computed here are compared and returned, so the result of a search does not depend on its bounds. Positions
are unsigned inside the loops: numba then does not check whether they count from the end, and LLVM makes vector
instructions of the loops.
"""

import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import config, njit
from numpy.typing import NDArray

from sfumato.subspace.kernels.simd import borrow, fetch
from sfumato.subspace.reference import INDEPENDENT

log = logging.getLogger(__name__)

SHARED = 1e-4
"""Below this pivot two bases nearly share a direction, and products of their rows lose digits."""


@njit(nogil=True, cache=True)
def _copy(source: Any, at: Any, count: Any, result: Any, result_at: Any) -> None:
    first, place = np.uintp(at), np.uintp(result_at)
    for t in range(np.uintp(count)):
        result[place + t] = np.float64(source[first + t])


@njit(nogil=True, cache=True)
def _subtract(x: Any, x_at: Any, y: Any, y_at: Any, count: Any, result: Any, result_at: Any) -> None:
    x0, y0, place = np.uintp(x_at), np.uintp(y_at), np.uintp(result_at)
    for t in range(np.uintp(count)):
        result[place + t] = np.float64(x[x0 + t]) - np.float64(y[y0 + t])


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _remove(vectors: Any, v_at: Any, rows: Any, r_at: Any, m: Any, n: Any, times: Any) -> None:
    """Take from the n numbers at vectors[v_at] their part along m orthonormal rows, once, or twice against rounding."""
    v0 = np.uintp(v_at)
    for _ in range(times):
        for r in range(m):
            along, r0 = 0.0, np.uintp(r_at + r * n)
            for t in range(np.uintp(n)):
                along += vectors[v0 + t] * rows[r0 + t]
            for t in range(np.uintp(n)):
                vectors[v0 + t] -= along * rows[r0 + t]


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _squared_length(vectors: Any, at: Any, n: Any) -> Any:
    total, v0 = 0.0, np.uintp(at)
    for t in range(np.uintp(n)):
        total += vectors[v0 + t] * vectors[v0 + t]
    return total


@njit(nogil=True, cache=True)
def _separate(rows: Any, m: Any, n: Any) -> None:
    """Rotate the first m rows of n numbers among themselves until they are orthogonal: one-sided Jacobi.

    Their lengths are then the singular values.
    """
    for _ in range(30):
        largest = 0.0
        for p in range(m):
            for q in range(p + 1, m):
                first, second, mixed = np.uintp(p * n), np.uintp(q * n), 0.0
                for t in range(np.uintp(n)):
                    mixed += rows[first + t] * rows[second + t]
                lengths = _squared_length(rows, p * n, n), _squared_length(rows, q * n, n)
                size = np.sqrt(lengths[0] * lengths[1])
                if abs(mixed) <= 1e-15 * size or size == 0:
                    continue
                largest = max(largest, abs(mixed) / size)
                half = (lengths[1] - lengths[0]) / (2 * mixed)
                tangent = (1.0 if half >= 0 else -1.0) / (abs(half) + np.sqrt(1 + half * half))
                cosine = 1 / np.sqrt(1 + tangent * tangent)
                sine = cosine * tangent
                for t in range(np.uintp(n)):
                    x, y = rows[first + t], rows[second + t]
                    rows[first + t], rows[second + t] = cosine * x - sine * y, sine * x + cosine * y
        if largest <= 1e-15:
            return


@njit(nogil=True, cache=True)
def _eliminate(
    origin0: Any, basis0: Any, i: Any, m0: Any, origin1: Any, basis1: Any, j: Any, m1: Any, n: Any, outside: Any
) -> Any:
    """Return what ``exact`` does for bases that share directions: rows within 1e-6 of the other span are dropped."""
    offset = m0 * n
    _subtract(origin1, j * n, origin0, i * n, n, outside, offset)
    _remove(outside, offset, basis1, j * m1 * n, m1, n, 2)
    _copy(basis0, i * m0 * n, m0 * n, outside, 0)
    for r in range(m0):
        _remove(outside, r * n, basis1, j * m1 * n, m1, n, 1)
        if _squared_length(outside, r * n, n) < 1e-2:  # else the offset has no part along basis1 that counts
            _remove(outside, r * n, basis1, j * m1 * n, m1, n, 2)
    _separate(outside, m0, n)
    for r in range(m0):
        length = np.sqrt(_squared_length(outside, r * n, n))
        if length > INDEPENDENT:
            row = np.uintp(r * n)
            for t in range(np.uintp(n)):
                outside[row + t] /= length
            _remove(outside, offset, outside, r * n, 1, n, 1)
    return _squared_length(outside, offset, n)


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _dots(rows: Any, x: Any, count: Any, n: Any, out: Any, out_at: Any) -> None:
    """Fill out with the inner products of row x with the first ``count`` of rows, each of n numbers, four at a time."""
    x0, r = np.uintp(x * n), 0
    while r + 4 <= count:
        total0, total1, total2, total3 = 0.0, 0.0, 0.0, 0.0
        y0, y1, y2, y3 = np.uintp(r * n), np.uintp((r + 1) * n), np.uintp((r + 2) * n), np.uintp((r + 3) * n)
        for t in range(np.uintp(n)):
            value = rows[x0 + t]
            total0 += value * rows[y0 + t]
            total1 += value * rows[y1 + t]
            total2 += value * rows[y2 + t]
            total3 += value * rows[y3 + t]
        out[out_at + r], out[out_at + r + 1], out[out_at + r + 2], out[out_at + r + 3] = total0, total1, total2, total3
        r += 4
    while r < count:
        total, y0 = 0.0, np.uintp(r * n)
        for t in range(np.uintp(n)):
            total += rows[x0 + t] * rows[y0 + t]
        out[out_at + r] = total
        r += 1


@njit(nogil=True, cache=True)
def exact(
    origin0: Any, basis0: Any, i: Any, m0: Any, origin1: Any, basis1: Any, j: Any, m1: Any, n: Any, work: Any
) -> Any:
    """Return the squared distance of a pair in float64, by the definition (Eq. 2).

    What is left of the offset of the origins outside both bases: by the Cholesky factors of the products of all rows,
    none of which is taken for orthonormal; by elimination where the bases nearly share a direction, and for points.
    Arrays are flat: origins (N, n), bases (N, m, n); ``work`` is scratch of ``work_size`` numbers.
    """
    if m0 and m1:
        squared = _factorise(origin0, basis0, i, m0, origin1, basis1, j, m1, n, work)
        if squared >= 0:
            return squared
    if m0 > m1:  # the smaller basis is orthonormalised again; one call alone, which the compiler inlines
        origin0, basis0, i, m0, origin1, basis1, j, m1 = origin1, basis1, j, m1, origin0, basis0, i, m0
    return _eliminate(origin0, basis0, i, m0, origin1, basis1, j, m1, n, work)


@njit(nogil=True, cache=True)
def _factorise(
    origin0: Any, basis0: Any, i: Any, m0: Any, origin1: Any, basis1: Any, j: Any, m1: Any, n: Any, work: Any
) -> Any:
    """Return what ``exact`` does, by Cholesky factors; -1 where the bases nearly share a direction."""
    m, last = m0 + m1, (m0 + m1) * n
    _copy(basis0, i * m0 * n, m0 * n, work, 0)
    _copy(basis1, j * m1 * n, m1 * n, work, m0 * n)
    _subtract(origin1, j * n, origin0, i * n, n, work, last)
    factor = last + n  # rows of m + 1 numbers; the last is the offset's, and becomes the part of it along the bases
    for r in range(m + 1):
        _dots(work, r, r + 1, n, work, factor + r * (m + 1))
    for r in range(m + 1):
        row = factor + r * (m + 1)
        for c in range(min(r + 1, m)):
            total, other = work[row + c], factor + c * (m + 1)
            for t in range(c):
                total -= work[row + t] * work[other + t]
            if c < r:
                work[row + c] = total / work[other + c]
            elif total < SHARED:
                return -1.0
            else:
                work[row + c] = np.sqrt(total)
    squared, row = work[factor + m * (m + 2)], factor + m * (m + 1)
    for t in range(m):
        squared -= work[row + t] * work[row + t]
    return max(squared, 0.0)


@njit(nogil=True, cache=True)
def work_size(m0: Any, m1: Any, n: Any) -> Any:
    """Return how many float64 ``exact`` needs to work with."""
    return (m0 + m1 + 1) * (n + m0 + m1 + 1)


@njit(nogil=True, cache=True)
def _exact_list(
    origin0: Any, basis0: Any, m0: Any, origin1: Any, basis1: Any, m1: Any, n: Any, i: Any, j: Any, result: Any
) -> None:
    work = np.empty(work_size(m0, m1, n))
    for pair in range(len(i)):
        result[pair] = exact(origin0, basis0, i[pair], m0, origin1, basis1, j[pair], m1, n, work)


def exact_pairs(
    origin0: NDArray[np.float32],
    basis0: NDArray[np.float32],
    origin1: NDArray[np.float32],
    basis1: NDArray[np.float32],
    i: NDArray[np.int64],
    j: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the squared distances of the pairs (i, j) of rows of two sides, in float64, by the definition."""
    result = np.empty(len(i))
    (m0, n), m1 = basis0.shape[1:], basis1.shape[1]
    flat = [np.ascontiguousarray(part).reshape(-1) for part in (origin0, basis0, origin1, basis1)]
    for view in flat:
        view.flags.writeable = False  # to numba another type: without this, compiled twice
    _exact_list(flat[0], flat[1], m0, flat[2], flat[3], m1, n, i, j, result)
    return result


# --- the nearest of each row

FLOAT_LINE = 16
"""float32 in a cache line."""


class FlatSubspaces(NamedTuple):
    """``origin`` (N, n) and ``basis`` (N, m, n) of one side, float32, flat and read-only, and their ``dim`` m.

    ``zeros`` (N,) float64: squared distances up to this are what float32 rounding of an origin leaves of 0.
    """

    origin: Any
    basis: Any
    zeros: Any
    dim: Any


def decide(
    rows0: FlatSubspaces, rows1: FlatSubspaces, n: Any, flipped: Any, own: Any, other: Any, low: Any, count: Any,
    best: Any, where: Any,
) -> Any:  # fmt: skip
    """Put ``count`` pairs of ``own`` and ``other`` rows among the nearest of their own; return how many were evaluated.

    ``low`` are squared distances they cannot be below. ``best``, ``where`` (N, keep) stay in order; of equal distances
    the lower number comes first. ``flipped``: own rows are those of side 1.
    """
    if _compilers:
        with _lock:  # whoever comes first waits, and all others with it
            while _compilers:
                _compilers[-1].wait()
                _compilers.pop()
    work = np.empty(work_size(rows0.dim, rows1.dim, n))
    return _decide(rows0, rows1, n, flipped, own, other, low, count, best, where, work)


# --- the first use on a machine: ``_decide`` takes as long to compile as all the rest, so another process does it

SECONDS = 10
"""What the first search of subspaces on a machine takes to compile, about."""

_compilers: list[subprocess.Popen[bytes]] = []
_lock = threading.Lock()


def compile_ahead() -> None:
    """Let another process compile ``decide`` if it is not in numba's cache; this one goes on and waits later."""
    with _lock:
        if _compilers or _decide.signatures or any(Path(_decide.stats.cache_path).glob("exact._decide-*.nbi")):
            return
        log.warning("compiling the search of subspaces for this machine: about %d s, once", SECONDS)
        program = f"from {__name__} import compile_decide; compile_decide()"
        settings = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        if config.CACHE_DIR:
            settings["NUMBA_CACHE_DIR"] = config.CACHE_DIR
        with suppress(OSError):  # without it everything is compiled here
            nowhere = subprocess.DEVNULL
            command = [sys.executable, "-P", "-c", program]  # -P: nothing of the folder it is called in
            _compilers.append(subprocess.Popen(command, env=settings, stdin=nowhere, stdout=nowhere, stderr=nowhere))


def is_compiling() -> bool:
    """Tell whether another process is compiling ``decide``."""
    return bool(_compilers)


def compile_decide() -> None:
    """Compile ``decide`` for the types that searches have, by a search for nothing."""
    rows = np.zeros(8, np.float32)
    rows.flags.writeable = False
    side = FlatSubspaces(rows, rows, np.zeros(1), 1)
    none, best, where = np.zeros(1, np.int32), np.full((1, 1), np.inf), np.full((1, 1), -1, np.int64)
    decide(side, side, 8, False, none, none, np.zeros(1, np.float32), np.int64(0), best, where)


@njit(nogil=True, cache=True)
def _decide(
    rows0: FlatSubspaces, rows1: FlatSubspaces, n: Any, flipped: Any, own: Any, other: Any, low: Any, count: Any,
    best: Any, where: Any, work: Any,
) -> Any:  # fmt: skip
    rows0, rows1, best, where, work = borrow((rows0, rows1, best, where, work))
    last, evaluated = best.shape[1] - 1, 0
    for k in range(count):
        if k + 1 < count:
            _fetch_row(rows1 if flipped else rows0, own[k + 1], n)
            _fetch_row(rows0 if flipped else rows1, other[k + 1], n)
        mine, its = np.int64(own[k]), np.int64(other[k])
        limit = best[mine, last]
        i, j = (its, mine) if flipped else (mine, its)
        zero = max(rows0.zeros[i], rows1.zeros[j])
        if low[k] > max(limit, zero) or (limit == 0 and where[mine, last] >= 0 and its > where[mine, last]):
            continue
        value = exact(rows0.origin, rows0.basis, i, rows0.dim, rows1.origin, rows1.basis, j, rows1.dim, n, work)
        evaluated += 1
        value = 0.0 if value <= zero else value
        _insert(best, where, mine, value, its)
    return evaluated


@njit(nogil=True, inline="always")
def _fetch_row(rows: FlatSubspaces, row: Any, n: Any) -> None:
    """Fetch a row into the cache."""
    for at in range(0, n, FLOAT_LINE):
        fetch(rows.origin, row * n + at)
    for at in range(0, rows.dim * n, FLOAT_LINE):
        fetch(rows.basis, row * rows.dim * n + at)


@njit(nogil=True, cache=True)
def _insert(best: Any, where: Any, row: Any, value: Any, other: Any) -> None:
    """Put a value among the nearest of a row, unless it is farther than all of them."""
    at = best.shape[1] - 1
    if value > best[row, at] or (value == best[row, at] and where[row, at] >= 0 and other > where[row, at]):
        return
    while at > 0:
        before, number = best[row, at - 1], where[row, at - 1]
        if value > before or (value == before and 0 <= number < other):
            break
        best[row, at], where[row, at] = before, number
        at -= 1
    best[row, at], where[row, at] = value, other


@njit(nogil=True, inline="always")
def keep_least(values: Any, row: Any, value: Any) -> None:
    """Put a value among the least of a row, which are in order."""
    at = values.shape[1] - 1
    if value >= values[row, at]:
        return
    while at > 0 and value < values[row, at - 1]:
        values[row, at] = values[row, at - 1]
        at -= 1
    values[row, at] = value
