# SPDX-License-Identifier: Apache-2.0
"""Index of the kind "grassmann": locality-sensitive hashing of subspaces by their angles with random lines.

Algorithms 1 and 2 of the Grassmannian hashing paper with real hash tables. The rule printed in the paper is available;
the default is one whose bits are not constant. Affine subspaces are hashed in homogeneous coordinates, which the paper
leaves open. An entry that shares no key with a query is not found: an answer may be empty.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError
from sfumato.search.entries import Block, Entries
from sfumato.search.exact import has_lines
from sfumato.search.grassmann.family import NAMES, Hasher, HashRule, HashTables
from sfumato.search.index import Candidates, Index, best_of_each
from sfumato.types.arrays import whole_number

Ints = NDArray[np.int64]

SAMPLE = 20_000
ROWS_AT_ONCE = 50_000
PAIRS_AT_ONCE = 2_000_000
STREAM = 0x6A55
"""Separates the lines from other draws of the same seed: entries drawn like the lines would find themselves."""
BUCKET = 8
"""Entries per bucket, if ``key_length`` is not set."""
CALL, COMPARISON = 1.3e6, {True: 2e3, False: 6.5e3}
"""Nanoseconds of one core: of a search, and of an exact comparison, with one principal angle or not."""


# --- affine subspaces as linear ones


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Chart:
    """The place of R^n in R^(n + 1): ``centre`` (n,) float64 goes to the last axis, at height ``scale``.

    { p + B c } becomes the span of (B, 0) and (p - centre, scale): methods for linear subspaces then find affine ones.
    Angles between such spans are not distances of the affine subspaces: candidates must be measured.
    """

    centre: NDArray[np.float64]
    scale: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.scale) and self.scale > 0):
            raise InputError(f"scale: expected a positive length, got {self.scale}")

    @staticmethod
    def of(origin: NDArray[np.float32], basis: NDArray[np.float32], scale: float | None = None) -> "Chart":
        """Return a chart for subspaces (N, n), (N, m, n): their mean, and the root mean square distance from it."""
        centre = origin.mean(axis=0, dtype=np.float64) if len(origin) else np.zeros(origin.shape[1])
        if scale is None:
            offset = residual(origin - centre, basis)
            scale = float(np.sqrt(np.mean(np.einsum("ni,ni->n", offset, offset)))) if len(origin) else 1.0
        return Chart(centre, scale or 1.0)

    def lift(self, origin: NDArray[np.float32], basis: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return orthonormal bases (N, m + 1, n + 1) of the linear spans of affine subspaces in canonical form."""
        count, m, n = basis.shape
        lifted = np.zeros((count, m + 1, n + 1), np.float32)
        lifted[:, :m, :n] = basis
        lifted[:, m, :n] = residual(origin - self.centre, basis)
        lifted[:, m, n] = self.scale
        lifted[:, m] /= np.linalg.norm(lifted[:, m], axis=1, keepdims=True)
        return lifted

    def __repr__(self) -> str:
        return f"Chart(R^{len(self.centre)}, scale {self.scale:.4g})"


