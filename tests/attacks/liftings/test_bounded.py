# SPDX-License-Identifier: Apache-2.0
"""Bounded outputs: saturated ones are found, unbounded ones are not."""

from functools import partial

import numpy as np
import pytest

import sfumato
from sfumato.attacks.knowledge import Knowledge
from sfumato.attacks.liftings.bounded import local_minima, recover_bounded
from sfumato.attacks.run import score_recovery
from sfumato.types.concealed import Subspaces

pytestmark = pytest.mark.filterwarnings("ignore::sfumato.errors.EvaluationOnlyWarning")
conceal = partial(sfumato.conceal, evaluation_seed=1)


def saturated(count, seed):
    """What a network with a tanh at its end gives: most values near -1 or 1, scaled to unit norm."""
    rows = np.tanh(3 * np.random.default_rng(seed).normal(size=(count, 128)))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def clear():
    return sfumato.Features(np.zeros((60, 4)), saturated(60, 0), sfumato.Extractor("hardtfeat-x"))


def test_it_wins_against_saturated_outputs(clear):
    found = recover_bounded(conceal(clear, "random-2"), Knowledge())
    assert score_recovery(found, clear.descriptors)["within 0.02"] > 0.9
    assert np.allclose(np.linalg.norm(found.descriptors, axis=1), 1, atol=1e-4)


@pytest.mark.slow
def test_known_decoys_are_passed_over(clear):
    decoys = sfumato.Decoys(saturated(300, 1), clear.extractor)
    hidden = conceal(clear, "hybrid-2", decoys)
    blind = score_recovery(recover_bounded(hidden, Knowledge()), clear.descriptors)["within 0.1"]
    aware = recover_bounded(hidden, Knowledge(decoys=decoys.descriptors))
    assert score_recovery(aware, clear.descriptors)["within 0.1"] > 0.9
    assert blind < 0.8  # a decoy is as saturated


def test_it_comes_near_in_three_dimensions(clear):
    some = sfumato.Features(clear.keypoints[:30], clear.descriptors[:30], clear.extractor)
    found = recover_bounded(conceal(some, "random-3"), Knowledge())
    assert score_recovery(found, some.descriptors)["within 0.3"] > 0.8


def test_it_loses_against_unbounded_outputs(gaussian):
    rows = np.random.default_rng(5).normal(size=(400, 128))
    decoys = sfumato.Decoys(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    found = recover_bounded(conceal(gaussian, "adversarial-2", decoys), Knowledge())
    assert score_recovery(found, gaussian.descriptors)["within 0.1"] < 0.2


def test_minima_are_on_the_sphere(clear):
    subspaces = conceal(clear.descriptors, "random-2")
    coefficients, values = local_minima(subspaces, np.full(60, 0.1))
    there = np.isfinite(values)
    assert np.allclose(np.linalg.norm(coefficients[there], axis=1), 0.1)
    points = subspaces.origin[:, None] + coefficients @ subspaces.basis
    assert np.allclose(np.abs(points).max(axis=2)[there], values[there], atol=1e-6)


def test_subspaces_that_miss_the_sphere_keep_their_origin(clear):
    far = Subspaces(2 * clear.descriptors, np.eye(2, 128)[None].repeat(60, axis=0))
    hidden = sfumato.ConcealedFeatures(np.zeros((60, 4)), far, "random-2", clear.extractor)
    assert (recover_bounded(hidden, Knowledge()).confidence == 0).all()
