# SPDX-License-Identifier: Apache-2.0
"""Where recipes stand: the worst attack counts, oracles do not, matching is of raw's."""

from dataclasses import replace

import pytest

from sfumato.attacks.registry import ATTACKS
from sfumato.errors import InputError
from sfumato.report.verdict import verdicts_of
from sfumato.report.words import FAILED, LEVELS, NOTHING_RAN, RECOVERED, UNREAD


def test_the_default_comes_first_then_the_least_leaking_and_raw_last(records, make_attack):
    others = [make_attack("random-2", "direct", 0.7), make_attack("random-4", "direct", 0.2)]
    found = [one.name for one in verdicts_of([*records, *others])]
    assert found == ["ninja-mine", "random-4", "random-2", "sub-hybrid-2", "raw"]


def test_the_worst_attack_counts_and_an_oracle_does_not(records):
    default, lifted, _ = verdicts_of(records)
    assert (lifted.leakage, default.leakage, default.recovered()) == (1.0, 0.6, 0.0)
    assert default.worst is not None
    assert default.worst.name == "direct"
    assert [one.counts for one in default.attacks] == [True, True, False]
    assert (default.level.word, lifted.level.word, default.is_default) == ("weak", "broken", True)


def test_of_equal_attacks_the_one_that_needs_least_is_named(records):
    default, lifted, _ = verdicts_of(records)
    assert lifted.worst is not None
    assert lifted.knowing_less is not None
    assert (lifted.worst.name, lifted.knowing_less.name) == ("vertex+decoys", "vertex")
    assert default.knowing_less is None


def test_raw_protects_nothing_and_has_its_two_pictures(records):
    raw = verdicts_of(records)[-1]
    assert (raw.level.word, raw.leakage, raw.recovered(), raw.untested) == ("no protection", 1.0, 1.0, "")
    assert [one.name for one in raw.attacks] == ["clear", "floor"]


def test_matching_is_of_raw_and_with_both_sides_concealed(records):
    default, lifted, _ = verdicts_of(records)
    assert lifted.matching["correct 3 px / raw"] == pytest.approx(60 / 80)
    assert default.matching["accuracy 3 px / raw"] == pytest.approx(76 / 80)


def test_seeds_are_averaged_and_other_inverters_named(make_attack):
    first, second = make_attack("random-2", "direct", 0.1), make_attack("random-2", "direct", 0.3)
    other = make_attack("random-2", "direct", 0.1, inverter="unet")
    (standing,) = verdicts_of([first, second, other])
    assert {one.name: one.leakage for one in standing.attacks} == {
        "direct": pytest.approx(0.2),
        "direct, unet": pytest.approx(0.1),
    }
    assert standing.level.word == "strong"
    assert standing.matching == {}


def test_without_a_trained_network_little_leakage_is_no_evidence(make_attack):
    (standing,) = verdicts_of([make_attack("random-2", "vertex", 0.1, 0.0)])
    assert standing.level.word == "open"
    assert "no network" in standing.untested


def test_what_can_not_be_joined_is_refused(make_attack, records):
    with pytest.raises(InputError, match="no record"):
        verdicts_of([])
    with pytest.raises(InputError, match="no record"):
        verdicts_of(records[:1])
    with pytest.raises(InputError, match="mixed"):
        verdicts_of([*records, make_attack("raw", "clear", 1.0, descriptor="rootsift")])


def test_the_sentence_is_about_what_decided(make_attack):
    (by_picture,) = verdicts_of([make_attack("random-2", "direct", 0.9, 0.0)])
    (by_recovery,) = verdicts_of([make_attack("random-2", "direct", 0.2, 0.9)])
    assert by_picture.level is by_recovery.level
    assert by_picture.says == LEVELS[-1].says
    assert by_recovery.says == RECOVERED


def test_records_of_other_photos_or_settings_are_not_averaged(make_attack):
    first = make_attack("random-2", "vertex", 0.1)
    assert verdicts_of([first, replace(first, seed=1)])
    with pytest.raises(InputError, match="settings"):
        verdicts_of([first, replace(first, data="others")])
    with pytest.raises(InputError, match="settings"):
        verdicts_of([first, make_attack("random-2", "vertex", 0.1, max_features=9)])


