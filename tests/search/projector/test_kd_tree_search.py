# SPDX-License-Identifier: Apache-2.0
import numpy as np

from sfumato.search.projector.kd_tree import grow
from sfumato.search.projector.kernels import search_tree


def test_a_query_far_outside_looks_at_few_points():
    points = np.random.default_rng(0).normal(size=(500, 3))
    queries = np.array([[50.0, 0, 0], [0.0, 0, 0]])
    rows, looked = np.full((2, 1), -1, np.int64), np.zeros(2, np.int64)
    search_tree(*grow(points), points, queries, 0.0, rows, looked)
    distances = np.linalg.norm(points[None] - queries[:, None], axis=2)
    assert np.array_equal(rows[:, 0], distances.argmin(axis=1))
    assert looked[0] < 100
    assert 0 < looked[1] < 500
