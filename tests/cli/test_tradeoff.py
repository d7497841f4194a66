# SPDX-License-Identifier: Apache-2.0
import csv

import cv2
import pytest

from sfumato.images.samples import sample_image


@pytest.mark.slow
def test_from_photos_to_a_point_for_each_recipe(run_sfumato, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    cv2.imwrite(str(photos / "coffee.png"), cv2.resize(sample_image("coffee").pixels[:, :, ::-1], (200, 140)))
    out = tmp_path / "out"
    call = ("evaluate", "tradeoff", photos, "--max-features", "80", "--pair-features", "150", "--attacks", "vertex")
    done = run_sfumato(*call, "--recipes", "raw,random-2", "--workers", "1", "-o", out)
    assert "tradeoff-sift.png" in done.stdout
    with (out / "tradeoff-sift.csv").open() as file:
        rows = {row["recipe"]: row for row in csv.DictReader(file)}
    assert float(rows["raw"]["worst leakage"]) == 1
    assert float(rows["random-2"]["worst leakage"]) > 0.9
    assert float(rows["random-2"]["accuracy / raw"]) > 0.9


def test_help_teaches(run_sfumato):
    assert "Example: sfumato evaluate tradeoff" in run_sfumato("evaluate", "tradeoff", "--help").stdout