def test_a_recipe_without_any_attack_is_open(make_match):
    other, raw = verdicts_of([make_match("raw", 50.0, "p-to-p"), make_match("random-2", 40.0)])
    assert (other.level.word, other.worst, other.knowing_less, other.recovered()) == ("open", None, None, None)
    assert other.says == NOTHING_RAN
    assert "little" not in other.says
    assert raw.matching["correct 3 px / raw"] == 1.0


SEALED = "sealed-512@330fa2794d6c"
READER = "inverter trained on it"


def test_sealed_features_of_few_photos_are_open(make_attack):
    (few,) = verdicts_of([make_attack(SEALED, "alignment", -0.09, 0.0, features=1000.0)])
    assert (few.level.word, few.leakage, few.codes) == ("open", -0.09, 3000)
    assert few.says.startswith(FAILED)
    assert "3,000 codes of one key" in few.says
    (little,) = verdicts_of([make_attack(SEALED, "alignment", 0.1, 0.0, features=1000.0)])
    assert little.level.word == "open"
    assert "3,000 codes of one key" in little.says
    much_of = [make_attack(SEALED, "alignment", 0.1, 0.0, features=5417.0)]
    (many,) = verdicts_of([*much_of, make_attack(SEALED, "alignment", 0.2, 0.0, inverter=READER)])
    assert (many.codes, many.level.word) == (16_251, "strong"), "as many as the reference has"
    (unread,) = verdicts_of(much_of)
    assert unread.level.word == "open", "no network was trained on it"
    assert UNREAD in unread.says
    (much,) = verdicts_of([make_attack(SEALED, "alignment", 0.6, 0.0, features=1000.0)])
    assert much.level.word == "weak"


def test_the_larger_of_this_run_and_the_reference_decides(make_attack, make_reference):
    failed = make_attack(SEALED, "alignment", -0.09, 0.0, features=1000.0)
    (low,) = verdicts_of([failed, make_reference(SEALED, 0.2)])
    assert (low.level.word, low.leakage, low.leakage_here, low.reference_is_larger) == ("strong", 0.2, -0.09, True)
    assert low.rests_on == (
        "The verdict rests on what the authors measured with 200 photos under one key: 20 %, by alignment. "
        "Your 3 photos alone gave no more than keypoints show."
    )
    (high,) = verdicts_of([failed, make_reference(SEALED, 0.4)])
    assert high.level.word == "better"
    (own,) = verdicts_of([make_attack(SEALED, "alignment", 0.35, 0.0), make_reference(SEALED, 0.2)])
    assert (own.level.word, own.leakage, own.reference_is_larger) == ("better", 0.35, False)
    assert "rests on this audit: your 3 photos alone gave 35 %, by alignment. For comparison: what" in own.rests_on
    (back,) = verdicts_of([failed, make_reference(SEALED, 0.2, within=0.2)])
    assert back.level.word == "weak"
    assert back.says == RECOVERED
    (other,) = verdicts_of([failed, make_reference("sealed-256@9d79006d0b69", 0.2)])
    assert other.reference is None


@pytest.mark.parametrize("there", [0.2, 0.4])
def test_where_nothing_ran_it_is_open_whatever_the_authors_measured(make_match, make_attack, make_reference, there):
    matched = [make_match("raw", 50.0, "p-to-p"), make_match(SEALED, 40.0)]
    uncounted = make_attack(SEALED, "known-pairs", 0.5, 0.3)
    sealed, _ = verdicts_of([*matched, uncounted, make_reference(SEALED, there)])
    assert (sealed.level.word, sealed.leakage, sealed.leakage_here, sealed.recovered()) == ("open", None, None, None)
    assert sealed.says == NOTHING_RAN
    assert sealed.rests_on == (
        f"For comparison: what the authors measured with 200 photos under one key: {there:.0%}, by alignment."
    ).replace("%", " %")


