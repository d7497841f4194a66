# SPDX-License-Identifier: Apache-2.0
"""All parts of the frontier in one folder, recipe after recipe."""

from dataclasses import replace

import pytest

from sfumato.auditing.attack_task import AttackTask
from sfumato.auditing.toolbox import Toolbox
from sfumato.errors import InputError
from sfumato.experiments.data.folders import read_homography_folder
from sfumato.experiments.frontier import run
from sfumato.experiments.frontier.points import locate
from sfumato.experiments.frontier.run import FrontierJob, distinct, measure_frontier, missing_codes
from sfumato.features.local import LocalParams
from sfumato.types.recipe import DEFAULT_RECIPE, Recipe
from sfumato.types.record import ENOUGH_CODES, Record, Score

LOCAL = LocalParams(max_features=40)


@pytest.fixture
def order(small_photos, small_sequences):
    return FrontierJob(
        photos=tuple(small_photos.items())[:1],
        sequences=tuple(read_homography_folder(small_sequences))[:1],
        recipes=("random-2",),
        toolbox=Toolbox(),
        local=LOCAL,
        pair_features=100,
        workers=1,
    )


def test_every_recipe_once_and_raw_first():
    assert [str(one) for one in distinct(["random-2", "raw", "random-2"])] == ["raw", "random-2"]
    names = [one.identity for one in distinct(["default", DEFAULT_RECIPE, "ninja-sift-2.5"])]
    assert len(names) == 3


def test_points_come_after_each_recipe_and_nothing_is_done_twice(order, tmp_path, monkeypatch):
    told = []
    first, second = measure_frontier(order, tmp_path, report=told.append)
    assert [point.recipe for point in locate(first)] == ["raw"]
    raw, lifted = locate(second)
    assert lifted.leakage > 0.9, "SIFT lifted to planes is recovered by its vertices"
    assert lifted.recovered_01 > 0.9
    assert lifted.missing == (
        "decoder of random-2",
        "inverter of random-2",
        "public descriptors other than the decoys",
    )
    assert "random-2: attacking" in told
    monkeypatch.setattr(AttackTask, "predict", lambda *_: pytest.fail("done again"))
    again = list(measure_frontier(order, tmp_path))[-1]
    assert locate(again) == [raw, lifted]


def test_missing_networks_are_trained_if_there_are_photos(order, small_photos, tmp_path, monkeypatch):
    asked = []

    def train(missing, photos, models, decoys, budget, *, report):
        asked.extend(map(str, missing))

    monkeypatch.setattr(run, "train_missing", train)
    photos = tuple(small_photos.values())[1:2]
    ready = replace(order, toolbox=Toolbox(models=tmp_path / "models"), train_photos=photos)
    list(measure_frontier(ready, tmp_path / "out"))
    assert asked == ["decoder of random-2", "inverter of random-2"]


def test_nobody_learns_from_what_is_attacked(order, small_photos):
    photos = tuple(small_photos.values())
    with pytest.raises(InputError, match="--models"):
        replace(order, train_photos=photos[1:])
    with pytest.raises(InputError, match="trained on"):
        replace(order, train_photos=photos, toolbox=Toolbox(models=photos[0].parent))


def test_a_seal_that_was_attacked_with_few_codes_lacks_an_attacker():
    def attacked(features, attack="told-alignment"):
        return Record("leakage", (Score("features", features, "per image", 20),), {"attack": attack})

    sealed = Recipe.of("sealed-512@0123456789ab")
    (told,) = missing_codes(sealed, [attacked(5.0), attacked(9000.0, "known-pairs")])
    assert told.endswith("these photos have 100")
    assert missing_codes(sealed, [])
    assert not missing_codes(sealed, [attacked(ENOUGH_CODES / 20)])
    assert not missing_codes(Recipe.of("sub-hybrid-2"), [])
