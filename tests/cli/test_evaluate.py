# SPDX-License-Identifier: Apache-2.0
import csv
import io
import json
import shutil

import numpy as np
import pytest

from sfumato.auditing.runner import load_records
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
    assert "5 records" in done.stdout
    assert done.stderr == ""
    assert {path.name for path in output.iterdir()} == {
        "homography", "homography-sift.csv", "homography-sift.md", "homography-sift.png", "homography-sift.svg"
    }  # fmt: skip
    rows = list(csv.DictReader(io.StringIO((output / "homography-sift.csv").read_text())))
    assert [row["distance"] for row in rows] == ["p-to-p", "p-to-s", "s-to-s"]
    assert len(load_records(output)) == 5


def test_a_second_run_finds_everything_done(run_sfumato, measured, sequences, tmp_path):
    output = tmp_path / "copy"
    shutil.copytree(measured[0], output)
    few = ("--recipes", "raw", "--max-features", "200", "--json")
    records = json.loads(run_sfumato("evaluate", "homography", sequences, "-o", output, *few).stdout)
    assert len(records) == 1
    first = next(record for record in load_records(measured[0]) if record.params["recipe"] == "raw")
    assert records[0]["seconds"] == first.seconds


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


def test_a_map_from_posed_images(run_sfumato, room, tmp_path):
    done = run_sfumato("evaluate", "map", room, "-o", tmp_path, "--recipes", "raw,sub-hybrid-2", "--features", "400")
    assert "2 records" in done.stdout
    assert (tmp_path / "map-sift.md").exists()
    few = ("--recipes", "sub-hybrid-2", "--features", "400", "--json")
    done = run_sfumato("evaluate", "map", room, "-o", tmp_path, *few)
    scores = {score["name"]: score["value"] for score in json.loads(done.stdout)[0]["scores"]}
    assert scores["registered images"] == 4


def test_a_map_that_fails_is_told(run_sfumato, room, tmp_path):
    done = run_sfumato("evaluate", "map", room, "-o", tmp_path, "--recipes", "raw", "--features", "4")
    assert done.stderr.startswith("raw: no map: ")


def test_localization_of_posed_images(run_sfumato, room, tmp_path):
    done = run_sfumato(
        "evaluate", "localize", room, "-o", tmp_path, "--recipes", "sub-hybrid-2", "--features", "400", "--json"
    )
    scores = {score["name"]: score["value"] for score in json.loads(done.stdout)[0]["scores"]}
    assert scores["recall (0.25 m, 2 deg)"] == 1


@pytest.mark.parametrize("command", ["map", "localize"])
def test_a_folder_that_is_no_scene(run_sfumato, tmp_path, command):
    assert run_sfumato("evaluate", command, tmp_path, "-o", tmp_path / "o", code=1).stderr.startswith("error: ")
