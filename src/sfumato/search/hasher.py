# SPDX-License-Identifier: Apache-2.0
"""From subspaces to keys: lines drawn once, the cuts between symbols, and which other keys are nearly right.

For the quantile rule the cuts are fitted to the database, line by line: real subspaces are not spread evenly, and what
the law of uniform lines calls the middle may have all of them on one side. A cut is kept as a share of uniform lines,
which the law turns into an angle for any dimension. Knows linear subspaces; refuses to know tables and ids.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.search.hashfamily import (
    HashRule,
    draw_lines,
    keys_of,
    quantile_cosines,
    share_of_lines,
    squared_cosines,
    symbols_of,
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Hasher:
    """``tables`` S keys of K symbols each, from ``lines`` (S K, n) float32 by a ``rule``.

    ``shifts`` (S K, C) float64: for "quantile" the shares at the cuts, for "quantised" the offsets of the bins (C = 1),
    for "printed" nothing (C = 0).
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
        wanted = np.arange(1, rule.bins) / rule.bins
        shares = [share_of_lines(squared_cosines(part, lines), part.shape[1], n) for part in sample if len(part)]
        if sum(map(len, shares)) < rule.bins:  # too few to fit anything
            return Hasher(rule, tables, lines, np.tile(wanted, (len(lines), 1)))
        return Hasher(rule, tables, lines, np.quantile(np.concatenate(shares), wanted, axis=0).T)

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
        found = [self.rule.cuts(dim, n, float(offset)) for offset in self.shifts[:, 0]]
        most = max(map(len, found))
        return np.array([np.pad(row, (0, most - len(row)), constant_values=2.0) for row in found])

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
