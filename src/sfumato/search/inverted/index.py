# SPDX-License-Identifier: Apache-2.0
"""Index of the kind "inverted": entries in lists of the cells nearest to them, codes before exact distances.

A query scans only the lists of its own nearest cells. Codes, bounds on a few axes, rank the entries in them, and only
the best are compared exactly. Many small cells, with each entry in many lists, beat few large cells with many probes:
the list of a small cell holds what passes near the query itself. Figures are in docs/results/search.md.
"""

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError
from sfumato.search.entries import Block, Entries
from sfumato.search.exact import has_lines, merge_answers
from sfumato.search.index import Candidates, Index
from sfumato.search.inverted.cells import (
    CellFinder,
    InvertedLists,
    assign_cells,
    cell_count,
    centres_of_points,
    centres_of_subspaces,
    middle_of,
    points_near,
)
from sfumato.search.inverted.codes import HEAD, Axes
from sfumato.search.inverted.scan import CodeCandidates, rank_exactly, scan_lists
from sfumato.subspace.fast import one_blas_thread, thread_count
from sfumato.types.arrays import frozen_array, whole_number

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

EFFORT_POINT, EFFORT_SUBSPACE = 0.15, 0.45
"""Cells ** effort are probed: by default 4 of 8,192 for points, 58 for subspaces."""

QUERY, LISTED = 1e5, {True: 25.0, False: 8.0}
"""Nanoseconds of one core: of a query, and of each entry in its lists, of points or not; measured as ``scan_cost``."""

ANGLES = {True: 3e5, False: 9e6}
"""Nanoseconds of one core of a query of the metric angle, most of them for exact angles, of lines or not."""

QUERIES_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class InvertedParams:
    """Parameters of an inverted index.

    ``cells``: their number, by default about 16 times the root of the number of entries, at most 64 ``filed``.
    ``filed``: the number of lists of each entry, 4 bytes each. ``points`` (M, n): public points like those that are
    hidden, such as decoys, from which cells are made; without them, cells are learned from the subspaces alone and find
    less for the same work. ``seed`` makes the cells repeatable. ``threads``: None means all cores.
    """

    cells: int | None = None
    filed: int = 128
    points: Any = None
    seed: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        cells = None if self.cells is None else whole_number(self.cells, "cells")
        filed, seed = whole_number(self.filed, "filed"), whole_number(self.seed, "seed")
        if (cells is not None and not 1 <= cells <= 2**20) or not 1 <= filed <= 2**16 or seed < 0:
            raise InputError(
                f"expected cells of 1 to 2 ** 20, filed of 1 to 2 ** 16, seed from 0; got {cells}, {filed}, {seed}"
            )
        if self.points is not None:
            object.__setattr__(self, "points", frozen_array(self.points, "points", (None, None)))
        thread_count(self.threads)


