# SPDX-License-Identifier: Apache-2.0
"""Concealers of public photos, for networks that learn to attack a recipe.

A lifting or an encoder is drawn anew at every call. No network maps the bits of one sealed feature to a patch, because
the key turns them at random. Alignment, though, takes bits back to descriptors with errors that it makes under any key,
and an inverter can learn these errors: so sealed features are sealed under the attacker's own keys and read back by the
best alignment, which he knows for his own keys. Knows recipes and public descriptors; never the attacked key.
"""

import warnings
from collections.abc import Callable
from itertools import count, cycle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.knowledge import Knowledge, KnownPairs, rows_of
from sfumato.attacks.seals.attacks import LARGEST_PUBLIC, recover_with_oracle, thinned
from sfumato.concealment.decoys import bundled_decoys, load_decoys
from sfumato.concealment.lifting import conceal
from sfumato.concealment.resolve import before_seal, resolve
from sfumato.concealment.seal import with_usual_bandwidth, without_key
from sfumato.errors import EvaluationOnlyWarning, InputError, WideSealWarning
from sfumato.inversion.load import Concealer
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures, Points
from sfumato.types.recipe import Recipe

Floats = NDArray[np.float32]

KEYS, CODES = 3, 17_000
"""Number of the attacker's own keys, and of the features sealed under each: those of twenty photos."""


def concealer_of(recipe: str, decoys: Path | None, seed: int) -> Concealer | None:
    """Return the function that conceals features for an inverter, or None for clear ones; each call draws anew.

    ``decoys`` is a file, None for the bundled ones; of a sealed recipe it holds the public descriptors. Encoders are
    read here, once.
    """
    if Recipe.of(recipe).is_sealed:
        return _file_reader(Recipe.of(recipe), decoys, seed)
    link = resolve(recipe).recipe
    if link.is_clear:
        return None
    loaded = None if decoys is None else load_decoys(decoys)
    calls = count(1_000_000 * seed)

    def conceal_again(features: Features) -> ConcealedFeatures:
        nonlocal loaded
        if loaded is None and link.lifting is not None and link.lifting.decoy_count:
            loaded = bundled_decoys(features.extractor)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EvaluationOnlyWarning)
            return conceal(features, link, loaded, evaluation_seed=next(calls))

    return conceal_again


def _file_reader(recipe: Recipe, decoys: Path | None, seed: int) -> Concealer:
    """Return ``reader_of`` with the public descriptors of a file, or the bundled ones; read at the first call."""
    reader: Concealer | None = None

    def read_back(features: Features) -> ConcealedFeatures:
        nonlocal reader
        if reader is None:
            public = bundled_decoys(features.extractor) if decoys is None else load_decoys(decoys)
            named = with_usual_bandwidth(recipe, features.extractor.name)
            reader = reader_of(named, public.descriptors, seed=seed)
        return reader(features)

    return read_back


def reader_of(recipe: Recipe, public: Floats, *, seed: int = 0) -> Concealer:
    """Return a function that seals features under keys of the attacker's own, in turn, and reads them back.

    It returns points: the descriptors as read, under the recipe's name without a key. ``public`` (V, n) are descriptors
    of other photos.

    Raises InputError for a recipe that is not sealed; the function raises it if there are too few descriptors.
    """
    if not recipe.is_sealed:
        raise InputError(f"recipe {recipe} is not sealed: there is nothing to read back")
    named, sample = without_key(recipe), thinned(public, LARGEST_PUBLIC)
    readings = cycle([_reading(named, sample, seed * KEYS + number, number) for number in range(KEYS)])

    def read_back(features: Features) -> ConcealedFeatures:
        points = Points(next(readings)(features))
        return ConcealedFeatures(features.keypoints, points, named, features.extractor, features.image_size)

    return read_back


def _reading(recipe: Recipe, public: Floats, key: int, number: int) -> Callable[[Features], Floats]:
    """Return a function that seals and reads back under one key; its first call aligns with public descriptors."""
    knowledge: Knowledge | None = None

    def read(features: Features) -> Floats:
        nonlocal knowledge
        if knowledge is None:
            rows = public[number * CODES : (number + 1) * CODES] if len(public) >= KEYS * CODES else public[:CODES]
            sealed = _sealed(Features(np.ones((len(rows), 4), np.float32), rows, features.extractor), recipe, key)
            told = KnownPairs(descriptors=rows, codes=rows_of(sealed.code))
            knowledge = Knowledge(public=public, told=told, encoder=before_seal(sealed.recipe))
        return recover_with_oracle(_sealed(features, recipe, key), knowledge).descriptors

    return read


def _sealed(features: Features, recipe: Recipe, key: int) -> ConcealedFeatures:
    """Return features sealed under a key made from a number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        warnings.simplefilter("ignore", WideSealWarning)
        return conceal(features, recipe, None, evaluation_seed=key, positions=True)  # rows as they came
