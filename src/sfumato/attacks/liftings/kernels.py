# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels of attacks on liftings: corners by clipping and by walking, and least maxima on spheres.

Corners of a plane cut by x >= 0 and by the ridges of max x are found exactly, by clipping polygons.
The plane { p + B'c } is cut to the polygon where no coordinate is negative, and that in one cell for each coordinate
that is somewhere the largest. Corners of cells are all points where two zeros, a zero and a tie at the maximum, or
three coordinates tied at the maximum meet.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

FARTHEST = 1.5
"""Half the side of the square that is cut: no point of unit norm is outside of it."""

ROOM = 160
"""No polygon cut from a square by 128 lines has more corners; with more coordinates the rest is left out."""


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def clip_rows(origin: Any, basis: Any, tolerance: Any, norm_tolerance: Any, with_ties: Any, room: Any) -> Any:
    """Return coordinates (N, room, 2) of the corners within ``norm_tolerance`` of unit squared norm, and their
    number (N,). ``tolerance`` relaxes every constraint."""
    count, _, n = basis.shape
    corners, counts = np.zeros((count, room, 2)), np.zeros(count, np.int64)
    polygon, cell, other = np.empty((ROOM, 2)), np.empty((ROOM, 2)), np.empty((ROOM, 2))
    for row in range(count):
        p, b = origin[row], basis[row]
        missing = 1.0 - np.sum(p * p)
        polygon[0], polygon[1] = (-FARTHEST, -FARTHEST), (FARTHEST, -FARTHEST)
        polygon[2], polygon[3] = (FARTHEST, FARTHEST), (-FARTHEST, FARTHEST)
        size = 4
        for i in range(n):
            size = _clip(polygon, size, b[0, i], b[1, i], p[i] + tolerance, other)
        for k in range(size):
            counts[row] = _note_clipped(corners[row], counts[row], polygon[k], missing, norm_tolerance)
        if not with_ties:
            continue
        for i in range(n):
            cell[:size] = polygon[:size]
            left = size
            for j in range(n):
                if j != i and left:
                    left = _clip(cell, left, b[0, i] - b[0, j], b[1, i] - b[1, j], p[i] - p[j] + tolerance, other)
            for k in range(left):
                counts[row] = _note_clipped(corners[row], counts[row], cell[k], missing, norm_tolerance)
    return corners, counts


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _clip(polygon: Any, size: Any, a0: Any, a1: Any, offset: Any, other: Any) -> Any:
    """Cut a convex polygon, in place, to where a . c + offset >= 0; return how many corners are left."""
    cuts = False
    for k in range(size):
        if a0 * polygon[k, 0] + a1 * polygon[k, 1] + offset < 0:
            cuts = True
    if not cuts:
        return size
    left = 0
    for k in range(size):
        here, there = polygon[k], polygon[(k + 1) % size]
        at_here = a0 * here[0] + a1 * here[1] + offset
        at_there = a0 * there[0] + a1 * there[1] + offset
        if at_here >= 0 and left < ROOM:
            other[left] = here
            left += 1
        if (at_here >= 0) != (at_there >= 0) and left < ROOM:
            share = at_here / (at_here - at_there)
            other[left] = here + share * (there - here)
            left += 1
    polygon[:left] = other[:left]
    return left


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _note_clipped(corners: Any, count: Any, corner: Any, missing: Any, norm_tolerance: Any) -> Any:
    """Keep a corner of nearly unit norm that is new; return how many are kept."""
    if abs(corner[0] ** 2 + corner[1] ** 2 - missing) > norm_tolerance or count >= corners.shape[0]:
        return count
    for k in range(count):
        if (corners[k, 0] - corner[0]) ** 2 + (corners[k, 1] - corner[1]) ** 2 < 1e-8:
            return count
    corners[count] = corner
    return count + 1


# --- corners of { (c, t) : 0 <= p + B'c <= t }, reached by walking from corner to corner under many objectives
#
# A corner is kept as its k = m + 1 active constraints and the inverse of their matrix, whose columns are the edges
# that leave it. A step costs one product with all constraints.


OPTIMAL, EXHAUSTED, UNBOUNDED, ARRIVED = 0, 1, 2, 3


class Walk(NamedTuple):
    """Where a walk is: constraints ``normals`` (r, k) @ point + ``offsets`` (r,) >= 0, of which ``active`` (k,) hold
    with equality; ``edges`` (k, k) is the inverse of their normals, ``slack`` (r,) the left sides."""

    normals: Any
    offsets: Any
    active: Any
    is_active: Any
    edges: Any
    point: Any
    slack: Any
    along: Any


class CornerSearch(NamedTuple):
    """How corners are searched.

    ``relaxed`` (2 n,): by how much each constraint is relaxed, differently, which parts corners where many meet;
    ``near``: slack below this is none; ``norm_tolerance``: corners as far as this from unit (squared) norm are noted.
    ``objectives`` (S, m + 1), each followed by ``rounds`` - 1 more that weigh constraints by their nearness, those of
    the maximum times ``ceilings`` (S,). A corner with ``enough`` coordinates at the maximum ends the search after
    ``least`` starts.
    """

    relaxed: Any
    near: Any
    norm_tolerance: Any
    objectives: Any
    ceilings: Any
    rounds: Any
    least: Any
    enough: Any


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def search_rows(origin: Any, basis: Any, search: CornerSearch, room: Any) -> Any:
    """Return coordinates (N, room, m) of corners near unit norm, and how many there are in each row (N,)."""
    count, m, _ = basis.shape
    corners = np.zeros((count, room, m))
    tied = np.zeros((count, room), np.int64)
    counts = np.zeros(count, np.int64)
    for row in range(count):
        counts[row] = _search(origin[row], basis[row], search, corners[row], tied[row])
    return corners, counts


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _search(origin: Any, basis: Any, search: CornerSearch, corners: Any, tied: Any) -> Any:
    """Fill ``corners`` (room, m) and ``tied`` (room,) for one subspace; return how many corners there are."""
    m, n = basis.shape
    normals, offsets = _constraints(origin, basis, search.relaxed)
    walk, feasible = _first_corner(normals, offsets, n)
    if not feasible:
        return 0
    missing = 1.0 - np.sum(origin * origin)
    count = 0
    objective = np.empty(m + 1)
    for start in range(search.objectives.shape[0]):
        for turn in range(search.rounds):
            _settle(walk)
            if turn == 0:
                objective[:] = search.objectives[start]
            else:
                _weigh(walk, n, objective, search.ceilings[start], 0.05 if turn == 1 else 0.01)
            count = _descend(walk, objective, -1, search, missing, corners, tied, count)[1]
        if start + 1 >= search.least and count and tied[:count].max() >= search.enough:
            break
    return count


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _constraints(origin: Any, basis: Any, relaxed: Any) -> Any:
    """Return normals (2 n + 2 m, m + 1) and offsets: x >= 0, t - x >= 0, and a box that holds every start."""
    m, n = basis.shape
    normals, offsets = np.zeros((2 * n + 2 * m, m + 1)), np.empty(2 * n + 2 * m)
    for i in range(n):
        normals[i, :m], normals[n + i, :m] = basis[:, i], -basis[:, i]
        normals[n + i, m] = 1.0
        offsets[i] = origin[i] + relaxed[i]
        offsets[n + i] = -origin[i] + relaxed[n + i]
    for j in range(m):
        normals[2 * n + j, j], normals[2 * n + m + j, j] = 1.0, -1.0
        offsets[2 * n + j] = offsets[2 * n + m + j] = FARTHEST
    return normals, offsets


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _first_corner(normals: Any, offsets: Any, n: Any) -> Any:
    """Return a walk at some corner, and whether there is one.

    Phase one of the simplex method: the lower bounds are relaxed by one more unknown s >= 0, which is made small.
    """
    r, k = normals.shape
    m = k - 1
    relaxed, more = np.zeros((r + 1, k + 1)), np.zeros(r + 1)
    relaxed[:r, :k], more[:r] = normals, offsets
    relaxed[:n, k] = 1.0
    relaxed[r, k] = 1.0
    corner = np.zeros(k + 1)
    corner[:m] = -FARTHEST
    values = relaxed @ corner + more
    lowest, highest = np.argmin(values[:n]), n + np.argmin(values[n : 2 * n])
    active = np.empty(k + 1, np.int64)
    active[:m] = np.arange(2 * n, 2 * n + m)
    active[m], active[k] = highest, lowest
    walk = _walk(relaxed, more, active)
    objective = np.zeros(k + 1)
    objective[k] = 1.0
    status = OPTIMAL
    if walk.point[k] > 0:
        empty = np.zeros((0, k))
        nothing = CornerSearch(more, 0.0, 0.0, empty, more, 0, 0, 0)
        status = _descend(walk, objective, r, nothing, 0.0, empty, np.zeros(0, np.int64), 0)[0]
    rest = np.zeros(k, np.int64)
    at = 0
    for row in walk.active:
        if row != r and at < k:
            rest[at] = row
            at += 1
    return _walk(normals, offsets, rest if status == ARRIVED else active[:k]), status == ARRIVED


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _walk(normals: Any, offsets: Any, active: Any) -> Walk:
    """Return a walk at the corner of these active constraints."""
    r, k = normals.shape
    walk = Walk(
        normals,
        offsets,
        active.copy(),
        np.zeros(r, np.bool_),
        np.empty((k, k)),
        np.empty(k),
        np.empty(r),
        np.empty(r),
    )
    walk.is_active[active] = True
    _settle(walk)
    return walk


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _settle(walk: Walk) -> None:
    """Compute the corner anew from its active constraints, so that rounding does not add up."""
    k = walk.point.shape[0]
    chosen, values = np.empty((k, k)), np.empty(k)
    for j in range(k):
        chosen[j], values[j] = walk.normals[walk.active[j]], -walk.offsets[walk.active[j]]
    walk.edges[:] = np.linalg.inv(chosen)
    walk.point[:] = walk.edges @ values
    for i in range(walk.slack.shape[0]):
        value = walk.offsets[i]
        for j in range(k):
            value += walk.normals[i, j] * walk.point[j]
        walk.slack[i] = 0.0 if walk.is_active[i] else value


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _weigh(walk: Walk, n: Any, objective: Any, ceiling: Any, floor: Any) -> None:
    """Make the objective a sum of slacks over their own size: what is nearly active counts most (reweighted l1)."""
    objective[:] = 0.0
    for i in range(2 * n):
        weight = (1.0 if i < n else ceiling) / (max(walk.slack[i], 0.0) + floor)
        for j in range(objective.shape[0]):
            objective[j] += weight * walk.normals[i, j]
    objective /= np.sqrt(np.sum(objective * objective))


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _descend(
    walk: Walk, objective: Any, goal: Any, search: CornerSearch, missing: Any, corners: Any, tied: Any, count: Any
) -> Any:
    """Walk along falling edges to the least value; return why it ended, and the number of corners noted."""
    k = walk.point.shape[0]
    for _ in range(400):
        steepest, leaving = -1e-9, -1
        for j in range(k):
            slope = 0.0
            for i in range(k):
                slope += objective[i] * walk.edges[i, j]
            if slope < steepest:
                steepest, leaving = slope, j
        if leaving < 0:
            return OPTIMAL, count
        entering, step = _blocking(walk, leaving)
        if entering < 0:
            return UNBOUNDED, count
        _move(walk, leaving, entering, step)
        if entering == goal:
            return ARRIVED, count
        if goal < 0:
            count = _note(walk, search, missing, corners, tied, count)
    return EXHAUSTED, count


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _blocking(walk: Walk, leaving: Any) -> Any:
    """Return the constraint that ends an edge, or -1, and how far along the edge it is."""
    r, k = walk.normals.shape
    step, entering = np.inf, -1
    for i in range(r):
        rate = 0.0
        if not walk.is_active[i]:
            for j in range(k):
                rate += walk.normals[i, j] * walk.edges[j, leaving]
        walk.along[i] = rate
        if rate < -1e-11 and walk.slack[i] < -rate * step:
            step, entering = walk.slack[i] / -rate, i
    return entering, max(step, 0.0)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _move(walk: Walk, leaving: Any, entering: Any, step: Any) -> None:
    """Go to the end of an edge; the inverse of the active normals changes by a rank-one update."""
    k, left = walk.point.shape[0], walk.active[leaving]
    for j in range(k):
        walk.point[j] += step * walk.edges[j, leaving]
        walk.edges[j, leaving] /= walk.along[entering]
    for i in range(walk.slack.shape[0]):
        walk.slack[i] += step * walk.along[i]
    walk.slack[left], walk.slack[entering] = step, 0.0
    walk.is_active[left], walk.is_active[entering] = False, True
    walk.active[leaving] = entering
    for other in range(k):
        if other != leaving:
            share = 0.0
            for i in range(k):
                share += walk.normals[entering, i] * walk.edges[i, other]
            for i in range(k):
                walk.edges[i, other] -= share * walk.edges[i, leaving]


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _note(walk: Walk, search: CornerSearch, missing: Any, corners: Any, tied: Any, count: Any) -> Any:
    """Keep a corner of nearly unit norm in which more constraints meet than must; return how many are kept."""
    room, m = corners.shape
    norm = 0.0
    for j in range(m):
        norm += walk.point[j] * walk.point[j]
    if abs(norm - missing) > search.norm_tolerance:
        return count
    n = (walk.slack.shape[0] - 2 * m) // 2
    zeros = np.sum(walk.slack[:n] < search.near)
    ties = np.sum(walk.slack[n : 2 * n] < search.near)
    if zeros + ties < m + 3:
        return count
    for other in range(count):
        if np.sum((corners[other] - walk.point[:m]) ** 2) < 1e-6:
            return count
    if count < room:
        corners[count], tied[count] = walk.point[:m], ties
        return count + 1
    return count


ANGLES = 720


SECTIONS = 30


GOLDEN = 0.6180339887498949


STEPS = 20


DOUBLINGS = (3, 4, 5, 6, 7, 8)
"""p = 2^k for each of these, one after the other."""


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def least_in_planes(origin: Any, basis: Any, lengths: Any, room: Any) -> Any:
    """Return coefficients (N, room, 2) of the lowest valleys of the circles of given radii, and their values."""
    count = len(origin)
    minima, values = np.zeros((count, room, 2)), np.full((count, room), np.inf)
    scanned = np.empty(ANGLES)
    width = 2 * np.pi / ANGLES
    for row in range(count):
        p, b, r = origin[row], basis[row], lengths[row]
        for k in range(ANGLES):
            scanned[k] = _at_angle(p, b, r, k * width)
        for k in range(ANGLES):
            if scanned[k] <= scanned[k - 1] and scanned[k] <= scanned[(k + 1) % ANGLES]:
                angle, value = _section(p, b, r, (k - 1) * width, (k + 1) * width)
                _insert(minima[row], values[row], np.array([r * np.cos(angle), r * np.sin(angle)]), value)
    return minima, values


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def least_on_spheres(origin: Any, basis: Any, lengths: Any, starts: Any, room: Any) -> Any:
    """Return coefficients (N, room, m) of the lowest valleys that ``starts`` (S, m) descend to, and their values."""
    count, m, n = basis.shape
    minima, values = np.zeros((count, room, m)), np.full((count, room), np.inf)
    point, slope, trial = np.empty(n), np.empty(m), np.empty(m)
    for row in range(count):
        for start in starts:
            direction = start.copy()
            for doublings in DOUBLINGS:
                _descend_sphere(origin[row], basis[row], lengths[row], direction, doublings, point, slope, trial)
            _value_and_slope(origin[row], basis[row], lengths[row], direction, 0, point, slope)
            _insert(minima[row], values[row], lengths[row] * direction, np.abs(point).max())
    return minima, values


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _at_angle(p: Any, b: Any, r: Any, angle: Any) -> Any:
    c, s, top = r * np.cos(angle), r * np.sin(angle), 0.0
    for i in range(p.shape[0]):
        top = max(top, abs(p[i] + c * b[0, i] + s * b[1, i]))
    return top


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _section(p: Any, b: Any, r: Any, low: Any, high: Any) -> Any:
    """Return the angle of the least value between two, and that value."""
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = _at_angle(p, b, r, left), _at_angle(p, b, r, right)
    for _ in range(SECTIONS):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = _at_angle(p, b, r, left)
        else:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = _at_angle(p, b, r, right)
    middle = 0.5 * (low + high)
    return middle, _at_angle(p, b, r, middle)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _descend_sphere(p: Any, b: Any, r: Any, direction: Any, doublings: Any, point: Any, slope: Any, trial: Any) -> None:
    """Lower the p-norm of a point on the sphere, p = 2^doublings; ``direction`` (m,) is changed in place."""
    m = direction.shape[0]
    step, best = 4.0 / 2.0**doublings, np.inf
    trial[:] = direction
    gradient = np.zeros(m)
    for _ in range(STEPS):
        value = _value_and_slope(p, b, r, trial, doublings, point, slope)
        if value < best:
            best, step = value, 1.3 * step
            direction[:], gradient[:] = trial, slope
        else:
            step *= 0.4
        along = np.sum(gradient * direction)
        length = np.sqrt(max(np.sum(gradient * gradient) - along * along, 1e-24))
        for j in range(m):
            trial[j] = direction[j] - step * (gradient[j] - along * direction[j]) / length
        trial /= np.sqrt(np.sum(trial * trial))


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _value_and_slope(p: Any, b: Any, r: Any, direction: Any, doublings: Any, point: Any, slope: Any) -> Any:
    """Return the p-norm of a point, and set the direction in which it grows by the coefficients (m,)."""
    m, n = b.shape
    top = 0.0
    for i in range(n):
        value = p[i]
        for j in range(m):
            value += r * direction[j] * b[j, i]
        point[i] = value
        top = max(top, abs(value))
    total = 0.0
    slope[:] = 0.0
    for i in range(n):
        share = abs(point[i]) / top
        power = share
        for _ in range(doublings):
            power *= power
        if power < 1e-12:
            continue
        total += power
        weight = power / point[i]
        for j in range(m):
            slope[j] += weight * b[j, i]
    return np.log(top) + np.log(total) / 2.0**doublings


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _insert(minima: Any, values: Any, at: Any, value: Any) -> None:
    """Put a valley among the lowest that are apart from one another, in order."""
    room = values.shape[0]
    for k in range(room):
        if values[k] < np.inf and np.sum((minima[k] - at) ** 2) < 1e-3:
            if value < values[k]:
                minima[k], values[k] = at, value
            return
    last = room - 1
    if value >= values[last]:
        return
    while last > 0 and value < values[last - 1]:
        minima[last], values[last] = minima[last - 1], values[last - 1]
        last -= 1
    minima[last], values[last] = at, value
