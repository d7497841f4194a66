# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.faces.compare import Threshold, choose_threshold


def choose(impostors, rate):
    return choose_threshold(impostors, rate, comparison="p-to-s", people=50)


@pytest.mark.parametrize("rate", [0.5, 0.1, 0.01, 0.0123])
def test_the_threshold_is_the_largest_that_keeps_the_rate(rate):
    found = np.random.default_rng(0).uniform(0.5, 1.5, 5000)
    chosen = choose(found, rate)
    accepted = int((found <= chosen.distance).sum())
    assert accepted == int(rate * 5000)
    assert chosen.measured_rate == accepted / 5000 <= chosen.wanted_rate == rate
    assert (found <= np.nextafter(chosen.distance, 2)).sum() == accepted + 1
    assert chosen.accepts(chosen.distance)
    assert not chosen.accepts(np.nextafter(chosen.distance, 2))


def test_equal_distances_are_accepted_together_or_not_at_all():
    chosen = choose([1.0] * 500 + [2.0] * 500, 0.4)
    assert chosen.measured_rate == 0
    assert not chosen.accepts(1.0)


def test_too_few_impostors_are_told():
    with pytest.raises(InputError, match="9999"):
        choose(np.ones(9999), 1e-3)


def test_templates_that_meet_give_no_threshold():
    meeting = np.concatenate([np.full(200, 1e-8), np.linspace(0.5, 1, 800)])
    with pytest.raises(InputError, match="20"):
        choose(meeting, 0.1)
    assert choose(meeting, 0.3).distance > 0.5


@pytest.mark.parametrize("rate", [0, 1, -1, np.nan, "0.1", True])
def test_impossible_rates_are_refused(rate):
    with pytest.raises(InputError, match="false-accept rate"):
        choose(np.ones(1000), rate)


def test_a_threshold_survives_as_plain_values():
    chosen = choose(np.arange(1000.0), 0.1)
    assert Threshold.from_dict(chosen.to_dict()) == chosen
    for change in ({"distance": float("nan")}, {"comparison": "p"}, {"people": 0}, {"measured_rate": 2.0}):
        with pytest.raises(InputError):
            Threshold.from_dict({**chosen.to_dict(), **change})
    for other in ([], {}, {**chosen.to_dict(), "more": 1}):
        with pytest.raises(InputError, match="incomplete"):
            Threshold.from_dict(other)
