# SPDX-License-Identifier: Apache-2.0
"""Random numbers of a lifting: from the operating system, a device key, or (for evaluations only) a seed.

Every draw that protects someone comes from ``os.urandom``, or from SHAKE-256 keyed by a secret. numpy's generators
are not cryptographic: only ``evaluation_seed`` uses one, which protects nobody and says so.
"""

import hashlib
import os
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.keys import SHORTEST_KEY, is_weak
from sfumato.errors import InputError


class Draws(Protocol):
    """A source of random bytes for the descriptors of one image."""

    def of_rows(self, rows: NDArray[np.intp], count: int, attempt: int) -> NDArray[np.uint8]:
        """Return (len(rows), count) bytes for these descriptors; another attempt gives other bytes."""

    def of_image(self, rows: int) -> NDArray[np.uint64]:
        """Return (rows,) numbers: the same for the whole image, unless draws belong to descriptors."""


class SystemDraws:
    """Fresh bytes of the operating system's cryptographic source."""

    def of_rows(self, rows: NDArray[np.intp], count: int, attempt: int) -> NDArray[np.uint8]:
        return _as_rows(os.urandom(len(rows) * count), count)

    def of_image(self, rows: int) -> NDArray[np.uint64]:
        return np.full(rows, int.from_bytes(os.urandom(8), "little"), np.uint64)


class KeyedDraws:
    """Bytes derived from a secret and the descriptor: the same descriptor always gets the same ones.

    Two independent liftings of one descriptor meet exactly in it; under one key there are no two. So even the number
    that chooses the part of the decoys belongs to the descriptor, not to the image.
    """

    def __init__(self, secret: bytes, context: str, points: NDArray[np.float32]) -> None:
        if not isinstance(secret, bytes | bytearray) or not secret:
            raise InputError(
                "secret: expected unguessable bytes: read a key from a file with sfumato.device_key(path), or make "
                "one with sfumato.new_key()"
            )
        if is_weak(secret):
            raise InputError(
                f"secret: this one can be guessed: use at least {SHORTEST_KEY} random bytes, and no words, for example "
                f"sfumato.new_key()"
            )
        self._key = hashlib.blake2b(secret, digest_size=32, person=b"sfumato lifting").digest()
        self._context = context.encode()
        self._points = (points + np.float32(0)).astype("<f4")  # + 0: minus zero is zero

    def of_rows(self, rows: NDArray[np.intp], count: int, attempt: int) -> NDArray[np.uint8]:
        return _as_rows(b"".join(self._expand(row, b"rows %d" % attempt, count) for row in rows), count)

    def of_image(self, rows: int) -> NDArray[np.uint64]:
        drawn = b"".join(self._expand(row, b"part", 8) for row in range(rows))
        return np.frombuffer(drawn, "<u8").astype(np.uint64)

    def _expand(self, row: int, purpose: bytes, count: int) -> bytes:
        """SHAKE-256 of key, context, purpose and descriptor, each with its length: a keyed function of all four."""
        parts = (self._key, self._context, purpose, self._points[row].tobytes())
        framed = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        return hashlib.shake_256(framed).digest(count)


class SeededDraws:
    """Bytes that anyone can replay, from a seed and the descriptors: for evaluations only.

    The descriptors take part so that one seed gives different images different draws.
    """

    def __init__(self, seed: int, context: str, points: NDArray[np.float32]) -> None:
        digest = hashlib.blake2b(context.encode() + b"\0" + np.ascontiguousarray(points).tobytes(), digest_size=8)
        self._generator = np.random.default_rng([seed, int.from_bytes(digest.digest(), "little")])

    def of_rows(self, rows: NDArray[np.intp], count: int, attempt: int) -> NDArray[np.uint8]:
        return _as_rows(self._generator.bytes(len(rows) * count), count)

    def of_image(self, rows: int) -> NDArray[np.uint64]:
        return np.full(rows, self._generator.integers(2**64, dtype=np.uint64), np.uint64)


def uniform(drawn: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Turn bytes (..., 4 k) into k numbers, uniform in the open interval from -1 to 1."""
    return drawn.view("<u4") * 2.0**-31 - (1 - 2.0**-32)


def normal(drawn: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Turn bytes (..., 8 k) into 2 k independent standard normal numbers (Box and Muller)."""
    first, second = np.split((uniform(drawn) + 1) / 2, 2, axis=-1)
    radius, angle = np.sqrt(-2 * np.log(first)), 2 * np.pi * second
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)


def normal_of_words(drawn: NDArray[np.uint8], deviation: float) -> NDArray[np.float32]:
    """Turn bytes (2 k,) into k normal numbers of a standard deviation, one of 65,536 values each: many, and fast.

    Word i stands for the middle of the i-th of 65,536 equally likely intervals. No value is beyond 4.4 deviations.
    """
    numbers: NDArray[np.float32] = (_quantiles() * deviation).astype(np.float32)[drawn.view("<u2")]
    return numbers


@lru_cache(maxsize=1)
def _quantiles() -> NDArray[np.float64]:
    from scipy.special import ndtri

    quantiles: NDArray[np.float64] = ndtri((np.arange(2**16) + 0.5) / 2**16)
    return quantiles


def distinct_integers(drawn: NDArray[np.uint8], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Turn bytes (N, 8 k) into k different integers below ``bounds`` (N,), every subset equally likely.

    Floyd's algorithm, a row at a time: the j-th number is drawn below bound - k + j + 1, and replaced by the largest
    possible one if it has come before. The order is not uniform, nor is it ever released.
    """
    numbers = drawn.view("<u8").astype(np.uint64)
    count = numbers.shape[1]
    integers = np.empty(numbers.shape, np.int64)
    for j in range(count):
        largest = bounds - count + j
        drawn_j = (numbers[:, j] % (largest + 1).astype(np.uint64)).astype(np.int64)
        repeated = (integers[:, :j] == drawn_j[:, None]).any(axis=1)
        integers[:, j] = np.where(repeated, largest, drawn_j)
    return integers


def _as_rows(drawn: bytes, count: int) -> NDArray[np.uint8]:
    return np.frombuffer(drawn, np.uint8).reshape(-1, count)
