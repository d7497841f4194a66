# SPDX-License-Identifier: Apache-2.0
"""Rotations between clouds: found where clouds have a shape, not where they have none."""

import numpy as np
import pytest

from sfumato.attacks.seals.alignment import agreement, climb, moments_of, polar, search, standardise


def cloud(seed, count=4000, axes=4):
    """Points with another skew along every axis, other ones for every seed."""
    return np.random.default_rng(seed).gamma([0.1, 0.4, 1.2, 4.0][:axes], size=(count, axes))


@pytest.fixture(scope="module")
def turned():
    rotation = polar(np.random.default_rng(5).normal(size=(4, 4)))
    public, other = standardise(cloud(0)), standardise(cloud(1))
    flat = np.ones(4)  # no help from spreads: both were made equal
    return rotation, moments_of(public, flat), moments_of(other @ rotation, flat)


def test_the_rotation_between_two_clouds_is_found(turned):
    rotation, public, released = turned
    value, found = search(public, released, np.random.default_rng(0), 12, 24)[0]
    assert value > 0.9 * agreement(public, public, np.eye(4))[0]
    assert np.abs(found - rotation).max() < 0.2


def test_nothing_is_found_in_clouds_without_a_shape(turned):
    rotation, public, _ = turned
    shapeless = standardise(np.random.default_rng(2).normal(size=(4000, 4)))
    _, found = search(public, moments_of(shapeless, np.ones(4)), np.random.default_rng(0), 12, 24)[0]
    assert np.abs(found - rotation).max() > 0.3


def test_the_slope_is_that_of_the_agreement(turned):
    rotation, public, released = turned
    step = np.random.default_rng(1).normal(size=(4, 4)) * 1e-6
    third = agreement(public, released, rotation)
    nearby = agreement(public, released, rotation + step)
    assert nearby[0] - third[0] == pytest.approx(3 * (third[1] * step).sum(), rel=1e-3)


def test_climbing_never_goes_down_and_symmetries_are_tried(turned):
    rotation, public, released = turned
    begun = polar(rotation + 0.3 * np.random.default_rng(3).normal(size=(4, 4)))
    assert climb(public, released, begun)[0] >= agreement(public, released, begun)[0]
    tops = search(public, released, np.random.default_rng(0), 1, 0, [np.eye(4), rotation])
    assert len(tops) == 3
    assert [top[0] for top in tops] == sorted((top[0] for top in tops), reverse=True)
