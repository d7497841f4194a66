# SPDX-License-Identifier: Apache-2.0
"""Encoders of a recipe are found by file, name and checksum; a recipe that was resolved names no path."""

import numpy as np
import pytest
from cachetools import LRUCache

import sfumato
from sfumato.concealment import encoder as learned
from sfumato.concealment import resolve as module
from sfumato.concealment.decoys import Decoys
from sfumato.concealment.encoder import encode, load_encoder, save_encoder
from sfumato.concealment.resolve import ResolvedRecipe, encode_decoys, encode_points, find_encoders, remember, resolve
from sfumato.errors import FileError, InputError, RecipeError
from sfumato.training.compress import learn_compress


@pytest.fixture
def path(tmp_path, make_encoder):
    """The file of an encoder of 32 dimensions."""
    save_encoder(tmp_path / "x.safetensors", make_encoder(dims=(32, 64, 32)))
    return tmp_path / "x.safetensors"


@pytest.fixture
def forgotten(monkeypatch):
    """A process that has read no encoder."""
    monkeypatch.setattr(module, "_by_digits", LRUCache(32))
    monkeypatch.setattr(module, "_by_file", LRUCache(32))


def test_a_file_is_named_by_its_checksum_and_no_path(path, points):
    found, own = resolve(f"ninja:{path}"), load_encoder(path)
    assert str(found.recipe) == f"ninja:x@{own.checksum[:12]}"
    assert found.recipe.space == f"ninja@{own.checksum[:12]}"
    assert np.array_equal(encode_points(found, points), encode(own, points))
    assert np.array_equal(found(points), encode(own, points))
    assert resolve(found.recipe) == found
    lifted = resolve(f"ninja:{path}+sub-hybrid-2")
    assert str(lifted.recipe) == f"ninja:x@{own.checksum[:12]}+sub-hybrid-2"


@pytest.mark.parametrize("turned", [False, True])
def test_an_encoder_that_conceals_nothing_is_refused(turned, tmp_path):
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(32, 32)))[0] if turned else np.eye(32)
    layer = (turn.astype(np.float32), np.zeros(32, np.float32), False)
    save_encoder(tmp_path / "same.safetensors", learned.Encoder(layers=(layer,), extractor_name="sift"), "float32")
    with pytest.raises(RecipeError, match="conceals nothing"):
        resolve(f"ninja:{tmp_path / 'same.safetensors'}")


def test_a_recorded_recipe_keeps_no_folder(path):
    digits = remember(load_encoder(path)).checksum[:12]
    assert str(resolve(f"ninja:/home/someone/x@{digits}").recipe) == f"ninja:x@{digits}"


def test_recipes_without_encoders_stay_as_they_are(points):
    assert resolve("sub-hybrid-2") == ResolvedRecipe(sfumato.Recipe("sub-hybrid-2"), ())
    assert np.array_equal(encode_points(resolve("raw"), points), points)


def test_two_encoders_of_one_name_are_two_recipes(path, make_encoder):
    before = resolve(f"ninja:{path}").recipe
    save_encoder(path, make_encoder(1, dims=(32, 64, 32)))
    after = resolve(f"ninja:{path}").recipe
    assert before != after
    assert before.space != after.space


def test_the_name_of_a_file_is_not_part_of_the_space(path, tmp_path):
    other = tmp_path / "y.safetensors"
    other.write_bytes(path.read_bytes())
    one, two = resolve(f"ninja:{path}").recipe, resolve(f"ninja:{other}").recipe
    assert one != two
    assert one.space == two.space


def test_bundled_ones_are_found_by_name_and_by_checksum(tmp_path, make_encoder, monkeypatch, forgotten):
    monkeypatch.setattr(learned.resources, "files", lambda package: tmp_path)
    (tmp_path / "data").mkdir()
    saved = save_encoder(tmp_path / "data" / "ninja-sift-2.5.safetensors", make_encoder())
    found = resolve("ninja-sift-2.5")
    assert str(found.recipe) == f"ninja-sift-2.5@{saved.checksum[:12]}"
    module._by_digits.clear()
    assert find_encoders(found.recipe) == resolve(found.recipe)
    with pytest.raises(RecipeError, match=r"'ninja-sift-2\.5'"):
        resolve("ninja-sift-9")


