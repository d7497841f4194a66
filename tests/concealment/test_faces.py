# SPDX-License-Identifier: Apache-2.0
from hashlib import sha256

import numpy as np
import pytest

from sfumato.concealment.faces import (
    FaceDecoysParams,
    build_face_decoys,
    conceal_embeddings,
    conceal_parallel,
    face_recipe,
    seal_embeddings,
    split_decoys,
)
from sfumato.concealment.keys import new_key
from sfumato.errors import BandwidthWarning, DecoyError, EvaluationOnlyWarning, InputError, RecipeError
from sfumato.subspace.reference import closest_points, point_squared_distances, squared_distances
from sfumato.types.clear import Embeddings
from sfumato.types.extractor import Extractor

ARCFACE = Extractor("arcface")


def people(count: int, dims: int = 32, seed: int = 0) -> Embeddings:
    rng = np.random.default_rng(seed)
    return Embeddings(rng.normal(size=(count, dims)), tuple(f"p{row}" for row in range(count)), ARCFACE)


@pytest.mark.parametrize("recipe", ["random-2", "adversarial-2", "hybrid-4", "sub-hybrid-2"])
def test_templates_hold_the_embedding_and_note_how(recipe):
    faces, decoys = people(6), build_face_decoys(people(80, seed=1), FaceDecoysParams(parts=4))
    made = conceal_embeddings(faces, recipe, decoys)
    assert made.ids == faces.names
    assert made.extractor.name == "arcface"
    assert str(made.recipe) == recipe
    assert made.recipe.decoys == (None if recipe == "random-2" else decoys.checksum)
    squared = point_squared_distances(faces.values, made.code.origin, made.code.basis)
    assert np.abs(np.diag(squared)).max() < 1e-10
    assert not np.array_equal(conceal_embeddings(faces, recipe, decoys).code.basis, made.code.basis)


def test_labels_and_seeds_are_those_of_conceal():
    faces, labels = people(4), [0, 1, 0, 1]
    decoys = build_face_decoys(people(40, seed=1), labels=np.arange(40) % 2)
    with pytest.warns(EvaluationOnlyWarning):
        made = [conceal_embeddings(faces, "hybrid-labels-2", decoys, labels=labels, evaluation_seed=3) for _ in "ab"]
    assert np.array_equal(made[0].code.basis, made[1].code.basis)
    assert made[0].recipe.evaluation_seed == 3
    keyed = [conceal_embeddings(faces, "random-2", secret=sha256(b"1").digest()) for _ in "ab"]
    assert np.array_equal(keyed[0].code.basis, keyed[1].code.basis)
    assert keyed[0].recipe.keyed


def test_what_does_not_fit_is_refused():
    faces = people(3)
    with pytest.raises(RecipeError, match="unit norm"):
        conceal_embeddings(faces, "random-1")
    with pytest.raises(DecoyError, match="needs decoys"):
        conceal_embeddings(faces, "hybrid-2")
    others = build_face_decoys(Embeddings(people(20).values, (), Extractor("dlib-face")))
    with pytest.raises(DecoyError, match="dlib-face"):
        conceal_embeddings(faces, "hybrid-2", others)
    with pytest.raises(InputError, match="expected Embeddings"):
        conceal_embeddings(faces.values, "random-2")  # type: ignore[arg-type]
    assert len(conceal_embeddings(faces[:0], "random-2")) == 0


def test_as_many_decoys_as_faces_are_the_faces_and_fewer_are_means():
    faces = people(60)
    every = build_face_decoys(Embeddings(np.concatenate([faces.values, faces.values[:5]]), (), ARCFACE))
    assert len(every) == 60
    assert every.extractor.name == "arcface"
    assert {row.tobytes() for row in every.descriptors} == {row.tobytes() for row in faces.values}
    few = build_face_decoys(faces, FaceDecoysParams(size=10))
    assert len(few) == 10
    assert not {row.tobytes() for row in few.descriptors} & {row.tobytes() for row in faces.values}
    drawn = build_face_decoys(faces, FaceDecoysParams(size=10, drawn=True))
    assert {row.tobytes() for row in drawn.descriptors} < {row.tobytes() for row in faces.values}
    with pytest.raises(DecoyError, match="61 decoys"):
        build_face_decoys(faces, FaceDecoysParams(size=61))


def test_spread_decoys_are_the_faces_least_alike():
    rng = np.random.default_rng(0)
    alike = rng.normal(size=32) + 0.3 * rng.normal(size=(30, 32))
    others = rng.normal(size=(10, 32))
    faces = Embeddings(np.concatenate([alike, others, others[:2]]))
    made = build_face_decoys(faces, FaceDecoysParams(size=10, spread=True), labels=["a"] * 30 + ["b"] * 12)
    assert {row.tobytes() for row in made.descriptors} == {row.tobytes() for row in faces.values[30:40]}
    assert set(made.labels) == {"b"}
    with pytest.raises(DecoyError, match="41"):
        build_face_decoys(faces, FaceDecoysParams(size=41, spread=True))
    with pytest.raises(InputError, match="leave"):
        FaceDecoysParams(drawn=True, spread=True)


