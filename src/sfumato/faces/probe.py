# SPDX-License-Identifier: Apache-2.0
"""Faces on the device: read from pictures or embeddings, made into probes, verified and identified.

For a sealed gallery a probe is sealed under the person's key, which is on this device. For a lifted one it is the clear
embedding itself (p-to-s), or a lifting of it (s-to-s). Templates and probes draw from different halves of the decoys,
so that no two strangers share a decoy and meet. Every s-to-s probe is a new, independent lifting of the face: anyone
who keeps several can find the face where they meet (section 5 of the paper).

Pictures need the extra ``face``; embeddings need nothing.
"""

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.concealment.decoys import Decoys, as_decoys
from sfumato.concealment.faces import conceal_embeddings, seal_embeddings, split_decoys
from sfumato.concealment.keys import PersonKey, device_key, is_weak, key_for_gallery, person_key
from sfumato.concealment.seal import fingerprint
from sfumato.errors import DecoyError, FileError, ImageError, InputError, SkippedWarning, suggest
from sfumato.faces.compare import BITS, POINT, SUBSPACE, checked_comparison
from sfumato.faces.decide import Decision, Identification, Identifier, identify_probe, verify_probe
from sfumato.faces.gallery import Gallery, has_personal_keys
from sfumato.faces.gallery_file import load_gallery
from sfumato.features.embeddings import SUFFIXES, is_embedding_file, read_embeddings
from sfumato.features.faces import FaceParams, FaceReader
from sfumato.images.read import list_images, read_image
from sfumato.types.clear import Embeddings
from sfumato.types.concealed import ConcealedTemplates
from sfumato.types.extractor import Extractor
from sfumato.types.progress import Progress, identity
from sfumato.types.recipe import Recipe

PathName = str | os.PathLike[str]
FaceInput = PathName | Embeddings | ArrayLike
"""A picture, a folder of pictures, a file of embeddings, or embeddings (N, n)."""

KeySource = bytes | PathName | Mapping[str, bytes] | None
"""The key of one person, its file, the keys of several by their ids; None: files of this user, a person each."""

REASONS_SHOWN = 3


def verify(
    face: FaceInput,
    gallery: PathName | Gallery,
    person: str,
    *,
    key: KeySource = None,
    key_of: str | None = None,
    secret: bytes | None = None,
    comparison: str | None = None,
    decoys: Decoys | PathName | None = None,
    row: str | None = None,
    labels: Mapping[str, str] | ArrayLike | None = None,
    params: FaceParams | None = None,
    extractor: str | None = None,
) -> Decision:
    """Tell whether a face is the person who was enrolled, by the gallery's threshold (``calibrate``).

    ``face`` is a picture, a file of embeddings, of which ``row`` names one, or an embedding (n,). It is sealed under
    the ``key`` of the person, by default the one that ``enroll`` left on this device; ``key_of`` takes that of another
    id. ``secret`` is the device key of a gallery with one key for all. ``params`` are for pictures, ``extractor`` names
    the network of embeddings.

    A lifted gallery has a ``comparison``: p-to-s, where the clear embedding is compared, or s-to-s, where it is
    concealed first, with the gallery's ``decoys``.

    Raises InputError for someone who is not enrolled, more than one face, or a gallery without a threshold for this
    comparison, FileError and ImageError for files and for a key that is not here.

    >>> import numpy as np, tempfile, sfumato
    >>> rng = np.random.default_rng(0)
    >>> alice, strangers = rng.normal(size=64), rng.normal(size=(80, 64))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     gallery, key = f"{folder}/gallery.sqlite", sfumato.new_key()
    ...     _ = sfumato.enroll(alice, gallery, ids="alice", key=key)
    ...     _ = sfumato.calibrate(strangers, gallery, rate=0.01, people=[str(i) for i in range(80)])
    ...     photos = alice + 0.1 * rng.normal(size=64), strangers[0]
    ...     [verify(photo, gallery, "alice", key=key).accepted for photo in photos]
    [True, False]
    """
    people = gallery if isinstance(gallery, Gallery) else load_gallery(gallery, (person,))
    people.row(person)
    embedding = one_face(read_faces(face, params, extractor=extractor), row, face)
    keys, owner = PersonKeys(key, key_of), person if has_personal_keys(people.recipe) else None
    comparison = comparison or _comparison_here(people)
    probe = make_probe(embedding, people, comparison, as_decoys(decoys), labels, person=owner, key=keys, secret=secret)
    return verify_probe(probe, people, person)


