# SPDX-License-Identifier: Apache-2.0
"""The compiled sweep over pairs of codes: one machine instruction counts the different bits of 32 columns at once.

Codes are words of 16 bits. Columns are transposed, so that one word of a row meets the same word of many columns in
consecutive memory: the compiler turns that into vector instructions (VPOPCNTW where there is one, byte shuffles
elsewhere). Compiled once for one signature, in about a second, and kept on disk.
"""

from typing import Any

import numpy as np
from numba import njit
from numba.extending import intrinsic

TILE = 256
"""Columns at once: their 16-bit distances stay in registers and the nearest cache."""
WORDS_AT_ONCE = 4
"""A code has a multiple of this many words."""

SIGNATURE = "void(Array(uint16, 2, 'C', True, aligned=True), Array(uint16, 2, 'C', True, aligned=True), int64, int64, uint16[:,::1], int32[:,::1], uint16[:,::1], int32[:,::1])"  # noqa: E501


@intrinsic  # type: ignore[untyped-decorator]
def _popcount(context: Any, word: Any) -> Any:
    """The number of ones in a word of 16 or 64 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = builder.module.declare_intrinsic("llvm.ctpop", [arguments[0].type])
        return builder.call(function, [arguments[0]])

    return word(word), generate


SCAN_SIGNATURE = "void(Array(uint64, 2, 'C', True, aligned=True), Array(uint64, 2, 'C', True, aligned=True), int64, int64, uint16[:,::1], int32[:,::1])"  # noqa: E501


@njit(inline="always")
def _insert(best, where, entry, distance, row):  # type: ignore[no-untyped-def]  # pragma: no cover (compiled)
    """Put a distance into the column ``entry`` of sorted lists (K, N), behind those that are equal."""
    place = best.shape[0] - 1
    while place > 0 and best[place - 1, entry] > distance:
        best[place, entry] = best[place - 1, entry]
        where[place, entry] = where[place - 1, entry]
        place -= 1
    best[place, entry] = distance
    where[place, entry] = row


@njit(SIGNATURE, nogil=True, cache=True, error_model="numpy")
def sweep(rows, columns, start, stop, best0, where0, best1, where1):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Compare rows ``start`` to ``stop`` of (N, W) words with the columns (W, M), and keep the nearest of both sides.

    ``best0`` (K0, N) and ``best1`` (K1, M) hold the least distances so far, sorted, or what distances must be below;
    ``where0`` and ``where1`` the other's number. Of equals the one that came first stays.
    """
    words, count = rows.shape[1], columns.shape[1]
    keep0, keep1 = best0.shape[0], best1.shape[0]
    buffer = np.empty(TILE, np.uint16)
    for first in range(0, count, TILE):
        size = min(TILE, count - first)
        for row in range(start, stop):
            for j in range(size):
                buffer[j] = 0
            for word in range(0, words, WORDS_AT_ONCE):
                x0, x1, x2, x3 = rows[row, word], rows[row, word + 1], rows[row, word + 2], rows[row, word + 3]
                y0, y1 = columns[word, first : first + size], columns[word + 1, first : first + size]
                y2, y3 = columns[word + 2, first : first + size], columns[word + 3, first : first + size]
                for j in range(size):
                    low = np.uint16(_popcount(np.uint16(x0 ^ y0[j])) + _popcount(np.uint16(x1 ^ y1[j])))
                    high = np.uint16(_popcount(np.uint16(x2 ^ y2[j])) + _popcount(np.uint16(x3 ^ y3[j])))
                    buffer[j] = np.uint16(buffer[j] + np.uint16(low + high))
            if keep0:
                least = np.uint16(65535)
                for j in range(size):
                    least = buffer[j] if buffer[j] < least else least
                if least < best0[keep0 - 1, row]:
                    for j in range(size):
                        if buffer[j] < best0[keep0 - 1, row]:
                            _insert(best0, where0, row, buffer[j], first + j)
            if keep1:
                last = best1[keep1 - 1, first : first + size]
                is_nearer = np.uint16(0)
                for j in range(size):
                    is_nearer = np.uint16(is_nearer | np.uint16(buffer[j] < last[j]))
                if is_nearer:
                    for j in range(size):
                        if buffer[j] < last[j]:
                            _insert(best1, where1, first + j, buffer[j], row)


@njit(SCAN_SIGNATURE, nogil=True, cache=True, error_model="numpy")
def scan(rows, probes, start, stop, best, where):  # type: ignore[no-untyped-def]  # pragma: no cover (compiled)
    """Compare rows ``start`` to ``stop`` of (N, W) words of 64 bits with a few (Q, W), which keep their nearest (K, Q).

    Every row is read once, in one piece: the speed is that of the memory.
    """
    keep, few, words = best.shape[0], probes.shape[0], rows.shape[1]
    for row in range(start, stop):
        for entry in range(few):
            distance = np.uint64(0)
            for word in range(words):
                distance += _popcount(rows[row, word] ^ probes[entry, word])
            if distance < best[keep - 1, entry]:
                _insert(best, where, entry, np.uint16(distance), np.int32(row))
