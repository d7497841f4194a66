# SPDX-License-Identifier: Apache-2.0
import warnings

import numpy as np
import pytest

from sfumato.concealment.decoys import Decoys, save_decoys
from sfumato.errors import DecoyError, FileError
from sfumato.experiments.faces.lifting import (
    bit_distances,
    bit_signs,
    face_prior,
    face_seal,
    invert_seals,
    lift_faces,
    need_decoys,
    read_face_decoys,
    row_distances,
)
from sfumato.subspace.reference import point_squared_distances, squared_distances
from sfumato.types.recipe import Recipe


@pytest.mark.parametrize("recipe", ["raw", "random-2", "hybrid-2", "adversarial-3", "sub-hybrid-2"])
def test_faces_lie_in_their_subspaces_and_draws_can_be_repeated(made_faces, strangers, recipe):
    faces, _ = made_faces(people=6, photos=1)
    lifted, again = (lift_faces(faces, recipe, strangers, seed=3) for _ in range(2))
    assert np.array_equal(lifted.basis, again.basis)
    assert np.diag(point_squared_distances(faces.values, lifted.origin, lifted.basis)).max() < 1e-10
    if recipe != "raw":
        assert not np.allclose(lifted.origin, lift_faces(faces, recipe, strangers, seed=4).origin)


def test_each_face_draws_a_part_of_its_own(made_faces):
    faces, _ = made_faces(people=30, photos=1)
    other, _ = made_faces(people=16, photos=1, seed=5)
    decoys = Decoys(other.values, parts=4)
    lifted = lift_faces(faces, "sub-adversarial-2", decoys, seed=0)
    inside = point_squared_distances(decoys.descriptors, lifted.origin, lifted.basis).T < 1e-8
    parts = {tuple(np.flatnonzero(row) // 4) for row in inside}
    assert all(len(set(part)) == 1 for part in parts)
    assert len(parts) > 1


def test_labels_choose_decoys(made_faces, strangers):
    faces, kinds = made_faces(people=8, photos=1)
    lifted = lift_faces(faces, "hybrid-labels-2", strangers, seed=0, labels=kinds)
    inside = point_squared_distances(strangers.descriptors, lifted.origin, lifted.basis).T < 1e-8
    assert [int(strangers.labels[row.argmax()]) for row in inside] == (1 - kinds).tolist()


@pytest.mark.parametrize("recipes", [("raw", "random-2"), ("hybrid-2", "hybrid-2"), ("adversarial-4", "random-3")])
def test_distances_are_those_of_the_definition(made_faces, strangers, recipes):
    faces, _ = made_faces(people=10, photos=1)
    a, b = (lift_faces(faces, recipe, strangers, seed=seed) for seed, recipe in enumerate(recipes))
    rows_a, rows_b = np.arange(10), np.roll(np.arange(10), 3)
    expected = np.sqrt(squared_distances(a, b)[rows_a, rows_b])
    assert row_distances(a, rows_a, b, rows_b) == pytest.approx(expected, abs=1e-7)


def test_shared_directions_are_no_trouble(made_faces):
    faces, _ = made_faces(people=4, photos=1)
    lifted = lift_faces(faces, "random-2", None, seed=0)
    rows = np.arange(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert row_distances(lifted, rows, lifted, rows).max() < 1e-6


def test_decoys_are_drawn_from_embeddings_or_read(tmp_path, strangers):
    np.savez(tmp_path / "faces.npz", embedding=strangers.descriptors)
    drawn = read_face_decoys(tmp_path / "faces.npz", 10)
    assert len(drawn) == 10
    save_decoys(tmp_path / "decoys.npz", strangers)
    assert read_face_decoys(tmp_path / "decoys.npz").checksum == strangers.checksum
    with pytest.raises(DecoyError, match="only 60"):
        read_face_decoys(tmp_path / "faces.npz", 100)
    (tmp_path / "junk.npz").write_bytes(b"junk")
    with pytest.raises(FileError, match="junk"):
        read_face_decoys(tmp_path / "junk.npz")


def test_missing_decoys_are_told():
    need_decoys(Recipe.of("random-2"), None)
    with pytest.raises(DecoyError, match="hybrid-2"):
        need_decoys(Recipe.of("hybrid-2"), None)


def test_keys_of_evaluations_differ_by_seed_and_owner(made_faces):
    faces, _ = made_faces(people=6, photos=1)
    recipe = Recipe.of("sealed-512:1")
    seals = [face_seal(recipe, 64, seed=seed, owner=owner) for seed in (0, 1) for owner in ("everyone", "person 3")]
    assert len({seal.checksum for seal in seals}) == 4
    assert np.array_equal(face_seal(recipe, 64, seed=0)(faces.values).packed, seals[0](faces.values).packed)
    between = bit_distances(seals[0](faces.values).packed, seals[1](faces.values).packed)
    assert between == pytest.approx(0.5, abs=0.12)


def test_distances_of_bits_are_counted():
    one, other = np.array([[0, 255], [1, 1]], np.uint8), np.array([[0, 0], [1, 3]], np.uint8)
    assert bit_distances(one, other).tolist() == [0.5, 1 / 16]
    assert bit_distances(one[:, None], other[None]).shape == (2, 2)


@pytest.mark.parametrize("bandwidth", ["0.5", "1", "1.4"])
@pytest.mark.parametrize("bits", [512, 1024])
def test_the_key_gives_the_face_and_another_key_does_not(made_faces, strangers, bits, bandwidth):
    faces, _ = made_faces(people=30, photos=1)
    recipe, prior = Recipe.of(f"sealed-{bits}:{bandwidth}"), face_prior(strangers.descriptors, 64)
    seal, other = (face_seal(recipe, 64, seed=seed) for seed in (0, 1))
    sealed = seal(faces.values)
    inverted, blind = (invert_seals(sealed, one.directions, one.phases, prior) for one in (seal, other))
    assert (inverted * faces.values).sum(axis=1).min() > 0.9
    assert np.abs((blind * faces.values).sum(axis=1)).mean() < 0.6
    assert (bit_signs(seal(inverted)) == bit_signs(sealed)).mean() > 0.93


def test_without_public_faces_the_prior_is_round(made_faces):
    faces, _ = made_faces(people=10, photos=1)
    seal = face_seal(Recipe.of("sealed-1024:1"), 64, seed=0)
    inverted = invert_seals(seal(faces.values), seal.directions, seal.phases, face_prior(None, 64))
    assert (inverted * faces.values).sum(axis=1).min() > 0.9
    assert len(invert_seals(seal(faces.values[:0]), seal.directions, seal.phases, face_prior(None, 64))) == 0
