# SPDX-License-Identifier: Apache-2.0
"""The scan for points, and bounds of planes."""

import numpy as np
import pytest

import sfumato
from sfumato.search.inverted.byte_products import COARSE_STEPS, FINE_STEPS
from sfumato.search.inverted.cells import InvertedLists
from sfumato.search.inverted.codes import COARSE, HEAD, Axes, encode, encode_queries
from sfumato.search.inverted.point_kernels import PLANE, POINT, bound_planes, distinct_rows, scan_points, take_lowest


@pytest.fixture(params=[0, 2, 3])
def lists_and_axes(lift_points, request):
    entries = lift_points(300, n=14, m=request.param).subspaces
    axes = Axes.of(entries.origin, linear=False)
    cells = np.stack([np.arange(300) % 4, np.arange(300) % 3 + 4], axis=1).astype(np.int32)
    return entries, axes, InvertedLists.of(0, cells, axes, entries.origin, entries.basis, 7)


def run_scan(lists_and_axes, points, probes, left, kept=40, alive=None):
    entries, axes, part = lists_and_axes
    heads = axes.heads(points, np.zeros((len(points), 0, 14), np.float32))
    (fine, scales, norms), (coarse, coarse_scales, _) = encode_queries(heads), encode_queries(heads, COARSE)
    lows, rows = np.full((len(points), kept), np.inf, np.float32), np.full((len(points), kept), -1, np.int32)
    marks, room = np.zeros(len(part) // 64 + 1, np.uint64), (np.empty(301, np.float32), np.empty(301, np.int32))
    alive = np.ones(len(part), np.uint8) if alive is None else alive
    asked = np.tile(np.array(probes, np.int32), (len(points), 1))
    queries = (fine.reshape(-1), scales), (coarse.reshape(-1), coarse_scales)
    bounded = scan_points(part.compiled(), alive, *queries, asked, marks, room, left, lows, rows)
    assert not marks.any()
    return lows + norms[:, None], rows, bounded, sfumato.squared_distances(points, entries)


@pytest.mark.parametrize("left", [1000, 100])
def test_on_all_axes_bounds_are_the_distances(lists_and_axes, lift_points, left):
    """Of 14 dimensions nothing is projected away, so that coarse codes leave what is near, up to rounding."""
    points = lift_points(6, n=14, seed=5).points
    lows, rows, bounded, true = run_scan(lists_and_axes, points, range(7), left)
    assert bounded == 6 * 300, "every entry once, though each is in two lists"
    np.testing.assert_allclose(lows, np.take_along_axis(true, rows.astype(int), axis=1), atol=0.04)
    for mine, line in zip(rows, true, strict=True):
        assert set(np.argsort(line)[:10]) <= set(mine)


def test_only_probed_lists_and_entries_that_are_not_removed(lists_and_axes, lift_points):
    alive = np.ones(300, np.uint8)
    alive[1::8] = 0
    _, rows, bounded, _ = run_scan(lists_and_axes, lift_points(3, n=14, seed=6).points, [1], 1000, 80, alive)
    wanted = {row for row in range(1, 300, 4) if row % 8 != 1}
    assert bounded == 3 * len(wanted)
    assert all(set(mine) == {-1, *wanted} for mine in rows)


def test_nothing_in_the_lists():
    offsets, members = np.array([0, 0, 2]), np.array([1, 0], np.int32)
    marks, rows = np.zeros(1, np.uint64), np.zeros(3, np.int32)
    assert distinct_rows(offsets, members, np.array([0], np.int32), np.ones(2, np.uint8), marks, rows) == 0
    assert distinct_rows(offsets, members, np.array([1, 1], np.int32), np.ones(2, np.uint8), marks, rows) == 2


def test_about_so_many_of_the_lowest_are_taken():
    rng = np.random.default_rng(0)
    lows = rng.standard_normal(20_000).astype(np.float32)
    rows = np.arange(20_000, dtype=np.int32)
    count = take_lowest(lows, rows, 20_000, 600)
    assert 300 < count < 1000
    np.testing.assert_array_equal(np.sort(rows[:count]), np.sort(np.argsort(lows)[:count]))
    assert take_lowest(lows, rows, 500, 600) == 500
    assert take_lowest(np.zeros(5000, np.float32), rows, 5000, 600) == 5000, "equals are all taken"


# --- planes


@pytest.mark.parametrize(("width", "steps"), [(COARSE, COARSE_STEPS), (HEAD, FINE_STEPS)])
@pytest.mark.parametrize("ones0", [POINT, PLANE])
@pytest.mark.parametrize("count", [1, 64, 150])
def test_bounds_are_the_distances_on_the_axes(lift_points, width, steps, ones0, count):
    entries = lift_points(200, n=48).subspaces
    queries = lift_points(3, n=48, m=len(ones0), seed=5).subspaces
    axes = Axes.of(entries.origin, linear=False)
    codes = encode(axes, entries.origin, entries.basis, width)
    flat = codes.reshape(-1), codes.reshape(-1).view(np.float32), codes.shape[1]
    rows, scales, norms = encode_queries(axes.heads(queries.origin, queries.basis), width)
    chosen, near = np.random.default_rng(0).permutation(200)[:count].astype(np.int32), np.full(160, np.nan, np.float32)
    for i in range(3):
        bound_planes(flat, (rows.reshape(-1), scales), i, ones0, chosen, steps, near)
        assert np.isnan(near[count:]).all(), "nothing is written beyond"
        whole = sfumato.Subspaces(*axes.project(queries.origin[i : i + 1], queries.basis[i : i + 1], width))
        others = sfumato.Subspaces(*axes.project(entries.origin[chosen], entries.basis[chosen], width))
        np.testing.assert_allclose(near[:count] + norms[i], sfumato.squared_distances(whole, others)[0], atol=0.05)
