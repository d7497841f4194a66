# SPDX-License-Identifier: Apache-2.0
"""What inverters of sealed features learn from: photos of others, sealed under keys of one's own and read back.

No network maps the bits of one feature to a patch, for the key turns them at random. But alignment takes bits back to
descriptors, with errors that it makes under any key; an inverter that learned from such readings knows these errors,
and one that learned from clear descriptors does not. The attacker knows his own keys and descriptors, so he reads by
the best alignment there is, which he tells himself. Knows recipes and public descriptors; never the attacked key.
"""

import warnings
from collections.abc import Callable
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from sfumato.attack.knowledge import Knowledge, KnownPairs
from sfumato.attack.sealed import LARGEST_PUBLIC, recover_told, thinned
from sfumato.concealment.encoders import before_seal
from sfumato.concealment.lift import conceal
from sfumato.concealment.seal import keyless
from sfumato.errors import EvaluationOnlyWarning, InputError, WideSealWarning
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures, as_points
from sfumato.types.recipe import Recipe

Floats = NDArray[np.float32]

KEYS, CODES = 3, 17_000
"""How many keys of his own the attacker uses, and how many features he seals under each: those of twenty photos."""


def reader_of(recipe: Recipe, public: Floats, *, seed: int = 0) -> Callable[[Features], ConcealedFeatures]:
    """Return a function that seals features under keys of the attacker's own, in turn, and reads them back.

    What it returns are points: the descriptors as they were read, under the recipe's name without a key. ``public``
    (V, n) are descriptors of other photos.

    Raises InputError for a recipe that is not sealed; later, where too few descriptors are at hand.
    """
    if not recipe.is_sealed:
        raise InputError(f"recipe {recipe} is not sealed: there is nothing to read back")
    named, known = keyless(recipe), thinned(public, LARGEST_PUBLIC)
    readings = cycle([_reading(named, known, seed * KEYS + number, number) for number in range(KEYS)])

    def read_back(features: Features) -> ConcealedFeatures:
        points = as_points(next(readings)(features))
        return ConcealedFeatures(features.keypoints, points, named, features.extractor, features.image_size)

    return read_back


def _reading(recipe: Recipe, public: Floats, key: int, number: int) -> Callable[[Features], Floats]:
    """Return how features are read back under one key; learned from some of the public ones when it is first used."""
    known: list[Knowledge] = []

    def read(features: Features) -> Floats:
        if not known:
            rows = public[number * CODES : (number + 1) * CODES] if len(public) >= KEYS * CODES else public[:CODES]
            sealed = _sealed(Features(np.ones((len(rows), 4), np.float32), rows, features.extractor), recipe, key)
            told = KnownPairs(descriptors=rows, codes=sealed.subspaces.origin)
            known.append(Knowledge(public=public, told=told, encoder=before_seal(sealed.recipe)))
        return recover_told(_sealed(features, recipe, key), known[0]).descriptors

    return read


def _sealed(features: Features, recipe: Recipe, key: int) -> ConcealedFeatures:
    """Return features under a key that anyone can make of a number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        warnings.simplefilter("ignore", WideSealWarning)
        return conceal(features, recipe, None, evaluation_seed=key)
