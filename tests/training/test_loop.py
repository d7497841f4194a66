# SPDX-License-Identifier: Apache-2.0
"""Length, rate and flatness of a training."""

import math

import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.training.loop import Budget, Pace, TrainingResult, finite, flatness, flatness_message


def test_steps_or_minutes_whichever_is_given():
    now = [10.0]
    by_time = Pace(2.0, seconds_before=30.0, clock=lambda: now[0])
    now[0] = 40.0
    assert by_time.seconds == 60
    assert by_time.share == 0.5
    now[0] = 1000.0
    assert by_time.share == 1
    by_steps = Pace(2.0, 10, steps=3, clock=lambda: now[0])
    assert by_steps.share == 0.3


def test_the_rate_climbs_then_falls():
    pace = Pace(1.0, 1000)
    rates = []
    for pace.steps in (0, 10, 20, 500, 1000):
        rates.append(pace.rate(1.0))
    assert rates[0] < rates[1] < rates[2] > rates[3] > rates[4]
    assert rates[3] == pytest.approx(0.5)
    assert rates[4] == pytest.approx(0)
    assert rates[0] > 0


def test_flatness():
    rng = np.random.default_rng(0)
    assert flatness([1.0]) == math.inf
    assert flatness(list(np.linspace(2, 1, 100))) > 0.1
    assert flatness(list(1 + 0.001 * rng.normal(size=1000))) < 0.01
    assert flatness(list(np.linspace(1, 2, 100))) == 0  # it did not fall


def test_a_result_is_plain_values():
    result = TrainingResult(
        steps=3, seconds=1.0, first_loss=2.0, last_loss=1.0, flatness=math.inf, scores={"ssim": 0.5}, best_step=2
    )
    assert not result.is_flat
    assert result.facts()["flatness"] is None
    assert result.facts()["scores"] == {"ssim": 0.5}


def test_a_loss_that_is_no_number_ends_a_training():
    assert finite(0.5) == 0.5
    for loss in (math.nan, math.inf):
        with pytest.raises(InputError, match="lower rate"):
            finite(loss)


def test_what_is_too_short_to_judge_is_told_so():
    assert flatness_message(0.034) == "the loss still fell by 3.4 % over the last fifth: train longer"
    for unknown in (None, math.inf):
        assert "too few steps to tell" in flatness_message(unknown)


def test_rounds_go_on_to_the_end():
    pace, seen = Pace(0, 3), []

    def progress(items):
        for item in items:
            seen.append(item)
            yield item

    for _ in pace.rounds(progress):
        pace.steps += 1
    assert pace.steps == 3
    assert len(seen) == 1000
    assert pace.seconds_left == 0


def test_budgets_of_nothing():
    for settings in ({}, {"minutes": -1.0}, {"steps": 0}, {"minutes": math.nan}):
        with pytest.raises(InputError, match="minutes"):
            Budget(**settings)
