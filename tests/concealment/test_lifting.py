# SPDX-License-Identifier: Apache-2.0
"""Lifting: the subspace holds the descriptor and its decoys, and shows nothing else."""

import os
import warnings
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import sfumato
from sfumato.concealment.decoys import Decoys
from sfumato.concealment.encoder import encode, load_encoder, save_encoder
from sfumato.errors import DecoyError, EvaluationOnlyWarning, InputError, RecipeError
from sfumato.images.homography import warp_points
from sfumato.images.samples import sample_image
from sfumato.subspace import reference
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import KINDS, Link, Recipe

LIFTINGS = [kind for kind in KINDS if KINDS[kind].role == "lifting" and kind not in ("hybrid-labels", "subset")]
SECRET = sha256(b"3").digest()


def contained(points, subspaces):
    """Return how far each point is from its own subspace."""
    foot = reference.project(points, subspaces.origin, subspaces.basis)
    return np.linalg.norm(foot - points, axis=1)


def decoys_inside(subspaces, decoys, tolerance=1e-5):
    """Return for each subspace the set of decoys that lie in it."""
    squared = reference.point_squared_distances(decoys.descriptors, subspaces.origin, subspaces.basis)
    return [set(np.flatnonzero(column < tolerance**2)) for column in squared.T]


@pytest.mark.parametrize("kind", LIFTINGS)
@pytest.mark.parametrize("dim", [2, 3, 4, 9, 31])
def test_subspace_contains_the_descriptor_and_is_canonical(kind, dim, points, decoys):
    some = points[:40]
    hidden = sfumato.conceal(some, f"{kind}-{dim}", decoys)
    assert hidden.origin.shape == (40, 32)
    assert hidden.basis.shape == (40, dim, 32)
    assert contained(some, hidden).max() < 1e-6
    gram = np.einsum("nki,nli->nkl", hidden.basis, hidden.basis)
    assert np.abs(gram - np.eye(dim)).max() < 1e-6
    assert np.abs(np.einsum("nki,ni->nk", hidden.basis, hidden.origin)).max() < 1e-6


@pytest.mark.parametrize(("kind", "dim", "count"), [
    ("random", 4, 0), ("adversarial", 4, 4), ("hybrid", 4, 2), ("hybrid", 3, 2), ("sub-hybrid", 2, 1),
    ("sub-adversarial", 3, 3), ("sub-hybrid", 5, 3),
])  # fmt: skip
def test_number_of_decoys_in_a_subspace(kind, dim, count, points, decoys):
    hidden = sfumato.conceal(points[:30], f"{kind}-{dim}", decoys)
    assert {len(inside) for inside in decoys_inside(hidden, decoys)} == {count}
    assert Link(kind, dim).decoy_count == count


def test_sub_kinds_draw_one_part_an_image_and_parts_change(points, decoys):
    part_of = np.empty(len(decoys), int)
    for part, (start, stop) in enumerate(zip(decoys.part_starts, decoys.part_starts[1:], strict=False)):
        part_of[decoys.permutation[start:stop]] = part
    seen = set()
    for _ in range(24):
        inside = decoys_inside(sfumato.conceal(points[:6], "sub-adversarial-3", decoys), decoys)
        parts = {int(part_of[entry]) for entries in inside for entry in entries}
        assert len(parts) == 1
        seen |= parts
    assert len(seen) > 1  # all 24 in one of four parts: a chance of 4^-23


def test_whole_database_kinds_draw_from_every_part(points, decoys):
    part_of = np.argsort(decoys.permutation) * 4 // len(decoys)
    inside = decoys_inside(sfumato.conceal(points[:60], "hybrid-2", decoys), decoys)
    assert {int(part_of[entry]) for entries in inside for entry in entries} == {0, 1, 2, 3}


