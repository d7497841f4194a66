# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import cv2
import pytest

from sfumato.auditing.tables import COLOURS, PlotFrame, PlotLine, PlotPanel, draw_lines
from sfumato.errors import FileError, InputError

LINES = (
    PlotLine(series="raw", variant="solid", x=(1, 2, 3), y=(0.1, 0.5, 0.9)),
    PlotLine(
        series="sub-hybrid-2", variant="dashed", x=(1, 2, 3), y=(0.1, 0.4, 0.8), low=(0, 0.3, 0.7), high=(0.2, 0.5, 0.9)
    ),
)
FRAME = PlotFrame(title="Accuracy", x_label="threshold [px]", y_label="accuracy", variants=("solid", "dashed"))


def test_a_picture_and_a_drawing_with_every_label(tmp_path: Path):
    png, svg = draw_lines(
        tmp_path / "deep" / "figure-1.5", [PlotPanel("left", LINES), PlotPanel("right", LINES[:1])], FRAME
    )
    assert (png.name, svg.name) == ("figure-1.5.png", "figure-1.5.svg")
    assert cv2.imread(str(png)).shape[1] > 800
    text = svg.read_text()
    for word in ("left", "right", "raw", "sub-hybrid-2", "solid", "dashed", "Accuracy", "threshold [px]"):
        assert f"<!-- {word} -->" in text
    assert COLOURS[0] in text
    assert COLOURS[1].lower() in text
    assert "stroke-dasharray" in text


def test_the_same_lines_give_the_same_drawing(tmp_path: Path):
    one, two = (draw_lines(tmp_path / name, [PlotPanel("", LINES)], FRAME)[1].read_bytes() for name in "ab")
    assert one == two


def test_many_series_still_differ(tmp_path: Path):
    lines = tuple(PlotLine(series=f"s{i}", x=(1, 2), y=(i, i)) for i in range(20))
    _, svg = draw_lines(tmp_path / "many", [PlotPanel("", lines)], PlotFrame(y_limits=None))
    assert all(f"<!-- s{i} -->" in svg.read_text() for i in range(20))


def test_lines_of_different_lengths_are_refused():
    with pytest.raises(InputError, match="equally long"):
        PlotLine(series="a", x=(1, 2), y=(1,))


def test_nothing_to_draw_is_told(tmp_path: Path):
    with pytest.raises(InputError, match="no panel"):
        draw_lines(tmp_path / "a", [], FRAME)


def test_a_file_in_the_way_is_told(tmp_path: Path):
    (tmp_path / "a").write_text("")
    with pytest.raises(FileError):
        draw_lines(tmp_path / "a" / "b", [PlotPanel("", LINES)], FRAME)
