# SPDX-License-Identifier: Apache-2.0
"""Exact nearest neighbours of two sets of subspaces on a torch device, such as a GPU.

A lower bound of the distance of every pair is computed in float32, a tile of pairs at a time; the matrix of all pairs
is never stored. Bounds only choose candidates: the caller's own ``exact`` evaluates what is returned. Where bounds do
not settle which rows are nearest, more pairs are evaluated, in the worst case all: pairs that share a direction, or
nearly, have no bound but 0.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError, need

Tensor = Any
Exact = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]
Nearest = tuple[NDArray[np.float64], NDArray[np.int64]]
BothSides = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]
SideArrays = tuple[NDArray[np.float32], NDArray[np.float32]]
Consume = Callable[[slice, slice, Tensor], None]

BUDGET = {"cpu": 1 << 25, "cuda": 1 << 29}
"""Bytes of one tile: on a processor about the size of its caches, on a GPU enough to keep all of it busy."""

EXTRA = 8
"""Candidates per row beyond the number of neighbours."""

PIVOT = 3e-3
"""The least pivot of S for which float32 gives a bound: the squared sine of an angle of 3 degrees."""

ERROR = 3e-6
"""The error of such a value, in units of |p|^2 + |q|^2 + |S^-1 u|^2: three times the largest that was measured."""

ROUNDING = 1e-6
"""The relative error of a bound from its storage in float32."""

EXACT_PAIRS = 1 << 18
"""Pairs handed to ``exact`` at once."""


def search(
    origin0: NDArray[np.float32],
    basis0: NDArray[np.float32],
    origin1: NDArray[np.float32],
    basis1: NDArray[np.float32],
    keep: tuple[int, int],
    *,
    device: str,
    exact: Exact,
    limit: float = math.inf,
    budget: int | None = None,
) -> BothSides:
    """Return squared0 (N0, keep0), rows0, squared1 (N1, keep1), rows1: the nearest of each row of either side.

    Origins (N, n) and bases (N, m, n) in canonical form; the dimensions m may differ. Nearest first, of equals the
    lower row first; inf and -1 where there are fewer, or none within ``limit``, a squared distance. ``exact(i, j)``
    returns the squared distances (P,) float64 of rows i of side 0 and j of side 1. ``budget``: bytes for one tile.

    Raises InputError for a device that is missing or too small, MissingDependency without torch.
    """
    torch = need("torch", extra="learn")
    place = _device(torch, device)
    if basis0.shape[1] > basis1.shape[1]:  # the smaller dimension is the size of the system to solve
        swapped = search(
            *(origin1, basis1, origin0, basis0, (keep[1], keep[0])),
            device=device,
            exact=lambda i, j: exact(j, i),
            limit=limit,
            budget=budget,
        )
        return (*swapped[2:], *swapped[:2])
    if not len(origin0) or not len(origin1) or keep == (0, 0):
        return (*_no_neighbours(len(origin0), keep[0]), *_no_neighbours(len(origin1), keep[1]))
    with _full_float32(torch, place):
        sides = (origin0, basis0), (origin1, basis1)
        return _Tiles(torch, place, budget or BUDGET[place.type], exact, sides).nearest(keep, limit)


def _device(torch: Any, name: str) -> Any:
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices += ["cuda", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
    if str(name) not in devices:
        reason = "" if len(devices) > 1 else "; torch finds no GPU"
        raise InputError(f"device: {name!r:.80} is not available, use one of {', '.join(devices)}{reason}")
    return torch.device(str(name))


def _no_neighbours(count: int, keep: int) -> Nearest:
    return np.full((count, keep), np.inf), np.full((count, keep), -1, np.int64)


@contextmanager
def _full_float32(torch: Any, device: Any) -> Iterator[None]:
    """Compute in full float32, whatever the caller chose for torch, and restore that choice."""
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # before torch 2.9 one switch for all
            before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("highest")
            try:
                yield
            finally:
                torch.set_float32_matmul_precision(before)
            return
        switches = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul]
        before_all = [switch.fp32_precision for switch in switches]
        try:
            for switch in switches:
                switch.fp32_precision = "ieee"
            yield
        finally:
            for switch, choice in zip(switches, before_all, strict=True):
                switch.fp32_precision = choice


def _out_of_memory(torch: Any, problem: BaseException) -> bool:
    words = ("can't allocate memory", "ALLOC_FAILED")  # the processor's allocator and cuBLAS have no class of their own
    return isinstance(problem, torch.cuda.OutOfMemoryError | MemoryError) or any(w in str(problem) for w in words)


def _make_canonical(torch: Any, rows: Tensor, centre: Tensor) -> Tensor:
    """Return rows (K, m + 1, n) float64, origin first, moved by -centre (n,), canonical to the last bit.

    float32 leaves them canonical to 1e-6 only. A centre makes offsets small that all rows have in common.
    """
    origin, basis = rows[:, :1] - centre, rows[:, 1:]
    for _ in range(2):
        basis = 1.5 * basis - 0.5 * (basis @ basis.mT) @ basis
    for _ in range(2):
        origin = origin - (origin @ basis.mT) @ basis
    return torch.cat([origin, basis], 1)


def _bounds(torch: Any, product: Tensor, n: int, squared0: Tensor, squared1: Tensor) -> Tensor:
    """Return lower bounds (R, C) of squared distances; 0 where nothing is known.

    ``product`` (m0 + 1, R, m1 + 1, C): the inner products in R^n of [p; B] and [q; C], m0 <= m1. With a = B'q,
    b = C'p, M = B'C, u = a + M b and S = I - M M' = L D L', d^2 = |p|^2 + |q|^2 - 2 p.q - |b|^2 - u' S^-1 u. S is
    eliminated as whole planes (R, C): for small m faster than one small factorisation after another, and never
    refused. An error e of the products puts d^2 off by at most some e (|p|^2 + |q|^2 + |S^-1 u|^2).
    """
    error = ERROR * max(1.0, math.sqrt(n / 256))  # sums of more terms are rounded more often
    b, cross, u = product[0, :, 1:], product[1:, :, 1:], product[1:, :, 0]
    values = (1 - error) * (squared0 + squared1) - 2 * product[0, :, 0] - b.square().sum(1)
    m = len(u)
    if m == 0:
        return values.clamp_(min=0)
    u = u + (cross * b).sum(2)
    s = u.new_empty((m, *u.shape))
    for k in range(m):
        s[k] = (cross[k] * cross).sum(2).neg_()
        s[k, k] += 1
    least = s[0, 0].clone()
    for k in range(m):
        pivot, below = s[k, k], s[k + 1 :, k]
        torch.minimum(least, pivot, out=least)
        factors = below / pivot  # column k of L
        s[k + 1 :, k + 1 :].addcmul_(factors.unsqueeze(1), below.unsqueeze(0), value=-1)
        below.copy_(factors)
        u[k + 1 :].addcmul_(factors, u[k], value=-1)
        solved = u[k] / pivot
        values.addcmul_(u[k], solved, value=-1)
        u[k] = solved
    for k in range(m - 1, 0, -1):  # what remains of S^-1 u: the product with the inverse of L'
        u[:k].addcmul_(s[k, :k], u[k], value=-1)
    values.sub_(u.square().sum(0), alpha=error).clamp_(min=0)
    return values.masked_fill_(~(least >= PIVOT), 0.0)  # a pivot that is not a number too


class _Tiles:
    """Two sides on a device, the first of the smaller dimension, searched tile by tile."""

    def __init__(self, torch: Any, device: Any, budget: int, exact: Exact, sides: tuple[SideArrays, SideArrays]):
        self.torch, self.device, self.budget, self.exact = torch, device, budget, exact
        try:
            centre = np.mean([origin.mean(axis=0, dtype=np.float64) for origin, _ in sides], axis=0)
            self.centre = torch.from_numpy(centre).to(device)
            loaded = [self._load(*side) for side in sides]
        except (MemoryError, RuntimeError) as problem:
            if not _out_of_memory(torch, problem):
                raise
            size = sum(origin.nbytes + basis.nbytes for origin, basis in sides) >> 20
            raise InputError(
                f"device: {device} has no memory for {len(sides[0][0])} and {len(sides[1][0])} subspaces of {size} MB; "
                f"free some, search in parts, or use the cpu"
            ) from None
        longest = math.sqrt(max(float(squared.max()) for _, squared in loaded))
        self.scale = 2.0 ** math.ceil(math.log2(longest)) if longest else 1.0  # so that no square overflows
        self.squared = [(squared / self.scale / self.scale).float() for _, squared in loaded]  # (N,) |p|^2
        self.stacks = [stack for stack, _ in loaded]  # (m + 1, N, n) float32, origins first
        for stack in self.stacks:
            stack[0] /= self.scale

    def _load(self, origin: NDArray[np.float32], basis: NDArray[np.float32]) -> tuple[Tensor, Tensor]:
        torch, (count, m, n) = self.torch, basis.shape
        stack = torch.empty((m + 1, count, n), dtype=torch.float32, device=self.device)
        squared = torch.empty(count, dtype=torch.float64, device=self.device)
        for start in range(0, count, step := max(1, self.budget // (64 * (m + 1) * n))):
            part = slice(start, start + step)
            rows = np.concatenate([origin[part, None], basis[part]], axis=1, dtype=np.float64)
            rows = _make_canonical(torch, torch.from_numpy(rows).to(self.device), self.centre)
            stack[:, part] = rows.transpose(0, 1)
            squared[part] = rows[:, 0].square().sum(1)
        return stack, squared

    def at_once(self) -> int:
        """Return the number of pairs of one tile."""
        m0, m1 = len(self.stacks[0]) - 1, len(self.stacks[1]) - 1
        return max(1, self.budget // (4 * ((m0 + 1) * (m1 + 1) + m0 * (m0 + m1) + m0 + 16)))

    def sweep(self, rows: Tensor, columns: Tensor, consume: Consume) -> None:
        """Pass the bounds of all pairs of these rows to ``consume``, tile by tile; out of memory, in smaller tiles."""
        todo = [(0, len(rows), 0, len(columns))]
        while todo:
            top, bottom, left, right = tile = todo.pop()
            height, width = bottom - top, right - left
            if height * width > self.at_once() and height >= width:
                todo += [(top + height // 2, bottom, left, right), (top, top + height // 2, left, right)]
            elif height * width > self.at_once():
                todo += [(top, bottom, left + width // 2, right), (top, bottom, left, left + width // 2)]
            elif not self._attempt(rows, columns, tile, consume):
                if height * width == 1:
                    raise InputError(
                        f"device: {self.device} has no memory for a single pair; free some, or use the cpu"
                    )
                self.budget = int(self.budget * min(1.0, height * width / self.at_once())) // 2
                todo.append(tile)

    def _attempt(self, rows: Tensor, columns: Tensor, tile: tuple[int, ...], consume: Consume) -> bool:
        down, across = slice(*tile[:2]), slice(*tile[2:])
        try:
            consume(down, across, self.bounds(rows[down], columns[across]))
            return True
        except (MemoryError, RuntimeError) as problem:
            if not _out_of_memory(self.torch, problem):
                raise
        self.torch.cuda.empty_cache()  # only here is the memory of the tile free
        return False

    def bounds(self, i: Tensor, j: Tensor) -> Tensor:
        """Return lower bounds (R, C) float32 for rows i of side 0 and j of side 1, in squared scales."""
        left, right = self.stacks[0].index_select(1, i), self.stacks[1].index_select(1, j)
        n = left.shape[2]
        product = self.torch.matmul(left.reshape(-1, n), right.reshape(-1, n).T)
        product = product.view(len(left), len(i), len(right), len(j))
        return _bounds(self.torch, product, n, self.squared[0][i][:, None], self.squared[1][j][None])

    def exactly(self, side: int, mine: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the squared distances of rows of a side and rows of the other."""
        i, j = (np.ascontiguousarray(rows) for rows in ((mine, other) if side == 0 else (other, mine)))
        parts = (slice(start, start + EXACT_PAIRS) for start in range(0, len(i), EXACT_PAIRS))
        return np.concatenate([np.zeros(0), *(self.exact(i[part], j[part]) for part in parts)])

    def nearest(self, keep: tuple[int, int], limit: float) -> BothSides:
        torch = self.torch
        rows0, rows1 = (torch.arange(len(squared), device=self.device) for squared in self.squared)
        candidates: list[tuple[Tensor, Tensor]] = []
        for mine, other, count in ((rows0, rows1, keep[0]), (rows1, rows0, keep[1])):
            shape = len(mine), min(count + EXTRA, len(other)) if count else 0
            bounds = torch.full(shape, math.inf, dtype=torch.float32, device=self.device)
            candidates.append((bounds, torch.full(shape, -1, dtype=torch.int64, device=self.device)))

        def merge(down: slice, across: slice, bounds: Tensor) -> None:
            merged0 = _merge(torch, candidates[0], down, bounds, rows1[across])
            merged1 = _merge(torch, candidates[1], across, bounds.T, rows0[down])
            candidates[0][0][down], candidates[0][1][down] = merged0
            candidates[1][0][across], candidates[1][1][across] = merged1

        self.sweep(rows0, rows1, merge)
        return (
            *self._best_candidates(0, candidates[0], keep[0], limit),
            *self._best_candidates(1, candidates[1], keep[1], limit),
        )

    def _best_candidates(self, side: int, candidates: tuple[Tensor, Tensor], keep: int, limit: float) -> Nearest:
        """Return the nearest of each row of a side from its candidates (N, K), or from all if these are not enough."""
        bounds, rows = (_host(tensor) for tensor in candidates)
        squared, nearest = _no_neighbours(len(rows), keep)
        if keep == 0:
            return squared, nearest
        for part in (slice(0, keep), slice(keep, None)):  # often the first leaves nothing to the second
            i, k = np.nonzero(bounds[:, part] <= self._reach(squared, limit))
            j = rows[:, part][i, k]
            _insert(squared, nearest, i, j, self.exactly(side, i, j), limit)
        unsure = np.flatnonzero(bounds[:, -1:] <= self._reach(squared, limit))
        if len(unsure) and bounds.shape[1] < len(self.squared[1 - side]):
            self._search_again(side, unsure, (squared, nearest), limit)
        return squared, nearest

    def _reach(self, squared: NDArray[np.float64], limit: float) -> NDArray[np.float64]:
        """Return the bound (N, 1) above which no pair comes among the nearest (N, keep)."""
        reach: NDArray[np.float64] = np.minimum(squared[:, -1:], limit) / self.scale / self.scale * (1 + ROUNDING)
        return reach

    def _search_again(self, side: int, rows: NDArray[np.int64], result: Nearest, limit: float) -> None:
        """Search some rows again: evaluate every pair whose bound is within the row's reach."""
        torch = self.torch
        mine = torch.from_numpy(rows).to(self.device)
        other = torch.arange(len(self.squared[1 - side]), device=self.device)
        reach = torch.from_numpy(self._reach(result[0][rows], limit)).to(self.device, torch.float32)
        squared, nearest = _no_neighbours(len(rows), result[0].shape[1])

        def consume(down: slice, across: slice, bounds: Tensor) -> None:
            part, others, bounds = (down, across, bounds) if side == 0 else (across, down, bounds.T)
            i, j = (_host(k) for k in (bounds <= reach[part]).nonzero().unbind(1))
            j = j + others.start
            _insert(squared[part], nearest[part], i, j, self.exactly(side, rows[part][i], j), limit)

        self.sweep(*((mine, other) if side == 0 else (other, mine)), consume)
        result[0][rows], result[1][rows] = squared, nearest