def test_labels_keep_decoys_of_the_same_label_out(points, decoys):
    labelled = Decoys(decoys.descriptors, labels=np.arange(len(decoys)) % 3)
    own = np.arange(60) % 4  # label 3 does not occur among the decoys: everything may be drawn
    hidden = sfumato.conceal(points[:60], "hybrid-labels-4", labelled, labels=own)
    inside = decoys_inside(hidden, labelled)
    drawn = [labelled.labels[list(entries)] for entries in inside]
    assert all(len(entries) == 2 for entries in inside)
    assert all(label not in found for label, found in zip(own, drawn, strict=True))
    assert {int(label) for label in np.concatenate([drawn[i] for i in range(60) if own[i] == 3])} == {0, 1, 2}


def test_equal_descriptors_must_have_equal_labels(points, decoys):
    labelled = Decoys(decoys.descriptors, labels=np.arange(len(decoys)) % 3)
    twice = np.concatenate([points[:2], points[:2]])
    with pytest.raises(InputError, match="label"):
        sfumato.conceal(twice, "hybrid-labels-2", labelled, labels=[0, 1, 1, 1])
    hidden = sfumato.conceal(twice, "hybrid-labels-2", labelled, labels=[0, 1, 0, 1])
    assert np.array_equal(hidden.basis[:2], hidden.basis[2:])


def test_text_labels_work_and_must_be_of_one_type(points, decoys):
    names = np.where(np.arange(len(decoys)) % 2, "a", "b")
    labelled = Decoys(decoys.descriptors, labels=names)
    inside = decoys_inside(sfumato.conceal(points[:20], "hybrid-labels-2", labelled, labels=["a"] * 20), labelled)
    assert {str(labelled.labels[entry]) for entries in inside for entry in entries} == {"b"}
    with pytest.raises(InputError, match="texts"):
        sfumato.conceal(points[:2], "hybrid-labels-2", labelled, labels=[0, 1])


def test_what_labels_need(points, decoys):
    with pytest.raises(InputError, match="needs labels"):
        sfumato.conceal(points, "hybrid-labels-2", Decoys(decoys.descriptors, labels=np.zeros(2000, int)))
    with pytest.raises(DecoyError, match="labels"):
        sfumato.conceal(points, "hybrid-labels-2", decoys, labels=np.zeros(300, int))
    with pytest.raises(InputError, match="no effect"):
        sfumato.conceal(points, "hybrid-2", decoys, labels=np.zeros(300, int))
    one = Decoys(decoys.descriptors, labels=np.zeros(2000, int))
    with pytest.raises(DecoyError, match="drawn"):
        sfumato.conceal(points[:1], "hybrid-labels-2", one, labels=[0])


def test_released_form_shows_neither_directions_nor_order(points, decoys):
    """The angle of the decoy's direction within the released basis is uniform: nothing of it is left."""
    copies = np.repeat(points[:100], 20, axis=0) + np.random.default_rng(0).normal(0, 1e-3, (2000, 32))
    clear = (copies / np.linalg.norm(copies, axis=1, keepdims=True)).astype(np.float32)
    hidden = sfumato.conceal(clear, "hybrid-2", decoys)
    squared = reference.point_squared_distances(decoys.descriptors, hidden.origin, hidden.basis)
    decoy = decoys.descriptors[squared.argmin(axis=0)]
    for direction in (decoy - clear, clear - hidden.origin):  # w - d, and where d sits
        inside = np.einsum("nki,ni->nk", hidden.basis, direction)
        angle = np.arctan2(inside[:, 1], inside[:, 0]) / (2 * np.pi) % 1
        assert stats.kstest(angle, stats.uniform.cdf).pvalue > 1e-3
    handedness = np.sign(np.linalg.det(np.einsum("nki,nli->nkl", hidden.basis, np.stack([decoy - clear, clear], 1))))
    assert abs(handedness.mean()) < 0.1  # reflections too


def test_origin_is_a_function_of_the_subspace_alone(points, decoys):
    """Any other point and directions of the same set give the same origin: none of the sampling is in it."""
    hidden = sfumato.conceal(points, "sub-hybrid-3", decoys)
    rng = np.random.default_rng(1)
    elsewhere = hidden.origin + np.einsum("nk,nki->ni", rng.normal(size=(300, 3)), hidden.basis)
    mixed = np.einsum("nkl,nli->nki", rng.normal(size=(300, 3, 3)), hidden.basis)
    again, _ = reference.canonicalise(elsewhere, mixed)
    assert np.abs(again - hidden.origin).max() < 1e-5