def test_a_checksum_that_nobody_has_is_told(path, forgotten, make_encoder):
    recipe = sfumato.Recipe.of("ninja:x@0123456789ab")
    with pytest.raises(RecipeError, match="--encoder FILE"):
        resolve(recipe)
    assert find_encoders(recipe) is None
    own = load_encoder(path)
    recorded = sfumato.Recipe.of(f"ninja:elsewhere@{own.checksum[:12]}+random-2")
    assert find_encoders(recorded) is None
    assert find_encoders(recorded, [own]).encoders == (own,)
    assert find_encoders(recorded) is not None  # it was read
    with pytest.raises(InputError, match="another encoder"):
        find_encoders(recorded, [make_encoder(7)])
    assert find_encoders(sfumato.Recipe.of("ninja-small")) is None  # a name without a checksum says nothing


@pytest.mark.parametrize(
    ("recipe", "kind", "message"),
    [
        ("ninja:none.safetensors", FileError, "check the path after ninja:"),
        ("ninja:.", FileError, "not a file"),
        ("compress-128", RecipeError, "conceals nothing"),
        ("compress-129", RecipeError, "128 .*129"),
        ("compress-8:none.safetensors", FileError, "check the path after compress:"),
        ("ninja-none", RecipeError, "no encoder ninja-none"),
    ],
)
def test_what_can_not_be_found_is_told(recipe, kind, message):
    with pytest.raises(kind, match=message):
        resolve(recipe)


def test_chains_must_fit(path, tmp_path, make_encoder):
    save_encoder(tmp_path / "narrow.safetensors", make_encoder(dims=(32, 8)))
    save_encoder(tmp_path / "last.safetensors", make_encoder(dims=(8, 16, 4)))
    narrow, last = (f"ninja:{tmp_path / name}.safetensors" for name in ("narrow", "last"))
    assert encode_points(resolve(f"{narrow}+{last}"), np.ones((3, 32))).shape == (3, 4)
    with pytest.raises(RecipeError, match="32"):
        resolve(f"{narrow}+ninja:{path}")


def test_components_are_cut_named_by_checksum_and_found_again(forgotten):
    found = resolve("compress-48+sub-hybrid-2")
    (encoder,) = found.encoders
    assert (encoder.kind, encoder.output_dim) == ("compress", 48)
    assert str(found.recipe) == f"compress-48@{encoder.checksum[:12]}+sub-hybrid-2"
    assert found.recipe.space == f"compress@{encoder.checksum[:12]}"
    assert resolve(found.recipe) == found
    assert resolve("compress-32").encoders[0].checksum != encoder.checksum
    module._by_digits.clear()
    again = find_encoders(found.recipe)
    assert again.recipe == found.recipe
    assert again.encoders[0].checksum == encoder.checksum
    assert sfumato.Recipe.from_json(found.recipe.to_json()) == found.recipe


def test_own_components_are_cut_from_their_file(tmp_path, forgotten, points):
    rows = np.random.default_rng(0).random((500, 32))
    whole = save_encoder(tmp_path / "mine.safetensors", learn_compress(rows, "toy"))
    found = resolve(f"compress-8:{tmp_path / 'mine.safetensors'}+random-2")
    digits = learned.cut_components(whole, 8).checksum[:12]
    assert str(found.recipe) == f"compress-8:mine@{digits}+random-2"
    assert found(points).shape == (len(points), 8)
    module._by_digits.clear()
    assert find_encoders(found.recipe) is None
    again = find_encoders(found.recipe, [whole])
    assert np.array_equal(again(points), found(points))  # the whole file, cut as the recipe says
    with pytest.raises(RecipeError, match="compress"):
        resolve(f"ninja:{tmp_path / 'mine.safetensors'}")
    with pytest.raises(RecipeError, match="compress-32"):
        resolve(f"compress-32:{tmp_path / 'mine.safetensors'}")


def test_decoys_are_encoded_once(path, decoys, monkeypatch):
    found = resolve(f"ninja:{path}")
    encoded = encode_decoys(found, decoys)
    assert np.array_equal(encoded.descriptors, encode(found.encoders[0], decoys.descriptors))
    assert np.array_equal(encoded.permutation, decoys.permutation)
    assert encode_decoys(resolve(f"ninja:{path}"), decoys) is encoded
    assert encode_decoys(resolve("random-2"), decoys) is decoys
    other = Decoys(decoys.descriptors)
    assert encode_decoys(found, other) is not encoded


def test_one_object_stands_for_an_encoder(path):
    first, second = load_encoder(path), load_encoder(path)
    assert first is not second
    assert remember(first) is remember(second)


def test_only_so_many_are_remembered(forgotten, make_encoder, monkeypatch):
    monkeypatch.setattr(module, "_by_digits", LRUCache(2))
    for seed in range(4):
        remember(make_encoder(seed, dims=(4, 4)))
    assert len(module._by_digits) == 2
