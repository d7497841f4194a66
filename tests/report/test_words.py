# SPDX-License-Identifier: Apache-2.0
"""Verdicts follow the figures, and none of them says safe."""

import pytest

from sfumato.report.words import (
    ATTACK_WORDS,
    FAILED,
    LEVELS,
    NONE,
    NOT_TESTED,
    NOTHING_RAN,
    OPEN,
    attack_words,
    few_codes_words,
    leak_words,
    level_of,
    percent,
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
        + [FAILED, NOTHING_RAN]
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
    assert "got 48 % of the picture; an inverter trained under the key would do more, and was not run" in told
    assert "a network over all codes of a photo" in told
    assert "inverter trained on what alignment gives" in told
    assert "clear features" not in told
    assert "Nor was an alignment" not in told
    assert "was not measured" in sealed_words(set(), None)
    assert "Nor was an alignment of all sealed features run" in sealed_words(set(), None)
    assert "1,234 codes" in few_codes_words(1234)


def test_a_failed_attack_is_no_measured_figure():
    assert [leak_words(one) for one in (-0.09, 0.0, 0.004, 0.5)] == ["nothing", "nothing", "0.4 %", "50 %"]
    assert [percent(value) for value in (0.9951, 0.0, 1.04)] == ["100 %", "0 %", "104 %"]


def test_every_attack_has_words():
    from sfumato.evaluate.intruder import VARIANTS

    pairs_only = {"reveal", "tracks", "replay"}  # the audit has no matches, maps or seeds
    assert set(VARIANTS) - pairs_only <= set(ATTACK_WORDS)


def test_stages_and_networks_are_told():
    assert attack_words("direct, unet").endswith("(unet)")
    assert "nothing to undo the encoder" in attack_words("density+decoys then nothing")
    assert "docs/attacks.md" in attack_words("a new one")
