# SPDX-License-Identifier: Apache-2.0
"""Scans for points and by votes, and bounds of planes."""

import numpy as np
import pytest

import sfumato
from sfumato.search.inverted.byte_products import COARSE_STEPS, FINE_STEPS
from sfumato.search.inverted.cells import InvertedLists
from sfumato.search.inverted.codes import COARSE, HEAD, Axes, encode, encode_queries
from sfumato.search.inverted.scan_kernels import (
    PLANE,
    POINT,
    bound_planes,
    count_votes,
    distinct_rows,
    least_votes,
    rows_with_votes,
    scan_points,
    scan_voted,
    take_lowest,
)


@pytest.fixture(params=[0, 2, 3])
def lists_and_axes(lift_points, request):
    entries = lift_points(300, n=14, m=request.param).code
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
    entries = lift_points(200, n=48).code
    queries = lift_points(3, n=48, m=len(ones0), seed=5).code
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


# --- votes


def test_votes_are_counted_by_weight():
    offsets, members = np.array([0, 2, 2, 5]), np.array([0, 3, 1, 3, 4], np.int32)
    votes = np.zeros(6, np.uint8)
    assert count_votes(offsets, members, np.array([0, 2, 1], np.int32), np.array([5, 3, 1], np.uint8), votes) == 5
    assert votes.tolist() == [5, 3, 0, 8, 3, 0]


def test_the_most_voted_for_are_chosen():
    votes = np.zeros(300 + 64, np.uint8)
    votes[:300] = np.arange(300) % 10
    rows = np.empty(300, np.int32)
    least = least_votes(votes, 300, 70)
    assert least == 8, "30 have 9, 30 have 8, 30 have 7"
    found = rows_with_votes(votes, 300, least, rows)
    np.testing.assert_array_equal(rows[:found], np.flatnonzero(votes >= 8))


@pytest.mark.parametrize(("votes", "wanted", "least"), [(0, 10, 1), (255, 10, 255), (7, 10, 7), (7, 1000, 1)])
def test_entries_that_are_all_alike(votes, wanted, least):
    """Too many equals are taken all the same; without a vote nothing is."""
    table, rows = np.full(100 + 64, votes, np.uint8), np.empty(100, np.int32)
    table[100:] = 0
    assert least_votes(table, 100, wanted) == least
    assert rows_with_votes(table, 100, least, rows) == (100 if votes else 0)


@pytest.mark.parametrize(("m0", "m1"), [(2, 2), (1, 2), (2, 3)])
def test_on_all_axes_bounds_are_the_distances_of_votes(lift_points, m0, m1):
    entries, queries = lift_points(200, n=20, m=m1).code, lift_points(6, n=20, m=m0, seed=5).code
    axes = Axes.of(entries.origin, linear=False)
    cells = np.stack([np.arange(200) % 4, np.arange(200) % 3 + 4], axis=1).astype(np.int32)
    part = InvertedLists.of(0, cells, axes, entries.origin, entries.basis, 7)
    heads = axes.heads(queries.origin, queries.basis)
    (stacked, scales, norms), (first, first_scales, _) = encode_queries(heads), encode_queries(heads, COARSE)
    lows, rows = np.full((6, 200), np.inf, np.float32), np.full((6, 200), -1, np.int32)
    alive = np.ones(200, np.uint8)
    alive[5] = 0
    room = np.zeros(264, np.uint8), np.empty(200, np.int32), np.empty(200, np.float32)
    probes = np.tile(np.array([0, 1, 4], np.int32), (6, 1))
    weights = np.array([3, 2, 1], np.uint8)
    fine, coarse = (stacked.reshape(-1), scales), (first.reshape(-1), first_scales)
    bounded = scan_voted(part.compiled(), alive, fine, coarse, m0, probes, weights, 1.0, room, 200, lows, rows)
    asked = (np.arange(200) % 4 < 2) | (np.arange(200) % 3 == 0)
    assert bounded == 6 * asked.sum()
    assert not room[0].any()
    asked[5] = False
    assert set(rows[0]) == {-1, *np.flatnonzero(asked)}
    filled = rows[0] >= 0
    true = sfumato.squared_distances(queries, entries)
    for i in range(6):
        filled = rows[i] >= 0
        np.testing.assert_allclose(lows[i, filled] + norms[i], true[i, rows[i, filled]], atol=0.05)
