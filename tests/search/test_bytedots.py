# SPDX-License-Identifier: Apache-2.0
import numpy as np
from numba import njit

from sfumato.search.bytedots import byte_dot


@njit
def dots(codes, at, query, query_at):
    return byte_dot(codes, at, query, query_at)


def test_products_are_those_of_integers():
    rng = np.random.default_rng(0)
    codes = rng.integers(-127, 128, 200).astype(np.int8)
    query = rng.integers(-16383, 16384, 100).astype(np.int16)
    for at, query_at in ((0, 0), (12, 32), (33, 1), (168, 68)):
        expected = codes[at : at + 32].astype(np.int64) @ query[query_at : query_at + 32].astype(np.int64)
        assert dots(codes, at, query, query_at) == expected


def test_the_largest_products_fit():
    codes, query = np.full(32, -127, np.int8), np.full(32, 16383, np.int16)
    assert dots(codes, 0, query, 0) == -127 * 16383 * 32
