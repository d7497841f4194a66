# SPDX-License-Identifier: Apache-2.0
"""What matching keeps: both sides concealed, and shares of raw."""

from dataclasses import replace

from sfumato.report.verdict import matching_of, with_shares


def test_only_both_sides_concealed_are_taken(records):
    assert matching_of("sub-hybrid-2", records)["correct 3 px"] == 60.0
    assert matching_of("nobody's", records) == {}


def test_records_that_lack_a_score_give_none(make_match):
    record = make_match("random-2", 60.0)
    assert matching_of("random-2", [replace(record, scores=record.scores[:2])]) == {}


def test_shares_are_of_raw():
    assert with_shares({"matches": 50.0, "odd": 1.0}, {"matches": 100.0}) == {
        "matches": 50.0,
        "odd": 1.0,
        "matches / raw": 0.5,
    }
