# SPDX-License-Identifier: Apache-2.0
"""Enrollment on the device that sees the people: clear embeddings in, concealed templates in the gallery's file.

**Sealed**, the default: each person has a key, a file on this device, made before the template and never over another.
Renewing makes a new key. Templates under different keys have nothing in common, so that nothing is compared with the
other people of the gallery.

**Lifted**: a face must not become a template if it looks like someone else's, unlike the person's own, or is among the
decoys. Without a threshold in the gallery only the same photo is recognised; different photos of one face are not.
Draws come from the device key, the gallery, the number of the release and the embedding. What a kill leaves behind is
thus what the next attempt writes; with another photo the next attempt is a further release, and counted.

This module, ``calibration`` and ``probe`` see clear embeddings; the other modules of the package, which a server runs,
never import them.
"""

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.concealment.decoys import Decoys, as_decoys
from sfumato.concealment.faces import (
    FACE_RECIPE,
    conceal_embeddings,
    conceal_parallel,
    face_recipe,
    release_secret,
    seal_embeddings,
    split_decoys,
)
from sfumato.concealment.keys import PersonKey, device_key, is_weak, key_for_gallery, person_key
from sfumato.concealment.seal import check_sealed, checked_key, fingerprint, seal_link
from sfumato.errors import DecoyError, FileError, InputError, RecipeError
from sfumato.faces.compare import BITS, POINT, Threshold, distances, pair_distances, usual_threshold
from sfumato.faces.decide import Identifier, verify_probe
from sfumato.faces.gallery import ID_BYTES, Gallery, GalleryFacts, refuse_unprotected
from sfumato.faces.gallery_file import RELEASED, GalleryWriter, code_rows, template_digest
from sfumato.faces.probe import (
    FaceInput,
    KeySource,
    PersonKeys,
    gallery_decoys,
    make_probe,
    need_decoys,
    one_face,
    read_faces,
    refuse_other_network,
    values_by_name,
)
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
FEWEST_NUMBERS = 16
"""Networks for faces give 128 or 512 numbers; with fewer than this many, few strangers differ."""
FEW_FACES = 8
"""Up to this many all distances are computed; to prepare the templates for a search would take longer."""


