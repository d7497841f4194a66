# SPDX-License-Identifier: Apache-2.0
"""Points of a sphere in a subspace whose largest absolute coordinate is locally least; compiled.

In planes the circle is scanned and every valley searched by golden sections; beyond, random starts descend p-norms of
growing p. Knows arrays only. Imported only by ``bounded``.
"""

from typing import Any

import numpy as np
from numba import njit

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
    found, values = np.zeros((count, room, 2)), np.full((count, room), np.inf)
    scanned = np.empty(ANGLES)
    width = 2 * np.pi / ANGLES
    for row in range(count):
        p, b, r = origin[row], basis[row], lengths[row]
        for k in range(ANGLES):
            scanned[k] = _at_angle(p, b, r, k * width)
        for k in range(ANGLES):
            if scanned[k] <= scanned[k - 1] and scanned[k] <= scanned[(k + 1) % ANGLES]:
                angle, value = _section(p, b, r, (k - 1) * width, (k + 1) * width)
                _insert(found[row], values[row], np.array([r * np.cos(angle), r * np.sin(angle)]), value)
    return found, values


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def least_on_spheres(origin: Any, basis: Any, lengths: Any, starts: Any, room: Any) -> Any:
    """Return coefficients (N, room, m) of the lowest valleys that ``starts`` (S, m) descend to, and their values."""
    count, m, n = basis.shape
    found, values = np.zeros((count, room, m)), np.full((count, room), np.inf)
    point, slope, trial = np.empty(n), np.empty(m), np.empty(m)
    for row in range(count):
        for start in starts:
            direction = start.copy()
            for doublings in DOUBLINGS:
                _descend(origin[row], basis[row], lengths[row], direction, doublings, point, slope, trial)
            _value_and_slope(origin[row], basis[row], lengths[row], direction, 0, point, slope)
            _insert(found[row], values[row], lengths[row] * direction, np.abs(point).max())
    return found, values


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
def _descend(p: Any, b: Any, r: Any, direction: Any, doublings: Any, point: Any, slope: Any, trial: Any) -> None:
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
def _insert(found: Any, values: Any, at: Any, value: Any) -> None:
    """Put a valley among the lowest that are apart from one another, in order."""
    room = values.shape[0]
    for k in range(room):
        if values[k] < np.inf and np.sum((found[k] - at) ** 2) < 1e-3:
            if value < values[k]:
                found[k], values[k] = at, value
            return
    last = room - 1
    if value >= values[last]:
        return
    while last > 0 and value < values[last - 1]:
        found[last], values[last] = found[last - 1], values[last - 1]
        last -= 1
    found[last], values[last] = at, value
