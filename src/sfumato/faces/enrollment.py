# SPDX-License-Identifier: Apache-2.0
"""Enrollment on the device that sees the people: clear embeddings in, concealed templates in the gallery's file.

A face must not become a template if it looks like someone else's, unlike the person's own, or is among the decoys.
Without a threshold in the gallery only the same photo is recognised; different photos of one face are not.

Draws come from the device key, the gallery, the number of the release and the embedding. What a kill leaves behind is
thus what the next attempt writes; with another photo the next attempt is a further release, and counted.

This module, ``calibration`` and ``probe`` see clear embeddings; the other modules of the package, which a server runs,
never import them.
"""

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.concealment.decoys import Decoys, as_decoys
from sfumato.concealment.faces import conceal_embeddings, conceal_parallel, release_secret, split_decoys
from sfumato.concealment.keys import device_key
from sfumato.errors import DecoyError, InputError
from sfumato.faces.compare import POINT, Threshold, distances, pair_distances
from sfumato.faces.decide import Identifier
from sfumato.faces.gallery import ID_BYTES, GalleryFacts, refuse_unprotected
from sfumato.faces.gallery_file import RELEASED, GalleryWriter, code_rows, template_digest
from sfumato.faces.probe import FaceInput, gallery_decoys, need_decoys, one_face, read_faces, values_by_name
from sfumato.features.faces import FaceParams
from sfumato.types.clear import Embeddings
from sfumato.types.concealed import ConcealedTemplates, Subspaces
from sfumato.types.progress import Progress, identity
from sfumato.types.recipe import Recipe

SAME_PHOTO = 1e-2
"""An embedding this near to a template is the one that is concealed in it: rounding is a hundredth of that."""

SAME_FACE = 0.999
"""Cosine above which a decoy is taken for a face itself, rounded or averaged with little."""

AT_ONCE = 4096
FEW_FACES = 8
"""Up to this many all distances are computed; to prepare the templates for a search would take longer."""