def _host(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.cpu().numpy()
    return array


def _merge(
    torch: Any, candidates: tuple[Tensor, Tensor], part: slice, bounds: Tensor, names: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the least of the present bounds (N, K) and of new ones (R, C) of the rows ``part``, and their names."""
    least_so_far, rows = candidates[0][part], candidates[1][part]
    if least_so_far.shape[1] == 0:
        return least_so_far, rows
    least, at = bounds.topk(min(least_so_far.shape[1], bounds.shape[1]), largest=False)
    best, order = torch.cat([least_so_far, least], 1).topk(least_so_far.shape[1], largest=False)
    return best, torch.cat([rows, names[at]], 1).gather(1, order)


def _insert(
    squared: NDArray[np.float64],
    nearest: NDArray[np.int64],
    i: NDArray[np.int64],
    j: NDArray[np.int64],
    new: NDArray[np.float64],
    limit: float,
) -> None:
    """Put new pairs (i, j) among the nearest (N, keep), in place: the least first, of equals the lower j first."""
    worth = (new <= limit) & (new <= squared[i, -1])
    count, keep = squared.shape
    owner = np.concatenate([np.repeat(np.arange(count), keep), i[worth]])
    values = np.concatenate([squared.ravel(), new[worth]])
    names = np.concatenate([nearest.ravel(), j[worth]])
    order = np.lexsort((names, values, owner))
    first = np.searchsorted(owner[order], np.arange(count))
    best = order[first[:, None] + np.arange(keep)]
    squared[:], nearest[:] = values[best], names[best]
