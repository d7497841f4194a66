# SPDX-License-Identifier: Apache-2.0
"""The codebook that --retrieval votes with: made of decoys, in the space where the images of an archive live."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.concealment.decoy_file import load_decoys
from sfumato.concealment.decoys import Decoys
from sfumato.concealment.encoder import load_encoder
from sfumato.concealment.resolve import encode_decoys, find_encoders
from sfumato.device import bundled_decoys
from sfumato.errors import ArchiveError, InputError
from sfumato.matching.retrieval import Codebook, make_codebook
from sfumato.store import Archive
from sfumato.store.layout import Header


def codebook_of(decoys: Decoys, **settings: Any) -> Codebook:
    """Return a codebook made of decoys, which are of the same kind as what they hide; settings as in make_codebook."""
    parts = np.empty(len(decoys), np.int64)
    parts[decoys.permutation] = np.repeat(np.arange(decoys.parts), np.diff(decoys.part_starts))
    made = {"decoys": decoys.checksum}
    return make_codebook(decoys.descriptors, decoys.extractor, parts, made=made, **settings)


def codebook_for(
    images: Mapping[str, Any], decoys: Path | None, encoder: Path | None, **settings: Any
) -> Codebook | None:
    """Return the codebook for images of an archive, made of a decoys file if one is given; None: the bundled one.

    Features that went through an encoder get one of their own, of the given decoys or the bundled ones, encoded by the
    given encoder or a bundled one.

    Raises InputError if the encoder is at hand nowhere, or the given one is another.
    """
    header = first_header(images)
    if header is None or not header.recipe.has_encoder:
        if encoder is not None:
            raise InputError("--encoder is for features that went through an encoder, these did not")
        return None if decoys is None else codebook_of(load_decoys(decoys), **settings)
    if header.recipe.is_sealed:
        raise InputError(
            "--retrieval needs public words of the same space, and only a holder of the key can seal them: choose "
            "pairs with --sequential, --pairs or --exhaustive"
        )
    resolved = find_encoders(header.recipe, [] if encoder is None else [load_encoder(encoder)])
    if resolved is None:
        raise InputError(
            f"these features live in the space of {header.recipe}, and so must the codebook of --retrieval: give the "
            f"encoder with --encoder FILE"
        )
    known = bundled_decoys(header) if decoys is None else load_decoys(decoys)
    return replace(codebook_of(encode_decoys(resolved, known), **settings), space=resolved.recipe.space)


def first_header(images: Mapping[str, Any]) -> Header | None:
    """Return what the first readable image of an archive says about itself; None if this is no archive."""
    for name in images if isinstance(images, Archive) else ():
        try:
            return images.header(name)  # type: ignore[attr-defined, no-any-return]
        except ArchiveError:  # told when the image is read
            pass
    return None
