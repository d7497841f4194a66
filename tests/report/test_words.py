# SPDX-License-Identifier: Apache-2.0
"""Verdicts follow the figures, and none of them says safe."""

import pytest

from sfumato.report.words import (
    ATTACK_WORDS,
    ENOUGH_CODES,
    FAILED,
    LEVELS,
    NONE,
    NOT_TESTED,
    NOTHING_RAN,
    OPEN,
    OUTLINES,
    REMAINS,
    attack_words,
    few_codes_words,
    leak_words,
    level_of,
    percent,
    reference_words,
    remains_words,
    sealed_words,
    untested_words,
)


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
        + [*ATTACK_WORDS.values(), *NOT_TESTED]
    )
    assert not {"safe", "secure", "anonymous", "private"} & set(words.lower().replace(".", " ").split())


def test_what_was_not_tried_is_told():
    assert "no network trained" in untested_words({"vertex"})
    assert "decoder" in untested_words({"direct", "vertex"})
    assert "inverter" in untested_words({"decoder"})
    assert untested_words({"decoder", "direct"}) == ""


def test_of_sealed_features_the_gap_and_what_a_key_is_worth_are_told():
    told = sealed_words({"alignment", "known-pairs"}, 0.48)
    assert "(known-pairs) got 48 %; key-recovery" in told
    assert "The key comes out of a thousand or two of known features" in told
    assert "a network over all codes of a photo" in told
    assert "No inverter trained on what alignment gives was run here" in told
    assert "No inverter" not in sealed_words({"alignment", "alignment, inverter trained on it"}, 0.48)
    assert "got no more than keypoints show; key-recovery" in sealed_words({"alignment"}, -0.1)
    assert "clear features" not in told
    assert "Nor was an alignment" not in told
    assert "was not measured" in sealed_words(set(), None)
    assert "Nor was an alignment of all sealed features run" in sealed_words(set(), None)
    assert "1,234 codes" in few_codes_words(1234)


def test_enough_is_what_the_reference_has():
    assert 1000 < ENOUGH_CODES <= 16_251, "more than the reference was measured with"
    assert "fewer than 16,000, as many as the reference has" in few_codes_words(1234)


def test_a_failed_attack_is_no_measured_figure():
    failed = "no more than keypoints show"
    assert [leak_words(one) for one in (-0.09, 0.0, 0.004, 0.5)] == [failed, failed, "0.4 %", "50 %"]
    assert [percent(value) for value in (0.9951, 0.0, 1.04)] == ["100 %", "0 %", "104 %"]


def test_every_attack_has_words():
    from sfumato.auditing.attack_task import VARIANTS

    pairs_only = {"reveal", "tracks", "replay"}  # the audit has no matches, maps or seeds
    assert set(VARIANTS) - pairs_only <= set(ATTACK_WORDS)


def test_stages_and_networks_are_told():
    assert attack_words("direct, unet").endswith("(unet)")
    assert "nothing to undo the encoder" in attack_words("density+decoys then nothing")
    assert attack_words("a new one") == "an attack that this page has no words for"
    assert attack_words("told-alignment, inverter trained on it").endswith(
        "counted, as a bound; painted by an inverter trained on such readings"
    )


def test_what_keypoints_show_is_told_for_what_it_is():
    assert "without any descriptor: what no recipe hides" in attack_words("keypoints")
    assert "zero of the scale" in attack_words("floor")
    assert "positions only" in REMAINS
    assert "sizes and angles" in REMAINS
    assert "not the least that can be seen" in REMAINS
    assert "come from keypoints" in FAILED
    assert remains_words(0.17).endswith("alone shows 17 % here, and no recipe is said to leak less.")
    assert remains_words(None) == remains_words(-0.1)
    assert remains_words(None).endswith("An inverter made for keypoints alone sees more.")
    assert leak_words(0.17, 0.17) == leak_words(0.0, -0.1) == "no more than keypoints show"
    assert leak_words(0.18, 0.17) == "18 %"


def test_the_size_of_the_reference_is_told_as_far_as_it_is_known():
    assert "with 20 photos (16,251 codes) under one key: 5 %" in reference_words(0.05, "alignment", 20, 16251)
    assert "with many photos under one key: no more than keypoints" in reference_words(-0.1, "alignment", 0, 0)


def test_no_words_point_out_of_a_page_that_stands_alone():
    words = [*ATTACK_WORDS.values(), *NOT_TESTED, REMAINS, sealed_words(set(), None), attack_words("a new one")]
    assert not [one for one in words if "docs/" in one]
