# SPDX-License-Identifier: Apache-2.0
"""The vertex attack: wins against lifted SIFT with no knowledge at all, loses where descriptors have no structure."""

from functools import partial

import numpy as np
import pytest

import sfumato
from sfumato.attacks.knowledge import Knowledge
from sfumato.attacks.liftings.corners import FLOAT16, FLOAT32, Corners
from sfumato.attacks.liftings.vertex import VertexParams, guess_precision, likeness, recover_vertex
from sfumato.attacks.registry import ATTACKS, run_attack
from sfumato.attacks.run import score_recovery
from sfumato.concealment.decoys import as_rootsift
from sfumato.types.concealed import ConcealedFeatures, Subspaces

pytestmark = pytest.mark.filterwarnings("ignore::sfumato.errors.EvaluationOnlyWarning")
conceal = partial(sfumato.conceal, evaluation_seed=1)


def rounded(hidden):
    """What a float16 archive gives back."""
    subspaces = Subspaces(hidden.code.origin.astype(np.float16), hidden.code.basis.astype(np.float16))
    return ConcealedFeatures(hidden.keypoints, subspaces, hidden.recipe, hidden.extractor, hidden.image_size)


def broken(hidden, clear, knowledge=None):
    found = recover_vertex(hidden, knowledge or Knowledge())
    return score_recovery(found, clear.descriptors)["within 0.02"], found


@pytest.mark.parametrize("recipe", ["random-2", "sub-hybrid-2", "adversarial-2"])
def test_it_wins_against_planes(sift, decoys, recipe):
    hidden = conceal(sift, recipe, decoys)
    share, found = broken(hidden, sift)
    assert share > (0.97 if recipe == "random-2" else 0.8)
    wrong = np.linalg.norm(found.descriptors - sift.descriptors, axis=1) > 0.02
    assert found.confidence[~wrong].mean() > found.confidence[wrong].mean() if wrong.any() else True


def test_known_decoys_leave_no_doubt(sift, decoys):
    hidden = conceal(sift, "adversarial-2", decoys)
    blind, _ = broken(hidden, sift)
    share, found = broken(hidden, sift, Knowledge(decoys=decoys.descriptors))
    assert share > 0.97
    assert share >= blind
    assert np.median(found.confidence) > 0.8


def test_it_wins_against_float16_and_rootsift(sift, rootsift, decoys):
    hidden = rounded(conceal(sift, "sub-hybrid-2", decoys))
    assert guess_precision(hidden.code) is FLOAT16
    assert broken(hidden, sift, Knowledge(decoys=decoys.descriptors))[0] > 0.9
    rooted = as_rootsift(decoys)
    assert broken(conceal(rootsift, "sub-hybrid-2", rooted), rootsift)[0] > 0.8


def test_it_wins_in_four_dimensions(sift, decoys):
    hidden = conceal(sift, "sub-hybrid-4", decoys)
    assert guess_precision(hidden.code) is FLOAT32
    assert broken(hidden, sift, Knowledge(decoys=decoys.descriptors))[0] > 0.7


def test_it_loses_without_structure(gaussian):
    share, found = broken(conceal(gaussian, "random-2"), gaussian)
    assert share < 0.1  # random directions leave a circle so small that any point of it may be near
    assert found.confidence.max() < 0.5


@pytest.mark.slow
def test_it_loses_against_many_dimensions(sift):
    rows = np.argsort((sift.descriptors == 0).sum(axis=1))[:6]  # fewer zeros and ties than dimensions: no corner
    few = sfumato.Features(sift.keypoints[rows], sift.descriptors[rows], sift.extractor)
    assert broken(conceal(few, "random-40"), few)[0] == 0


def test_the_decoy_that_repeats_is_passed_over(sift):
    twin = sfumato.Decoys(sift.descriptors[:3], sfumato.Extractor("sift"), parts=1)  # real SIFT: looks tell nothing
    others = sfumato.Features(sift.keypoints[3:], sift.descriptors[3:], sift.extractor)
    assert broken(conceal(others, "hybrid-2", twin), others)[0] > 0.95


def test_zeros_alone_do_where_there_are_many(sift):
    alone = recover_vertex(conceal(sift, "random-2"), Knowledge(), VertexParams(with_ties=False))
    assert score_recovery(alone, sift.descriptors)["within 0.02"] > 0.9


def test_likeness_prefers_ties_and_zeros():
    point = np.full((2, 128), 1 / np.sqrt(128))
    point[:, 0] = 0.25
    corners = Corners(np.zeros(2, int), point, np.array([14, 0]), np.array([6, 1]))
    for kind in ("sift", "rootsift"):
        assert np.diff(likeness(corners, kind))[0] < -2


def test_real_photos(shared_data, decoys):
    photos = sorted((shared_data / "photos" / "bsds500" / "val").glob("*.jpg"))
    if not photos:
        pytest.skip("needs photos/bsds500/val")
    clear = sfumato.extract(photos[0], max_features=300)
    found = run_attack(ATTACKS["vertex"], conceal(clear, "sub-hybrid-2", decoys), Knowledge())
    assert score_recovery(found, clear.descriptors)["within 0.02"] > 0.9
