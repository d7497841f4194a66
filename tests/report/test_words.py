# SPDX-License-Identifier: Apache-2.0
"""Verdicts follow the figures, and none of them says safe."""

import pytest

from sfumato.report.words import ATTACK_WORDS, LEVELS, NONE, NOT_TESTED, OPEN, attack_words, level_of, untested_words


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
    words = " ".join([one.word + one.says for one in (*LEVELS, NONE, OPEN)] + [*ATTACK_WORDS.values(), *NOT_TESTED])
    assert not {"safe", "secure", "anonymous", "private"} & set(words.lower().replace(".", " ").split())


def test_what_was_not_tried_is_told():
    assert "no network trained" in untested_words({"vertex"})
    assert "decoder" in untested_words({"direct", "vertex"})
    assert "inverter" in untested_words({"decoder"})
    assert untested_words({"decoder", "direct"}) == ""
    assert "without the key" in untested_words({"alignment"}, sealed=True)
    assert "Not tested: an alignment" in untested_words({"known-pairs"}, sealed=True)


def test_every_attack_has_words():
    from sfumato.evaluate.intruder import VARIANTS

    pairs_only = {"reveal", "tracks", "replay"}  # the audit has no matches, maps or seeds
    assert set(VARIANTS) - pairs_only <= set(ATTACK_WORDS)


def test_stages_and_networks_are_told():
    assert attack_words("direct, unet").endswith("(unet)")
    assert "nothing to undo the encoder" in attack_words("density+decoys then nothing")
    assert "docs/attacks.md" in attack_words("a new one")
