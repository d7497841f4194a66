# SPDX-License-Identifier: Apache-2.0
"""The learned decoder as an attack: a network trained on public photos concealed under the same recipe.

The general attack, and the only one on encoded descriptors: it assumes nothing about them but that the attacker knows
the recipe and has photos. Knows how a decoder is asked, not how it works (``learn.decoder``) nor how it is trained.
"""

import os

import numpy as np

from sfumato.attack.knowledge import Knowledge, Recovered, fallback
from sfumato.errors import InputError
from sfumato.learn.decoder import Decoder, read_decoder
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.recipe import Recipe


def load_decoder(path: str | os.PathLike[str]) -> Decoder:
    """Read a decoder made by ``sfumato train decoder``: call it with Subspaces for descriptors (N, n).

    Raises FileError if it is missing, damaged or something else.
    """
    return read_decoder(path)


def recover_decoder(features: ConcealedFeatures, knowledge: Knowledge) -> Recovered:
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
    if wrong.any() and guesses.shape[1] == features.subspaces.ambient_dim:
        guesses, sure = guesses.copy(), sure.copy()
        guesses[wrong], sure[wrong] = fallback(features.subspaces[wrong]).descriptors, 0
    return Recovered(guesses, sure)


def _refuse_other_kind(decoder: Decoder, features: ConcealedFeatures) -> None:
    """Refuse features of a kind or space that the decoder never saw; another lifting there only weakens it."""
    trained = str(decoder.facts.get("extractor", "unknown"))
    if "unknown" not in (trained, features.extractor.name) and trained != features.extractor.name:
        raise InputError(f"this decoder was trained on {trained}, the features are {features.extractor.name}")
    recipe = Recipe.of(str(decoder.facts.get("recipe", "raw")))
    if recipe.space != features.recipe.space:
        raise InputError(f"this decoder was trained for {recipe}, the features were made by {features.recipe}")
