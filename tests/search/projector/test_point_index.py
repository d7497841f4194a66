# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.search.projector.embedding import FaissPoints, TreePoints

RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(400, 8)).astype(np.float32)
QUERIES = POINTS[:20] + 0.01 * RNG.normal(size=(20, 8)).astype(np.float32)


def make(method):
    return TreePoints(0.0, 1, 8) if method == "kdtree" else FaissPoints(method, 8, 10, 10)


@pytest.mark.parametrize("method", ["flat", "hnsw", "ivf", "kdtree"])
def test_points_are_found_added_and_passed_over(method):
    index, alive = make(method), np.ones(400, bool)
    index.add(POINTS[:300])
    index.add(POINTS[300:])
    rows, looked_at = index.find(QUERIES, 3, alive)
    assert rows.shape == (20, 3)
    assert rows[:, 0].tolist() == [*range(20)]
    assert looked_at > 0
    assert np.array_equal(index.points(), POINTS)
    alive[:10] = False
    rows, _ = index.find(QUERIES, 3, alive)
    assert not np.isin(rows, np.arange(10)).any()
    assert rows[10:, 0].tolist() == [*range(10, 20)]


@pytest.mark.parametrize("method", ["flat", "hnsw", "ivf", "kdtree"])
def test_fewer_points_than_asked_for(method):
    index = make(method)
    assert index.points().shape == (0, 8)
    index.add(POINTS[:2])
    rows, _ = index.find(QUERIES, 4, np.ones(2, bool))
    assert [sorted(row) for row in rows.tolist()] == [[-1, -1, 0, 1]] * 20
