# SPDX-License-Identifier: Apache-2.0
"""Verdicts follow the figures, and none of them says safe."""

import pytest

from sfumato.attacks.registry import AttackId, attack_ids
from sfumato.report.words import (
    LEVELS,
    LIMIT,
    NONE,
    NOT_TESTED,
    NOTHING_RAN,
    OPEN,
    RECOVERED,
    SEALED,
    SEALED_UNTESTED,
    UNTRAINED,
    codes_words,
    level_of,
    percent,
    reference_words,
    untested_words,
)
from sfumato.types.record import ENOUGH_CODES, AttackRole

ABOUT = [one.facts.about for one in attack_ids().values()]
FIRST = [*(one.says for one in (*LEVELS, NONE, OPEN)), NOTHING_RAN, RECOVERED, UNTRAINED, LIMIT, codes_words(1234)]
"""What is read before anything is unfolded."""
WORDS = [*FIRST, *ABOUT, *NOT_TESTED, SEALED, SEALED_UNTESTED, reference_words(0.1, 3)]


@pytest.mark.parametrize(
    ("leakage", "recovered", "word"),
    [
        (0.1, 0.0099, "strong"), (0.11, 0.0, "outlines"), (0.05, 0.01, "outlines"), (0.3, 0.09, "outlines"),
        (0.05, 0.1, "weak"), (0.6, 0.0, "weak"), (0.61, 0.0, "broken"), (0.0, 0.5, "broken"), (1.2, 1.0, "broken"),
        (-0.1, None, "strong"),
    ],
)  # fmt: skip
def test_the_worse_of_two_figures_decides(leakage, recovered, word):
    assert level_of(leakage, recovered, enough=True).word == word


def test_outlines_that_can_be_painted_are_not_strong():
    assert level_of(0.0, 0.0, enough=True, outlines=0.2).word == "strong"
    assert level_of(0.0, 0.0, enough=True, outlines=0.5).word == "outlines"
    assert level_of(0.5, 0.0, enough=True, outlines=0.5).word == "weak"


def test_without_evidence_nothing_is_called_strong():
    assert level_of(0.0, 0.0, enough=False) is OPEN
    assert level_of(None, None, enough=True) is OPEN
    assert level_of(0.9, 0.0, enough=False).word == "broken"


def test_where_a_subject_may_be_recognised_the_word_says_so():
    recognised = [one.word for one in LEVELS if "recognised" in one.says]
    assert recognised == ["outlines"]
    assert "vague" in LEVELS[0].says


def test_no_word_promises_safety():
    levels = [one.word for one in (*LEVELS, NONE, OPEN)]
    words = " ".join([*levels, *WORDS]).lower().replace(".", " ").split()
    assert not {"safe", "secure", "anonymous", "private"} & set(words)


def test_what_is_read_first_is_short_and_plain():
    jargon = ("keypoint", "descriptor", "inverter", "oracle", "alignment", "codes", "leak")
    assert not [one for one in FIRST for word in jargon if word in one]
    assert max(len(one.split()) for one in FIRST) <= 26


def test_what_was_not_tried_is_told():
    assert untested_words({AttackRole.ORDINARY}) == "An inverter and a decoder trained on this very recipe."
    assert "decoder" in untested_words({AttackRole.INVERTER, AttackRole.ORDINARY})
    assert "decoder" not in untested_words({AttackRole.DECODER})
    assert untested_words({AttackRole.DECODER, AttackRole.INVERTER}) == ""


def test_the_limit_of_a_key_is_one_sentence_and_the_reason_stands_apart():
    assert LIMIT.count(".") == 1
    assert "a key for each place" in LIMIT
    assert "1,000 to 2,000" in SEALED


def test_enough_is_what_the_reference_has():
    assert 1000 < ENOUGH_CODES <= 16_251, "more than the reference was measured with"
    assert {"1,234", "16,000:"} <= set(codes_words(1234).split())


def test_shares_for_people():
    assert [percent(value) for value in (0.9951, 0.0, 1.04, -0.09, 0.004)] == ["100 %", "0 %", "104 %", "0 %", "0.4 %"]


def test_every_attack_has_words():
    assert all(ABOUT)
    assert "does not know" in AttackId("a new one").facts.about


def test_the_size_of_the_reference_is_told_as_far_as_it_is_known():
    assert "With 20 photos" in reference_words(0.05, 20)
    assert "With many photos" in reference_words(-0.1, 0)
    assert "saw 0 %" in reference_words(-0.1, 0)


def test_no_words_point_out_of_a_page_that_stands_alone():
    assert not [one for one in WORDS if "docs/" in one]
