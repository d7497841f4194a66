# SPDX-License-Identifier: Apache-2.0
"""Exact distances are the definition's to 1e-9; the nearest are in order, of equals the lower number first."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.subspace import reference
from sfumato.subspace.kernels import exact

pytestmark = pytest.mark.filterwarnings("ignore::sfumato.errors.VoidDistanceWarning")


class Flat(NamedTuple):
    origin: np.ndarray
    basis: np.ndarray


def through(points: np.ndarray, directions: np.ndarray) -> Flat:
    return Flat(*(np.ascontiguousarray(part, np.float32) for part in reference.canonicalise(points, directions)))


def check(side0: Flat, side1: Flat, tolerance: float = 1e-9) -> np.ndarray:
    i, j = (index.ravel() for index in np.indices((len(side0.origin), len(side1.origin))))
    squared = exact.exact_pairs(*side0, *side1, i, j)
    want = reference.squared_distances(side0, side1)[i, j]
    scale = max(1.0, float(np.abs(want).max(initial=0.0)))
    np.testing.assert_allclose(squared, want, rtol=0, atol=tolerance * scale)
    return squared


@given(st.integers(1, 12), st.data())
def test_any_dimensions(n, data):
    m = [data.draw(st.integers(0, n)) for _ in range(2)]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    check(*(through(rng.normal(size=(5, n)), rng.normal(size=(5, k, n))) for k in m), tolerance=1e-6)


ANGLES = (0.0, 1e-9, 1e-8, 1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1)


def test_directions_shared_or_nearly():
    """What counts as shared is the definition's own choice, on both sides of its threshold."""
    for angle, m, shared in itertools.product(ANGLES, [(1, 1), (2, 2), (3, 2), (4, 4)], [1, None]):
        check_shared(angle, m, shared)


def check_shared(angle, m, shared):
    rng = np.random.default_rng(7)
    common = rng.normal(size=(max(m), 20))
    sides = []
    for k in m:
        directions = rng.normal(size=(24, k, 20))
        directions[:, :shared] = common[:k][:shared] + angle * directions[:, :shared]
        sides.append(through(rng.normal(size=(24, 20)), directions))
    near_threshold = 1e-7 < angle < 1e-5  # there, what is left of a direction is known to few digits
    check(*sides, tolerance=1e-6 if near_threshold else 1e-9)


def test_what_meets_is_at_0():
    rng = np.random.default_rng(1)
    common, m = rng.normal(size=(1, 16)) / 4, (2, 3)
    sides = [through(np.repeat(common, 6, axis=0), rng.normal(size=(6, k, 16))) for k in m]
    assert check(*sides).max() < 1e-12


def test_no_pairs():
    side = through(np.zeros((3, 4)), np.zeros((3, 0, 4)))
    assert exact.exact_pairs(*side, *side, np.zeros(0, np.int64), np.zeros(0, np.int64)).shape == (0,)


# --- the nearest of a row


@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0]), max_size=12),
    st.integers(1, 4),
    st.sampled_from([np.inf, 2.0, 0.0]),
    st.randoms(use_true_random=False),
)
def test_the_nearest_are_kept_in_order_of_value_and_number(values, keep, limit, shuffled):
    best, where = np.full((2, keep), limit), np.full((2, keep), -1, np.int64)
    numbered = list(enumerate(values))
    shuffled.shuffle(numbered)
    for number, value in numbered:
        exact._insert(best, where, 1, value, number)
    wanted = sorted((value, number) for number, value in enumerate(values) if value <= limit)[:keep]
    assert list(zip(best[1], where[1], strict=True))[: len(wanted)] == wanted
    assert (best[1, len(wanted) :] == limit).all()
    assert (where[1, len(wanted) :] == -1).all()
    assert (where[0] == -1).all()


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("keep", [1, 3])
def test_pairs_in_any_order_end_as_the_reference_says(flipped, keep):
    rng = np.random.default_rng(keep)
    sides, n = [], 12
    for count in (9, 7):
        made = reference.canonicalise(rng.normal(size=(count, n)), rng.normal(size=(count, 2, n)))
        parts = [np.ascontiguousarray(part, np.float32) for part in made]
        parts[0][3], parts[1][3] = parts[0][1], parts[1][1]  # a duplicate
        for part in parts:
            part.flags.writeable = False
        sides.append(parts)
    matrix = reference.squared_distances(*(exact.FlatSubspaces(*parts, None, 2) for parts in sides))
    matrix = matrix.T if flipped else matrix
    rows = [exact.FlatSubspaces(*(part.reshape(-1) for part in parts), np.zeros(len(parts[0])), 2) for parts in sides]
    own, other = np.divmod(rng.permutation(63).astype(np.int32), matrix.shape[1])
    low = (matrix[own, other] - 0.1).astype(np.float32)
    best, where = np.full((len(matrix), keep), np.inf), np.full((len(matrix), keep), -1, np.int64)
    evaluated = exact.decide(*rows, n, flipped, own, other, low, 63, best, where)
    assert 0 < evaluated <= 63
    np.testing.assert_allclose(best, np.sort(matrix, axis=1)[:, :keep], atol=1e-9)
    np.testing.assert_array_equal(where, np.argsort(np.round(matrix, 9), axis=1, kind="stable")[:, :keep])


@given(st.lists(st.floats(0, 10, width=32), max_size=12), st.integers(1, 3))
def test_the_least_values_are_kept_in_order(values, keep):
    least = np.full((3, keep), np.inf, np.float32)
    for value in values:
        exact.keep_least(least, 1, np.float32(value))
    padded = sorted(np.float32(values).tolist()) + [np.inf] * keep
    assert least[1].tolist() == padded[:keep]
    assert np.isinf(least[[0, 2]]).all()
