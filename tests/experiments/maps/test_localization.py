# SPDX-License-Identifier: Apache-2.0
import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from sfumato.auditing.subjects import Subject
from sfumato.auditing.task import Sample
from sfumato.concealment.encoder import save_encoder
from sfumato.experiments.data.folders import read_posed_folder, read_scene_folder
from sfumato.experiments.maps import localization, scene
from sfumato.experiments.maps.localization import (
    LocalizeProtocol,
    NoReferenceMap,
    evaluate_localization,
    localization_table,
    owner_of,
    recall_name,
    score_query,
    summarise_queries,
)
from sfumato.experiments.maps.plain_colmap import scene_size
from sfumato.features.local import LocalParams
from sfumato.geometry.localization import LocalizeParams
from sfumato.types.recipe import Recipe

LOCAL = LocalParams(extractor="opencv", max_features=500)


def scores(record):
    return {score.name: score.value for score in record.scores}


@pytest.fixture(scope="module")
def measured(small_room: Path, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("localized")
    recipes, distances = ("raw", "sub-hybrid-2"), ("p-to-s", "s-to-s")
    protocol = LocalizeProtocol(recipes=recipes, distances=distances, local=LOCAL)
    return folder, evaluate_localization(read_posed_folder(small_room), folder, protocol)


def test_every_view_of_a_room_is_localized_in_a_map_of_the_others(measured):
    records = measured[1]
    told = [(record.params["recipe"], record.params["distance"], record.seed) for record in records]
    assert told == [("raw", "p-to-p", None), ("sub-hybrid-2", "p-to-s", 0), ("sub-hybrid-2", "s-to-s", 0)]
    for record in records:
        figures = scores(record)
        assert record.dropped == ()
        assert record.scores[0].samples == 5
        assert figures[recall_name((0.25, 2))] == 1
        assert figures["median position error"] < 0.02
        assert figures["median rotation error"] < 0.2
        assert figures["inliers"] <= figures["matches"]


def test_queries_are_not_localized_twice(measured, small_room, monkeypatch):
    monkeypatch.setattr(localization, "localize_query", None)
    monkeypatch.setattr(scene, "extract", None)
    protocol = LocalizeProtocol(recipes=("sub-hybrid-2",), distances=("s-to-s",), local=LOCAL)
    assert evaluate_localization(read_posed_folder(small_room), measured[0], protocol) == measured[1][2:]


def test_a_query_without_a_map_is_not_localized(small_room, tmp_path):
    protocol = LocalizeProtocol(recipes=("raw",), local=LocalParams(extractor="opencv", max_features=3))
    record = evaluate_localization(read_posed_folder(small_room), tmp_path, protocol)[0]
    figures = scores(record)
    assert (record.dropped, figures["localized"], figures[recall_name((5, 10))]) == ((), 0, 0)
    assert "median position error" not in figures


def test_the_query_is_not_in_its_map(small_room, tmp_path, monkeypatch):
    asked = []
    real = localization.localize_query

    def watched(query, camera, map_, candidates, params):
        asked.append(set(candidates))
        assert set(map_.model.names) == set(candidates)
        return real(query, camera, map_, candidates, params)

    monkeypatch.setattr(localization, "localize_query", watched)
    images = read_posed_folder(small_room)
    evaluate_localization(images, tmp_path, LocalizeProtocol(recipes=("raw",), local=LOCAL))
    assert len(asked) == 5
    assert all(name not in seen for name, seen in zip(images.names, asked, strict=True))


def test_neither_poses_nor_descriptors_are_kept(measured, small_room):
    images = read_posed_folder(small_room)
    known = np.concatenate([np.concatenate([pose.center, pose.translation]) for pose in images.poses.values()])
    for path in (measured[0] / "localize").rglob("*.npz"):
        with np.load(path, allow_pickle=False) as members:
            assert set(members.files) == {
                "localized", "error", "counts", "reason", "doubtful", "scene_size", "seconds"
            }  # fmt: skip
            assert not np.isclose(members["error"][:, None], known, rtol=1e-4, atol=0).any()


def test_recall_counts_queries_without_a_pose():
    near = {"localized": 1.0, "metres": 0.1, "degrees": 0.5, "share": 0.02, "inliers": 30.0, "matches": 40.0}
    none = {"localized": 0.0, "inliers": 2.0, "matches": 10.0}
    figures = {score.name: score.value for score in summarise_queries({"a": near, "b": none, "c": near})}
    assert figures[recall_name((0.25, 2))] == pytest.approx(2 / 3)
    assert (figures["median position error"], figures["inliers"]) == (0.1, pytest.approx(62 / 3))
    assert "median position error" not in {score.name for score in summarise_queries({"a": none})}
    assert summarise_queries({}) == []
    relative = {score.name: score.value for score in summarise_queries({"a": near}, in_metres=False)}
    assert relative["median position share"] == 0.02
    assert not any(name.startswith("recall") or name == "median position error" for name in relative)


def test_a_pose_far_off_is_false_whatever_the_unit():
    def score(metres, degrees, doubtful):
        return score_query(
            Sample("a", "0"),
            {
                "localized": np.array(True), "error": np.array([metres, degrees]), "counts": np.array([30, 40]),
                "reason": np.array(""), "doubtful": np.array(doubtful), "scene_size": np.array(20.0),
            },
        )  # fmt: skip

    assert score(1.0, 4.0, False)["false"] == 0
    far, turned = score(2.1, 0.1, False), score(0.1, 5.1, True)
    assert (far["false"], far["unsuspected"], far["share"]) == (1, 1, pytest.approx(0.105))
    assert (turned["false"], turned["unsuspected"]) == (1, 0)
    total = {score.name: score.value for score in summarise_queries({"a": far, "b": turned})}
    assert (total["false poses"], total["false poses without a doubt"]) == (2, 1)


def test_a_query_without_a_pose_has_no_error():
    prediction = {
        "localized": np.array(False),
        "error": np.zeros(2),
        "counts": np.array([3, 9]),
        "reason": np.array("x"),
    }
    assert score_query(Sample("a", "0"), prediction) == {"localized": 0.0, "inliers": 3.0, "matches": 9.0}


def test_the_table_has_the_three_thresholds(measured):
    table = localization_table(measured[1])
    assert table.columns[:5] == ("scene", "recipe", "distance", "localized", "false")
    assert [title for title in table.columns if "deg" in title][1:] == ["0.25 m 2 deg", "0.5 m 5 deg", "5 m 10 deg"]
    assert len(table.rows) == 3
    assert all(width_of(piece) <= 80 for piece in table.fold().split(keys=2))


def width_of(table):
    console = Console(width=300, file=io.StringIO())
    return console.measure(table.to_rich()).maximum


@pytest.mark.slow
def test_photos_without_ground_truth_are_localized_against_plain_colmap(small_room, with_plain_map, tmp_path):
    photos, folder = read_scene_folder(small_room / "images"), with_plain_map(tmp_path / "results")
    protocol = LocalizeProtocol(recipes=("raw",), local=LOCAL)
    record = evaluate_localization(photos, folder, protocol, name="room")[0]
    figures = scores(record)
    assert (record.params["scene"], record.params["truth"]) == ("room", "plain COLMAP")
    assert record.scores[0].samples >= 3
    assert (figures["localized"], figures["false poses"]) == (1, 0)
    assert figures["median position share"] < 0.05
    assert "median position error" not in figures
    posed = localization.pose_by_colmap(photos, folder, "room")
    assert scene_size(posed.poses) == pytest.approx(1)


def test_photos_that_colmap_can_not_map_are_refused(blank_photos, tmp_path):
    photos = read_scene_folder(blank_photos)
    with pytest.raises(NoReferenceMap):
        evaluate_localization(photos, tmp_path / "out", LocalizeProtocol(recipes=("raw",), local=LOCAL))


def test_all_that_decides_a_pose_is_in_the_record(small_room, tmp_path, caplog):
    images = read_posed_folder(small_room)
    found = []
    for limit in (None, 0.05):
        params = LocalizeParams(max_distance=limit)
        protocol = LocalizeProtocol(
            recipes=("raw",), local=LocalParams(extractor="opencv", max_features=300), params=params
        )
        found.append(scores(evaluate_localization(images, tmp_path, protocol)[0])["matches"])
    assert found[1] < found[0]
    assert "is not localized:" in caplog.text


def test_encoded_features_are_localized_in_maps_of_their_space(small_room, tmp_path, make_encoder):
    save_encoder(tmp_path / "n.safetensors", make_encoder(dims=(128, 128)))  # a rotation: nothing is lost
    ninja = f"ninja:{tmp_path / 'n.safetensors'}"
    protocol = LocalizeProtocol(recipes=(ninja, f"{ninja}+random-2"), distances=("p-to-s",), local=LOCAL)
    records = evaluate_localization(read_posed_folder(small_room), tmp_path / "out", protocol)
    told = [(str(record.params["recipe"]).split("@")[0], record.params["distance"], record.seed) for record in records]
    assert told == [("ninja:n", "p-to-p", None), ("ninja:n", "p-to-s", 0)]
    for record in records:
        assert record.dropped == ()
        assert scores(record)[recall_name((0.25, 2))] == 1


def test_who_owns_the_map():
    ninja = Subject(Recipe.of("ninja:x@0123456789ab"), "p-to-p", None)
    assert owner_of(ninja) is ninja
    assert owner_of(Subject(Recipe.of("ninja:x@0123456789ab+random-2"), "p-to-s", 3)) == ninja
    assert owner_of(Subject(Recipe.of("random-2"), "p-to-s", 3)).recipe.is_clear
    lifted = Subject(Recipe.of("random-2"), "s-to-s", 3)
    assert owner_of(lifted) is lifted
