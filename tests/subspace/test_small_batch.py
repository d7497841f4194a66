# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.subspace import small_batch
from sfumato.subspace.fast import prepare, search
from sfumato.subspace.small_batch import FewSearch, as_bytes
from sfumato.types.concealed import Subspaces


def some_subspaces(count, m, n, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    made = Subspaces(rng.normal(0.3, spread, (count, n)) / np.sqrt(n), rng.normal(size=(count, m, n)))
    return made.origin.copy(), made.basis.copy()


def some_points(count, n, seed=1):
    return (np.random.default_rng(seed).normal(size=(count, n)) / np.sqrt(n)).astype(np.float32)


def as_searched(points, references, k):
    """What ``fast.search`` finds."""
    nothing = np.zeros((len(points), 0, points.shape[1]), np.float32)
    found = search(prepare(points, nothing), references, (k, 0), threads=1)
    return found.squared0, found.rows0


@pytest.mark.parametrize(("m", "n", "points", "threads"), [(2, 64, 1, 1), (2, 50, 4, 2), (2, 33, 8, 3), (1, 16, 2, 1)])
def test_the_result_is_that_of_every_other_search(m, n, points, threads):
    references = prepare(*some_subspaces(700, m, n))
    asked = some_points(points, n)
    squared, rows, evaluated = FewSearch(references).nearest(asked, 7, threads)
    assert 7 * len(asked) <= evaluated < len(asked) * len(references) / 4
    wanted, where = as_searched(asked, references, 7)
    assert np.array_equal(squared, wanted)
    assert np.array_equal(rows, where)


def test_equals_are_told_apart_by_their_number_and_subspaces_through_a_point_are_at_0():
    origin, basis = some_subspaces(300, 2, 32)
    point = some_points(1, 32)
    through = Subspaces(np.repeat(point, 5, axis=0), basis[:5])  # five subspaces through the point
    origin[100:105], basis[100:105] = through.origin, through.basis
    origin[200:203], basis[200:203] = origin[[7] * 3], basis[[7] * 3]  # the same one again
    references = prepare(origin, basis)
    squared, rows, _ = FewSearch(references).nearest(point, 9)
    assert rows[0, :5].tolist() == [100, 101, 102, 103, 104]
    assert not squared[0, :5].any()
    wanted, where = as_searched(point, references, 9)
    assert np.array_equal(squared, wanted)
    assert np.array_equal(rows, where)


@pytest.mark.parametrize("spread", [1e-4, 1.0, 30.0])
def test_no_lower_end_is_above_a_distance_and_no_upper_end_below(spread):
    origin, basis = some_subspaces(400, 2, 48, spread=spread)
    basis[:50] = 0
    basis[:50, 0, 3] = basis[:50, 1, 4] = 1  # rows of one large number
    origin[:50, 3:5] = 0
    references, asked = prepare(origin, basis), some_points(4, 48)
    lows, tops = FewSearch(references)._bracket(asked, 10, 1)
    squared, rows = as_searched(asked, references, 400)
    exact = np.empty_like(squared)
    np.put_along_axis(exact, rows, squared, axis=1)
    assert (lows <= exact).all()
    assert (tops >= squared[:, :10]).all()
    assert (exact - lows).max() < 0.1 * exact.max()  # and they say something


def test_rounded_rows_lose_no_more_than_they_say():
    origin, basis = some_subspaces(20, 3, 30)
    centre, values, facts = as_bytes(prepare(origin, basis))
    assert values.shape == (20, 4, 32)
    rows = np.concatenate([(origin - centre)[:, None], basis], axis=1)
    seen = values[:, :, :30] * facts[:, :, :1].astype(np.float64)
    lost = np.linalg.norm(rows - seen, axis=2)
    assert (lost <= facts[:, :, 1]).all()
    assert lost.max() < 0.02
    assert np.allclose(facts[:, 1:, 3], np.einsum("nki,ni->nk", basis, origin - centre), atol=1e-6)


def test_what_it_does_not_serve_is_told(monkeypatch):
    references = prepare(*some_subspaces(100, 2, 16))
    assert not FewSearch(references).serves(some_points(1, 16), 5)
    monkeypatch.setattr(small_batch, "FEWEST_SUBSPACES", 50)
    search_few = FewSearch(references)
    assert search_few.serves(some_points(1, 16), 5)
    assert not search_few.serves(some_points(small_batch.MOST_POINTS + 1, 16), 5)
    assert not search_few.serves(some_points(0, 16), 5)
    assert not search_few.serves(some_points(1, 16), small_batch.MOST_WANTED + 1)
    assert not search_few.serves(1e6 * some_points(1, 16), 5)
    assert not search_few.serves(0 * some_points(1, 16), 5)
    assert not FewSearch(prepare(*some_subspaces(100, 17, 20))).serves(some_points(1, 20), 5)
