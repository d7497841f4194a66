# SPDX-License-Identifier: Apache-2.0
"""Where recipes stand: the worst attack counts, oracles do not, matching is of raw's."""

from dataclasses import replace

import pytest

from sfumato.attacks.registry import TRAINED_INVERTER
from sfumato.errors import InputError
from sfumato.report.verdict import verdicts_of
from sfumato.report.words import LEVELS, NOTHING_RAN, RECOVERED, SEALED_UNTESTED, UNTRAINED, codes_words
from sfumato.types.record import Score


def test_the_default_comes_first_then_the_least_leaking_and_raw_last(records, make_attack):
    others = [make_attack("random-2", "direct", 0.7), make_attack("random-4", "direct", 0.2)]
    names = [one.name for one in verdicts_of([*records, *others])]
    assert names == ["ninja-mine", "random-4", "random-2", "sub-hybrid-2", "raw"]


def test_the_worst_attack_counts_and_an_oracle_does_not(records):
    default, lifted, _ = verdicts_of(records)
    assert (lifted.leakage, default.leakage, default.recovered()) == (1.0, 0.6, 0.0)
    assert default.worst is not None
    assert default.worst.name == "direct"
    assert [one.name for one in default.counted] == ["direct", "nearest"]
    assert [one.name for one in default.uncounted] == ["oracle"]
    assert (default.level.word, lifted.level.word, default.is_default) == ("weak", "broken", True)


def test_of_equal_attacks_the_one_that_needs_least_is_the_worst(records):
    _, lifted, _ = verdicts_of(records)
    assert lifted.worst is not None
    assert lifted.worst.name == "vertex+decoys", "a second release of the same photo is rarer than the decoys"


def test_raw_protects_nothing_and_has_its_two_pictures(records):
    raw = verdicts_of(records)[-1]
    assert (raw.level.word, raw.leakage, raw.recovered(), raw.untested) == ("no protection", 1.0, 1.0, "")
    assert raw.worst is not None
    assert [raw.worst.name, *(one.name for one in raw.counted)] == ["clear", "clear", "floor"]


def test_matching_is_of_raw_and_with_both_sides_concealed(records):
    default, lifted, _ = verdicts_of(records)
    assert lifted.matching["correct 3 px / raw"] == pytest.approx(60 / 80)
    assert default.matching["accuracy 3 px / raw"] == pytest.approx(76 / 80)


def test_seeds_are_averaged_and_other_inverters_named(make_attack):
    first, second = make_attack("random-2", "direct", 0.05), make_attack("random-2", "direct", 0.15)
    other = make_attack("random-2", "direct", 0.05, inverter="unet")
    (verdict,) = verdicts_of([first, second, other])
    assert {one.name: one.leakage for one in verdict.attacks} == {
        "direct": pytest.approx(0.1),
        "direct, unet": pytest.approx(0.05),
    }
    assert (verdict.level.word, verdict.matching) == ("strong", {})


def test_outlines_decide_the_word_and_the_picture_where_the_photo_is_hidden(make_attack):
    hidden = make_attack("sealed-512", "alignment", 0.05, 0.0, features=9_000, inverter=TRAINED_INVERTER)
    sketch = make_attack("sealed-512", "outlines", 0.0)
    sketch = replace(sketch, scores=(Score("outlines", 0.5, samples=3),))
    (verdict,) = verdicts_of([hidden, sketch])
    assert (verdict.worst.attack.title, verdict.telling.name) == ("alignment, inverter trained on it", "outlines")
    assert (verdict.outlines, verdict.level.word, verdict.says) == (0.5, "outlines", LEVELS[1].says)
    (painted,) = verdicts_of([replace(hidden, scores=(Score("leakage", 0.7, samples=3),)), sketch])
    assert painted.telling is painted.worst


def test_without_a_trained_network_little_leakage_is_no_evidence(make_attack):
    (verdict,) = verdicts_of([make_attack("random-2", "vertex", 0.1, 0.0)])
    assert (verdict.level.word, verdict.says) == ("open", UNTRAINED)
    assert verdict.untested.startswith("An inverter and a decoder")
    (uncounted,) = verdicts_of([make_attack("random-2", "vertex", 0.1), make_attack("random-2", "oracle", 0.1)])
    assert uncounted.level.word == "open"


def test_what_can_not_be_joined_is_refused(make_attack, records):
    with pytest.raises(InputError, match="no record"):
        verdicts_of([])
    with pytest.raises(InputError, match="no record"):
        verdicts_of(records[:1])
    with pytest.raises(InputError, match="mixed"):
        verdicts_of([*records, make_attack("raw", "clear", 1.0, descriptor="rootsift")])


