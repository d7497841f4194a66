# SPDX-License-Identifier: Apache-2.0
"""Cells of the inverted index, and the lists of entries of each cell.

A cell is a centre, one of some thousand points of the space. An entry is listed under the centres nearest to its
subspace. A subspace is at most as far from a centre as the hidden descriptor, so the descriptor's own cell is likely to
be among them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError
from sfumato.search.entries import Entries
from sfumato.search.inverted.codes import COARSE, HEAD, Axes, code_bytes, encode
from sfumato.subspace.fast import load_kernels
from sfumato.subspace.subspace_set import read_only

Floats = NDArray[np.float32]

ITERATIONS = 4
ROUNDS = 6
"""Rounds in which centres move to the mean of the nearest points of the subspaces nearest to them."""

SAMPLE = 50_000
"""Subspaces from which the middle of all is computed."""

CELLS_PER_LIST = 64
"""The most cells for each cell that an entry is listed under. With more, the cell of the hidden descriptor is often
missing: of a million entries, 128 of 16,384 cells find at most 0.94, 128 of 8,192 find 0.96 and more."""

SHARE = 16
"""The most points, or subspaces, per centre that centres are learned from."""

PRODUCTS = 1 << 22
"""Products of subspaces and centres in memory at once."""


def cell_count(entries: int, lists_per_entry: int) -> int:
    """Return the number of cells for this many entries, each in ``lists_per_entry`` lists.

    About 16 times the root of the number of entries, so search is sublinear, but at most CELLS_PER_LIST cells per list
    of an entry.
    """
    cells = 2 ** round(np.log2(max(1, entries) ** 0.5 * 16))
    return int(np.clip(cells, 16, min(65_536, max(16, CELLS_PER_LIST * lists_per_entry))))


def centres_of_points(points: Floats, count: int, seed: int) -> Floats:
    """Return centres (count, n) of public points: clustered, or the points themselves if they are few."""
    import faiss

    rng = np.random.default_rng(seed)
    sample = points[np.sort(rng.permutation(len(points))[: count * SHARE])]
    if len(sample) < 2 * count:
        return np.ascontiguousarray(sample[:count])
    model = faiss.Kmeans(points.shape[1], count, niter=ITERATIONS, seed=seed + 1, min_points_per_centroid=1)
    model.train(np.ascontiguousarray(sample))
    return np.asarray(model.centroids, np.float32).reshape(count, -1)


def middle_of(blocks: list[tuple[Floats, Floats]], dim: int) -> Floats:
    """Return the point (dim,) with the least sum of squared distances to subspaces; for points, their mean.

    The sum of I - B'B over all subspaces, times the point, is the sum of their origins.
    """
    total, products, origins = 0, np.zeros((dim, dim)), np.zeros(dim)
    step = max(1, sum(len(origin) for origin, _ in blocks) // SAMPLE)
    for origin, basis in blocks:
        rows = basis[::step].reshape(-1, dim).astype(np.float64)
        products += rows.T @ rows
        origins += origin[::step].sum(axis=0, dtype=np.float64)
        total += len(origin[::step])
    middle = np.linalg.lstsq(total * np.eye(dim) - products, origins, rcond=1e-9)[0]
    return np.asarray(middle, np.float32)


def points_near(middle: Floats, origin: Floats, basis: Floats) -> Floats:
    """Return the point (N, n) of each subspace that is nearest to a point."""
    return np.asarray(origin + np.einsum("nk,nki->ni", basis @ middle, basis), np.float32)


def centres_of_subspaces(blocks: list[tuple[Floats, Floats]], count: int, seed: int, middle: Floats) -> Floats:
    """Return centres (count, n) learned from subspaces alone: points that many of them pass near.

    From clusters of their points nearest to the ``middle`` of all, each centre moves to the mean of the nearest points
    of the subspaces it is the nearest centre of.
    """
    rng = np.random.default_rng(seed)
    total = sum(len(origin) for origin, _ in blocks)
    share = min(1.0, count * SHARE / max(1, total))
    sample = [(origin[rows], basis[rows]) for origin, basis in blocks
              for rows in [np.sort(rng.permutation(len(origin))[: int(np.ceil(len(origin) * share))])]]  # fmt: skip
    centres = centres_of_points(np.concatenate([points_near(middle, *block) for block in sample]), count, seed)
    for _ in range(ROUNDS):
        sums, counts = np.zeros(centres.shape), np.zeros(len(centres))
        for origin, basis in sample:
            cells = assign_cells(centres, middle, origin, basis, 1)[:, 0]
            along = np.einsum("nki,ni->nk", basis, centres[cells])
            np.add.at(sums, cells, origin + np.einsum("nk,nki->ni", along, basis))
            counts += np.bincount(cells, minlength=len(centres))
        centres = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centres).astype(np.float32)
    return centres


def assign_cells(
    centres: Floats,
    middle: Floats,
    origin: Floats,
    basis: Floats,
    keep: int,
    run: Callable[..., Iterable[Any]] = map,
    *,
    in_order: bool = False,
) -> NDArray[np.int32]:
    """Return the ``keep`` cells (N, keep) nearest to each subspace, ``in_order`` or not; ``run`` is a map.

    ``middle`` (n,) is a point amid all of them: measured from there, float32 has enough digits.
    """
    load_kernels()
    from sfumato.search.inverted.kernels import nearest_cells

    count, m, n = basis.shape
    result = np.zeros((count, keep), np.int32)
    centred = centres - middle
    norms, across = np.einsum("ki,ki->k", centred, centred), centred.T
    step = max(1, PRODUCTS // (len(centres) * (m + 1)))

    def assign(start: int) -> None:
        part = slice(start, start + step)
        stack = np.concatenate([offsets_from(middle, origin[part], basis[part])[:, None], basis[part]], axis=1)
        nearest_cells(stack.reshape(-1, n) @ across, norms, m + 1, keep, in_order, result[part])

    for _ in run(assign, range(0, count, step)):
        pass
    return result


def offsets_from(middle: Floats, origin: Floats, basis: Floats) -> Floats:
    """Return the points (N, n) of subspaces (N, n), (N, m, n) nearest to ``middle``, measured from there."""
    offset = origin - middle
    offset -= np.einsum("nk,nki->ni", np.einsum("nki,ni->nk", basis, offset), basis)
    return offset


def lists_of(cells: NDArray[np.int32], count: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return offsets (count + 1,) and members of the lists of ``count`` cells from the cells (N, T) of each entry."""
    load_kernels()
    from sfumato.search.inverted.kernels import fill_lists

    offsets = np.concatenate([[0], np.cumsum(np.bincount(cells.reshape(-1), minlength=count))]).astype(np.int64)
    members = np.empty(cells.size, np.int32)
    fill_lists(cells, offsets[:-1].copy(), members)
    return offsets, members


