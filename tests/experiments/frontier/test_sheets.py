# SPDX-License-Identifier: Apache-2.0
"""Sheets of pictures, and leakage as dots."""

import cv2
import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.experiments.frontier.sheets import GAP, TITLE, WIDTH, Column, draw_leakage, draw_sheet
from sfumato.types.record import Record, Score


def test_pictures_stand_in_rows_and_columns(tmp_path):
    red = np.zeros((120, 2 * WIDTH, 3), np.uint8)
    red[..., 0] = 255
    grey = np.full((60, WIDTH // 2), 80, np.uint8)
    path = draw_sheet(tmp_path / "sheet.png", [Column("photo", [red, grey]), Column("seen", [None, grey])])
    sheet = cv2.imread(str(path))[:, :, ::-1]
    assert sheet.shape == (TITLE + 60 + GAP + 120 + GAP, 2 * WIDTH + GAP, 3)
    assert sheet[TITLE + 30, 100].tolist() == [255, 0, 0]
    assert sheet[TITLE + 30, WIDTH + GAP + 100].tolist() == [255, 255, 255]  # nothing was painted
    assert sheet[TITLE + 60 + GAP + 60, WIDTH + GAP + 100].tolist() == [80, 80, 80]
    assert (sheet[:TITLE] < 128).any()


@pytest.mark.parametrize("columns", [[], [Column("a", [])], [Column("a", [None]), Column("b", [])]])
def test_uneven_columns_are_told(tmp_path, columns):
    with pytest.raises(InputError, match="one length"):
        draw_sheet(tmp_path / "sheet.png", columns)


def test_other_formats_and_places_are_told(tmp_path):
    grey = [Column("a", [np.zeros((9, 9), np.uint8)])]
    with pytest.raises(InputError, match="png"):
        draw_sheet(tmp_path / "sheet.docx", grey)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError):
        draw_sheet(tmp_path / "file" / "sheet.png", grey)


def record(recipe, attack, *values, inverter="patch"):
    names = ("leakage", "leakage low", "leakage high")
    scores = tuple(Score(name, value) for name, value in zip(names, values, strict=False))
    return Record("leakage", scores, {"recipe": recipe, "attack": attack, "inverter": inverter})


def test_leakage_is_drawn_for_records_that_tell_it(tmp_path):
    some = [record("raw", "clear", 1.0, 1.0, 1.0), record("sub-hybrid-2", "direct", 0.3, 0.2, 0.4, inverter="unet")]
    png, svg = draw_leakage([*some, record("raw", "broken")], tmp_path / "leakage", "Leakage")
    assert cv2.imread(str(png)).shape[1] > 500
    again = draw_leakage(some, tmp_path / "again", "Leakage")[1]
    assert svg.read_bytes() == again.read_bytes()
    with pytest.raises(InputError, match="no record"):
        draw_leakage([record("raw", "broken")], tmp_path / "none")
