# SPDX-License-Identifier: Apache-2.0
"""What an attacker knows is checked at the door, shown without values, and asked for by name."""

from dataclasses import fields

import numpy as np
import pytest

import sfumato
from sfumato.attacks.knowledge import Companions, Knowledge, KnownPairs, Recovery, fallback
from sfumato.attacks.registry import Attack, run_attack
from sfumato.errors import InputError


@pytest.fixture
def hidden():
    points = np.random.default_rng(0).normal(size=(5, 8))
    features = sfumato.Features(np.zeros((5, 4)), points / np.linalg.norm(points, axis=1, keepdims=True))
    return sfumato.conceal(features, "random-2")


def echo(features, knowledge):
    return fallback(features.code)


def test_known_names_what_is_given(hidden):
    assert Knowledge().known == ()
    everything = Knowledge(
        public=np.ones((3, 8)), seeds=(1, np.int64(2)), decoder=lambda s: s.origin,
        releases=Companions(rows=np.arange(5), subspaces=hidden.code),
    )  # fmt: skip
    assert everything.known == ("public", "releases", "seeds", "decoder")
    assert everything.seeds == (1, 2)


def test_reprs_show_shapes_and_no_values(hidden):
    others = Companions(rows=np.array([0, 0]), subspaces=hidden.code[:2])
    guess = Recovery(np.full((1, 2), 0.123), np.ones(1))
    for value in (Knowledge(public=np.full((3, 8), 0.123), releases=others), others, guess):
        assert "0.12" not in repr(value)
    assert repr(Knowledge(public=np.ones((3, 8)))) == "Knowledge(public 3)"


@pytest.mark.parametrize(
    "wrong",
    [
        {"public": np.ones(3)},
        {"decoys": np.full((2, 8), np.nan)},
        {"releases": np.ones((2, 8))},
        {"seeds": (1.5,)},
        {"decoder": 3},
    ],
)
def test_wrong_knowledge_is_refused(wrong):
    with pytest.raises(InputError):
        Knowledge(**wrong)


def test_companions_are_checked(hidden):
    with pytest.raises(InputError, match="row"):
        Companions(rows=np.array([-1]), subspaces=hidden.code[:1])
    with pytest.raises(InputError):
        Companions(rows=np.array([0, 1]), subspaces=hidden.code[:1])
    twice = Companions(rows=np.array([0, 0]), subspaces=hidden.code[:2])
    with pytest.raises(InputError, match="partner"):
        Knowledge(partners=twice)
    assert len(Knowledge(tracks=twice).tracks) == 2


def test_an_attack_says_what_it_needs(hidden):
    attack = Attack("x", ("public", "clear"), "much", echo)
    with pytest.raises(InputError, match="public descriptors"):
        run_attack(attack, hidden, Knowledge())
    with pytest.raises(InputError, match="Knowledge"):
        Attack("x", ("crystal ball",), "much", echo)


@pytest.mark.parametrize(
    "knowledge",
    [
        lambda hidden: Knowledge(public=np.ones((3, 9))),
        lambda hidden: Knowledge(clear=np.ones((4, 8))),
        lambda hidden: Knowledge(tracks=Companions(rows=np.array([5]), subspaces=hidden.code[:1])),
    ],
)
def test_knowledge_about_other_descriptors_is_refused(hidden, knowledge):
    with pytest.raises(InputError):
        run_attack(Attack("x", (), "nothing", echo), hidden, knowledge(hidden))


