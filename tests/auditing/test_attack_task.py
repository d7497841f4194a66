# SPDX-License-Identifier: Apache-2.0
"""One attack on one recipe, photo by photo."""

from dataclasses import replace

import numpy as np
import pytest

import sfumato
from sfumato.attacks.registry import attack_ids
from sfumato.auditing.attack_task import KNOWN_PAIRS, AttackData, AttackTask, decode_picture
from sfumato.auditing.subjects import ClearFeatures, Subject, settled
from sfumato.auditing.task import Sample
from sfumato.auditing.toolbox import Tools
from sfumato.concealment.decoys import load_decoys
from sfumato.device import conceal_photos
from sfumato.features.local import LocalParams, extract, extractor_of
from sfumato.types.recipe import Recipe

LOCAL = LocalParams(max_features=60)


@pytest.fixture
def intrude(small_photos, make_painter):
    def make(recipe, attack, painter=None):
        subject = Subject(Recipe.of(recipe), "p-to-s", None if recipe == "raw" else 3)
        clear = ClearFeatures(lambda path: extract(path, LOCAL))
        data = AttackData(small_photos, [], clear, Tools(decoys=load_decoys()), extractor_of(LOCAL))
        return AttackTask(subject, attack_ids()[attack], painter or make_painter(), data)

    return make


SAMPLE = Sample("coffee.png", "0")


def test_nothing_kept_is_a_descriptor(intrude):
    kept = intrude("sub-hybrid-2", "nearest").predict(SAMPLE)
    assert set(kept) == {"distances", "confidence", "features", "picture", "released"}
    count = int(kept["features"][0])
    assert 20 < count <= 60
    assert kept["distances"].shape == kept["confidence"].shape == (count,)
    assert decode_picture(kept["picture"]).shape == (120, 160, 3)


def test_outlines_are_compared_with_those_of_the_photo(intrude, make_painter):
    task = intrude("sub-hybrid-2", "keypoints", make_painter(architecture="outlines", dim=1))
    figures = task.score(SAMPLE, task.predict(SAMPLE))
    assert set(figures) == {"outlines", "features"}
    assert -1 <= figures["outlines"] <= 1


def test_the_attacker_gets_what_the_attack_needs_and_nothing_else(intrude, monkeypatch):
    from sfumato.auditing import attack_task as module

    seen = []
    real = module.run_attack
    monkeypatch.setattr(module, "run_attack", lambda a, f, k: seen.append(k.known) or real(a, f, k))
    for attack in ("vertex", "nearest", "intersection", "oracle"):
        intrude("sub-hybrid-2", attack).predict(SAMPLE)
    assert seen == [(), ("public",), ("releases",), ("public", "clear")]


def test_the_second_release_is_another_one(intrude):
    one = intrude("sub-hybrid-2", "intersection")
    features = one.data.clear[one.data.photos["coffee.png"]]
    first, second = (one._concealed(features, further).code for further in (0, 1_000_003))
    assert not np.allclose(first.origin, second.origin)


def test_direct_inversion_sees_the_canonical_form(intrude, make_painter):
    kept = intrude("sub-hybrid-2", "direct", make_painter("sub-hybrid-2", dim=384)).predict(SAMPLE)
    assert kept["distances"].size == 0
    figures = intrude("sub-hybrid-2", "direct", make_painter("sub-hybrid-2", dim=384)).score(SAMPLE, kept)
    assert "median" not in figures
    assert 0 < figures["ssim"] < 1


def test_keypoints_alone_show_no_descriptor(intrude, make_painter):
    one, other = (
        intrude(recipe, "keypoints", make_painter(architecture="keypoints")) for recipe in ("raw", "random-2")
    )
    seen, again = one.predict(SAMPLE), other.predict(SAMPLE)
    np.testing.assert_array_equal(seen["picture"], again["picture"])
    assert not seen["distances"].size