def test_the_codes_of_the_reference_are_told_where_it_has_them(make_attack, make_reference):
    failed = make_attack(SEALED, "alignment", -0.09, 0.0)
    (sealed,) = verdicts_of([failed, make_reference(SEALED, 0.2, photos=20, features=812.55)])
    assert "with 20 photos (16,251 codes) under one key: 20 %" in sealed.rests_on


def test_what_the_attacker_of_the_reference_knew_is_told(make_attack, make_reference):
    there = make_reference(SEALED, 0.3, attack="told-alignment, inverter trained on it")
    (same,) = verdicts_of([make_attack(SEALED, "told-alignment", 0.1, knows="public, told"), there])
    assert same.reference_knows == "public, told"
    (other,) = verdicts_of([make_attack(SEALED, "alignment", 0.1, knows="public, pool"), there])
    assert other.reference_knows.startswith(ATTACKS["told-alignment"].about)


def test_no_recipe_leaks_less_than_keypoints_show(make_attack, make_reference):
    bare = make_attack("raw", "keypoints", 0.17)
    attacks = [make_attack("random-2", "direct", 0.1), make_attack("random-4", "direct", 0.4)]
    less, more, _ = verdicts_of([bare, *attacks])
    assert (less.leakage, less.leakage_here, less.is_of_keypoints) == (0.17, 0.1, True)
    assert less.worst is not None
    assert less.worst.name == "direct"
    assert less.says.startswith(FAILED)
    assert less.rests_on == "The verdict rests on what keypoints alone show here, 17 %."
    assert (more.leakage, more.is_of_keypoints, more.rests_on) == (0.4, False, "")
    high, _ = verdicts_of([make_attack("raw", "keypoints", 0.35), attacks[0]])
    assert high.level.word == "better", "what no recipe hides is no less seen under this one"


def test_keypoints_are_held_against_the_reference_and_are_no_attack_on_a_recipe(
    make_attack, make_match, make_reference
):
    bare, failed = make_attack("raw", "keypoints", 0.17), make_attack(SEALED, "alignment", 0.05, 0.0)
    low, _ = verdicts_of([bare, failed, make_reference(SEALED, 0.12)])
    assert (low.leakage, low.reference_is_larger, low.is_of_keypoints) == (0.17, False, True)
    assert low.rests_on.startswith(
        "The verdict rests on what keypoints alone show here, 17 %. For comparison: what the"
    )
    high, _ = verdicts_of([bare, failed, make_reference(SEALED, 0.25)])
    assert (high.leakage, high.reference_is_larger, high.is_of_keypoints) == (0.25, True, False)
    assert high.rests_on.endswith("Your 3 photos alone gave no more than keypoints show.")
    same, _ = verdicts_of([bare, failed, make_reference(SEALED, 0.25, attack="keypoints")])
    assert (same.leakage, same.is_of_keypoints) == (0.25, True), "the authors' keypoints, where they showed more"
    assert "under one key: 25 %, by keypoints. Your 3 photos alone" in same.rests_on
    nothing, _ = verdicts_of([bare, make_attack(SEALED, "keypoints", 0.17), make_match(SEALED, 40.0)])
    assert (nothing.level.word, nothing.leakage) == ("open", None)


def test_failed_attacks_are_called_so_whatever_the_recipe(make_attack):
    (trained,) = verdicts_of([make_attack("random-2", "direct", -0.1, 0.0)])
    (untrained,) = verdicts_of([make_attack("random-2", "vertex", -0.1, 0.0)])
    assert (trained.level.word, untrained.level.word) == ("strong", "open")
    assert all(one.says.startswith(FAILED) for one in (trained, untrained))
    assert "None of them was trained" in untrained.says


def test_sealed_recipes_tell_what_a_key_was_worth_here(make_attack):
    records = [make_attack(SEALED, "alignment", 0.1), make_attack(SEALED, "known-pairs", 0.1)]
    (sealed,) = verdicts_of([*records, make_attack(SEALED, "known-pairs", 0.48, inverter=READER)])
    assert "got 48 %; key-recovery" in sealed.untested
    assert UNREAD not in sealed.untested
    (unread,) = verdicts_of(records)
    assert UNREAD in unread.untested
