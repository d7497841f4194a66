# SPDX-License-Identifier: Apache-2.0
"""Enrolling people on the device that sees them: clear embeddings in, concealed templates in the gallery's file.

The only modules of this package that see clear embeddings are this one, ``calibrate.py`` and ``read.py``; what a server
runs (``gallery.py``, ``galleryfile.py``, ``compare.py``, ``identify.py``, ``thresholds.py``) never imports them.
"""

import os
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from sfumato.concealment.decoys import Decoys
from sfumato.concealment.faces import conceal_embeddings, conceal_parallel, split_decoys
from sfumato.errors import FileError, InputError
from sfumato.faces.compare import POINT
from sfumato.faces.gallery import Gallery
from sfumato.faces.galleryfile import changing
from sfumato.faces.identify import Identifier
from sfumato.types.embeddings import Embeddings
from sfumato.types.recipe import Recipe
from sfumato.types.templates import ConcealedTemplates


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrollParams:
    """How to enroll. ``recipe`` None takes the gallery's; a new gallery takes hybrid-2 with decoys, random-2 without.

    ``labels`` (N,) belong to hybrid-labels. ``allow_similar`` also enrolls a face that looks like somebody enrolled.
    """

    recipe: Recipe | str | None = None
    decoys: Decoys | None = field(default=None, repr=False)
    labels: ArrayLike | None = field(default=None, repr=False)
    allow_similar: bool = False


@dataclass(frozen=True, slots=True)
class Enrolled:
    """What became of it: the ``ids``, the ``gallery`` as it is now, and those whose template is not their first."""

    ids: tuple[str, ...]
    gallery: Gallery
    released_before: tuple[str, ...] = ()


def enroll(path: str | os.PathLike[str], embeddings: Embeddings, params: EnrollParams) -> Enrolled:
    """Conceal embeddings and add them to a gallery's file, which is made if it is missing; their names become the ids.

    Who is enrolled already is refused, and so is, where the gallery has a threshold, a face that would be accepted as
    somebody else: two templates of one face would reveal it. All are enrolled or none.

    Raises InputError for these, FileError for a file that can not be read or written.
    """
    if not len(embeddings):
        raise InputError("there is no face to enroll")
    with changing(path) as change:
        gallery = new_gallery(embeddings, params) if change.before is None else change.before
        gallery.refuse_enrolled(embeddings.names)
        recipe = gallery.recipe if params.recipe is None else params.recipe
        decoys = None if params.decoys is None else split_decoys(params.decoys)[0]  # the others are for probes
        new = conceal_embeddings(embeddings, recipe, decoys, labels=params.labels)
        if change.before is None:  # with the decoys noted
            gallery = Gallery.empty(new.recipe, new.extractor, new.subspaces.ambient_dim)
        before = tuple(one for one in new.ids if one in gallery.releases)
        together = gallery.add(new)
        if not params.allow_similar:
            refuse_similar(together, embeddings, new)
        change.after = together
    return Enrolled(new.ids, together, before)


def renew(path: str | os.PathLike[str], embeddings: Embeddings) -> Enrolled:
    """Replace templates by newer ones along the same directions; nothing is drawn, and no two of them ever meet.

    Raises InputError for somebody who is not enrolled, FileError for a file that can not be read or written.
    """
    with changing(path) as change:
        if change.before is None:
            raise FileError(f"{path}: no such gallery; there is nobody to renew")
        gallery = change.before
        rows = [gallery.row(one) for one in embeddings.names]
        change.after = gallery.replace(conceal_parallel(embeddings, gallery.templates[rows]))
    return Enrolled(embeddings.names, change.after)


def revoke(path: str | os.PathLike[str], ids: tuple[str, ...]) -> Gallery:
    """Remove templates from a gallery's file; that they were released is remembered."""
    with changing(path) as change:
        if change.before is None:
            raise FileError(f"{path}: no such gallery; there is nobody to revoke")
        change.after = change.before.revoke(ids)
    return change.after


def new_gallery(embeddings: Embeddings, params: EnrollParams) -> Gallery:
    """Return a gallery of nobody for such embeddings."""
    recipe = Recipe.of(params.recipe or ("random-2" if params.decoys is None else "hybrid-2"))
    return Gallery.empty(recipe, embeddings.extractor, embeddings.values.shape[1])


def refuse_similar(gallery: Gallery, embeddings: Embeddings, new: ConcealedTemplates) -> None:
    """Raise InputError if a face would be accepted as somebody else of a gallery that holds it, and has a threshold."""
    if not any(one.comparison == POINT for one in gallery.thresholds) or len(gallery) < 2:
        return
    threshold = gallery.threshold(POINT)
    found, rows = Identifier(gallery.templates).search(embeddings.values, k=2)
    own = np.array([gallery.row(one) for one in new.ids])
    similar = (rows != own[:, None]) & (found <= threshold.distance)
    if similar.any():
        mine, place = np.argwhere(similar)[0]
        other = gallery.templates.ids[rows[mine, place]]
        raise InputError(
            f"{new.ids[mine]!r:.80} looks like {other!r:.80}, who is enrolled or about to be; "
            f"{int(similar.any(axis=1).sum())} of {len(new)} faces look like somebody. Two templates of one face would "
            f"reveal it. About {threshold.measured_rate * (len(gallery) - 1):.2g} others look alike by chance: "
            f"allow similar faces if these are different people"
        )
