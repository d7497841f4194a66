# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from scipy.linalg import subspace_angles

import sfumato
from sfumato.errors import InputError
from sfumato.search.entries import angles, check_metric, pair_distances


def bases(rng, count, m, n=9):
    return np.linalg.qr(rng.standard_normal((count, n, m)))[0].transpose(0, 2, 1).astype(np.float32)


@pytest.mark.parametrize(("m0", "m1"), [(1, 1), (1, 3), (3, 1), (2, 2), (4, 2)])
def test_angles_are_those_of_scipy(m0, m1):
    rng = np.random.default_rng(m0 + 10 * m1)
    first, second = bases(rng, 20, m0), bases(rng, 20, m1)
    expected = [np.linalg.norm(subspace_angles(a.T, b.T)) for a, b in zip(first, second, strict=True)]
    np.testing.assert_allclose(angles(first, second), expected, atol=1e-6)


def test_small_angles_keep_their_digits():
    first = np.array([[[1.0, 0.0, 0.0]]], np.float32)
    second = np.array([[[1.0, 1e-5, 0.0]]], np.float32)
    assert angles(first, second)[0] == pytest.approx(1e-5, rel=1e-3)
    assert angles(first, first)[0] == 0


def test_distances_of_pairs_are_those_of_the_reference():
    rng = np.random.default_rng(1)
    a = sfumato.Subspaces(rng.standard_normal((5, 8)), rng.standard_normal((5, 2, 8)))
    b = sfumato.Subspaces(rng.standard_normal((6, 8)), rng.standard_normal((6, 1, 8)))
    i, j = (part.ravel() for part in np.indices((5, 6)))
    found = pair_distances("distance", (a.origin, a.basis), (b.origin, b.basis), i, j)
    np.testing.assert_allclose(found, np.sqrt(sfumato.squared_distances(a, b)).ravel(), atol=1e-9)
    assert len(pair_distances("distance", (a.origin, a.basis), (b.origin, b.basis), i[:0], j[:0])) == 0


def test_what_rounding_leaves_of_zero_is_zero():
    rng = np.random.default_rng(2)
    point = rng.standard_normal((1, 8)).astype(np.float32)
    through = sfumato.Subspaces(point, rng.standard_normal((1, 2, 8)))
    sides = (point, np.zeros((1, 0, 8), np.float32)), (through.origin, through.basis)
    assert pair_distances("distance", *sides, np.array([0]), np.array([0]))[0] == 0


def test_an_unknown_metric_is_refused_with_a_suggestion():
    with pytest.raises(InputError, match="'angle'"):
        check_metric("angles")
    with pytest.raises(InputError, match="metric"):
        check_metric(3)
