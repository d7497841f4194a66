# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.auditing.subjects import POINTS, choose_decoys, choose_subjects
from sfumato.errors import InputError
from sfumato.experiments.patches.evaluate import PatchJudge, PatchProtocol
from sfumato.experiments.patches.sources import PatchReader, PatchSourceParams, open_patches
from sfumato.features.local import extractor_of
from sfumato.training.views import ViewParams

PROTOCOL = PatchProtocol(
    pairs=300, queries=50, distractors=200, source=PatchSourceParams(views=ViewParams(views=2), points=80)
)


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    import cv2

    from sfumato.images.samples import sample_image

    folder = tmp_path_factory.mktemp("photos")
    for name in ("coffee", "chelsea"):
        cv2.imwrite(str(folder / f"{name}.png"), cv2.resize(sample_image(name).pixels[:, :, ::-1], (260, 200)))
    source = open_patches(folder, PROTOCOL.source)
    patches = PatchReader(source, PROTOCOL.local)

    def make(recipe, distance="s-to-s", seed=0):
        (subject,) = choose_subjects([recipe], [distance], [seed])
        decoys = choose_decoys([subject], extractor_of(PROTOCOL.local), None)
        return PatchJudge(subject, source.kind, patches, PROTOCOL, decoys), source.samples, patches

    return make


def test_predictions_hold_distances_and_no_descriptor(judge):
    one, samples, patches = judge("sub-hybrid-2")
    found = one.predict(samples[0])
    assert set(found) == {"true", "same group", "other group", "matching", "retrieval"}
    assert all(values.ndim == 1 for values in found.values())
    assert len(found["true"]) == 300
    assert len(found["matching"]) == 2 * 2
    assert repr(patches[samples[0].key]).endswith("clear)")


def test_concealing_costs_and_both_sides_cost_more(judge):
    figures = {}
    for case in ("raw p-to-s", "random-2 p-to-s", "random-2 s-to-s", "sub-hybrid-4 s-to-s"):
        recipe, distance = case.split()
        one, samples, _ = judge(recipe, distance)
        figures[recipe, one.subject.distance] = one.score(samples[1], one.predict(samples[1]))
    assert figures["raw", POINTS]["matching"] > 0.5
    for name in ("verification", "matching", "retrieval"):
        raw, small, both, large = (row[name] for row in figures.values())
        assert raw + 0.02 > small > both - 0.05, name  # 2 of 128 random dimensions cost next to nothing
        assert both > large, name
    assert figures["raw", POINTS]["fpr95"] < figures["sub-hybrid-4", "s-to-s"]["fpr95"]


def test_a_point_of_the_subspace_is_at_distance_0_of_itself(judge):
    one, samples, patches = judge("sub-hybrid-2", "p-to-s")
    described = patches[samples[0].key]
    clear, hidden = one._sides(described)
    offset = clear - hidden.origin
    inside = np.einsum("nki,ni->nk", hidden.basis, offset)
    outside = offset - np.einsum("nk,nki->ni", inside, hidden.basis)
    assert np.abs(outside).max() < 1e-5


def test_each_picture_draws_for_itself(judge):
    one, samples, patches = judge("sub-hybrid-2")
    described = patches[samples[0].key]
    assert len(np.unique(described.labels.views)) == 3
    again = judge("sub-hybrid-2")[0]._concealed(described)
    assert np.array_equal(one._concealed(described).origin, again.origin)
    assert not np.array_equal(judge("sub-hybrid-2", seed=1)[0]._concealed(described).origin, again.origin)


def test_params_tell_all_that_decides(judge):
    one, _, _ = judge("sub-hybrid-2")
    assert one.params["patches"] == "photos"
    assert (one.params["recipe"], one.params["distance"], one.params["pairs"]) == ("sub-hybrid-2", "s-to-s", 300)
    assert one.params["decoys"]
    assert judge("raw")[0].params["decoys"] is None


def test_means_stand_beside_every_sample(judge):
    one, _, _ = judge("raw")
    scores = {s.name: s for s in one.summarise({"easy": {"fpr95": 0.2}, "hard": {"fpr95": 0.4, "matching": 0.5}})}
    assert scores["fpr95"].value == pytest.approx(0.3)
    assert (scores["fpr95"].samples, scores["fpr95, easy"].value, scores["matching"].samples) == (2, 0.2, 1)


def turning(path):
    """An encoder that turns every descriptor and leaves out one direction: distances hardly change."""
    from sfumato.concealment.encoder import Encoder, save_encoder

    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(128, 128)))[0].astype(np.float32)
    layers = ((rotation[:127], np.zeros(127, np.float32), False),)
    save_encoder(path, Encoder(layers=layers, extractor_name="sift"), dtype="float32")
    return f"ninja:{path}"


def test_what_an_encoder_makes_is_compared_as_points(judge, tmp_path):
    recipe = turning(tmp_path / "turn.safetensors")
    raw, samples, _ = judge("raw")
    turned = judge(recipe)[0]
    assert turned.subject.distance == POINTS
    assert str(tmp_path) not in turned.params["recipe"]
    figures = [one.score(samples[0], one.predict(samples[0])) for one in (raw, turned)]
    assert figures[1] == pytest.approx(figures[0], abs=0.03)
    lifted = judge(f"{recipe}+random-2", "p-to-s")[0]
    assert lifted.score(samples[0], lifted.predict(samples[0]))["matching"] > 0.5


def test_settings_are_checked():
    with pytest.raises(InputError, match="pairs"):
        PatchProtocol(pairs=0)
