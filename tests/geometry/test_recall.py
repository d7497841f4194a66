# SPDX-License-Identifier: Apache-2.0
import math

import pytest

from sfumato.errors import InputError
from sfumato.geometry.statistics import THRESHOLDS, median_errors, recalls


def test_both_limits_must_hold_and_a_lost_query_counts():
    errors = [(0.25, 2.0), (0.2, 2.1), (0.3, 0.0), (5.0, 10.0), (5.1, 0.0), None]
    assert recalls(errors) == pytest.approx((1 / 6, 3 / 6, 4 / 6))
    assert recalls(errors, [(6, 1)]) == pytest.approx((2 / 6,))
    assert THRESHOLDS == ((0.25, 2), (0.5, 5), (5, 10))


def test_nothing_is_no_recall():
    assert recalls([]) == (0.0, 0.0, 0.0)
    assert recalls([None]) == (0.0, 0.0, 0.0)
    assert median_errors([]) == (math.inf, math.inf)


def test_medians_are_over_all_queries():
    assert median_errors([(1, 5), (3, 1), (2, 9)]) == (2, 5)
    assert median_errors([(1, 5), (3, 1)]) == (2, 3)
    assert median_errors([(1, 5), None, None]) == (math.inf, math.inf)
    assert median_errors([(1, 5), None]) == (math.inf, math.inf)


@pytest.mark.parametrize("errors", [[(-1, 0)], [(math.nan, 0)]])
def test_mistakes(errors):
    with pytest.raises(InputError, match="errors"):
        recalls(errors)
