# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import numpy as np
import pytest

from sfumato.auditing.runner import load_records
from sfumato.auditing.task import Sample
from sfumato.errors import InputError
from sfumato.experiments.data.folders import PosedImages, read_posed_folder
from sfumato.experiments.maps import mapping, scene
from sfumato.experiments.maps.mapping import MapProtocol, evaluate_map, map_table, score_map
from sfumato.features.local import LocalParams

LOCAL = LocalParams(max_features=500)


def scores(result):
    return {score.name: score.value for score in result.record.scores}


@pytest.fixture(scope="module")
def measured(small_room: Path, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("maps")
    protocol = MapProtocol(recipes=("raw", "sub-hybrid-2"), local=LOCAL)
    return folder, evaluate_map(read_posed_folder(small_room), folder, protocol)


def test_a_room_is_mapped_from_raw_and_from_concealed_features(measured):
    folder, results = measured
    assert [result.record.params["recipe"] for result in results] == ["raw", "sub-hybrid-2"]
    for result in results:
        figures = scores(result)
        assert (figures["registered images"], result.unregistered, result.reason) == (5, (), "")
        assert figures["median position error"] < 0.05
        assert figures["median relative error"] < 8
        assert figures["points"] > 100
        assert figures["inliers"] <= figures["matches"]
        assert 0 < figures["reprojection error"] < 2
        assert result.record.params["mapper"] == "incremental"
    assert {record.to_json() for record in load_records(folder)} == {result.record.to_json() for result in results}


def test_a_map_is_not_made_twice(measured, small_room, monkeypatch):
    folder, results = measured
    monkeypatch.setattr(mapping, "map_keypoints", None)
    monkeypatch.setattr(scene, "extract", None)
    protocol = MapProtocol(recipes=("sub-hybrid-2",), local=LOCAL)
    assert evaluate_map(read_posed_folder(small_room), folder, protocol) == results[1:]


def test_another_mapper_uses_the_same_matches(measured, small_room, tmp_path, monkeypatch):
    seen = []
    real = mapping.map_keypoints

    def build(keypoints, cameras, matches, output, params, **more):
        seen.append(params.mapper)
        return real(keypoints, cameras, matches, output, params, **more)

    monkeypatch.setattr(mapping, "map_keypoints", build)
    monkeypatch.setattr(scene, "match_prepared", None)
    protocol = MapProtocol(recipes=("raw",), local=LOCAL, mapper="global")
    record = evaluate_map(read_posed_folder(small_room), measured[0], protocol)[0].record
    assert seen == ["global"]
    assert (record.params["mapper"], record.dropped) == ("global", ())


def test_a_failed_map_is_a_result_with_a_reason(small_room, tmp_path):
    protocol = MapProtocol(recipes=("raw",), local=LocalParams(max_features=5))
    images = read_posed_folder(small_room)
    first = evaluate_map(images, tmp_path, protocol)
    assert first[0].reason
    assert scores(first[0])["registered images"] == 0
    assert "median position error" not in scores(first[0])
    assert evaluate_map(images, tmp_path, protocol) == first


def test_overwriting_maps_again(small_room, tmp_path, monkeypatch):
    protocol = MapProtocol(recipes=("raw",), local=LocalParams(max_features=5))
    images = read_posed_folder(small_room)
    evaluate_map(images, tmp_path, protocol)
    calls = []
    real = mapping.map_keypoints
    monkeypatch.setattr(mapping, "map_keypoints", lambda *a, **b: calls.append(1) or real(*a, **b))
    evaluate_map(images, tmp_path, protocol, overwrite=True)
    assert calls == [1]


def test_where_the_cameras_stood_is_not_kept(measured, small_room):
    centers = np.concatenate([pose.center for pose in read_posed_folder(small_room).poses.values()])
    for path in (measured[0] / "map").rglob("*.npz"):
        with np.load(path, allow_pickle=False) as members:
            values = np.concatenate([members[n].ravel() for n in members.files if members[n].dtype.kind == "f"])
        assert not np.isclose(values[:, None], centers, rtol=1e-4, atol=0).any()


def test_errors_that_can_not_be_told_are_left_out():
    numbers = ("registered", "points", "observations", "track_length", "observations_per_image",
               "reprojection_error_px", "mapping_seconds")  # fmt: skip
    prediction = {name: np.array(2.0) for name in numbers} | {
        "pair_matches": np.array([9, 9]), "pair_inliers": np.array([7, 0]), "position": np.array([np.nan, np.nan]),
        "rotation": np.array([np.nan, np.nan]), "relative": np.array([3.0]),
    }  # fmt: skip
    figures = score_map(Sample("map", "0"), prediction)
    assert {name for name in figures if name.startswith("median")} == {"median relative error"}
    assert (figures["matches"], figures["inliers"], figures["verified pairs"]) == (18, 7, 1)


def test_the_table_compares_with_raw(measured):
    table = map_table(result.record for result in measured[1])
    assert table.columns[:2] == ("recipe", "images")
    assert table.columns[-1] == "relative / raw"
    assert [cell.value for cell in table.rows[0]][-5:] == [1.0] * 5


def test_wrong_wishes_are_told_before_anything_is_matched(small_room, tmp_path, monkeypatch):
    monkeypatch.setattr(scene, "extract", None)
    images = read_posed_folder(small_room)
    with pytest.raises(InputError, match="incremental"):
        evaluate_map(images, tmp_path, MapProtocol(mapper="incremantal"))
    with pytest.raises(InputError, match="three"):
        evaluate_map(PosedImages({}, {}, {}), tmp_path)


def test_a_prediction_that_is_gone_is_made_anew(small_room, tmp_path):
    protocol = MapProtocol(recipes=("raw",), local=LocalParams(max_features=5))
    images = read_posed_folder(small_room)
    first = evaluate_map(images, tmp_path, protocol)
    (kept,) = (tmp_path / "map").glob("*/predictions/*.npz")
    kept.unlink()
    assert evaluate_map(images, tmp_path, protocol)[0].reason == first[0].reason
    kept.write_bytes(b"no prediction")
    assert evaluate_map(images, tmp_path, protocol)[0].reason == first[0].reason
    assert "verification_max_false_alarms" in first[0].record.params
