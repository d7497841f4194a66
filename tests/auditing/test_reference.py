# SPDX-License-Identifier: Apache-2.0
"""References: sealed recipes are found whatever the key, others have none, and the photos behind them are told."""

import pytest

from sfumato.auditing import reference
from sfumato.auditing.reference import FrontierPoint, _keyless_name, references_for


@pytest.fixture
def frontier(monkeypatch):
    def give(*points, **figures):
        made = [
            FrontierPoint(recipe, 1.0, 1.0, 0.2, by, 0.001, 0.05, by, trained=True, figures=figures)
            for recipe, by in points
        ]
        monkeypatch.setattr(reference, "reference_frontier", lambda: made)

    return give


def test_a_sealed_recipe_is_found_whatever_the_key(frontier):
    frontier(("sealed-512@0123456789ab", "alignment"), ("random-2", "vertex"), photos=200)
    (found,) = references_for(["raw", "sealed-512@330fa2794d6c", "sealed-256@9d79006d0b69", "random-2"])
    assert (found.task, found.params["recipe"]) == ("reference", "sealed-512@330fa2794d6c")
    assert found.params["attack"] == "alignment"
    assert {one.name: (one.value, one.samples) for one in found.scores} == {
        "leakage": (0.2, 200), "within 0.1": (0.001, 200), "within 0.3": (0.05, 200)
    }  # fmt: skip


def test_encoders_before_the_seal_are_told_apart(frontier):
    frontier(("ninja-mine@0123456789ab+sealed-512@0123456789ab", "alignment"))
    assert references_for(["ninja-mine@0123456789ab+sealed-512@330fa2794d6c"])
    assert not references_for(["ninja-mine@ba9876543210+sealed-512@330fa2794d6c"])
    assert _keyless_name("sealed-512:0.45@9d79006d0b69") == "sealed-512:0.45"


def test_what_nobody_attacked_is_no_reference(frontier):
    frontier(("sealed-512", "nothing"))
    assert not references_for(["sealed-512"])
    frontier()
    assert not references_for(["sealed-512", "no recipe at all"])
