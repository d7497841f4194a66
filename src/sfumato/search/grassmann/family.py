# SPDX-License-Identifier: Apache-2.0
"""Hash family of the Grassmannian hashing paper: symbols from angles with random lines, keys from symbols, tables.

Linear subspaces are orthonormal bases. Three rules turn angles into symbols. For a uniform line and a subspace of
dimension d in R^D the squared cosine follows Beta(d / 2, (D - d) / 2).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError, suggest
from sfumato.subspace.subspace_set import read_only
from sfumato.types.arrays import whole_number

Floats = NDArray[np.float64]

RULES = ("quantile", "quantised", "printed")
LARGEST_THETA = math.pi / 6
"""Definition 3.1 asks for 0 < theta0 < pi / 6, Algorithm 1 and the experiments for 0 < theta0 <= pi / 6."""
VALUES_AT_ONCE = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HashRule:
    """A rule that turns an angle into a symbol.

    ``printed``: the bit of Eq. 4, 1 where the angle is at most ``theta0``. ``quantised``: the number of the bin of
    ``width`` radians, counted from a random offset, as the authors' program does without the offset. ``quantile``:
    ``bins`` of equal chance, by the law of the angle for subspaces of that dimension: query and database may differ.
    """

    name: str = "quantile"
    theta0: float = math.pi / 8
    width: float = math.pi / 120
    bins: int = 2

    def __post_init__(self) -> None:
        if self.name not in RULES:
            close = suggest(str(self.name), RULES)
            raise InputError(f"rule: expected one of {', '.join(RULES)}, got {self.name!r:.80}{close}")
        if not 0 < self.theta0 <= LARGEST_THETA + 1e-12:
            raise InputError(f"theta0: expected an angle above 0 and at most pi / 6, got {self.theta0}")
        if not 1e-4 <= self.width <= math.pi / 2:
            raise InputError(f"width: expected 0.0001 to pi / 2 radians, got {self.width}")
        if not 2 <= whole_number(self.bins, "bins") <= 256:
            raise InputError(f"bins: expected 2 to 256, got {self.bins}")

    def cuts(self, dim: int, ambient_dim: int, offset: float = 0.0) -> Floats:
        """Return the squared cosines between neighbouring symbols, ascending, for subspaces of one dimension."""
        if self.name == "printed":
            return np.array([math.cos(self.theta0) ** 2])
        if self.name == "quantile":
            return quantile_cosines(np.arange(1, self.bins) / self.bins, dim, ambient_dim)
        angles = np.arange(self.width - offset, math.pi / 2 - 1e-9, self.width)
        result: Floats = np.cos(angles[angles > 0][::-1]) ** 2
        return result


def draw_lines(count: int, ambient_dim: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return unit vectors (count, n), uniform on the sphere: the lines of Algorithm 1."""
    drawn = rng.normal(size=(count, ambient_dim))
    lengths = np.linalg.norm(drawn, axis=1, keepdims=True)
    return np.ascontiguousarray(drawn / np.where(lengths > 0, lengths, 1), np.float32)


