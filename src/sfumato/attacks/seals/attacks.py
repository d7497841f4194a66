# SPDX-License-Identifier: Apache-2.0
"""Attacks on sealed features: alignment without the key, and what known pairs lead to.

Alignment looks at all codes of a key at once. What it learned from a pool of them is cached for the next image of the
same pool. The key itself is never part of the attacker's knowledge.
"""

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.encoded import carry_back
from sfumato.attacks.knowledge import IdentityCache, Knowledge, Recovery, rows_of
from sfumato.attacks.seals.alignment import BLOCK, Coding, learn_alignment, learn_with_oracle
from sfumato.attacks.seals.key import read_with_key, recover_key
from sfumato.attacks.seals.known_pairs import read_codes
from sfumato.concealment.seal import BANDWIDTH
from sfumato.errors import InputError
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.extractor import GENERIC_EXTRACTORS
from sfumato.types.recipe import Recipe

Floats = NDArray[np.float32]

LARGEST_POOL, LARGEST_PUBLIC = 50_000, 60_000
"""More codes or public descriptors are thinned out evenly, for time and memory. What more codes would add was measured
with told-alignment (docs/explanation/attacks.md): nothing visible, up to 80,000."""
FEWEST_FOR_A_KEY = 500
HISTOGRAMS = (*GENERIC_EXTRACTORS, "sift", "rootsift")
SIFT_SHAPE = (4, 4, 8)

_learned = IdentityCache(4)
"""Readings learned for the last recipes: photos are attacked one by one under all recipes."""


def recover_alignment(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
    """Read codes by the alignment of all codes in the pool with public descriptors, without the key.

    Raises InputError for features that are not sealed, or an unknown encoder before the seal.
    """
    recipe = features.recipe
    if not recipe.is_sealed or knowledge.pool is None or knowledge.public is None:
        raise InputError("alignment needs sealed features, a pool of codes of the same key and public descriptors")
    if len(recipe.encoders) > 1 and knowledge.encoder is None:
        raise InputError(f"alignment on {recipe} needs the encoder before the seal (encoder)")
    return _read(_alignment(features, knowledge), features, knowledge)


def recover_with_oracle(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
    """Read codes by the best alignment there is, given by an oracle: an upper bound of ``recover_alignment``.

    Raises InputError for features that are not sealed, or an unknown encoder before the seal.
    """
    recipe, oracle, public = features.recipe, knowledge.told, knowledge.public
    if not recipe.is_sealed or oracle is None or public is None:
        raise InputError("told-alignment needs sealed features, public descriptors, and all codes with theirs (told)")
    if len(recipe.encoders) > 1 and knowledge.encoder is None:
        raise InputError(f"told-alignment on {recipe} needs the encoder before the seal (encoder)")
    before = knowledge.encoder or (lambda rows: rows)

    def learn() -> Coding:
        clear, codes = before(oracle.descriptors), oracle.codes
        return learn_with_oracle(codes, clear, before(thinned(public, LARGEST_PUBLIC)), bandwidth_of(recipe))

    reading = _learned.get((oracle.codes, public), learn, key=f"oracle {recipe}")
    return _read(reading, features, knowledge)


def recover_pairs(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
    """Read codes by known pairs of the same key.

    Raises InputError without pairs, or if their codes are not of the length of these.
    """
    codes, pairs = rows_of(features.code), knowledge.pairs
    if pairs is None or not len(pairs):
        raise InputError("known pairs need clear descriptors with their codes under the same key (pairs)")
    if pairs.codes.shape[1] != codes.shape[1]:
        raise InputError(f"the known codes have {pairs.codes.shape[1]} bits, the features {codes.shape[1]}")
    return read_codes(codes, pairs)


def recover_by_key(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
    """Recover the key from known pairs, and read codes with it.

    Raises InputError without pairs or public descriptors, or for features that are not sealed.
    """
    recipe, pairs, public = features.recipe, knowledge.pairs, knowledge.public
    if not recipe.is_sealed or pairs is None or public is None:
        raise InputError("key-recovery needs sealed features, known pairs (pairs) and public descriptors (public)")
    if pairs.codes.shape[1] != features.code.ambient_dim:
        raise InputError(f"the known codes have {pairs.codes.shape[1]} bits, the features {features.code.ambient_dim}")
    if len(pairs) < FEWEST_FOR_A_KEY:
        raise InputError(f"key-recovery needs {FEWEST_FOR_A_KEY} known pairs or more, got {len(pairs)}")
    before = knowledge.encoder or (lambda rows: rows)

    def learn() -> Coding:
        waves = recover_key(before(pairs.descriptors), pairs.codes, bandwidth_of(recipe))
        likely = before(thinned(public, LARGEST_PUBLIC))
        return lambda codes: read_with_key(codes, waves, likely)

    reading = _learned.get((pairs.codes, public), learn, key=f"key of {recipe}")
    return _read(reading, features, knowledge)


def _read(reading: Coding, features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
    """Return what a reading makes of the codes, carried back if an encoder came before the seal."""
    points = reading(rows_of(features.code))
    recovery = Recovery(points, np.full(len(points), 0.5, np.float32))
    return recovery if len(features.recipe.encoders) == 1 else carry_back(recovery, knowledge)


def thinned(rows: Floats, most: int) -> Floats:
    """Return at most this many rows, evenly spread."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).astype(np.intp)]


def bandwidth_of(recipe: Recipe) -> float:
    """Return the bandwidth of the seal a recipe ends with."""
    return float(recipe.links[-1].named[1:] or BANDWIDTH)


def mirror_orders() -> list[NDArray[np.intp]]:
    """Return the orders of SIFT's numbers that stand for a mirrored patch, inverted brightness, and both.

    Cells lie row by row, eight orientations each, relative to the keypoint's own. A mirror along it exchanges rows and
    directions of turning; inverted brightness turns the keypoint, and with it the cells, by half a turn.
    """
    places = np.arange(int(np.prod(SIFT_SHAPE))).reshape(SIFT_SHAPE)
    mirrored = places[::-1][:, :, -np.arange(8) % 8].ravel()
    inverted = places[::-1, ::-1].ravel()
    return [mirrored, inverted, mirrored[inverted]]


def _alignment(features: ConcealedFeatures, knowledge: Knowledge) -> Coding:
    pool, public, encoder = knowledge.pool, knowledge.public, knowledge.encoder
    assert pool is not None
    assert public is not None

    def learn() -> Coding:
        rows = thinned(public, LARGEST_PUBLIC)
        images = [np.ascontiguousarray(rows[:BLOCK][:, order]) for order in _orders(features, rows)]
        if encoder is not None:
            rows, images = encoder(rows), [encoder(image) for image in images]
        return learn_alignment(thinned(pool, LARGEST_POOL), rows, bandwidth_of(features.recipe), mirrored=images)

    return _learned.get((pool, public), learn, key=str(features.recipe))


def _orders(features: ConcealedFeatures, rows: Floats) -> list[NDArray[np.intp]]:
    wide = rows.shape[1] == int(np.prod(SIFT_SHAPE))
    return mirror_orders() if wide and features.extractor.name in HISTOGRAMS else []
