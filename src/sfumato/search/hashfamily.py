# SPDX-License-Identifier: Apache-2.0
"""The hash family of the Grassmannian hashing paper: what the angle between a random line and a subspace tells.

Knows linear subspaces as orthonormal bases, random lines, and three rules that turn angles into symbols. For a uniform
line and a subspace of dimension d in R^D the squared cosine follows Beta(d / 2, (D - d) / 2). Refuses to know tables,
ids and distances.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError, suggest
from sfumato.types.arrays import whole_number

Floats = NDArray[np.float64]

RULES = ("quantile", "quantised", "printed")
LARGEST_THETA = math.pi / 6
"""Definition 3.1 asks for 0 < theta0 < pi / 6, Algorithm 1 and the experiments for 0 < theta0 <= pi / 6."""
VALUES_AT_ONCE = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HashRule:
    """How an angle becomes a symbol.

    ``printed``: the bit of Eq. 4, 1 where the angle is at most ``theta0``. ``quantised``: the number of the bin of
    ``width`` radians, counted from a random offset, as the authors' program does without the offset. ``quantile``:
    ``bins`` of equal chance, by the law of the angle for subspaces of that dimension: query and database may differ.
    """

    name: str = "quantile"
    theta0: float = math.pi / 8
    width: float = math.pi / 120
    bins: int = 2

    def __post_init__(self) -> None:
        if self.name not in RULES:
            raise InputError(f"rule: no rule is called {self.name!r:.80}{suggest(str(self.name), RULES)}: {RULES}")
        if not 0 < self.theta0 <= LARGEST_THETA + 1e-12:
            raise InputError(f"theta0: expected an angle above 0 and at most pi / 6, got {self.theta0}")
        if not 1e-4 <= self.width <= math.pi / 2:
            raise InputError(f"width: expected 0.0001 to pi / 2 radians, got {self.width}")
        if not 2 <= whole_number(self.bins, "bins") <= 256:
            raise InputError(f"bins: expected 2 to 256, got {self.bins}")

    def cuts(self, dim: int, ambient_dim: int, offset: float = 0.0) -> Floats:
        """Return the squared cosines between neighbouring symbols, ascending, for subspaces of one dimension."""
        if self.name == "printed":
            return np.array([math.cos(self.theta0) ** 2])
        if self.name == "quantile":
            return quantile_cosines(np.arange(1, self.bins) / self.bins, dim, ambient_dim)
        angles = np.arange(self.width - offset, math.pi / 2 - 1e-9, self.width)
        result: Floats = np.cos(angles[angles > 0][::-1]) ** 2
        return result


def draw_lines(count: int, ambient_dim: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return unit vectors (count, n), uniform on the sphere: the lines of Algorithm 1."""
    drawn = rng.normal(size=(count, ambient_dim))
    lengths = np.linalg.norm(drawn, axis=1, keepdims=True)
    return np.ascontiguousarray(drawn / np.where(lengths > 0, lengths, 1), np.float32)


def squared_cosines(basis: NDArray[Any], lines: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the squared cosines (N, F) of the angles between subspaces, bases (N, d, n), and lines (F, n)."""
    count, dim, n = basis.shape
    found = np.zeros((count, len(lines)), np.float32)
    step = max(1, VALUES_AT_ONCE // max(1, dim * len(lines)))
    for start in range(0, count, step):
        rows = np.asarray(basis[start : start + step], np.float32)
        along = rows.reshape(-1, n) @ lines.T
        found[start : start + step] = np.square(along, out=along).reshape(len(rows), dim, -1).sum(axis=1)
    return np.minimum(found, 1, out=found)


def bit_chance(theta0: float, dim: int, ambient_dim: int) -> float:
    """Return how likely a uniform line is within ``theta0`` of a subspace: that the printed bit is 1.

    >>> f"{bit_chance(math.pi / 8, 4, 25):.1e}, {bit_chance(math.pi / 8, 5, 437):.0e}"
    '1.7e-08, 1e-177'
    """
    from scipy.special import betainc

    if dim >= ambient_dim:
        return 1.0
    return float(betainc((ambient_dim - dim) / 2, dim / 2, math.sin(theta0) ** 2))


def quantile_cosines(shares: NDArray[Any], dim: int, ambient_dim: int) -> Floats:
    """Return the squared cosines below which the given shares of uniform lines lie."""
    from scipy.special import betaincinv

    if dim >= ambient_dim:
        return np.ones(np.shape(shares))
    result: Floats = betaincinv(dim / 2, (ambient_dim - dim) / 2, np.asarray(shares, float))
    return result


def share_of_lines(cosines: NDArray[Any], dim: int, ambient_dim: int) -> Floats:
    """Return the share of uniform lines whose squared cosine with a subspace is below the given ones."""
    from scipy.special import betainc

    if dim >= ambient_dim:
        return np.where(np.asarray(cosines) >= 1, 1.0, 0.0)
    result: Floats = betainc(dim / 2, (ambient_dim - dim) / 2, np.clip(np.asarray(cosines, float), 0, 1))
    return result


def symbols_of(cosines: NDArray[np.float32], cuts: Floats) -> NDArray[np.uint16]:
    """Return for squared cosines (N, F) how many of the ``cuts`` (F, C) of each line they reach."""
    found = np.zeros(cosines.shape, np.uint16)
    for column in cuts.T:
        found += cosines >= column.astype(np.float32)
    return found


def keys_of(symbols: NDArray[np.uint16], tables: int) -> NDArray[np.uint64]:
    """Return one key (N, S) for the K symbols of every table; ``symbols`` (N, S K) are in the order of the tables.

    Different symbols give different keys while bins ** K fits 64 bits, and nearly always beyond.
    """
    grouped = symbols.reshape(len(symbols), tables, symbols.shape[1] // tables)
    keys = np.full(grouped.shape[:2], 0xCBF29CE484222325, np.uint64)
    for k in range(grouped.shape[2]):
        keys = mixed(np.bitwise_xor(keys, grouped[:, :, k], dtype=np.uint64))
    return keys


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64-bit numbers well mixed and still one to one: the finaliser of SplitMix64."""
    result = values + np.uint64(0x9E3779B97F4A7C15)
    result = (result ^ (result >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    result = (result ^ (result >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return result ^ (result >> np.uint64(31))
