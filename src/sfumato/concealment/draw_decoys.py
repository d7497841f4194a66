# SPDX-License-Identifier: Apache-2.0
"""Decoys of a lifting, drawn: entries of a database, or generated neighbours of them.

Decoys are drawn, or generated, as clear descriptors; the encoders of a recipe move them to the space that is lifted.

Anyone who knows the database finds its entries in a subspace exactly, and can remove them. A generated decoy is in no
database: an entry is moved along the difference of two others near it, every number is stretched a little at random,
and the result is made a descriptor of its kind again: never negative and of unit norm where the entries are, and for
SIFT clamped and rounded as SIFT is.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.decoys import Decoys, Pool, decode_bytes, round_to_bytes
from sfumato.concealment.randomness import distinct_integers, normal
from sfumato.concealment.resolve import ResolvedRecipe, encode_decoys, encode_points
from sfumato.errors import DecoyError
from sfumato.types.recipe import Link

Floats = NDArray[np.float32]

FEWEST_ENTRIES = 3
"""Entries that a descriptor needs: one that is moved, and two whose difference it is moved along."""

CANDIDATES = 128
"""Entries drawn for each decoy; the two nearest to the one that is moved give the direction."""

LEAST, MOST = 0.4, 0.9
"""Share of the difference by which an entry is moved, at least and at most."""

STRETCH = 0.25
"""Every number is multiplied by the exponential of a normal number with this deviation."""

TIES = 3
"""SIFT clamps large values: this many numbers, and up to six more, share the largest value of a histogram."""

SAME_NORM = 1e-3
ROWS_AT_ONCE = 256


def bytes_each(n: int) -> int:
    """Return the number of random bytes for a generated decoy of n numbers."""
    return 8 * (1 + CANDIDATES) + 16 + 8 * ((n + 1) // 2)


def generate(decoys: Decoys, pool: Pool, rows: NDArray[np.intp], drawn: NDArray[np.uint8]) -> Floats:
    """Return fresh decoys (N, k, n) for the descriptors of ``rows`` (N,), from ``drawn`` (N, k bytes_each(n)).

    All entries behind a decoy are from the pool of its descriptor.
    """
    n = decoys.descriptors.shape[1]
    count = drawn.shape[1] // bytes_each(n)
    owners = np.repeat(rows, count)
    splits = np.cumsum([8 * (1 + CANDIDATES), 8, 8])
    parts = np.split(drawn.reshape(len(owners), bytes_each(n)), splits, axis=1)
    for_entries, for_amounts, for_ties, for_stretch = (np.ascontiguousarray(part) for part in parts)
    positions = (for_entries.view("<u8") % pool.sizes[owners, None].astype(np.uint64)).astype(np.int64)
    moved, towards, away = _neighbours(decoys.descriptors, pool.entries(owners, positions))
    amounts = LEAST + (MOST - LEAST) * (for_amounts.view("<u8") * 2.0**-64)
    stretch = np.exp(STRETCH * normal(for_stretch)[:, :n])
    ties = TIES + (for_ties[:, 0] % 4).astype(np.int64) + for_ties[:, 1] % 4  # six most often, as in photos
    fresh = as_descriptors((moved + amounts * (towards - away)) * stretch, decoys, ties)
    return fresh.reshape(len(rows), count, n)


def _neighbours(
    descriptors: Floats, entries: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the first of the entries (N, 1 + C) of a database, and the two nearest to it, (N, n) each."""
    first, others = entries[:, 0], entries[:, 1:]
    nearest_two = np.empty((2, len(entries)), np.int64)
    for start in range(0, len(entries), ROWS_AT_ONCE):
        block = slice(start, start + ROWS_AT_ONCE)
        gaps = descriptors[others[block]] - descriptors[first[block], None]
        squared = np.einsum("nci,nci->nc", gaps, gaps)
        squared[others[block] == first[block, None]] = np.inf
        for nearest in nearest_two:
            nearest[block] = np.take_along_axis(others[block], squared.argmin(axis=1)[:, None], axis=1)[:, 0]
            squared[others[block] == nearest[block, None]] = np.inf
    moved, towards, away = (descriptors[rows].astype(np.float64) for rows in (first, *nearest_two))
    return moved, towards, away