def squared_cosines(basis: NDArray[Any], lines: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the squared cosines (N, F) of the angles between subspaces, bases (N, d, n), and lines (F, n)."""
    count, dim, n = basis.shape
    cosines = np.zeros((count, len(lines)), np.float32)
    step = max(1, VALUES_AT_ONCE // max(1, dim * len(lines)))
    for start in range(0, count, step):
        rows = np.asarray(basis[start : start + step], np.float32)
        along = rows.reshape(-1, n) @ lines.T
        cosines[start : start + step] = np.square(along, out=along).reshape(len(rows), dim, -1).sum(axis=1)
    return np.minimum(cosines, 1, out=cosines)


def bit_chance(theta0: float, dim: int, ambient_dim: int) -> float:
    """Return the chance that a uniform line is within ``theta0`` of a subspace: that the printed bit is 1.

    >>> f"{bit_chance(math.pi / 8, 4, 25):.1e}, {bit_chance(math.pi / 8, 5, 437):.0e}"
    '1.7e-08, 1e-177'
    """
    from scipy.special import betainc

    if dim >= ambient_dim:
        return 1.0
    return float(betainc((ambient_dim - dim) / 2, dim / 2, math.sin(theta0) ** 2))


def quantile_cosines(shares: NDArray[Any], dim: int, ambient_dim: int) -> Floats:
    """Return the squared cosines below which these shares of uniform lines lie."""
    from scipy.special import betaincinv

    if dim >= ambient_dim:
        return np.ones(np.shape(shares))
    result: Floats = betaincinv(dim / 2, (ambient_dim - dim) / 2, np.asarray(shares, float))
    return result


def share_of_lines(cosines: NDArray[Any], dim: int, ambient_dim: int) -> Floats:
    """Return the shares of uniform lines whose squared cosines with a subspace are below these."""
    from scipy.special import betainc

    if dim >= ambient_dim:
        return np.where(np.asarray(cosines) >= 1, 1.0, 0.0)
    result: Floats = betainc(dim / 2, (ambient_dim - dim) / 2, np.clip(np.asarray(cosines, float), 0, 1))
    return result


def symbols_of(cosines: NDArray[np.float32], cuts: Floats) -> NDArray[np.uint16]:
    """Return for squared cosines (N, F) how many of the ``cuts`` (F, C) of each line they reach."""
    symbols = np.zeros(cosines.shape, np.uint16)
    for column in cuts.T:
        symbols += cosines >= column.astype(np.float32)
    return symbols


def keys_of(symbols: NDArray[np.uint16], tables: int) -> NDArray[np.uint64]:
    """Return one key (N, S) for the K symbols of every table; ``symbols`` (N, S K) are in the order of the tables.

    Different symbols give different keys while bins ** K fits 64 bits, and nearly always beyond.
    """
    grouped = symbols.reshape(len(symbols), tables, symbols.shape[1] // tables)
    keys = np.full(grouped.shape[:2], 0xCBF29CE484222325, np.uint64)
    for k in range(grouped.shape[2]):
        keys = mix_bits(np.bitwise_xor(keys, grouped[:, :, k], dtype=np.uint64))
    return keys


def mix_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64-bit numbers well mixed and still one to one: the finaliser of SplitMix64."""
    result = values + np.uint64(0x9E3779B97F4A7C15)
    result = (result ^ (result >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    result = (result ^ (result >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return result ^ (result >> np.uint64(31))


# --- from subspaces to keys


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Hasher:
    """``tables`` S keys of K symbols each, from ``lines`` (S K, n) float32 by a ``rule``.

    ``shifts`` (S K, C) float64: for "quantile" the shares at the cuts, for "quantised" the offsets of the bins (C = 1),
    for "printed" nothing (C = 0). For the quantile rule the cuts are fitted to the database, line by line: real
    subspaces are not spread evenly, and all of them may be on one side of the middle of uniform lines. A cut is a share
    of uniform lines, which their law turns into an angle for any dimension.
    """

    rule: HashRule
    tables: int
    lines: NDArray[np.float32]
    shifts: Floats

    @staticmethod
    def draw(
        rule: HashRule, sizes: tuple[int, int], sample: list[NDArray[Any]], n: int, rng: np.random.Generator
    ) -> "Hasher":
        """Draw lines for S tables and K symbols, ``sizes``; fit the cuts to a ``sample`` of bases (N, d, n)."""
        tables, key_length = sizes
        lines = draw_lines(tables * key_length, n, rng)
        if rule.name == "printed":
            return Hasher(rule, tables, lines, np.zeros((len(lines), 0)))
        if rule.name == "quantised":
            return Hasher(rule, tables, lines, rng.uniform(0, rule.width, (len(lines), 1)))
        levels = np.arange(1, rule.bins) / rule.bins
        shares = [share_of_lines(squared_cosines(part, lines), part.shape[1], n) for part in sample if len(part)]
        if sum(map(len, shares)) < rule.bins:  # too few to fit anything
            return Hasher(rule, tables, lines, np.tile(levels, (len(lines), 1)))
        return Hasher(rule, tables, lines, np.quantile(np.concatenate(shares), levels, axis=0).T)

    @property
    def key_length(self) -> int:
        """The number K of symbols to a key."""
        return len(self.lines) // self.tables

    def cuts(self, dim: int) -> Floats:
        """Return the squared cosines (S K, C) between symbols, ascending, for subspaces of a dimension."""
        n = self.lines.shape[1]
        if self.rule.name == "quantile":
            return quantile_cosines(self.shifts, dim, n)
        if self.rule.name == "printed":
            return np.tile(self.rule.cuts(dim, n), (len(self.lines), 1))
        rows = [self.rule.cuts(dim, n, float(offset)) for offset in self.shifts[:, 0]]
        most = max(map(len, rows))
        return np.array([np.pad(row, (0, most - len(row)), constant_values=2.0) for row in rows])

    def keys(self, basis: NDArray[Any]) -> NDArray[np.uint64]:
        """Return the keys (N, S) of linear subspaces, orthonormal bases (N, d, n)."""
        return keys_of(symbols_of(squared_cosines(basis, self.lines), self.cuts(basis.shape[1])), self.tables)

    def probes(self, basis: NDArray[Any], count: int) -> NDArray[np.uint64]:
        """Return ``count`` keys (N, S, count) to look up for each table: the key, then those that are one step off.

        A step takes one symbol to its neighbour; first the one whose angle is nearest to the cut between them, as a
        share of uniform lines (query-directed probing, Lv et al., VLDB 2007).
        """
        cosines, cuts = squared_cosines(basis, self.lines), self.cuts(basis.shape[1])
        symbols = symbols_of(cosines, cuts)
        keys = np.empty((len(basis), self.tables, count), np.uint64)
        keys[:, :, 0] = keys_of(symbols, self.tables)
        if count == 1:
            return keys
        margins, towards = _nearest_cut(cosines, cuts, symbols)
        shape = len(basis), self.tables, self.key_length
        order = np.argsort(margins.reshape(shape), axis=2)
        grouped, steps = symbols.reshape(shape), towards.reshape(shape)
        for number in range(1, count):
            place = order[:, :, number - 1 : number]
            changed = grouped.copy()
            moved = np.take_along_axis(grouped, place, 2) + np.take_along_axis(steps, place, 2)
            np.put_along_axis(changed, place, moved.astype(np.uint16), 2)
            keys[:, :, number] = keys_of(changed.reshape(symbols.shape), self.tables)
        return keys

    def __repr__(self) -> str:
        return f"Hasher({self.rule.name}, {self.tables} tables of {self.key_length} symbols)"


def _nearest_cut(
    cosines: NDArray[np.float32], cuts: Floats, symbols: NDArray[np.uint16]
) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """Return how far squared cosines (N, F) are from the nearest cut, in angle, and the step across it."""
    angles, limits = np.arccos(np.sqrt(cosines)), np.arccos(np.sqrt(np.minimum(cuts, 1))).astype(np.float32)
    limits[cuts > 1] = np.inf  # no cut there
    margins = np.full(cosines.shape, np.inf, np.float32)
    steps = np.zeros(cosines.shape, np.int8)
    for number, column in enumerate(limits.T):
        gap = np.abs(angles - column)
        near = gap < margins
        margins[near] = gap[near]
        steps[near] = np.where(symbols[near] > number, -1, 1)
    return margins, steps


# --- hash tables

NAMES = ("starts", "prints", "rows")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class HashTables:
    """Hash tables in flat arrays that a file can map: rows ``first`` to ``first`` + N - 1, S tables of 2 ** b buckets.

    A table puts rows in buckets by the low bits of their keys; 32 other bits beside each row tell keys of one bucket
    apart.

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
        are how many keys each row shares (Q, cap), and how many rows were visited (Q,). ``by_count``: those that
        share most keys come first; else the first ones in the order of the tables, as in Algorithm 2.
        """
        from sfumato.search.grassmann.kernels import collide

        width = max(1, min(cap, len(self)))
        rows, counts = np.full((len(keys), width), -1, np.int64), np.zeros((len(keys), width), np.int64)
        visits = np.zeros(len(keys), np.int64)
        if len(self):
            arguments: tuple[Any, ...] = (*self.arrays().values(), alive[self.first : self.first + len(self)], keys)
            collide(*map(read_only, arguments), by_count, rows, counts, visits)
        rows[rows >= 0] += self.first
        return rows, counts, visits

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, for a file."""
        return {name: getattr(self, name) for name in NAMES}

    @staticmethod
    def restore(arrays: Mapping[str, NDArray[Any]], first: int, count: int, tables: int) -> "HashTables":
        """Return tables from a file; FileError if the arrays do not fit this many rows."""
        starts, prints, rows = (arrays[name] for name in NAMES)
        buckets = 1 << max(1, int(count).bit_length())
        shapes = ((tables, buckets + 1), (tables, count), (tables, count))
        for array, shape in zip((starts, prints, rows), shapes, strict=True):
            if array.shape != shape or array.dtype != np.uint32:
                raise FileError("hash tables have the wrong shape or type")
        for table_starts, table_rows in zip(starts, rows, strict=True):
            steps = np.diff(table_starts.astype(np.int64))
            if table_starts[0] != 0 or table_starts[-1] != count or (steps < 0).any():
                raise FileError("the buckets of a hash table are damaged")
            if count and int(table_rows.max()) >= count:
                raise FileError("a hash table points beyond the entries")
        return HashTables(first, starts, prints, rows)
