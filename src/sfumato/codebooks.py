# SPDX-License-Identifier: Apache-2.0
"""Public descriptors that an archive is searched with: the codebook of its votes, and the cells of its index.

Both are made of decoys, in the space where the features of the archive live. Decoys and encoders are knowledge of the
device; what a server runs takes a finished codebook or index.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.decoys import Decoys, bundled_decoys, load_decoys
from sfumato.concealment.encoder import load_encoder
from sfumato.concealment.resolve import encode_decoys, find_encoders
from sfumato.errors import ArchiveError, DecoyError, InputError
from sfumato.matching.codebook import Codebook, make_codebook
from sfumato.matching.retrieval import refuse_codebook
from sfumato.search.archives import index_images
from sfumato.search.factory import default_kind, refuse_existing
from sfumato.search.index import Index
from sfumato.store.archive import Archive, open_archive
from sfumato.store.layout import BITS, ImageHeader
from sfumato.types.progress import Progress

AnyPath = str | os.PathLike[str]


def codebook_of(decoys: Decoys, **settings: Any) -> Codebook:
    """Return a codebook made of decoys, which are of the same kind as what they hide; settings as in make_codebook."""
    parts = np.empty(len(decoys), np.int64)
    parts[decoys.permutation] = np.repeat(np.arange(decoys.parts), np.diff(decoys.part_starts))
    made = {"decoys": decoys.checksum}
    return make_codebook(decoys.descriptors, decoys.extractor, parts, made=made, **settings)


def codebook_for(
    images: AnyPath | Mapping[str, Any],
    decoys: AnyPath | None = None,
    encoder: AnyPath | None = None,
    **settings: Any,
) -> Codebook | None:
    """Return the codebook for votes of an archive's images; None where the bundled one, or none at all, is for them.

    ``decoys``: a decoys file to make it of. Features that went through an encoder get a codebook of their own, of these
    decoys or the bundled ones, encoded by the file ``encoder`` or a bundled encoder. Sealed features vote
    without one. There is none where the encoder is unknown: votes are then an error that says so.

    Raises InputError for an encoder that these features did not go through.

    >>> from sfumato import match_archive
    >>> match_archive("ninja.sfm", "matches.h5", "votes:20", codebook=codebook_for("ninja.sfm"))  # doctest: +SKIP
    """
    if isinstance(images, str | os.PathLike):
        with open_archive(images) as archive:
            return codebook_for(archive, decoys, encoder, **settings)
    header = first_header(images)
    if header is None or not header.recipe.has_encoder:
        if encoder is not None:
            raise InputError("--encoder is for features that went through an encoder, these did not")
        return None if decoys is None else codebook_of(load_decoys(decoys), **settings)
    if header.recipe.is_sealed:
        refuse_codebook(decoys or encoder)
        return None
    resolved = find_encoders(header.recipe, [] if encoder is None else [load_encoder(encoder)])
    if resolved is None:
        return None
    clear = bundled_decoys(header.extractor) if decoys is None else load_decoys(decoys)
    return replace(codebook_of(encode_decoys(resolved, clear), **settings), space=resolved.recipe.space)


def build_index(
    archive: AnyPath | Archive,
    path: AnyPath,
    kind: str | None = None,
    params: Any = None,
    *,
    decoys: AnyPath | None = None,
    overwrite: bool = False,
    progress: Progress = iter,
) -> Index:
    """Make an index of all features of an archive, write it to a file, and return it.

    ``kind``: "sketch" is the fast one for sealed features, "inverted" for others, and the default; "exact" compares
    with every entry, "grassmann" and "projector" are published methods to compare with, not for sealed features.
    ``params``: those of the kind, as for ``sfumato.search.build``. The cells of an inverted index are made of public
    descriptors: of the file ``decoys``, or the bundled ones for SIFT and RootSIFT.

    Raises InputError where there is nothing to index, FileError if the file is there already and ``overwrite`` is not
    set, or it cannot be written.

    >>> import tempfile, numpy as np
    >>> from sfumato import ConcealedFeatures, Subspaces, save
    >>> lines = Subspaces(np.eye(8)[:3], np.eye(8)[3:6, None])
    >>> work = tempfile.mkdtemp()
    >>> save(f"{work}/private.sfm", {"desk.jpg": ConcealedFeatures(np.zeros((3, 4)), lines, "random-1")})
    >>> build_index(f"{work}/private.sfm", f"{work}/features.index", "exact")
    ExactIndex(3 entries in R^8, metric distance)
    """
    with open_archive(archive) as images:
        if kind is None:
            header = first_header(images)
            kind = default_kind(header is not None and header.dtype == BITS)
        if decoys is not None and kind != "inverted":
            raise InputError(f"decoys (--points) make the cells of the kind inverted, {kind!r:.80} has none")
        refuse_existing(path, [images.path, decoys], overwrite=overwrite)
        if kind == "inverted" and isinstance(params, Mapping | None):
            params = {"points": _cell_points(images, decoys), **(params or {})}
        index = index_images(images, kind, params, progress=progress)
    index.save(path)
    return index


def _cell_points(images: Archive, decoys: AnyPath | None) -> NDArray[np.float32] | None:
    """Return public descriptors like the hidden ones, from a file or bundled; None where there are none."""
    if decoys is not None:
        return load_decoys(decoys).descriptors
    header = first_header(images)
    if header is None or header.recipe.has_encoder:
        return None
    try:
        points = bundled_decoys(header.extractor).descriptors
    except DecoyError:
        return None
    return points if points.shape[1] == header.ambient_dim else None


def first_header(images: Mapping[str, Any]) -> ImageHeader | None:
    """Return the header of the first readable image of an archive; None if this is no archive."""
    for name in images if isinstance(images, Archive) else ():
        try:
            return images.header(name)  # type: ignore[attr-defined, no-any-return]
        except ArchiveError:  # reported when the image is read
            pass
    return None
