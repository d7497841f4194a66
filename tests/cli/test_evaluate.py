# SPDX-License-Identifier: Apache-2.0
import csv
import io
import json
import shutil

import numpy as np
import pytest

from sfumato.auditing.runner import load_records
from sfumato.cli import evaluate
from sfumato.cli.evaluate import read_seeds
from sfumato.cli.options import split_names
from sfumato.errors import InputError
from sfumato.experiments.data import generated
from sfumato.experiments.data.generated import make_homography_folder, make_room_folder


@pytest.fixture(scope="module")
def sequences(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sequences")
    return make_homography_folder(folder / "made", np.random.default_rng(0), photos=("coffee",), others=1)


@pytest.fixture(scope="module")
def measured(run_sfumato, sequences, tmp_path_factory):
    output = tmp_path_factory.mktemp("output") / "results"
    done = run_sfumato(
        "evaluate", "homography", sequences, "-o", output, "--recipes", "raw,sub-hybrid-2", "--max-features", "200",
        "--seeds", "2",
    )  # fmt: skip
    return output, done


def test_a_table_a_figure_and_records(measured):
    output, done = measured
    assert "sub-hybrid-2" in done.stdout
    assert "6 records" in done.stdout
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 80  # the last line has a path
    assert done.stderr == ""
    assert {path.name for path in output.iterdir()} == {
        "homography", "homography-sift.csv", "homography-sift.md", "homography-sift.png", "homography-sift.svg"
    }  # fmt: skip
    rows = list(csv.DictReader(io.StringIO((output / "homography-sift.csv").read_text())))
    kinds = {(row["recipe"], row["distance"]) for row in rows}
    assert kinds == {(r, "p-to-p") for r in ("raw", "raw, ratio 0.8")} | {
        ("sub-hybrid-2", d) for d in ("p-to-s", "s-to-s")
    }
    assert len(load_records(output)) == 6


def test_a_second_run_finds_everything_done(run_sfumato, measured, sequences, tmp_path):
    output = tmp_path / "copy"
    shutil.copytree(measured[0], output)
    few = ("--recipes", "raw", "--max-features", "200", "--json")
    records = json.loads(run_sfumato("evaluate", "homography", sequences, "-o", output, *few).stdout)
    assert len(records) == 2
    first = next(record for record in load_records(measured[0]) if record.params["recipe"] == "raw")
    assert records[0]["seconds"] == first.seconds


@pytest.mark.slow
def test_without_data_sample_photos_are_measured(run_sfumato, tmp_path, monkeypatch):
    monkeypatch.setattr(generated, "PHOTOS", ("brick",))
    few = ("--recipes", "raw", "--max-features", "50", "--json")
    done = run_sfumato("evaluate", "homography", "-o", tmp_path, *few)
    scores = {score["name"]: score for score in json.loads(done.stdout)[0]["scores"]}
    assert scores["accuracy 3 px, overall"]["samples"] == 6
    assert scores["accuracy 3 px, overall"]["value"] > 0.2
    assert (tmp_path / "generated" / "v_brick" / "H_1_2").exists()


def test_wrong_options_are_told(run_sfumato, sequences, tmp_path):
    for option, value, message in (
        ("--recipes", "sub-hybird-2", "sub-hybrid-2"),
        ("--seeds", "x", "--seeds"),
        ("--distance", "s2s", "s-to-s"),
        ("--parts", "both", "parts"),
        ("--descriptor", "surf", "descriptor"),
        ("--recipes", ",", "nothing"),
    ):
        done = run_sfumato("evaluate", "homography", sequences, "-o", tmp_path / "o", option, value, code=1)
        assert message in done.stderr
    assert not (tmp_path / "o").exists()


def test_a_folder_without_sequences(run_sfumato, tmp_path):
    assert "no sequence" in run_sfumato("evaluate", "homography", tmp_path, code=1).stderr


def test_help_teaches(run_sfumato):
    shown = run_sfumato("evaluate", "homography", "--help").stdout
    assert "--recipes" in shown
    assert "Example:" in shown


def test_lists_and_seeds():
    assert split_names(" a, b,,") == ("a", "b")
    assert read_seeds("3") == (0, 1, 2)
    assert read_seeds("7,9") == (7, 9)
    assert read_seeds("7,") == (7,)
    for wrong in ("", "0", "1001", "a", "1.5"):
        with pytest.raises(InputError, match="--seeds"):
            read_seeds(wrong)


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    folder = tmp_path_factory.mktemp("room") / "made"
    return make_room_folder(folder, np.random.default_rng(0), views=4, width=480, height=360, step=8)


FEW = ("--extractor", "opencv", "--features", "400")


@pytest.fixture(scope="module")
def map_output(tmp_path_factory):
    """A folder of results, so that plain COLMAP runs once."""
    return tmp_path_factory.mktemp("maps") / "out"


@pytest.mark.slow
def test_a_map_from_posed_images_and_one_from_photos(run_sfumato, room, map_output):
    places = (room, room / "images", "-o", map_output)
    done = run_sfumato("evaluate", "map", *places, "--recipes", "raw,sub-hybrid-2", *FEW)
    assert "8 records" in done.stdout
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 80  # the last line has a path
    text = (map_output / "map.md").read_text()
    assert "| images | raw, ratio 0.8 |" in text
    assert "as a multiple of plain COLMAP's" in text
    rows = list(csv.DictReader(io.StringIO((map_output / "map.csv").read_text())))
    assert [row["scene"] for row in rows] == ["made"] * 4 + ["images"] * 4
    assert {row["error [m]"] != "" for row in rows[:4]} == {True}
    assert {row["error [m]"] for row in rows[4:]} == {""}
    records = json.loads(run_sfumato("evaluate", "map", *places, "--recipes", "sub-hybrid-2", *FEW, "--json").stdout)
    assert [record["params"]["row"] for record in records] == ["colmap", "sub-hybrid-2"] * 2
    scores = {score["name"]: score["value"] for score in records[1]["scores"]}
    assert scores["registered images"] == 4


@pytest.mark.slow
def test_a_map_that_fails_is_told(run_sfumato, room, map_output):
    done = run_sfumato("evaluate", "map", room, "-o", map_output, "--recipes", "raw", *FEW[:3], "4")
    assert "made: raw, mutual: no map: " in done.stderr


def test_localization_of_posed_images(run_sfumato, room, tmp_path):
    some = ("--recipes", "sub-hybrid-2", *FEW)
    done = run_sfumato("evaluate", "localize", room, "-o", tmp_path, *some)
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 80  # the last line has a path
    done = run_sfumato("evaluate", "localize", room, "-o", tmp_path, *some, "--json")
    scores = {score["name"]: score["value"] for score in json.loads(done.stdout)[0]["scores"]}
    assert scores["recall (0.25 m, 2 deg)"] == 1


def test_photos_that_no_map_can_be_made_of_are_left_out(run_sfumato, room, tmp_path):
    lone = tmp_path / "lone"
    lone.mkdir()
    for name in ("a.png", "b.png"):
        shutil.copy(next((room / "images").iterdir()), lone / name)
    done = run_sfumato("evaluate", "localize", lone, "-o", tmp_path / "out", "--recipes", "raw", *FEW, code=1)
    assert "left out: lone: plain COLMAP maps" in done.stderr


@pytest.mark.parametrize("command", ["map", "localize"])
def test_a_folder_that_is_no_scene(run_sfumato, tmp_path, command):
    assert run_sfumato("evaluate", command, tmp_path, "-o", tmp_path / "o", code=1).stderr.startswith("error: ")


def test_folders_of_one_name_are_refused(run_sfumato, room, tmp_path):
    done = run_sfumato("evaluate", "map", room, room, "-o", tmp_path / "o", code=1)
    assert "rename" in done.stderr


def test_the_default_recipe_is_measured_unless_told_otherwise():
    for protocol in (evaluate.HOMOGRAPHY, evaluate.MAP, evaluate.LOCALIZE):
        assert protocol.recipes == ("raw", "default", "sub-hybrid-2")
