# SPDX-License-Identifier: Apache-2.0
"""Pairs of the attacker's descriptors and codes of an archive: proposed by positions, sorted out by bits.

After registration each of his features has a few partners, some of them wrong. Bits tell which are
right, without a key: of two of his features with near descriptors the right partners have near bits. A key fitted to
the pairs that agree so foretells bits; the partners that have them are the pairs of the next key.
"""

from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from places.registration import PositionMap, register
from sfumato.attacks.seals.key import Waves, recover_key
from sfumato.types.clear import Features

Floats = np.ndarray

PARTNERS, PARTNER_REACH = 6, 2.5
NEIGHBOURS, APART = 12, 6.0
"""Near descriptors that are asked about a pair, and how many pixels away they are: twins would share its partners."""
CONSISTENT = 0.04
ROUNDS, SURE_ROUND = 4, 2
"""Keys that are fitted one after the other; up to this one the better half of the pairs is enough for the next."""
CHANCE = 3.0
"""Deviations above one half of the bits that a partner must share with what a key foretells."""
FEWEST, MOST_FITTED = 200, 6000
"""Pairs without which there is no key, and that it is fitted to while they are being chosen."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Descriptors (K, n) and the codes (K, B) that an attacker takes for theirs."""

    descriptors: Floats
    codes: Floats

    def __len__(self) -> int:
        return len(self.descriptors)


@dataclass(frozen=True, slots=True)
class Proposals:
    """Features of a photo that have partners: their ``rows``, descriptors, places; ``partners`` (K, P), nearest first,
    of which some are ``usable``, and ``codes`` (K, P, B) int8 of those, plus or minus 1."""

    rows: Floats
    descriptors: Floats
    places: Floats
    partners: Floats
    usable: Floats
    codes: Floats
    share: float
    stage: str

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def is_registered(self) -> bool:
        """Whether the attacker believes that the photos are of one place."""
        return self.stage != "none" and len(self) > 0


def pairs_of(own: Features, places: Floats, size: tuple[int, int], codes: Floats, *, seed: int = 0) -> Proposals:
    """Return the partners of features in an archive, whose positions (N, 2) and codes (N, B) are all that is known."""
    points, target = own.keypoints[:, :2].astype(float), PositionMap(places, size)
    found = register(points, own.image_size, target, seed=seed)
    rows = np.flatnonzero(np.isfinite(found.lies[:, 0]))
    distances, partners = target.tree.query(found.lies[rows], k=PARTNERS, distance_upper_bound=PARTNER_REACH)
    usable = np.isfinite(distances)
    some = usable[:, 0]
    rows, partners, usable = rows[some], np.minimum(partners[some], len(places) - 1), usable[some]
    signs = np.sign(codes).astype(np.int8)[partners]
    return Proposals(rows, own.descriptors[rows], points[rows], partners, usable, signs, found.share, found.stage)


def consistency(found: Proposals, bandwidth: float) -> Floats:
    """Return how well each partner (K, P) agrees with those of features whose descriptors are near; by bits alone."""
    bits = found.codes.shape[2]
    packed = np.ascontiguousarray(np.packbits(found.codes > 0, axis=2)).view(np.uint64)
    near, others = cKDTree(found.descriptors).query(found.descriptors, k=min(NEIGHBOURS + 1, len(found)))
    apart = np.linalg.norm(found.places[others] - found.places[:, None], axis=2) > APART
    kernel = np.exp(-0.5 * (near / bandwidth) ** 2) * apart
    lucky = 0.9 * np.sqrt(2 * np.log(found.usable.sum(axis=1)) / bits)  # the largest of so many unrelated ones
    support, weight = np.zeros(found.partners.shape), np.full(len(found), 1e-6)
    for number in range(1, others.shape[1]):
        other, like = others[:, number], kernel[:, number]
        different = np.bitwise_count(packed[:, :, None] ^ packed[other][:, None]).sum(axis=3, dtype=np.int32)
        agreement = np.where(found.usable[other][:, None], 1 - 2 * different / bits, -1).max(axis=2)
        support += like[:, None] * (agreement - lucky[other][:, None])
        weight += like**2
    return np.where(found.usable, support / np.sqrt(weight)[:, None], -np.inf)


Choice = tuple[Floats, Floats]
"""Rows of proposals, and which of the partners of each."""


def bootstrap(proposals: list[Proposals], bandwidth: float, bits: int, seed: int) -> tuple[Waves | None, list[Choice]]:
    """Return the first ``bits`` of a key that proposals lead to, and the pairs chosen of each; None for too few."""
    if not proposals:
        return None, []
    chosen, waves = [_chosen(consistency(found, bandwidth), CONSISTENT) for found in proposals], None
    for number in range(ROUNDS):
        pairs = merge(proposals, chosen)
        if len(pairs) < FEWEST:
            break
        some = np.random.default_rng(seed).permutation(len(pairs))[:MOST_FITTED]
        waves = recover_key(pairs.descriptors[some], pairs.codes[some, :bits], bandwidth, seed=seed)
        agreements = [_foretold(found, waves) for found in proposals]
        usual = float(np.median(np.concatenate([one.max(axis=1) for one in agreements])))
        least = CHANCE / np.sqrt(bits) if number >= SURE_ROUND or usual > CHANCE / np.sqrt(bits) else usual
        chosen = [_chosen(one, least) for one in agreements]
    return waves, chosen


def merge(proposals: list[Proposals], chosen: list[Choice]) -> Pairs:
    """Return the pairs chosen of all proposals."""
    both = list(zip(proposals, chosen, strict=True))
    descriptors = np.concatenate([found.descriptors[rows] for found, (rows, _) in both])
    return Pairs(descriptors, np.concatenate([found.codes[rows, at] for found, (rows, at) in both]).astype(np.float32))


def _foretold(found: Proposals, waves: Waves) -> Floats:
    """Return how many more bits of each partner (K, P) a key foretells than not, as a share."""
    bits = len(waves.phases)
    agreement = (
        np.einsum("kpb,kb->kp", found.codes[:, :, :bits].astype(np.float32), waves.codes(found.descriptors)) / bits
    )
    return np.where(found.usable, agreement, -np.inf)


def _chosen(agreement: Floats, least: float) -> Choice:
    rows = np.flatnonzero(agreement.max(axis=1) > least)
    return rows, agreement[rows].argmax(axis=1)
