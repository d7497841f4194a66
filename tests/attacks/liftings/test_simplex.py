# SPDX-License-Identifier: Apache-2.0
"""Walking from corner to corner: what is noted is a corner, and a planted degenerate one is found."""

import numpy as np
import pytest

from sfumato.attacks.liftings.corners import FLOAT32, _search
from sfumato.attacks.liftings.kernels import CornerSearch, search_rows


def planted(m, count=12, n=128, seed=0):
    """Subspaces through points with 24 zeros and 5 ties, and the points."""
    rng = np.random.default_rng(seed)
    points = rng.random((count, n)) * 0.8 + 0.05
    for row in points:
        order = rng.permutation(n)
        row[order[:24]] = 0
        row[order[24:29]] = 1.0
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    basis = np.linalg.qr(rng.normal(size=(count, n, m)))[0].transpose(0, 2, 1)
    along = np.einsum("nki,ni->nk", basis, points)
    return points - np.einsum("nk,nki->ni", along, basis), basis, along


@pytest.mark.parametrize("m", [3, 5])
def test_a_planted_corner_is_found(m):
    origin, basis, along = planted(m)
    found, counts = search_rows(origin, basis, _search(m, 128, FLOAT32, 1e-4), 8)
    gaps = np.linalg.norm(found - along[:, None], axis=2)
    hits = [gaps[row, : counts[row]].min(initial=9) < 1e-4 for row in range(len(gaps))]
    assert np.mean(hits) > 0.9


def test_what_is_noted_is_feasible_and_degenerate():
    origin, basis, _ = planted(3)
    found, counts = search_rows(origin, basis, _search(3, 128, FLOAT32, 1e-4), 8)
    for row in range(len(counts)):
        x = np.sort(origin[row] + found[row, : counts[row]] @ basis[row], axis=1)
        assert (x >= -1e-5).all()
        meeting = (x < 2e-5).sum(axis=1) + (x > x[:, -1:] - 2e-5).sum(axis=1)
        assert (meeting >= 6).all()


def test_a_subspace_without_a_feasible_point_has_no_corner():
    origin, basis, _ = planted(3, count=2)
    nothing = CornerSearch(np.zeros(256), 1e-5, 1e-4, np.ones((2, 4)), np.ones(2), 1, 1, 4)
    _, counts = search_rows(-np.abs(origin) - 1, basis * 1e-3, nothing, 4)
    assert (counts == 0).all()
