# SPDX-License-Identifier: Apache-2.0
"""Verdicts follow the figures, and none of them says safe."""

import pytest

from sfumato.attacks.registry import AttackId, attack_ids
from sfumato.report.words import (
    FAILED,
    LEVELS,
    NONE,
    NOT_TESTED,
    NOTHING_RAN,
    OPEN,
    OUTLINES,
    REMAINS,
    SEALED,
    UNREAD,
    codes_words,
    leak_words,
    level_of,
    percent,
    reference_words,
    remains_words,
    sealed_words,
    untested_words,
)
from sfumato.types.record import ENOUGH_CODES, AttackRole

ABOUT = [one.facts.about for one in attack_ids().values()]


@pytest.mark.parametrize(
    ("leakage", "recovered", "word"),
    [
        (0.3, 0.0099, "strong"), (0.31, 0.0, "better"), (0.1, 0.01, "better"), (0.5, 0.09, "better"),
        (0.2, 0.1, "weak"), (0.8, 0.0, "weak"), (0.81, 0.0, "broken"), (0.0, 0.5, "broken"), (1.2, 1.0, "broken"),
        (-0.1, None, "strong"),
    ],
)  # fmt: skip
def test_the_worse_of_two_figures_decides(leakage, recovered, word):
    assert level_of(leakage, recovered, trained=True).word == word


def test_nothing_untrained_is_called_strong():
    assert level_of(0.0, 0.0, trained=False) is OPEN
    assert level_of(None, None, trained=True) is OPEN
    assert level_of(0.9, 0.0, trained=False).word == "broken"


def test_no_word_promises_safety():
    words = " ".join(
        [one.word + one.says for one in (*LEVELS, NONE, OPEN)]
        + [FAILED, NOTHING_RAN, OUTLINES, REMAINS]
        + [*ABOUT, *NOT_TESTED]
    )
    assert not {"safe", "secure", "anonymous", "private"} & set(words.lower().replace(".", " ").split())


def test_what_was_not_tried_is_told():
    assert "no network" in untested_words({AttackRole.ORDINARY})
    assert "decoder" in untested_words({AttackRole.INVERTER, AttackRole.ORDINARY})
    assert "inverter" in untested_words({AttackRole.DECODER})
    assert untested_words({AttackRole.DECODER, AttackRole.INVERTER}) == ""


def test_of_sealed_features_the_gap_and_what_a_key_is_worth_are_told():
    words = sealed_words(0.48, is_read=False, is_aligned=True)
    assert "(known-pairs) got 48 %; key-recovery" in words
    assert "1,000 to 2,000 known features" in words
    assert SEALED in words
    assert UNREAD in words
    assert UNREAD not in sealed_words(0.48, is_read=True, is_aligned=True)
    assert "got no more than keypoints show; key-recovery" in sealed_words(-0.1, is_read=False, is_aligned=True)
    assert "No alignment" not in words
    nothing = sealed_words(None, is_read=False, is_aligned=False)
    assert "was not measured" in nothing
    assert "No alignment" in nothing
    assert "1,234 codes" in codes_words(1234)


def test_enough_is_what_the_reference_has():
    assert 1000 < ENOUGH_CODES <= 16_251, "more than the reference was measured with"
    assert "fewer than 16,000" in codes_words(1234)


def test_a_failed_attack_is_no_measured_figure():
    failed = "no more than keypoints show"
    assert [leak_words(one) for one in (-0.09, 0.0, 0.004, 0.5)] == [failed, failed, "0.4 %", "50 %"]
    assert [percent(value) for value in (0.9951, 0.0, 1.04)] == ["100 %", "0 %", "104 %"]


def test_every_attack_has_words():
    assert all(ABOUT)
    assert "does not know" in AttackId("a new one").facts.about


def test_stages_and_networks_are_told():
    assert AttackId("direct", inverter="unet").facts.about.endswith("(inverter: unet)")
    assert "undo the encoder" in AttackId("density", with_decoys=True, then="nothing").facts.about
    painted = AttackId.of({"attack": "told-alignment, inverter trained on it"})
    assert painted == AttackId("told-alignment", inverter="inverter trained on it")
    assert painted.facts.about.endswith("painted by an inverter trained on such readings")


def test_what_keypoints_show_is_told_for_what_it_is():
    assert "what no recipe hides" in AttackId("keypoints").facts.about
    assert "zero of the scale" in AttackId("floor").facts.about
    assert "positions only" in REMAINS
    assert "sizes and angles" in REMAINS
    assert "not the least that can be seen" in REMAINS
    assert "come from keypoints" in FAILED
    assert "shows 17 % here" in remains_words(0.17)
    assert remains_words(None) == remains_words(-0.1)
    assert remains_words(None).endswith("sees more.")
    assert leak_words(0.17, 0.17) == leak_words(0.0, -0.1) == "no more than keypoints show"
    assert leak_words(0.18, 0.17) == "18 %"


def test_the_size_of_the_reference_is_told_as_far_as_it_is_known():
    assert "with 20 photos (16,251 codes) under one key: 5 %" in reference_words(0.05, "alignment", 20, 16251)
    assert "with many photos under one key: no more than keypoints" in reference_words(-0.1, "alignment", 0, 0)


def test_no_words_point_out_of_a_page_that_stands_alone():
    words = [*ABOUT, *NOT_TESTED, REMAINS, sealed_words(None, is_read=False, is_aligned=False)]
    assert not [one for one in words if "docs/" in one]
