# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.search.projector.embedding import Sketch, affine_forms, embed_linear_query, equalised, half_vector
from sfumato.types.concealed import Subspaces


def bases(count, dim, n, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(count, n, dim)))[0].transpose(0, 2, 1)


def test_inner_products_are_kept_in_the_mean():
    spans = bases(20, 3, 16)
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
    longer, last, largest = equalised(rows)
    assert np.allclose((longer**2).sum(axis=1), largest, rtol=1e-5)
    assert last.min() == pytest.approx(0, abs=1e-3)
    query = np.array([1.0, 2, 3, 4, 0])
    assert ((longer - query) ** 2).sum(axis=1).argmin() == (rows @ query[:4]).argmax()
    assert equalised(rows, 0.5)[1].max() <= np.sqrt(0.5)
    assert equalised(rows[:0])[0].shape == (0, 5)


def test_nothing_of_a_subspace_is_shown():
    assert repr(Sketch.draw(3, 5, np.random.default_rng(0))) == "Sketch(3 pairs in R^5)"