def test_an_attack_sees_what_it_needs_and_is_helped_by_and_no_more(hidden):
    seen = []

    def spy(features, knowledge):
        seen.append(knowledge)
        return fallback(features.code)

    rows = np.ones((3, 8))
    companions = Companions(rows=np.arange(5), subspaces=hidden.code)
    everything = Knowledge(
        public=rows, decoys=rows, releases=companions, partners=companions, tracks=companions, clear=np.ones((5, 8)),
        seeds=(1,), decoder=lambda s: s.origin, encoder=lambda rows: rows, point_decoder=lambda rows: rows,
        pool=rows, pairs=KnownPairs(descriptors=rows, codes=rows), told=KnownPairs(descriptors=rows, codes=rows),
    )  # fmt: skip
    for needs, helped_by in (((), ()), ((), ("decoys",)), (("public",), ("tracks", "seeds")), (("clear",), ())):
        attack = Attack("spy", needs, "nothing", spy, helped_by=helped_by)
        run_attack(attack, hidden, everything)
        assert set(seen[-1].known) == {*needs, *helped_by}
        assert attack.uses_on(hidden.recipe, everything) == (*needs, *helped_by)
    assert Attack("spy", (), "", spy, helped_by=("decoys", "public")).uses_on(
        hidden.recipe, Knowledge(public=rows)
    ) == ("public",)
    assert set(everything.known) == {field.name for field in fields(Knowledge)}
    for wrong in ("clear", "crystal ball"):
        with pytest.raises(InputError):
            Attack("spy", (), "", spy, helped_by=(wrong,))


def test_no_features_give_no_guesses(hidden):
    none = sfumato.ConcealedFeatures(np.zeros((0, 4)), hidden.code[:0], "random-2")
    found = run_attack(Attack("x", (), "nothing", echo), none, Knowledge())
    assert found.descriptors.shape == (0, 8)
    assert len(found) == 0


def test_an_attack_that_returns_other_rows_is_refused(hidden):
    lazy = Attack("x", (), "nothing", lambda features, knowledge: Recovery(np.zeros((1, 8)), np.zeros(1)))
    with pytest.raises(InputError, match="returned"):
        run_attack(lazy, hidden, Knowledge())


def test_the_fallback_is_the_origin_of_unit_norm(hidden):
    guess = fallback(hidden.code)
    assert np.allclose(np.linalg.norm(guess.descriptors, axis=1), 1, atol=1e-6)
    assert (guess.confidence == 0).all()
    with pytest.raises(InputError, match="0 to 1"):
        Recovery(np.zeros((1, 2)), np.array([1.5]))


def test_behind_an_encoder_the_clear_dimension_is_that_of_what_is_known(hidden):
    encoded = sfumato.ConcealedFeatures(np.zeros((5, 4)), hidden.code, "ninja:x@0123456789ab+random-2")
    known = Knowledge(public=np.ones((3, 6)), clear=np.ones((5, 6)), encoder=lambda rows: rows)
    known.check(encoded)
    assert known.clear_dim(encoded) == 6
    assert known.known == ("public", "clear", "encoder")
    with pytest.raises(InputError, match="concealed descriptors 6"):
        Knowledge(public=np.ones((3, 7)), clear=np.ones((5, 6))).check(encoded)
    with pytest.raises(InputError, match="function"):
        Knowledge(encoder=3)
    guess = Attack("x", (), "", lambda features, knowledge: Recovery(np.ones((5, 6)), np.ones(5)), encoded=("encoder",))
    assert run_attack(guess, encoded, known).descriptors.shape == (5, 6)
    with pytest.raises(InputError, match="the encoder"):
        run_attack(guess, encoded, Knowledge())
    with pytest.raises(InputError, match="returned"):
        run_attack(guess, hidden, Knowledge())


def test_attacks_say_whether_they_are_for_encoded_features(hidden):
    encoded = sfumato.ConcealedFeatures(np.zeros((5, 4)), hidden.code, "ninja:x@0123456789ab+random-2")
    with pytest.raises(InputError, match="went"):
        run_attack(Attack("x", (), "", echo), encoded, Knowledge())
    with pytest.raises(InputError, match="through"):
        run_attack(Attack("x", (), "", echo, encoded=(), only_encoded=True), hidden, Knowledge())
    with pytest.raises(InputError, match="Knowledge"):
        Attack("x", (), "", echo, encoded=("crystal ball",))
