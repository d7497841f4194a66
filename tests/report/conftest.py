# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.attacks.registry import AttackId
from sfumato.types.record import Record, Score

DEFAULT = "ninja-mine@0123456789ab"


@pytest.fixture
def make_attack():
    def make(recipe, attack, leakage, within=None, knows="", features=None, **params):
        scores = [Score("ssim", 0.5, samples=3), Score("leakage", leakage, samples=3)]
        scores += [] if features is None else [Score("features", features, samples=3)]
        scores += [] if within is None else [Score("within 0.1", within, samples=3)]
        given = {
            "recipe": recipe,
            "attack": attack,
            "knows": knows,
            "inverter": "patch",
            "descriptor": "sift",
            **params,
        }
        return Record("leakage", tuple(scores), {**given, **AttackId.of(given).facts.params}, seed=0)

    return make


@pytest.fixture
def make_reference():
    def make(recipe, leakage, within=0.0, photos=200, features=None, attack="alignment"):
        scores = [Score("leakage", leakage, samples=photos), Score("within 0.1", within, samples=photos)]
        scores += [] if features is None else [Score("features", features, samples=photos)]
        facts = AttackId.of({"attack": attack}).facts.params
        return Record("reference", tuple(scores), {"recipe": recipe, "attack": attack, "descriptor": "sift", **facts})

    return make


@pytest.fixture
def make_match():
    def make(recipe, correct, distance="s-to-s", **params):
        scores = tuple(
            Score(f"{name}, overall", value)
            for name, value in (("matches", 100.0), ("correct 3 px", correct), ("accuracy 3 px", correct / 100))
        )
        return Record("homography", scores, {"recipe": recipe, "distance": distance, "descriptor": "sift", **params})

    return make


@pytest.fixture
def records(make_attack, make_match):
    """An audit of raw, a broken lifting and the default recipe, with a photo that could not be read."""
    audit = Record(
        "audit",
        (Score("photos", 3, samples=4), Score("reduced", 2, samples=4), Score("left out", 1, samples=4)),
        {"default": DEFAULT, "side": 640},
        seed=7,
        commit="abc",
        machine={"processor": "a slow one", "numpy": "9.9"},
        dropped=("broken<b>.jpg: it is cut off",),
    )
    return [
        audit,
        make_match("raw", 80.0, "p-to-p"),
        make_match("sub-hybrid-2", 60.0),
        make_match("sub-hybrid-2", 79.0, "p-to-s"),
        make_match(DEFAULT, 76.0, "p-to-p"),
        make_attack("raw", "clear", 1.0),
        make_attack("raw", "floor", 0.0),
        make_attack("sub-hybrid-2", "vertex", 0.97, 0.98),
        make_attack("sub-hybrid-2", "vertex+decoys", 1.0, 1.0, "decoys"),
        make_attack("sub-hybrid-2", "intersection", 1.0, 1.0, "releases"),
        make_attack("sub-hybrid-2", "oracle-sphere", 1.3, 1.0, "public, clear"),
        make_attack(DEFAULT, "nearest", 0.4, 0.0, "public, encoder"),
        make_attack(DEFAULT, "direct", 0.6),
        make_attack(DEFAULT, "floor", 0.1),
        make_attack(DEFAULT, "oracle", 0.9, 0.7, "public, clear, encoder"),
    ]
