# SPDX-License-Identifier: Apache-2.0
"""A sheet of pictures for each recipe."""

import cv2

from sfumato.auditing.leakage import LeakageProtocol, evaluate_leakage, plan_leakage
from sfumato.auditing.runner import Results
from sfumato.auditing.toolbox import Tools
from sfumato.concealment.decoys import load_decoys
from sfumato.experiments.frontier.sheets import GAP, TITLE, WIDTH, draw_sheets
from sfumato.features.local import LocalParams

LOCAL = LocalParams(max_features=40)


def test_a_sheet_for_each_recipe(small_photos, make_painter, tmp_path):
    wanted = LeakageProtocol(recipes=("raw", "random-2", "sub-hybrid-2"), attacks=("nearest",), local=LOCAL)
    works = plan_leakage(small_photos, wanted, Tools(inverters=[make_painter()]))
    evaluate_leakage(works, tmp_path)
    files = draw_sheets(works, tmp_path, "sift")
    names = ["leakage-sift-random-2.jpg", "leakage-sift-sub-hybrid-2.jpg", "leakage-sift-strongest.jpg"]
    assert [file.name for file in files] == names
    strongest, of_one = cv2.imread(str(files[2])), cv2.imread(str(files[1]))
    assert strongest.shape[1] == 5 * (WIDTH + GAP) - GAP  # photo, clear, keypoints alone, and a column a recipe
    assert abs(strongest[TITLE:, -WIDTH:].astype(int) - of_one[TITLE:, -WIDTH:]).mean() < 4  # but for what JPEG changes
    sheet = cv2.imread(str(files[0]))
    assert sheet.shape[1] == 4 * (WIDTH + GAP) - GAP  # photo, clear, keypoints alone, nearest
    Results(tmp_path, works.tasks[-1].task()).forget(works.samples)
    gone = cv2.imread(str(draw_sheets(works, tmp_path, "sift", photos=1)[1]))
    assert (gone[30:100, -WIDTH:] > 250).all()  # what was left out stays white


def test_clear_descriptors_alone(small_photos, make_painter, tmp_path):
    wanted = LeakageProtocol(recipes=("raw",), local=LOCAL)
    works = plan_leakage(small_photos, wanted, Tools(inverters=[make_painter()]))
    evaluate_leakage(works, tmp_path)
    assert [file.name for file in draw_sheets(works, tmp_path, "sift")] == ["leakage-sift-raw.jpg"]


def test_a_broken_photo_among_good_ones_is_told_and_left_white(small_photos, make_painter, tmp_path):
    broken = tmp_path / "a.jpg"
    broken.write_text("no picture")
    wanted = LeakageProtocol(recipes=("random-2",), attacks=("nearest",), local=LOCAL)
    photos = {"a.jpg": broken, "coffee.png": small_photos["coffee.png"]}
    works = plan_leakage(photos, wanted, Tools(inverters=[make_painter()], public=load_decoys()))
    records = evaluate_leakage(works, tmp_path / "out")
    assert all(len(record.dropped) == 1 and "a.jpg" in record.dropped[0] for record in records)
    assert all(record.scores for record in records)
    sheet = cv2.imread(str(draw_sheets(works, tmp_path / "out", "sift")[0]))
    assert sheet.shape[0] > 150
