# SPDX-License-Identifier: Apache-2.0
"""Lent arrays are the same arrays, and nobody counts them."""

import sys
from typing import NamedTuple

import numpy as np
from numba import njit

from sfumato.subspace.kernels.simd import borrowed


class Pair(NamedTuple):
    values: np.ndarray
    weight: float


@njit
def write(pair, at, value):
    lent, number = borrowed((pair, at))
    lent.values[number] = value * lent.weight
    return lent.values[number]


@njit
def many_times(values):
    values = borrowed(values)
    total = 0.0
    for _ in range(100):
        total += values[1:].sum()
    return total


def test_what_is_lent_is_written_through():
    values = np.zeros(4)
    assert write(Pair(values, 2.0), 3, 5.0) == 10
    np.testing.assert_array_equal(values, [0, 0, 0, 10])


def test_lending_takes_no_reference_and_frees_none():
    values = np.arange(5.0)
    before = sys.getrefcount(values)
    assert many_times(values) == 1000
    assert sys.getrefcount(values) == before
    np.testing.assert_array_equal(values, np.arange(5.0))
