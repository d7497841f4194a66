# SPDX-License-Identifier: Apache-2.0
"""What the device hands over to be compared: the clear embedding itself (p-to-s), or a lifting of it (s-to-s).

Runs on the device. Templates and probes draw from different halves of the decoys, so that no two strangers share one
and meet. Every s-to-s probe is a new, independent lifting of the face: whoever keeps several can find the
face where they meet (section 5 of the paper).
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.concealment.decoys import Decoys
from sfumato.concealment.faces import conceal_embeddings, split_decoys
from sfumato.errors import DecoyError, InputError
from sfumato.faces.compare import POINT, checked_comparison
from sfumato.faces.gallery import Gallery
from sfumato.types.embeddings import Embeddings
from sfumato.types.recipe import Recipe
from sfumato.types.templates import ConcealedTemplates


def make_probe(
    embeddings: Embeddings,
    gallery: Gallery,
    comparison: str,
    decoys: Decoys | None = None,
    labels: ArrayLike | None = None,
) -> NDArray[np.float32] | ConcealedTemplates:
    """Return embeddings in the form a comparison with a gallery wants.

    Raises InputError for embeddings of another network or dimension, DecoyError where s-to-s needs decoys.
    """
    checked_comparison(comparison)
    templates = gallery.templates
    if embeddings.values.shape[1] != templates.subspaces.ambient_dim:
        raise InputError(
            f"this gallery is for embeddings of {templates.subspaces.ambient_dim} dimensions, these have "
            f"{embeddings.values.shape[1]}"
        )
    if not embeddings.extractor.matches(templates.extractor):
        raise InputError(
            f"this gallery is for {templates.extractor.name} embeddings, these are {embeddings.extractor.name}"
        )
    if comparison == POINT:
        return embeddings.values
    need_decoys(gallery.recipe, decoys)
    _, for_probes = gallery_decoys(gallery.recipe, decoys)
    return conceal_embeddings(embeddings, gallery.recipe, for_probes, labels=labels)


def need_decoys(recipe: Recipe, decoys: Decoys | None) -> None:
    """Raise DecoyError if a recipe for faces lacks its decoys; the bundled ones are of SIFT and never meant."""
    if decoys is None and recipe.lifting is not None and recipe.lifting.decoy_count:
        raise DecoyError(
            f"{recipe} needs decoys, for a gallery always the same file: give it with --decoys FILE; it is made from "
            f"faces of other people by sfumato decoys build --faces"
        )


def gallery_decoys(recipe: Recipe, decoys: Decoys | None) -> tuple[Decoys | None, Decoys | None]:
    """Return the decoys for templates and for probes of a gallery; raises InputError if it was made with others."""
    if decoys is None or recipe.decoys is None:
        return None, None
    for_templates, for_probes = split_decoys(decoys)
    if for_templates.checksum != recipe.decoys:
        raise InputError("these decoys are not the ones the gallery was made with: its threshold would not hold")
    return for_templates, for_probes
