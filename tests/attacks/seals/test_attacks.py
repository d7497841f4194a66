# SPDX-License-Identifier: Apache-2.0
"""Attacks on sealed features as they are asked for: what each is given, and what it is not."""

from functools import partial

import numpy as np
import pytest

import sfumato
from sfumato.attacks.knowledge import Knowledge, KnownPairs, rows_of
from sfumato.attacks.registry import ATTACKS, run_attack
from sfumato.attacks.run import Materials, attack_archive, pool_of
from sfumato.attacks.seals import attacks
from sfumato.attacks.seals.alignment import AlignmentParams, learn_alignment
from sfumato.concealment.resolve import before_seal
from sfumato.errors import InputError
from sfumato.images.samples import sample_image

pytestmark = pytest.mark.filterwarnings("ignore::sfumato.errors.EvaluationOnlyWarning")
conceal = partial(sfumato.conceal, evaluation_seed=1, positions=True)


@pytest.fixture
def quick(monkeypatch):
    """Attackers in a hurry, who note how often they began."""
    begun = []

    def learn(codes, public, bandwidth, mirrored=()):
        begun.append((codes.shape, public.shape, bandwidth, len(mirrored)))
        return learn_alignment(
            codes, public, bandwidth, AlignmentParams(axes=(4,), starts=2, hops=2, bits=128), mirrored
        )

    monkeypatch.setattr(attacks, "learn_alignment", learn)
    attacks._learned.clear()
    return begun


@pytest.fixture(scope="module")
def clear(sift):
    halves = [np.arange(0, 75), np.arange(75, 150)]
    return {
        f"{k}.jpg": sfumato.Features(sift.keypoints[rows], sift.descriptors[rows], sift.extractor, sift.image_size)
        for k, rows in enumerate(halves)
    }


def test_alignment_is_learned_once_of_all_images(clear, decoys, quick):
    archive = {name: conceal(features, "sealed-64:0.5") for name, features in clear.items()}
    materials = Materials(general=Knowledge(public=decoys.descriptors[:2000]), clear=clear)
    (outcome,), left_out = attack_archive(archive, ["alignment"], materials)
    assert not left_out
    assert quick == [((150, 64), (2000, 128), 0.5, 3)]
    assert outcome.facts["images"] == 2
    assert outcome.facts["knowledge"] == ["public", "pool"]
    assert "median" in outcome.facts


def test_rows_in_an_order_under_the_key_are_not_scored(clear, decoys):
    """Without the key nobody knows which clear feature a row stands for: a figure would mean nothing."""
    archive = {name: sfumato.conceal(features, "sealed-64:0.5", evaluation_seed=1) for name, features in clear.items()}
    materials = Materials(general=Knowledge(public=decoys.descriptors[:2000]), clear=clear)
    _, left_out = attack_archive(archive, ["alignment"], materials)
    assert set(left_out) == set(archive)
    assert all("--positions" in reason for reason in left_out.values())


def test_an_encoder_before_the_seal_is_undone(clear, decoys, quick):
    recipe = "ninja-sift-1.0+sealed-64"
    archive = {name: conceal(features, recipe) for name, features in clear.items()}
    known = Knowledge(public=decoys.descriptors[:2000], encoder=before_seal(recipe))
    (outcome,), left_out = attack_archive(archive, ["alignment"], Materials(general=known, clear=clear))
    assert not left_out
    assert quick[0][1] == (2000, 49)
    assert outcome.distances[0].shape == (75,)
    assert before_seal("sealed-64") is None


def test_a_pool_holds_codes_of_one_key_alone(clear):
    names = list(clear)
    archive = {name: conceal(clear[name], "sealed-64", evaluation_seed=k) for k, name in enumerate(names)}
    assert pool_of(archive).shape == (75, 64)
    assert pool_of({names[0]: conceal(clear[names[0]], "random-2")}) is None
    assert pool_of({}) is None


def test_known_pairs_read_what_the_key_holder_sealed(clear, sift):
    hidden = conceal(clear["0.jpg"], "sealed-64")
    itself = KnownPairs(descriptors=clear["0.jpg"].descriptors, codes=rows_of(hidden.code))
    found = run_attack(ATTACKS["known-pairs"], hidden, Knowledge(pairs=itself))
    assert found.descriptors.shape == (75, 128)
    short = KnownPairs(descriptors=itself.descriptors, codes=itself.codes[:, :32])
    with pytest.raises(InputError, match="32 bits"):
        run_attack(ATTACKS["known-pairs"], hidden, Knowledge(pairs=short))


def test_mirrored_orders_are_those_of_mirrored_patches():
    """Of a photo and its mirror image SIFT gives descriptors that differ by the first order."""
    mirrored, inverted, both = attacks.mirror_orders()
    for order in (mirrored, inverted, both):
        assert np.array_equal(order[order], np.arange(128))
    cv2 = pytest.importorskip("cv2")
    pixels = cv2.cvtColor(sample_image("coffee").pixels, cv2.COLOR_RGB2GRAY)
    maker = cv2.SIFT_create(200)
    plain = maker.detectAndCompute(pixels, None)[1]
    flipped = maker.detectAndCompute(np.ascontiguousarray(pixels[:, ::-1]), None)[1]
    negative = maker.detectAndCompute(255 - pixels, None)[1]

    def nearest(first, second):
        return np.median(np.linalg.norm(first[:, None] - second[None], axis=2).min(axis=1))

    assert nearest(plain[:, mirrored], flipped) < 0.5 * nearest(plain, flipped)
    assert nearest(plain[:, inverted], negative) < 0.5 * nearest(plain, negative)


def test_a_told_alignment_comes_nearer_than_a_guess_and_is_learned_once(sift, decoys, monkeypatch):
    attacks._learned.clear()
    hidden = conceal(sift, "sealed-512:0.45")
    told = KnownPairs(descriptors=sift.descriptors, codes=rows_of(hidden.code))
    known = Knowledge(public=decoys.descriptors[:4000], told=told)
    found = run_attack(ATTACKS["told-alignment"], hidden, known).descriptors
    mean = known.public.mean(axis=0) / np.linalg.norm(known.public.mean(axis=0))
    near, guess = (np.median(np.linalg.norm(rows - sift.descriptors, axis=1)) for rows in (found, mean))
    assert near < 0.9 * guess
    monkeypatch.setattr(attacks, "learn_with_oracle", None)  # what was learned is kept
    np.testing.assert_array_equal(run_attack(ATTACKS["told-alignment"], hidden, known).descriptors, found)
    with pytest.raises(InputError, match="oracle"):
        run_attack(ATTACKS["told-alignment"], hidden, Knowledge(public=known.public))
    with pytest.raises(InputError, match="unsealed"):
        run_attack(ATTACKS["told-alignment"], conceal(sift, "random-2"), known)
