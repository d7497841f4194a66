# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import sfumato
from sfumato.attacks.knowledge import Companions, Knowledge, KnownPairs, rows_of
from sfumato.attacks.registry import (
    ATTACKS,
    AttackId,
    applicable_attacks,
    attack_ids,
    run_attack,
    two_stage_attacks,
)
from sfumato.concealment.resolve import remember, resolve
from sfumato.errors import InputError
from sfumato.types.recipe import Recipe
from sfumato.types.record import AttackFacts, AttackRole

pytestmark = pytest.mark.filterwarnings("ignore::sfumato.errors.EvaluationOnlyWarning")
conceal = partial(sfumato.conceal, evaluation_seed=1)


def test_every_attack_is_there_under_its_name():
    names = "vertex bounded nearest nearest-base nearest-projected nearest-sphere oracle oracle-projected oracle-sphere"
    rest = "oracle-base oracle-encoded decoys clusters density intersection reveal tracks decoder regression"
    sealed = "alignment told-alignment known-pairs key-recovery replay"
    assert list(ATTACKS) == [*names.split(), *rest.split(), *sealed.split()]
    assert all(attack.name == name and attack.assumes and attack.about for name, attack in ATTACKS.items())


def test_knowledge_and_kind_decide_what_is_possible(sift, gaussian):
    hidden, other = conceal(sift, "random-2"), conceal(gaussian, "random-2")
    assert applicable_attacks(hidden, Knowledge()) == ("vertex",)
    assert applicable_attacks(other, Knowledge()) == ("vertex", "bounded")
    named = sfumato.Features(gaussian.keypoints, gaussian.descriptors, sfumato.Extractor("hardnet-1"))
    assert applicable_attacks(conceal(named, "random-2"), Knowledge()) == ("bounded",)
    more = applicable_attacks(hidden, Knowledge(public=sift.descriptors, clear=sift.descriptors))
    assert {"nearest", "oracle", "clusters", "density"} <= set(more)
    assert "replay" not in more
    assert "replay" in applicable_attacks(hidden, Knowledge(seeds=(0,), decoys=sift.descriptors))


def test_only_oracles_are_handed_clear_descriptors(sift):
    """And what an attack reads of its knowledge, it declares."""
    hidden = conceal(sift, "sub-hybrid-2", sfumato.load_decoys())
    itself = Companions(rows=np.arange(len(sift)), subspaces=hidden.code)
    given = Knowledge(
        public=sift.descriptors, decoys=sfumato.load_decoys().descriptors, clear=sift.descriptors, seeds=(1,),
        releases=itself, partners=itself, tracks=itself, decoder=lambda s: s.origin,
    )  # fmt: skip
    for name in (*applicable_attacks(hidden, given), "bounded"):
        read, seen = set(), []
        recover = ATTACKS[name].recover

        def spy(features, knowledge, read=read, seen=seen, recover=recover):
            seen.append(knowledge)
            return recover(features, _Watched(knowledge, read))

        run_attack(replace(ATTACKS[name], recover=spy), hidden, given)
        assert (seen[0].clear is not None) == name.startswith("oracle"), name
        declared = {*ATTACKS[name].needs, *ATTACKS[name].helped_by}
        if name == "clusters":
            read.discard("decoys")  # looked at for their norm, and not used: there are public ones
        assert read <= declared, name


class _Watched:
    """Knowledge that notes which of its fields are read."""

    def __init__(self, knowledge, read):
        self._knowledge, self._read = knowledge, read

    def __getattr__(self, name):
        self._read.add(name)
        return getattr(self._knowledge, name)


def test_no_features_are_nothing_to_any_attack(sift):
    hidden = conceal(sift, "random-2")
    none = sfumato.ConcealedFeatures(np.zeros((0, 4)), hidden.code[:0], "random-2", hidden.extractor)
    given = Knowledge(public=sift.descriptors, decoys=sift.descriptors, clear=sift.descriptors[:0], seeds=(1,))
    for name in applicable_attacks(none, given):
        assert len(run_attack(ATTACKS[name], none, given)) == 0


