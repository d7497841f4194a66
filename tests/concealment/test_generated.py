# SPDX-License-Identifier: Apache-2.0
"""Generated decoys: descriptors of their kind that no database has, fresh every time, the same under one secret."""

from hashlib import sha256

import numpy as np
import pytest

import sfumato
from sfumato.attacks.liftings.decoys import _decoy_share
from sfumato.concealment.decoys import Decoys, as_rootsift, encode_bytes, full_pool
from sfumato.concealment.draw_decoys import bytes_each, generate
from sfumato.errors import DecoyError
from sfumato.types.extractor import Extractor

SECRET = sha256(b"3").digest()


def made(decoys, count=200, each=1, seed=0):
    """Generate decoys from a seed."""
    drawn = np.random.default_rng(seed).bytes(count * each * bytes_each(decoys.descriptors.shape[1]))
    return generate(decoys, full_pool(decoys, count), np.arange(count), np.frombuffer(drawn, "u1").reshape(count, -1))


@pytest.fixture(scope="module")
def sift_decoys():
    known = sfumato.load_decoys()
    return Decoys(known.descriptors[:4000], known.extractor, parts=2)


def test_of_sift_they_are_sift(sift_decoys):
    fresh = made(sift_decoys)[:, 0]
    assert fresh.min() >= 0
    assert np.abs(np.linalg.norm(fresh, axis=1) - 1).max() < 1e-5
    assert encode_bytes(fresh) is not None  # whole numbers over a norm
    ties = (fresh >= fresh.max(axis=1, keepdims=True)).sum(axis=1)
    assert 5 <= np.median(ties) <= 8
    assert 5 < (fresh == 0).sum(axis=1).mean() < 40


def test_they_stand_in_no_database_but_near(sift_decoys):
    fresh = made(sift_decoys)[:, 0]
    nearest = np.sqrt(np.maximum(2 - 2 * (fresh @ sift_decoys.descriptors.T).max(axis=1), 0))
    assert nearest.min() > 0.1
    assert np.median(nearest) < 0.6
    assert len(np.unique(fresh, axis=0)) == len(fresh)


@pytest.mark.parametrize("kind", ["rootsift", "signed", "long"])
def test_other_kinds_keep_what_their_entries_have_in_common(kind, sift_decoys):
    rng = np.random.default_rng(0)
    signed = rng.normal(size=(300, 24)).astype(np.float32)
    known = {
        "rootsift": as_rootsift(sift_decoys),
        "signed": Decoys(signed / np.linalg.norm(signed, axis=1, keepdims=True), Extractor("hardnet")),
        "long": Decoys(np.abs(signed) * rng.uniform(1, 9, (300, 1)), Extractor("toy")),
    }[kind]
    fresh = made(known, 100, each=2).reshape(200, -1)
    norms = np.linalg.norm(fresh, axis=1)
    assert (fresh.min() >= 0) == (kind != "signed")
    assert (np.abs(norms - 1).max() < 1e-5) == (kind != "long")


def test_a_lifting_with_them_holds_the_descriptor_and_no_entry(sift_decoys):
    rng = np.random.default_rng(1)
    rows = sift_decoys.descriptors[rng.permutation(4000)[:50]] + rng.uniform(0, 0.02, (50, 128)).astype("f4")
    clear = sfumato.Features(np.zeros((50, 4)), rows / np.linalg.norm(rows, axis=1, keepdims=True), Extractor("sift"))
    plain = sfumato.conceal(clear, "sub-hybrid-2", sift_decoys)
    hidden = sfumato.conceal(clear, "sub-hybrid-2-generated", sift_decoys)
    assert str(hidden.recipe) == "sub-hybrid-2-generated"
    assert sfumato.match(hidden.code, clear.descriptors).indices.tolist() == [[i, i] for i in range(50)]
    assert _decoy_share(plain, sift_decoys.descriptors) == 1
    assert _decoy_share(hidden, sift_decoys.descriptors) == 0
    again = [sfumato.conceal(clear, "sub-hybrid-2-generated", sift_decoys, secret=SECRET).code for _ in range(2)]
    assert np.array_equal(again[0].basis, again[1].basis)
    one = sfumato.conceal(clear.descriptors[7:9], "sub-hybrid-2-generated", sift_decoys, secret=SECRET)
    assert np.array_equal(one.basis, again[0].basis[7:9])  # in any company
    assert not np.array_equal(hidden.code.basis, again[0].basis)


def test_after_an_encoder_they_are_made_before_it(sift_decoys):
    clear = sfumato.Features(np.zeros((20, 4)), made(sift_decoys, 20, seed=5)[:, 0], Extractor("sift"))
    hidden = sfumato.conceal(clear, "compress-24+adversarial-2-generated", sift_decoys)
    assert hidden.code.ambient_dim == 24
    assert hidden.recipe.decoys == sift_decoys.checksum


def test_too_few_entries_are_told(sift_decoys):
    few = Decoys(sift_decoys.descriptors[:2], sift_decoys.extractor, parts=1)
    with pytest.raises(DecoyError, match="3 decoys"):
        sfumato.conceal(sift_decoys.descriptors[5:6], "adversarial-2-generated", few)
