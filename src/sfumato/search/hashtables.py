# SPDX-License-Identifier: Apache-2.0
"""Real hash tables in flat arrays: a key leads to its bucket at once, without looking at other keys.

Each of S tables puts rows in buckets by the low bits of their keys, and keeps 32 other bits of the key beside each row
to tell keys of one bucket apart. Arrays can be mapped from a file. Knows keys and rows; not what the keys stand for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError
from sfumato.subspace.prepared import read_only

NAMES = ("starts", "prints", "rows")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class HashTables:
    """Rows ``first`` to ``first`` + N - 1 in S tables of 2 ** b buckets.

    ``starts`` (S, 2 ** b + 1) uint32, ``prints`` (S, N) uint32 and ``rows`` (S, N) uint32, counted from ``first``.
    """

    first: int
    starts: NDArray[np.uint32]
    prints: NDArray[np.uint32]
    rows: NDArray[np.uint32]

    @staticmethod
    def of(keys: NDArray[np.uint64], first: int = 0) -> "HashTables":
        """Put rows with keys (N, S) in tables."""
        count, tables = keys.shape
        buckets = 1 << max(1, int(count).bit_length())
        starts = np.zeros((tables, buckets + 1), np.uint32)
        prints, rows = np.empty((tables, count), np.uint32), np.empty((tables, count), np.uint32)
        for number in range(tables):
            bucket = (keys[:, number] & np.uint64(buckets - 1)).astype(np.uint32)
            order = np.argsort(bucket, kind="stable")
            starts[number, 1:] = np.cumsum(np.bincount(bucket, minlength=buckets))
            prints[number] = (keys[order, number] >> np.uint64(32)).astype(np.uint32)
            rows[number] = order
        return HashTables(first, starts, prints, rows)

    def __len__(self) -> int:
        return int(self.rows.shape[1])

    def __repr__(self) -> str:
        return f"HashTables({len(self)} rows in {len(self.rows)} tables of {self.starts.shape[1] - 1} buckets)"

    def find(
        self, keys: NDArray[np.uint64], alive: NDArray[np.bool_], cap: int, *, by_count: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return up to ``cap`` rows (Q, cap) that share a key with each query, -1 for none.

        ``keys`` (Q, S, P): P keys to look up in each table; ``alive``: whether a row counts, of all rows. Also returned
        are how many keys each row shares (Q, cap), and how many rows were looked at (Q,). ``by_count``: those that
        share most keys come first; else those found first, in the order of the tables, as in Algorithm 2.
        """
        from sfumato.search.collisions import collide

        width = max(1, min(cap, len(self)))
        rows, counts = np.full((len(keys), width), -1, np.int64), np.zeros((len(keys), width), np.int64)
        looked = np.zeros(len(keys), np.int64)
        if len(self):
            given: tuple[Any, ...] = (*self.arrays().values(), alive[self.first : self.first + len(self)], keys)
            collide(*map(read_only, given), by_count, rows, counts, looked)
        rows[rows >= 0] += self.first
        return rows, counts, looked

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, for a file."""
        return {name: getattr(self, name) for name in NAMES}

    @staticmethod
    def restore(arrays: Mapping[str, NDArray[Any]], first: int, count: int, tables: int) -> "HashTables":
        """Return tables from a file; FileError where the arrays are not what ``of`` makes of so many rows."""
        starts, prints, rows = (arrays[name] for name in NAMES)
        buckets = 1 << max(1, int(count).bit_length())
        shapes = ((tables, buckets + 1), (tables, count), (tables, count))
        for array, shape in zip((starts, prints, rows), shapes, strict=True):
            if array.shape != shape or array.dtype != np.uint32:
                raise FileError("hash tables have other shapes than they must")
        for table_starts, table_rows in zip(starts, rows, strict=True):
            steps = np.diff(table_starts.astype(np.int64))
            if table_starts[0] != 0 or table_starts[-1] != count or (steps < 0).any():
                raise FileError("the buckets of a hash table are damaged")
            if count and int(table_rows.max()) >= count:
                raise FileError("a hash table names entries that are not there")
        return HashTables(first, starts, prints, rows)
