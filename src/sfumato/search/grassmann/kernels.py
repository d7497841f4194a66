# SPDX-License-Identifier: Apache-2.0
"""Compiled lookup in hash tables: the rows that share keys with a query."""

from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def collide(
    starts: Any, prints: Any, rows: Any, alive: Any, keys: Any, by_count: Any, hits: Any, counts: Any, visits: Any
) -> None:
    """Fill ``hits`` and ``counts`` (Q, cap) and ``visits`` (Q,) for the ``keys`` (Q, S, P) of queries.

    A bucket is reached by the low bits of a key; of the rows in it those whose other 32 bits agree share the key. Rows
    that are not ``alive`` (N,) are skipped.
    """
    tables, count = rows.shape
    cap = hits.shape[1]
    mask = np.uint64(starts.shape[1] - 2)
    times = np.zeros(count, np.int32)
    touched = np.empty(count, np.int64)
    for q in range(len(keys)):
        distinct = 0
        full = False
        for s in range(tables):
            for p in range(keys.shape[2]):
                key = keys[q, s, p]
                bucket = np.int64(key & mask)
                mark = np.uint32(key >> np.uint64(32))
                for at in range(starts[s, bucket], starts[s, bucket + 1]):
                    row = rows[s, at]
                    if prints[s, at] != mark or not alive[row]:
                        continue
                    visits[q] += 1
                    if times[row] == 0:
                        touched[distinct] = row
                        distinct += 1
                    times[row] += 1
                    if not by_count and distinct >= cap:
                        full = True
                        break
                if full:
                    break
            if full:
                break
        _choose(times, touched, distinct, by_count, hits[q], counts[q])
        for t in range(distinct):
            times[touched[t]] = 0


@njit(nogil=True, cache=True)
def _choose(times: Any, touched: Any, distinct: Any, by_count: Any, hits: Any, counts: Any) -> None:
    """Take the first rows touched, or those touched most often, of equals the first."""
    cap = len(hits)
    if not by_count:
        for t in range(min(distinct, cap)):
            hits[t], counts[t] = touched[t], times[touched[t]]
        return
    most = 0
    for t in range(distinct):
        most = max(most, times[touched[t]])
    ends = np.zeros(most + 2, np.int64)  # a counting sort, the highest count first
    for t in range(distinct):
        ends[most - times[touched[t]] + 1] += 1
    for t in range(most + 1):
        ends[t + 1] += ends[t]
    for t in range(distinct):
        level = most - times[touched[t]]
        place = ends[level]
        ends[level] += 1
        if place < cap:
            hits[place], counts[place] = touched[t], times[touched[t]]
