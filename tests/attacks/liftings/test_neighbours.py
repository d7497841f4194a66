# SPDX-License-Identifier: Apache-2.0
"""Nearest neighbours and the oracle: they win where the clear descriptors are public, and lose where decoys are."""

import numpy as np
import pytest

import sfumato
from sfumato.attacks.knowledge import Knowledge
from sfumato.attacks.liftings.neighbours import (
    certainty,
    encode_public,
    nearest_public,
    oracle,
    oracle_sphere,
    recover_nearest,
    recover_nearest_projected,
    recover_nearest_sphere,
    row_blocks,
)
from sfumato.attacks.registry import ATTACKS, run_attack
from sfumato.attacks.run import recovery_distances, score_recovery
from sfumato.concealment.resolve import remember, resolve
from sfumato.errors import InputError
from sfumato.subspace.reference import squared_distances


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def rows():
    return unit(np.abs(np.random.default_rng(0).standard_normal((700, 32))))


@pytest.fixture(scope="module")
def clear(rows):
    return sfumato.Features(np.zeros((60, 4)), rows[:60], sfumato.Extractor("sift"))


@pytest.fixture(scope="module")
def decoys(rows):
    return sfumato.Decoys(rows[400:], sfumato.Extractor("sift"))


def test_a_public_set_that_holds_the_descriptors_breaks_random_lifting(clear, rows):
    hidden = sfumato.conceal(clear, "random-2")
    for recover in (recover_nearest, recover_nearest_projected):
        found = recover(hidden, Knowledge(public=rows[:400]))
        assert score_recovery(found, clear.descriptors)["within 0.02"] == 1
        assert found.confidence.min() > 0.99


def test_decoys_mislead_who_searches_the_database(clear, decoys):
    hidden = sfumato.conceal(clear, "adversarial-2", decoys)
    found = recover_nearest(hidden, Knowledge(public=decoys.descriptors))
    score = score_recovery(found, clear.descriptors)
    assert score["within 0.1"] == 0
    assert score["mean"] > 0.5
    assert found.confidence.min() > 0.99  # and he does not know


def test_the_neighbours_are_the_nearest_by_definition(clear, rows):
    hidden = sfumato.conceal(clear, "random-4").code
    distances, found = nearest_public(hidden, rows[100:], 7)
    whole = np.sqrt(squared_distances(hidden, rows[100:]))
    assert np.allclose(np.sort(whole, axis=1)[:, :7], distances, atol=1e-5)
    assert np.allclose(np.take_along_axis(whole, found, axis=1), distances, atol=1e-5)


@pytest.mark.parametrize("projected", [False, True])
def test_the_oracle_chooses_the_best_of_the_nearest(clear, rows, projected):
    hidden = sfumato.conceal(clear, "random-2")
    known = Knowledge(public=rows[100:], clear=clear.descriptors)
    means = [
        recovery_distances(oracle(k, projected=projected)(hidden, known), clear.descriptors).mean()
        for k in (1, 20, 600)
    ]
    if projected:
        assert means[2] < recovery_distances(oracle(600)(hidden, known), clear.descriptors).mean()
    else:
        assert means[0] > means[1] >= means[2]
        best = np.linalg.norm(rows[None, 100:] - clear.descriptors[:, None], axis=2).min(axis=1)
        assert np.isclose(means[2], best.mean(), atol=1e-6)


def test_one_neighbour_needs_no_oracle(clear, rows):
    hidden = sfumato.conceal(clear, "random-2")
    known = Knowledge(public=rows[100:], clear=clear.descriptors)
    assert np.array_equal(oracle(1)(hidden, known).descriptors, recover_nearest(hidden, known).descriptors)


def test_the_projection_lies_in_the_subspace(clear, rows):
    hidden = sfumato.conceal(clear, "random-2")
    found = recover_nearest_projected(hidden, Knowledge(public=rows[100:]))
    squared = np.diagonal(squared_distances(found.descriptors, hidden.code))
    assert squared.max() < 1e-10


def test_who_uses_the_norm_comes_nearer_than_who_projects(clear, rows):
    hidden = sfumato.conceal(clear, "random-2")
    known = Knowledge(public=rows[100:], clear=clear.descriptors)
    moved, asked = recover_nearest_sphere(hidden, known), oracle_sphere(50)(hidden, known)
    for found in (moved, asked):
        assert np.allclose(np.linalg.norm(found.descriptors, axis=1), 1, atol=1e-5)
        assert np.diagonal(squared_distances(found.descriptors, hidden.code)).max() < 1e-10
    errors = {
        "sphere": recovery_distances(asked, clear.descriptors),
        "one": recovery_distances(moved, clear.descriptors),
        "projected": recovery_distances(oracle(50, projected=True)(hidden, known), clear.descriptors),
    }
    assert (errors["sphere"] <= errors["one"] + 1e-6).all()
    assert np.median(errors["sphere"]) < np.median(errors["projected"]) / 2
    assert np.array_equal(oracle_sphere(1)(hidden, known).descriptors, moved.descriptors)


def test_decoys_mislead_who_uses_the_norm_too(clear, decoys):
    hidden = sfumato.conceal(clear, "adversarial-2", decoys)
    found = recover_nearest_sphere(hidden, Knowledge(public=decoys.descriptors))
    assert score_recovery(found, clear.descriptors)["within 0.1"] < 0.1


def test_more_neighbours_than_there_are(clear, rows):
    hidden = sfumato.conceal(clear, "random-2")
    assert nearest_public(hidden.code, rows[:5], 100)[1].shape == (60, 5)


