# SPDX-License-Identifier: Apache-2.0
import csv

import cv2
import numpy as np

from sfumato.auditing.reference import read_frontier
from sfumato.experiments.data.generated import make_homography_folder, make_room_folder
from sfumato.images.samples import sample_image


def test_from_photos_to_a_frontier(run_sfumato, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    cv2.imwrite(str(photos / "coffee.png"), cv2.resize(sample_image("coffee").pixels[:, :, ::-1], (160, 120)))
    pairs = make_homography_folder(tmp_path / "pairs", np.random.default_rng(0), photos=("coffee",), others=1)
    out = tmp_path / "out"
    call = ("evaluate", "frontier", photos, "--pairs", pairs, "--limit-sequences", "1", "--no-room", "--workers", "1")
    done = run_sfumato(
        *call, "--max-features", "40", "--pair-features", "100", "--recipes", "random-2", "--keyed", "-o", out
    )
    assert "frontier-sift.png" in done.stdout
    raw, lifted = read_frontier(out / "frontier.json")
    assert (raw.recipe, raw.leakage) == ("raw", 1.0)
    assert lifted.recovered_01 > 0.9
    assert not lifted.trained
    with (out / "frontier-sift.csv").open() as file:
        rows = {row["recipe"]: row for row in csv.DictReader(file)}
    assert rows["random-2"]["reaches the aims"] == "use"
    assert "within 0.1, matches" in rows["random-2"]


def test_two_scenes_of_one_name_are_refused(run_sfumato, tmp_path):
    room = make_room_folder(tmp_path / "room", np.random.default_rng(0), views=3, width=160, height=120, step=8)
    told = run_sfumato(
        "evaluate", "frontier", "--posed", room, "--posed", room, "--no-room", "-o", tmp_path / "o", code=1
    )
    assert "two folders are called room" in told.stderr


def test_help_teaches(run_sfumato):
    assert "Example: sfumato evaluate frontier" in run_sfumato("evaluate", "frontier", "--help").stdout
