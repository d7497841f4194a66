# SPDX-License-Identifier: Apache-2.0
"""Votes, and scans of lists followed by exact ranks."""

import numpy as np
import pytest

import sfumato
from sfumato.search.entries import read_blocks
from sfumato.search.inverted.cells import InvertedLists
from sfumato.search.inverted.codes import Axes
from sfumato.search.inverted.scan import rank_exactly, scan_lists, vote_weights


@pytest.mark.parametrize("voters", [2, 5, 32, 85, 86, 100, 128, 200, 254, 255])
def test_all_votes_together_fit_a_byte(voters):
    weights = vote_weights(voters).astype(int)
    assert weights.sum() <= 255
    assert weights.min() >= 1
    assert (np.diff(weights) <= 0).all(), "the nearest cell counts most"


@pytest.fixture
def lists_and_axes(lift_points):
    entries = lift_points(300, n=20).code
    axes = Axes.of(entries.origin, linear=False)
    cells = np.stack([np.arange(300) % 5, np.arange(300) % 7 + 5], axis=1).astype(np.int32)
    return entries, axes, InvertedLists.of(0, cells, axes, entries.origin, entries.basis, 12)


@pytest.mark.parametrize("m0", [0, 2])
def test_scanning_all_lists_and_ranking_gives_the_nearest(lists_and_axes, lift_points, m0):
    entries, axes, part = lists_and_axes
    queries = lift_points(5, n=20, m=m0, seed=5).code
    block = read_blocks(queries, "queries").blocks[0]
    probes = np.tile(np.arange(12, dtype=np.int32), (5, 1))
    heads = axes.heads(block.origin, block.basis)
    candidates = scan_lists(part, np.ones(300, np.uint8), heads, probes, 3, linear=False)
    best, where, evaluated = rank_exactly(block, (entries.origin, entries.basis), candidates, 3)
    true = sfumato.squared_distances(queries, entries)
    rows = np.arange(5)[:, None]
    np.testing.assert_allclose(best, true[rows, where], atol=1e-9)
    if m0 == 0:  # all entries are bounded; for subspaces only those with many votes are
        np.testing.assert_array_equal(where, np.argsort(true, axis=1)[:, :3])
        assert candidates.looked_at == 5 * 300
    else:
        assert candidates.looked_at <= 5 * 0.5 * 600
    assert 15 <= evaluated <= 5 * 300
