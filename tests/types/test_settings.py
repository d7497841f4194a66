# SPDX-License-Identifier: Apache-2.0
from dataclasses import dataclass, replace

import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.types.arrays import Range, refuse_unknown, settle_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    share: float = 0.5
    count: int = 3


RANGES = {"share": Range(0, 1), "count": Range(1, 10, whole=True)}


def test_all_unknown_names_are_told_with_the_nearest():
    with pytest.raises(InputError, match="'cuont'"):
        refuse_unknown(Settings, ["shar", "count", "cuont"])
    refuse_unknown(Settings, ["share", "count"])


def test_numbers_become_plain():
    settings = Settings(share=np.float32(0.25), count=np.int64(7))
    assert settle_numbers(settings, RANGES) == []
    assert type(settings.share) is float
    assert type(settings.count) is int
    assert (settings.share, settings.count) == (0.25, 7)
    whole = Settings(count=4.0, share=1)
    assert settle_numbers(whole, RANGES) == []
    assert (type(whole.count), type(whole.share)) == (int, float)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf"), "1", None, True, [0.5], 1j])
def test_a_wrong_number_is_told(value):
    problems = settle_numbers(Settings(share=value), RANGES)
    assert len(problems) == 1
    assert problems[0].startswith("share must be")


@pytest.mark.parametrize("value", [0, 11, 2.5, float("nan"), float("inf"), "3", False])
def test_a_wrong_whole_number_is_told(value):
    assert len(settle_numbers(Settings(count=value), RANGES)) == 1


def test_everything_wrong_is_told_at_once():
    assert len(settle_numbers(replace(Settings(), share=2, count=0), RANGES)) == 2
