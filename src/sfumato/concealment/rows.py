# SPDX-License-Identifier: Apache-2.0
"""Rows of sealed photos whose positions stay home: their order under the key, and the tags that prove them real.

The order of rows must not tell where features lie: it is that of numbers which only the key gives. The tag of a row is
a keyed digest of the photo, the number of the row and its bits. A device that is asked for a position can so tell a row
of a real photo from one that a server made up, whoever took the photo, as long as it has the key of the place. The key
of rows cannot be computed from what a seal shows: who recovers a seal from known photos still makes no tag.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.keys import key_for_rows, sealing_key
from sfumato.errors import InputError
from sfumato.types.clear import Features
from sfumato.types.concealed import TAG_BYTES, Bits, RowTags

GRID = 16
"""Positions are released in sixteenths of a pixel, all of them: the digits beyond would tell copies from originals."""


def order_rows(
    features: Features, *, secret: bytes | None = None, place: str | None = None, evaluation_seed: int | None = None
) -> NDArray[np.int64]:
    """Return which clear feature (N,) stands behind each row of ``conceal``, where positions stay home.

    For whoever has the features and the key. Row i of what was concealed is row ``order_rows(...)[i]`` of ``features``.

    >>> from sfumato.images import sample_image
    >>> import numpy as np, sfumato
    >>> key, coffee = sfumato.new_key(), sfumato.extract(sample_image("coffee").pixels, max_features=50)
    >>> rows = order_rows(coffee, secret=key)
    >>> bits = sfumato.conceal(coffee.descriptors, secret=key)[rows]
    >>> bool((sfumato.conceal(coffee, secret=key).code.packed == bits.packed).all())
    True
    """
    key = sealing_key(secret, evaluation_seed, place)
    if key is None:
        raise InputError("the order of rows follows the device key: give secret=")
    return row_order(key, photo_name(key, features), len(features))


def photo_name(key: bytes, features: Features) -> str:
    """Return the name of a photo under a sealing key: the same features have the same, on every device."""
    state = hashlib.blake2b(key=key_for_rows(key), digest_size=16, person=b"sfumato photo")
    state.update(np.ascontiguousarray(features.descriptors, "<f4").data)
    state.update(np.ascontiguousarray(features.keypoints, "<f4").data)
    return state.hexdigest()


def row_order(key: bytes, photo: str, count: int) -> NDArray[np.int64]:
    """Return the order (N,) of the rows of a photo under a sealing key: number i is that of the i-th row released.

    The rows are sorted by 64 bits each of SHAKE-256 of key and photo, the earlier one first where two are equal.
    """
    drawn = hashlib.shake_256(key_for_rows(key) + b"order" + bytes.fromhex(photo)).digest(8 * count)
    return np.argsort(np.frombuffer(drawn, "<u8"), kind="stable").astype(np.int64)


def tag_rows(key: bytes, photo: str, numbers: NDArray[np.integer], bits: Bits) -> NDArray[np.uint8]:
    """Return the tags (N, 8) of rows with these numbers and bits, of a photo, under a sealing key."""
    start = hashlib.blake2b(bytes.fromhex(photo), key=key_for_rows(key), digest_size=TAG_BYTES, person=b"sfumato row")
    width = bits.ambient_dim // 8
    words = np.empty((len(bits), 4 + width), np.uint8)
    words[:, :4] = np.asarray(numbers, "<u4").reshape(-1, 1).view(np.uint8)
    words[:, 4:] = bits.packed
    tags = bytearray()
    for row in words:
        state = start.copy()
        state.update(row.data)
        tags += state.digest()
    return np.frombuffer(bytes(tags), np.uint8).reshape(-1, TAG_BYTES)


def are_real(key: bytes, photo: str, numbers: NDArray[np.integer], bits: Bits, tags: NDArray[np.uint8]) -> bool:
    """Tell whether all tags (N, 8) are those of these rows: nobody without the key could make one."""
    return (
        hashlib.blake2b(tag_rows(key, photo, numbers, bits).tobytes()).digest()
        == hashlib.blake2b(tags.tobytes()).digest()
    )


def to_grid(keypoints: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the positions (N, 2) of keypoints (N, 4) as they are released, on one grid."""
    positions: NDArray[np.float32] = (np.rint(keypoints[:, :2] * GRID) / GRID).astype(np.float32)
    return positions


def make_tags(key: bytes, photo: str, bits: Bits) -> RowTags:
    """Return the tags of all rows of a photo, in the order in which they are released."""
    return RowTags(photo, tag_rows(key, photo, np.arange(len(bits)), bits))
