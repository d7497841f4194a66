# SPDX-License-Identifier: Apache-2.0
"""Compiled loops: nearest cells, codes of queries, scans, exact ranks."""

import numpy as np
import pytest

import sfumato
from sfumato.search.inverted.cells import InvertedLists
from sfumato.search.inverted.codes import Axes, encode_queries
from sfumato.search.inverted.kernels import encode_rows, fill_lists, nearest_cells, order_cells, scan, settle, sift_down


@pytest.fixture
def lists_and_axes(lift_points):
    entries = lift_points(200, n=20).code
    axes = Axes.of(entries.origin, linear=False)
    cells = np.stack([np.arange(200) % 4, np.arange(200) % 3 + 4], axis=1).astype(np.int32)
    return entries, axes, InvertedLists.of(0, cells, axes, entries.origin, entries.basis, 7)


def run_scan(lists_and_axes, queries, probes, kept, alive=None, linear=False):
    _, axes, part = lists_and_axes
    stacked, scales, norms = encode_queries(axes.heads(queries.origin, queries.basis))
    lows, rows = np.full((len(queries), kept), np.inf, np.float32), np.full((len(queries), kept), -1, np.int32)
    marks = np.zeros(len(part) // 64 + 1, np.uint64)
    alive = np.ones(len(part), np.uint8) if alive is None else alive
    asked = np.tile(np.array(probes, np.int32), (len(queries), 1))
    m0 = queries.dim
    bounded = scan(part.compiled(), alive, stacked.reshape(-1), scales, m0, asked, linear, marks, lows, rows)
    assert not marks.any()
    return lows + norms[:, None], rows, bounded


@pytest.mark.parametrize("m0", [0, 1, 2, 3])
def test_on_all_axes_bounds_are_the_distances(lists_and_axes, lift_points, m0):
    """Of 20 dimensions nothing is projected away: only the rounding to bytes is left."""
    queries = lift_points(6, n=20, m=m0, seed=5).code
    lows, rows, bounded = run_scan(lists_and_axes, queries, range(7), 200)
    assert bounded == 6 * 200, "every entry once, though each is in two lists"
    true = np.take_along_axis(sfumato.squared_distances(queries, lists_and_axes[0]), rows.astype(int), axis=1)
    np.testing.assert_allclose(lows, true, atol=0.04)


def test_only_probed_lists_are_looked_into_and_only_the_best_kept(lists_and_axes, lift_points):
    queries = lift_points(3, n=20, m=0, seed=6).code
    lows, rows, bounded = run_scan(lists_and_axes, queries, [1], 10)
    assert bounded == 3 * 50
    assert (rows % 4 == 1).all()
    every = run_scan(lists_and_axes, queries, [1], 50)[0]
    np.testing.assert_allclose(np.sort(lows), np.sort(every)[:, :10])


def test_removed_entries_are_not_kept(lists_and_axes, lift_points):
    alive = np.ones(200, np.uint8)
    alive[::2] = 0
    rows = run_scan(lists_and_axes, lift_points(3, n=20, m=0).code, range(7), 200, alive)[1]
    assert set(rows[0]) == {-1, *range(1, 200, 2)}


def test_settling_gives_the_nearest_in_order(lists_and_axes, lift_points):
    entries, queries = lists_and_axes[0], lift_points(4, n=20, m=1, seed=8).code
    lows, rows, _ = run_scan(lists_and_axes, queries, range(7), 200)
    best, where = np.full((4, 5), np.inf), np.full((4, 5), -1, np.int64)
    sides = ((queries.origin.reshape(-1), queries.basis.reshape(-1), 1),
             (entries.origin.reshape(-1), entries.basis.reshape(-1), 2))  # fmt: skip
    shift, zeros = np.zeros(4, np.float32), np.zeros((4, 2))
    evaluated = settle(*sides, 20, lows, rows, shift, 0.2, zeros, best, where)
    true = sfumato.squared_distances(queries, entries)
    np.testing.assert_array_equal(where, np.argsort(true, axis=1)[:, :5])
    np.testing.assert_allclose(best, np.sort(true, axis=1)[:, :5], atol=1e-9)
    assert 20 <= evaluated < 4 * 200, "bounds must save something"


def test_the_best_cosines_are_kept_for_angles(lists_and_axes, lift_points):
    queries = lift_points(3, n=20, m=1, seed=2).code
    rows = run_scan(lists_and_axes, queries, range(7), 20, linear=True)[1]
    cosines = (np.einsum("qi,nmi->qnm", queries.basis[:, 0], lists_and_axes[0].basis) ** 2).sum(axis=2)
    for mine, line in zip(rows, cosines, strict=True):
        assert np.argmax(line) in mine


# --- cells


def test_the_heap_keeps_the_least():
    rng = np.random.default_rng(0)
    values = rng.standard_normal(500).astype(np.float32)
    keys, rows = np.full(20, np.inf, np.float32), np.full(20, -1, np.int32)
    for row, value in enumerate(values):
        if value < keys[0]:
            sift_down(keys, rows, 0, 20, value, np.int32(row))
    assert keys[0] == keys.max()
    assert set(rows) == set(np.argsort(values)[:20])


def test_cells_by_their_distance_to_planes():
    rng = np.random.default_rng(1)
    stack, centres = rng.standard_normal((5, 3, 12)).astype(np.float32), rng.standard_normal((90, 12))
    stack[:, 1:] = np.linalg.qr(stack[:, 1:].transpose(0, 2, 1))[0].transpose(0, 2, 1)
    stack[:, 0] -= np.einsum("qk,qki->qi", np.einsum("qki,qi->qk", stack[:, 1:], stack[:, 0]), stack[:, 1:])
    apart = centres[None] - stack[:, None, 0]
    squared = (apart**2).sum(axis=2) - (np.einsum("qci,qki->qck", apart, stack[:, 1:]) ** 2).sum(axis=2)
    expected = np.argsort(squared, axis=1)[:, :7]

    centred, norms = centres.astype(np.float32), (centres**2).sum(axis=1).astype(np.float32)
    found = np.zeros((5, 7), np.int32)
    nearest_cells(stack.reshape(-1, 12) @ centred.T, norms, 3, 7, True, found)
    np.testing.assert_array_equal(found, expected)
    likely = np.tile(rng.permutation(90).astype(np.int32), (5, 1))
    order_cells(stack, centred, norms, likely, found)
    np.testing.assert_array_equal(found, expected)


def test_lists_hold_every_entry_under_its_cells():
    cells = np.array([[0, 2], [2, 1], [0, 1]], np.int32)
    members = np.full(6, -1, np.int32)
    fill_lists(cells, np.array([0, 2, 4]), members)
    assert members.tolist() == [0, 2, 1, 2, 0, 1]


# --- queries


def encoded(heads, width):
    count, stack = heads.shape[:2]
    rows, scales = np.zeros((count, stack, width), np.int16), np.zeros((count, 2), np.float32)
    norms = np.zeros(count, np.float32)
    encode_rows(heads, rows, scales, norms)
    return rows[:, 0] * scales[:, :1], rows[:, 1:] * scales[:, 1, None, None], norms


def test_directions_are_orthonormal_and_the_origin_orthogonal():
    heads = np.random.default_rng(0).standard_normal((4, 4, 32)).astype(np.float32)
    for width in (16, 32):
        origin, basis, norms = encoded(heads, width)
        np.testing.assert_allclose(np.einsum("qri,qsi->qrs", basis, basis), np.tile(np.eye(3), (4, 1, 1)), atol=1e-3)
        np.testing.assert_allclose(np.einsum("qri,qi->qr", basis, origin), 0, atol=2e-3)
        np.testing.assert_allclose((origin**2).sum(axis=1), norms, rtol=1e-3)


def test_what_spans_fewer_dimensions_is_zero():
    heads = np.zeros((1, 4, 32), np.float32)
    heads[0, 0, 0], heads[0, 1, 1], heads[0, 2, 1] = 3, 2, -1
    origin, basis, norms = encoded(heads, 16)
    np.testing.assert_allclose(origin[0], heads[0, 0, :16], rtol=1e-3)
    np.testing.assert_allclose(basis[0], [np.eye(16)[1], np.zeros(16), np.zeros(16)], atol=1e-3)
    np.testing.assert_allclose(norms, 9, rtol=1e-6)
