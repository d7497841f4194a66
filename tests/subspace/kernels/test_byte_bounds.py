# SPDX-License-Identifier: Apache-2.0
"""Sums and brackets one by one; whole searches are in test_small_batch.py."""

import numba
import numpy as np
import pytest

from sfumato.subspace.kernels.byte_bounds import ByteSubspaces, ShortPoints, bracket_bytes, byte_dots


@numba.njit
def dots(points, batch, values, ones, sums):
    byte_dots(points, 0, batch, values, 0, points.size // len(batch) // 16, ones, sums)


@pytest.mark.parametrize(("count", "m"), [(1, 2), (2, 0), (3, 5)])
def test_products_of_shorts_and_bytes_are_exact(count, m):
    rng = np.random.default_rng(0)
    points = rng.integers(-8191, 8192, (count, 96)).astype(np.int16)
    values = rng.integers(-127, 128, (m + 1, 96)).astype(np.int8)
    sums = np.zeros(count * (m + 1), np.int32)
    dots(points.reshape(-1), (0,) * count, values.reshape(-1), (0,) * m, sums)
    assert np.array_equal(sums.reshape(count, m + 1), points.astype(np.int64) @ values.T.astype(np.int64))


def test_the_largest_numbers_do_not_overflow():
    points, values = np.full(2048, 8191, np.int16), np.full(2048, -127, np.int8)
    sums = np.zeros(1, np.int32)
    dots(points, (0,), values, (), sums)
    assert sums[0] == -8191 * 127 * 2048


def test_a_bracket_of_one_pair():
    """A point (3, 4, 0, ..) and the line through (0, 0, 1) along the first axis: 4^2 + 1."""
    values = np.zeros((1, 2, 16), np.int8)
    values[0, 0, 2], values[0, 1, 0] = 1, 1
    facts = np.array([[[1, 0.01, 1, 1], [1, 0, 1, 0]]], np.float32)
    point = np.zeros(16, np.int16)
    point[:2] = 3, 4
    points = ShortPoints(point, np.ones(1), np.zeros(1), np.array([5.0]))
    lows, tops = np.empty((1, 1), np.float32), np.full((1, 2), np.inf)
    bracket_bytes(points, ByteSubspaces(values.reshape(-1), facts), (0, 1), 1, (0,), (0,), lows, tops)
    slack = 2 * 5 * 0.01 + 1e-5 * 26
    assert np.allclose([lows[0, 0], tops[0, 0]], [17 - slack, 17 + slack], atol=1e-5)
    assert tops[0, 1] == np.inf
