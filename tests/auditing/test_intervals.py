# SPDX-License-Identifier: Apache-2.0
"""Leakage on the scale from the floor to the clear descriptors, and how sure it is."""

import numpy as np
import pytest

from sfumato.auditing.attack_task import leakage_interval


def by_photo(values):
    return {f"photo {i}": float(value) for i, value in enumerate(values)}


def test_the_ends_of_the_scale_are_exact():
    rng = np.random.default_rng(0)
    floor, clear = by_photo(rng.uniform(0.2, 0.3, 20)), by_photo(rng.uniform(0.6, 0.7, 20))
    assert leakage_interval(clear, clear, floor) == (1.0, 1.0, 1.0)
    assert leakage_interval(floor, clear, floor) == (0.0, 0.0, 0.0)


def test_the_interval_covers_as_often_as_it_says():
    rng, covered = np.random.default_rng(1), 0
    for _ in range(100):
        floor = rng.normal(0.3, 0.02, 40)
        clear = floor + rng.normal(0.3, 0.03, 40)
        similar = floor + 0.4 * 0.3 + rng.normal(0, 0.05, 40)
        _, low, high = leakage_interval(by_photo(similar), by_photo(clear), by_photo(floor))
        covered += low <= 0.4 <= high
    assert 85 <= covered <= 100


def test_more_photos_give_a_narrower_interval():
    rng, widths = np.random.default_rng(2), []
    for count in (10, 1000):
        floor = rng.normal(0.3, 0.02, count)
        similar = floor + rng.normal(0.1, 0.05, count)
        _, low, high = leakage_interval(by_photo(similar), by_photo(floor + 0.3), by_photo(floor))
        widths.append(high - low)
    assert widths[1] < widths[0] / 3


@pytest.mark.parametrize("clear", [{}, {"other": 0.9}, {"a": 0.3}])
def test_without_a_scale_there_is_no_leakage(clear):
    assert leakage_interval({"a": 0.5}, clear, {"a": 0.3}) is None


def test_only_photos_with_all_three_figures_count():
    found = leakage_interval({"a": 0.5, "b": 9.0}, {"a": 0.7}, {"a": 0.3, "b": 0.1})
    assert found == (0.5, 0.5, 0.5)


def test_photos_that_show_nothing_do_not_blow_up_the_interval():
    found = leakage_interval({"a": 0.5, "b": 0.5}, {"a": 0.7, "b": 0.45}, {"a": 0.3, "b": 0.46})
    assert found == pytest.approx((0.615385, 0.5, 0.615385), abs=1e-5)
    flat = leakage_interval({"a": 0.7, "flat": 1.0}, {"a": 0.7, "flat": 1.0}, {"a": 0.3, "flat": 1.0})
    assert flat == (1.0, 1.0, 1.0)
