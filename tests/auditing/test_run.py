# SPDX-License-Identifier: Apache-2.0
"""An audit of small photos, whole: records, pictures, what is found again."""

import pytest

from sfumato.auditing.leakage import LeakageProtocol, plan_leakage
from sfumato.auditing.run import Audit, AuditProtocol, check_ahead, points_of, quick_plan, run_audit, with_public
from sfumato.auditing.runner import load_records
from sfumato.auditing.toolbox import Toolbox, Tools
from sfumato.concealment.decoys import load_decoys
from sfumato.errors import ImageError, InputError, RecipeError
from sfumato.features.local import LocalParams
from sfumato.types.record import Record, Score

SMALL = AuditProtocol(recipes=("default", "sub-hybrid-2"), side=120, local=LocalParams(max_features=40))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("audit")


@pytest.fixture(scope="module")
def audit(small_photos, place) -> Audit:
    stages = []

    def shown(title):
        stages.append(title)
        return iter

    made = run_audit(small_photos, place, SMALL, workers=1, stages=shown)
    assert stages == ["reading", "matching", "attacking"]
    return made


def scores(audit, recipe, attack):
    (found,) = [one for one in audit.records if (one.params.get("recipe"), one.params.get("title")) == (recipe, attack)]
    return {score.name: score.value for score in found.scores}


def test_the_first_record_tells_about_the_audit(audit):
    told = audit.records[0]
    assert told.task == "audit"
    assert {score.name: score.value for score in told.scores} == {"photos": 2, "reduced": 2, "left out": 1}
    assert told.dropped == ("wall.png: no feature was found in it: there is nothing to send, and nothing to attack",)
    assert told.params["default"] == AuditProtocol(recipes=("default",)).settled()[1]
    assert told.machine["numpy"]


def test_all_records_are_kept(audit, place):
    assert sorted(one.to_json() for one in load_records(place)) == sorted(one.to_json() for one in audit.records)


def test_the_vertex_attack_breaks_lifting_and_raw_is_the_measure(audit):
    assert scores(audit, "sub-hybrid-2", "vertex")["within 0.1"] > 0.8
    assert scores(audit, "raw", "clear")["leakage"] == 1
    recipes = {one.params["recipe"] for one in audit.records if one.task == "homography"}
    assert recipes == {"raw", "sub-hybrid-2", audit.records[0].params["default"]}


def test_every_attack_has_its_picture_of_every_photo(audit):
    seen = {(one.recipe, one.attack, one.photo) for one in audit.pictures if one.shows == "seen"}
    for record in audit.records:
        if record.task == "leakage":
            for photo in ("chelsea.png", "coffee.png"):
                assert (record.params["recipe"], record.params["title"], photo) in seen
    assert sum(one.shows == "photo" for one in audit.pictures) == 2
    assert sum(one.shows == "matches" for one in audit.pictures) == 2 * 3
    assert sum(one.shows == "plot" for one in audit.pictures) == 1


def test_what_was_measured_is_found_again(audit, small_photos, place, monkeypatch):
    from sfumato.auditing import attack_task

    monkeypatch.setattr(attack_task.AttackTask, "predict", lambda *_: pytest.fail("it was measured again"))
    again = run_audit(small_photos, place, SMALL, workers=1)
    assert again.records[1:] == audit.records[1:]
    assert again.pictures == audit.pictures


def test_one_photo_and_clear_features_alone_are_an_audit(small_photos, place):
    photos = {"coffee.png": small_photos["coffee.png"]}
    alone = run_audit(photos, place, AuditProtocol(recipes=("raw",), side=120, local=SMALL.local), workers=1)
    assert {one.params.get("recipe") for one in alone.records[1:]} == {"raw"}
    assert [one.shows for one in alone.pictures] == ["photo", "seen", "seen", "seen", "matches", "plot"]


def test_points_leave_out_what_was_not_measured(audit):
    matched = [one for one in audit.records if one.task == "homography"]
    attacked = [one for one in audit.records if one.task == "leakage"]
    assert points_of(matched, attacked)[0].recipe == "raw"
    assert len(points_of(matched, attacked)) == 3
    assert [one.recipe for one in points_of(matched, [])] == ["raw"]
    assert points_of([], attacked) == []


def test_attacks_that_could_only_find_decoys_are_left_out(small_photos):
    decoys = load_decoys()
    photos = {"coffee.png": small_photos["coffee.png"]}
    protocol = LeakageProtocol(recipes=("sub-hybrid-2", "ninja-sift-2.5"))
    inverters = Toolbox().open().inverters

    def attacks(public):
        works = quick_plan(plan_leakage(photos, protocol, Tools(decoys=decoys, public=public, inverters=inverters)))
        return {(one.subject.recipe.kind, one.attack.label) for one in works.tasks}

    assert ("sub-hybrid", "nearest") not in attacks(None)
    assert {("sub-hybrid", "vertex+decoys"), ("ninja", "nearest"), ("ninja", "direct")} <= attacks(None)
    from sfumato.concealment.decoys import Decoys

    assert ("sub-hybrid", "nearest") in attacks(Decoys(decoys.descriptors[::64], decoys.extractor, parts=1))


def test_the_attacker_always_has_public_descriptors(tmp_path):
    public = with_public(Toolbox()).public
    assert public is not None
    assert load_decoys(public).checksum == load_decoys().checksum
    own = Toolbox(public=tmp_path / "mine.npz")
    assert with_public(own) is own


def test_what_is_wrong_is_told_before_anything_is_measured(small_photos, tmp_path):
    with pytest.raises(RecipeError, match="you mean"):
        run_audit(small_photos, tmp_path, AuditProtocol(recipes=("sub-hybird-2",)))
    with pytest.raises(InputError, match="audit"):
        run_audit(small_photos, tmp_path, AuditProtocol(recipes=()))
    with pytest.raises(ImageError, match="audited"):
        run_audit({"wall.png": small_photos["wall.png"]}, tmp_path, SMALL)
    assert "records" in repr(Audit((), ()))


def test_a_reference_is_among_the_records_and_kept(audit, small_photos, place, monkeypatch):
    from sfumato.auditing import run as module

    recipe = str(audit.records[0].params["default"])
    known = Record("reference", (Score("leakage", 0.2, samples=200),), {"recipe": recipe, "attack": "alignment"})
    monkeypatch.setattr(module, "references_for", lambda recipes: [known])
    again = run_audit(small_photos, place, SMALL, workers=1)
    assert [one for one in again.records if one.task == "reference"] == [known]
    assert known in load_records(place)
    (place / "reference" / "records").rename(place / "gone")
    matched, attacked = ([one for one in again.records if one.task == task] for task in ("homography", "leakage"))
    points = {one.recipe: one.leakage for one in points_of(matched, [*attacked, known])}
    assert points[recipe] >= 0.2


def test_no_name_of_a_photo_stops_an_audit(small_photos):
    photos = {"bell\x07\x1b[31m\n.png": small_photos["coffee.png"]}
    protocol = AuditProtocol(recipes=("raw",), side=96, local=LocalParams(max_features=20))
    check_ahead(photos, protocol, Toolbox())
