# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import numpy as np
import pytest

import sfumato
from sfumato.auditing.matching import (
    HomographyProtocol,
    Pair,
    PairMatcher,
    count_correct,
    pairs_of,
    score_name,
    transfer_errors,
)
from sfumato.auditing.subjects import ClearFeatures, choose_subjects
from sfumato.auditing.task import Sample
from sfumato.concealment.encoder import save_encoder
from sfumato.errors import InputError
from sfumato.experiments.data.folders import read_homography_folder
from sfumato.images.homography import HomographyParams, HomographySequence, draw_homography, warp_points
from sfumato.images.samples import sample_image

SHIFT = np.array([[1.0, 0, 10], [0, 1, 0], [0, 0, 1]])
KEY = "v_toy 1-2"


def test_errors_are_measured_in_the_second_image():
    double = np.diag([2.0, 2.0, 1.0])
    assert transfer_errors(double, np.array([[1.0, 1.0]]), np.array([[2.0, 5.0]])).tolist() == [3.0]
    assert transfer_errors(double, np.zeros((0, 2)), np.zeros((0, 2))).shape == (0,)


def test_beyond_the_horizon_nothing_is_correct():
    horizon = np.array([[1.0, 0, 0], [0, 1, 0], [-1, 0, 1]])
    points = np.array([[1.0, 0.0], [2.0, 0.0]])  # on the horizon, and behind it: that one is mirrored to (-2, 0)
    assert transfer_errors(horizon, points, np.array([[0.0, 0.0], [-2.0, 0.0]])).tolist() == [np.inf, np.inf]


def test_counting():
    figures = count_correct(np.array([0.5, 1.0, 2.5, 10.0, 10.1, np.inf]))
    assert figures["matches"] == 6
    assert [figures[f"correct {px} px"] for px in (1, 2, 3, 9, 10)] == [2, 2, 3, 3, 4]
    assert figures["accuracy 3 px"] == 0.5
    assert set(count_correct(np.zeros(0)).values()) == {0.0}


