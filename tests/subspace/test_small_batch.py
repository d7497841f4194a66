# SPDX-License-Identifier: Apache-2.0
"""Searches of a small batch of points give what every other search gives."""

import numpy as np
import pytest

from sfumato.subspace import fast, small_batch
from sfumato.subspace.fast import prepare
from sfumato.subspace.small_batch import SmallBatchSearch, as_bytes
from sfumato.types.concealed import Subspaces


def random_subspaces(count, m, n, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    made = Subspaces(rng.normal(0.3, spread, (count, n)) / np.sqrt(n), rng.normal(size=(count, m, n)))
    return made.origin.copy(), made.basis.copy()


def random_points(count, n, seed=1):
    return (np.random.default_rng(seed).normal(size=(count, n)) / np.sqrt(n)).astype(np.float32)


def by_fast_search(points, references, k):
    """Search with ``fast.search``."""
    nothing = np.zeros((len(points), 0, points.shape[1]), np.float32)
    result = fast.search(prepare(points, nothing), references, (k, 0), threads=1)
    return result.squared0, result.rows0


@pytest.mark.parametrize(
    ("m", "n", "count", "threads"),
    [(2, 64, 1, 1), (2, 50, 4, 2), (2, 33, 8, 3), pytest.param(1, 16, 2, 1, marks=pytest.mark.slow)],
)
def test_the_result_is_that_of_every_other_search(m, n, count, threads):
    references = prepare(*random_subspaces(700, m, n))
    points = random_points(count, n)
    squared, rows, evaluated = SmallBatchSearch(references).nearest(points, 7, threads)
    assert 7 * len(points) <= evaluated < len(points) * len(references) / 4
    expected, where = by_fast_search(points, references, 7)
    assert np.array_equal(squared, expected)
    assert np.array_equal(rows, where)


def test_of_equals_the_lower_number_first_and_subspaces_through_a_point_are_at_0():
    origin, basis = random_subspaces(300, 2, 32)
    point = random_points(1, 32)
    through = Subspaces(np.repeat(point, 5, axis=0), basis[:5])  # five subspaces through the point
    origin[100:105], basis[100:105] = through.origin, through.basis
    origin[200:203], basis[200:203] = origin[[7] * 3], basis[[7] * 3]  # the same one again
    references = prepare(origin, basis)
    squared, rows, _ = SmallBatchSearch(references).nearest(point, 9)
    assert rows[0, :5].tolist() == [100, 101, 102, 103, 104]
    assert not squared[0, :5].any()
    expected, where = by_fast_search(point, references, 9)
    assert np.array_equal(squared, expected)
    assert np.array_equal(rows, where)


@pytest.mark.parametrize("spread", [1e-4, 1.0, 30.0])
def test_no_lower_end_is_above_a_distance_and_no_upper_end_below(spread):
    origin, basis = random_subspaces(400, 2, 48, spread=spread)
    basis[:50] = 0
    basis[:50, 0, 3] = basis[:50, 1, 4] = 1  # rows of one large number
    origin[:50, 3:5] = 0
    references, points = prepare(origin, basis), random_points(4, 48)
    lows, tops = SmallBatchSearch(references)._bracket(points, 10, 1)
    squared, rows = by_fast_search(points, references, 400)
    exact = np.empty_like(squared)
    np.put_along_axis(exact, rows, squared, axis=1)
    assert (lows <= exact).all()
    assert (tops >= squared[:, :10]).all()
    assert (exact - lows).max() < 0.1 * exact.max()  # and they say something


def test_rounded_rows_lose_no_more_than_they_say():
    origin, basis = random_subspaces(20, 3, 30)
    centre, values, facts = as_bytes(prepare(origin, basis))
    assert values.shape == (20, 4, 32)
    rows = np.concatenate([(origin - centre)[:, None], basis], axis=1)
    stored = values[:, :, :30] * facts[:, :, :1].astype(np.float64)
    lost = np.linalg.norm(rows - stored, axis=2)
    assert (lost <= facts[:, :, 1]).all()
    assert lost.max() < 0.02
    assert np.allclose(facts[:, 1:, 3], np.einsum("nki,ni->nk", basis, origin - centre), atol=1e-6)


def test_what_it_does_not_serve(monkeypatch):
    references = prepare(*random_subspaces(100, 2, 16))
    assert not SmallBatchSearch(references).serves(random_points(1, 16), 5)
    monkeypatch.setattr(small_batch, "FEWEST_SUBSPACES", 50)
    search = SmallBatchSearch(references)
    assert search.serves(random_points(1, 16), 5)
    assert not search.serves(random_points(small_batch.MOST_POINTS + 1, 16), 5)
    assert not search.serves(random_points(0, 16), 5)
    assert not search.serves(random_points(1, 16), small_batch.MOST_NEIGHBOURS + 1)
    assert not search.serves(1e6 * random_points(1, 16), 5)
    assert not search.serves(0 * random_points(1, 16), 5)
    assert not SmallBatchSearch(prepare(*random_subspaces(100, 17, 20))).serves(random_points(1, 20), 5)
