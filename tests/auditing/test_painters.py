# SPDX-License-Identifier: Apache-2.0
"""Inverters as attackers use them: what each is for, and those that come with the package."""

import numpy as np

from sfumato.attacks.registry import AT_POSITIONS, PATCH, TRAINED_INVERTER
from sfumato.auditing.toolbox import CELLS, KEYPOINTS, POSITIONS, bundled_inverters
from sfumato.concealment.seal import without_key
from sfumato.types.recipe import DEFAULT_RECIPE, Recipe


def test_the_package_has_an_attacker_of_its_default_and_of_keypoints():
    found = {(one.recipe.split("@")[0], one.architecture): one for one in bundled_inverters()}
    assert len({one.purpose for one in found.values()}) == len(found)
    default = Recipe.of(DEFAULT_RECIPE)
    reader = found[str(without_key(default)), CELLS]
    assert (reader.title, reader.is_blind, reader.can_paint(default)) == (TRAINED_INVERTER, False, True)
    for name, paints_default in ((KEYPOINTS, False), (POSITIONS, True)):
        blind = found["raw", name]
        assert (blind.title, blind.is_blind, blind.floor.tolist()) == (PATCH, True, [0.0])
        assert blind.can_paint(default) == paints_default
    assert found["raw", PATCH].title == PATCH
    assert (found["raw", CELLS].title, found["raw", CELLS].frame) == (AT_POSITIONS, None)


def test_a_blind_painter_paints_from_keypoints():
    blind = next(one for one in bundled_inverters() if one.architecture == KEYPOINTS)
    places = np.array([[20, 20, 3, 0], [40, 30, 4, 90]], np.float32)
    assert blind.paint(places, np.zeros((2, 1), np.float32), (64, 48)).shape == (48, 64, 3)
