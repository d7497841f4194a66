# SPDX-License-Identifier: Apache-2.0
"""The mixture and its cuts by subspaces, against their definition."""

import numpy as np
import pytest

import sfumato
from sfumato.attacks.liftings.density import Mixture, cut, distinct, fit_mixture
from sfumato.attacks.liftings.sphere import place
from sfumato.errors import InputError


@pytest.fixture(scope="module")
def sample():
    rng = np.random.default_rng(0)
    centres = 3 * rng.standard_normal((3, 6))
    return np.concatenate([centre + rng.standard_normal((1000, 6)) * [1, 1, 0.1, 1, 0.5, 1] for centre in centres])


@pytest.fixture(scope="module")
def mixture(sample):
    return fit_mixture(sample, components=3)


def log_density(points, mixture):
    offset = points[:, None] - mixture.means
    values = mixture.levels - np.einsum("nki,kij,nkj->nk", offset, mixture.precisions, offset) / 2
    return np.log(np.exp(values).sum(axis=1))


def test_it_finds_the_clusters(sample, mixture):
    assert len(mixture) == 3
    expected = sample.reshape(3, 1000, 6).mean(axis=1)
    gaps = np.linalg.norm(mixture.means[:, None] - expected, axis=2)
    assert gaps.min(axis=0).max() < 0.3
    spread = np.sqrt(np.diagonal(np.linalg.inv(mixture.precisions), axis1=1, axis2=2))
    assert (spread[:, 2] < 0.6).all()
    assert (spread[:, 0] > 0.8).all()


def test_a_cut_is_the_density_along_the_subspace(mixture):
    rng = np.random.default_rng(1)
    subspaces = sfumato.Subspaces(rng.standard_normal((5, 6)), rng.standard_normal((5, 2, 6)))
    coefficients = rng.standard_normal((5, 4, 2))
    found = cut(mixture, subspaces).log_density(coefficients)
    for number in range(4):
        points = place(subspaces, coefficients[:, number])
        assert np.allclose(found[:, number], log_density(points, mixture), atol=1e-4)


@pytest.mark.parametrize("length", [None, 2.0])
def test_the_highest_mode_is_as_high_as_a_dense_scan(mixture, length):
    rng = np.random.default_rng(2)
    clear = mixture.means[rng.integers(0, 3, 12)] + 0.3 * rng.standard_normal((12, 6))
    subspaces = sfumato.Subspaces(clear, rng.standard_normal((12, 2, 6)))
    cuts = cut(mixture, subspaces)
    lengths = None if length is None else np.full(12, length)
    modes = cuts.modes(lengths, 3, 0.1)
    if length is None:
        axis = np.linspace(-8, 8, 161)
        scan = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(1, -1, 2)
    else:
        angles = np.linspace(0, 2 * np.pi, 2000)
        scan = length * np.stack([np.cos(angles), np.sin(angles)], axis=1)[None]
        assert np.allclose(np.linalg.norm(modes, axis=2), length, atol=1e-6)
    highest = cuts.log_density(np.repeat(scan, 12, axis=0)).max(axis=1)
    assert (cuts.log_density(modes).max(axis=1) >= highest - 0.02).all()


def test_distinct_points_are_apart_and_highest_first():
    points = np.array([[[0.0], [0.05], [1.0], [2.0]]])
    chosen, heights = distinct(points, np.array([[1.0, 3.0, 2.0, 0.0]]), 4, 0.3)
    assert chosen[0, :3, 0].tolist() == [0.05, 1.0, 2.0]
    assert heights[0].tolist() == [3.0, 2.0, 0.0, -np.inf]


def test_few_descriptors_make_one_component_and_one_makes_none(sample):
    assert len(fit_mixture(sample[:40])) == 1
    with pytest.raises(InputError, match="many public"):
        fit_mixture(sample[:1])


def test_its_repr_tells_no_numbers(mixture):
    assert repr(mixture) == "Mixture(3 components in R^6)"
    assert isinstance(mixture, Mixture)
