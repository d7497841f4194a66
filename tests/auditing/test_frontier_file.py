# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import replace

import pytest

from sfumato.auditing.reference import FrontierPoint, non_dominated, read_frontier, reference_frontier, write_frontier
from sfumato.errors import FileError, InputError
from sfumato.types.recipe import DEFAULT_RECIPE

GOOD = FrontierPoint("ninja-sift-2.5", 0.95, 0.9, 0.05, "direct", 0.005, 0.1, "decoder", True, (), {"accuracy": 0.4})


def test_points_come_back_as_they_were(tmp_path):
    other = replace(GOOD, recipe="sub-hybrid-2", trained=False, missing=("decoder",), leakage=1.02)
    write_frontier(tmp_path / "a" / "frontier.json", [GOOD, other], {"photos": 3})
    assert read_frontier(tmp_path / "a" / "frontier.json") == [GOOD, other]
    assert json.loads((tmp_path / "a" / "frontier.json").read_text())["made"] == {"photos": 3}


def test_the_package_has_a_frontier_that_can_be_read():
    assert all(isinstance(point, FrontierPoint) for point in reference_frontier())


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(InputError, match="recovered_03"):
        FrontierPoint("", 1.0, 1.0, float("nan"), "direct", 0.0, 1.5, "none", True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "damaged"),
        ("[]", "no frontier"),
        ('{"format": "sfumato frontier", "version": 2, "points": []}', "version 2"),
        ('{"format": "sfumato frontier", "version": 1, "points": [{}]}', "point 1"),
        ('{"format": "sfumato frontier", "version": 1, "points": [3]}', "point 1"),
    ],
)
def test_other_files_are_refused(tmp_path, text, told):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(FileError, match=told):
        read_frontier(tmp_path / "x.json")


def test_missing_files_and_twins_are_refused(tmp_path):
    with pytest.raises(FileError, match="no such"):
        read_frontier(tmp_path / "none.json")
    write_frontier(tmp_path / "x.json", [GOOD, GOOD])
    with pytest.raises(FileError, match="two points"):
        read_frontier(tmp_path / "x.json")


def test_what_a_recipe_should_reach():
    assert GOOD.keeps_use
    assert GOOD.is_private
    assert not replace(GOOD, correct_share=0.8).keeps_use
    assert not replace(GOOD, leakage=0.11).is_private
    assert not replace(GOOD, recovered_01=0.02).is_private
    assert not replace(GOOD, trained=False).is_private, "a missing attacker must not look like privacy"


def test_dominated_points_are_left_out_and_missing_attackers_beat_nobody():
    raw = replace(GOOD, recipe="raw", accuracy_share=1.0, leakage=1.0)
    worse = replace(GOOD, recipe="worse", accuracy_share=0.9, leakage=0.5)
    untried = replace(GOOD, recipe="untried", accuracy_share=1.0, leakage=0.0, trained=False, missing=("direct",))
    names = [point.recipe for point in non_dominated([raw, worse, GOOD, untried])]
    assert names == ["untried", GOOD.recipe, "raw"]


def test_the_reference_has_the_default_with_all_its_attackers():
    (found,) = [point for point in reference_frontier() if point.name == DEFAULT_RECIPE]
    assert found.trained
    assert not found.missing
