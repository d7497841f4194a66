# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.types.scene import rotation_of, unit_rotation

HALF = np.sqrt(0.5)


def test_quaternions_are_w_first():
    quarter_about_z = [[0, -1, 0], [1, 0, 0], [0, 0, 1]]
    for length in (1, 3, 1e-6):
        assert np.abs(rotation_of([length * HALF, 0, 0, length * HALF]) - quarter_about_z).max() < 1e-15
    assert np.abs(unit_rotation([HALF, 0, 0, HALF]) - quarter_about_z).max() < 1e-15
    assert np.abs(unit_rotation(np.round([HALF, 0, 0, HALF], 3)) - quarter_about_z).max() < 2e-3


def test_rotations_turn_and_do_nothing_else():
    for quaternion in np.random.default_rng(0).standard_normal((20, 4)):
        rotation = rotation_of(quaternion)
        assert np.abs(rotation @ rotation.T - np.eye(3)).max() < 1e-14
        assert np.linalg.det(rotation) == pytest.approx(1)


@pytest.mark.parametrize("wrong", [[0, 0, 0, 0], [1, 1, 0, 0], [np.nan, 0, 0, 0], [1e300, 0, 0, 0], [0.98, 0, 0, 0]])
def test_quaternions_of_another_length_are_refused(wrong):
    with pytest.raises(InputError, match="length 1"):
        unit_rotation(wrong)