@pytest.mark.parametrize(
    ("recipe", "attack"),
    [
        ("sub-hybrid-2", "nearest"),
        ("sealed-64", "keypoints"),
        ("sealed-64", "known-pairs"),
    ],
)
@pytest.mark.filterwarnings("ignore::sfumato.errors.EvaluationOnlyWarning")
def test_an_attacker_paints_what_an_archive_of_the_recipe_holds(intrude, make_painter, tmp_path, recipe, attack):
    """Keypoints that are painted are those of an archive with all positions: sizes and angles where it has them."""
    seen, painter = [], make_painter()

    def paint(keypoints, inputs, size):
        seen.append((keypoints, len(inputs)))
        return painter.paint(keypoints, inputs, size)

    one = intrude(str(settled(recipe)), attack, replace(painter, paint=paint))
    one.predict(SAMPLE)
    features = one.data.clear[one.data.photos[SAMPLE.key]]
    path = one.data.photos[SAMPLE.key]
    conceal_photos(
        path,
        tmp_path / "a.sfm",
        recipe=recipe,
        local=LOCAL,
        evaluation_seed=3,
        positions=True,
        decoys=load_decoys() if "sub" in recipe else None,
    )
    with sfumato.load(tmp_path / "a.sfm") as archive:
        (held,) = archive.values()
    keypoints, count = seen[0]
    assert len(held) == len(keypoints) == count == len(features)
    np.testing.assert_array_equal(keypoints, held.keypoints)


def test_each_feature_has_a_distance(intrude):
    kept = intrude(str(settled("sealed-64")), "known-pairs").predict(SAMPLE)
    assert kept["distances"].shape == kept["confidence"].shape == (int(kept["features"][0]),)


def test_known_pairs_are_the_same_arrays_each_time(intrude):
    """Who works out a key from them does it once, and not for every photo."""
    recipe, public = settled("sealed-64"), load_decoys().descriptors
    one = intrude(str(recipe), "known-pairs")
    first, again = (one._known_pairs(recipe, public) for _ in range(2))
    assert first.codes is again.codes
    assert first.descriptors is again.descriptors
    assert len(first) == KNOWN_PAIRS


def test_a_photo_without_features_is_measured_too(intrude):
    for attack in ("clear", "floor"):
        one = intrude("raw", attack)
        kept = one.predict(Sample("wall.png", "0"))
        assert one.score(Sample("wall.png", "0"), kept)["features"] == 0
    one = intrude("sub-hybrid-2", "vertex")
    figures = one.score(Sample("wall.png", "0"), one.predict(Sample("wall.png", "0")))
    assert "median" not in figures
    assert "ssim" in figures


def test_a_summary_tells_means_deviations_and_leakage(intrude):
    figures = {"a": {"ssim": 0.4, "psnr": 20.0, "median": 0.2}, "b": {"ssim": 0.6, "psnr": 22.0}}
    scale = {"clear": {"a": 0.7, "b": 0.9}, "floor": {"a": 0.3, "b": 0.5}}
    scores = {one.name: one for one in intrude("raw", "clear").summarise(figures, scale)}
    assert scores["ssim"].value == pytest.approx(0.5)
    assert scores["ssim deviation"].value == pytest.approx(0.1414, abs=1e-3)
    assert scores["median"].samples == 1
    assert scores["psnr"].unit == "dB"
    assert scores["leakage"].value == pytest.approx(0.25)
    assert "leakage" not in {one.name for one in intrude("raw", "clear").summarise(figures, {})}
    assert intrude("raw", "clear").summarise({}, scale) == []


def test_shares_are_of_features_and_not_of_photos(intrude):
    few, many = {"within 0.1": 0.5, "features": 8.0, "ssim": 0.2}, {"within 0.1": 0.0, "features": 392.0, "ssim": 0.4}
    scores = {one.name: one.value for one in intrude("raw", "clear").summarise({"a": few, "b": many}, {})}
    assert scores["within 0.1"] == pytest.approx(0.01)
    assert scores["ssim"] == pytest.approx(0.3)
    assert intrude("raw", "clear").summarise({"a": few | {"features": 0.0}}, {})
