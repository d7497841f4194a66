# SPDX-License-Identifier: Apache-2.0
"""Attacks on encoded features: a lifting after encoders, encoders undone by least squares, and learned decoders.

A lifting after encoders is attacked in the space that was lifted, where the encoded public descriptors and decoys are
what clear ones are to a lifting alone. What is recovered is a point of the encoder's space; a decoder trained for the
encoder alone, or else least squares over public descriptors and their encodings, carries it back. A learned decoder is
the general attack: it assumes nothing but that the attacker knows the recipe and has photos.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.knowledge import IdentityCache, Knowledge, Recovery, fallback
from sfumato.errors import InputError
from sfumato.inversion.descriptors import Decoder, read_decoder
from sfumato.types.arrays import frozen_array
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe

Floats = NDArray[np.float32]
Recover = Callable[[ConcealedFeatures, Knowledge], Recovery]

RIDGE = 1e-4
"""Added to the spread of encodings, as a share of its mean, so that least squares stays solvable."""

SAME_NORM = 1e-3

_encodings, _maps = IdentityCache(4), IdentityCache(4)
"""Encoded descriptors and ways back, by the encoder and the descriptors, for the next image with the same ones."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class BackMap:
    """Best linear map from encodings to descriptors: ``matrix`` (n' + 1, n); and what descriptors are like.

    ``positive``: none has a negative number; ``norm``: the one they all have, or None.
    """

    matrix: NDArray[np.float64]
    positive: bool
    norm: float | None

    def __call__(self, points: Floats) -> Floats:
        """Return descriptors (N, n) for points (N, n') of the encoder's space."""
        guesses = points.astype(np.float64) @ self.matrix[:-1] + self.matrix[-1]
        if self.positive:
            np.maximum(guesses, 0, out=guesses)
        if self.norm is not None:
            guesses *= self.norm / np.maximum(np.linalg.norm(guesses, axis=1, keepdims=True), 1e-9)
        descriptors: Floats = guesses.astype(np.float32)
        return descriptors

    def __repr__(self) -> str:
        return f"BackMap({self.matrix.shape[0] - 1} to {self.matrix.shape[1]} dimensions)"