def test_encoded_features_leave_attacks_that_end_in_clear_descriptors(sift, encoder):
    hidden = sfumato.conceal(sift, encoder.recipe)
    rows = np.ones((2, 128))
    assert applicable_attacks(hidden, Knowledge(public=rows)) == ("nearest-base",)
    known = Knowledge(public=rows, clear=sift.descriptors, decoys=rows, encoder=encoder, decoder=lambda s: s.origin)
    assert applicable_attacks(hidden, known) == (
        "nearest", "nearest-base", "oracle", "oracle-base", "oracle-encoded", "decoder", "regression"
    )  # fmt: skip
    lifted = sfumato.conceal(sift, f"{encoder.recipe}+random-2")
    assert "vertex" not in applicable_attacks(lifted, known)
    assert {"oracle", "decoys", "density", "nearest-sphere"} <= set(applicable_attacks(lifted, known))
    assert "regression" not in applicable_attacks(lifted, known)
    plain = applicable_attacks(sfumato.conceal(sift, "random-2"), known)
    assert not {"nearest-base", "oracle-base", "oracle-encoded"} & set(plain)


def test_databases_of_another_dimension_are_left_out(sift, make_encoder):
    made = remember(make_encoder(dims=(128, 64)))
    hidden = sfumato.conceal(sift, f"ninja:narrow@{made.checksum[:12]}")
    known = Knowledge(public=np.ones((2, 128)), clear=sift.descriptors, encoder=resolve(hidden.recipe))
    assert applicable_attacks(hidden, known) == ("nearest", "oracle", "regression")


def test_sealed_features_leave_attacks_that_need_no_key(sift):
    hidden = conceal(sift, "sealed-64")
    known = Knowledge(public=sift.descriptors, clear=sift.descriptors, decoder=lambda s: s.origin)
    assert applicable_attacks(hidden, known) == ()
    pairs = KnownPairs(descriptors=sift.descriptors, codes=rows_of(hidden.code))
    every = replace(known, pool=rows_of(hidden.code), pairs=pairs)
    assert applicable_attacks(hidden, every) == ("alignment", "known-pairs", "key-recovery")
    with pytest.raises(InputError, match="for sealed"):
        run_attack(ATTACKS["nearest"], hidden, every)
    with pytest.raises(InputError, match="unsealed"):
        run_attack(ATTACKS["alignment"], conceal(sift, "random-2"), known)


def test_every_measured_attack_is_known_again_by_its_record():
    for label, attack in attack_ids().items():
        assert attack.label == label
        for inverter in ("patch", "inverter trained on it", "unet"):
            painted = replace(attack, inverter=inverter)
            assert AttackId.of({"attack": label, "inverter": inverter}) == painted
            assert AttackFacts.of(painted.facts.params) == painted.facts
    assert AttackId.of({"attack": "told-alignment, inverter trained on it"}).role is AttackRole.BOUND
    unknown = AttackId.of({"attack": "a later one"})
    assert unknown.counts
    assert unknown.role is AttackRole.ORDINARY


def test_oracles_holders_of_the_key_and_the_scale_do_not_count():
    silent = {one.name for one in attack_ids().values() if not one.counts}
    assert silent == {name for name in ATTACKS if name.startswith("oracle")} | {
        "told-alignment", "known-pairs", "key-recovery", "clear", "floor"
    }  # fmt: skip


def test_attacks_in_two_stages_are_those_on_liftings():
    first = {one.name for one in two_stage_attacks().values()}
    assert first >= {"density", "nearest-projected", "intersection", "clusters", "oracle-sphere", "bounded", "decoys"}
    assert not first & {"vertex", "decoder", "reveal", "tracks", "replay", "regression", "alignment", "nearest-base"}
    assert AttackId("clusters", then="inverter").label == "clusters then inverter"
    assert AttackId("density", with_decoys=True, then="decoder").label == "density+decoys then decoder"


def test_resume_keys_name_what_the_attacker_knows_as_ever():
    lifted, chain = Recipe.of("sub-hybrid-2"), Recipe.of("ninja-x@0123456789ab+random-2")
    expected = {
        ("vertex+decoys", lifted): "decoys",
        ("density+decoys", lifted): "public, decoys",
        ("decoys", lifted): "public, decoys",
        ("decoys", chain): "decoys, encoder",
        ("density+decoys", chain): "public, encoder, decoys",
        ("oracle", lifted): "public, clear",
        ("clusters then decoder", chain): "public, encoder, decoder",
        ("decoys then inverter", chain): "public, decoys, encoder",
        ("direct", lifted): "",
    }
    assert {key: ", ".join(attack_ids()[key[0]].knows_on(key[1])) for key in expected} == expected