def test_random_directions_are_isotropic():
    hidden = sfumato.conceal(np.zeros((1, 16)) + np.arange(4000)[:, None] * 1e-3, "random-1")
    covariance = np.einsum("nki,nkj->ij", hidden.basis, hidden.basis) / 4000
    assert np.abs(covariance - np.eye(16) / 16).max() < 0.01


def test_every_call_draws_anew_and_equal_descriptors_share_a_subspace(points, decoys):
    doubled = np.concatenate([points[:20], points[:20]])
    first = sfumato.conceal(doubled, "sub-hybrid-2", decoys)
    second = sfumato.conceal(doubled, "sub-hybrid-2", decoys)
    assert np.array_equal(first.origin[:20], first.origin[20:])
    assert np.array_equal(first.basis[:20], first.basis[20:])
    assert (np.abs(first.origin - second.origin).max(axis=1) > 1e-4).all()
    x, _ = reference.closest_points(first.origin, first.basis, second.origin, second.basis)
    assert np.median(np.linalg.norm(x - doubled, axis=1)) < 1e-4  # why: two independent ones meet in the descriptor


@pytest.mark.parametrize("kind", LIFTINGS)
def test_with_a_secret_the_same_descriptor_gives_the_same_subspace(kind, points, decoys):
    whole = sfumato.conceal(points, f"{kind}-2", decoys, secret=SECRET)
    shuffled = np.random.default_rng(2).permutation(300)[:50]
    again = sfumato.conceal(points[shuffled], f"{kind}-2", decoys, secret=SECRET)
    np.testing.assert_allclose(again.origin, whole.origin[shuffled], atol=1e-6)
    np.testing.assert_allclose(again.basis, whole.basis[shuffled], atol=1e-6)
    other = sfumato.conceal(points, f"{kind}-2", decoys, secret=SECRET[::-1])
    assert (np.abs(other.origin - whole.origin).max(axis=1) > 1e-4).all()
    assert contained(points, whole).max() < 1e-6


def test_forcing_changes_nothing_but_the_permission(points, decoys):
    plain, forced = (sfumato.conceal(points, recipe, secret=SECRET) for recipe in ("random-2", "random-2-forced"))
    assert np.array_equal(plain.basis, forced.basis)


def test_with_a_secret_parts_belong_to_descriptors(points, decoys):
    part_of = np.argsort(decoys.permutation) * 4 // len(decoys)
    inside = decoys_inside(sfumato.conceal(points[:60], "sub-hybrid-2", decoys, secret=SECRET), decoys)
    assert {int(part_of[entry]) for entries in inside for entry in entries} == {0, 1, 2, 3}


def test_a_seed_repeats_warns_and_is_stored(points, decoys):
    features = sfumato.Features(np.zeros((300, 4)), points)
    with pytest.warns(EvaluationOnlyWarning, match="protects nobody"):
        first = sfumato.conceal(features, "sub-hybrid-2", decoys, evaluation_seed=5)
    with pytest.warns(EvaluationOnlyWarning):
        second = sfumato.conceal(features, "sub-hybrid-2", decoys, evaluation_seed=5)
    assert np.array_equal(first.code.basis, second.code.basis)
    assert first.recipe == Recipe("sub-hybrid", 2, evaluation_seed=5)
    with pytest.raises(InputError, match="exclude"):
        sfumato.conceal(features, "sub-hybrid-2", decoys, evaluation_seed=5, secret=SECRET)
    with pytest.raises(RecipeError, match="evaluation_seed"):
        sfumato.conceal(features, "sub-hybrid-2", decoys, evaluation_seed=-1)
    with pytest.warns(EvaluationOnlyWarning):
        assert sfumato.conceal(features, "random-2", evaluation_seed=np.int64(5)).recipe.evaluation_seed == 5


