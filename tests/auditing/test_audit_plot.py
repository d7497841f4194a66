# SPDX-License-Identifier: Apache-2.0
"""The plot: one SVG, the same for the same points, whatever lies where."""

from xml.etree import ElementTree as ET

from sfumato.auditing.pictures import Point, draw_plot, free_height

POINTS = [Point("raw", 1.0, 1.0), Point("ninja-x@0123456789ab", 0.7, 0.96), Point("random-2", 0.98, 0.99)]


def test_the_same_points_give_the_same_picture():
    first = draw_plot(POINTS)
    assert (first.shows, first.media) == ("plot", "image/svg+xml")
    assert first.content == draw_plot(POINTS).content
    assert first.content != draw_plot(POINTS[:2]).content
    assert first.content != draw_plot(POINTS, [Point("other", 0.4, 0.9)]).content
    assert ET.fromstring(first.content).tag.endswith("svg")


def test_the_box_says_what_it_checks():
    assert b"two figures" in draw_plot(POINTS).content


def test_words_lie_where_no_point_is():
    default = [Point("sealed-512", 0.05, 1.12), Point("sealed-512", 0.05, 1.07), Point("raw", 1.0, 0.93)]
    assert free_height(default, 0.93, 1.12) == 0.93, "the lower left corner: raw lies far to the right"
    low = [Point("sealed-512", 0.05, 0.93), Point("other", 0.2, 1.0)]
    assert free_height(low, 0.93, 1.12) == 1.12
    assert free_height([], 0.93, 1.12) == 0.93


def test_points_far_off_and_none_at_all_are_drawn():
    assert draw_plot([]).content
    assert draw_plot([Point("odd", -0.4, 0.1), Point("more", 1.4, 1.3)]).content


def test_checksums_are_not_shown():
    assert POINTS[1].name == "ninja-x"