def test_keypoints_follow_the_homography_to_a_part_of_a_pixel():
    """A half pixel lost between keypoints and homography would show as a shift of 0.25 pixels at this scale."""
    image = sample_image("coffee")
    import cv2

    half = cv2.resize(image.pixels, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    homography = np.array([[0.5, 0, -0.25], [0, 0.5, -0.25], [0, 0, 1]])  # centres of pixels are whole numbers
    first, second = sfumato.extract(image, max_features=800), sfumato.extract(half, max_features=800)
    matches = sfumato.match(first.descriptors, second.descriptors, ratio=0.7)
    a, b = first.keypoints[matches.indices[:, 0], :2], second.keypoints[matches.indices[:, 1], :2]
    offsets = b - warp_points(homography, a)
    good = np.linalg.norm(offsets, axis=1) < 2
    assert good.sum() > 50
    assert np.abs(np.median(offsets[good], axis=0)).max() < 0.06


@pytest.fixture
def toy():
    """Features of two images: 40 rows that match, shifted by 10 pixels, and 10 in each that do not."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 16)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    points = np.zeros((60, 4), np.float32)
    points[:, :2] = rng.uniform(0, 100, (60, 2))
    kind = sfumato.Extractor("toy")
    second = points + np.array([10, 0, 0, 0], np.float32)
    second[:10, 1] += 2.5  # correct from 3 px on
    order = rng.permutation(50)
    keep = np.concatenate([np.arange(40), np.arange(50, 60)])[order]
    return {
        Path("1"): sfumato.Features(points[:50], rows[:50], kind),
        Path("2"): sfumato.Features(second[keep], rows[keep] + 0.01 * rng.normal(size=(50, 16)), kind),
        Path("3"): sfumato.Features(np.zeros((0, 4)), np.zeros((0, 16)), kind),
    }


@pytest.fixture
def toy_decoys():
    rows = np.random.default_rng(5).normal(size=(64, 16)).astype(np.float32)
    return sfumato.Decoys(rows, sfumato.Extractor("toy"), parts=4)


def matcher(toy, decoys, recipe="raw", distance="s-to-s", **settings) -> PairMatcher:
    pairs = [
        Pair("v_toy", "viewpoint", 2, Path("1"), Path("2"), SHIFT),
        Pair("x", "other", 2, Path("1"), Path("3"), SHIFT),
    ]
    subject = choose_subjects([recipe], [distance], [3])[0]
    protocol = HomographyProtocol(threads=1, **settings)
    return PairMatcher(subject, {pair.key: pair for pair in pairs}, ClearFeatures(toy.__getitem__), protocol, decoys)


def measured(one: PairMatcher, key=KEY):
    sample = Sample(key, "0")
    prediction = one.predict(sample)
    return prediction, one.score(sample, prediction)


def test_raw_descriptors_find_what_there_is_to_find(toy, toy_decoys):
    prediction, figures = measured(matcher(toy, toy_decoys))
    assert set(prediction) == {"features", "indices", "distances", "errors_px"}
    assert figures["matches"] >= 40
    assert (figures["correct 2 px"], figures["correct 3 px"]) == (30, 40)
    assert figures["accuracy 3 px"] == 40 / figures["matches"]
    assert figures["features"] == 50


@pytest.mark.parametrize("distance", ["p-to-s", "s-to-s"])
@pytest.mark.parametrize("recipe", ["random-2", "adversarial-2", "sub-hybrid-2"])
def test_what_is_matched_is_what_the_matcher_finds(toy, toy_decoys, recipe, distance):
    one = matcher(toy, toy_decoys, recipe, distance, parts="different")
    prediction, _ = measured(one)
    case = next(iter(one.shares))
    parts = one._parts(one.pairs[KEY], case)
    sides = [toy[Path("1")].descriptors, toy[Path("2")].descriptors]
    from sfumato.auditing.subjects import conceal_repeatably, single_part

    for i in range(2):
        if i == 1 or distance == "s-to-s":
            own = toy_decoys if parts[i] is None else single_part(toy_decoys, parts[i])
            sides[i] = conceal_repeatably(toy[Path(str(i + 1))], one.subject.recipe, own, seed=3)
    expected = sfumato.match(*sides, ratio=1)
    assert np.array_equal(prediction[f"{case}indices"], expected.indices)
    assert np.array_equal(prediction[f"{case}distances"], expected.distances)


def test_the_expectation_is_made_of_both_cases(toy, toy_decoys):
    by_case = {parts: measured(matcher(toy, toy_decoys, "sub-adversarial-2", parts=parts))[1]
               for parts in ("expected", "different", "same")}  # fmt: skip
    for name in ("matches", "accuracy 3 px", "correct 1 px"):
        different, same = by_case["different"][name], by_case["same"][name]
        assert by_case["expected"][name] == pytest.approx(0.75 * different + 0.25 * same)
        assert by_case["expected"][f"{name} of different parts"] == different
        assert by_case["expected"][f"{name} of same parts"] == same
    assert by_case["same"]["correct 3 px"] < by_case["different"]["correct 3 px"]  # shared decoys mislead


@pytest.mark.parametrize(
    ("recipe", "distance"), [("sub-hybrid-2", "p-to-s"), ("adversarial-2", "s-to-s"), ("raw", "p-to-s")]
)
def test_parts_matter_only_where_two_images_draw_them(toy, toy_decoys, recipe, distance):
    one = matcher(toy, toy_decoys, recipe, distance)
    assert one.shares == {"": 1.0}
    assert one.params["parts"] is None


def test_predictions_hold_no_descriptor(toy, toy_decoys):
    prediction, _ = measured(matcher(toy, toy_decoys, "sub-hybrid-2"))
    assert all(array.ndim == 1 or array.shape[1:] == (2,) for array in prediction.values())
    assert all(array.dtype == np.int32 for name, array in prediction.items() if name.endswith(("indices", "features")))


def test_an_image_without_features_counts_as_0(toy, toy_decoys):
    _, figures = measured(matcher(toy, toy_decoys, "sub-hybrid-2"), "x 1-2")
    assert figures["matches"] == figures["accuracy 10 px"] == 0


def test_the_mean_is_over_pairs_and_groups(toy, toy_decoys):
    one = matcher(toy, toy_decoys)
    figures = {key: measured(one, key)[1] for key in one.pairs}
    scores = {score.name: score for score in one.summarise(figures)}
    own = figures[KEY]["accuracy 3 px"]
    assert scores[score_name("accuracy 3 px", "overall")].value == pytest.approx(own / 2)
    assert scores[score_name("accuracy 3 px", "overall")].samples == 2
    assert scores[score_name("accuracy 3 px", "viewpoint")].value == own
    assert not any("illumination" in name for name in scores)
    assert one.summarise({}) == []


def test_parameters_say_what_was_measured(toy, toy_decoys):
    params = matcher(toy, toy_decoys, "sub-hybrid-2").params
    assert (params["recipe"], params["distance"]) == ("sub-hybrid-2", "s-to-s")
    assert (params["parts"], params["part_count"]) == ("expected", 4)
    assert (params["decoys"], params["draws"]) == (toy_decoys.checksum, "evaluation seed")
    assert (params["descriptor"], params["max_features"]) == ("sift", 16_384)
    raw = matcher(toy, toy_decoys).params
    assert (raw["decoys"], raw["draws"]) == (None, None)
    assert matcher(toy, toy_decoys, "random-2").params["decoys"] is None


def test_sequences_give_pairs_of_the_first_image(tmp_path):
    matrices = [draw_homography((60, 40), np.random.default_rng(i), HomographyParams()) for i in range(2)]
    paths = tuple(tmp_path / f"{i}.png" for i in (1, 2, 3))
    pairs = pairs_of(HomographySequence("i_x", "illumination", paths, tuple(matrices)))
    assert [(pair.key, pair.first, pair.second) for pair in pairs] == [
        ("i_x 1-2", paths[0], paths[1]), ("i_x 1-3", paths[0], paths[2])
    ]  # fmt: skip
    assert np.array_equal(pairs[1].homography, matrices[1])


def test_an_unknown_word_for_parts_is_told():
    with pytest.raises(InputError, match="mean 'expected'"):
        HomographyProtocol(parts="expect")


def test_a_homography_with_a_negative_factor_is_the_same_homography(small_sequences):
    sequence = read_homography_folder(small_sequences)[0]
    turned = HomographySequence(sequence.name, sequence.kind, sequence.paths, tuple(-h for h in sequence.homographies))
    points = np.random.default_rng(0).uniform(0, 200, (50, 2))
    for one, other in zip(pairs_of(sequence), pairs_of(turned), strict=True):
        assert np.array_equal(one.homography, other.homography)
        errors = transfer_errors(other.homography, points, warp_points(one.homography, points))
        assert errors.max() < 1e-6


@pytest.mark.parametrize(("lifting", "distance"), [("", "s-to-s"), ("+random-2", "p-to-s"), ("+random-2", "s-to-s")])
def test_encoded_features_are_compared_in_their_space(toy, toy_decoys, tmp_path, make_encoder, lifting, distance):
    save_encoder(tmp_path / "n.safetensors", make_encoder(dims=(16, 16), name="toy"))  # a rotation keeps distances
    one = matcher(toy, toy_decoys, f"ninja:{tmp_path / 'n.safetensors'}{lifting}", distance)
    _, figures = measured(one)
    assert figures["correct 3 px"] > (38 if distance == "p-to-s" or not lifting else 25)
    assert one.params["distance"] == (distance if lifting else "p-to-p")
    assert one.params["recipe"].startswith("ninja:n@")
    assert str(tmp_path) not in str(one.params)
    assert one.params["draws"] == ("evaluation seed" if lifting else None)
