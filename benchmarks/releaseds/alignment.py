# SPDX-License-Identifier: Apache-2.0
"""Alignment by the number of codes under one key: as attacks/seals/alignment.py does it, with codes kept as bits.

The attack of the package takes up to 50,000 codes. Here components are those of all codes, read block by block; the
search has the moments of up to ``MOST`` of their scores, and the last regression as many codes.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from common import note

from releaseds.material import Material
from releaseds.sets import Descriptors, figure, key_of
from sfumato.attacks.seals import alignment as attack
from sfumato.attacks.seals.attacks import mirror_orders
from sfumato.attacks.seals.known_pairs import linear_map, unlike_none
from sfumato.concealment.seal import BANDWIDTH, Seal, make_seal

Floats = np.ndarray

COUNTS = (100_000, 1_000_000)
MOST = 200_000
"""Codes that moments and regressions are of."""
READ = 4000
PUBLIC = 200_000


def signs_of(packed: Floats) -> Floats:
    """Return bits (N, B/8) as an attack takes them: plus or minus one, of unit norm."""
    bits = np.unpackbits(packed, axis=1).astype(np.float32)
    codes: Floats = (2 * bits - 1) / np.float32(np.sqrt(bits.shape[1]))
    return codes


def sealed(photos: Descriptors, seal: Seal, count: int) -> Floats:
    """Return the bits (count, 64) of the descriptors of photos, one photo after the other."""
    results, total = list[Floats](), 0
    for number in range(len(photos.names)):
        if total >= count:
            break
        results.append(seal(photos.of(number)).packed)
        total += len(results[-1])
    return np.concatenate(results)[:count]


class Attacker:
    """What the attacker has before any code: public descriptors, and their components under the kernel of codes."""

    def __init__(self, public: Floats, axes: tuple[int, ...], seed: int) -> None:
        self.public, self.axes, self.seed = public, axes, seed
        rng = np.random.default_rng(seed)
        self.params = attack.AlignmentParams(axes=axes, seed=seed)
        kernel = attack.cosines(public.shape[1], self.params.bits, BANDWIDTH, rng)
        self.own = attack.components(public, kernel, axes[-1])
        self.turns = [
            attack.symmetry_turn(self.own, np.ascontiguousarray(public[:8192][:, order]), axes[0])
            for order in mirror_orders()
        ]
        self.rows = public[: self.params.practice]
        coding = attack.signs(public.shape[1], 512, BANDWIDTH, rng)
        self.back = attack.practise(
            self.rows, self.own.scores[: len(self.rows)], attack.components(self.rows, coding, axes[-1])
        )

    def searched(self, codes: attack.Components, starts: int, hops: int) -> Floats:
        """Return the rotation that moments lead to."""
        rng, first = np.random.default_rng(self.seed), self.axes[0]
        tops = attack.search(self.own.moments(first), codes.moments(first), rng, starts, hops, self.turns)
        grown = [attack.grow(self.own, codes, top[1], self.axes) for top in attack.distinct(tops)]
        return max(grown, key=lambda one: one[0])[1]

    def told(self, codes: attack.Components, clear: Floats) -> Floats:
        """Return the best rotation there is, which the clear descriptors (M, n) of the first codes show: an oracle."""
        points = attack.standardise(np.concatenate([self.own.scores, self.own.of(clear)]))[len(self.public) :]
        return attack.polar((points.T @ attack.standardise(codes.scores)[: len(clear)]).astype(np.float64))

    def read(self, packed: Floats, codes: attack.Components, turn: Floats) -> Floats:
        """Return what a rotation makes of the first codes: descriptors (READ, n)."""
        guesses = unlike_none(self.back(attack.standardise(codes.scores) @ turn.T), self.public)
        smooth = linear_map(signs_of(packed[: len(guesses)]), guesses, attack.SMOOTHING)
        return unlike_none(smooth(signs_of(packed[:READ])), self.public)


def alignment_rows(material: Material) -> Iterator[dict[str, Any]]:
    """Yield how near alignment comes to descriptors, searched and told, for each number of codes."""
    photos, others = material.descriptors("imagenet"), material.descriptors("bsds-train")
    rng = np.random.default_rng(material.seed)
    public = others.rows[np.sort(rng.permutation(len(others.rows))[:PUBLIC])].astype(np.float32)
    public /= np.linalg.norm(public, axis=1, keepdims=True)
    public = public[rng.permutation(len(public))]
    clear = np.concatenate([photos.of(number) for number in range(min(200, len(photos.names)))])[:MOST]
    seal = make_seal(key_of(material.seed), public.shape[1], 512)
    every = sealed(photos, seal, min(material.most, len(photos.rows)))
    starts, hops = (2, 3) if material.small else (24, 100)
    attacker = Attacker(public, (12, 16, 24, 32), material.seed)
    best = Attacker(public, (64,), material.seed)
    known = clear[: min(READ, len(every))]
    sizes = [count for count in COUNTS if count <= len(every)] or [len(every)]
    attack.MOST = MOST  # moments of more codes than the package takes time for
    for count in sizes:
        packed, start = every[:count], time.perf_counter()
        codes = components_of(packed, 32)
        readings = {"searched": attacker.read(packed, codes, attacker.searched(codes, starts, hops))}
        readings["told"] = attacker.read(packed, codes, attacker.told(codes, clear[:count]))
        codes = components_of(packed, 64)
        readings["told, 64 axes"] = best.read(packed, codes, best.told(codes, clear[:count]))
        for name, rows in readings.items():
            yield from reading_rows("alignment", f"{count} codes, {name}", rows, known, public)
        note(f"{count} codes: {time.perf_counter() - start:.0f} s")
    mean = np.tile(public.mean(axis=0), (len(known), 1))
    yield from reading_rows("alignment", "no code: the mean descriptor", mean, known, public)
    material.say("alignment", codes=sizes, public=len(public), bits=512, bandwidth=BANDWIDTH, moments_of=MOST,
                 read=READ, photos=len(photos.names), starts=starts, hops=hops)  # fmt: skip


def components_of(packed: Floats, count: int) -> attack.Components:
    """Return the components of all codes, with the scores of the first of them."""
    every = attack.components(packed, signs_of, count)
    return attack.Components(every.scores[:MOST], every.spread, every.of)


def reading_rows(part: str, of: str, read: Floats, clear: Floats, public: Floats) -> Iterator[dict[str, Any]]:
    """Yield how near rows that were read come to clear ones: shares within a distance; and how far what is particular
    about them goes along with what was: the correlation of both with the mean of public descriptors taken off."""
    errors = np.linalg.norm(read - clear, axis=1)
    for limit in (0.1, 0.3):
        yield figure(part, of, f"read within {limit}", float((errors < limit).mean()), len(clear))
    ours, theirs = read - public.mean(axis=0), clear - public.mean(axis=0)
    norms = float(np.linalg.norm(ours) * np.linalg.norm(theirs))
    yield figure(part, of, "correlation", float((ours * theirs).sum()) / norms if norms > 1e-6 else 0.0, len(clear))
