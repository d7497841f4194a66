# SPDX-License-Identifier: Apache-2.0
"""A lifting after an encoder is attacked where it was lifted; what is found is carried back to clear descriptors."""

import numpy as np
import pytest

import sfumato
from sfumato.attacks.encoded import as_lifted, back_map, carry_back, encode_knowledge
from sfumato.attacks.knowledge import Companions, Knowledge
from sfumato.attacks.liftings.decoys import _decoy_share
from sfumato.attacks.registry import ATTACKS, applicable_attacks, run_attack
from sfumato.attacks.run import Materials, attack_archive, score_recovery
from sfumato.concealment.resolve import resolve
from sfumato.errors import InputError

RECIPE = "compress-48+sub-hybrid-2"


@pytest.fixture(scope="module")
def hidden(sift, decoys):
    return sfumato.conceal(sift, RECIPE, decoys)


@pytest.fixture(scope="module")
def known(hidden, decoys):
    return Knowledge(public=decoys.descriptors[::8], decoys=decoys.descriptors, encoder=resolve(hidden.recipe))


def test_two_releases_meet_in_the_space_that_was_lifted(sift, decoys, hidden, known):
    again = sfumato.conceal(sift, RECIPE, decoys)
    second = Companions(rows=np.arange(len(sift)), subspaces=again.code)
    given = Knowledge(public=known.public, releases=second, encoder=known.encoder)
    found = run_attack(ATTACKS["intersection"], hidden, given)
    inside = known.encoder(sift.descriptors)
    assert (np.linalg.norm(found.inside - inside, axis=1) < 0.02).mean() > 0.95  # broken there
    scores = score_recovery(found, sift.descriptors)
    assert scores["within 0.02"] < 0.05  # but 80 of 128 directions are lost, and only guessed
    assert scores["median"] < 0.5


def test_decoys_are_found_and_stripped_there(sift, hidden, known):
    there = as_lifted(hidden)
    assert str(there.recipe) == "sub-hybrid-2"
    assert there.extractor.name == "compress-sift"
    assert _decoy_share(there, encode_knowledge(known).decoys) == 1.0
    found = run_attack(ATTACKS["decoys"], hidden, known)
    distances = np.linalg.norm(found.inside - known.encoder(sift.descriptors), axis=1)
    assert np.median(distances) < 0.4
    assert found.descriptors.shape == sift.descriptors.shape


def test_least_squares_undo_components_alone_as_far_as_they_go(sift, decoys):
    hidden = sfumato.conceal(sift, "compress-96")
    known = Knowledge(public=decoys.descriptors[::8], encoder=resolve(hidden.recipe))
    assert "regression" in applicable_attacks(hidden, known)
    found = run_attack(ATTACKS["regression"], hidden, known)
    assert score_recovery(found, sift.descriptors)["within 0.3"] > 0.9
    assert found.inside is None  # nothing was lifted
    assert found.descriptors.min() >= 0
    assert np.abs(np.linalg.norm(found.descriptors, axis=1) - 1).max() < 1e-5
    narrow = sfumato.conceal(sift, "compress-8")
    weaker = run_attack(ATTACKS["regression"], narrow, Knowledge(public=known.public, encoder=resolve(narrow.recipe)))
    assert score_recovery(weaker, sift.descriptors)["median"] > score_recovery(found, sift.descriptors)["median"]


def test_a_decoder_of_the_encoder_alone_is_used_where_there_is_one(hidden, known):
    there = run_attack(ATTACKS["nearest-sphere"], hidden, known)
    oracle = Knowledge(encoder=known.encoder, point_decoder=lambda points: np.ones((len(points), 128)))
    assert (carry_back(there, oracle).descriptors == 1).all()
    assert back_map(known) is back_map(known)  # learned once
    with pytest.raises(InputError, match="public descriptors"):
        back_map(Knowledge(encoder=known.encoder))
    with pytest.raises(InputError, match="the encoder"):
        encode_knowledge(Knowledge(public=known.public))
    with pytest.raises(InputError, match="no lifting"):
        as_lifted(sfumato.conceal(sfumato.Features(np.zeros((2, 4)), np.eye(2, 128)), "compress-48"))


def test_archives_are_scored_in_both_spaces(sift, hidden, known):
    outcomes, left_out = attack_archive(
        {"a.jpg": hidden}, ["nearest-sphere"], Materials(general=known, clear={"a.jpg": sift})
    )
    assert not left_out
    facts = outcomes[0].facts
    assert facts["lifted space"]["count"] == len(sift)
    assert facts["lifted space"]["median"] < facts["median"]  # a projection shortens
    plain, _ = attack_archive(
        {"a.jpg": sfumato.conceal(sift, "random-2")}, ["vertex"], Materials(clear={"a.jpg": sift})
    )
    assert "lifted space" not in plain[0].facts
