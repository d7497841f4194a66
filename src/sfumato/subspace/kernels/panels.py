# SPDX-License-Identifier: Apache-2.0
"""Panels: subspaces rounded to 16-bit integers, on a few axes or on all, in the layout of the compiled products.

A projection on orthonormal axes shortens every offset, so the distance of projected subspaces is a lower bound of the
true one. The projected basis is no longer orthonormal and the projected origin no longer orthogonal to it; both are
made so again, because the formula of the distance needs it. A panel records how far rounding moved its vectors.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sfumato.subspace.kernels.bounds import SINGULAR
from sfumato.subspace.kernels.simd import BLOCK, LANES

UNIT = 32000
"""The integer that stands for a length of 1: the square of a unit vector still fits 32 bits."""

VOID = 0.02
"""If the projection leaves less than this of a direction, its subspace gets no bound."""

NO_BOUND = np.float32(-1e30)
"""The squared norm given to such an origin: every bound with it is below 0."""

PROJECTING = 2e-6
"""The farthest that float32 moves a unit vector which is projected, or is a row of a stored orthonormal basis."""

AT_ONCE = 512
LINE_BYTES = 64


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Panel:
    """Rounded subspaces: ``values`` int16 (N, m + 1, k), padded with zeros; ``norms`` (N,) squared norms of origins.

    ``scale`` is the length that 32,000 stands for in an origin; ``origin_error`` and ``basis_error`` how far rounding
    moved an origin, in units of the scale, and a basis row, at most.
    """

    values: NDArray[np.int16]
    norms: NDArray[np.float32]
    scale: float
    origin_error: float
    basis_error: float

    def of(self, rows: NDArray[np.int64]) -> "Panel":
        """Return the panel of these rows."""
        return replace(self, values=np.ascontiguousarray(self.values[rows]), norms=self.norms[rows])


def make_panel(
    origin: NDArray[np.float32],
    basis: NDArray[np.float32],
    mean: NDArray[np.float64],
    axes: NDArray[np.float32] | None,
    *,
    scale: float,
    round_to: int,
    pad_rows: int = 1,
    dual: bool = False,
    run: Callable[..., Iterable[Any]] = map,
) -> Panel:
    """Round subspaces about ``mean`` (n,), projected on ``axes`` (n, k) or, with None, on all coordinates.

    The number of coordinates is padded to a multiple of ``round_to``, the number of subspaces to one of ``pad_rows``.
    In the ``dual`` form the basis spans the complement, and the origin is orthogonal to the subspace, not to the basis.
    ``run`` is ``map``, or that of a pool of threads.
    """
    count, m, n = basis.shape
    k = n if axes is None else axes.shape[1]
    values = np.zeros((-(-count // pad_rows) * pad_rows, m + 1, -(-k // round_to) * round_to), np.int16)
    norms = np.zeros(len(values), np.float32)

    def work(start: int) -> NDArray[np.float64]:
        part, errors = slice(start, start + AT_ONCE), np.zeros(2)
        rows, offset = basis[part], ((origin[part] - mean) / scale).astype(np.float32)
        if axes is not None:
            with np.errstate(invalid="ignore"):  # OpenBLAS raises the flag for lanes beyond the end
                rows, offset = (rows.reshape(-1, n) @ axes).reshape(len(offset), m, k), offset @ axes
        rows.flags.writeable = False  # to numba another type: without this, compiled twice
        skew = m if dual or axes is not None else 0
        _round(offset, rows, skew, not dual, scale, values[part], norms[part], errors)
        return errors

    errors = np.max([np.zeros(2), *run(work, range(0, count, AT_ONCE))], axis=0)
    return Panel(values, norms, scale, float(errors[0]), float(errors[1]))


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _round(origin: Any, basis: Any, skew: Any, centre: Any, scale: Any, values: Any, norms: Any, errors: Any) -> None:
    """Round origins (N, k), in units of the scale, and bases (N, m, k), of which ``skew`` rows are not orthonormal yet.

    ``centre``: make the origins orthogonal to the bases. Stacked in ``values``, the origin comes first.
    """
    count, m, k = basis.shape
    work = np.empty((m + 1, k))
    for i in range(count):
        for r in range(m):
            for t in range(k):
                work[r, t] = basis[i, r, t]
        for t in range(k):
            work[m, t] = origin[i, t]
        loss = PROJECTING + _orthonormalise(work, skew, k)
        if centre:
            _remove_before(work, m, m, k)
        if loss < 0:
            norms[i] = NO_BOUND
            continue
        norms[i] = np.float32(_dot(work, m, m, k) * scale * scale)
        for r in range(m + 1):
            moved, stacked = 0.0, (r + 1) % (m + 1)
            for t in range(k):
                rounded = np.rint(work[r, t] * UNIT)
                values[i, stacked, t] = np.int16(rounded)
                moved += (rounded / UNIT - work[r, t]) ** 2
            errors[1 if r < m else 0] = max(errors[1 if r < m else 0], np.sqrt(moved) + loss)


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _dot(work: Any, first: Any, second: Any, k: Any) -> Any:
    total = 0.0
    for t in range(k):
        total += work[first, t] * work[second, t]
    return total


@njit(nogil=True, cache=True, fastmath={"contract"})
def _remove_before(work: Any, row: Any, count: Any, k: Any) -> None:
    """Make a row orthogonal to the first ``count`` rows, which are orthonormal; twice where little of it is left."""
    for _ in range(2):
        removed = 0.0
        for before in range(count):
            along = _dot(work, row, before, k)
            removed += along * along
            for t in range(k):
                work[row, t] -= along * work[before, t]
        if removed < _dot(work, row, row, k):
            return


@njit(nogil=True, cache=True)
def _orthonormalise(work: Any, m: Any, k: Any) -> Any:
    """Make the first m rows of work orthonormal; return how far float32 may have moved them by that.

    Far below 0 where a row is left with too little of its length.
    """
    loss = 0.0
    for r in range(m):
        _remove_before(work, r, r, k)
        length = np.sqrt(_dot(work, r, r, k))
        if length < VOID:
            return -1.0
        loss += PROJECTING / length
        for t in range(k):
            work[r, t] /= length
    return loss


def group_size(m: int) -> int:
    """Return the number of subspaces of dimension m in a group of columns."""
    return LANES if m else BLOCK * LANES


def row_layout(panel: Panel) -> NDArray[np.int32]:
    """Return the panel for the side whose rows pass by: flat, two coordinates per number."""
    return panel.values.reshape(-1).view(np.int32)


def column_layout(panel: Panel) -> NDArray[np.int32]:
    """Return the panel for the side whose columns stay: flat (groups, k / 2, stack, 8), two coordinates per number.

    A group holds eight subspaces, or three times eight points, which have no directions stacked on them.
    """
    count, stack, k = panel.values.shape
    pairs = panel.values.view(np.int32)
    if stack == 1:
        pairs, stack = pairs.reshape(count // (BLOCK * LANES), BLOCK, LANES, k // 2), BLOCK
    else:
        pairs = pairs.reshape(count // LANES, LANES, stack, k // 2).transpose(0, 2, 1, 3)
    result = _at_line(len(pairs) * k // 2 * stack * LANES)
    _spread(pairs, result.reshape(len(pairs), k // 2, stack, LANES))
    return result


def _at_line(count: int) -> NDArray[np.int32]:
    """Return an array of ``count`` numbers that begins with a cache line, so no load of eight touches two."""
    room = np.empty(count + LINE_BYTES // 4, np.int32)
    first = -room.ctypes.data % LINE_BYTES // 4
    return room[first : first + count]


@njit(nogil=True, cache=True)
def _spread(pairs: Any, result: Any) -> None:
    groups, stack, lanes, count = pairs.shape
    for group in range(groups):
        for s in range(stack):
            for lane in range(lanes):
                for t in range(count):
                    result[group, t, s, lane] = pairs[group, s, lane, t]


def scales_of(a: Panel, b: Panel, m0: int, m1: int, *, dual: bool = False) -> tuple[np.float32, ...]:
    """Return the factors that turn sums of integers into squared distances, and bounds of the rounding error.

    The last two: the error is at most the first plus the second times the squared length of S^-1 u. With E for the
    errors of each quantity, that of u' S^-1 u is at most 2 |y| E_u + |y|^2 E_S, y the true S^-1 u, which differs from
    the computed one by at most (E_u + E_S |y|) / lambda; lambda, the least eigenvalue of S, is at least
    its determinant.
    """
    if m0 > m1:
        left, *rest = scales_of(b, a, m1, m0, dual=dual)
        return left, rest[1], rest[0], *rest[2:]
    s0, s1, s = a.scale, b.scale, a.scale + b.scale
    error_pq = s0 * s1 * (a.origin_error + b.origin_error + a.origin_error * b.origin_error)
    error_b = np.sqrt(m1) * s0 * (a.origin_error + b.basis_error + a.origin_error * b.basis_error)
    error_a = np.sqrt(m0) * s1 * (b.origin_error + a.basis_error + b.origin_error * a.basis_error)
    error_m = np.sqrt(m0 * m1) * (a.basis_error + b.basis_error + a.basis_error * b.basis_error)
    error_u = error_a + error_b + error_m * (s0 + error_b)
    error_s = 2 * error_m + error_m**2
    eigenvalue = max(SINGULAR - error_s, SINGULAR / 10)
    growth, shift = 1 + error_s / eigenvalue, error_u / eigenvalue
    growing = 1.1 * growth**2 * (error_u / s + error_s)
    fixed = 2 * error_pq + (2 * s0 + error_b) * error_b + 4e-6 * s**2
    if m0:
        fixed += error_u * s + 11 * (error_u / s + error_s) * shift**2
    squared_unit = UNIT**2
    numbers = (
        s0 * s1 / squared_unit, s0 / squared_unit, s1 / squared_unit, 1 / squared_unit, 1.0 if dual else -1.0,
        fixed, growing,
    )  # fmt: skip
    return tuple(np.float32(number) for number in numbers)
