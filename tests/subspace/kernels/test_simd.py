# SPDX-License-Identifier: Apache-2.0
"""Vector instructions: arithmetic, inner products of integers, borrowed arrays, scans of bytes."""

import itertools
import sys
from typing import NamedTuple

import numpy as np
import pytest
from numba import njit, types
from numba.extending import intrinsic

from sfumato.subspace.kernels.panels import UNIT
from sfumato.subspace.kernels.simd import (
    BLOCK,
    INT64,
    LANES,
    SCAN_WIDTH,
    at_most,
    bit_count,
    borrow,
    fetch,
    group_dots,
    load_floats,
    load_ints,
    lower,
    lowest_bit,
    pair_dots,
    pointers,
    repeat,
)


@intrinsic
def everything(_context, x, y, count, number, out, small):
    """Fill out (8, 8) with one result per row, and small (8,) with bytes."""

    def generate(context, builder, concrete, args):
        x_data, y_data, count_data, out_data, small_data = pointers(context, builder, concrete, args, (0, 1, 2, 4, 5))
        at = INT64(0)
        x, y, count = (
            load(builder, data, at)
            for load, data in ((load_floats, x_data), (load_floats, y_data), (load_ints, count_data))
        )
        results = [
            x + y * 2.0,
            x - count,
            x / y,
            y.inverse(),
            x.least(y),
            x.greatest(0.0),
            y.where_above(1.0, -7.0)(x),
            repeat(builder, args[3]) * count,
        ]
        for row, result in enumerate(results):
            result.store(out_data, INT64(row * LANES))
        count.store_bytes(small_data, at)
        return context.get_dummy_value()

    return types.void(x, y, count, number, out, small), generate


@njit
def run_everything(x, y, count, number, out, small):
    everything(x, y, count, number, out, small)


def test_eight_at_once_are_one_by_one():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, LANES)).astype(np.float32)
    y += np.sign(y)
    count = np.array([0, 1, 2, 127, 128, 200, 254, 255], np.int32)
    out, small = np.zeros((8, LANES), np.float32), np.zeros(LANES, np.uint8)
    run_everything(x, y, count, np.float32(0.5), out.reshape(-1), small)
    expected = [
        x + 2 * y,
        x - count,
        x / y,
        1 / y,
        np.minimum(x, y),
        np.maximum(x, 0),
        np.where(y > 1, x, -7),
        count / 2,
    ]
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(small, count)


# --- inner products


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
        totals = sums[5:].reshape(BLOCK, m1 + 1, LANES)
        want = products(rows[first : first + BLOCK], columns[1].reshape(-1, 10)).reshape(BLOCK, LANES, m1 + 1)
        np.testing.assert_array_equal(totals, want.transpose(0, 2, 1))
    assert (sums[:5] == 99).all()


@pytest.mark.parametrize("m", [(0, 0), (1, 4)])
def test_a_pair_of_stacks(m):
    rng = np.random.default_rng(sum(m))
    sides = [unit_rows(rng, 3, k + 1, 48) for k in m]
    sides[1][2, 0] = sides[0][0, 0]
    sums = np.full((m[0] + 1, m[1] + 1, LANES), 99, np.int32)
    places = [row * (k + 1) * 48 for row, k in zip((0, 2), m, strict=True)]
    rows = [side.reshape(-1) for side in sides]
    of_pair(rows[0], places[0], rows[1], places[1], 3, (0,) * m[0], (0,) * m[1], sums.reshape(-1), 6)
    np.testing.assert_array_equal(sums[:, :, 6], products(sides[0][0], sides[1][2]))
    assert (np.delete(sums, 6, axis=2) == 99).all()


# --- borrowed arrays


class Pair(NamedTuple):
    values: np.ndarray
    weight: float


@njit
def write(pair, at, value):
    same, number = borrow((pair, at))
    same.values[number] = value * same.weight
    return same.values[number]


@njit
def many_times(values):
    values = borrow(values)
    total = 0.0
    for _ in range(100):
        total += values[1:].sum()
    return total


def test_a_borrowed_array_is_the_same_array():
    values = np.zeros(4)
    assert write(Pair(values, 2.0), 3, 5.0) == 10
    np.testing.assert_array_equal(values, [0, 0, 0, 10])


def test_borrowing_takes_no_reference_and_frees_none():
    values = np.arange(5.0)
    before = sys.getrefcount(values)
    assert many_times(values) == 1000
    assert sys.getrefcount(values) == before
    np.testing.assert_array_equal(values, np.arange(5.0))


# --- scans of bytes


@njit
def scan(line, at, cuts, least):
    lower(line, at, least)
    mask = at_most(line, at, cuts)
    return mask, bit_count(mask), lowest_bit(mask) if mask else -1


def test_every_byte_is_compared_with_its_own():
    for at, cut in itertools.product([0, 3, 70], [0, 1, 127, 128, 254, None]):
        check_scan(at, cut)


def check_scan(at, cut):
    rng = np.random.default_rng(at)
    line = rng.integers(256, size=at + SCAN_WIDTH).astype(np.uint8)
    cuts = rng.integers(256, size=SCAN_WIDTH) if cut is None else np.full(SCAN_WIDTH, cut)
    least = rng.integers(256, size=SCAN_WIDTH).astype(np.uint8)
    here = line[at:] <= cuts
    expected = np.minimum(least, line[at:])
    mask, count, first = scan(line, at, cuts.astype(np.uint8), least)
    assert [(int(mask) >> bit) & 1 for bit in range(SCAN_WIDTH)] == here.astype(int).tolist()
    assert count == here.sum()
    assert first == (here.argmax() if here.any() else -1)
    np.testing.assert_array_equal(least, expected)
