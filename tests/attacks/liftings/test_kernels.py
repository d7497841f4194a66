# SPDX-License-Identifier: Apache-2.0
"""Polygons cut exactly: corners are those that all pairs of lines give."""

from itertools import combinations

import numpy as np
import pytest

from sfumato.attacks.liftings.kernels import clip_rows


@pytest.fixture(scope="module")
def planes():
    rng = np.random.default_rng(0)
    points = np.abs(rng.normal(size=(6, 12)))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    basis = np.linalg.qr(rng.normal(size=(6, 12, 2)))[0].transpose(0, 2, 1)
    origin = points - np.einsum("nk,nki->ni", np.einsum("nki,ni->nk", basis, points), basis)
    return origin, basis


def every_corner(p, b):
    """All feasible intersections of two of the lines x_i = 0, by definition."""
    found = []
    for i, j in combinations(range(len(p)), 2):
        lines = b[:, [i, j]].T
        if abs(np.linalg.det(lines)) > 1e-12:
            c = np.linalg.solve(lines, -p[[i, j]])
            if (p + c @ b).min() > -1e-9 and np.abs(c).max() < 1.5:
                found.append(c)
    return np.array(found)


def test_all_corners_of_the_polygon_are_found(planes):
    found, counts = clip_rows(*planes, 0.0, np.inf, False, 40)
    for row in range(6):
        expected = every_corner(planes[0][row], planes[1][row])
        gaps = np.linalg.norm(expected[:, None] - found[row, None, : counts[row]], axis=2)
        assert gaps.min(axis=1).max() < 1e-9
        on_box = (np.abs(found[row, : counts[row]]) > 1.5 - 1e-9).any(axis=1)
        assert (gaps.min(axis=0)[~on_box] < 2e-4).all()


def test_ridges_of_the_maximum_are_corners_too(planes):
    origin, basis = planes
    found, counts = clip_rows(origin, basis, 0.0, np.inf, True, 200)
    fewer = clip_rows(origin, basis, 0.0, np.inf, False, 200)[1]
    assert (counts >= fewer).all()
    assert counts.sum() > fewer.sum()
    for row in range(6):
        x = np.sort(origin[row] + found[row, : counts[row]] @ basis[row], axis=1)
        on_box = (np.abs(found[row, : counts[row]]) > 1.5 - 1e-9).any(axis=1)
        equalities = (np.abs(x) < 1e-9).sum(axis=1) + (x > x[:, -1:] - 1e-9).sum(axis=1)
        assert (equalities[~on_box] >= 3).all()  # two unknowns and the maximum


def test_only_corners_near_unit_norm_are_noted(planes):
    found, counts = clip_rows(*planes, 0.0, 0.05, True, 100)
    lengths = (planes[0] ** 2).sum(axis=1)[:, None] + (found**2).sum(axis=2)
    for row in range(6):
        assert (np.abs(lengths[row, : counts[row]] - 1) <= 0.05).all()
