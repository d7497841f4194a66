# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest

from sfumato.search.entries import angles
from sfumato.search.projector.embedding import (
    affine_forms,
    embed_affine,
    embed_affine_query,
    embed_centred,
    embed_centred_query,
    embed_linear,
    embed_linear_query,
    form_squared_length,
    half_vector,
    length_of,
)
from sfumato.subspace.reference import canonicalise, point_squared_distances


def bases(count, dim, n, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(count, n, dim)))[0].transpose(0, 2, 1)


def squared(u, v):
    return ((u[:, None] - v[None]) ** 2).sum(axis=2)


POINTS = np.random.default_rng(7).normal(size=(5, 9))


def test_half_vectors_keep_half_the_trace():
    a, b = (m @ m.transpose(0, 2, 1) for m in np.random.default_rng(0).normal(size=(2, 4, 6, 6)))
    assert half_vector(a).shape == (4, length_of(6))
    assert np.allclose((half_vector(a) * half_vector(b)).sum(axis=1), np.trace(a @ b, axis1=1, axis2=2) / 2)


@pytest.mark.parametrize("dim", [1, 4, 8])
def test_points_and_linear_subspaces(dim):
    spans = bases(6, dim, 9)
    exact = point_squared_distances(POINTS, np.zeros((6, 9)), spans).T
    norms = (POINTS**2).sum(axis=1)
    found = squared(embed_linear(spans), embed_linear_query(POINTS[:, None]))
    assert np.allclose(found, exact + (9 - dim + norms**2) / 2)
    beta = math.sqrt(dim * (9 - dim) / 8) / norms
    constant = dim * (9 - dim) / 9 - (9 - dim) / 9 * math.sqrt(dim * (9 - dim) / 8)
    centred, queries = embed_centred(spans), embed_centred_query(POINTS, dim)
    assert np.allclose(squared(centred, queries), beta * exact + constant)
    assert np.allclose((centred**2).sum(axis=1), (queries**2).sum(axis=1)[0])  # all on one sphere
    assert np.allclose(centred @ half_vector(np.eye(9)[None])[0], 0)


@pytest.mark.parametrize(("dim", "asked"), [(4, 1), (4, 3), (4, 4), (2, 5)])
def test_linear_subspaces_and_linear_queries(dim, asked):
    spans, queries = bases(6, dim, 9), bases(5, asked, 9, seed=1)
    cosines = np.linalg.svd(np.einsum("aki,bli->abkl", spans, queries), compute_uv=False)
    constant = (9 - dim + asked) / 2 + max(asked - dim, 0)
    found = squared(embed_linear(spans), embed_linear_query(queries))
    assert np.allclose(found, (1 - cosines**2).sum(axis=2) + constant)
    if asked == 1:  # of lines the nearest is the nearest in angle, too
        exact = np.array([[angles(s[None], q[None])[0] for q in queries] for s in spans])
        assert np.array_equal(found.argmin(axis=0), exact.argmin(axis=0))


@pytest.mark.parametrize("m", [0, 2, 8])
def test_points_and_affine_subspaces(m):
    rng = np.random.default_rng(3)
    origin, basis = canonicalise(rng.normal(size=(6, 9)), rng.normal(size=(6, m, 9)))
    exact = point_squared_distances(POINTS, origin, basis).T
    forms = affine_forms(origin, basis)
    high = np.pad(POINTS, ((0, 0), (0, 1)), constant_values=1.0)
    assert np.allclose(np.einsum("qi,sij,qj->sq", high, forms, high), exact)
    lengths = form_squared_length(origin, m)
    assert np.allclose(lengths, (half_vector(forms) ** 2).sum(axis=1))
    u, v = embed_affine(origin, basis, lengths.max()), embed_affine_query(POINTS)
    assert u.shape[1] == v.shape[1] == length_of(10) + 1
    assert np.allclose(squared(u, v), exact + lengths.max() + ((POINTS**2).sum(axis=1) + 1) ** 2 / 2)


def test_the_length_for_descriptors_of_128_numbers():
    assert length_of(129) + 1 == 8386
