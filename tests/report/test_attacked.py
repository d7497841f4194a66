# SPDX-License-Identifier: Apache-2.0
"""What attacks got: seeds are averaged, codes counted, and the reference found by its recipe."""

from dataclasses import replace

import pytest

from sfumato.report.verdict import attacks_on, reference_on


def test_attacks_come_strongest_first_and_uncounted_ones_last(records):
    results = attacks_on("sub-hybrid-2", records)
    assert [one.name for one in results] == ["vertex+decoys", "intersection", "vertex", "oracle-sphere"]
    assert [one.counts for one in results] == [True, True, True, False]
    assert results[1].needs > results[0].needs > results[2].needs


def test_codes_are_those_of_all_photos(make_attack):
    first, second = (make_attack("sealed-512", "alignment", 0.1, features=count) for count in (900.0, 1100.0))
    (result,) = attacks_on("sealed-512", [first, second])
    assert (result.codes, result.photos, result.leakage) == (3000, 3, pytest.approx(0.1))
    assert attacks_on("sealed-512", [make_attack("sealed-512", "alignment", 0.1)])[0].codes == 0


def test_a_reference_is_of_one_recipe(make_reference, records):
    reference = reference_on("sealed-512", [*records, make_reference("sealed-512", 0.2)])
    assert reference is not None
    assert (reference.name, reference.leakage, reference.photos) == ("alignment", 0.2, 200)
    assert reference_on("raw", [make_reference("sealed-512", 0.2)]) is None


def test_a_title_is_an_attack_and_the_inverter_that_painted(make_attack):
    (painted,) = attacks_on("sealed-512", [make_attack("sealed-512", "alignment", 0.1, inverter="positions only")])
    assert painted.name == "alignment, positions only"
    assert not painted.attack.trained
    (other,) = attacks_on("random-2", [make_attack("random-2", "direct", 0.1, inverter="unet")])
    assert other.name == "direct, unet"


def test_whether_an_attack_counts_is_what_its_record_says(make_attack):
    record = make_attack("random-2", "vertex", 0.1)
    (silent,) = attacks_on("random-2", [replace(record, params={**record.params, "counts": False})])
    assert not silent.counts
    assert silent.about.endswith("(shown, not counted)")


@pytest.mark.parametrize("attack", ["keypoints", "positions"])
def test_where_features_lie_is_an_attack_like_others(make_attack, attack):
    (result,) = attacks_on("sealed-512", [make_attack("sealed-512", attack, 0.2, inverter="inverter trained on it")])
    assert (result.counts, result.attack.trained, result.is_scale) == (True, True, False)


def test_of_raw_the_ends_of_the_scale_are_shown(records):
    assert [one.name for one in attacks_on("raw", records)] == ["clear", "floor"]
    assert "floor" not in [one.name for one in attacks_on("ninja-mine@0123456789ab", records)]
