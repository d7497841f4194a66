# SPDX-License-Identifier: Apache-2.0
"""Corners of unit norm: clear SIFT is one of them, in float32 and float16, in planes and beyond."""

from functools import partial

import numpy as np
import pytest

import sfumato
from sfumato.attacks.liftings.corners import FLOAT16, FLOAT32, sharpen, unit_corners
from sfumato.types.concealed import Subspaces

pytestmark = pytest.mark.filterwarnings("ignore::sfumato.errors.EvaluationOnlyWarning")
conceal = partial(sfumato.conceal, evaluation_seed=1)


def share(corners, clear):
    gaps = np.linalg.norm(corners.points - clear[corners.rows], axis=1)
    return np.unique(corners.rows[gaps < 0.02]).size / len(clear)


@pytest.mark.parametrize(("recipe", "least"), [("random-2", 0.98), ("random-3", 0.95), ("random-5", 0.8)])
def test_the_clear_descriptor_is_a_corner(sift, recipe, least):
    subspaces = conceal(sift.descriptors[:80], recipe)
    corners = unit_corners(subspaces)
    assert share(corners, sift.descriptors[:80]) >= least
    assert (corners.points > -1e-4).all()
    assert np.allclose(np.linalg.norm(corners.points, axis=1), 1, atol=FLOAT32.norm)


def test_float16_needs_its_own_precision(sift):
    exact = conceal(sift.descriptors, "random-2")
    rounded = Subspaces(exact.origin.astype(np.float16), exact.basis.astype(np.float16))
    assert share(unit_corners(rounded, FLOAT16), sift.descriptors) > 0.95
    assert share(unit_corners(rounded, FLOAT32), sift.descriptors) < 0.5


def test_ties_find_what_zeros_alone_do_not(sift):
    rng = np.random.default_rng(0)
    filled = np.where(sift.descriptors == 0, 0.002 + 0.002 * rng.random(sift.descriptors.shape), sift.descriptors)
    filled /= np.linalg.norm(filled, axis=1, keepdims=True)
    subspaces = conceal(filled, "random-2")
    assert share(unit_corners(subspaces), filled) > 0.9
    assert share(unit_corners(subspaces, with_ties=False), filled) < 0.5


def test_counts_are_of_the_point(sift):
    corners = unit_corners(conceal(sift.descriptors, "random-2"))
    right = np.linalg.norm(corners.points - sift.descriptors[corners.rows], axis=1) < 1e-3
    zeros = (sift.descriptors == 0).sum(axis=1)[corners.rows]
    assert (corners.zeros[right] == zeros[right]).mean() > 0.95


def test_sharpening_undoes_a_push(sift):
    subspaces = conceal(sift.descriptors, "random-2")
    origin, basis = subspaces.origin.astype(float), subspaces.basis.astype(float)
    along = np.einsum("nki,ni->nk", basis, sift.descriptors.astype(float))
    pushed = along + 1e-5 * np.random.default_rng(0).normal(size=along.shape)
    back, _, _ = sharpen(origin, basis, pushed, 1e-4)
    assert np.median(np.abs(back - along)) < 0.2 * np.median(np.abs(pushed - along))


def test_unstructured_points_are_no_corner(gaussian):
    assert share(unit_corners(conceal(gaussian.descriptors, "random-2")), gaussian.descriptors) == 0


def test_nothing_has_no_corners(sift):
    subspaces = conceal(sift.descriptors, "random-2")
    assert len(unit_corners(subspaces[:0])) == 0
    points = Subspaces(sift.descriptors, np.zeros((len(sift), 0, 128)))
    assert len(unit_corners(points)) == 0
    assert "0 of 0" in repr(unit_corners(subspaces[:0]))
