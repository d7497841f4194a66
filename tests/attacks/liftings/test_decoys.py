# SPDX-License-Identifier: Apache-2.0
"""Decoy removal: all decoys of a known database are found, none of another, and what is left is nearer."""

import math
from functools import partial

import numpy as np
import pytest

import sfumato
from sfumato.attacks.knowledge import Knowledge
from sfumato.attacks.liftings.decoys import _decoy_share, recover_decoys, used_decoys, usual_gap
from sfumato.attacks.liftings.neighbours import recover_nearest_projected
from sfumato.attacks.run import score_recovery
from sfumato.errors import InputError
from sfumato.images.samples import sample_image
from sfumato.types.concealed import ConcealedFeatures, Subspaces

pytestmark = pytest.mark.filterwarnings("ignore::sfumato.errors.EvaluationOnlyWarning")
conceal = partial(sfumato.conceal, evaluation_seed=1)


@pytest.fixture(scope="module")
def public():
    """Descriptors of the same and of another photo: an attacker who is lucky."""
    names = ("coffee", "astronaut")
    return np.concatenate([sfumato.extract(sample_image(name), max_features=1500).descriptors for name in names])


@pytest.mark.parametrize("recipe", ["sub-hybrid-2", "adversarial-4"])
def test_every_decoy_is_found(sift, decoys, recipe):
    hidden = conceal(sift, recipe, decoys)
    assert _decoy_share(hidden, decoys.descriptors) == 1
    half = Subspaces(hidden.code.origin.astype(np.float16), hidden.code.basis.astype(np.float16))
    stored = ConcealedFeatures(hidden.keypoints, half, hidden.recipe, hidden.extractor)
    assert _decoy_share(stored, decoys.descriptors) > 0.99


def test_another_database_holds_none(sift, decoys, public):
    hidden = conceal(sift, "sub-hybrid-2", decoys)
    other = public[~(public[:, None, :8] == sift.descriptors[None, :, :8]).all(axis=2).any(axis=1)]
    assert _decoy_share(hidden, other) < 0.02
    assert math.isnan(_decoy_share(conceal(sift, "random-2"), other))


def test_it_wins_where_the_public_set_holds_the_descriptors(sift, decoys, public):
    hidden = conceal(sift, "sub-hybrid-2", decoys)
    aware = recover_decoys(hidden, Knowledge(decoys=decoys.descriptors, public=public))
    assert score_recovery(aware, sift.descriptors)["within 0.02"] > 0.9
    misled = recover_nearest_projected(hidden, Knowledge(public=decoys.descriptors))
    assert score_recovery(misled, sift.descriptors)["within 0.02"] < 0.1


def test_it_loses_with_the_wrong_database(sift, decoys):
    hidden = conceal(sift, "adversarial-2", decoys)
    wrong = decoys.descriptors[np.unique(used_decoys(hidden, decoys.descriptors)[0])]
    rest = wrong[::2]  # the other half stays, and misleads
    found = recover_decoys(hidden, Knowledge(decoys=rest, public=wrong))
    assert score_recovery(found, sift.descriptors)["within 0.02"] < 0.2


def test_the_database_serves_as_public_set(sift, decoys):
    hidden = conceal(sift, "sub-hybrid-2", decoys)
    found = recover_decoys(hidden, Knowledge(decoys=decoys.descriptors))
    blind = recover_nearest_projected(hidden, Knowledge(public=decoys.descriptors))
    assert score_recovery(found, sift.descriptors)["mean"] < score_recovery(blind, sift.descriptors)["mean"] - 0.2
    with pytest.raises(InputError, match="database"):
        recover_decoys(hidden, Knowledge())


def test_generated_decoys_are_no_entries_and_those_near_are_suspected(sift, decoys, public):
    hidden = conceal(sift, "sub-hybrid-2-generated", decoys)
    assert _decoy_share(hidden, decoys.descriptors) == 0
    distances = usual_gap(decoys.descriptors)
    assert 0.2 < distances < 0.6
    rows, near = used_decoys(hidden, decoys.descriptors)
    assert rows.shape == (len(sift), 1)
    assert 0 <= near.mean() < 0.9
    known = Knowledge(decoys=decoys.descriptors, public=public)
    plain = score_recovery(recover_decoys(conceal(sift, "sub-hybrid-2", decoys), known), sift.descriptors)
    found = score_recovery(recover_decoys(hidden, known), sift.descriptors)
    assert found["within 0.3"] < plain["within 0.3"]
