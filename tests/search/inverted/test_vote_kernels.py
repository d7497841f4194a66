# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import sfumato
from sfumato.search.inverted.cells import InvertedLists
from sfumato.search.inverted.codes import COARSE, Axes, encode_queries
from sfumato.search.inverted.vote_kernels import count_votes, least_votes, rows_with_votes, scan_voted


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
def test_on_all_axes_bounds_are_the_distances(lift_points, m0, m1):
    entries, queries = lift_points(200, n=20, m=m1).subspaces, lift_points(6, n=20, m=m0, seed=5).subspaces
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
