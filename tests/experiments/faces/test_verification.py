# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.experiments.faces.verification import (
    accept_intervals,
    best_threshold,
    equal_error_rate,
    fold_accuracies,
    receiver_curve,
    resampled_curves,
    threshold_at,
    true_accepts_at,
)


def test_curve_counts_every_threshold_by_hand():
    curve = receiver_curve([0.1, 0.2, 0.2, 0.5], [True, True, False, False])
    assert curve.false_accept.tolist() == [0, 0, 0.5, 1]
    assert curve.true_accept.tolist() == [0, 0.5, 1, 1]
    assert curve.threshold[1:3] == pytest.approx([0.15, 0.35])


def test_equal_distances_are_accepted_together():
    curve = receiver_curve([1, 1, 1, 1], [True, False, True, False])
    assert len(curve.threshold) == 2
    assert equal_error_rate(curve) == pytest.approx(0.5)


def test_perfect_and_hopeless():
    same = np.arange(20) < 10
    good, bad = receiver_curve(~same + 0.0, same), receiver_curve(same + 0.0, same)
    assert (equal_error_rate(good), equal_error_rate(bad)) == (0, 1)
    assert true_accepts_at(good, 0.1) == 1
    assert true_accepts_at(bad, 0.1) == 0


def test_rates_agree_with_counting():
    rng = np.random.default_rng(0)
    same = rng.random(4000) < 0.5
    distances = rng.normal(np.where(same, 0, 1.5), 1)
    curve = receiver_curve(distances, same)
    threshold = threshold_at(curve, 0.01)
    assert (distances[~same] <= threshold).mean() <= 0.01
    assert true_accepts_at(curve, 0.01) == pytest.approx((distances[same] <= threshold).mean())
    assert equal_error_rate(curve) == pytest.approx(0.2266, abs=0.02)  # the normal law: Phi(-0.75)


def test_too_few_impostors_tell_no_small_rate():
    same = np.arange(200) < 100
    curve = receiver_curve(~same + 0.0, same)
    assert true_accepts_at(curve, 1e-2) == 1
    assert true_accepts_at(curve, 1e-3) is None


def test_the_threshold_never_sees_the_fold_held_out():
    distances = np.array([0.0, 1.0, 0.0, 1.0, 5.0, 6.0])
    same = np.array([True, False, True, False, True, False])
    fold = np.array([0, 0, 1, 1, 2, 2])
    assert fold_accuracies(distances, same, fold).tolist() == [1, 1, 0.5]  # all of fold 2 is rejected
    assert best_threshold(distances[:4], same[:4]) == 0.5


@pytest.mark.parametrize(
    ("distances", "same", "fold", "told"),
    [
        ([], [], [], "at least two"),
        ([1.0, 2.0], [True, True], [0, 1], "both kinds"),
        ([1.0, 2.0], [True, False], [0, 0], "at least two"),
        ([1.0, np.nan], [True, False], [0, 1], "not finite"),
        ([1.0, 2.0], [True], [0, 1], "truth values"),
        ([1.0, 2.0], [3, 0], [0, 1], "truth values"),
    ],
)
def test_what_can_not_be_measured_is_told(distances, same, fold, told):
    with pytest.raises(InputError, match=told):
        fold_accuracies(distances, same, fold)


def test_intervals_hold_the_rate_and_widen_where_people_are_few():
    rng = np.random.default_rng(0)
    same, widths = np.arange(4000) < 2000, []
    for people in (2000, 40):  # as many pairs, of many people or of few
        who = rng.integers(people, size=4000)
        other = np.where(same, who, (who + 1 + rng.integers(people - 1, size=4000)) % people)
        distances = rng.normal(np.where(same, rng.normal(size=people)[who], 4.0), 0.3)  # some people are hard
        low, high = accept_intervals(resampled_curves(distances, same, np.stack([who, other])), [0.01])[0]
        assert low <= true_accepts_at(receiver_curve(distances, same), 0.01) <= high
        distances += 1.5 * same
        low, high = accept_intervals(resampled_curves(distances, same, np.stack([who, other])), [0.01])[0]
        widths.append(high - low)
    assert widths[1] > 2 * widths[0]


def test_all_people_drawn_once_would_be_the_curve_itself():
    distances, same = np.array([0.1, 0.2, 0.2, 0.5]), np.array([True, True, False, False])
    false_accept, true_accept = resampled_curves(distances, same, np.zeros((2, 4), int))  # one person: always drawn
    curve = receiver_curve(distances, same)
    assert (false_accept == curve.false_accept).all()
    assert (true_accept == curve.true_accept).all()
