# SPDX-License-Identifier: Apache-2.0
"""Chaff: as many rows as the recipe says, evenly over the picture, the same again from one key, matching nothing."""

from dataclasses import replace

import numpy as np
import pytest

import sfumato
from sfumato.concealment.chaff import choose_rows, draw_picture, mix_chaff
from sfumato.concealment.lifting import with_chaff
from sfumato.concealment.randomness import NoiseStream
from sfumato.errors import EvaluationOnlyWarning, InputError, RecipeError
from sfumato.images.samples import sample_image
from sfumato.types.extractor import Extractor

KEY, RECIPE = np.random.default_rng(3).bytes(32), "sealed-512+chaff-2"


@pytest.fixture(scope="module")
def coffee():
    return sfumato.extract(sample_image("coffee").pixels, max_features=400)


def test_real_rows_stay_as_they_are_among_chaff_from_top_to_bottom(coffee):
    mixed, real = mix_chaff(coffee, 2, b"seed")
    assert (len(mixed), real.sum()) == (3 * len(coffee), len(coffee))
    assert np.array_equal(mixed.descriptors[real], coffee.descriptors)
    assert np.array_equal(mixed.keypoints[real], coffee.keypoints)
    assert (np.diff(mixed.keypoints[:, 1]) >= 0).all()
    assert 0.2 < real[: len(real) // 2].mean() < 0.5


def test_together_they_cover_the_picture_more_evenly_than_real_ones(coffee):
    mixed, _ = mix_chaff(coffee, 2, b"seed")

    def unevenness(keypoints):
        counts = np.histogram2d(*keypoints[:, :2].T, bins=(6, 4), range=[[0, 600], [0, 400]])[0]
        return counts.std() / counts.mean()

    assert unevenness(mixed.keypoints) < 0.5 * unevenness(coffee.keypoints)


def test_a_photo_of_little_detail_has_as_many_rows_as_others():
    pixels = np.full((240, 320), 90, np.uint8)
    pixels[100:140, 150:200] = sample_image("coffee").pixels[100:140, 150:200].mean(axis=2)
    few = sfumato.extract(pixels, max_features=2000)
    mixed, real = mix_chaff(few, 2, b"seed")
    assert 5 < len(few) < 240 * 320 // 150 == 512
    assert (len(mixed), real.sum()) == (3 * 512, len(few))
    assert len(mix_chaff(sfumato.extract(pixels, max_features=len(few)), 2, b"seed")[0]) == 3 * len(few)


def test_a_photo_released_twice_under_one_key_has_the_same_chaff(coffee):
    first, again = (sfumato.conceal(coffee, RECIPE, secret=KEY) for _ in range(2))
    assert np.array_equal(first.code.packed, again.code.packed)
    assert np.array_equal(first.keypoints, again.keypoints)
    real = with_chaff(coffee, RECIPE, secret=KEY)[1]
    alone = sfumato.conceal(coffee, "sealed-512", secret=KEY)
    assert np.array_equal(first.code.packed[real], alone.code.packed)


def test_a_photo_released_for_two_places_has_the_same_chaff_under_other_seals(coffee):
    kitchen, hall = (sfumato.conceal(coffee, RECIPE, secret=KEY, place=place) for place in ("kitchen", "hall"))
    assert np.array_equal(kitchen.keypoints, hall.keypoints)
    assert abs(np.unpackbits(kitchen.code.packed ^ hall.code.packed).mean() - 0.5) < 0.01
    real = with_chaff(coffee, RECIPE, secret=KEY)[1]
    assert np.array_equal(
        kitchen.code.packed[real], sfumato.conceal(coffee, "sealed-512", secret=KEY, place="kitchen").code.packed
    )


@pytest.mark.parametrize("change", ["key", "photo"])
def test_another_key_or_photo_has_other_chaff(coffee, change):
    other = replace(coffee, descriptors=coffee.descriptors[:, ::-1].copy()) if change == "photo" else coffee
    key = KEY if change == "photo" else KEY[::-1]
    assert not np.array_equal(
        sfumato.conceal(coffee, RECIPE, secret=KEY).keypoints, sfumato.conceal(other, RECIPE, secret=key).keypoints
    )


def test_chaff_matches_nothing(coffee):
    other = sfumato.extract(sample_image("coffee").pixels[:, ::-1].copy(), max_features=400)
    images = [sfumato.conceal(one, RECIPE, secret=KEY) for one in (coffee, other)]
    real = [with_chaff(one, RECIPE, secret=KEY)[1] for one in (coffee, other)]
    found = sfumato.match(*images).indices
    is_chaff = ~real[0][found[:, 0]] | ~real[1][found[:, 1]]
    assert is_chaff.sum() <= 0.02 * len(coffee)


def test_the_result_does_not_say_which_rows_are_chaff(coffee):
    concealed = sfumato.conceal(coffee, RECIPE, secret=KEY)
    assert str(concealed.recipe).startswith("sealed-512@")
    assert str(concealed.recipe).endswith("+chaff-2")
    assert (concealed.keypoints[:, 2:] == [1, 0]).all()


def test_liftings_take_chaff_too(coffee):
    concealed = sfumato.conceal(coffee, "random-2+chaff-1", secret=KEY)
    assert len(concealed) == 2 * len(coffee)
    assert not (concealed.keypoints[:, 2:] == [1, 0]).all()


def test_an_encoder_with_chaff_draws_and_says_so(coffee):
    assert sfumato.conceal(coffee, "compress-48+chaff-1", secret=KEY).recipe.keyed
    with pytest.warns(EvaluationOnlyWarning, match="chaff"):
        assert sfumato.conceal(coffee, "compress-48+chaff-1", evaluation_seed=3).recipe.evaluation_seed == 3


@pytest.mark.parametrize("secret", [b"", b"abc", "a text of more than thirty-two letters", bytes(32)])
def test_chaff_needs_a_key_that_nobody_guesses(coffee, secret):
    with pytest.raises(RecipeError, match="key"):
        with_chaff(coffee, RECIPE, secret=secret)


def test_a_picture_of_noise_is_drawn_from_its_seed():
    first, again, other = (draw_picture((90, 60), 0.5, NoiseStream(seed)) for seed in (b"a", b"a", b"b"))
    assert first.shape == (60, 90)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_features_at_one_place_are_taken_together():
    rng = np.random.default_rng(0)
    places = np.repeat(rng.uniform(0, 100, (500, 2)), 2, axis=0)
    drawn = np.column_stack([places, np.ones(1000), rng.uniform(0, 360, 1000)]).astype(np.float32)
    rows = choose_rows(drawn[:40], drawn, (100, 100), 300, NoiseStream(b"c"), 40)
    assert len(set(rows.tolist())) == 300
    assert set((rows // 2).tolist()) == set((rows[rows % 2 == 0] // 2).tolist())


def test_what_has_no_chaff(coffee):
    empty = sfumato.extract(np.zeros((40, 60), np.uint8))
    assert len(sfumato.conceal(empty, RECIPE, secret=KEY)) == 0
    with pytest.raises(InputError, match="array"):
        sfumato.conceal(coffee.descriptors, RECIPE, secret=KEY)
    with pytest.raises(RecipeError, match="extractor"):
        sfumato.conceal(replace(coffee, extractor=Extractor("sift")), RECIPE, secret=KEY)
    with pytest.raises(InputError, match="image_size"):
        sfumato.conceal(replace(coffee, image_size=None), RECIPE, secret=KEY)
    assert with_chaff(coffee, "sealed-512")[1].all()
