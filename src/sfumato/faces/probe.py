# SPDX-License-Identifier: Apache-2.0
"""What the device hands over to be compared: the clear embedding itself (p-to-s), or a lifting of it (s-to-s).

Runs on the device. Templates and probes draw from different halves of the decoys, so that no two strangers share one
and meet. Every s-to-s probe is a new, independent lifting of the face: whoever keeps several can find the
face where they meet (section 5 of the paper).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.concealment.decoys import Decoys
from sfumato.concealment.faces import conceal_embeddings, split_decoys
from sfumato.errors import DecoyError, FileError, ImageError, InputError, suggest
from sfumato.faces.compare import POINT, checked_comparison
from sfumato.faces.gallery import Gallery
from sfumato.features.embeddings import SUFFIXES, is_embedding_file, read_embeddings
from sfumato.features.faces import FaceParams, FaceReader
from sfumato.images.read import list_images, read_image
from sfumato.types.clear import Embeddings
from sfumato.types.concealed import ConcealedTemplates
from sfumato.types.recipe import Recipe


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


# ----------------------------------------------------------------
# Faces as people have them: a picture, a folder of pictures, or a file of embeddings (npz, csv). Clear
# Runs on the device. A picture needs the extra ``face``; embeddings need nothing.


Progress = Callable[[Iterable[Any]], Iterable[Any]]
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Faces:
    """What was read: ``embeddings``, and ``unusable`` pictures with the reason of each."""

    embeddings: Embeddings
    unusable: dict[str, str] = field(default_factory=dict)


def read_faces(
    path: Path, params: FaceParams | None = None, *, extractor: str | None = None, progress: Progress = iter
) -> Faces:
    """Read a picture, a folder of pictures, or embeddings (a file, or a folder of such files); names are those of the
    pictures, or of the rows.

    Raises FileError or ImageError if there is no face at all.
    """
    if path.is_dir():
        files = sorted(one for one in path.iterdir() if one.is_file() and is_embedding_file(one))
        if files:
            return Faces(joined([read_embeddings(one, extractor) for one in files]))
    elif is_embedding_file(path):
        return Faces(read_embeddings(path, extractor))
    pictures = list_images(path)
    reader, found, unusable = FaceReader(params or FaceParams()), list[Embeddings](), dict[str, str]()
    for name, picture in progress(pictures):
        try:
            found.append(reader.embed(read_image(picture, name)))
        except ImageError as problem:
            if len(pictures) == 1:
                raise
            unusable[name] = str(problem)
    if not found:
        reasons = "; ".join(list(unusable.values())[:SHOWN])
        raise ImageError(f"{path}: no picture has a face that can be used: {reasons}")
    return Faces(joined(found), unusable)


def joined(parts: list[Embeddings]) -> Embeddings:
    """Return the rows of several sets as one; raises FileError if they are of different networks."""
    kinds = {(part.extractor.name, part.values.shape[1]) for part in parts}
    if len(kinds) != 1:
        told = " and ".join(sorted(f"{name} of {width} dimensions" for name, width in kinds))
        raise FileError(f"embeddings of different networks cannot be used together: {told or 'there are none'}")
    names = tuple(name for part in parts for name in part.names)
    return Embeddings(np.concatenate([part.values for part in parts]), names, parts[0].extractor)


def one_face(faces: Faces, row: str | None, path: Path) -> Embeddings:
    """Return the one face that was read, or the one called ``row``; raises InputError if there is none, or several."""
    names = faces.embeddings.names
    if row is None:
        if len(names) != 1:
            raise InputError(
                f"{path} holds {len(names)} faces: say which with --row NAME ({', '.join(SUFFIXES)} files)"
            )
        return faces.embeddings
    places = [place for place, name in enumerate(names) if name == row]
    if len(places) != 1:
        told = f"{len(places)} faces are" if places else "no face is"
        raise InputError(f"{path}: {told} called {row!r:.80}{'' if places else suggest(row, names)}")
    return faces.embeddings[places]
