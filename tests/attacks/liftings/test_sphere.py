# SPDX-License-Identifier: Apache-2.0
"""The sphere of unit norm: what is known of it, and minima on it."""

import numpy as np
import pytest

import sfumato
from sfumato.attacks.knowledge import Knowledge
from sfumato.attacks.liftings.sphere import known_radius, least_quadratic, nearest_on_sphere, place, reach


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def concealed(name="sift", count=3):
    rows = unit(np.random.default_rng(0).standard_normal((count, 8)))
    return sfumato.conceal(sfumato.Features(np.zeros((count, 4)), rows, sfumato.Extractor(name)), "random-2")


def test_public_descriptors_tell_the_norm():
    rows = 3 * unit(np.random.default_rng(1).standard_normal((50, 8)))
    assert known_radius(concealed("unknown"), Knowledge(public=rows)) == pytest.approx(3)
    assert known_radius(concealed(), Knowledge(public=rows * np.linspace(1, 2, 50)[:, None])) is None


def test_the_kind_of_descriptor_tells_the_norm():
    assert known_radius(concealed("sift"), Knowledge()) == 1
    assert known_radius(concealed("hardtfeat-a7a28083"), Knowledge()) == 1
    assert known_radius(concealed("unknown"), Knowledge()) is None


def test_the_nearest_point_on_the_sphere_is_in_the_subspace_and_nearest():
    rng = np.random.default_rng(2)
    clear = unit(rng.standard_normal((20, 8)))
    subspaces = sfumato.conceal(clear, "random-3")
    goal = unit(clear + 0.3 * rng.standard_normal(clear.shape))
    found = nearest_on_sphere(subspaces, goal, 1.0)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    along = np.einsum("nki,ni->nk", subspaces.basis, found - subspaces.origin)
    assert np.allclose(place(subspaces, along), found, atol=1e-6)
    drawn = unit(rng.standard_normal((2000, 20, 3))) * reach(subspaces, 1.0)[:, None]
    others = subspaces.origin + np.einsum("tnk,nki->tni", drawn, subspaces.basis)
    assert (np.linalg.norm(found - goal, axis=1) <= np.linalg.norm(others - goal, axis=2).min(axis=0) + 1e-6).all()


def test_without_a_sphere_it_is_the_projection():
    subspaces = sfumato.Subspaces([[0.0, 0.0, 1.0]], [[[1.0, 0.0, 0.0]]])
    assert nearest_on_sphere(subspaces, np.array([[5.0, 4.0, 3.0]]), None).tolist() == [[5.0, 0.0, 1.0]]


def test_minima_of_quadratic_forms_on_a_sphere_match_a_dense_scan():
    rng = np.random.default_rng(3)
    root = rng.standard_normal((40, 2, 2))
    curvature, pull, lengths = root @ root.transpose(0, 2, 1), rng.standard_normal((40, 2)), rng.uniform(0.2, 2, 40)
    found = least_quadratic(curvature, pull, lengths)
    assert np.allclose(np.linalg.norm(found, axis=1), lengths, rtol=1e-6)
    angles = np.linspace(0, 2 * np.pi, 20_001)
    circle = lengths[:, None, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)

    def value(c):
        bent = np.einsum("n...k,nkl,n...l->n...", c, curvature, c)
        return bent - 2 * np.einsum("nk,n...k->n...", pull, c)

    assert np.allclose(value(found), value(circle).min(axis=1), atol=1e-5)


def test_directions_that_nothing_fixes_keep_the_length():
    curvature = np.array([[[0.0, 0.0], [0.0, 4.0]]])
    found = least_quadratic(curvature, np.array([[0.0, 2.0]]), np.array([1.0]))
    assert np.allclose(np.abs(found), [[np.sqrt(1 - 0.25), 0.5]], atol=1e-6)  # the sphere gives the free direction
    assert np.allclose(least_quadratic(curvature, np.array([[0.0, 2.0]]), None), [[0.0, 0.5]])


def test_a_subspace_that_misses_the_sphere_keeps_its_nearest_point():
    subspaces = sfumato.Subspaces([[0.0, 0.0, 2.0]], [[[1.0, 0.0, 0.0]]])
    assert reach(subspaces, 1.0).tolist() == [0.0]
    assert nearest_on_sphere(subspaces, np.array([[5.0, 4.0, 3.0]]), 1.0).tolist() == [[0.0, 0.0, 2.0]]