class InvertedIndex(Index):
    """An inverted index. ``effort`` e probes cells ** e lists; at 1 every entry is compared and the answer is exact."""

    kind = "inverted"
    params_type = InvertedParams

    def __init__(
        self,
        entries: Entries,
        metric: str,
        params: InvertedParams,
        centres: Floats,
        axes: Axes,
        parts: list[InvertedLists],
    ) -> None:
        super().__init__(entries, metric, params)
        self.centres, self.axes, self.parts = centres, axes, parts
        self._finder = CellFinder.of(centres, axes)

    @classmethod
    def build(cls, entries: Entries, metric: str, params: Any) -> "InvertedIndex":
        """Return an index of entries: learn cells and axes, make lists and codes."""
        blocks = [(segment.origin, segment.basis) for segment in entries.segments]
        linear, points = metric == "angle", params.points
        if points is not None and points.shape[1] != entries.dim:
            raise InputError(f"points: expected {entries.dim} dimensions like the entries, got {points.shape[1]}")
        cells = min(params.cells or cell_count(entries.total, params.filed), 2**20)
        middle = np.zeros(entries.dim, np.float32) if linear or not blocks else middle_of(blocks, entries.dim)
        if points is not None and len(points):
            centres = centres_of_points(_unit(points) if linear else points, cells, params.seed)
        elif blocks:
            starts = _starts(blocks, linear)
            centres = centres_of_subspaces(starts, min(cells, max(1, entries.total)), params.seed, middle)
        else:
            centres = np.zeros((1, entries.dim), np.float32)
        if linear:
            centres = _unit(centres)
        sample = np.concatenate([np.zeros((0, entries.dim), np.float32), *_directions(blocks, linear, middle)])
        axes = Axes.of(sample if points is None else points, linear=linear)
        index = cls(entries, metric, params, centres, axes, [])
        index.on_add(range(entries.total))
        return index

    def saved_params(self) -> dict[str, Any]:
        """Return the params without the points: the cells are saved instead."""
        params = self.params
        return {"cells": params.cells, "filed": params.filed, "seed": params.seed, "threads": params.threads}

    def on_add(self, rows: range) -> None:
        """Make lists and codes of new entries; small neighbouring parts are merged, so parts stay few."""
        per_entry = min(self.params.filed, len(self.centres))
        parts = list(self.parts)
        with ThreadPoolExecutor(thread_count(self.params.threads)) as pool, one_blas_thread():
            for segment in self.entries.segments:
                first, stop = max(rows.start, segment.start), min(rows.stop, segment.stop)
                if first < stop:
                    inside = slice(first - segment.start, stop - segment.start)
                    sides = segment.origin[inside], segment.basis[inside]
                    cells = assign_cells(self.centres, self.axes.mean, *sides, per_entry, pool.map)
                    parts.append(InvertedLists.of(first, cells, self.axes, *sides, len(self.centres)))
                while len(parts) > 1 and parts[-2].joins(parts[-1]):
                    last = parts.pop()
                    parts.append(parts.pop().joined(last))
        self.parts = parts

    def probe_count(self, block: Block, effort: float | None) -> int:
        """Return how many lists are scanned for each query of a block."""
        default = EFFORT_SUBSPACE if block.dim > (self.metric == "angle") else EFFORT_POINT
        count = round(math.pow(len(self.centres), default if effort is None else effort))
        return min(len(self.centres), max(1, count))

    def cost(self, block: Block, k: int, effort: float | None) -> float:
        """Return the nanoseconds of a query: some for its cells, and some for each entry in their lists."""
        if self.metric == "angle":
            return ANGLES[has_lines(self.entries, block)]
        lists_of_entry: int = min(self.params.filed, len(self.centres))
        listed = len(self) * lists_of_entry / len(self.centres) * self.probe_count(block, effort)
        return QUERY + LISTED[block.dim == 0] * listed

    def probes(self, block: Block, effort: float | None) -> NDArray[np.int32]:
        """Return the cells (Q, P) whose lists are scanned, nearest first."""
        with one_blas_thread():
            return self._finder.nearest(block.origin, block.basis, self.probe_count(block, effort))

    def propose(self, block: Block, k: int, effort: float | None) -> Candidates:
        """Return the candidates that the codes in the probed lists leave."""
        probes = self.probes(block, effort)
        i, rows, looked_at = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
        for part in self.parts:
            candidates = self._scan(part, block, probes, k)
            at = np.nonzero(candidates.rows >= 0)
            i.append(at[0])
            rows.append(candidates.rows[at].astype(np.int64) + part.start)
            looked_at += candidates.looked_at
        order = np.argsort(np.concatenate(i), kind="stable")
        return Candidates(np.concatenate(i)[order], np.concatenate(rows)[order], looked_at)

    def search_block(
        self, block: Block, k: int, effort: float | None
    ) -> tuple[NDArray[np.float64], Ints, tuple[int, int]]:
        """Return the nearest found of each query; all entries are compared at effort 1."""
        if effort == 1:
            return self.exact.search_block(block, k, effort)
        pieces = [
            Block(block.origin[at : at + QUERIES_AT_ONCE], block.basis[at : at + QUERIES_AT_ONCE],
                  block.places[at : at + QUERIES_AT_ONCE])
            for at in range(0, len(block), QUERIES_AT_ONCE)
        ]  # fmt: skip
        threads = min(thread_count(self.params.threads), len(pieces))
        if threads == 1:
            answers = [self._search_piece(piece, k, effort) for piece in pieces]
        else:
            with ThreadPoolExecutor(threads) as pool:
                answers = list(pool.map(lambda piece: self._search_piece(piece, k, effort), pieces))
        best, where = (np.concatenate([answer[part] for answer in answers]) for part in (0, 1))
        return best, where, (sum(answer[2] for answer in answers), sum(answer[3] for answer in answers))

    def _search_piece(self, block: Block, k: int, effort: float | None) -> tuple[NDArray[np.float64], Ints, int, int]:
        if self.metric == "angle":
            best, where, counts = super().search_block(block, k, effort)
            return best, where, *counts
        probes = self.probes(block, effort)
        answers, looked_at, evaluated = [], 0, 0
        for part in self.parts:
            candidates = self._scan(part, block, probes, k)
            segment = next(run for run in self.entries.segments if run.start <= part.start < run.stop)
            inside = slice(part.start - segment.start, part.start - segment.start + len(part))
            best, where, settled = rank_exactly(block, (segment.origin[inside], segment.basis[inside]), candidates, k)
            answers.append((best, np.where(where >= 0, where + part.start, -1)))
            looked_at, evaluated = looked_at + candidates.looked_at, evaluated + settled
        best, where = answers[0] if len(answers) == 1 else merge_answers(answers, k)
        return np.sqrt(best), where, looked_at, evaluated

    def _scan(self, part: InvertedLists, block: Block, probes: NDArray[np.int32], k: int) -> CodeCandidates:
        alive = self.entries.alive[part.start : part.start + len(part)].view(np.uint8)
        heads = self.axes.heads(block.origin, block.basis)
        return scan_lists(part, alive, heads, probes, k, linear=self.metric == "angle")

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return cells, axes, lists and codes."""
        named: dict[str, NDArray[Any]] = {"centres": self.centres, "mean": self.axes.mean, "axes": self.axes.axes}
        for number, part in enumerate(self.parts):
            named |= {
                f"offsets {number}": part.offsets,
                f"members {number}": part.members,
                f"coarse {number}": part.coarse,
                f"codes {number}": part.fine,
            }
        return named

    def settings(self) -> dict[str, Any]:
        """Return the first row of each part."""
        return {"starts": [part.start for part in self.parts]}

    @classmethod
    def restore(
        cls, entries: Entries, metric: str, params: Any, arrays: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]
    ) -> "InvertedIndex":
        """Return the index of a file; every number that points into an array is checked first."""
        centres, mean, axes = arrays["centres"], arrays["mean"], arrays["axes"]
        n = entries.dim
        if centres.ndim != 2 or not len(centres) or (centres.shape[1], mean.shape, axes.shape) != (n, (n,), (n, HEAD)):
            raise FileError("cells or axes have the wrong shape")
        if {array.dtype for array in (centres, mean, axes)} != {np.dtype(np.float32)}:
            raise FileError("cells or axes have the wrong type")
        parts = []
        for number, start in enumerate(settings["starts"]):
            lists = arrays[f"offsets {number}"], arrays[f"members {number}"]
            codes = arrays[f"coarse {number}"], arrays[f"codes {number}"]
            parts.append(InvertedLists.restore(int(start), *lists, *codes, entries, len(centres)))
        if sum(map(len, parts)) != entries.total:
            raise FileError("the lists do not cover all entries")
        return cls(entries, metric, params, centres, Axes(mean, axes), parts)


def _unit(points: Floats) -> Floats:
    """Return points scaled to unit length; zero stays zero."""
    lengths = np.linalg.norm(points, axis=1, keepdims=True)
    return np.asarray(points / np.where(lengths > 0, lengths, 1), np.float32)


def _directions(blocks: list[tuple[Floats, Floats]], linear: bool, middle: Floats) -> list[Floats]:
    """Return the points whose variance chooses the axes: those nearest to the middle, or directions through 0."""
    step = max(1, sum(len(origin) for origin, _ in blocks) // 50_000)
    return [
        basis[::step].reshape(-1, basis.shape[2]) if linear else points_near(middle, origin[::step], basis[::step])
        for origin, basis in blocks
    ]


def _starts(blocks: list[tuple[Floats, Floats]], linear: bool) -> list[tuple[Floats, Floats]]:
    """Return what cells are learned from; the first direction stands for a linear subspace."""
    if not linear:
        return blocks
    return [(basis[:, 0], np.zeros((len(basis), 0, basis.shape[2]), np.float32)) for _, basis in blocks]
