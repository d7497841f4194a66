# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.experiments.search.faces import (
    FacePictures,
    FaceSearchProtocol,
    FaceSubspaceParams,
    draw_success,
    evaluate_face_search,
    face_search_table,
    success_name,
)

SMALL = FaceSubspaceParams(images=8, dim=3, query_dims=(1, 3, 4))


def lit_faces(people=20, pictures=14, side=6, seed=0):
    rng = np.random.default_rng(seed)
    own = rng.normal(size=(people, 3, side * side))
    pixels = np.einsum("pnk,pki->pni", rng.uniform(size=(people, pictures, 3)), own)
    pixels += 0.02 * rng.normal(size=pixels.shape)
    return FacePictures(pixels.reshape(-1, side * side).astype(np.float32), np.repeat(np.arange(people), pictures))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faces")
    protocol = FaceSearchProtocol(candidates=(1, 5), splits=3, faces=SMALL)
    return folder, protocol, evaluate_face_search(lit_faces(), folder, protocol)


def by_method(records, candidates):
    return {
        record.params["method"]: {score.name: score.value for score in record.scores}
        for record in records
        if record.params["candidates"] in (candidates, None)
    }


def test_a_record_for_each_method_and_number_of_candidates(measured):
    _, protocol, records = measured
    assert len(records) == 1 + 2 * (len(protocol.methods) - 1)
    assert all(not record.dropped and record.seed == 0 for record in records)


def test_exact_search_wins_and_the_printed_rule_is_chance(measured):
    found = by_method(measured[2], 5)
    assert found["exact"]["success"] > 0.95
    assert found["projector flat"]["success"] == pytest.approx(found["exact"]["success"], abs=0.02)
    assert found["grassmann printed pi/8"]["success"] == pytest.approx(5 / 20, abs=0.01)
    assert found["grassmann printed pi/8"]["success"] < found["grassmann quantile"]["success"]
    assert all(row["compared"] <= 5 for name, row in found.items() if name != "exact")


def test_finished_splits_are_not_measured_again(measured):
    folder, protocol, records = measured
    asked = []
    again = evaluate_face_search(
        lit_faces(), folder, protocol, progress=lambda items: asked.extend(items) or iter(items)
    )
    assert len(asked) == 3 * len(records)
    assert [one.to_json() for one in again] == [one.to_json() for one in records]


def test_tables_and_figures(measured, tmp_path):
    records = measured[2]
    shown = face_search_table(records).to_markdown()
    assert "d = 4" in shown
    assert "projector kd-tree eps 10" in shown
    assert success_name(1) in {score.name for score in records[0].scores}
    assert all(path.stat().st_size > 1000 for path in draw_success(records, tmp_path / "faces"))


@pytest.mark.parametrize("wrong", [{"splits": 0}, {"candidates": ()}, {"methods": ("exakt",)}])
def test_protocols_that_can_not_be(wrong):
    with pytest.raises(InputError):
        FaceSearchProtocol(**wrong)


def test_too_few_images_are_told_first(tmp_path):
    with pytest.raises(InputError, match="pictures"):
        evaluate_face_search(lit_faces(), tmp_path / "none", FaceSearchProtocol())
    assert not (tmp_path / "none").exists()
