# SPDX-License-Identifier: Apache-2.0
"""What matches reveal."""

import numpy as np
import pytest

import sfumato
from sfumato.auditing.subjects import choose_subjects
from sfumato.auditing.toolbox import Tools
from sfumato.auditing.two_stage import encoder_part
from sfumato.concealment.decoys import Decoys
from sfumato.concealment.encoder import save_encoder
from sfumato.experiments.data.folders import read_homography_folder
from sfumato.experiments.frontier.matched import MatchedTask, evaluate_matched
from sfumato.features.local import LocalParams
from sfumato.types.extractor import Extractor

LOCAL = LocalParams(max_features=40)


def score(record, name):
    return next((one.value for one in record.scores if one.name == name), None)


@pytest.fixture(scope="module")
def sequences(small_sequences):
    return read_homography_folder(small_sequences)[:1]


def test_matches_reveal_liftings_and_more_dimensions_less(sequences, tmp_path, monkeypatch):
    public = Decoys(sfumato.load_decoys().descriptors[:500], Extractor("sift"), parts=1)
    tools = Tools(public=public)
    records = evaluate_matched(sequences, tmp_path, ["raw", "random-2", "random-4"], tools, local=LOCAL)
    told = {(one.params["recipe"], one.params["attack"]): one for one in records}
    assert set(told) == {(f"random-{m}", way) for m in (2, 4) for way in ("reveal", "tracks")}
    two, four = (told[f"random-{m}", "tracks"] for m in (2, 4))
    assert score(two, "median") < score(four, "median")
    assert score(two, "within 0.3") > 0.9, "the pictures differ in light only, and two liftings nearly meet"
    assert score(two, "within 0.3 of matched") >= score(two, "within 0.3")
    assert score(two, "lifted within 0.3") == score(two, "within 0.3")
    monkeypatch.setattr(MatchedTask, "predict", lambda *_: pytest.fail("done again"))
    again = evaluate_matched(sequences, tmp_path, ["random-2", "random-4"], tools, local=LOCAL)
    assert [one.to_json() for one in again] == [one.to_json() for one in records]


def test_behind_an_encoder_a_decoder_is_needed(sequences, tmp_path, make_encoder):
    save_encoder(tmp_path / "n.safetensors", make_encoder())
    recipe = f"ninja:{tmp_path / 'n.safetensors'}+random-2"
    (subject,) = choose_subjects([recipe], ("s-to-s",), (0,))
    blind = evaluate_matched(sequences, tmp_path, [recipe], Tools(), local=LOCAL)[1]
    assert score(blind, "lifted within 0.3") is not None
    assert score(blind, "within 0.3") is None

    def decode(points):
        return np.zeros((len(points), 128), np.float32)

    tools = Tools(decoders={("sift", encoder_part(subject.recipe).identity): ("zeros", decode)})
    told = evaluate_matched(sequences, tmp_path, [recipe], tools, local=LOCAL)[1]
    assert score(told, "within 0.3") == 0
    assert score(told, "lifted within 0.3") == score(blind, "lifted within 0.3")
