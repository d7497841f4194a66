# SPDX-License-Identifier: Apache-2.0
"""Clear SIFT is on the lattice, a mixture of two is not, and rounding is undone."""

import numpy as np
import pytest

from sfumato.attacks.liftings.vertex import snap_rootsift, snap_sift
from sfumato.features.local import extract
from sfumato.images.samples import sample_image


def test_sift_is_snapped_to_itself_from_float16(sift):
    exact = sift.descriptors.astype(np.float64)
    snapped, misfit = snap_sift(exact + 2e-5 * np.random.default_rng(0).normal(size=exact.shape))
    assert misfit.max() < 0.1
    assert np.abs(snapped - exact).max() < 1e-6


def test_mixtures_are_not_on_the_lattice(sift):
    mixed = sift.descriptors[1:] * 0.61 + sift.descriptors[:-1] * 0.39
    mixed = mixed / np.linalg.norm(mixed, axis=1, keepdims=True)
    assert np.median(snap_sift(mixed)[1]) > 0.15


@pytest.mark.parametrize("extractor", ["colmap", "opencv"])
def test_rootsift_is_snapped_to_itself(extractor):
    rootsift = extract(sample_image("coffee"), extractor=extractor, descriptor="rootsift", max_features=150)
    exact = rootsift.descriptors.astype(np.float64)
    snapped, misfit = snap_rootsift(exact)
    assert (misfit < 0.1).mean() > 0.95
    good = misfit < 0.1
    assert np.abs(snapped[good] - exact[good]).max() < 1e-6
    mixed = exact[1:] * 0.61 + exact[:-1] * 0.39
    assert np.median(snap_rootsift(mixed / np.linalg.norm(mixed, axis=1, keepdims=True))[1]) > 0.15


def test_nothing(sift):
    for snap in (snap_sift, snap_rootsift):
        snapped, misfit = snap(np.zeros((0, 128)))
        assert snapped.shape == (0, 128)
        assert misfit.shape == (0,)
    assert snap_rootsift(np.zeros((1, 4)))[1].shape == (1,)
