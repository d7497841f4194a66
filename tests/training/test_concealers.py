# SPDX-License-Identifier: Apache-2.0
"""Sealed features read back under keys of the attacker's own: what comes out, and that no other key has a part."""

import numpy as np
import pytest

from sfumato.concealment.keys import EVALUATION_KEY
from sfumato.errors import InputError
from sfumato.training import concealers
from sfumato.training.concealers import reader_of
from sfumato.types.recipe import Recipe

WIDE = Recipe.of("sealed-256:0.9")
"""A seal so wide that readings come near even of a few codes."""


def nearness(read, features):
    """How much nearer the readings are than the mean descriptor."""
    rows = features.descriptors
    return np.linalg.norm(read - rows, axis=1).mean() / np.linalg.norm(rows - rows.mean(axis=0), axis=1).mean()


def test_readings_are_points_near_the_descriptors_and_name_no_key(sift, decoys):
    read = reader_of(WIDE, decoys.descriptors[:6000])(sift)
    assert str(read.recipe) == "sealed-256:0.9"
    assert (len(read), read.code.dim, read.code.ambient_dim) == (len(sift), 0, 128)
    np.testing.assert_array_equal(read.keypoints, sift.keypoints)
    assert nearness(read.code.origin, sift) < 0.9


@pytest.mark.slow
def test_keys_take_turns_and_repeat_themselves(sift, decoys):
    public = decoys.descriptors[:3000]
    reader, again = reader_of(WIDE, public), reader_of(WIDE, public)
    readings = [reader(sift).code.origin for _ in range(concealers.KEYS + 1)]
    assert np.abs(readings[0] - readings[1]).max() > 0.01
    np.testing.assert_array_equal(readings[0], readings[concealers.KEYS])
    np.testing.assert_array_equal(again(sift).code.origin, readings[0])
    assert np.abs(reader_of(WIDE, public, seed=1)(sift).code.origin - readings[0]).max() > 0.01


def test_encoders_before_the_seal_are_undone(sift, decoys, encoder):
    recipe = Recipe(links=(*encoder.recipe.links, *WIDE.links))
    read = reader_of(recipe, decoys.descriptors[:3000])(sift)
    assert read.code.ambient_dim == 128
    assert str(read.recipe).endswith("+sealed-256:0.9")


def test_the_key_of_evaluations_is_never_used(sift, decoys, monkeypatch):
    used = []
    make = concealers.conceal

    def noted(features, recipe, *rest, **settings):
        used.append(settings)
        return make(features, recipe, *rest, **settings)

    monkeypatch.setattr(concealers, "conceal", noted)
    reader_of(Recipe.of("sealed-64@0123456789ab"), decoys.descriptors[:1000])(sift)
    assert all(set(one) == {"evaluation_seed", "positions"} for one in used)
    assert EVALUATION_KEY not in str(used).encode()


def test_what_is_not_sealed_is_refused(decoys):
    with pytest.raises(InputError, match="not sealed"):
        reader_of(Recipe.of("sub-hybrid-2"), decoys.descriptors[:100])
