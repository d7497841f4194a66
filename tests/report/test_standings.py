# SPDX-License-Identifier: Apache-2.0
"""Where recipes stand: the worst attack counts, oracles do not, matching is of raw's."""

from dataclasses import replace

import pytest

from sfumato.errors import InputError
from sfumato.report.standings import standings_of


def test_those_that_leak_most_come_first_after_raw(records):
    assert [one.name for one in standings_of(records)] == ["raw", "sub-hybrid-2", "ninja-mine"]


def test_the_worst_attack_counts_and_an_oracle_does_not(records):
    _, lifted, default = standings_of(records)
    assert (lifted.leakage, default.leakage, default.recovered()) == (1.0, 0.6, 0.0)
    assert default.worst is not None
    assert default.worst.name == "direct"
    assert [one.counts for one in default.attacks] == [True, True, False]
    assert (default.level.word, lifted.level.word, default.is_default) == ("weak", "broken", True)


def test_of_equal_attacks_the_one_that_needs_least_is_named(records):
    _, lifted, default = standings_of(records)
    assert lifted.worst is not None
    assert lifted.knowing_less is not None
    assert (lifted.worst.name, lifted.knowing_less.name) == ("vertex+decoys", "vertex")
    assert default.knowing_less is None


def test_raw_protects_nothing_and_has_its_two_pictures(records):
    raw = standings_of(records)[0]
    assert (raw.level.word, raw.leakage, raw.recovered(), raw.untested) == ("no protection", 1.0, 1.0, "")
    assert [one.name for one in raw.attacks] == ["clear", "floor"]


def test_matching_is_of_raw_and_with_both_sides_concealed(records):
    _, lifted, default = standings_of(records)
    assert lifted.matching["correct 3 px / raw"] == pytest.approx(60 / 80)
    assert default.matching["accuracy 3 px / raw"] == pytest.approx(76 / 80)


def test_seeds_are_averaged_and_other_inverters_named(make_attack):
    first, second = make_attack("random-2", "direct", 0.1), make_attack("random-2", "direct", 0.3)
    other = make_attack("random-2", "direct", 0.1, inverter="unet")
    (standing,) = standings_of([first, second, other])
    assert {one.name: one.leakage for one in standing.attacks} == {
        "direct": pytest.approx(0.2),
        "direct, unet": pytest.approx(0.1),
    }
    assert standing.level.word == "strong"
    assert standing.matching == {}


def test_without_a_trained_network_little_leakage_is_no_evidence(make_attack):
    (standing,) = standings_of([make_attack("random-2", "vertex", 0.1, 0.0)])
    assert standing.level.word == "open"
    assert "no network trained" in standing.untested


def test_what_can_not_be_joined_is_refused(make_attack, records):
    with pytest.raises(InputError, match="no record"):
        standings_of([])
    with pytest.raises(InputError, match="no record"):
        standings_of(records[:1])
    with pytest.raises(InputError, match="rootsift and sift are mixed"):
        standings_of([*records, make_attack("raw", "clear", 1.0, descriptor="rootsift")])


def test_the_sentence_is_about_what_decided(make_attack):
    (by_picture,) = standings_of([make_attack("random-2", "direct", 0.9, 0.0)])
    (by_recovery,) = standings_of([make_attack("random-2", "direct", 0.2, 0.9)])
    assert by_picture.level is by_recovery.level
    assert "nearly the same picture" in by_picture.says
    assert "Descriptors themselves" in by_recovery.says


def test_records_of_other_photos_or_settings_are_not_averaged(make_attack):
    first = make_attack("random-2", "vertex", 0.1)
    assert standings_of([first, replace(first, seed=1)])
    with pytest.raises(InputError, match="different photos or settings"):
        standings_of([first, replace(first, data="others")])
    with pytest.raises(InputError, match="different photos or settings"):
        standings_of([first, make_attack("random-2", "vertex", 0.1, max_features=9)])


def test_a_recipe_without_any_attack_is_open(make_match):
    raw, other = standings_of([make_match("raw", 50.0, "p-to-p"), make_match("random-2", 40.0)])
    assert (other.level.word, other.worst, other.knowing_less, other.recovered()) == ("open", None, None, None)
    assert "Nothing was measured" in other.says
    assert "little" not in other.says
    assert raw.matching["correct 3 px / raw"] == 1.0


SEALED = "sealed-512@330fa2794d6c"


def test_sealed_features_of_few_photos_are_open(make_attack):
    (few,) = standings_of([make_attack(SEALED, "alignment", -0.09, 0.0, features=1000.0)])
    assert (few.level.word, few.leakage, few.codes) == ("open", -0.09, 3000)
    assert few.says.startswith("No attack at hand got anything")
    assert "3,000 codes of one key" in few.says
    (little,) = standings_of([make_attack(SEALED, "alignment", 0.1, 0.0, features=1000.0)])
    assert little.level.word == "open"
    assert "3,000 codes of one key" in little.says
    (many,) = standings_of([make_attack(SEALED, "alignment", 0.1, 0.0, features=7000.0)])
    assert many.level.word == "strong"
    (much,) = standings_of([make_attack(SEALED, "alignment", 0.6, 0.0, features=1000.0)])
    assert much.level.word == "weak"


def test_the_larger_of_this_run_and_the_reference_decides(make_attack, make_reference):
    failed = make_attack(SEALED, "alignment", -0.09, 0.0, features=1000.0)
    (low,) = standings_of([failed, make_reference(SEALED, 0.2)])
    assert (low.level.word, low.leakage, low.leakage_here, low.rests_on_reference) == ("strong", 0.2, -0.09, True)
    assert low.rests_on == (
        "The verdict rests on 20 %, measured by the authors with 200 photos under one key; "
        "your 3 photos alone gave nothing."
    )
    (high,) = standings_of([failed, make_reference(SEALED, 0.4)])
    assert high.level.word == "better"
    (own,) = standings_of([make_attack(SEALED, "alignment", 0.35, 0.0), make_reference(SEALED, 0.2)])
    assert (own.level.word, own.leakage, own.rests_on_reference) == ("better", 0.35, False)
    assert "rests on this audit: your 3 photos alone gave 35 %; 20 % was measured by the authors" in own.rests_on
    (back,) = standings_of([failed, make_reference(SEALED, 0.2, within=0.2)])
    assert back.level.word == "weak"
    assert "Descriptors themselves" in back.says
    (other,) = standings_of([failed, make_reference("sealed-256@9d79006d0b69", 0.2)])
    assert other.reference is None


def test_a_reference_decides_alone_where_nothing_ran(make_match, make_reference):
    _, sealed = standings_of([make_match("raw", 50.0, "p-to-p"), make_match(SEALED, 40.0), make_reference(SEALED, 0.2)])
    assert (sealed.level.word, sealed.leakage_here) == ("strong", None)
    assert "your photos were too few to measure anything" in sealed.rests_on


def test_failed_attacks_are_called_so_whatever_the_recipe(make_attack):
    (trained,) = standings_of([make_attack("random-2", "direct", -0.1, 0.0)])
    (untrained,) = standings_of([make_attack("random-2", "vertex", -0.1, 0.0)])
    assert (trained.level.word, untrained.level.word) == ("strong", "open")
    assert all("No attack at hand got anything" in one.says for one in (trained, untrained))
    assert "None of them was trained" in untrained.says


def test_sealed_recipes_tell_what_a_key_was_worth_here(make_attack):
    records = [make_attack(SEALED, "alignment", 0.1), make_attack(SEALED, "known-pairs", 0.48)]
    (sealed,) = standings_of(records)
    assert "got 48 % of the picture" in sealed.untested
