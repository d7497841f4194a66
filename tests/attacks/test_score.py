# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.attacks.knowledge import Recovery
from sfumato.attacks.run import WITHIN, recovery_distances, score_recovery
from sfumato.errors import InputError


def test_distances_and_shares():
    clear = np.zeros((4, 3))
    guess = Recovery(np.array([[0, 0, 0], [0.05, 0, 0], [0, 0.2, 0], [0, 0, 1]]), np.ones(4))
    score = score_recovery(guess, clear)
    assert np.allclose(recovery_distances(guess, clear), [0, 0.05, 0.2, 1])
    assert [score[f"within {limit}"] for limit in WITHIN] == [0.25, 0.5, 0.75]
    assert score["count"] == 4
    assert score["mean"] == pytest.approx(0.3125)
    assert score["median"] == pytest.approx(0.125)


def test_nothing_scores_nothing():
    score = score_recovery(Recovery(np.zeros((0, 3)), np.zeros(0)), np.zeros((0, 3)))
    assert score["count"] == 0
    assert np.isnan(score["median"])


def test_other_rows_are_refused():
    with pytest.raises(InputError):
        score_recovery(Recovery(np.zeros((2, 3)), np.zeros(2)), np.zeros((3, 3)))
