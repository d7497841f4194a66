# SPDX-License-Identifier: Apache-2.0
"""Inner products of codes, row by row and eight at once, are exact."""

import numpy as np
import pytest
from numba import njit

from sfumato.search.inverted.byte_products import COARSE_STEPS, FINE_STEPS, byte_dot, group_dots


@njit
def dots(codes, at, query, query_at, steps=FINE_STEPS):
    return byte_dot(codes, at, query, query_at, steps)


@njit
def all_dots(codes, places, lane, ones1, query, query_at, ones0, steps, out):
    group_dots(codes, places, lane, ones1, query, query_at, ones0, steps, out)


def test_products_are_those_of_integers():
    rng = np.random.default_rng(0)
    codes = rng.integers(-127, 128, 200).astype(np.int8)
    query = rng.integers(-16383, 16384, 100).astype(np.int16)
    for at, query_at in ((0, 0), (12, 32), (33, 1), (168, 68)):
        expected = codes[at : at + 32].astype(np.int64) @ query[query_at : query_at + 32].astype(np.int64)
        assert dots(codes, at, query, query_at) == expected


def test_shorter_rows():
    rng = np.random.default_rng(1)
    codes, query = rng.integers(-127, 128, 40).astype(np.int8), rng.integers(-16383, 16384, 40).astype(np.int16)
    expected = codes[5:21].astype(np.int64) @ query[9:25].astype(np.int64)
    assert dots(codes, 5, query, 9, COARSE_STEPS) == expected


@pytest.mark.parametrize("steps", [COARSE_STEPS, FINE_STEPS])
@pytest.mark.parametrize("ones0", [(), (1,), (1, 1)])
def test_products_of_eight_codes_at_once(steps, ones0):
    rng, width, rows0 = np.random.default_rng(2), 16 * len(steps), len(ones0) + 1
    codes = rng.integers(-127, 128, (20, 3, width)).astype(np.int8)
    query = rng.integers(-16383, 16384, (rows0, width)).astype(np.int16)
    places, out = rng.permutation(20)[:16] * 3 * width, np.zeros((3 * rows0, 16), np.int32)
    all_dots(codes.reshape(-1), places, 8, (1, 1), query.reshape(-1), 0, ones0, steps, out)
    assert not out[:, :8].any()
    chosen = codes[places[8:] // (3 * width)].astype(np.int64)
    expected = np.einsum("erw,cw->rce", chosen, query.astype(np.int64)).reshape(3 * rows0, 8)
    np.testing.assert_array_equal(out[:, 8:], expected)


def test_the_largest_products_fit():
    codes, query = np.full(32, -127, np.int8), np.full(32, 16383, np.int16)
    assert dots(codes, 0, query, 0) == -127 * 16383 * 32