def test_halves_of_a_database_share_nothing_so_that_no_two_strangers_meet():
    faces, others = people(40, seed=2), people(40, seed=3)
    whole = build_face_decoys(people(31, seed=1), FaceDecoysParams(parts=4), labels=np.arange(31) % 3)
    first, second = split_decoys(whole)
    assert (len(first), len(second)) == (16, 15)
    rows = [{row.tobytes() for row in half.descriptors} for half in (whole, first, second)]
    assert rows[1] | rows[2] == rows[0]
    assert not rows[1] & rows[2]
    of_label = {row.tobytes(): label for row, label in zip(whole.descriptors, whole.labels, strict=True)}
    assert all(of_label[row.tobytes()] == label for row, label in zip(second.descriptors, second.labels, strict=True))
    assert split_decoys(whole)[0].checksum == first.checksum

    def least(decoys0, decoys1):
        made = [conceal_embeddings(*one) for one in ((faces, "hybrid-2", decoys0), (others, "hybrid-2", decoys1))]
        return float(squared_distances(made[0].code, made[1].code).min())

    assert least(whole, whole) < 1e-9  # 1,600 pairs, each meets with probability 1 / 31
    assert least(first, second) > 1e-3
    with pytest.raises(DecoyError, match="one decoy"):
        split_decoys(build_face_decoys(people(1)))


def test_parallel_templates_hide_the_face_where_independent_ones_reveal_it():
    """Two photos of one face: the point nearest to both subspaces is the face, unless they are parallel."""
    rng = np.random.default_rng(5)
    first = people(1, dims=128)
    second = Embeddings(first.values + 0.005 * rng.normal(size=(1, 128)), first.names, ARCFACE)
    one = conceal_embeddings(first, "random-4")

    def error(other):
        pair = [part for made in (one, other) for part in (made.code.origin, made.code.basis)]
        return float(np.linalg.norm(np.mean(closest_points(*pair), axis=0) - first.values))

    assert error(conceal_embeddings(second, "random-4")) < 0.1  # the attack wins
    parallel = conceal_parallel(second, one)
    along = float(np.linalg.norm(one.code.basis[0] @ first.values[0]))
    assert error(parallel) > 0.9 * along  # and here it learns nothing of the part along the subspace
    assert parallel.ids == one.ids
    squared = point_squared_distances(second.values, parallel.code.origin, parallel.code.basis)
    assert squared[0, 0] < 1e-10


def test_parallel_templates_need_the_same_rows_and_network():
    one = conceal_embeddings(people(2), "random-2")
    with pytest.raises(InputError, match="cannot replace"):
        conceal_parallel(people(3), one)
    with pytest.raises(InputError, match="dlib-face"):
        conceal_parallel(Embeddings(people(2).values, ("p0", "p1"), Extractor("dlib-face")), one)


# --- seals


def test_bits_agree_under_one_key_and_are_coin_throws_under_two():
    face = people(1, dims=256).values[0]
    keys = [new_key(), new_key()]
    sealed = seal_embeddings(Embeddings([face] * 3, tuple("abc"), ARCFACE), "sealed-2048", [keys[0], keys[0], keys[1]])
    assert sealed.keys[0] == sealed.keys[1] != sealed.keys[2]
    assert str(sealed.recipe) == "sealed-2048:1"
    different = np.bitwise_count(sealed.code.packed[0] ^ sealed.code.packed).sum(axis=1) / 2048
    assert different[1] == 0
    assert abs(different[2] - 0.5) < 0.06
    assert len(seal_embeddings(people(0), "sealed-2048", [])) == 0


def test_one_key_for_all_is_named_by_the_recipe():
    secret, faces = new_key(), people(3)
    sealed = conceal_embeddings(faces, "sealed-2048", secret=secret)
    assert sealed.keys == ()
    assert sealed.recipe.links[-1].checksum
    again = conceal_embeddings(faces, sealed.recipe, secret=secret)
    assert np.array_equal(again.code.packed, sealed.code.packed)
    with pytest.raises(RecipeError):
        conceal_embeddings(faces, sealed.recipe, secret=new_key())
    with pytest.raises(RecipeError):
        seal_embeddings(faces, sealed.recipe, [secret] * 3)


def test_keys_that_do_not_fit_are_refused():
    for keys, problem in (
        ([new_key()], InputError),
        ([new_key(), b"password"], RecipeError),
        ([new_key(), "text"], RecipeError),
        ([new_key(), None], RecipeError),
    ):
        with pytest.raises(problem):
            seal_embeddings(people(2), "sealed-2048", keys)
    with pytest.raises(RecipeError, match="device key"):
        conceal_embeddings(people(2), "sealed-2048")


def test_the_bandwidth_is_that_of_the_network():
    assert str(face_recipe("sealed-2048", "arcface@0123456789ab")) == "sealed-2048:1"
    assert str(face_recipe("sealed-2048", "dlib-face")) == "sealed-2048:0.34"
    assert str(face_recipe("sealed-2048:2", "dlib-face")) == "sealed-2048:2"
    assert str(face_recipe("random-2", "facenet")) == "random-2"
    with pytest.warns(BandwidthWarning, match="facenet"):
        assert str(face_recipe("sealed-2048", "facenet")) == "sealed-2048:1"
    with pytest.raises(RecipeError, match="sealed-2048"):
        face_recipe("compress-48+sealed-512", "arcface")
