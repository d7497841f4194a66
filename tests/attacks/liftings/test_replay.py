# SPDX-License-Identifier: Apache-2.0
"""Replay: a lifting seeded from an image's number is undone; Sfumato's own draws are not."""

import numpy as np
import pytest

import sfumato
from sfumato.attacks.knowledge import Knowledge
from sfumato.attacks.liftings.replay import GuessableDraws, recover_replay
from sfumato.attacks.run import score_recovery
from sfumato.concealment.decoys import full_pool, part_pool
from sfumato.concealment.draw_decoys import Supply
from sfumato.concealment.lifting import lift
from sfumato.concealment.randomness import SystemDraws
from sfumato.concealment.resolve import resolve
from sfumato.errors import EvaluationOnlyWarning, InputError
from sfumato.types.recipe import Link


def lifted(clear, link, decoys, draws):
    """Conceal with draws of somebody's own."""
    pool = part_pool(decoys, len(clear), draws) if link.kind.startswith("sub") else full_pool(decoys, len(clear))
    supply = Supply(link, decoys, pool, resolve("random-2")) if link.decoy_count else None
    subspaces = lift(clear.descriptors, link, supply, draws)
    return sfumato.ConcealedFeatures(clear.keypoints, subspaces, str(link), clear.extractor, clear.image_size)


@pytest.mark.parametrize("link", [Link("sub-hybrid", 2), Link("hybrid", 4), Link("adversarial", 2)])
def test_it_wins_against_a_guessable_seed(sift, decoys, link):
    hidden = lifted(sift, link, decoys, GuessableDraws(7))
    found = recover_replay(hidden, Knowledge(seeds=tuple(range(5, 9)), decoys=decoys.descriptors))
    assert score_recovery(found, sift.descriptors)["within 0.02"] > 0.97
    assert np.median(found.confidence) > 0.9


def test_it_loses_with_the_wrong_seeds_and_against_the_operating_system(sift, decoys):
    link = Link("sub-hybrid", 2)
    knowledge = Knowledge(seeds=(5, 6), decoys=decoys.descriptors)
    for draws in (GuessableDraws(7), SystemDraws()):
        found = recover_replay(lifted(sift, link, decoys, draws), knowledge)
        assert score_recovery(found, sift.descriptors)["within 0.02"] == 0
        assert (found.confidence == 0).all()


def test_it_loses_against_the_evaluation_seed_which_is_mixed_with_the_descriptors(sift, decoys):
    with pytest.warns(EvaluationOnlyWarning):
        hidden = sfumato.conceal(sift, "sub-hybrid-2", decoys, evaluation_seed=7)
    found = recover_replay(hidden, Knowledge(seeds=(7,), decoys=decoys.descriptors))
    assert (found.confidence == 0).all()


def test_random_directions_tell_nothing(sift, decoys):
    hidden = lifted(sift, Link("random", 2), decoys, GuessableDraws(7))
    found = recover_replay(hidden, Knowledge(seeds=(7,), decoys=decoys.descriptors))
    assert (found.confidence == 0).all()
    with pytest.raises(InputError, match="seeds"):
        recover_replay(hidden, Knowledge(decoys=decoys.descriptors))
