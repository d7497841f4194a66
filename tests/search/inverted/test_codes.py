# SPDX-License-Identifier: Apache-2.0
"""Codes of entries and queries: projection, rounding, layout."""

import numpy as np
import pytest

import sfumato
from sfumato.search.inverted.codes import COARSE, HEAD, LINE, Axes, code_bytes, encode, encode_queries
from sfumato.subspace import reference


@pytest.mark.parametrize("n", [8, 48])
def test_projected_distances_are_never_greater(lift_points, n):
    entries, queries = lift_points(60, n=n).code, lift_points(20, n=n, m=1, seed=3).code
    axes = Axes.of(entries.origin, linear=False)
    heads = [sfumato.Subspaces(*axes.project(side.origin, side.basis)) for side in (entries, queries)]
    low, true = sfumato.squared_distances(*heads), sfumato.squared_distances(entries, queries)
    assert (low <= true + 1e-6).all()
    if n <= HEAD:
        np.testing.assert_allclose(low, true, atol=1e-5)


@pytest.mark.parametrize("width", [COARSE, HEAD])
def test_codes_hold_what_they_say(lift_points, width):
    given = lift_points(30, n=48).code
    axes = Axes.of(given.origin, linear=False)
    codes = encode(axes, given.origin, given.basis, width)
    assert codes.shape == (30, code_bytes(2, width))
    assert codes.ctypes.data % LINE == code_bytes(2, width) % LINE == 0
    meta = codes[:, :12].copy().view(np.float32)
    offset, heads = axes.project(given.origin, given.basis, width)
    np.testing.assert_allclose(meta[:, 0], (offset**2).sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(codes[:, 12 : 12 + width] * meta[:, 1:2], offset, atol=meta[:, 1].max())
    rows = codes[:, 12 + width : 12 + 3 * width].reshape(30, 2, width) * meta[:, 2, None, None]
    np.testing.assert_allclose(rows, heads, atol=meta[:, 2].max())


def test_the_coarse_code_of_a_plane_is_one_line():
    assert code_bytes(2, COARSE) == LINE


@pytest.mark.parametrize("width", [COARSE, HEAD])
def test_queries_are_rounded_finer(lift_points, width):
    given = lift_points(10, n=48).code
    axes = Axes.of(given.origin, linear=False)
    stacked, scales, norms = encode_queries(axes.heads(given.origin, given.basis), width)
    offset, heads = axes.project(given.origin, given.basis, width)
    assert stacked.dtype == np.int16
    np.testing.assert_allclose(stacked[:, 0] * scales[:, :1], offset, atol=1e-3)
    np.testing.assert_allclose(stacked[:, 1:] * scales[:, 1, None, None], heads, atol=1e-3)
    np.testing.assert_allclose(norms, reference.squared_distances(offset, np.zeros((1, width)))[:, 0], rtol=1e-5)


def test_points_and_nothing_have_codes():
    axes = Axes.of(np.zeros((0, 5), np.float32), linear=False)
    assert encode(axes, np.zeros((0, 5), np.float32), np.zeros((0, 0, 5), np.float32)).shape == (0, code_bytes(0))
    zero = encode(axes, np.zeros((1, 5), np.float32), np.zeros((1, 0, 5), np.float32))
    assert not zero[:, 12:].any()


def test_linear_axes_go_through_zero(lift_points):
    assert not Axes.of(lift_points(50, n=8).points, linear=True).mean.any()
