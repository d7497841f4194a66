# SPDX-License-Identifier: Apache-2.0
import json

import cv2
import pytest

from sfumato.images.samples import sample_image


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for name in ("coffee", "chelsea"):
        cv2.imwrite(str(folder / f"{name}.png"), cv2.resize(sample_image(name).pixels[:, :, ::-1], (200, 150)))
    return folder


FEW = ("--points", "60", "--pairs", "100", "--queries", "20", "--distractors", "50")


def test_from_photos_to_a_table_and_bars(run_sfumato, photos, tmp_path):
    call = ("evaluate", "patches", photos, "-o", tmp_path / "out", *FEW, "--distance", "p-to-s")
    done = run_sfumato(*call, "--recipes", "raw,sub-hybrid-2")
    assert "2 records" in done.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "patches", "patches-sift.csv", "patches-sift.md", "patches-sift.png", "patches-sift.svg",
    }  # fmt: skip
    (record,) = json.loads(run_sfumato(*call, "--recipes", "raw", "--json").stdout)
    scores = {score["name"]: score["value"] for score in record["scores"]}
    assert scores["verification, easy"] > scores["verification, tough"]
    assert scores["fpr95"] < 1


def test_what_is_wrong_is_told(run_sfumato, photos, tmp_path):
    done = run_sfumato("evaluate", "patches", photos, "-o", tmp_path, "--recipes", "sub-hybird-2", code=1)
    assert "did you mean" in done.stderr
    done = run_sfumato("evaluate", "patches", tmp_path / "gone", "-o", tmp_path, code=1)
    assert "is not there" in done.stderr
    done = run_sfumato("evaluate", "patches", photos, "-o", tmp_path, "--pairs", "0", code=1)
    assert "pairs must be" in done.stderr


def test_help_teaches(run_sfumato):
    assert "Example: sfumato evaluate patches" in run_sfumato("evaluate", "patches", "--help").stdout


def test_a_folder_of_texts_leaves_no_table(run_sfumato, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("no picture")
    done = run_sfumato("evaluate", "patches", tmp_path / "photos", "-o", tmp_path / "out", code=1)
    assert "a.jpg" in done.stderr
    assert "nothing could be measured" in done.stderr
    assert not list((tmp_path / "out").glob("*.md"))
