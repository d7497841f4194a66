# SPDX-License-Identifier: Apache-2.0
"""Embeddings have exact constants; sketches agree with them; indexes of points."""

import math

import numpy as np
import pytest

from sfumato.search.entries import angles
from sfumato.search.projector.embedding import (
    FaissPoints,
    Sketch,
    TreePoints,
    affine_forms,
    embed_affine,
    embed_affine_query,
    embed_centred,
    embed_centred_query,
    embed_linear,
    embed_linear_query,
    equalise,
    form_squared_length,
    half_vector,
    length_of,
)
from sfumato.subspace.reference import canonicalise, point_squared_distances
from sfumato.types.concealed import Subspaces


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


# --- sketches


def random_bases(count, dim, n, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(count, n, dim)))[0].transpose(0, 2, 1)


def test_inner_products_are_kept_in_the_mean():
    spans = random_bases(20, 3, 16)
    exact = embed_linear_query(spans) @ embed_linear_query(spans).T
    errors = []
    for length in (256, 16_384):
        rows = Sketch.draw(length, 16, np.random.default_rng(1)).of_spans(spans)
        assert rows.shape == (20, length)
        errors.append(np.abs(rows @ rows.T - exact).mean())
    assert errors[1] < 0.05
    assert errors[1] < errors[0] / 4  # the root of 64 is 8


def test_forms_and_points_of_affine_subspaces():
    rng = np.random.default_rng(2)
    given = Subspaces(rng.normal(size=(8, 12)), rng.normal(size=(8, 2, 12)))
    points = rng.normal(size=(5, 12))
    sketch = Sketch.draw(100_000, 13, rng)
    found = sketch.of_forms(given.origin, given.basis) @ sketch.of_points(points).T
    high = np.pad(points, ((0, 0), (0, 1)), constant_values=1.0)
    exact = half_vector(np.eye(13) - affine_forms(given.origin, given.basis)) @ embed_linear_query(high[:, None]).T
    assert np.abs(found - exact).max() < 0.15 * np.abs(exact).max()


def test_rows_made_equally_long_keep_their_inner_products():
    rows = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    longer, last, largest = equalise(rows)
    assert np.allclose((longer**2).sum(axis=1), largest, rtol=1e-5)
    assert last.min() == pytest.approx(0, abs=1e-3)
    query = np.array([1.0, 2, 3, 4, 0])
    assert ((longer - query) ** 2).sum(axis=1).argmin() == (rows @ query[:4]).argmax()
    assert equalise(rows, 0.5)[1].max() <= np.sqrt(0.5)
    assert equalise(rows[:0])[0].shape == (0, 5)


def test_nothing_of_a_subspace_is_shown():
    assert repr(Sketch.draw(3, 5, np.random.default_rng(0))) == "Sketch(3 pairs in R^5)"


# --- point indexes


RNG = np.random.default_rng(0)
POINT_ROWS = RNG.normal(size=(400, 8)).astype(np.float32)
QUERIES = POINT_ROWS[:20] + 0.01 * RNG.normal(size=(20, 8)).astype(np.float32)


def make(method):
    return TreePoints(0.0, 1, 8) if method == "kdtree" else FaissPoints(method, 8, 10, 10)


@pytest.mark.parametrize("method", ["flat", "hnsw", "ivf", "kdtree"])
def test_points_are_found_added_and_passed_over(method):
    index, alive = make(method), np.ones(400, bool)
    index.add(POINT_ROWS[:300])
    index.add(POINT_ROWS[300:])
    rows, looked_at = index.find(QUERIES, 3, alive)
    assert rows.shape == (20, 3)
    assert rows[:, 0].tolist() == [*range(20)]
    assert looked_at > 0
    assert np.array_equal(index.points(), POINT_ROWS)
    alive[:10] = False
    rows, _ = index.find(QUERIES, 3, alive)
    assert not np.isin(rows, np.arange(10)).any()
    assert rows[10:, 0].tolist() == [*range(10, 20)]


@pytest.mark.parametrize("method", ["flat", "hnsw", "ivf", "kdtree"])
def test_fewer_points_than_asked_for(method):
    index = make(method)
    assert index.points().shape == (0, 8)
    index.add(POINT_ROWS[:2])
    rows, _ = index.find(QUERIES, 4, np.ones(2, bool))
    assert [sorted(row) for row in rows.tolist()] == [[-1, -1, 0, 1]] * 20
