# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import sfumato
from sfumato.auditing.subjects import (
    ClearFeatures,
    Subject,
    choose_decoys,
    choose_subjects,
    conceal_repeatably,
    draw_parts,
    single_part,
    unlifted,
)
from sfumato.concealment.encoder import save_encoder
from sfumato.errors import DecoyError, FileError, InputError, RecipeError
from sfumato.types.recipe import Recipe


def told(*given):
    return [str(subject) for subject in choose_subjects(*given)]


def test_every_recipe_with_every_distance_and_seed():
    assert told(["raw", "random-2"], ["p-to-s", "s-to-s"], [0, 1]) == [
        "raw p-to-p", "random-2 p-to-s seed 0", "random-2 p-to-s seed 1", "random-2 s-to-s seed 0",
        "random-2 s-to-s seed 1",
    ]  # fmt: skip


def test_repeated_wishes_count_once():
    assert told(["raw", "raw", "random-2"], ["s-to-s"] * 2, [3, 3]) == ["raw p-to-p", "random-2 s-to-s seed 3"]
    assert told(["raw"], [], []) == ["raw p-to-p"]


@pytest.mark.parametrize(
    ("recipes", "distances", "seeds", "message"),
    [(["rnd-2"], ["p-to-s"], [0], "recipe"), (["random-2"], ["p2s"], [0], "p-to-s"), (["random-2"], [], [0], "nothing"),
     ([], ["p-to-s"], [0], "nothing"), (["random-2"], ["p-to-s"], [-1], "seeds"),
     (["random-2"], ["p-to-s"], [True], "seeds")],
)  # fmt: skip
def test_wrong_wishes_are_told(recipes, distances, seeds, message):
    with pytest.raises(InputError, match=message):
        choose_subjects(recipes, distances, seeds)


def test_which_kinds_draw_parts():
    drawing = [name for name in ("raw", "random-2", "adversarial-2", "hybrid-2", "sub-adversarial-2", "sub-hybrid-4")
               if Subject(Recipe.of(name), "s-to-s", 0).draws_parts]  # fmt: skip
    assert drawing == ["sub-adversarial-2", "sub-hybrid-4"]


@pytest.fixture
def decoys():
    rows = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
    return sfumato.Decoys(rows, sfumato.Extractor("toy"), np.random.default_rng(1).permutation(64), parts=4)


def chosen(kind, decoys, *recipes):
    return choose_decoys(choose_subjects(recipes, ["s-to-s"], [0]), sfumato.Extractor(kind), decoys)


def test_decoys_are_chosen_by_descriptor(decoys):
    assert chosen("toy", decoys, "raw", "random-2") is None
    assert chosen("toy", decoys, "sub-hybrid-2") is decoys
    assert chosen("sift", None, "sub-hybrid-2").extractor.name == "sift"
    assert chosen("rootsift", None, "sub-hybrid-2").extractor.name == "rootsift"
    for kind, given in (("toy", None), ("sift", decoys)):
        with pytest.raises(DecoyError, match="decoys build"):
            chosen(kind, given, "sub-hybrid-2")


@pytest.mark.parametrize("recipe", ["random-1", "sub-hybrid-8", "compress-4", "hybrid-labels-2"])
def test_recipes_that_can_not_work_are_told_before_anything_is_measured(decoys, recipe):
    with pytest.raises((RecipeError, InputError), match=recipe):
        chosen("toy", decoys, "sub-hybrid-2", recipe)


def test_liftings_repeat_with_the_seed_alone_and_do_not_warn(decoys):
    rows = np.random.default_rng(2).normal(size=(10, 8)).astype(np.float32)
    features = sfumato.Features(np.zeros((10, 4)), rows, sfumato.Extractor("toy"))
    one, two, other = (conceal_repeatably(features, Recipe.of("sub-hybrid-2"), decoys, seed=seed) for seed in (4, 4, 5))
    assert np.array_equal(one.code.basis, two.code.basis)
    assert not np.array_equal(one.code.basis, other.code.basis)
    assert one.recipe.evaluation_seed == 4


def test_a_part_is_that_part(decoys):
    entries = [single_part(decoys, part).descriptors for part in range(4)]
    assert np.array_equal(np.concatenate(entries), decoys.descriptors[decoys.permutation])
    assert single_part(decoys, 1).parts == 1


def test_the_second_image_draws_any_other_part_equally_often():
    drawn = [draw_parts(seed, "s", f"s 1-{k}", 4) for seed in range(400) for k in range(2)]
    assert all(own != other for own, other in drawn)
    counts = np.bincount([(other - own) % 4 for own, other in drawn], minlength=4)
    assert counts[1:].min() > 220
    assert np.bincount([own for own, _ in drawn], minlength=4).min() > 140


def test_the_first_image_of_a_sequence_keeps_its_part():
    assert len({draw_parts(7, "s", f"s 1-{k}", 16)[0] for k in range(5)}) == 1
    assert draw_parts(7, "s", "s 1-2", 1) == (0, 0)


def test_clear_features_are_extracted_once_and_let_go(tmp_path):
    calls = []

    def extract(path):
        calls.append(path.name)
        return sfumato.Features(np.zeros((1, 4)), np.ones((1, 8)))

    held = ClearFeatures(extract)
    a, b = tmp_path / "a", tmp_path / "b"
    assert held[a] is held[a]
    assert calls == ["a"]
    _ = held[b]
    held.keep_only([b])
    assert repr(held) == "ClearFeatures(1 images)"
    _ = held[a], held[b]
    assert calls == ["a", "b", "a"]
    assert not list(tmp_path.iterdir())


@pytest.fixture
def ninja(tmp_path, make_encoder):
    save_encoder(tmp_path / "n.safetensors", make_encoder(dims=(8, 16, 8), name="toy"))
    return f"ninja:{tmp_path / 'n.safetensors'}"


def test_an_encoder_is_compared_once_and_named_by_its_checksum(ninja, decoys):
    found = choose_subjects(["raw", ninja, f"{ninja}+random-2"], ["p-to-s", "s-to-s"], [0, 1])
    digits = found[1].recipe.encoders[0].checksum
    assert [str(subject) for subject in found][:3] == [
        "raw p-to-p", f"ninja:n@{digits} p-to-p", f"ninja:n@{digits}+random-2 p-to-s seed 0",
    ]  # fmt: skip
    assert len(found) == 6
    assert choose_decoys(found, sfumato.Extractor("toy"), decoys) is None
    with pytest.raises(RecipeError, match="sift"):
        choose_decoys(found, sfumato.Extractor("sift"), None)
    with pytest.raises(FileError, match="check"):
        choose_subjects(["ninja:none.safetensors"], ["p-to-s"], [0])


def test_points_to_compare_with_are_encoded(ninja):
    recipe = choose_subjects([f"{ninja}+random-2"], ["p-to-s"], [0])[0].recipe
    features = sfumato.Features(np.zeros((3, 4)), np.eye(3, 8), sfumato.Extractor("toy"))
    hidden = conceal_repeatably(features, recipe, None, seed=0)
    assert np.diag(sfumato.squared_distances(unlifted(features, recipe), hidden.code)).max() < 1e-9
    assert np.array_equal(unlifted(features, Recipe.of("random-2")), features.descriptors)
