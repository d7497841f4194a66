# SPDX-License-Identifier: Apache-2.0
from functools import partial

import numpy as np
import pytest

import sfumato
from sfumato.attack.knowledge import Knowledge, run_attack
from sfumato.attack.table import ATTACKS, applicable

pytestmark = pytest.mark.filterwarnings("ignore::sfumato.errors.EvaluationOnlyWarning")
conceal = partial(sfumato.conceal, evaluation_seed=1)


def test_every_attack_is_there_under_its_name():
    names = "vertex bounded nearest nearest-projected oracle oracle-projected decoys clusters density intersection"
    assert list(ATTACKS) == [*names.split(), "reveal", "tracks", "decoder", "replay"]
    assert all(attack.name == name and attack.assumes for name, attack in ATTACKS.items())


def test_knowledge_and_kind_decide_what_is_possible(sift, gaussian):
    hidden, other = conceal(sift, "random-2"), conceal(gaussian, "random-2")
    assert applicable(hidden, Knowledge()) == ("vertex",)
    assert applicable(other, Knowledge()) == ("vertex", "bounded")
    named = sfumato.Features(gaussian.keypoints, gaussian.descriptors, sfumato.Extractor("hardnet-1"))
    assert applicable(conceal(named, "random-2"), Knowledge()) == ("bounded",)
    more = applicable(hidden, Knowledge(public=sift.descriptors, clear=sift.descriptors))
    assert {"nearest", "oracle", "clusters", "density"} <= set(more)
    assert "replay" not in more
    assert "replay" in applicable(hidden, Knowledge(seeds=(0,), decoys=sift.descriptors))


def test_no_features_are_nothing_to_any_attack(sift):
    hidden = conceal(sift, "random-2")
    none = sfumato.ConcealedFeatures(np.zeros((0, 4)), hidden.subspaces[:0], "random-2", hidden.extractor)
    given = Knowledge(public=sift.descriptors, decoys=sift.descriptors, clear=sift.descriptors[:0], seeds=(1,))
    for name in applicable(none, given):
        assert len(run_attack(ATTACKS[name], none, given)) == 0