def test_the_sentence_is_about_what_decided(make_attack):
    (by_picture,) = verdicts_of([make_attack("random-2", "direct", 0.9, 0.0)])
    (by_recovery,) = verdicts_of([make_attack("random-2", "direct", 0.05, 0.9)])
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
    assert (other.level.word, other.worst, other.recovered(), other.says) == ("open", None, None, NOTHING_RAN)
    assert raw.matching["correct 3 px / raw"] == 1.0


SEALED = "sealed-512@330fa2794d6c"
TRAINED = "inverter trained on it"


def test_sealed_features_of_few_photos_are_open(make_attack):
    (few,) = verdicts_of([make_attack(SEALED, "alignment", -0.09, 0.0, features=1000.0)])
    assert (few.is_sealed, few.level.word, few.leakage, few.codes) == (True, "open", -0.09, 3000)
    assert few.says == codes_words(3000)
    enough = make_attack(SEALED, "alignment", 0.05, 0.0, features=5417.0)
    (many,) = verdicts_of([enough, make_attack(SEALED, "positions", 0.1, inverter=TRAINED)])
    assert (many.codes, many.level.word) == (16_251, "strong"), "as many as the reference has"
    (untrained,) = verdicts_of([enough, make_attack(SEALED, "positions", 0.1)])
    assert (untrained.level.word, untrained.says) == ("open", UNTRAINED)
    (much,) = verdicts_of([make_attack(SEALED, "alignment", 0.6, 0.0, features=1000.0)])
    assert much.level.word == "weak"


def test_where_features_lie_counts_for_each_recipe_by_itself(make_attack):
    attacks = [make_attack("random-2", "direct", 0.05), make_attack("random-2", "keypoints", 0.4)]
    shown, other = verdicts_of([make_attack(SEALED, "positions", 0.2), *attacks])
    assert (shown.name, shown.leakage, shown.level.word) == ("sealed-512", 0.2, "outlines")
    assert (other.leakage, other.level.word) == (0.4, "weak")
    assert other.worst is not None
    assert other.worst.name == "keypoints"


def test_the_larger_of_this_run_and_the_reference_decides(make_attack, make_reference):
    failed = make_attack(SEALED, "alignment", -0.09, 0.0, features=1000.0)
    (low,) = verdicts_of([failed, make_reference(SEALED, 0.08)])
    assert (low.level.word, low.leakage, low.leakage_here, low.reference_is_larger) == ("strong", 0.08, -0.09, True)
    assert "200 photos under one key the authors saw 8 %" in low.rests_on
    assert low.rests_on.endswith("The 3 photos here gave 0 %.")
    (high,) = verdicts_of([failed, make_reference(SEALED, 0.2)])
    assert high.level.word == "outlines"
    (own,) = verdicts_of([make_attack(SEALED, "alignment", 0.35, 0.0), make_reference(SEALED, 0.2)])
    assert (own.level.word, own.leakage, own.reference_is_larger) == ("weak", 0.35, False)
    assert own.rests_on.startswith("The verdict rests on the 3 photos here: 35 %.")
    (back,) = verdicts_of([failed, make_reference(SEALED, 0.05, within=0.2)])
    assert (back.level.word, back.says) == ("weak", RECOVERED)
    (other,) = verdicts_of([failed, make_reference("sealed-256@9d79006d0b69", 0.2)])
    assert (other.reference, other.rests_on) == (None, "")


@pytest.mark.parametrize("there", [0.08, 0.4])
def test_where_nothing_ran_it_is_open_whatever_the_authors_measured(make_match, make_attack, make_reference, there):
    matched = [make_match("raw", 50.0, "p-to-p"), make_match(SEALED, 40.0)]
    uncounted = make_attack(SEALED, "known-pairs", 0.5, 0.3)
    sealed, _ = verdicts_of([*matched, uncounted, make_reference(SEALED, there)])
    assert (sealed.level.word, sealed.leakage, sealed.leakage_here, sealed.recovered()) == ("open", None, None, None)
    assert sealed.says == NOTHING_RAN
    assert f"the authors saw {100 * there:.0f} %" in sealed.rests_on
    assert "rests on" not in sealed.rests_on


def test_of_sealed_recipes_what_was_not_tested_is_told(make_attack):
    (sealed,) = verdicts_of([make_attack(SEALED, "alignment", 0.1)])
    assert sealed.untested == SEALED_UNTESTED
