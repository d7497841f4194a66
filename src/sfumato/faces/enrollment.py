# SPDX-License-Identifier: Apache-2.0
"""Enrollment on the device that sees the people: clear embeddings in, concealed templates in the gallery's file.

A face must not become a template if it looks like someone else's, unlike the person's own, or is among the decoys.
Without a threshold in the gallery only the same photo is recognised; different photos of one face are not.

This module, ``calibration`` and ``probe`` see clear embeddings; the other modules of the package, which a server runs,
never import them.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sfumato.concealment.decoys import Decoys, as_decoys
from sfumato.concealment.faces import conceal_embeddings, conceal_parallel, split_decoys
from sfumato.errors import DecoyError, FileError, InputError
from sfumato.faces.compare import POINT, Threshold, pair_distances
from sfumato.faces.decide import Identifier
from sfumato.faces.gallery import Gallery
from sfumato.faces.gallery_file import change_gallery
from sfumato.faces.probe import FaceInput, gallery_decoys, need_decoys, one_face, read_faces, values_by_name
from sfumato.features.faces import FaceParams
from sfumato.types.clear import Embeddings
from sfumato.types.progress import Progress, identity
from sfumato.types.recipe import Recipe

SAME_PHOTO = 1e-2
"""An embedding this near to a template is the one that is concealed in it: rounding is a hundredth of that."""

SAME_FACE = 0.999
"""Cosine above which a decoy is taken for a face itself, rounded or averaged with little."""

AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Enrollment:
    """The result: the ``ids``, the ``gallery`` as it is now, and those whose template is not their first.

    ``compared``: whether the faces were compared with the enrolled ones. Without a threshold for p-to-s only the same
    photo is recognised.
    """

    ids: tuple[str, ...]
    gallery: Gallery
    released_before: tuple[str, ...] = ()
    compared: bool = True


def enroll(
    faces: FaceInput,
    gallery: str | os.PathLike[str],
    *,
    ids: str | Sequence[str] | None = None,
    recipe: Recipe | str | None = None,
    decoys: Decoys | str | os.PathLike[str] | None = None,
    row: str | None = None,
    labels: Mapping[str, str] | ArrayLike | None = None,
    allow_similar: bool = False,
    params: FaceParams | None = None,
    extractor: str | None = None,
    progress: Progress = identity,
) -> Enrollment:
    """Conceal faces and add them to a gallery's file, which is made if it is missing.

    ``faces`` is a picture, a folder of pictures, a file of embeddings, of which ``row`` chooses one, or embeddings
    (N, n). ``ids`` are by default the names in the file. ``recipe`` is by default the gallery's; a new gallery takes
    hybrid-2 with ``decoys`` and random-2 without. ``labels``, one per face, belong to hybrid-labels. ``params`` are for
    pictures, ``extractor`` names the network of embeddings.

    An id that is enrolled is refused, and so is a photo that is enrolled. Where the gallery has a threshold for p-to-s
    a face that would be accepted as someone else is refused too, unless ``allow_similar``: two templates of one face
    would reveal it. All are enrolled or none.

    Raises InputError for these, DecoyError for missing decoys and for a face among them, FileError for a file that
    cannot be read or written.

    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     enroll(np.eye(2, 64), f"{folder}/gallery.h5", ids=["alice", "bob"]).gallery
    Gallery(ConcealedTemplates(Subspaces(2 of dimension 2 in R^64), 'random-2', unknown), 0 revoked, 0 thresholds)
    """
    embeddings = _with_ids(faces, ids, row, params, extractor, progress)
    decoys = as_decoys(decoys)
    if not len(embeddings):
        raise InputError("there is no face to enroll")
    refuse_decoys(embeddings, decoys)
    with change_gallery(gallery) as change:
        before = change.before
        if before is None:
            first_recipe = Recipe.of(recipe or ("random-2" if decoys is None else "hybrid-2"))
            before = Gallery.empty(first_recipe, embeddings.extractor, embeddings.values.shape[1])
        before.refuse_enrolled(embeddings.names)
        recipe = before.recipe if recipe is None else Recipe.of(recipe)
        need_decoys(recipe, decoys)
        for_templates = None if decoys is None else split_decoys(decoys)[0]  # the other half is for probes
        new = conceal_embeddings(
            embeddings, recipe, for_templates, labels=values_by_name(labels, embeddings.names, "label")
        )
        if change.before is None:  # with the decoys in its recipe
            before = Gallery.empty(new.recipe, new.extractor, new.subspaces.ambient_dim)
        released_before = tuple(person for person in new.ids if person in before.releases)
        after = before.add(new)
        if not allow_similar:
            refuse_similar(after, embeddings, new.ids)
        change.after = after
    compared = len(after) < 2 or allow_similar or point_threshold(after) is not None
    return Enrollment(new.ids, after, released_before, compared)


def renew(
    faces: FaceInput,
    gallery: str | os.PathLike[str],
    *,
    ids: str | Sequence[str] | None = None,
    decoys: Decoys | str | os.PathLike[str] | None = None,
    row: str | None = None,
    allow_different: bool = False,
    allow_similar: bool = False,
    params: FaceParams | None = None,
    extractor: str | None = None,
    progress: Progress = identity,
) -> Enrollment:
    """Replace templates by those of newer photos, along the same directions: nothing is drawn, old and new never meet.

    Where the gallery has a threshold for p-to-s, a photo that the old template would reject is refused unless
    ``allow_different``, and one that would be accepted as someone else unless ``allow_similar``. The same photo as
    someone else's is refused, and with the gallery's ``decoys`` a face that is among them. All are renewed or none.
    The other arguments are those of ``enroll``.

    Raises InputError for these and for someone who is not enrolled, DecoyError for a face among the decoys, FileError
    for a file that cannot be read or written.

    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = enroll(np.eye(1, 64), f"{folder}/gallery.h5", ids="alice")
    ...     renew(np.eye(1, 64) + 0.01, f"{folder}/gallery.h5", ids="alice").ids
    ('alice',)
    """
    embeddings = _with_ids(faces, ids, row, params, extractor, progress)
    decoys = as_decoys(decoys)
    refuse_decoys(embeddings, decoys)
    with change_gallery(gallery) as change:
        if change.before is None:
            raise FileError(f"{gallery}: no such gallery; there is nobody to renew")
        before = change.before
        rows = [before.row(person) for person in embeddings.names]
        gallery_decoys(before.recipe, decoys)
        after = before.replace(conceal_parallel(embeddings, before.templates[rows]))
        if not allow_different:
            refuse_different(before, embeddings)
        if not allow_similar:
            refuse_similar(after, embeddings, embeddings.names)
        change.after = after
    compared = (allow_different and allow_similar) or point_threshold(after) is not None
    return Enrollment(embeddings.names, after, (), compared)


def revoke(ids: str | Sequence[str], gallery: str | os.PathLike[str]) -> Gallery:
    """Remove people from a gallery's file, and return the gallery; that they were released is remembered.

    Raises InputError for someone who is not enrolled, FileError for a file that cannot be read or written.

    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = enroll(np.eye(2, 64), f"{folder}/gallery.h5", ids=["alice", "bob"])
    ...     revoke("bob", f"{folder}/gallery.h5").revoked
    ('bob',)
    """
    people = (ids,) if isinstance(ids, str) else tuple(dict.fromkeys(ids))
    with change_gallery(gallery) as change:
        if change.before is None:
            raise FileError(f"{gallery}: no such gallery; there is nobody to revoke")
        change.after = change.before.revoke(people)
    return change.after


def _with_ids(
    faces: FaceInput,
    ids: str | Sequence[str] | None,
    row: str | None,
    params: FaceParams | None,
    extractor: str | None,
    progress: Progress,
) -> Embeddings:
    """Read faces and give them their ids: the given ones, or else the names in the file."""
    embeddings = read_faces(faces, params, extractor=extractor, progress=progress)
    if row is not None or isinstance(ids, str):
        embeddings = one_face(embeddings, row, faces)
    if ids is not None:
        names = (ids,) if isinstance(ids, str) else tuple(ids)
        embeddings = Embeddings(embeddings.values, names, embeddings.extractor)
    elif not isinstance(faces, str | os.PathLike | Embeddings):
        raise InputError(f"ids: give one for each of the {len(embeddings)} embeddings")
    if len(set(embeddings.names)) < len(embeddings):
        raise InputError("faces: two have the same name; names become ids and must differ")
    return embeddings


# --- faces that must not become templates


def point_threshold(gallery: Gallery) -> Threshold | None:
    """Return the threshold for clear embeddings, if the gallery has one; that of s-to-s does not serve."""
    return next((limit for limit in gallery.thresholds if limit.comparison == POINT), None)


def refuse_similar(gallery: Gallery, embeddings: Embeddings, ids: Sequence[str]) -> None:
    """Raise InputError if a face would be accepted as someone else of a gallery that contains it as one of ``ids``.

    Without a threshold for clear embeddings only the same photo is recognised.
    """
    if len(gallery) < 2 or not len(embeddings):
        return
    threshold = point_threshold(gallery)
    limit = SAME_PHOTO if threshold is None else max(SAME_PHOTO, threshold.distance)
    distances, rows = Identifier(gallery.templates).search(embeddings.values, k=2)
    own = np.array([gallery.row(person) for person in ids])
    similar = (rows != own[:, None]) & (distances <= limit)
    if not similar.any():
        return
    face, rank = np.argwhere(similar)[0]
    if threshold is None or distances[face, rank] <= SAME_PHOTO:
        advice = "It is the same photo: leave it out, or allow similar faces (--allow-similar)"
    else:
        chance = threshold.measured_rate * (len(gallery) - 1)
        advice = (
            f"About {chance:.2g} others look alike by chance: allow similar faces (--allow-similar) if these are "
            f"different people"
        )
    raise InputError(
        f"{ids[face]!r:.80} looks like {gallery.templates.ids[rows[face, rank]]!r:.80}, who is enrolled or about to "
        f"be; {int(similar.any(axis=1).sum())} of {len(ids)} faces look like someone. Two templates of one face would "
        f"reveal it. {advice}"
    )


def refuse_different(gallery: Gallery, embeddings: Embeddings) -> None:
    """Raise InputError if a face would be rejected as the person it renews, where the gallery has a threshold."""
    threshold = point_threshold(gallery)
    if threshold is None:
        return
    rows = [gallery.row(person) for person in embeddings.names]
    distances = pair_distances(embeddings.values, gallery.templates, np.arange(len(rows)), np.array(rows, np.int64))
    different = np.flatnonzero(distances > threshold.distance)
    if different.size:
        first = different[0]
        raise InputError(
            f"the new photo of {embeddings.names[first]!r:.80} would be rejected: its distance to the template is "
            f"{distances[first]:.4f}, the threshold {threshold.distance:.4f} ({POINT}); so would {different.size} of "
            f"{len(rows)}. A template must not move to another face: take another photo, or allow different faces "
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
