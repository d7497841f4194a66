# SPDX-License-Identifier: Apache-2.0
"""Every attack on every recipe: what is planned, measured, kept and told."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

import sfumato
from sfumato.attacks.registry import ATTACKS
from sfumato.auditing.leakage import LeakageProtocol, evaluate_leakage, leakage_table, plan_leakage, with_facts
from sfumato.auditing.toolbox import Tools
from sfumato.concealment.decoys import Decoys
from sfumato.concealment.encoder import save_encoder
from sfumato.concealment.resolve import resolve
from sfumato.errors import DecoyError, InputError
from sfumato.features.local import LocalParams
from sfumato.report.page import FACTS
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe
from sfumato.types.record import Record

LOCAL = LocalParams(max_features=60)


def protocol(*recipes, attacks=("vertex", "nearest"), **settings):
    return LeakageProtocol(recipes=recipes, attacks=attacks, local=LOCAL, **settings)


def score(record, name):
    return next((one.value for one in record.scores if one.name == name), None)


@pytest.fixture(scope="module")
def tools(make_painter):
    return Tools(inverters=[make_painter(), make_painter("sub-hybrid-2", dim=384)])


@pytest.fixture(scope="module")
def measured(tools, small_photos, tmp_path_factory):
    """What the tests only read; whoever adds to the folder takes a copy."""
    folder = tmp_path_factory.mktemp("measured")
    wanted = protocol("raw", "random-2", "sub-hybrid-2", attacks=("vertex", "nearest", "intersection"))
    works = plan_leakage(small_photos, wanted, tools)
    return works, folder, evaluate_leakage(works, folder)


def test_a_record_for_each_recipe_and_attack(measured):
    _, _, records = measured
    told = [(record.params["recipe"], record.params["attack"]) for record in records]
    assert told == [("raw", "clear"), ("raw", "floor")] + [
        (recipe, attack) for recipe in ("random-2", "sub-hybrid-2") for attack in ("vertex", "nearest", "intersection")
    ]
    assert all(score(record, "ssim") is not None and not record.dropped for record in records)
    assert {record.params["knows"] for record in records} >= {"", "public", "releases"}


def test_the_scale_runs_from_the_floor_to_the_clear_descriptors(measured):
    _, _, records = measured
    assert score(records[0], "leakage") == 1.0
    assert score(records[1], "leakage") == 0.0
    by_attack = {(one.params["recipe"], one.params["attack"]): one for one in records}
    exact = by_attack["random-2", "intersection"]  # two releases give the descriptors away, and so the picture
    assert score(exact, "within 0.02") == 1.0
    assert score(exact, "leakage") == pytest.approx(1.0, abs=0.02)
    assert score(by_attack["sub-hybrid-2", "nearest"], "within 0.02") < 0.5


def test_what_is_finished_is_not_done_again(measured, monkeypatch):
    works, folder, records = measured
    monkeypatch.setattr(type(works.tasks[0]), "predict", lambda *_: pytest.fail("done again"))
    assert [one.to_json() for one in evaluate_leakage(works, folder)] == [one.to_json() for one in records]


def test_only_a_changed_photo_is_attacked_again(measured, tools, small_photos, tmp_path):
    folder = shutil.copytree(measured[1], tmp_path / "copy")
    changed = dict(small_photos)
    changed["chelsea.png"] = tmp_path / "other.png"
    shutil.copy(small_photos["coffee.png"], changed["chelsea.png"])
    wanted = protocol("raw", "random-2", "sub-hybrid-2", attacks=("vertex", "nearest", "intersection"))
    again, seen = plan_leakage(changed, wanted, tools), []
    for task in again.tasks:
        predict = task.predict
        task.predict = lambda sample, predict=predict: seen.append(sample.key) or predict(sample)
    evaluate_leakage(again, folder)
    assert set(seen) == {"chelsea.png"}


def test_direct_inversion_comes_after_the_scale(tools, small_photos, tmp_path):
    works = plan_leakage(small_photos, protocol("sub-hybrid-2", attacks=("direct",)), tools)
    records = evaluate_leakage(works, tmp_path)
    told = [(one.params["recipe"], one.params["attack"], score(one, "within 0.1")) for one in records]
    pairs = (("raw", "clear"), ("raw", "floor"), ("sub-hybrid-2", "direct"))
    assert told == [(*pair, None) for pair in pairs]


def test_all_means_what_the_tools_allow(tools, small_photos):
    works = plan_leakage(small_photos, protocol("sub-hybrid-2", attacks=()), tools)
    told = {task.attack.label for task in works.tasks}
    assert told >= {"vertex", "nearest", "oracle", "decoys", "intersection", "direct"}
    assert told.isdisjoint({"reveal", "tracks", "decoder"})
    asked = plan_leakage(small_photos, protocol("random-2", "sub-hybrid-2", attacks=("vertex+decoys",)), tools)
    assert [str(task.subject.recipe) for task in asked.tasks] == ["raw", "raw", "sub-hybrid-2"]
    known = plan_leakage(small_photos, protocol("random-2", attacks=()), tools)
    assert "decoys" not in {task.attack.label for task in known.tasks}


def test_what_is_missing_is_told(tools, small_photos, make_painter):
    with pytest.raises(InputError, match="no photo"):
        plan_leakage({}, protocol("raw"), tools)
    with pytest.raises(InputError, match="rootsift"):
        plan_leakage(small_photos, LeakageProtocol(local=LocalParams(descriptor="rootsift")), tools)
    with pytest.raises(InputError, match="random-2"):
        plan_leakage(small_photos, protocol("random-2", attacks=("tracks",)), tools)
    with pytest.raises(InputError, match="--recipe"):
        plan_leakage(small_photos, protocol("random-2", attacks=("direct",)), tools)
    with pytest.raises(InputError, match=r"none of .*vertex"):
        protocol("raw", attacks=("vertx",))
    assert set(ATTACKS) >= {"vertex", "nearest", "oracle", "decoys", "density"}


def test_decoys_and_public_descriptors_must_be_of_the_same_kind(small_photos, make_painter):
    other = Decoys(np.eye(64, 128, dtype=np.float32), Extractor("superpoint"), parts=1)
    with pytest.raises(InputError, match="superpoint"):
        plan_leakage(small_photos, protocol("random-2"), Tools(inverters=[make_painter()], public=other))
    with pytest.raises(DecoyError, match="superpoint"):
        plan_leakage(small_photos, protocol("sub-hybrid-2"), Tools(inverters=[make_painter()], decoys=other))


def test_a_table_for_people(measured):
    table = leakage_table(measured[2])
    assert table.columns[:4] == ("descriptor", "recipe", "attack", "inverter")
    assert {"within 0.02", "SSIM", "leakage"} <= set(table.columns)
    assert len(table.rows) == 8


def test_encoded_features_are_attacked_in_all_ways_that_are_for_them(
    small_photos, tmp_path, make_encoder, make_painter
):
    save_encoder(tmp_path / "n.safetensors", make_encoder())
    recipe = str(resolve(f"ninja:{tmp_path / 'n.safetensors'}").recipe)
    public = Decoys(sfumato.load_decoys().descriptors[:500], Extractor("sift"), parts=1)
    decoders = {("sift", Recipe.of(recipe).identity): ("digest", lambda subspaces: subspaces.origin)}
    tools = Tools(inverters=[make_painter(), make_painter(recipe)], public=public, decoders=decoders)
    wanted = protocol(f"ninja:{tmp_path / 'n.safetensors'}", attacks=())
    works = plan_leakage(small_photos, wanted, tools)
    told = [task.attack.label for task in works.tasks][2:]
    assert told == [
        "nearest", "nearest-base", "oracle", "oracle-base", "oracle-encoded", "decoder", "regression",
        "direct",
    ]  # fmt: skip
    records = evaluate_leakage(works, tmp_path / "out")
    assert all(not record.dropped and record.seed is None for record in records)
    assert {record.params["recipe"] for record in records} == {"raw", recipe}
    assert {record.params["knows"] for record in records} >= {"public, encoder", "public, clear, encoder", "decoder"}
    medians = {one.params["attack"]: score(one, "median") for one in records}
    assert medians["oracle"] <= medians["nearest"]
    with pytest.raises(InputError, match="vertex"):
        plan_leakage(small_photos, protocol(f"ninja:{tmp_path / 'n.safetensors'}", attacks=("vertex", "decoys")), tools)
    mixed = plan_leakage(
        small_photos, protocol("random-2", f"ninja:{tmp_path / 'n.safetensors'}", attacks=("vertex", "nearest")), tools
    )
    pairs = [(str(w.subject.recipe).split("@")[0], w.attack.label) for w in mixed.tasks[2:]]
    assert pairs == [("random-2", "vertex"), ("random-2", "nearest"), ("ninja:n", "nearest")]


def test_readings_of_a_seal_are_painted_by_both_inverters(small_photos, make_painter, tmp_path):
    inverters = [make_painter(*one) for one in (("raw",), ("raw", "cells"), ("sealed-64:0.9", "cells"))]
    tools = Tools(inverters=inverters, public=sfumato.load_decoys())
    wanted = protocol("sealed-64:0.9", attacks=("told-alignment",))
    records = evaluate_leakage(plan_leakage(small_photos, wanted, tools), tmp_path)
    told = [(one.params["attack"], one.params["inverter"]) for one in records if one.params["recipe"] != "raw"]
    assert told == [("told-alignment", "positions only"), ("told-alignment", "inverter trained on it")]
    assert all(score(one, "leakage") is not None and not one.dropped for one in records)


def test_every_recipe_is_painted_from_what_its_archive_has_of_keypoints(small_photos, make_painter):
    kinds = (("raw",), ("raw", "cells"), ("raw", "keypoints"), ("raw", "positions"))
    tools = Tools(inverters=[make_painter(*one) for one in kinds], public=sfumato.load_decoys())
    recipes = ("random-2", "sealed-64:0.9")
    blind = {
        recipe: [
            task.attack.title
            for task in plan_leakage(small_photos, protocol(recipe, attacks=()), tools).tasks
            if task.inverter.is_blind
        ]
        for recipe in recipes
    }
    assert blind == {
        "random-2": ["keypoints", "positions"],
        "sealed-64:0.9": ["positions"],
    }
    with pytest.raises(InputError, match="cells"):
        plan_leakage(small_photos, protocol("sealed-64:0.9"), replace(tools, inverters=[make_painter()]))


def test_records_of_older_versions_are_completed(measured):
    old = [
        replace(one, params={name: value for name, value in one.params.items() if name not in FACTS})
        for one in measured[2]
    ]
    assert all("counts" not in one.params for one in old)
    assert [with_facts(one) for one in old] == measured[2]
    assert with_facts(measured[2][0]) is measured[2][0]


def test_a_finished_record_without_facts_gets_them_and_keeps_its_figures(measured, tmp_path):
    works, folder, records = measured
    copy = shutil.copytree(folder, tmp_path / "copy")
    for path in copy.rglob("records/*.json"):
        record = Record.from_json(path.read_text())
        params = {name: value for name, value in record.params.items() if name not in FACTS}
        path.write_text(replace(record, params=params, commit="old").to_json())
    for old, new in zip(records, evaluate_leakage(works, copy), strict=True):
        assert (new.params, new.scores) == (old.params, old.scores)
        assert new.commit == "old" or new.params["role"] == "scale"
