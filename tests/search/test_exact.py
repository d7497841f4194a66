# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import sfumato
from sfumato.search.entries import angles
from sfumato.search.exact import ExactIndex, _rough_angles, merge_answers


@pytest.mark.parametrize("dimensions", [(2,), pytest.param((1, 2, 3), marks=pytest.mark.slow)])
def test_the_answer_is_that_of_the_reference_for_mixed_dimensions(lift_points, dimensions):
    parts = [lift_points(80, n=12, m=m, seed=m).code for m in dimensions] + [lift_points(40, n=12).points]
    index = sfumato.search.build(parts, "exact")
    queries = lift_points(15, n=12, m=2, seed=9).code
    true = np.sqrt(np.concatenate([sfumato.squared_distances(queries, part) for part in parts], axis=1))
    distances, ids = index.search(queries, k=6)
    np.testing.assert_allclose(distances, np.sort(true, axis=1)[:, :6], atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(true, ids, axis=1), distances, atol=1e-6)


def test_one_point_among_many_gets_the_answer_of_a_batch(lift_points):
    lifted = lift_points(6000, n=24)  # enough for the pass over bytes, which takes up to 32 points
    index = sfumato.search.build(lifted.code, "exact")
    index.remove([3, 4000])
    batch = index.search(lifted.points[:64], k=3)
    singles = [index.search(lifted.points[i : i + 1], k=3) for i in range(64)]
    np.testing.assert_array_equal(np.concatenate([ids for _, ids in singles]), batch[1])
    np.testing.assert_array_equal(np.concatenate([distances for distances, _ in singles]), batch[0])
    assert not np.isin(batch[1], [3, 4000]).any()


def test_removed_entries_never_come_back(lift_points):
    lifted = lift_points(200, n=12)
    index = sfumato.search.build(lifted.code, "exact")
    first = index.search(lifted.points[:5], k=2)[1]
    index.remove(first[:, 0])
    second = index.search(lifted.points[:5], k=1)[1]
    assert not np.isin(second, first[:, 0]).any()


@pytest.mark.parametrize(("m0", "m1"), [(1, 2), (2, 2), (3, 1)])
def test_angles_are_exact(m0, m1):
    rng = np.random.default_rng(0)
    entries = sfumato.Subspaces(np.zeros((60, 9)), rng.standard_normal((60, m1, 9)))
    queries = sfumato.Subspaces(np.zeros((7, 9)), rng.standard_normal((7, m0, 9)))
    true = np.stack([angles(np.repeat(one[None], 60, axis=0), entries.basis) for one in queries.basis])
    np.testing.assert_allclose(_rough_angles(queries.basis, entries.basis), true, atol=1e-3)
    distances, ids = sfumato.search.build(entries, "exact", "angle").search(queries, k=4)
    np.testing.assert_array_equal(ids, np.argsort(true, axis=1, kind="stable")[:, :4])
    np.testing.assert_allclose(distances, np.sort(true, axis=1)[:, :4], rtol=1e-6)


def test_every_pair_is_a_candidate():
    index = sfumato.search.build(np.eye(3), "exact")
    assert isinstance(index, ExactIndex)
    assert [ids.tolist() for ids in index.candidates(np.eye(3)[:2])] == [[0, 1, 2]] * 2


def test_answers_merge():
    best, where = merge_answers([(np.array([[1.0, 3.0]]), np.array([[5, 6]])), (np.array([[1.0]]), np.array([[2]]))], 4)
    assert where.tolist() == [[2, 5, 6, -1]]
    assert best.tolist() == [[1.0, 1.0, 3.0, np.inf]]
