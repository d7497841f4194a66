# SPDX-License-Identifier: Apache-2.0
"""Nearest neighbours and the oracle: they win where the clear descriptors are public, and lose where decoys are."""

import numpy as np
import pytest

import sfumato
from sfumato.attack.knowledge import Knowledge
from sfumato.attack.neighbours import (
    certainty,
    nearest_public,
    oracle,
    recover_nearest,
    recover_nearest_projected,
    row_blocks,
)
from sfumato.attack.score import recovery_distances, score_recovery
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
    hidden = sfumato.conceal(clear, "random-4").subspaces
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
    squared = np.diagonal(squared_distances(found.descriptors, hidden.subspaces))
    assert squared.max() < 1e-10


def test_more_neighbours_than_there_are(clear, rows):
    hidden = sfumato.conceal(clear, "random-2")
    assert nearest_public(hidden.subspaces, rows[:5], 100)[1].shape == (60, 5)


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
