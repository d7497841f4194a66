# SPDX-License-Identifier: Apache-2.0
"""Rotations from the quaternions that files hold, as w x y z. Knows arrays only."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError

LOOSE = 1e-2
"""How far the length of a quaternion in a file may be from 1; fewer digits than that are a mistake."""


def rotation_of(quaternion: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rotation (3, 3) of a quaternion w x y z of any length but 0.

    >>> rotation_of([2, 0, 0, 0]).tolist() == np.eye(3).tolist()
    True
    """
    w, x, y, z = np.asarray(quaternion, np.float64) / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def unit_rotation(quaternion: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rotation (3, 3) of a quaternion w x y z from a file; InputError if it is not nearly of length 1."""
    values = np.asarray(quaternion, np.float64)
    if not np.isfinite(values).all() or np.abs(values).max() > 2 or abs(np.linalg.norm(values) - 1) > LOOSE:
        raise InputError("expected a quaternion of length 1")
    return rotation_of(values)
