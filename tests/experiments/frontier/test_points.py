# SPDX-License-Identifier: Apache-2.0
"""Records of other evaluations, joined to points."""

from dataclasses import replace

import pytest

from sfumato.auditing.matching import score_name
from sfumato.errors import InputError
from sfumato.experiments.frontier.points import FrontierRecords, attacks_on, frontier_table, locate, verdict
from sfumato.types.record import Record, Score

CHAIN = "ninja-x@0123456789ab+random-2"


def used(recipe, accuracy, correct, distance="s-to-s"):
    scores = (
        Score(score_name("accuracy 3 px", "overall"), accuracy),
        Score(score_name("correct 3 px", "overall"), correct),
    )
    return Record("homography", scores, {"recipe": recipe, "distance": distance})


def attacked(recipe, attack, inverter="patch", task="leakage", **scores):
    params = {"recipe": recipe, "attack": attack, "inverter": inverter}
    named = (Score(name.replace("_", " "), value) for name, value in scores.items())
    return Record(task, tuple(named), params, seed=0)


def within(share, near=0.5, space="", **more):
    return {f"{space}within 0.1": share, f"{space}within 0.3": near, **more}


MEASURED = FrontierRecords(
    pairs=[used("raw", 0.5, 400, "p-to-p"), used("sub-hybrid-2", 0.45, 300), used(CHAIN, 0.4, 200)],
    scenes={"room": [Record("map", (Score("registered images", 7.0),), {"recipe": "sub-hybrid-2"})]},
    leakage=[
        attacked("raw", "clear", leakage=1.0),
        attacked("sub-hybrid-2", "floor", leakage=0.1),
        attacked("sub-hybrid-2", "vertex", **within(0.9, leakage=0.8)),
        attacked("sub-hybrid-2", "oracle", **within(0.95, leakage=1.1)),
        attacked("sub-hybrid-2", "intersection", **within(1.0, leakage=1.0)),
        attacked("sub-hybrid-2", "direct", "unet", leakage=0.85),
        attacked("ninja:y@0123456789ab+random-2", "density then decoder", **within(0.1, space="lifted ", leakage=0.2)),
        attacked(CHAIN, "decoder", **within(0.02, leakage=0.3)),
    ],
    matched=[attacked("sub-hybrid-2", "tracks", task="matched", **within(0.97))],
    missing={CHAIN.replace("-x", ""): ["inverter of it"]},
)


def test_the_worst_of_all_attacks_counts_and_an_oracle_does_not():
    raw, lifted, _ = locate(MEASURED)
    assert (raw.leakage, raw.leakage_by, raw.recovered_01) == (1.0, "clear", 1.0)
    assert (lifted.accuracy_share, lifted.correct_share) == pytest.approx((0.9, 0.75))
    assert (lifted.leakage, lifted.leakage_by) == (1.0, "intersection")
    assert (lifted.recovered_01, lifted.recovered_by) == (1.0, "intersection")
    assert lifted.figures["leakage, oracle"] == 1.1
    assert lifted.figures["leakage, one release"] == 0.85
    assert lifted.figures["within 0.1, matches"] == 0.97
    assert lifted.figures["registered, room"] == 7


def test_with_a_device_key_a_second_release_does_not_count():
    lifted = locate(MEASURED, keyed=True)[1]
    assert (lifted.leakage, lifted.leakage_by) == (0.85, "direct, unet")
    assert (lifted.recovered_01, lifted.recovered_by) == (0.97, "tracks")
    assert lifted.figures["leakage, two releases"] == 1.0


def test_recipes_are_joined_by_what_they_are_and_both_spaces_count():
    point = locate(MEASURED)[2]
    assert (point.leakage, point.leakage_by) == (0.3, "decoder")
    assert (point.recovered_01, point.recovered_by) == (0.1, "density then decoder")
    assert point.figures["within 0.1, clear space"] == 0.02
    assert point.figures["within 0.1, lifted space"] == 0.1


def test_missing_attackers_look_missing():
    points = locate(MEASURED)
    assert points[2].missing == ("inverter of it",)
    assert not points[2].trained
    assert not points[2].is_private
    assert verdict(points[2]) == "no", "it fails already by those at hand"
    assert verdict(replace(points[2], recovered_01=0.0, leakage=0.05)) == "not known"
    assert verdict(replace(points[2], recovered_01=0.0, leakage=0.05, trained=True, missing=())) == "privacy"
    networks = locate(replace(MEASURED, missing={"sub-hybrid-2": ["public descriptors other than the decoys"]}))[1]
    assert networks.trained
    assert networks.missing
    nobody = locate(FrontierRecords(pairs=MEASURED.pairs))[1]
    assert nobody.missing == ("all that paint", "all that recover")
    assert not nobody.trained
    table = frontier_table(points)
    row = dict(zip(table.columns, (cell.value for cell in table.rows[2]), strict=True))
    assert (row["missing attackers"], row["reaches the aims"]) == ("inverter of it", "no")
    assert len(frontier_table(points, short=True).columns) == 10


def test_shares_need_raw():
    with pytest.raises(InputError, match="shares"):
        locate(FrontierRecords(pairs=MEASURED.pairs[1:]))


def test_the_floor_is_no_attack():
    names = [one.attack.title for one in attacks_on("sub-hybrid-2", MEASURED)]
    assert names == ["vertex", "oracle", "intersection", "direct, unet", "tracks"]
