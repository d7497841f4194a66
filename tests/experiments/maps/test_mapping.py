# SPDX-License-Identifier: Apache-2.0
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from sfumato.auditing.runner import load_records
from sfumato.auditing.task import Sample
from sfumato.errors import InputError
from sfumato.experiments.data.folders import PosedImages, read_posed_folder, read_scene_folder
from sfumato.experiments.maps import mapping, plain_colmap, scene
from sfumato.experiments.maps.mapping import (
    MapProtocol,
    choose_contenders,
    evaluate_map,
    map_table,
    map_tables,
    score_map,
)
from sfumato.features.local import LocalParams
from sfumato.geometry.mappers import MapParams
from sfumato.matching.mutual import default_ratio

LOCAL = LocalParams(extractor="opencv", max_features=500)
KNOWN = {"cameras": "known", "baselines": False}
"""The map of a posed folder alone, with its true intrinsics."""


def scores(result):
    return {score.name: score.value for score in result.record.scores}


@pytest.fixture(scope="module")
def measured(small_room: Path, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("maps")
    protocol = MapProtocol(recipes=("raw", "sub-hybrid-2"), local=LOCAL, **KNOWN)
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
        assert result.record.params["mapper"] == MapParams().mapper
    assert {record.to_json() for record in load_records(folder)} == {result.record.to_json() for result in results}


def test_a_map_is_not_made_twice(measured, small_room, monkeypatch):
    folder, results = measured
    monkeypatch.setattr(mapping, "map_keypoints", None)
    monkeypatch.setattr(scene, "extract", None)
    protocol = MapProtocol(recipes=("sub-hybrid-2",), local=LOCAL, **KNOWN)
    assert evaluate_map(read_posed_folder(small_room), folder, protocol) == results[1:]


def test_another_mapper_uses_the_same_matches(measured, small_room, tmp_path, monkeypatch):
    seen = []
    real = mapping.map_keypoints

    def build(keypoints, cameras, matches, output, params, **more):
        seen.append(params.mapper)
        return real(keypoints, cameras, matches, output, params, **more)

    monkeypatch.setattr(mapping, "map_keypoints", build)
    monkeypatch.setattr(scene, "match_prepared", None)
    protocol = MapProtocol(recipes=("raw",), local=LOCAL, mapper="global", **KNOWN)
    record = evaluate_map(read_posed_folder(small_room), measured[0], protocol)[0].record
    assert seen == ["global"]
    assert (record.params["mapper"], record.dropped) == ("global", ())


def test_a_failed_map_is_a_result_with_a_reason(small_room, tmp_path):
    protocol = MapProtocol(recipes=("raw",), local=LocalParams(extractor="opencv", max_features=5), **KNOWN)
    images = read_posed_folder(small_room)
    first = evaluate_map(images, tmp_path, protocol)
    assert first[0].reason
    assert scores(first[0])["registered images"] == 0
    assert "median position error" not in scores(first[0])
    assert evaluate_map(images, tmp_path, protocol) == first


def test_overwriting_maps_again(small_room, tmp_path, monkeypatch):
    protocol = MapProtocol(recipes=("raw",), local=LocalParams(extractor="opencv", max_features=5), **KNOWN)
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
    numbers = ("images", "registered", "points", "observations", "track_length", "observations_per_image",
               "reprojection_error_px", "pairs", "plain_registered", "plain_points", "shared")  # fmt: skip
    prediction = {name: np.array(2.0) for name in numbers} | {
        "photo_seconds": np.array([1.0, 0.5]), "step_seconds": np.array([3.0, 1.0, 5.0]), "doubt": np.array("bent"),
        "rotation_difference": np.array([1.0, 3.0, 2.0]), "position_difference": np.array([np.nan, np.nan]),
        "pair_matches": np.array([9, 9]), "pair_inliers": np.array([7, 0]), "position": np.array([np.nan, np.nan]),
        "rotation": np.array([np.nan, np.nan]), "relative": np.array([3.0]),
    }  # fmt: skip
    figures = score_map(Sample("map", "0"), prediction)
    assert {name for name in figures if name.startswith("median")} == {
        "median relative error", "median rotation difference"
    }  # fmt: skip
    assert (figures["largest rotation difference"], figures["doubt"], figures["points of COLMAP's"]) == (3, 1, 1)
    assert (figures["photo time"], figures["matching speed"], figures["total time"]) == (1.5, 0.5, 12)
    assert (figures["matches"], figures["inliers"], figures["verified pairs"]) == (18, 7, 1)


@pytest.fixture(scope="module")
def compared(small_room: Path, with_plain_map, tmp_path_factory: pytest.TempPathFactory):
    """Maps of a folder of photos that says nothing about its cameras."""
    folder = with_plain_map(tmp_path_factory.mktemp("compared") / "results")
    protocol = MapProtocol(recipes=("raw", "default"), local=LOCAL)
    return folder, evaluate_map(read_scene_folder(small_room / "images"), folder, protocol, name="room")


@pytest.mark.slow
def test_photos_without_ground_truth_are_compared_with_plain_colmap(compared):
    results = compared[1]
    assert [result.record.params["row"] for result in results] == ["colmap", "raw, mutual", "raw, ratio 0.8", "default"]
    plain, *others = map(scores, results)
    assert plain["registered images"] >= 3
    assert (plain["images of COLMAP's"], plain["points of COLMAP's"]) == (1, 1)
    assert "median rotation difference" not in plain
    assert all(result.record.params["scene"] == "room" for result in results)
    for figures in others:
        assert figures["images of COLMAP's"] > 0.5
        assert figures["median rotation difference"] <= figures["largest rotation difference"]
        assert not any(name.endswith("error") and name.startswith("median") for name in figures)
    assert others[1]["matches"] < others[0]["matches"]
    for figures in (plain, *others):
        assert min(figures[name] for name in ("photo time", "matching speed", "mapping time")) > 0
        assert figures["total time"] >= figures["pair time"] + figures["mapping time"]


def test_what_was_compared_is_not_measured_again(compared, small_room, monkeypatch):
    folder, results = compared
    for module, name in ((mapping, "map_keypoints"), (scene, "extract"), (scene, "match_prepared")):
        monkeypatch.setattr(module, name, None)
    monkeypatch.setattr(plain_colmap, "_predict", None)
    protocol = MapProtocol(recipes=("raw", "default"), local=LOCAL)
    again = evaluate_map(read_scene_folder(small_room / "images"), folder, protocol, name="other")
    assert [result.record.scores for result in again] == [result.record.scores for result in results]
    assert {result.record.params["scene"] for result in again} == {"other"}


def test_tables_of_several_scenes_fit_a_narrow_terminal(compared, measured):
    records = [result.record for result in compared[1]]
    longer = [replace(record, params={**record.params, "scene": "united_states_capitol"}) for record in records]
    tables = map_tables([*records, *longer])
    assert [title.split(":")[0].split(",")[0] for title in tables] == [
        "Maps", "Differences from plain COLMAP's map", "Speed", "Time"
    ]  # fmt: skip
    console = Console(width=300, file=io.StringIO())
    for table in tables.values():
        assert len(table.rows) == 8
        (piece,) = table.fold().split(keys=1)
        assert console.measure(piece.to_rich()).maximum <= 80
    assert {row[tables["Maps"].columns.index("doubt")].value for row in tables["Maps"].rows} <= {"yes", "no"}
    assert map_table(records).columns[:3] == ("scene", "recipe", "images")
    assert "Time" not in " ".join(map_tables(result.record for result in measured[1]))


def test_rows_are_called_as_they_were_asked_for():
    rows = choose_contenders(MapProtocol(recipes=("default", "raw", "raw", "sub-hybrid-2"), seeds=(0, 1)))
    names = [row.name for row in rows]
    assert names == ["default", "raw, mutual", "raw, ratio 0.8", "sub-hybrid-2", "sub-hybrid-2"]
    assert [row.ratio for row in rows[1:3]] == [1.0, 0.8]
    assert all(row.ratio == default_ratio(row.subject.recipe) for row in (rows[0], *rows[3:]))


def test_wrong_wishes_are_told_before_anything_is_matched(small_room, tmp_path, monkeypatch):
    monkeypatch.setattr(scene, "extract", None)
    images = read_posed_folder(small_room)
    with pytest.raises(InputError, match="incremental"):
        evaluate_map(images, tmp_path, MapProtocol(mapper="incremantal"))
    with pytest.raises(InputError, match="3"):
        evaluate_map(PosedImages({}, {}, {}), tmp_path, MapProtocol(baselines=False))
    with pytest.raises(InputError, match="guessed"):
        MapProtocol(cameras="given")
    with pytest.raises(InputError, match="guessed"):
        evaluate_map(read_scene_folder(small_room / "images"), tmp_path, MapProtocol(cameras="known"))


def test_a_prediction_that_is_gone_is_made_anew(small_room, tmp_path):
    protocol = MapProtocol(recipes=("raw",), local=LocalParams(extractor="opencv", max_features=5), **KNOWN)
    images = read_posed_folder(small_room)
    first = evaluate_map(images, tmp_path, protocol)
    (kept,) = (tmp_path / "map").glob("*/predictions/*.npz")
    kept.unlink()
    assert evaluate_map(images, tmp_path, protocol)[0].reason == first[0].reason
    kept.write_bytes(b"no prediction")
    assert evaluate_map(images, tmp_path, protocol)[0].reason == first[0].reason
    assert "verification_max_false_alarms" in first[0].record.params