@dataclass(frozen=True, slots=True)
class Enrollment:
    """The result of a change: the ``ids``, and the number of ``people`` in the gallery now, with its ``recipe``.

    ``released_before``: those whose template is not their first. ``compared``: whether the faces were compared with
    the enrolled ones. Without a threshold for p-to-s only the same photo is recognised.
    """

    ids: tuple[str, ...]
    people: int
    recipe: Recipe
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
    secret: bytes | None = None,
    params: FaceParams | None = None,
    extractor: str | None = None,
    progress: Progress = identity,
) -> Enrollment:
    """Conceal faces and add them to a gallery's file, which is made if it is missing.

    ``faces`` is a picture, a folder of pictures, a file of embeddings, of which ``row`` chooses one, or embeddings
    (N, n). ``ids`` are by default the names in the file. ``recipe`` is by default the gallery's; a new gallery takes
    hybrid-2 with ``decoys`` and random-2 without. ``labels``, one per face, belong to hybrid-labels. ``secret`` is the
    device key, by default this user's: an attempt that was interrupted repeats its draws under the same key, and never
    without it. ``params`` are for pictures, ``extractor`` names the network of embeddings.

    An id that is enrolled is refused, and so is a photo that is enrolled. Where the gallery has a threshold for p-to-s
    a face that would be accepted as someone else is refused too, unless ``allow_similar``: two templates of one face
    would reveal it. All are enrolled or none.

    Raises InputError for these, DecoyError for missing decoys and for a face among them, FileError for a file that
    cannot be read or written.

    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     enroll(np.eye(2, 64), f"{folder}/gallery.sqlite", ids=["alice", "bob"]).people
    2
    """
    embeddings = _with_ids(faces, ids, row, params, extractor, progress)
    decoys = as_decoys(decoys)
    if not len(embeddings):
        raise InputError("there is no face to enroll")
    refuse_decoys(embeddings, decoys)
    by_name = values_by_name(labels, embeddings.names, "label")
    request = _Request(embeddings, recipe, decoys, by_name, allow_similar, secret)
    with GalleryWriter(gallery) as writer:
        draft = request.draft(writer)
        with writer.turn() as others_wrote:
            draft = request.draft(writer) if others_wrote else draft
            writer.begin(draft.facts)
            writer.reserve(draft.templates, draft.numbers)
        with writer.turn() as others_wrote:
            draft = request.draft(writer) if others_wrote else draft
            writer.add(draft.templates, draft.numbers)
        people = writer.people
    compared = people < 2 or allow_similar or draft.facts.threshold(POINT) is not None
    return Enrollment(embeddings.names, people, draft.facts.recipe, draft.released_before, compared)


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
    ...     _ = enroll(np.eye(1, 64), f"{folder}/gallery.sqlite", ids="alice")
    ...     renew(np.eye(1, 64) + 0.01, f"{folder}/gallery.sqlite", ids="alice").ids
    ('alice',)
    """
    embeddings = _with_ids(faces, ids, row, params, extractor, progress)
    decoys = as_decoys(decoys)
    refuse_decoys(embeddings, decoys)
    with GalleryWriter(gallery) as writer:
        gallery_decoys(writer.need_facts().recipe, decoys)
        with writer.turn():
            facts, before = writer.need_facts(), writer.templates(embeddings.names)
            threshold = facts.threshold(POINT)
            if not allow_different:
                refuse_different(before, threshold, embeddings)
            writer.replace(conceal_parallel(embeddings, before))
            if not allow_similar:
                refuse_similar(writer.blocks(), threshold, embeddings)
        people = writer.people
    compared = (allow_different and allow_similar) or threshold is not None
    return Enrollment(embeddings.names, people, facts.recipe, (), compared)


def revoke(ids: str | Sequence[str], gallery: str | os.PathLike[str]) -> Enrollment:
    """Remove people from a gallery's file; that they were released is remembered.

    Raises InputError for someone who is not enrolled, FileError for a file that cannot be read or written.

    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = enroll(np.eye(2, 64), f"{folder}/gallery.sqlite", ids=["alice", "bob"])
    ...     revoke("bob", f"{folder}/gallery.sqlite").people
    1
    """
    people = (ids,) if isinstance(ids, str) else tuple(dict.fromkeys(ids))
    with GalleryWriter(gallery) as writer:
        facts = writer.need_facts()
        with writer.turn():
            writer.revoke(people)
        return Enrollment(people, writer.people, facts.recipe)


@dataclass(frozen=True, slots=True)
class _Draft:
    """The templates to add to a gallery with these facts, and the number of each among the person's releases.

    ``released_before``: those who have other releases.
    """

    facts: GalleryFacts
    templates: ConcealedTemplates
    numbers: tuple[int, ...]
    released_before: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Request:
    """People to enroll: how to conceal them, and with which key."""

    embeddings: Embeddings
    recipe: Recipe | str | None
    decoys: Decoys | None
    labels: ArrayLike | None
    allow_similar: bool
    secret: bytes | None = field(repr=False)

    def draft(self, writer: GalleryWriter) -> _Draft:
        """Draw templates for a gallery as it is now, and refuse faces that must not be in it; nothing is written."""
        facts = writer.facts
        writer.refuse_enrolled(self.embeddings.names)
        first = "random-2" if self.decoys is None else "hybrid-2"
        recipe = Recipe.of(self.recipe or (first if facts is None else facts.recipe))
        refuse_unprotected(recipe)
        need_decoys(recipe, self.decoys)
        gallery = secrets.token_bytes(ID_BYTES) if facts is None else facts.id
        releases = writer.releases(self.embeddings.names)
        templates, numbers = self._draw(releases, recipe, gallery)
        if facts is None:  # with the decoys in its recipe
            facts = GalleryFacts(
                id=gallery,
                recipe=templates.recipe,
                extractor=templates.extractor,
                dimensions=templates.code.ambient_dim,
            )
        facts.refuse_other(templates)
        if not self.allow_similar:
            refuse_similar(chain(writer.blocks(), (templates,)), facts.threshold(POINT), self.embeddings)
        before = [name for name, number in zip(templates.ids, numbers, strict=True) if releases[name].keys() - {number}]
        return _Draft(facts, templates, numbers, tuple(before))

    def _draw(
        self, releases: Mapping[str, Mapping[int, bytes]], recipe: Recipe, gallery: bytes
    ) -> tuple[ConcealedTemplates, tuple[int, ...]]:
        """Return the templates and the number of each release.

        A release that was begun and not finished is repeated if it is of the same embedding, to the last bit. Otherwise
        its template, of another photo, may be on a disk somewhere: the next number counts it.
        """
        names, key = self.embeddings.names, device_key() if self.secret is None else self.secret
        decoys = None if self.decoys is None else split_decoys(self.decoys)[0]  # the other half is for probes
        numbers, parts = [0] * len(names), list[tuple[list[int], ConcealedTemplates]]()
        for number in range(1, max(map(len, releases.values())) + 2):
            rows = [
                row for row, name in enumerate(names)
                if not numbers[row] and releases[name].get(number) != RELEASED
            ]  # fmt: skip
            if not rows:
                continue
            new = conceal_embeddings(
                self.embeddings[rows],
                recipe,
                decoys,
                labels=None if self.labels is None else np.asarray(self.labels)[rows],
                secret=None if recipe.lifting and recipe.lifting.epsilon else release_secret(key, gallery, number),
            )
            begun = [releases[names[row]].get(number) for row in rows]
            fits = [
                place for place, code in enumerate(code_rows(new))
                if begun[place] is None or begun[place] == template_digest(code)
            ]  # fmt: skip
            for place in fits:
                numbers[rows[place]] = number
            parts.append(([rows[place] for place in fits], new[fits]))
        order = np.argsort([row for rows, _ in parts for row in rows])
        code = Subspaces(*(
            np.concatenate([getattr(part.code, name) for _, part in parts])[order] for name in ("origin", "basis")
        ))  # fmt: skip
        return ConcealedTemplates(names, code, new.recipe, new.extractor), tuple(numbers)


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


def refuse_similar(blocks: Iterable[ConcealedTemplates], threshold: Threshold | None, embeddings: Embeddings) -> None:
    """Raise InputError if a face would be accepted as someone else of a gallery, whose templates come in blocks.

    Without a threshold for clear embeddings only the same photo is recognised.
    """
    limit = SAME_PHOTO if threshold is None else max(SAME_PHOTO, threshold.distance)
    people, similar = 0, dict[str, tuple[str, float]]()
    for block in blocks:
        people += len(block)
        if block.ids == embeddings.names and len(block) == 1:
            continue  # the first person of all
        places = {person: place for place, person in enumerate(block.ids)}
        own = np.array([places.get(person, -1) for person in embeddings.names], np.int64)
        near: NDArray[np.floating]
        if len(embeddings) <= FEW_FACES:
            near, rows = distances(embeddings.values, block), np.arange(len(block))[None]
        else:
            near, rows = Identifier(block).search(embeddings.values, k=2)
        rows = np.broadcast_to(rows, near.shape)
        for face, rank in np.argwhere((rows != own[:, None]) & (near <= limit)):
            similar.setdefault(embeddings.names[face], (block.ids[rows[face, rank]], float(near[face, rank])))
    if not similar:
        return
    person = next(name for name in embeddings.names if name in similar)
    other, distance = similar[person]
    if threshold is None or distance <= SAME_PHOTO:
        advice = "It is the same photo: leave it out, or allow similar faces (--allow-similar)"
    else:
        chance = threshold.measured_rate * (people - 1)
        advice = (
            f"About {chance:.2g} others look alike by chance: allow similar faces (--allow-similar) if these are "
            f"different people"
        )
    raise InputError(
        f"{person!r:.80} looks like {other!r:.80}, who is enrolled or about to be; {len(similar)} of "
        f"{len(embeddings)} faces look like someone. Two templates of one face would reveal it. {advice}"
    )


def refuse_different(before: ConcealedTemplates, threshold: Threshold | None, embeddings: Embeddings) -> None:
    """Raise InputError if a face would be rejected as the person it renews, row for row, where there is a threshold."""
    if threshold is None:
        return
    rows = np.arange(len(embeddings))
    far = pair_distances(embeddings.values, before, rows, rows)
    different = np.flatnonzero(far > threshold.distance)
    if different.size:
        first = different[0]
        raise InputError(
            f"the new photo of {embeddings.names[first]!r:.80} would be rejected: its distance to the template is "
            f"{far[first]:.4f}, the threshold {threshold.distance:.4f} ({POINT}); so would {different.size} of "
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
