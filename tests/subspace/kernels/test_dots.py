# SPDX-License-Identifier: Apache-2.0
"""Sums of products of 16-bit integers, exact up to the largest that occur."""

import numpy as np
import pytest
from numba import njit

from sfumato.subspace.kernels.panels import UNIT
from sfumato.subspace.kernels.simd import BLOCK, LANES, fetch, group_dots, pair_dots


@njit
def of_group(a, a_at, pairs, b, b_at, ones1, sums, sums_at):
    group_dots(a, a_at, pairs, b, b_at, ones1, sums, sums_at)


@njit
def of_pair(a, a_at, b, b_at, steps, ones0, ones1, sums, lane):
    fetch(b, b_at)
    pair_dots(a, a_at, b, b_at, steps, ones0, ones1, sums, lane)


def unit_rows(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Rows of length UNIT, the first of them along an axis: the largest products there are."""
    rows = rng.normal(size=shape)
    rows *= UNIT / np.linalg.norm(rows, axis=-1, keepdims=True)
    rows.reshape(-1, shape[-1])[0] = 0
    rows.reshape(-1, shape[-1])[0, -1] = -UNIT
    return np.rint(rows).astype(np.int16)


def products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.int64) @ b.astype(np.int64).T


@pytest.mark.parametrize("m1", [0, 4])
def test_three_rows_with_a_group_of_columns(m1):
    rng = np.random.default_rng(m1)
    rows, columns = unit_rows(rng, 2 * BLOCK, 10), unit_rows(rng, 2, LANES, m1 + 1, 10)
    columns[1, 0, 0] = rows[0]
    laid = np.ascontiguousarray(columns.view(np.int32).transpose(0, 3, 2, 1))  # groups, pairs, stack, lanes
    sums = np.full(5 + BLOCK * (m1 + 1) * LANES, 99, np.int32)
    for first in (0, BLOCK):
        of_group(rows.reshape(-1).view(np.int32), first * 5, 5, laid.reshape(-1), laid[0].size, (0,) * m1, sums, 5)
        found = sums[5:].reshape(BLOCK, m1 + 1, LANES)
        want = products(rows[first : first + BLOCK], columns[1].reshape(-1, 10)).reshape(BLOCK, LANES, m1 + 1)
        np.testing.assert_array_equal(found, want.transpose(0, 2, 1))
    assert (sums[:5] == 99).all()


@pytest.mark.parametrize("m", [(0, 0), (1, 4)])
def test_a_pair_of_stacks(m):
    rng = np.random.default_rng(sum(m))
    sides = [unit_rows(rng, 3, k + 1, 48) for k in m]
    sides[1][2, 0] = sides[0][0, 0]
    sums = np.full((m[0] + 1, m[1] + 1, LANES), 99, np.int32)
    places = [row * (k + 1) * 48 for row, k in zip((0, 2), m, strict=True)]
    of_pair(
        sides[0].reshape(-1),
        places[0],
        sides[1].reshape(-1),
        places[1],
        3,
        (0,) * m[0],
        (0,) * m[1],
        sums.reshape(-1),
        6,
    )
    np.testing.assert_array_equal(sums[:, :, 6], products(sides[0][0], sides[1][2]))
    assert (np.delete(sums, 6, axis=2) == 99).all()
