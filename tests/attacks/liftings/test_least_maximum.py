# SPDX-License-Identifier: Apache-2.0
"""The least maximum norm on a circle and on a sphere, against a dense search."""

import numpy as np
import pytest

from sfumato.attacks.liftings.kernels import least_in_planes, least_on_spheres


@pytest.fixture(scope="module")
def spaces():
    rng = np.random.default_rng(0)

    def make(m):
        basis = np.linalg.qr(rng.normal(size=(5, 20, m)))[0].transpose(0, 2, 1)
        points = rng.normal(size=(5, 20))
        points -= np.einsum("nk,nki->ni", np.einsum("nki,ni->nk", basis, points), basis)
        return 0.7 * points / np.linalg.norm(points, axis=1, keepdims=True), basis, np.full(5, np.sqrt(0.51))

    return make


def test_circles(spaces):
    origin, basis, lengths = spaces(2)
    found, values = least_in_planes(origin, basis, lengths, 8)
    angles = np.linspace(0, 2 * np.pi, 20_000)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1) * lengths[0]
    dense = np.abs(origin[:, None] + circle @ basis).max(axis=2).min(axis=1)
    assert np.allclose(values[:, 0], dense, atol=1e-3)
    assert (values[:, 0] <= dense + 1e-6).all()
    assert np.allclose(np.linalg.norm(found[:, 0], axis=1), lengths)
    assert (np.diff(np.where(np.isfinite(values), values, 9)) >= 0).all()


def test_spheres(spaces):
    origin, basis, lengths = spaces(3)
    rng = np.random.default_rng(1)
    starts = rng.normal(size=(40, 3))
    starts /= np.linalg.norm(starts, axis=1, keepdims=True)
    found, values = least_on_spheres(origin, basis, lengths, starts, 4)
    many = rng.normal(size=(100_000, 3))
    many *= lengths[0] / np.linalg.norm(many, axis=1, keepdims=True)
    dense = np.array([np.abs(origin[row] + many @ basis[row]).max(axis=1).min() for row in range(5)])
    assert (values[:, 0] <= dense + 0.02).all()
    assert np.allclose(np.linalg.norm(found[:, 0], axis=1), lengths)