def identify(
    face: FaceInput,
    gallery: PathName | Gallery,
    k: int = 5,
    *,
    secret: bytes | None = None,
    comparison: str | None = None,
    decoys: Decoys | PathName | None = None,
    row: str | None = None,
    labels: Mapping[str, str] | ArrayLike | None = None,
    params: FaceParams | None = None,
    extractor: str | None = None,
) -> Identification:
    """Return the k enrolled people nearest to a face, nearest first, exactly; the other arguments as in ``verify``.

    Raises InputError for a gallery with a key for each person, and what ``verify`` raises.

    >>> import numpy as np, tempfile, sfumato
    >>> faces, secret = np.random.default_rng(0).normal(size=(3, 64)), sfumato.new_key()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     gallery = f"{folder}/gallery.sqlite"
    ...     _ = sfumato.enroll(faces, gallery, ids=["alice", "bob", "carol"], shared_key=True, secret=secret)
    ...     identify(faces[1], gallery, k=1, secret=secret).candidates[0].id
    'bob'
    """
    people = gallery if isinstance(gallery, Gallery) else load_gallery(gallery)
    if has_personal_keys(people.recipe):
        Identifier(people.templates)  # says why not
    embedding = one_face(read_faces(face, params, extractor=extractor), row, face)
    comparison = comparison or _comparison_here(people)
    probe = make_probe(embedding, people, comparison, as_decoys(decoys), labels, secret=secret)
    return identify_probe(probe, people, k)


def _comparison_here(gallery: Gallery) -> str:
    """Return the comparison where the probe stays in this process: a clear one with lifted templates."""
    return BITS if gallery.recipe.is_sealed else POINT


# --- probes


@dataclass(frozen=True, slots=True, repr=False)
class PersonKeys:
    """Where the keys of people are: ``given``, or in files of this user; ``key_of`` names another id than their own."""

    given: KeySource = None
    key_of: str | None = None

    def __post_init__(self) -> None:
        given = self.given
        if not (given is None or isinstance(given, bytes | bytearray | str | os.PathLike | Mapping)):
            raise InputError(f"key: expected bytes, a file, or keys by id, got {type(given).__name__}")
        is_text = isinstance(given, str) and re.fullmatch(r"(?:[0-9a-fA-F]{2}){16,}", given) is not None
        if is_text or (isinstance(given, str | os.PathLike) and not Path(given).name):
            raise InputError("key: expected the name of a file, or bytes; a key in hexadecimal is bytes.fromhex(text)")

    def place(self, gallery: bytes, person: str) -> PersonKey | None:
        """Return the file of a person's key for a gallery; None for a key that was given as bytes."""
        if self.given is None:
            return person_key(gallery, self.key_of or person)
        return PersonKey(Path(self.given), keeps_old=True) if isinstance(self.given, str | os.PathLike) else None

    def read(self, gallery: bytes, person: str) -> list[bytes]:
        """Return the keys of a person for a gallery that are here; the first is the one in use."""
        place = self.place(gallery, person)
        if place is not None:
            return [key_for_gallery(key, gallery, person) for key in place.read_all()]
        key = self.given.get(self.key_of or person) if isinstance(self.given, Mapping) else self.given
        if not isinstance(key, bytes | bytearray) or is_weak(key):
            raise InputError(
                f"the key of {self.key_of or person!r:.80} is missing, or can be guessed: make one with "
                f"sfumato.new_key()"
            )
        return [key_for_gallery(key, gallery, person)]

    def key_of_template(self, gallery: bytes, template: ConcealedTemplates, width: int) -> bytes:
        """Return the key that a template was sealed under or, if it is not here, another one of the person.

        Raises FileError if there is none at all.
        """
        (person,) = template.ids
        keys = self.read(gallery, person)
        if not keys:
            place = self.place(gallery, person)
            assert place is not None
            raise FileError(
                f"{place.path}: the key of {self.key_of or person!r:.80} is not on this device. Copy it from the "
                f"device where the person was enrolled, or name its file (--key-file)"
            )
        own = [key for key in keys if fingerprint(template.recipe, key, width, odd=True) == template.keys[0]]
        return (own or keys)[0]


