# SPDX-License-Identifier: Apache-2.0
"""Enrolling people on the device that sees them: clear embeddings in, concealed templates in the gallery's file.

The only modules of this package that see clear embeddings are this one, ``calibrate.py``, ``likeness.py``, ``probe.py``
and ``read.py``; what a server runs (``gallery.py``, ``galleryfile.py``, ``compare.py``, ``identify.py``,
``thresholds.py``) never imports them.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from sfumato.concealment.decoys import Decoys
from sfumato.concealment.faces import conceal_embeddings, conceal_parallel, split_decoys
from sfumato.errors import DecoyError, FileError, InputError
from sfumato.faces.compare import POINT, Threshold, pair_distances
from sfumato.faces.decide import Identifier
from sfumato.faces.gallery import Gallery
from sfumato.faces.gallery_file import changing
from sfumato.faces.probe import gallery_decoys, need_decoys
from sfumato.types.clear import Embeddings
from sfumato.types.recipe import Recipe

# ----------------------------------------------------------------
# Faces that must not become templates: like somebody else's, unlike the person's own, or among the decoys
# Runs where clear embeddings may be seen. Different photos of one person are told from those of two by a gallery's
# threshold alone; one and the same photo is told without any.


SAME_PHOTO = 1e-2
"""An embedding this near to a template is the one that is concealed in it: rounding is a hundredth of that."""

SAME_FACE = 0.999
"""Cosine above which a decoy is taken for a face itself, rounded or averaged with little."""

AT_ONCE = 4096


def point_threshold(gallery: Gallery) -> Threshold | None:
    """Return the threshold that clear embeddings are held against, if the gallery has one; that of s-to-s is none."""
    return next((one for one in gallery.thresholds if one.comparison == POINT), None)


def refuse_similar(gallery: Gallery, embeddings: Embeddings, ids: Sequence[str]) -> None:
    """Raise InputError if a face would be accepted as somebody else of a gallery that holds it as one of ``ids``.

    Without a threshold for clear embeddings only the same photo is recognised.
    """
    if len(gallery) < 2 or not len(embeddings):
        return
    threshold = point_threshold(gallery)
    limit = SAME_PHOTO if threshold is None else max(SAME_PHOTO, threshold.distance)
    found, rows = Identifier(gallery.templates).search(embeddings.values, k=2)
    own = np.array([gallery.row(one) for one in ids])
    similar = (rows != own[:, None]) & (found <= limit)
    if not similar.any():
        return
    mine, place = np.argwhere(similar)[0]
    if threshold is None or found[mine, place] <= SAME_PHOTO:
        advice = "It is the same photo: leave it out, or allow similar faces (--allow-similar)"
    else:
        chance = threshold.measured_rate * (len(gallery) - 1)
        advice = (
            f"About {chance:.2g} others look alike by chance: allow similar faces (--allow-similar) if these are "
            f"different people"
        )
    raise InputError(
        f"{ids[mine]!r:.80} looks like {gallery.templates.ids[rows[mine, place]]!r:.80}, who is enrolled or about to "
        f"be; {int(similar.any(axis=1).sum())} of {len(ids)} faces look like somebody. Two templates of one face would "
        f"reveal it. {advice}"
    )


def refuse_different(gallery: Gallery, embeddings: Embeddings) -> None:
    """Raise InputError if a face would be rejected as the one whose name it has, where the gallery has a threshold."""
    threshold = point_threshold(gallery)
    if threshold is None:
        return
    rows = [gallery.row(one) for one in embeddings.names]
    found = pair_distances(embeddings.values, gallery.templates, np.arange(len(rows)), np.array(rows, np.int64))
    different = np.flatnonzero(found > threshold.distance)
    if different.size:
        first = different[0]
        raise InputError(
            f"the new photo of {embeddings.names[first]!r:.80} would be rejected: it is at {found[first]:.4f} from the "
            f"template, the threshold is {threshold.distance:.4f} ({POINT}); so are {different.size} of {len(rows)}. A "
            f"template must not move to another face: take another photo, or allow different faces "
            f"(--allow-different) if you know that it is the same person"
        )


def refuse_decoys(embeddings: Embeddings, decoys: Decoys | None) -> None:
    """Raise DecoyError if a face is among the decoys: a template with that decoy would pass through the face."""
    if decoys is None or decoys.descriptors.shape[1] != embeddings.values.shape[1]:
        return
    lengths = np.linalg.norm(decoys.descriptors, axis=1, keepdims=True)
    others = (decoys.descriptors / np.maximum(lengths, np.finfo(np.float32).tiny)).T
    for start in range(0, len(embeddings), AT_ONCE):
        nearest = (embeddings.values[start : start + AT_ONCE] @ others).max(axis=1)
        among = np.flatnonzero(nearest > SAME_FACE)
        if among.size:
            raise DecoyError(
                f"the face {embeddings.names[start + among[0]]!r:.80} is among the decoys: templates of others would "
                f"pass through it. Build the decoys from faces of people who are neither enrolled nor measured with: "
                f"sfumato decoys build --faces"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrollParams:
    """How to enroll. ``recipe`` None takes the gallery's; a new gallery takes hybrid-2 with decoys, random-2 without.

    ``labels`` (N,) belong to hybrid-labels. ``allow_similar`` also enrolls a face that looks like somebody enrolled.
    """

    recipe: Recipe | str | None = None
    decoys: Decoys | None = field(default=None, repr=False)
    labels: ArrayLike | None = field(default=None, repr=False)
    allow_similar: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewParams:
    """How to renew. ``allow_different`` also takes a photo that the old template would reject, ``allow_similar`` one
    that looks like somebody else. With the gallery's ``decoys`` a face that is among them is refused.
    """

    decoys: Decoys | None = field(default=None, repr=False)
    allow_different: bool = False
    allow_similar: bool = False


@dataclass(frozen=True, slots=True)
class Enrolled:
    """What became of it: the ``ids``, the ``gallery`` as it is now, and those whose template is not their first.

    ``compared`` tells whether the faces were held against those enrolled, or there was nothing to compare; without a
    threshold for p-to-s only the same photo can be recognised.
    """

    ids: tuple[str, ...]
    gallery: Gallery
    released_before: tuple[str, ...] = ()
    compared: bool = True


def enroll(path: str | os.PathLike[str], embeddings: Embeddings, params: EnrollParams) -> Enrolled:
    """Conceal embeddings and add them to a gallery's file, which is made if it is missing; their names become the ids.

    Who is enrolled already is refused, and so is a photo that is enrolled and, where the gallery has a threshold for
    p-to-s, a face that would be accepted as somebody else: two templates of one face would reveal it. All are enrolled
    or none.

    Raises InputError for these, DecoyError for missing decoys and for a face among them, FileError for a file that can
    not be read or written.
    """
    if not len(embeddings):
        raise InputError("there is no face to enroll")
    refuse_decoys(embeddings, params.decoys)
    with changing(path) as change:
        gallery = new_gallery(embeddings, params) if change.before is None else change.before
        gallery.refuse_enrolled(embeddings.names)
        recipe = gallery.recipe if params.recipe is None else Recipe.of(params.recipe)
        need_decoys(recipe, params.decoys)
        decoys = None if params.decoys is None else split_decoys(params.decoys)[0]  # the others are for probes
        new = conceal_embeddings(embeddings, recipe, decoys, labels=params.labels)
        if change.before is None:  # with the decoys noted
            gallery = Gallery.empty(new.recipe, new.extractor, new.subspaces.ambient_dim)
        before = tuple(one for one in new.ids if one in gallery.releases)
        together = gallery.add(new)
        if not params.allow_similar:
            refuse_similar(together, embeddings, new.ids)
        change.after = together
    compared = len(together) < 2 or params.allow_similar or point_threshold(together) is not None
    return Enrolled(new.ids, together, before, compared)


def renew(path: str | os.PathLike[str], embeddings: Embeddings, params: RenewParams | None = None) -> Enrolled:
    """Replace templates by newer ones along the same directions; nothing is drawn, and no two of them ever meet.

    Where the gallery has a threshold for p-to-s, a photo that the old template would reject is refused, and one that
    would be accepted as somebody else; the same photo as somebody else's always. All are renewed or none.

    Raises InputError for these and for somebody who is not enrolled, DecoyError for a face among the decoys, FileError
    for a file that cannot be read or written.
    """
    params = params or RenewParams()
    refuse_decoys(embeddings, params.decoys)
    with changing(path) as change:
        if change.before is None:
            raise FileError(f"{path}: no such gallery; there is nobody to renew")
        gallery = change.before
        rows = [gallery.row(one) for one in embeddings.names]
        gallery_decoys(gallery.recipe, params.decoys)
        moved = gallery.replace(conceal_parallel(embeddings, gallery.templates[rows]))
        if not params.allow_different:
            refuse_different(gallery, embeddings)
        if not params.allow_similar:
            refuse_similar(moved, embeddings, embeddings.names)
        change.after = moved
    compared = (params.allow_different and params.allow_similar) or point_threshold(moved) is not None
    return Enrolled(embeddings.names, moved, (), compared)


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