@dataclass(frozen=True, slots=True)
class AfterEncoder:
    """Attack on liftings that also works where encoders came first: what it recovers is carried back."""

    recover: Recover

    def __call__(self, features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
        if not features.recipe.has_encoder:
            return self.recover(features, knowledge)
        return carry_back(self.recover(as_lifted(features), encode_knowledge(knowledge)), knowledge)


def as_lifted(features: ConcealedFeatures) -> ConcealedFeatures:
    """Return features as if their lifting had been all, of a descriptor named after the last encoder."""
    recipe = features.recipe
    if recipe.lifting is None:
        raise InputError(f"recipe {recipe} has no lifting to attack")
    alone = Recipe(
        links=(recipe.lifting,), evaluation_seed=recipe.evaluation_seed, keyed=recipe.keyed, decoys=recipe.decoys
    )
    kind = Extractor(f"{recipe.encoders[-1].kind}-{features.extractor.name}")
    return replace(features, recipe=alone, extractor=kind)


def encode_knowledge(knowledge: Knowledge) -> Knowledge:
    """Return knowledge with public descriptors, decoys and clear ones in the space of the known encoder."""
    if knowledge.encoder is None:
        raise InputError("this attack needs the encoder that was used (encoder)")
    rows: dict[str, Any] = {
        name: _encode(knowledge.encoder, getattr(knowledge, name))
        for name in ("public", "decoys", "clear")
        if getattr(knowledge, name) is not None
    }
    return replace(knowledge, **rows, encoder=None, decoder=None, point_decoder=None)


def carry_back(recovery: Recovery, knowledge: Knowledge) -> Recovery:
    """Return clear descriptors for points of the encoder's space, which are kept as ``inside``."""
    if knowledge.point_decoder is not None:
        guesses = np.asarray(knowledge.point_decoder(recovery.descriptors), np.float32)
    else:
        guesses = back_map(knowledge)(recovery.descriptors)
    return Recovery(guesses, recovery.confidence, recovery.descriptors)


def recover_regression(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
    """Undo encoders by least squares over public descriptors and their encodings: all that released points need."""
    if features.subspaces.dim:
        raise InputError("regression is for points of an encoder's space: these are subspaces")
    return Recovery(back_map(knowledge)(features.subspaces.origin), np.ones(len(features), np.float32))


def back_map(knowledge: Knowledge) -> BackMap:
    """Return the linear map back from the known encoder's space, learned from public descriptors, or the decoys.

    Raises InputError without either, or without the encoder.
    """
    rows = knowledge.decoys if knowledge.public is None else knowledge.public
    if rows is None or knowledge.encoder is None:
        raise InputError("the way back from an encoder's space needs public descriptors and the encoder")
    encoder = knowledge.encoder
    return _maps.get(
        (rows,), lambda: _learn(_encode(encoder, rows).astype(np.float64), rows.astype(np.float64)), key=encoder
    )


def _learn(points: NDArray[np.float64], rows: NDArray[np.float64]) -> BackMap:
    """Solve the ridge regression of rows (V, n) on points (V, n')."""
    middle, mean = points.mean(axis=0), rows.mean(axis=0)
    centred = points - middle
    spread = centred.T @ centred
    spread[np.diag_indices(len(spread))] += RIDGE * max(float(np.trace(spread)) / len(spread), 1e-12)
    matrix = np.linalg.solve(spread, centred.T @ (rows - mean))
    norms = np.linalg.norm(rows, axis=1)
    common = float(np.median(norms))
    norm = common if np.abs(norms - common).max() <= SAME_NORM * common else None
    return BackMap(np.vstack([matrix, mean - middle @ matrix]), bool(rows.min() >= 0), norm)


def _encode(encoder: Callable[[Floats], Floats], rows: Floats) -> Floats:
    """Return descriptors as an encoder makes them."""
    return _encodings.get(
        (rows,), lambda: frozen_array(encoder(rows), "encoded descriptors", (len(rows), None)), key=encoder
    )


# --- the learned decoder


def load_decoder(path: str | os.PathLike[str]) -> Decoder:
    """Read a decoder made by ``sfumato train decoder``: call it with Subspaces for descriptors (N, n).

    Raises FileError if it is missing, damaged or something else.
    """
    return read_decoder(path)


def recover_decoder(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
    """Return what a trained decoder makes of concealed features, and how sure it is.

    A decoder that does not say how sure it is, any function of Subspaces, is taken to be sure. A guess that is not
    finite is replaced by what the subspace alone says.

    Raises InputError if the decoder was trained for features of another kind or form.
    """
    decoder = knowledge.decoder
    if decoder is None:
        raise InputError("the decoder attack needs a decoder: train one with sfumato train decoder")
    if isinstance(decoder, Decoder):
        _refuse_other_kind(decoder, features)
        guesses, sure = decoder.decode(features.subspaces)
    else:
        guesses = np.asarray(decoder(features.subspaces), np.float32)
        sure = np.ones(len(features), np.float32)
    if guesses.ndim != 2 or len(guesses) != len(features):
        raise InputError(f"the decoder returned {guesses.shape} for {len(features)} features")
    wrong = ~np.isfinite(guesses).all(axis=1)
    if wrong.any() and guesses.shape[1] == features.code.ambient_dim:
        guesses, sure = guesses.copy(), sure.copy()
        guesses[wrong], sure[wrong] = fallback(features.subspaces[wrong]).descriptors, 0
    return Recovery(guesses, sure)


def _refuse_other_kind(decoder: Decoder, features: ConcealedFeatures) -> None:
    """Refuse features of a kind or space that the decoder never saw; another lifting there only weakens it."""
    trained = str(decoder.facts.get("extractor", "unknown"))
    if "unknown" not in (trained, features.extractor.name) and trained != features.extractor.name:
        raise InputError(f"this decoder was trained on {trained}, the features are {features.extractor.name}")
    recipe = Recipe.of(str(decoder.facts.get("recipe", "raw")))
    if recipe.space != features.recipe.space:
        raise InputError(f"this decoder was trained for {recipe}, the features were made by {features.recipe}")