def make_probe(
    embeddings: Embeddings,
    gallery: Gallery,
    comparison: str | None = None,
    decoys: Decoys | None = None,
    labels: Mapping[str, str] | ArrayLike | None = None,
    *,
    person: str | None = None,
    key: KeySource | PersonKeys = None,
    secret: bytes | None = None,
) -> NDArray[np.float32] | ConcealedTemplates:
    """Return embeddings in the form that a comparison with a gallery needs: sealed, as they are, or lifted.

    The gallery may come from a server, and what it says does not decide what leaves the device. Embeddings are sealed;
    as they are (p-to-s), or lifted (s-to-s), they are returned only to who names that ``comparison``. ``person``: whose
    ``key`` seals them; a gallery where people have no keys is refused then. ``secret``: the device key of a gallery
    with one key for all.

    Raises InputError for these, for embeddings of another network or dimension, DecoyError where s-to-s needs decoys,
    FileError for a key that is not here.
    """
    is_sealed = gallery.recipe.is_sealed
    if person is not None and not has_personal_keys(gallery.recipe):
        raise InputError(
            f"person: in this gallery ({gallery.recipe}) people have no keys, so that none can seal the probe of "
            f"{person!r:.80}. If they should have some, it is not the right gallery; else leave the person out"
        )
    if comparison is None and not is_sealed:
        raise InputError(
            f"comparison: this gallery is lifted, and its probes are clear embeddings ({POINT}), which must stay on "
            f"this device, or lifted ones ({SUBSPACE}): name one of the two"
        )
    comparison = checked_comparison(comparison or BITS)
    if is_sealed != (comparison == BITS):
        raise InputError(
            f"this gallery is {'sealed' if is_sealed else 'lifted'}: it cannot be compared by {comparison}"
        )
    dimensions = gallery.dimensions if is_sealed else gallery.templates.code.ambient_dim
    refuse_other_network(embeddings, gallery.templates.extractor, dimensions)
    keys = key if isinstance(key, PersonKeys) else PersonKeys(key)
    if has_personal_keys(gallery.recipe):
        if secret is not None:
            raise InputError("this gallery has a key for each person, and none for all: leave the device key out")
        if person is None:
            raise InputError("person: say whose key seals the probe: this gallery has a key for each person")
        chosen = keys.key_of_template(gallery.id, gallery.template(person), embeddings.values.shape[1])
        return seal_embeddings(embeddings, gallery.recipe, [chosen] * len(embeddings))
    if keys != PersonKeys():
        kind = "one key for all" if is_sealed else "no keys"
        raise InputError(f"this gallery has {kind}: leave out the key of a person")
    if comparison == POINT:
        return embeddings.values
    if is_sealed:
        shared = key_for_gallery(device_key() if secret is None else secret, gallery.id)
        return conceal_embeddings(embeddings, gallery.recipe, secret=shared)
    need_decoys(gallery.recipe, decoys)
    _, for_probes = gallery_decoys(gallery.recipe, decoys)
    return conceal_embeddings(
        embeddings, gallery.recipe, for_probes, labels=values_by_name(labels, embeddings.names, "label")
    )


def refuse_other_network(embeddings: Embeddings, extractor: Extractor, dimensions: int | None) -> None:
    """Raise InputError for embeddings of another network or dimension than those of a gallery."""
    if dimensions is not None and embeddings.values.shape[1] != dimensions:
        raise InputError(
            f"this gallery is for embeddings of {dimensions} dimensions, these have {embeddings.values.shape[1]}"
        )
    if not embeddings.extractor.matches(extractor):
        raise InputError(f"this gallery is for {extractor.name} embeddings, these are {embeddings.extractor.name}")


def need_decoys(recipe: Recipe, decoys: Decoys | None) -> None:
    """Raise DecoyError if a recipe for faces lacks its decoys; the bundled ones are SIFT and not for faces."""
    if decoys is None and recipe.lifting is not None and recipe.lifting.decoy_count:
        raise DecoyError(
            f"{recipe} needs decoys, always the same file for one gallery: give it with --decoys FILE; sfumato decoys "
            f"build --faces makes it from faces of other people"
        )


