# SPDX-License-Identifier: Apache-2.0
"""Masks and minima of 64 bytes, bit by bit."""

import numpy as np
import pytest
from numba import njit

from sfumato.subspace.kernels.byte_bounds import SCAN_WIDTH, at_most, bit_count, lower, lowest_bit


@njit
def scan(line, at, cuts, least):
    lower(line, at, least)
    mask = at_most(line, at, cuts)
    return mask, bit_count(mask), lowest_bit(mask) if mask else -1


@pytest.mark.parametrize("at", [0, 3, 70])
@pytest.mark.parametrize("cut", [0, 1, 127, 128, 254, None])
def test_every_byte_is_compared_with_its_own(at, cut):
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
