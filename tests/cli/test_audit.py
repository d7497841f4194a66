# SPDX-License-Identifier: Apache-2.0
"""sfumato audit as a user starts it: good, broken and featureless photos in, one page out."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from sfumato.auditing.run import page_path


@pytest.fixture(scope="module")
def made(run_sfumato, photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    call = ("audit", photos, "-o", folder / "page.html", "--recipes", "ninja-sift-2.5", "--max-features", "40")
    return folder, call, run_sfumato(*call, "--side", "100", "--workers", "1")


def test_from_photos_to_one_page(made):
    folder, _, done = made
    assert ", raw no protection" in done.stdout
    assert done.stdout.startswith(str(folder / "page.html"))
    assert done.stdout.strip().endswith(str(folder / "page-data"))
    assert "left out: grey.png: no feature" in done.stderr
    assert "left out: broken.jpg" in done.stderr
    assert {path.name for path in folder.iterdir()} == {"page.html", "page-data"}
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert "grey.png: no feature was found" in page
    assert str(folder) not in page


def test_the_same_call_goes_on_and_tells_programs(run_sfumato, made):
    folder, call, _ = made
    told = json.loads(run_sfumato(*call, "--side", "100", "--workers", "1", "--json").stdout)
    assert told["page"] == str(folder / "page.html")
    assert told["recipes"]["ninja-sift-2.5"]["recovered"] < 0.5
    assert told["recipes"]["raw"] == {"verdict": "no protection", "leakage": 1.0, "recovered": 1.0}
    assert len(told["left_out"]) == 2


def test_records_make_a_page_without_photos(run_sfumato, made, tmp_path):
    folder, _, _ = made
    done = run_sfumato("report", folder / "page-data", "-o", tmp_path / "plain.html")
    assert "records of ninja-sift-2.5, raw" in done.stdout
    assert "data:image" not in (tmp_path / "plain.html").read_text(encoding="utf-8")


def test_what_is_wrong_is_told(run_sfumato, tmp_path):
    (tmp_path / "empty").mkdir()
    done = run_sfumato("audit", tmp_path / "empty", "-o", tmp_path / "out", code=1)
    assert "no images in it" in done.stderr
    assert not (tmp_path / "out").exists()
    done = run_sfumato("audit", tmp_path / "gone", code=1)
    assert "is not there" in done.stderr
    done = run_sfumato("audit", "--recipes", "defualt", "-o", tmp_path / "out", code=1)
    assert "defualt" in done.stderr
    done = run_sfumato("audit", "--recipes", "", "-o", tmp_path / "out", code=1)
    assert "no recipe" in done.stderr
    done = run_sfumato("audit", "-o", tmp_path / "e.txt", code=1)
    assert "ends in .html" in done.stderr
    assert not (tmp_path / "e.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--models", "gone"), 1, "gone: no such folder"),
        (("--public", "gone.npz"), 1, "gone.npz"),
        (("--workers", "0"), 2, "--workers"),
        (("--recipes", "sub-hybrid-500"), 1, "lifted to dimension 127 at most"),
        (("--recipes", "hybrid-labels-2"), 1, "needs labels"),
    ],
)
def test_what_can_not_be_done_is_told_before_anything_is_made(run_sfumato, photos, tmp_path, arguments, code, told):
    done = run_sfumato("audit", photos / "a.png", "-o", tmp_path / "page.html", *arguments, code=code)
    assert told in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_page_or_a_folder_is_named(tmp_path):
    assert page_path(Path("demo")) == Path("demo/report.html")
    assert page_path(Path("my.html")) == Path("my.html")
    (tmp_path / "photos.2026").mkdir()
    assert page_path(tmp_path / "photos.2026") == tmp_path / "photos.2026" / "report.html"


def test_what_could_not_be_run_is_told(run_sfumato, tmp_path):
    picture = np.full((120, 120), 200, np.uint8)
    picture[40:80, 40:80] = 20
    cv2.imwrite(str(tmp_path / "square.png"), picture)
    call = ("audit", tmp_path / "square.png", "--recipes", "sealed-512,raw", "--workers", "1", "--json")
    done = run_sfumato(*call, "-o", tmp_path / "page.html")
    told = json.loads(done.stdout)
    assert told["left_out"] == []
    assert ["sealed-512, alignment", "square.png"] in [line.split(": ")[:2] for line in told["not_run"]]
    assert "could not be run: sealed-512, alignment: square.png" in done.stderr


def test_help_teaches(run_sfumato):
    told = run_sfumato("audit", "--help").stdout
    assert "Example: sfumato audit" in told
    assert "contains your photos" in told
