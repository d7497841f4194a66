# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.training.ninja.network import discriminant
from sfumato.training.pairs import DescriptorPairs

pytest.importorskip("scipy")


def pairs_along(axis: int, rng: np.random.Generator, count: int = 4000, dim: int = 6) -> DescriptorPairs:
    """Points that differ along one axis, seen with noise along all; noise is strongest along another axis."""
    points = rng.normal(size=(count, dim)) * np.where(np.arange(dim) == axis, 3.0, 0.1)
    noise = np.where(np.arange(dim) == (axis + 1) % dim, 5.0, 0.2)
    views = [(points + noise * rng.normal(size=points.shape)).astype(np.float32) for _ in range(2)]
    return DescriptorPairs(*views, np.arange(count), np.zeros(count, np.int32))


@pytest.mark.parametrize("axis", [0, 4])
def test_the_first_direction_is_the_one_along_which_points_differ_and_views_do_not(axis: int):
    found = discriminant(pairs_along(axis, np.random.default_rng(axis)))
    first = np.abs(found.directions[:, 0]) / np.linalg.norm(found.directions[:, 0])
    assert first[axis] > 0.99
    assert np.abs(found.directions[(axis + 1) % 6, 0]) < 0.05 * np.abs(found.directions[axis, 0])


def test_views_of_one_point_spread_by_one_along_every_direction():
    pairs = pairs_along(2, np.random.default_rng(5))
    found = discriminant(pairs)
    apart = (pairs.first - pairs.second) @ found.directions / np.sqrt(2)
    assert np.allclose(apart.T @ apart / len(apart), np.eye(6), atol=0.02)
    assert np.allclose(found.mean, (pairs.first.mean(axis=0) + pairs.second.mean(axis=0)) / 2, atol=1e-5)


def test_directions_in_which_nothing_moves_are_harmless():
    pairs = pairs_along(1, np.random.default_rng(6))
    still = np.pad(pairs.first, ((0, 0), (0, 2))), np.pad(pairs.second, ((0, 0), (0, 2)))
    found = discriminant(DescriptorPairs(*still, pairs.points, pairs.groups))
    assert np.isfinite(found.directions).all()
    assert np.argmax(np.abs(found.directions[:, 0])) == 1


def test_repr_tells_no_numbers():
    assert repr(discriminant(pairs_along(0, np.random.default_rng(7)))) == "Discriminant(6 numbers)"