def as_descriptors(rows: NDArray[np.float64], like: Decoys, ties: NDArray[np.int64]) -> Floats:
    """Return rows (N, n) as descriptors like those of a database: not negative, of its norm, and on its grid.

    ``ties`` (N,): number of values of a histogram that share the largest one.
    """
    flat: NDArray[Any] = rows
    kind = like.extractor.name
    positive, norm = _looks(like)
    if positive:
        flat = np.maximum(flat, 0.0)
    if kind in ("sift", "rootsift"):
        flat = _histograms(flat, ties, rooted=kind == "rootsift")
    elif norm is not None:
        flat = flat * (norm / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12))
    descriptors: Floats = flat.astype(np.float32)
    return descriptors


def _histograms(rows: NDArray[np.float64], ties: NDArray[np.int64], *, rooted: bool) -> NDArray[np.floating]:
    """Return rows as SIFT makes them: clamped, of unit norm, whole numbers over a norm; of RootSIFT their roots."""
    plain = np.square(rows) if rooted else rows
    largest = np.take_along_axis(np.sort(plain, axis=1), plain.shape[1] - np.minimum(ties, plain.shape[1])[:, None], 1)
    clamped = np.minimum(plain, largest)
    clamped /= np.maximum(np.linalg.norm(clamped, axis=1, keepdims=True), 1e-12)
    whole = decode_bytes(round_to_bytes(clamped.astype(np.float32))).astype(np.float64)
    return np.sqrt(whole / np.maximum(whole.sum(axis=1, keepdims=True), 1e-12)) if rooted else whole


@lru_cache(maxsize=4)
def _looks(decoys: Decoys) -> tuple[bool, float | None]:
    """Return whether no entry of a database is negative, and the norm they all have, or None."""
    norms = np.linalg.norm(decoys.descriptors, axis=1)
    common = float(np.median(norms))
    same = bool(np.abs(norms - common).max() <= SAME_NORM * max(common, 1e-30))
    return bool(decoys.descriptors.min() >= 0), common if same else None


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Supply:
    """The decoys of one image: ``decoys`` to draw from, clear if they are generated, else encoded.

    ``pool`` gives those of each descriptor; the encoders of ``resolved`` encode generated ones.
    """

    link: Link
    decoys: Decoys
    pool: Pool
    resolved: ResolvedRecipe

    def __post_init__(self) -> None:
        needed = max(self.link.decoy_count, FEWEST_ENTRIES if self.link.is_generated else 0)
        if len(self.pool.sizes) and self.pool.sizes.min() < needed:
            raise DecoyError(
                f"{self.link} needs {needed} decoys for a descriptor, but only {self.pool.sizes.min()} may be drawn: "
                f"{len(self.decoys)} entries in {self.decoys.parts} parts"
            )

    @property
    def bytes_needed(self) -> int:
        """Number of random bytes for the decoys of a descriptor."""
        count = self.link.decoy_count
        return count * (bytes_each(self.decoys.descriptors.shape[1]) if self.link.is_generated else 8)

    def draw(self, rows: NDArray[np.intp], drawn: NDArray[np.uint8]) -> Floats:
        """Return decoys (N, k, n) in the space that is lifted, for ``rows`` (N,), from ``drawn`` (N, bytes_needed)."""
        if not self.link.is_generated:
            entries = self.pool.entries(rows, distinct_integers(drawn, self.pool.sizes[rows]))
            return self.decoys.descriptors[entries]
        fresh = generate(self.decoys, self.pool, rows, drawn)
        flat = encode_points(self.resolved, fresh.reshape(-1, fresh.shape[2]))
        return flat.reshape(*fresh.shape[:2], -1)

    def __repr__(self) -> str:
        return f"Supply({self.link} from {self.decoys!r})"


def decoys_for(link: Link, resolved: ResolvedRecipe, decoys: Decoys) -> Decoys:
    """Return decoys as a lifting draws them: encoded, unless they are generated and encoded afterwards."""
    return decoys if link.is_generated else encode_decoys(resolved, decoys)
