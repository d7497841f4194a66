# SPDX-License-Identifier: Apache-2.0
from sfumato.auditing.reference import FrontierPoint
from sfumato.experiments.frontier.points import draw_frontier, label_of

POINTS = [
    FrontierPoint("raw", 1.0, 1.0, 1.0, "clear", 1.0, 1.0, "clear", True),
    FrontierPoint("a@0123456789ab", 0.95, 0.9, 0.2, "direct", 0.0, 0.1, "decoder", True),
    FrontierPoint("b", 0.5, 0.3, 0.6, "x", 0.5, 0.6, "x", False, ("decoder",), {"leakage, one release": 0.3}),
]


def test_points_lines_and_aims_are_drawn(tmp_path):
    picture, drawing = draw_frontier(POINTS, tmp_path / "frontier", "title")
    assert picture.stat().st_size > 10_000
    text = drawing.read_text()
    assert "a (direct)" in text or "<!-- a (direct) -->" in text
    assert drawing.read_bytes() == draw_frontier(POINTS, tmp_path / "again", "title")[1].read_bytes()


def test_one_point_alone_can_be_drawn(tmp_path):
    assert draw_frontier(POINTS[:1], tmp_path / "frontier")[0].exists()


def test_names_are_short_and_missing_attackers_named():
    assert label_of(POINTS[1]) == "a (direct)"
    assert label_of(POINTS[2]) == "b (x; some missing)"
