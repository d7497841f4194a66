# SPDX-License-Identifier: Apache-2.0
"""One pair at a time, compiled, is the definition to 1e-9."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.subspace import reference
from sfumato.subspace.kernels.pairs import exact_pairs

pytestmark = pytest.mark.filterwarnings("ignore::sfumato.errors.VoidDistanceWarning")


class Flat(NamedTuple):
    origin: np.ndarray
    basis: np.ndarray


def through(points: np.ndarray, directions: np.ndarray) -> Flat:
    return Flat(*(np.ascontiguousarray(part, np.float32) for part in reference.canonicalise(points, directions)))


def check(side0: Flat, side1: Flat, tolerance: float = 1e-9) -> np.ndarray:
    i, j = (index.ravel() for index in np.indices((len(side0.origin), len(side1.origin))))
    found = exact_pairs(*side0, *side1, i, j)
    want = reference.squared_distances(side0, side1)[i, j]
    scale = max(1.0, float(np.abs(want).max(initial=0.0)))
    np.testing.assert_allclose(found, want, rtol=0, atol=tolerance * scale)
    return found


@given(st.integers(1, 12), st.data())
def test_any_dimensions(n, data):
    m = [data.draw(st.integers(0, n)) for _ in range(2)]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    check(*(through(rng.normal(size=(5, n)), rng.normal(size=(5, k, n))) for k in m), tolerance=1e-6)


@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-8, 1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1])
@pytest.mark.parametrize("m", [(1, 1), (2, 2), (3, 2), (4, 4)])
@pytest.mark.parametrize("shared", [1, None])
def test_directions_shared_or_nearly(angle, m, shared):
    """What counts as shared is the definition's own choice, on both sides of its threshold."""
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
    assert exact_pairs(*side, *side, np.zeros(0, np.int64), np.zeros(0, np.int64)).shape == (0,)
