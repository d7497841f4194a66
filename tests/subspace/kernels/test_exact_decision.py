# SPDX-License-Identifier: Apache-2.0
"""The last word on a pair: what is kept is in order, of equals the lower number first."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.subspace import reference
from sfumato.subspace.kernels import sweep


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
        sweep._insert(best, where, 1, value, number)
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
    matrix = reference.squared_distances(*(sweep.Rows(*parts, None, 2) for parts in sides))
    matrix = matrix.T if flipped else matrix
    rows = [sweep.Rows(*(part.reshape(-1) for part in parts), np.zeros(len(parts[0])), 2) for parts in sides]
    own, other = np.divmod(rng.permutation(63).astype(np.int32), matrix.shape[1])
    low = (matrix[own, other] - 0.1).astype(np.float32)
    best, where = np.full((len(matrix), keep), np.inf), np.full((len(matrix), keep), -1, np.int64)
    evaluated = sweep.decide(*rows, n, flipped, own, other, low, 63, best, where)
    assert 0 < evaluated <= 63
    np.testing.assert_allclose(best, np.sort(matrix, axis=1)[:, :keep], atol=1e-9)
    np.testing.assert_array_equal(where, np.argsort(np.round(matrix, 9), axis=1, kind="stable")[:, :keep])