@dataclass(frozen=True, slots=True)
class Enrollment:
    """The result of a change: the ``ids``, and the number of ``people`` in the gallery now, with its ``recipe``.

    ``released_before``: those whose lifted template is not their first. ``compared``: whether the faces were compared
    with the enrolled ones. Without a threshold for p-to-s only the same photo is recognised. ``keys``: the file of the
    person's key or, of several people, the folder of theirs; None if no file was written.
    """

    ids: tuple[str, ...]
    people: int
    recipe: Recipe
    released_before: tuple[str, ...] = ()
    compared: bool = True
    keys: Path | None = None


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
    key: KeySource = None,
    shared_key: bool = False,
    secret: bytes | None = None,
    params: FaceParams | None = None,
    extractor: str | None = None,
    progress: Progress = identity,
) -> Enrollment:
    """Conceal faces and add them to a gallery's file, which is made if it is missing.

    ``faces`` is a picture, a folder of pictures, a file of embeddings, of which ``row`` chooses one, or embeddings
    (N, n). ``ids`` are by default the names in the file. ``recipe`` is by default the gallery's; a new gallery takes
    sealed-2048, or hybrid-2 with ``decoys``. ``params`` are for pictures, ``extractor`` names the network of
    embeddings. An id that is enrolled is refused. All are enrolled or none.

    **Sealed**: each person gets a key of 32 random bytes, in a file of this user (``person_key``). ``key`` names
    another file for one person, or gives keys as bytes by id. With ``shared_key`` a new gallery has one key for all,
    derived from the device key ``secret``: only then ``identify`` can search it, and templates in it can be linked with
    each other.

    **Lifted**: ``labels``, one per face, belong to hybrid-labels. ``secret`` is the device key, by default this user's:
    an attempt that was interrupted repeats its draws under the same key, and never without it. A photo that is enrolled
    is refused. Where the gallery has a threshold for p-to-s a face that would be accepted as someone else is refused
    too, unless ``allow_similar``: two templates of one face would reveal it.

    Raises InputError for these, DecoyError for missing decoys and for a face among them, FileError for a file that
    cannot be read or written.

    >>> import numpy as np, tempfile, sfumato
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     keys = {"alice": sfumato.new_key(), "bob": sfumato.new_key()}
    ...     enroll(np.eye(2, 64), f"{folder}/gallery.sqlite", ids=["alice", "bob"], key=keys).people
    2
    """
    embeddings = _with_ids(faces, ids, row, params, extractor, progress)
    decoys = as_decoys(decoys)
    if not len(embeddings):
        raise InputError("there is no face to enroll")
    refuse_decoys(embeddings, decoys)
    by_name = values_by_name(labels, embeddings.names, "label")
    keys = PersonKeys(key)
    with GalleryWriter(gallery) as writer:
        facts = writer.facts
        first = FACE_RECIPE if decoys is None else "hybrid-2"
        chosen = Recipe.of(recipe or (first if facts is None else facts.recipe))
        refuse_unprotected(chosen)
        if chosen.is_sealed:
            if labels is not None or decoys is not None:
                raise InputError(f"recipe {chosen} takes neither decoys nor labels: they belong to liftings")
            return _Sealing(embeddings, chosen, keys, shared_key, secret).enroll(writer)
        if shared_key or keys != PersonKeys():
            raise InputError(f"recipe {chosen} has no keys of people: they belong to sealed templates")
        request = _Request(embeddings, chosen, decoys, by_name, allow_similar, secret)
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
    key: KeySource = None,
    old_key: KeySource = None,
    secret: bytes | None = None,
    params: FaceParams | None = None,
    extractor: str | None = None,
    progress: Progress = identity,
) -> Enrollment:
    """Replace templates by those of newer photos. All are renewed or none.

    **Sealed**: each person gets a new key, in the place of the old one. ``key`` as bytes are the new ones, ``old_key``
    those of before, if they are elsewhere than the new ones or in a keystore. With the old key a photo that the old
    template would reject is refused, and without it any photo, unless ``allow_different``. A gallery with one key for
    all keeps it.

    **Lifted**: the new template has the same directions; nothing is drawn, old and new never meet. Where the gallery
    has a threshold for p-to-s, a photo that the old template would reject is refused unless ``allow_different``, and
    one that would be accepted as someone else unless ``allow_similar``. The same photo as someone else's is refused,
    and with the gallery's ``decoys`` a face that is among them. The other arguments are those of ``enroll``.

    Raises InputError for these and for someone who is not enrolled, DecoyError for a face among the decoys, FileError
    for a file that cannot be read or written.

    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = enroll(np.eye(1, 64), f"{folder}/gallery.sqlite", ids="alice", key=f"{folder}/alice.key")
    ...     renew(np.eye(1, 64) + 0.01, f"{folder}/gallery.sqlite", ids="alice", key=f"{folder}/alice.key").ids
    ('alice',)
    """
    embeddings = _with_ids(faces, ids, row, params, extractor, progress)
    decoys = as_decoys(decoys)
    refuse_decoys(embeddings, decoys)
    with GalleryWriter(gallery) as writer:
        if (recipe := writer.need_facts().recipe).is_sealed:
            request = _Sealing(embeddings, recipe, PersonKeys(key), False, secret, PersonKeys(old_key))
            return request.renew(writer, allow_different=allow_different)
        if key is not None or old_key is not None:
            raise InputError(f"recipe {recipe} has no keys of people: they belong to sealed templates")
        gallery_decoys(recipe, decoys)
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

    The keys that ``enroll`` left on this device are deleted too; they serve nothing any more.

    Raises InputError for someone who is not enrolled, FileError for a file that cannot be read or written.

    >>> import numpy as np, tempfile, sfumato
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     keys = {"alice": sfumato.new_key(), "bob": sfumato.new_key()}
    ...     _ = enroll(np.eye(2, 64), f"{folder}/gallery.sqlite", ids=["alice", "bob"], key=keys)
    ...     revoke("bob", f"{folder}/gallery.sqlite").people
    1
    """
    people = (ids,) if isinstance(ids, str) else tuple(dict.fromkeys(ids))
    with GalleryWriter(gallery) as writer:
        facts = writer.need_facts()
        with writer.turn():
            writer.revoke(people)
        if facts.has_personal_keys:
            for person in people:
                person_key(facts.id, person).remove()
        return Enrollment(people, writer.people, facts.recipe)


@dataclass(frozen=True, slots=True)
class _Sealing:
    """People whose templates are sealed: with which keys, or with one for all, derived from the device key."""

    embeddings: Embeddings
    recipe: Recipe
    keys: PersonKeys
    shared_key: bool
    secret: bytes | None = field(repr=False)
    old_keys: PersonKeys = field(default_factory=PersonKeys)

    def enroll(self, writer: GalleryWriter) -> Enrollment:
        """Make keys, seal, and add the templates to a gallery, which is begun if nobody is in it."""
        writer.refuse_enrolled(self.embeddings.names)
        self._refuse_narrow()
        self._refuse_one_file()
        self._refuse_unusable(writer.facts)
        with writer.turn():
            if writer.facts is None:
                writer.begin(self._new_facts())
        facts = writer.need_facts()
        if self.shared_key and facts.has_personal_keys:
            raise InputError("this gallery has a key for each person: start another one for a shared key")
        refuse_other_network(self.embeddings, facts.extractor, facts.dimensions)
        self._refuse_other_recipe(facts)
        if not facts.has_personal_keys:
            templates, places = self._seal_shared(facts), []
        else:
            was_here = {person for person, known in writer.releases(self.embeddings.names).items() if known}
            places = [self.keys.place(facts.id, person) for person in self.embeddings.names]
            keys = [
                self._new_key(facts, person, place, again=person in was_here, is_new_person=True)
                for person, place in zip(self.embeddings.names, places, strict=True)
            ]
            templates = seal_embeddings(self.embeddings, facts.recipe, keys)
        with writer.turn():
            writer.add(templates)
        return self._finish(writer, places)

    def renew(self, writer: GalleryWriter, *, allow_different: bool) -> Enrollment:
        """Make new keys, seal newer photos under them, and replace the templates."""
        facts, names = writer.need_facts(), self.embeddings.names
        self._refuse_one_file()
        self._refuse_unusable(facts)
        refuse_other_network(self.embeddings, facts.extractor, facts.dimensions)
        places = [self.keys.place(facts.id, person) if facts.has_personal_keys else None for person in names]
        before = self._settle(writer, places)
        compared = allow_different or self._refuse_different(facts, before)
        if facts.has_personal_keys:
            keys = [
                self._other_key(facts, before[[row]], place) or self._new_key(facts, names[row], place, again=True)
                for row, place in enumerate(places)
            ]
            templates = seal_embeddings(self.embeddings, facts.recipe, keys)
        else:
            templates = self._seal_shared(facts)
        with writer.turn():
            if writer.templates(names).keys != before.keys:
                raise InputError("somebody else renewed these people meanwhile: try again")
            writer.replace(templates)
        return self._finish(writer, places, compared=compared)

    def _new_facts(self) -> GalleryFacts:
        """Return the facts of a new gallery: its id, and the recipe with the bandwidth of the network.

        Raises RecipeError for sizes out of range and for a recipe that names a key: a file with it would serve nobody.
        """
        gallery, width = secrets.token_bytes(ID_BYTES), self.embeddings.values.shape[1]
        recipe = face_recipe(self.recipe, self.embeddings.extractor.name)
        check_sealed(recipe)
        if recipe.links[-1].checksum:
            raise RecipeError(f"recipe {recipe} names a key, and a new gallery has new ones: leave out what follows @")
        if self.shared_key:
            key = checked_key(recipe, key_for_gallery(self._device_key(), gallery))
            recipe = Recipe(links=(seal_link(recipe.links[-1], recipe, key, width, odd=True)[1],))
        extractor = self.embeddings.extractor
        return GalleryFacts(id=gallery, recipe=replace(recipe, keyed=True), extractor=extractor, dimensions=width)

    def _refuse_other_recipe(self, facts: GalleryFacts) -> None:
        """Raise InputError for a recipe of other bits or another bandwidth, if it names one, than the gallery's."""
        asked, link = self.recipe.links[-1], facts.recipe.links[-1]
        if not facts.recipe.is_sealed or asked.dim != link.dim or asked.bandwidth not in (None, link.bandwidth):
            raise InputError(
                f"this gallery is made with {facts.recipe}, not with {self.recipe}: leave the recipe out, or start "
                f"another gallery"
            )

    def _seal_shared(self, facts: GalleryFacts) -> ConcealedTemplates:
        return conceal_embeddings(self.embeddings, facts.recipe, secret=key_for_gallery(self._device_key(), facts.id))

    def _device_key(self) -> bytes:
        if self.secret is not None and is_weak(self.secret):
            raise InputError("secret: this one can be guessed: take random bytes, for example sfumato.new_key()")
        return device_key() if self.secret is None else self.secret

    def _new_key(
        self, facts: GalleryFacts, person: str, place: PersonKey | None, *, again: bool, is_new_person: bool = False
    ) -> bytes:
        """Return the key of a new template, derived for the gallery: the given one, or that of a file.

        A file that was made before the person was ever in the gallery is used; else a new key waits beside it.
        """
        if place is None:
            return self.keys.read(facts.id, person)[0]
        if again and is_new_person and self.keys.given is not None and not place.is_free:
            raise InputError(
                f"{place.path}: this file is there, and a person who was revoked needs a new key: name another file, "
                f"or remove it if no gallery needs it"
            )
        known = [] if again else place.read_all()
        return key_for_gallery(known[0] if known else place.begin(), facts.id, person)

    def _other_key(self, facts: GalleryFacts, template: ConcealedTemplates, place: PersonKey | None) -> bytes | None:
        """Return the key in use, if a template is still under the old one of its file: it was renewed elsewhere.

        Raises InputError for a file that was named and holds other keys: it would be overwritten.
        """
        if place is None or self.keys.given is None or place.is_free:
            return None
        own = [name for name, _ in self._names(facts, template, place)]
        if template.keys[0] not in own:
            raise InputError(f"{place.path}: this file holds another key than the template's: name another file")
        is_old = own.index(template.keys[0]) > 0
        return key_for_gallery(place.read_all()[0], facts.id, template.ids[0]) if is_old else None

    def _names(self, facts: GalleryFacts, template: ConcealedTemplates, place: PersonKey) -> list[tuple[str, bytes]]:
        """Return the fingerprint that each key of a file has in this gallery, and the key."""
        (person,), width = template.ids, facts.dimensions
        return [
            (fingerprint(template.recipe, key_for_gallery(key, facts.id, person), width, odd=True), key)
            for key in place.read_all()
        ]

    def _settle(self, writer: GalleryWriter, places: Sequence[PersonKey | None]) -> ConcealedTemplates:
        """Put the keys of the templates that the gallery holds in their place, and return the templates.

        In a turn, so that nobody renews meanwhile: of two processes the one that wrote last has its key in use.
        """
        with writer.turn():
            facts, templates = writer.need_facts(), writer.templates(self.embeddings.names)
            for row, place in enumerate(places):
                if place is not None:
                    template = templates[[row]]
                    for name, key in self._names(facts, template, place):
                        if name == template.keys[0]:
                            place.finish(key)
        return templates

    def _refuse_different(self, facts: GalleryFacts, before: ConcealedTemplates) -> bool:
        """Raise InputError if a photo would be rejected under the old key, or that key is not here.

        Return whether there was a threshold to compare with.
        """
        threshold = facts.threshold(BITS) or usual_threshold(facts.recipe, facts.extractor.name)
        gallery = Gallery(before, {}, () if threshold is None else (threshold,), facts.id, facts.dimensions)
        for row, person in enumerate(before.ids):
            keys = self.old_keys
            if keys == PersonKeys() and self.keys.place(facts.id, person) is not None:
                keys = self.keys
            owner = person if facts.has_personal_keys else None
            try:
                probe = make_probe(self.embeddings[[row]], gallery, person=owner, key=keys, secret=self.secret)
            except FileError as cause:
                raise InputError(
                    f"{cause}. Without the old key (--old-key-file, old_key=) nobody can check that the new photo is "
                    f"of the same person: allow different faces (--allow-different) if you know that it is"
                ) from cause
            assert isinstance(probe, ConcealedTemplates)
            reason = ""
            if probe.keys != before[[row]].keys:
                reason = "the key that is here is not the one of the template"
            elif threshold is not None and not (decision := verify_probe(probe, gallery, person)).accepted:
                reason = f"{decision.distance:.3f} of its bits differ, {threshold.distance:.3f} may"
            if reason:
                raise InputError(
                    f"the new photo of {person!r:.80} would be rejected: {reason}. A template must not move to another "
                    f"face: take another photo, or allow different faces (--allow-different) if you know that it is "
                    f"the same person"
                )
        return threshold is not None

    def _refuse_unusable(self, facts: GalleryFacts | None) -> None:
        """Raise InputError or FileError, before anything is written, for keys that cannot be used as they were given.

        Those are keys for a gallery with one key for all, keys that can be guessed, and people without one.
        """
        if self.keys == self.old_keys == PersonKeys():
            return
        if self.shared_key if facts is None else not facts.has_personal_keys:
            raise InputError("this gallery has one key for all: leave out the key of a person, or start another one")
        if self.keys.given is not None:
            for person in self.embeddings.names:
                self.keys.read(bytes(ID_BYTES), person)
        if self.old_keys.given is not None:
            for person in self.embeddings.names:
                self.old_keys.read(bytes(ID_BYTES), person)

    def _refuse_narrow(self) -> None:
        """Raise InputError for embeddings of so few numbers that they are no faces."""
        width = self.embeddings.values.shape[1]
        if width < FEWEST_NUMBERS:
            raise InputError(
                f"these embeddings have {width} numbers, and those of faces have {FEWEST_NUMBERS} or more: look at "
                f"the file they come from"
            )

    def _refuse_one_file(self) -> None:
        is_file = isinstance(self.keys.given, str | os.PathLike | bytes | bytearray)
        if is_file and len(self.embeddings) > 1:
            raise InputError(
                f"key: one key cannot be that of {len(self.embeddings)} people: leave it out, and each gets a file"
            )

    def _finish(
        self, writer: GalleryWriter, places: Sequence[PersonKey | None], *, compared: bool = True
    ) -> Enrollment:
        """Put the new keys in their place, now that the gallery holds what they sealed."""
        files = [place for place in places if place is not None]
        if files:
            self._settle(writer, places)
        paths = sorted({place.path if len(files) == 1 else place.path.parent for place in files})
        facts = writer.need_facts()
        folder = paths[0] if paths else None
        return Enrollment(self.embeddings.names, writer.people, facts.recipe, compared=compared, keys=folder)


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
    recipe: Recipe
    decoys: Decoys | None
    labels: ArrayLike | None
    allow_similar: bool
    secret: bytes | None = field(repr=False)

    def draft(self, writer: GalleryWriter) -> _Draft:
        """Draw templates for a gallery as it is now, and refuse faces that must not be in it; nothing is written."""
        facts = writer.facts
        writer.refuse_enrolled(self.embeddings.names)
        recipe = self.recipe
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