def test_the_seed_of_an_earlier_recipe_is_not_used_again(points, decoys):
    features = sfumato.Features(np.zeros((300, 4)), points)
    used = Recipe("sub-hybrid", 2, evaluation_seed=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hidden = sfumato.conceal(features, used, decoys)
    assert hidden.recipe.evaluation_seed is None


def test_the_default_recipe_goes_without_saying():
    features = sfumato.extract(sample_image("coffee").pixels, max_features=50)
    hidden = sfumato.conceal(features, secret=sfumato.new_key())
    assert str(hidden.recipe).startswith("sealed-512@")
    assert len(hidden) == len(features) == 50


def test_features_keep_their_rows_and_note_the_recipe(points, decoys):
    keypoints = np.random.default_rng(4).uniform(0, 100, (300, 4))
    features = sfumato.Features(keypoints, points, Extractor("unknown"), (640, 480))
    hidden = sfumato.conceal(features, "hybrid-2", decoys, secret=SECRET)
    assert isinstance(hidden, sfumato.ConcealedFeatures)
    assert np.array_equal(hidden.keypoints, features.keypoints)
    assert hidden.image_size == (640, 480)
    assert hidden.recipe == Recipe("hybrid", 2)
    assert hidden.recipe.keyed
    assert hidden.recipe.decoys == decoys.checksum
    assert not hasattr(hidden, "descriptors")


def test_decoys_of_another_extractor_are_refused(points, decoys):
    sift = Decoys(decoys.descriptors, Extractor("sift"))
    features = sfumato.Features(np.zeros((300, 4)), points, Extractor("rootsift"))
    with pytest.raises(DecoyError, match="rootsift"):
        sfumato.conceal(features, "sub-hybrid-2", sift)
    with pytest.raises(DecoyError, match="dimensions"):
        sfumato.conceal(np.ones((2, 7)), "sub-hybrid-2", sift)
    with pytest.raises(DecoyError, match="needs decoys"):
        sfumato.conceal(points, "sub-hybrid-2")


def test_lines_are_refused_for_unit_norm_unless_forced(points, decoys):
    with pytest.raises(RecipeError, match="meets"):
        sfumato.conceal(points, "random-1")
    assert sfumato.conceal(points, "random-1-forced").dim == 1
    lengths = np.linspace(1, 3, len(points), dtype=np.float32)[:, None]
    assert sfumato.conceal(points * lengths, "random-1").dim == 1
    for on_a_sphere in (points * 512, np.concatenate([points, np.zeros((3, 32))]), points[:1], points[:2]):
        with pytest.raises(RecipeError, match="sphere"):
            sfumato.conceal(on_a_sphere, "random-1")
    assert sfumato.conceal(points, Recipe("hybrid", 1, forced=True), decoys).dim == 1


@pytest.mark.parametrize(("recipe", "message"), [
    ("random-32", "31 at most"), ("ninja-none+random-2", "encoder"), ("sub-hybird-2", "did you mean 'sub-hybrid-2'"),
])  # fmt: skip
def test_impossible_recipes(recipe, message, points):
    with pytest.raises(RecipeError, match=message):
        sfumato.conceal(points, recipe)


def test_raw_is_for_evaluations_and_warns(points):
    with pytest.warns(EvaluationOnlyWarning, match="conceals nothing"):
        raw = sfumato.conceal(points, "raw")
    assert raw.dim == 0
    assert np.array_equal(raw.origin, points)


@pytest.mark.parametrize("bad", [np.zeros(3), np.full((2, 4), np.nan), np.array([["a", "b"]]), np.zeros((2, 0))])
def test_bad_points(bad):
    with pytest.raises(InputError):
        sfumato.conceal(bad, "random-2")


def test_no_points(decoys):
    hidden = sfumato.conceal(np.zeros((0, 32)), "sub-hybrid-2", decoys)
    assert hidden.origin.shape == (0, 32)
    assert hidden.basis.shape == (0, 2, 32)


def test_too_few_or_too_equal_decoys(points):
    with pytest.raises(DecoyError, match="needs 4 decoys"):
        sfumato.conceal(points, "sub-adversarial-4", Decoys(points[:12], parts=4))
    same = Decoys(np.repeat(points[:1], 8, axis=0), parts=1)
    with pytest.raises(DecoyError, match="alike"):
        sfumato.conceal(points[5:], "adversarial-2", same)


def test_nearly_dependent_directions_are_drawn_again(points):
    """Of these three decoys two lie, as seen from the descriptor, in almost the same direction."""
    clear, first, other = points[:1], points[1], points[2]
    decoys = Decoys(np.stack([first, first + 1e-5 * (other - clear[0]), other]), parts=1)
    for _ in range(10):
        inside = decoys_inside(sfumato.conceal(clear, "adversarial-2", decoys), decoys, 1e-6)
        assert 2 in inside[0]


def test_a_descriptor_that_is_itself_a_decoy_is_lifted(points):
    decoys = Decoys(points[:8], parts=1)  # of fewer, sixteen draws in a row may all hold the descriptor itself
    for _ in range(5):
        assert contained(points[:3], sfumato.conceal(points[:3], "adversarial-2", decoys)).max() < 1e-6


@pytest.mark.filterwarnings("ignore::sfumato.errors.VoidDistanceWarning")
@given(st.integers(2, 20), st.integers(1, 19), st.sampled_from(LIFTINGS), st.integers(0, 2**32 - 1))
def test_any_dimension(n, m, kind, seed):
    rng = np.random.default_rng(seed)
    points = (rng.normal(size=(3, n)) * rng.uniform(0.1, 10)).astype(np.float32)
    decoys = Decoys(rng.normal(size=(80, n)).astype(np.float32), parts=2)
    if m >= n:
        with pytest.raises(RecipeError):
            sfumato.conceal(points, f"{kind}-{m}-forced", decoys)
        return
    hidden = sfumato.conceal(points, f"{kind}-{m}-forced", decoys)
    assert contained(points, hidden).max() < 1e-5 * max(1, np.abs(points).max() * n**0.5)
    clear = ((points[:, None] - points[None]).astype(float) ** 2).sum(-1)
    assert (reference.squared_distances(hidden, hidden) <= clear + 1e-4 * max(1.0, clear.max())).all()


def right_matches(side0, side1, homography):
    """Return how many mutual nearest neighbours agree with a homography within 3 pixels."""
    squared = reference.squared_distances(side0.code, side1.code)
    nearest = squared.argmin(axis=1)
    mutual = np.flatnonzero(squared.argmin(axis=0)[nearest] == np.arange(len(nearest)))
    moved = warp_points(homography, side0.keypoints[mutual, :2])
    return int((np.linalg.norm(moved - side1.keypoints[nearest[mutual], :2], axis=1) < 3).sum())


def test_real_pictures_still_match(shared_data):
    folder = shared_data / "homography" / "v_graf"
    homography = np.loadtxt(folder / "H_1_2")
    sides = [sfumato.extract(folder / name, max_features=300) for name in ("1.png", "2.png")]
    decoys = sfumato.load_decoys()
    counts = {}
    for recipe in ("raw", "sub-hybrid-2"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EvaluationOnlyWarning)
            counts[recipe] = right_matches(*(sfumato.conceal(side, recipe, decoys) for side in sides), homography)
    assert counts["raw"] > 60
    assert counts["sub-hybrid-2"] > 0.6 * counts["raw"]  # even if both draw the same part


# ---------------------------------------------------------------- encoders first


@pytest.fixture
def ninja(tmp_path, make_encoder):
    """A recipe with an encoder of 32 dimensions for unknown descriptors."""
    save_encoder(tmp_path / "x.safetensors", make_encoder(dims=(32, 64, 32), name="sift"))
    return f"ninja:{tmp_path / 'x.safetensors'}"


def test_an_encoder_alone_gives_points_and_no_warning(points, ninja):
    own = load_encoder(ninja.removeprefix("ninja:"))
    hidden = sfumato.conceal(points, ninja)
    assert (hidden.dim, hidden.ambient_dim, len(hidden)) == (0, 32, 300)
    assert np.abs(hidden.origin - encode(own, points)).max() < 1e-7
    features = sfumato.Features(np.zeros((300, 4)), points, sfumato.Extractor("sift"))
    released = sfumato.conceal(features, ninja, evaluation_seed=3)
    assert str(released.recipe) == f"ninja:x@{own.checksum[:12]}"
    assert released.recipe.evaluation_seed is None  # nothing was drawn
    assert np.array_equal(released.code.origin, hidden.origin)
    keyed = sfumato.conceal(features, ninja, secret=os.urandom(32))
    assert not keyed.recipe.keyed
    assert np.array_equal(keyed.code.origin, hidden.origin)
    with pytest.raises(InputError, match="exclude"):
        sfumato.conceal(features, ninja, secret=os.urandom(32), evaluation_seed=1)


def test_no_features_are_encoded_to_none(ninja):
    assert sfumato.conceal(np.zeros((0, 32)), ninja).origin.shape == (0, 32)
    assert sfumato.conceal(np.zeros((0, 32)), f"{ninja}+random-2").basis.shape == (0, 2, 32)


def test_a_lifting_after_an_encoder_holds_the_encoded_point_and_encoded_decoys(points, decoys, ninja):
    own = load_encoder(ninja.removeprefix("ninja:"))
    for recipe, secret in (("random-2", None), ("sub-hybrid-2", None), ("adversarial-2", os.urandom(32))):
        features = sfumato.Features(np.zeros((300, 4)), points)
        hidden = sfumato.conceal(features, f"{ninja}+{recipe}", decoys, secret=secret)
        assert (hidden.code.dim, str(hidden.recipe)) == (2, f"ninja:x@{own.checksum[:12]}+{recipe}")
        distances = sfumato.squared_distances(encode(own, points), hidden.code)
        assert np.diag(distances).max() < 1e-9
        assert hidden.recipe.decoys == (None if recipe == "random-2" else decoys.checksum)
        near = sfumato.squared_distances(encode(own, decoys.descriptors), hidden.code[:20])
        assert (near < 1e-9).sum() >= {"random-2": 0, "sub-hybrid-2": 20, "adversarial-2": 40}[recipe]


def test_equal_descriptors_share_a_subspace_behind_an_encoder(points, decoys, ninja):
    twice = np.concatenate([points[:40], points[:40]])
    hidden = sfumato.conceal(twice, f"{ninja}+sub-hybrid-2", decoys)
    assert np.array_equal(hidden.origin[:40], hidden.origin[40:])
    assert np.array_equal(hidden.basis[:40], hidden.basis[40:])


def test_a_key_gives_the_same_subspace_in_any_company_and_under_any_name(points, decoys, ninja, tmp_path):
    other, secret = tmp_path / "renamed.safetensors", os.urandom(32)
    other.write_bytes((tmp_path / "x.safetensors").read_bytes())
    all_ = sfumato.conceal(points, f"{ninja}+hybrid-2", decoys, secret=secret)
    some = sfumato.conceal(points[17:19], f"ninja:{other}+hybrid-2", decoys, secret=secret)
    assert np.abs(all_.origin[17:19] - some.origin).max() < 1e-5
    assert np.abs(all_.basis[17:19] - some.basis).max() < 1e-5


def test_an_encoder_of_another_kind_is_refused(points, ninja, decoys):
    for name in ("hardtfeat", "rootsift"):
        features = sfumato.Features(np.zeros((300, 4)), points, sfumato.Extractor(name))
        with pytest.raises(RecipeError, match=name):
            sfumato.conceal(features, ninja)
    with pytest.raises(InputError, match="31"):
        sfumato.conceal(points[:, :31], ninja)
    with pytest.raises(InputError, match="effect"):
        sfumato.conceal(points, ninja, labels=[1] * 300)
    with pytest.raises(RecipeError, match="sphere"):
        sfumato.conceal(points, f"{ninja}+random-1")