def gallery_decoys(recipe: Recipe, decoys: Decoys | None) -> tuple[Decoys | None, Decoys | None]:
    """Return the decoys for templates and for probes of a gallery; raise InputError if it was made with others."""
    if decoys is None or recipe.decoys is None:
        return None, None
    for_templates, for_probes = split_decoys(decoys)
    if for_templates.checksum != recipe.decoys:
        raise InputError("these decoys are not the ones the gallery was made with: its threshold would not hold")
    return for_templates, for_probes


# --- reading faces


def read_faces(
    faces: FaceInput, params: FaceParams | None = None, *, extractor: str | None = None, progress: Progress = identity
) -> Embeddings:
    """Return the embeddings of a picture, a folder of pictures, a file or folder of embeddings, or an array (N, n).

    Names are those of the pictures, or of the rows. A picture of a folder that cannot be used is left out, with a
    SkippedWarning that says why.

    Raises FileError or ImageError if there is no face at all.
    """
    if isinstance(faces, Embeddings):
        return faces
    if not isinstance(faces, str | os.PathLike):
        return Embeddings(np.atleast_2d(np.asarray(faces)), (), Extractor(extractor or "unknown"))
    path = Path(faces)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and is_embedding_file(file))
        if files:
            return _join([read_embeddings(file, extractor) for file in files])
    elif is_embedding_file(path):
        return read_embeddings(path, extractor)
    return _read_pictures(path, params or FaceParams(), progress)


def _read_pictures(path: Path, params: FaceParams, progress: Progress) -> Embeddings:
    pictures = list_images(path)
    reader = FaceReader(params)
    embeddings, problems = list[Embeddings](), list[ImageError]()
    for name, picture in progress(pictures):
        try:
            embeddings.append(reader.embed(read_image(picture, name)))
        except ImageError as problem:
            if len(pictures) == 1:
                raise
            problems.append(problem)
    if not embeddings:
        reasons = "; ".join(str(problem) for problem in problems[:REASONS_SHOWN])
        raise ImageError(f"{path}: no picture has a face that can be used: {reasons}")
    for reason in problems:
        warnings.warn(f"skipped {reason}", SkippedWarning, stacklevel=4)
    return _join(embeddings)


def _join(parts: Sequence[Embeddings]) -> Embeddings:
    """Return the rows of several sets as one; raise FileError if they are of different networks."""
    kinds = {(part.extractor.name, part.values.shape[1]) for part in parts}
    if len(kinds) != 1:
        networks = " and ".join(sorted(f"{name} of {width} dimensions" for name, width in kinds))
        raise FileError(f"embeddings of different networks cannot be used together: {networks or 'there are none'}")
    names = tuple(name for part in parts for name in part.names)
    return Embeddings(np.concatenate([part.values for part in parts]), names, parts[0].extractor)


def one_face(embeddings: Embeddings, row: str | None, faces: FaceInput) -> Embeddings:
    """Return the one face that was read, or the one with the name ``row``; raise InputError for none or several."""
    names, where = embeddings.names, faces if isinstance(faces, str | os.PathLike) else "faces"
    if row is None:
        if len(names) != 1:
            raise InputError(
                f"{where}: {len(names)} faces instead of one: choose one with --row NAME ({', '.join(SUFFIXES)} files)"
            )
        return embeddings
    rows = [index for index, name in enumerate(names) if name == row]
    if len(rows) != 1:
        count = f"{len(rows)} faces are" if rows else "no face is"
        raise InputError(f"{where}: {count} called {row!r:.80}{'' if rows else suggest(row, names)}")
    return embeddings[rows]


def values_by_name(table: Mapping[str, str] | ArrayLike | None, names: Sequence[str], what: str) -> ArrayLike | None:
    """Return a value for each name: from a table of names, or a list (N,) as it is; raise InputError for a gap."""
    if not isinstance(table, Mapping):
        return table
    missing = [name for name in names if name not in table]
    if missing:
        raise InputError(f"no {what} for {len(missing)} faces, the first is {missing[0]!r:.80}")
    return [table[name] for name in names]
