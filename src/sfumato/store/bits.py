# SPDX-License-Identifier: Apache-2.0
"""Points whose coordinates take two values, as bits: eight to a byte, and back to the last bit.

Knows arrays, neither files nor recipes. What is unpacked may come from a hostile file: it is checked first, and is
never more than 32 times as large as what was packed.
"""

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError

Floats = NDArray[np.float32]
Packed = NDArray[np.uint8]


def packed_width(ambient_dim: int) -> int:
    """Return how many bytes the bits of one point of ``ambient_dim`` coordinates take."""
    return -(-ambient_dim // 8)


def pack(origin: Floats) -> tuple[Packed, Floats] | None:
    """Return points (N, n) as bytes (N, n / 8 rounded up) and the two values (2,) that 0 and 1 stand for.

    Coordinate i is in byte i // 8, the first of eight in its highest bit; bits behind the last coordinate are 0. The
    smaller value comes first. None if there are more than two values, where the two zeros of float32 count as two.

    >>> packed, values = pack(np.array([[0.5, -0.5, 0.5]], np.float32))
    >>> packed.tolist(), values.tolist()
    ([[160]], [-0.5, 0.5])
    """
    if origin.size == 0:
        return np.zeros((len(origin), packed_width(origin.shape[1])), np.uint8), np.zeros(2, np.float32)
    values = np.array([origin.min(), origin.max()], np.float32)
    patterns = np.ascontiguousarray(origin, np.float32).view(np.uint32)
    low, high = values.view(np.uint32)
    is_high = patterns == high
    if not (is_high | (patterns == low)).all():
        return None
    return np.packbits(is_high, axis=1), values


def unpack(packed: Packed, values: Floats, ambient_dim: int) -> Floats:
    """Return the points (N, n) float32 that ``pack`` was given; ``ambient_dim`` is n.

    Raises InputError for bytes and values that ``pack`` does not give.
    """
    if not np.isfinite(values).all() or values[0] > values[1]:
        raise InputError("the values of its bits are not two finite numbers, the smaller one first")
    behind = 8 * packed_width(ambient_dim) - ambient_dim
    if behind and (packed[:, -1] & (2**behind - 1)).any():
        raise InputError("some of its bits are set behind the last coordinate")
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
    table = values.astype(np.float32)[bits]  # (256, 8): a byte as eight coordinates
    rows = np.take(table, packed, axis=0).reshape(len(packed), 8 * packed.shape[1])
    return np.ascontiguousarray(rows[:, :ambient_dim])
