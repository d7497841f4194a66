# SPDX-License-Identifier: Apache-2.0
"""Reading with a key, with more patience than the attack of the package: more public descriptors, more starts."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from releaseds.alignment import reading_rows, signs_of
from releaseds.known import sample, seal_waves
from releaseds.material import Material
from releaseds.sets import key_of
from sfumato.attacks.seals import key as attack
from sfumato.concealment.seal import make_seal

Floats = np.ndarray

PUBLIC, COMMON, ROWS = 600_000, 20_000, 400
STARTS = (6, 32)
BLOCK = 20_000


def nearest_codes(codes: Floats, waves: attack.Waves, public: Floats, count: int) -> Floats:
    """Return the public rows (K, n) whose codes are among the ``count`` nearest to one of the codes (N, B)."""
    signs, best, rows = np.sign(codes), np.empty((len(codes), 0)), np.empty((len(codes), 0), np.int64)
    for start in range(0, len(public), BLOCK):
        alike = signs @ waves.codes(public[start : start + BLOCK]).T
        some = np.argpartition(-alike, min(count, alike.shape[1]) - 1, axis=1)[:, :count]
        best = np.hstack([best, np.take_along_axis(alike, some, axis=1)])
        rows = np.hstack([rows, some + start])
        kept = np.argsort(-best, axis=1)[:, :count]
        best, rows = np.take_along_axis(best, kept, axis=1), np.take_along_axis(rows, kept, axis=1)
    return public[np.unique(rows)]


def patient_rows(material: Material) -> Iterator[dict[str, Any]]:
    """Yield what is read with the key itself of photos that released nothing, by starts and public descriptors."""
    rng = np.random.default_rng(material.seed + 5)
    seal = make_seal(key_of(material.seed), 128, 512)
    waves, clear = seal_waves(seal), sample(material.descriptors("bsds-val"), 20 if material.small else ROWS, rng)
    codes = signs_of(seal(clear).packed)
    public = sample(material.descriptors("imagenet"), PUBLIC, rng)
    usual = attack.STARTS
    try:
        for starts in STARTS:
            for count in (COMMON, len(public)):
                near = nearest_codes(codes, waves, public[:count], starts)
                likely = np.concatenate([near, public[: min(count, COMMON)]])
                attack.STARTS = starts
                read = attack.read_with_key(codes, waves, likely)
                yield from reading_rows("reading", f"{starts} starts, {count} public", read, clear, public)
    finally:
        attack.STARTS = usual
    material.say("reading", rows=len(clear), public=len(public), key="the key itself, an oracle")