def test_what_is_missing_is_named(clear):
    hidden = sfumato.conceal(clear, "random-2")
    with pytest.raises(InputError, match="public"):
        recover_nearest(hidden, Knowledge())
    with pytest.raises(InputError, match="clear"):
        oracle(3)(hidden, Knowledge(public=clear.descriptors))
    with pytest.raises(InputError, match="no public"):
        recover_nearest(hidden, Knowledge(public=np.zeros((0, 32))))
    with pytest.raises(InputError, match="1 or more"):
        oracle(0)


def test_blocks_cover_every_row_once():
    blocks = list(row_blocks(1000, 2**18))
    assert len(blocks) > 1
    assert np.array_equal(np.concatenate([np.arange(1000)[block] for block in blocks]), np.arange(1000))
    assert list(row_blocks(0, 5)) == []
    assert len(list(row_blocks(3, 2**30))) == 3


def test_certainty_falls_with_distance():
    sure = certainty(np.array([0.0, 0.3, 3.0]))
    assert sure[0] == 1
    assert 0.5 < sure[1] < 0.7
    assert sure[2] < 1e-6


def test_real_photos(shared_data, decoys):
    photo = sorted((shared_data / "photos" / "bsds500" / "val").glob("*.jpg"))[0]
    clear = sfumato.extract(photo, max_features=100)
    database = sfumato.load_decoys()
    hidden = sfumato.conceal(clear, "sub-hybrid-2", database)
    weak = sfumato.conceal(clear, "random-2")
    known = Knowledge(public=database.descriptors)
    lost, won = (recovery_distances(recover_nearest_projected(h, known), clear.descriptors) for h in (hidden, weak))
    assert np.median(lost) > 0.5 > np.median(won)


# ---------------------------------------------------------------- behind an encoder


@pytest.fixture(scope="module")
def others():
    """Descriptors of other photos."""
    return sfumato.load_decoys().descriptors[:3000]


def attack(name, hidden, public, clear, encoder=None):
    known = Knowledge(public=public, clear=clear, encoder=encoder)
    return run_attack(ATTACKS[name], hidden, known)


def test_who_has_the_encoder_and_the_descriptor_wins(sift, encoder, others):
    """Among the public descriptors are the clear ones: encoded alike, they are found; without the encoder, not."""
    hidden, known = sfumato.conceal(sift, encoder.recipe), np.concatenate([others, sift.descriptors])
    for name in ("nearest", "oracle"):
        found = attack(name, hidden, known, sift.descriptors, encoder)
        assert score_recovery(found, sift.descriptors)["within 0.02"] == 1
        lost = attack(name, hidden, known, sift.descriptors, lambda rows: np.roll(rows, 1, axis=1))
        if name == "nearest":
            assert score_recovery(lost, sift.descriptors)["within 0.02"] < 0.1
    base = attack("nearest-base", hidden, known, sift.descriptors)
    assert score_recovery(base, sift.descriptors)["within 0.02"] < 0.1  # the spaces have nothing in common


def test_databases_do_what_they_say(sift, encoder, others):
    hidden, clear = sfumato.conceal(sift, encoder.recipe), sift.descriptors
    encoded = encoder(others)
    squared = np.square(hidden.code.origin[:, None] - encoded[None, :500]).sum(axis=2)
    found = attack("nearest", hidden, others[:500], clear, encoder)
    assert np.array_equal(found.descriptors, others[:500][squared.argmin(axis=1)])  # the clear one behind the nearest
    inside = {row.tobytes() for row in encoded}
    answers = attack("oracle-encoded", hidden, others, clear, encoder).descriptors
    assert {row.tobytes() for row in answers} <= inside
    medians = {
        name: score_recovery(attack(name, hidden, others, clear, encoder), clear)["median"]
        for name in ("nearest", "oracle", "oracle-base", "oracle-encoded")
    }
    assert medians["oracle"] <= medians["nearest"]
    assert medians["oracle"] < medians["oracle-base"] < medians["oracle-encoded"]  # the order of Figure 11


def test_lifted_encoded_features_are_searched_in_their_space(sift, encoder, others):
    hidden = sfumato.conceal(sift, f"{encoder.recipe}+sub-hybrid-2", sfumato.load_decoys())
    known = np.concatenate([others, sift.descriptors])
    found = attack("oracle", hidden, known, sift.descriptors, encoder)
    assert score_recovery(found, sift.descriptors)["within 0.02"] > 0.9


def test_public_descriptors_are_encoded_once(encoder, others):
    calls = []

    def counted(rows):
        calls.append(len(rows))
        return encoder(rows)

    known = Knowledge(public=others, encoder=counted)
    assert encode_public(known) is encode_public(Knowledge(public=known.public, encoder=counted))
    assert calls == [len(others)]
    with pytest.raises(InputError, match="the encoder"):
        encode_public(Knowledge(public=others))


def test_a_database_of_another_dimension_is_refused(sift, make_encoder, others):
    made = remember(make_encoder(dims=(128, 64)))
    hidden = sfumato.conceal(sift, f"ninja:narrow@{made.checksum[:12]}")
    own = resolve(hidden.recipe)
    assert attack("nearest", hidden, others, sift.descriptors, own).descriptors.shape == (150, 128)
    for name in ("nearest-base", "oracle-base", "oracle-encoded"):
        with pytest.raises(InputError, match=name):
            attack(name, hidden, others, sift.descriptors, own)