# --- the cells of a query

FEWEST = 1024
"""Up to this many cells are compared on all coordinates."""

CANDIDATES, LEAST_CANDIDATES = 4, 32
"""Candidates by the axes for every cell of the answer, and the least number in all."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class CellFinder:
    """Search for the cells nearest to a query: first on the axes of the codes, a quarter of the memory, then exactly.

    ``centres`` (K, n); ``centred``: the same from the mean; ``heads`` (HEAD, K): these on the axes; ``norms`` (K,):
    their squared lengths.
    """

    centres: Floats
    axes: Axes
    centred: Floats
    heads: Floats
    norms: Floats

    @staticmethod
    def of(centres: Floats, axes: Axes) -> "CellFinder":
        """Return a finder of these centres."""
        centred = np.ascontiguousarray(centres - axes.mean)
        heads = np.ascontiguousarray((centred @ axes.axes).T)
        return CellFinder(centres, axes, centred, heads, np.einsum("ki,ki->k", centred, centred))

    def nearest(self, origin: Floats, basis: Floats, keep: int) -> NDArray[np.int32]:
        """Return the cells (Q, keep) nearest to subspaces (Q, n), (Q, m, n), nearest first."""
        count = max(LEAST_CANDIDATES, CANDIDATES * keep)
        if len(self.centres) < max(FEWEST, 4 * count) or self.centres.shape[1] <= HEAD:
            return assign_cells(self.centres, self.axes.mean, origin, basis, keep, in_order=True)
        stack = np.concatenate([offsets_from(self.axes.mean, origin, basis)[:, None], basis], axis=1)
        candidates = self._candidates(stack, count)
        from sfumato.search.inverted.kernels import order_cells

        result = np.empty((len(origin), keep), np.int32)
        order_cells(stack, self.centred, self.norms, candidates, result)
        return result

    def _candidates(self, stack: Floats, keep: int) -> NDArray[np.int32]:
        """Return the cells (Q, keep) nearest on the axes, in no order."""
        load_kernels()
        from sfumato.search.inverted.kernels import nearest_cells

        count, rows, n = stack.shape
        result = np.zeros((count, keep), np.int32)
        nearest_cells((stack.reshape(-1, n) @ self.axes.axes) @ self.heads, self.norms, rows, keep, False, result)
        return result


# --- the inverted lists


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class InvertedLists:
    """The lists of all cells and the codes, for the rows from ``start`` on, all of dimension ``dim``.

    ``offsets`` (K + 1,) int64 and ``members`` int32, counted from ``start``, ascending in each list; ``coarse`` and
    ``fine`` (N, bytes) int8: codes as ``codes.encode`` makes them.
    """

    start: int
    dim: int
    offsets: NDArray[np.int64]
    members: NDArray[np.int32]
    coarse: NDArray[np.int8]
    fine: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.fine)

    @staticmethod
    def of(
        start: int, cells: NDArray[np.int32], axes: Axes, origin: Floats, basis: Floats, count: int
    ) -> "InvertedLists":
        """Return the lists and codes of subspaces with their cells (N, T), of ``count`` cells."""
        codes = (encode(axes, origin, basis, width) for width in (COARSE, HEAD))
        return InvertedLists(start, basis.shape[1], *lists_of(cells, count), *codes)

    def joins(self, after: "InvertedLists") -> bool:
        """Return whether another run follows this one and is large enough to be worth merging."""
        follows = self.start + len(self) == after.start and self.dim == after.dim
        return follows and len(self) <= 2 * len(after)

    def joined(self, after: "InvertedLists") -> "InvertedLists":
        """Return this run and the one that follows as one."""
        cells = np.arange(len(self.offsets) - 1)
        owner = np.concatenate([np.repeat(cells, np.diff(part.offsets)) for part in (self, after)])
        members = np.concatenate([self.members, after.members + np.int32(len(self))])
        order = np.argsort(owner, kind="stable")
        coarse, fine = np.concatenate([self.coarse, after.coarse]), np.concatenate([self.fine, after.fine])
        return InvertedLists(self.start, self.dim, self.offsets + after.offsets, members[order], coarse, fine)

    def compiled(self) -> tuple[Any, ...]:
        """Return the arguments of compiled scans: offsets, members, coarse codes, fine codes, and m.

        Codes are bytes, the same as float32, and the number of bytes per entry.
        """
        flat = [read_only(codes).reshape(-1) for codes in (self.coarse, self.fine)]
        codes = [(flat[k], flat[k].view(np.float32), part.shape[1]) for k, part in enumerate((self.coarse, self.fine))]
        return read_only(self.offsets), read_only(self.members), *codes, self.dim

    @staticmethod
    def restore(
        start: int,
        offsets: NDArray[Any],
        members: NDArray[Any],
        coarse: NDArray[Any],
        fine: NDArray[Any],
        entries: Entries,
        count: int,
    ) -> "InvertedLists":
        """Return lists read from a file; FileError if one points beyond the entries."""
        inside = [segment for segment in entries.segments if segment.start <= start < segment.stop]
        if not inside or fine.ndim != 2 or start + len(fine) > inside[0].stop:
            raise FileError("a run of lists begins or ends outside of the entries")
        m, kinds = inside[0].dim, [array.dtype.name for array in (offsets, members, coarse, fine)]
        shapes = [array.shape for array in (offsets, coarse, fine)]
        expected = [(count + 1,), (len(fine), code_bytes(m, COARSE)), (len(fine), code_bytes(m))]
        if kinds != ["int64", "int32", "int8", "int8"] or shapes != expected or members.ndim != 1:
            raise FileError("lists or codes have the wrong shape or type")
        if offsets[0] != 0 or offsets[-1] != len(members) or (offsets[1:] < offsets[:-1]).any():
            raise FileError("the offsets of the lists are damaged")
        if members.size and not 0 <= members.min() <= members.max() < len(fine):
            raise FileError("a list points beyond the entries")
        return InvertedLists(start, m, offsets, members, coarse, fine)
