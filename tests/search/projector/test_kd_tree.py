# SPDX-License-Identifier: Apache-2.0
"""The kd-tree gives what scipy's search gives, and counts."""

import numpy as np
import pytest
from scipy.spatial import cKDTree

from sfumato.search.projector.embedding import PUBLISHED_EPS, grow, nearest
from sfumato.search.projector.kernels import search_tree

RNG = np.random.default_rng(0)
POINTS, QUERIES = RNG.normal(size=(600, 6)), RNG.normal(size=(80, 6))


@pytest.mark.parametrize("leaf", [1, 10])
@pytest.mark.parametrize("k", [1, 4])
def test_without_tolerance_the_answer_is_exact(leaf, k):
    rows, looked = nearest(grow(POINTS, leaf), POINTS, QUERIES, k, 0.0)
    assert np.array_equal(rows, cKDTree(POINTS).query(QUERIES, [*range(1, k + 1)])[1])
    assert looked.max() < 600
    assert looked.min() >= k


@pytest.mark.parametrize("eps", [0.5, PUBLISHED_EPS])
def test_with_a_tolerance_it_is_what_scipy_gives_and_within_it(eps):
    rows, looked = nearest(grow(POINTS), POINTS, QUERIES, 1, eps)
    theirs = cKDTree(POINTS, leafsize=1, balanced_tree=False).query(QUERIES, eps=eps)[1]
    assert np.mean(rows[:, 0] == theirs) > 0.9
    found, best = (np.linalg.norm(POINTS[r] - QUERIES, axis=1) for r in (rows[:, 0], cKDTree(POINTS).query(QUERIES)[1]))
    assert np.all(found <= (1 + eps) * best + 1e-9)
    assert looked.mean() < nearest(grow(POINTS), POINTS, QUERIES, 1, 0.0)[1].mean()


def test_fewer_points_than_asked_for_and_equal_points():
    rows, looked = nearest(grow(np.ones((3, 2))), np.ones((3, 2)), np.zeros((1, 2)), 5, 0.0)
    assert sorted(rows[0].tolist()) == [-1, -1, 0, 1, 2]
    assert looked.tolist() == [3]


def test_every_point_is_in_one_leaf():
    tree = grow(POINTS, 7)
    leaves = tree.axis < 0
    assert sorted(
        np.concatenate([tree.order[s:e] for s, e in zip(tree.start[leaves], tree.end[leaves], strict=True)])
    ) == [*range(600)]


# --- search


def test_a_query_far_outside_looks_at_few_points():
    points = np.random.default_rng(0).normal(size=(500, 3))
    queries = np.array([[50.0, 0, 0], [0.0, 0, 0]])
    rows, looked = np.full((2, 1), -1, np.int64), np.zeros(2, np.int64)
    search_tree(*grow(points), points, queries, 0.0, rows, looked)
    distances = np.linalg.norm(points[None] - queries[:, None], axis=2)
    assert np.array_equal(rows[:, 0], distances.argmin(axis=1))
    assert looked[0] < 100
    assert 0 < looked[1] < 500
