# SPDX-License-Identifier: Apache-2.0
"""Inverters as attackers use them: what each is for, and those that come with the package."""

import numpy as np

from sfumato.attacks.registry import PATCH, TRAINED_INVERTER
from sfumato.auditing.toolbox import KEYPOINTS, bundled_inverters
from sfumato.concealment.seal import without_key
from sfumato.types.recipe import DEFAULT_RECIPE, Recipe


def test_the_package_has_an_attacker_of_its_default_and_of_keypoints():
    found = {(one.recipe.split("@")[0], one.architecture): one for one in bundled_inverters()}
    assert len({one.purpose for one in found.values()}) == len(found)
    reader = found[str(without_key(Recipe.of(DEFAULT_RECIPE))), PATCH]
    assert (reader.title, reader.scale) == (TRAINED_INVERTER, PATCH)
    blind = found["raw", KEYPOINTS]
    assert (blind.title, blind.scale, blind.floor.tolist()) == (PATCH, PATCH, [0.0])
    assert found["raw", PATCH].title == PATCH


def test_a_blind_painter_paints_from_keypoints():
    blind = next(one for one in bundled_inverters() if one.architecture == KEYPOINTS)
    places = np.array([[20, 20, 3, 0], [40, 30, 4, 90]], np.float32)
    assert blind.paint(places, np.zeros((2, 1), np.float32), (64, 48)).shape == (48, 64, 3)