def residual(offset: NDArray[np.float64], basis: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return offsets (N, n) less their part in orthonormal bases (N, m, n)."""
    if basis.shape[1] == 0:
        return offset
    result: NDArray[np.float64] = offset - np.einsum("nm,nmi->ni", np.einsum("nmi,ni->nm", basis, offset), basis)
    return result


# --- the index


@dataclass(frozen=True, slots=True, kw_only=True)
class GrassmannParams:
    """``tables`` S and ``key_length`` K of Algorithm 1 (None: fitted to the number of entries), and those of the rule.

    ``candidates``: the cap N of Algorithm 2, entries compared exactly for a query unless an effort says otherwise.
    ``within``: c R of Algorithm 2; farther entries are not returned and do not count. ``probes``: keys looked up in
    each table. ``scale``: the height of affine subspaces in homogeneous coordinates (None: fitted).
    """

    rule: str = "quantile"
    key_length: int | None = None
    tables: int = 20
    theta0: float = math.pi / 8
    width: float = math.pi / 120
    bins: int = 2
    candidates: int = 200
    within: float | None = None
    probes: int = 8
    scale: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self.hash_rule()
        limits = {"tables": (1, 10_000), "candidates": (1, 2**31 - 1), "probes": (1, 10_000), "seed": (0, 2**63 - 1)}
        if self.key_length is not None:
            limits["key_length"] = (1, 10_000)
        for name, (low, high) in limits.items():
            if not low <= whole_number(getattr(self, name), name) <= high:
                raise InputError(f"{name}: expected {low} to {high}, got {getattr(self, name)}")
        for name in ("within", "scale"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
                raise InputError(f"{name}: expected a positive number, got {value!r:.80}")

    @staticmethod
    def published(theta0: float = math.pi / 8, **changes: Any) -> "GrassmannParams":
        """Return the parameters of the paper's appendix: K = 3, S = 20, theta0 = pi / 8, the printed rule."""
        return GrassmannParams(
            **{"rule": "printed", "key_length": 3, "tables": 20, "probes": 1, **changes}, theta0=theta0
        )

    def hash_rule(self) -> HashRule:
        """Return the rule that turns angles into symbols."""
        return HashRule(name=self.rule, theta0=self.theta0, width=self.width, bins=self.bins)


class GrassmannIndex(Index):
    """An index of hash tables. Effort is the share of the entries that may be compared exactly for a query."""

    kind = "grassmann"
    params_type = GrassmannParams

    def __init__(self, entries: Entries, metric: str, params: GrassmannParams, hasher: Hasher, chart: Chart) -> None:
        super().__init__(entries, metric, params)
        self.hasher, self.chart = hasher, chart
        self.layers: list[HashTables] = []

    @classmethod
    def build(cls, entries: Entries, metric: str, params: Any) -> "GrassmannIndex":
        """Draw lines, fit cuts to a sample of the entries, and put all of them in tables (Algorithm 1)."""
        rng = np.random.default_rng((params.seed, STREAM))
        step = max(1, entries.total // SAMPLE)
        parts = [(part.origin[::step], part.basis[::step]) for part in entries.segments]
        largest = max(parts, key=lambda part: len(part[0]), default=(np.zeros((0, entries.dim)), None))
        chart = Chart(np.zeros(entries.dim), 1.0)
        if metric == "distance" and largest[1] is not None:
            chart = Chart.of(largest[0], largest[1], params.scale)
        key_length = params.key_length or max(2, round(math.log(max(2, entries.total) / BUCKET, params.bins)))
        sample = [chart.lift(*part) if metric == "distance" else part[1] for part in parts]
        n = entries.dim + (metric == "distance")
        hasher = Hasher.draw(params.hash_rule(), (params.tables, key_length), sample, n, rng)
        index = cls(entries, metric, params, hasher, chart)
        index.on_add(range(entries.total))
        return index

    def linear(self, origin: NDArray[np.float32], basis: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return bases of the linear subspaces that stand for these: themselves, or their spans one dimension up."""
        return self.chart.lift(origin, basis) if self.metric == "distance" else basis

    def on_add(self, rows: range) -> None:
        """Put new rows in tables of their own; small tables are merged with those before, so they stay few."""
        start, layers = rows.start, list(self.layers)
        while layers and len(layers[-1]) <= 2 * (rows.stop - start):
            start = layers.pop().first
        if rows.stop > start:
            layers.append(HashTables.of(self._keys(range(start, rows.stop)), start))
        self.layers = layers

    def _keys(self, rows: range) -> NDArray[np.uint64]:
        keys = np.zeros((len(rows), self.hasher.tables), np.uint64)
        for part in self.entries.segments:
            first, last = max(part.start, rows.start), min(part.stop, rows.stop)
            for start in range(first, last, ROWS_AT_ONCE):
                stop = min(start + ROWS_AT_ONCE, last)
                inside = slice(start - part.start, stop - part.start)
                linear = self.linear(part.origin[inside], part.basis[inside])
                keys[start - rows.start : stop - rows.start] = self.hasher.keys(linear)
        return keys

    def cap(self, k: int, effort: float | None) -> int:
        """Return how many entries may be compared exactly for a query; at least 1."""
        limit = self.params.candidates if effort is None else math.ceil(effort * len(self))
        return max(1, limit, k if effort is None else 1)

    def cost(self, block: Block, k: int, effort: float | None) -> float:
        """Return the nanoseconds of a query, most of them for exact comparisons; 0 where answers must be within c R."""
        if self.params.within is not None:
            return 0.0
        is_simple = self.metric == "distance" or has_lines(self.entries, block)
        return CALL / max(1, len(block)) + COMPARISON[is_simple] * min(len(self), self.cap(k, effort))

    def ordered(self, block: Block, cap: int) -> tuple[Ints, int]:
        """Return the rows (Q, cap) to compare with each query, in this order, -1 for none, and how many were visited.

        Those that share most keys come first; for the printed rule the first ones in the order of the tables.
        """
        by_count = self.params.rule != "printed"
        probes = min(self.params.probes, self.hasher.key_length + 1)
        keys = self.hasher.probes(self.linear(block.origin, block.basis), probes)
        answers = [layer.find(keys, self.entries.alive, cap, by_count=by_count) for layer in self.layers]
        rows, counts = (np.concatenate([part[at] for part in answers], axis=1) for at in (0, 1))
        rank = np.where(rows >= 0, -counts if by_count else 0, 1)
        order = np.argsort(rank, axis=1, kind="stable")[:, :cap]
        return np.take_along_axis(rows, order, 1), int(sum(part[2].sum() for part in answers))

    def propose(self, block: Block, k: int, effort: float | None) -> Candidates:
        """Return the entries that share keys with each query, up to the cap."""
        rows, looked_at = self.ordered(block, self.cap(k, effort))
        return Candidates(np.nonzero(rows >= 0)[0], rows[rows >= 0], looked_at)

    def search_block(
        self, block: Block, k: int, effort: float | None
    ) -> tuple[NDArray[np.float64], Ints, tuple[int, int]]:
        """Return the nearest of the candidates, within c R as in Algorithm 2 if set. A block of queries at a time."""
        cap = self.cap(k, effort)
        step = max(1, PAIRS_AT_ONCE // (cap if self.params.within is None else self.entries.total))
        parts = []
        for start in range(0, len(block), step):
            rows = slice(start, start + step)
            piece = Block(block.origin[rows], block.basis[rows], block.places[rows])
            within = self.params.within is not None
            parts.append(self._filtered(piece, k, cap) if within else super().search_block(piece, k, effort))
        best, where = (np.concatenate([part[at] for part in parts]) for at in (0, 1))
        return best, where, (sum(part[2][0] for part in parts), sum(part[2][1] for part in parts))

    def _filtered(self, block: Block, k: int, cap: int) -> tuple[NDArray[np.float64], Ints, tuple[int, int]]:
        """Compare entries in their order until ``cap`` of them are within c R of a query; the others do not count."""
        rows, looked_at = self.ordered(block, self.entries.total)
        counted, evaluated = np.zeros(len(block), np.int64), 0
        hits: list[tuple[Ints, Ints, NDArray[np.float64]]] = []
        for start in range(0, rows.shape[1], cap):
            part = rows[:, start : start + cap]
            open_ = (part >= 0) & (counted < cap)[:, None]
            if not open_.any():
                break
            i = np.nonzero(open_)[0]
            distances = self.entries.distances(self.metric, block, i, part[open_])
            near = distances <= self.params.within
            earlier = np.cumsum(near) - near  # of all queries; less those of the queries before, of this one
            earlier -= np.concatenate([[0], np.cumsum(near)])[np.searchsorted(i, i)] - counted[i]
            reached = earlier < cap
            evaluated += int(reached.sum())
            near &= reached
            hits.append((i[near], part[open_][near], distances[near]))
            counted += np.bincount(i[near], minlength=len(block))
        i, near_rows, distances = (np.concatenate([part[at] for part in hits]) for at in range(3)) if hits else (
            np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))  # fmt: skip
        order = np.argsort(i, kind="stable")
        best, where = best_of_each(i[order], near_rows[order], distances[order], len(block), k)
        return best, where, (looked_at, evaluated)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the lines, the cuts, the chart and the tables."""
        named: dict[str, NDArray[Any]] = {
            "lines": self.hasher.lines,
            "shifts": self.hasher.shifts,
            "centre": self.chart.centre,
        }
        for number, layer in enumerate(self.layers):
            named |= {f"{name} {number}": array for name, array in layer.arrays().items()}
        return named

    def settings(self) -> dict[str, Any]:
        """Return the scale of the chart and where each set of tables begins."""
        return {"scale": self.chart.scale, "layers": [layer.first for layer in self.layers]}

    @classmethod
    def restore(
        cls, entries: Entries, metric: str, params: Any, arrays: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]
    ) -> "GrassmannIndex":
        """Return the index of a file; FileError if its arrays do not fit the entries."""
        lines, shifts, centre = arrays["lines"], arrays["shifts"], arrays["centre"]
        n, rule = entries.dim + (metric == "distance"), params.hash_rule()
        columns = {"printed": 0, "quantised": 1, "quantile": rule.bins - 1}[rule.name]
        if lines.ndim != 2 or lines.shape[1] != n or not len(lines) or len(lines) % params.tables:
            raise FileError("the lines of this index have the wrong shape")
        kinds = tuple(array.dtype.str for array in (lines, shifts, centre))
        if kinds != ("<f4", "<f8", "<f8") or shifts.shape != (len(lines), columns) or centre.shape != (entries.dim,):
            raise FileError("the cuts of this index have the wrong shape or type")
        if not all(np.isfinite(array).all() for array in (lines, shifts, centre)):
            raise FileError("the lines of this index are damaged")
        hasher = Hasher(rule, params.tables, lines, shifts)
        index = cls(entries, metric, params, hasher, Chart(centre, float(settings["scale"])))
        starts = [int(start) for start in settings["layers"]]
        for number, (first, stop) in enumerate(zip(starts, [*starts[1:], entries.total], strict=True)):
            mine = {name: arrays[f"{name} {number}"] for name in NAMES}
            index.layers.append(HashTables.restore(mine, first, stop - first, params.tables))
        if starts[:1] != [0][: entries.total] or any(len(layer) == 0 for layer in index.layers):
            raise FileError("the tables of this index do not cover its entries")
        return index
