# SPDX-License-Identifier: Apache-2.0
"""What attacks got: seeds are averaged, codes counted, and the reference found by its recipe."""

from dataclasses import replace

import pytest

from sfumato.report.verdict import attacks_on, bare_leakage, reference_on


def test_attacks_come_strongest_first_and_uncounted_ones_last(records):
    found = attacks_on("sub-hybrid-2", records)
    assert [one.name for one in found] == ["vertex+decoys", "intersection", "vertex", "oracle-sphere"]
    assert [one.counts for one in found] == [True, True, True, False]
    assert found[1].needs > found[0].needs > found[2].needs


def test_codes_are_those_of_all_photos(make_attack):
    first, second = (make_attack("sealed-512", "alignment", 0.1, features=count) for count in (900.0, 1100.0))
    (found,) = attacks_on("sealed-512", [first, second])
    assert (found.codes, found.photos, found.leakage) == (3000, 3, pytest.approx(0.1))
    assert attacks_on("sealed-512", [make_attack("sealed-512", "alignment", 0.1)])[0].codes == 0


def test_a_reference_is_of_one_recipe(make_reference, records):
    found = reference_on("sealed-512", [*records, make_reference("sealed-512", 0.2)])
    assert found is not None
    assert (found.name, found.leakage, found.photos) == ("alignment", 0.2, 200)
    assert reference_on("raw", [make_reference("sealed-512", 0.2)]) is None


def test_a_title_is_an_attack_and_the_inverter_that_painted(make_attack):
    (painted,) = attacks_on(
        "sealed-512", [make_attack("sealed-512", "alignment", 0.1, inverter="inverter trained on it")]
    )
    assert (painted.name, painted.label) == ("alignment, inverter trained on it", "alignment")
    assert painted.attack.trained
    assert painted.counts
    (other,) = attacks_on("random-2", [make_attack("random-2", "direct", 0.1, inverter="unet")])
    assert other.name == "direct, unet"


def test_whether_an_attack_counts_is_what_its_record_says(make_attack):
    record = make_attack("random-2", "vertex", 0.1)
    (silent,) = attacks_on("random-2", [replace(record, params={**record.params, "counts": False})])
    assert not silent.counts
    assert silent.about.endswith("(shown, not counted)")


def test_what_keypoints_show_is_known_among_the_scale_of_raw(make_attack, records):
    bare = make_attack("raw", "keypoints", 0.17)
    found = [(one.name, one.is_bare) for one in attacks_on("raw", [*records, bare])]
    assert found == [("clear", False), ("keypoints", True), ("floor", False)]
    assert bare_leakage([*records, bare]) == 0.17
    assert bare_leakage(records) is None
