# SPDX-License-Identifier: Apache-2.0
"""Concealed templates of face embeddings: sealed under a key of each person or lifted, and the decoys of a lifting.

Both are those of local features; a face is a row without a position in a picture.
"""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.concealment.decoy_clusters import build_decoys, draw_descriptors
from sfumato.concealment.decoys import DEFAULT_PARTS, Decoys
from sfumato.concealment.keys import SHORTEST_KEY, is_weak, sealing_key
from sfumato.concealment.lifting import conceal
from sfumato.concealment.seal import (
    UNNAMED,
    bandwidth_of,
    check_sealed,
    checked_key,
    kind_of,
    make_seal,
    seal_link,
    with_bandwidth,
)
from sfumato.errors import BandwidthWarning, DecoyError, InputError, RecipeError
from sfumato.types.clear import Embeddings, Features
from sfumato.types.concealed import Bits, ConcealedTemplates, Subspaces
from sfumato.types.extractor import Extractor
from sfumato.types.progress import Progress, identity
from sfumato.types.recipe import CHECKSUM_DIGITS, Recipe


def conceal_embeddings(
    embeddings: Embeddings,
    recipe: Recipe | str,
    decoys: Decoys | None = None,
    *,
    labels: ArrayLike | None = None,
    secret: bytes | None = None,
    evaluation_seed: int | None = None,
) -> ConcealedTemplates:
    """Conceal embeddings of any dimension as templates; row i of the result stands for row i of what came in.

    The names of the embeddings, which must differ, become the ids. Draws come from the operating system; ``secret``,
    ``labels`` and ``evaluation_seed`` are those of ``sfumato.conceal``. Two independent liftings of one face meet near
    it: anyone who has both knows the face (section 5 of the paper). Release one, and remember it. A sealed recipe seals
    all under one key; ``seal_embeddings`` takes a key for each person.

    Raises RecipeError, DecoyError or InputError saying what does not fit.

    >>> import numpy as np
    >>> conceal_embeddings(Embeddings(np.eye(2, 8), ("alice", "bob")), "random-2")
    ConcealedTemplates(Subspaces(2 of dimension 2 in R^8), 'random-2', unknown)
    """
    if not isinstance(embeddings, Embeddings):
        raise InputError(f"expected Embeddings, got {type(embeddings).__name__}")
    chain = Recipe.of(recipe)
    if chain.is_sealed:
        return _seal_all(embeddings, chain, secret, evaluation_seed)
    keypoints = np.zeros((len(embeddings), 4), np.float32)
    concealed = conceal(
        Features(keypoints, embeddings.values, embeddings.extractor),
        recipe,
        decoys,
        labels=labels,
        secret=secret,
        evaluation_seed=evaluation_seed,
    )
    return ConcealedTemplates(embeddings.names, concealed.subspaces, concealed.recipe, embeddings.extractor)


# --- seals


FACE_RECIPE = "sealed-2048"
"""What a new gallery takes: 256 bytes a template (benchmarks/faceseals.py)."""

FACE_BANDWIDTHS = {"arcface": 1.0, "dlib": 0.34}
"""Bandwidth of seals for each network, of unit norm. ArcFace's was measured: strangers are at right angles, and at 1
the waves hardly turn within the reach of a face. Narrower ones tell people apart no better, and a point near zero is
accepted more often than a face: a thief sends that (benchmarks/faceseals.py). dlib's is in proportion to the distances
at which the two networks usually tell people apart."""


def face_recipe(recipe: Recipe | str, network: str) -> Recipe:
    """Return a sealed recipe with the bandwidth of a network; others as they are.

    A network that nobody measured gets ArcFace's, with a BandwidthWarning.

    Raises RecipeError for a seal with other links before it.

    >>> str(face_recipe("sealed-2048", "arcface@0123456789ab"))
    'sealed-2048:1'
    """
    recipe = Recipe.of(recipe)
    if not recipe.is_sealed:
        return recipe
    if len(recipe.links) > 1:
        raise RecipeError(f"recipe {recipe}: faces are sealed as they are: sealed-2048, without other links")
    kind = kind_of(network)
    if recipe.links[-1].bandwidth is None and kind not in (*FACE_BANDWIDTHS, UNNAMED):
        warnings.warn(
            f"the bandwidth of seals was not measured for {network}: it is that of ArcFace, whose strangers are at "
            f"right angles. Look at 'sfumato evaluate faces' for yours, or name one: --recipe {recipe}:NUMBER",
            BandwidthWarning,
            stacklevel=3,
        )
    return with_bandwidth(recipe, FACE_BANDWIDTHS.get(kind, FACE_BANDWIDTHS["arcface"]))


def seal_embeddings(embeddings: Embeddings, recipe: Recipe | str, keys: Sequence[bytes]) -> ConcealedTemplates:
    """Seal embeddings, each under a key of its own; the templates say the fingerprint of each.

    Equal keys give bits that can be compared, different ones coin throws.

    Raises RecipeError for a key that can be guessed, InputError for another number of keys.

    >>> from sfumato.concealment.keys import new_key
    >>> seal_embeddings(Embeddings(np.eye(2, 8), ("alice", "bob")), "sealed-2048", [new_key(), new_key()])
    ConcealedTemplates(Bits(2 of 2048 bits), 'sealed-2048:1', unknown)
    """
    recipe = face_recipe(recipe, embeddings.extractor.name)
    check_sealed(recipe)
    if len(keys) != len(embeddings):
        raise InputError(f"keys: {len(embeddings)} faces have {len(keys)} keys")
    if recipe.links[-1].checksum:
        raise RecipeError(f"recipe {recipe} names one key: leave out what follows the @")
    bits, bandwidth = recipe.links[-1].dim or 0, bandwidth_of(recipe.links[-1])
    packed, names = np.empty((len(keys), bits // 8), np.uint8), []
    for row, key in enumerate(keys):
        seal = make_seal(checked_key(recipe, key), embeddings.values.shape[1], bits, bandwidth, odd=True)
        packed[row] = seal(embeddings.values[row : row + 1]).packed[0]
        names.append(seal.checksum[:CHECKSUM_DIGITS])
    made = Recipe(links=recipe.links, keyed=True)
    return ConcealedTemplates(embeddings.names, Bits(packed), made, embeddings.extractor, tuple(names))


def _seal_all(
    embeddings: Embeddings, recipe: Recipe, secret: bytes | None, evaluation_seed: int | None
) -> ConcealedTemplates:
    """Seal all embeddings under one key, which the recipe of the result names."""
    chain = face_recipe(recipe, embeddings.extractor.name)
    key = checked_key(chain, sealing_key(secret, evaluation_seed))
    seal, link = seal_link(chain.links[-1], chain, key, embeddings.values.shape[1], odd=True)
    made = Recipe(links=(link,), keyed=secret is not None, evaluation_seed=evaluation_seed)
    return ConcealedTemplates(embeddings.names, seal(embeddings.values), made, embeddings.extractor)


# --- liftings


def release_secret(secret: bytes, gallery: bytes, number: int) -> bytes:
    """Return the secret behind the draws of a gallery: those of the first, second, ... release of its people.

    Under it an embedding has one template, whoever it is enrolled as, and however often that is tried: see
    ``KeyedDraws``. The id of the ``gallery`` and the ``number`` of the release are public; the device's ``secret`` is
    not, and nothing can be drawn again without it. The embedding takes part too: the secret alone undoes no template.

    Raises InputError for a secret that can be guessed.

    >>> from sfumato.concealment.keys import new_key
    >>> key = new_key()
    >>> release_secret(key, bytes(16), 1) == release_secret(key, bytes(16), 2)
    False
    """
    if not isinstance(secret, bytes | bytearray) or is_weak(secret):
        raise InputError(
            f"secret: expected at least {SHORTEST_KEY} random bytes: read a key from a file with "
            f"sfumato.device_key(path), or make one with sfumato.new_key()"
        )
    hashed = hashlib.blake2b(secret, digest_size=32).digest()
    release = len(gallery).to_bytes(4, "little") + gallery + number.to_bytes(8, "little")
    return hashlib.blake2b(release, key=hashed, person=b"sfumato release", digest_size=32).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class FaceDecoysParams:
    """``size`` None makes every distinct face a decoy. ``drawn`` draws faces instead of clustering them.

    ``spread`` takes the faces that are least alike, which keeps templates of strangers further apart.
    """

    size: int | None = None
    parts: int = DEFAULT_PARTS
    iterations: int = 10
    seed: int = 0
    drawn: bool = False
    spread: bool = False

    def __post_init__(self) -> None:
        if self.drawn and self.spread:
            raise InputError("decoys are either drawn at random or the least alike: leave out one of the two")


def build_face_decoys(
    embeddings: Embeddings,
    params: FaceDecoysParams | None = None,
    *,
    labels: ArrayLike | None = None,
    progress: Progress = identity,
) -> Decoys:
    """Make a decoy database of the faces of other people; ``labels`` (N,) are for hybrid-labels.

    As many decoys as there are distinct faces are the faces themselves, fewer are the means of several that are alike.
    The database is public, and so are the faces in it.

    Raises DecoyError if there are fewer faces than ``size``.
    """
    params = params or FaceDecoysParams()
    size = len(np.unique(embeddings.values, axis=0)) if params.size is None else params.size
    kind = Extractor(embeddings.extractor.name)
    if params.spread:
        rows = least_alike(embeddings.values, size)
        embeddings, labels = embeddings[rows], None if labels is None else np.asarray(labels)[rows]
    if params.drawn:
        return draw_descriptors(embeddings.values, size, parts=params.parts, extractor=kind, seed=params.seed)
    return build_decoys(
        embeddings.values,
        size,
        parts=params.parts,
        labels=labels,
        extractor=kind,
        iterations=params.iterations,
        seed=params.seed,
        progress=progress,
    )


def least_alike(values: NDArray[np.float32], size: int) -> NDArray[np.int64]:
    """Return the rows, in order, of the ``size`` distinct embeddings (N, n) with the least mean squared cosine to all.

    Two templates come near each other through decoys that are alike. The mean of (x y)^2 over all y is x' C x with C
    their second moments, so that no two faces are compared.

    Raises DecoyError if there are fewer.
    """
    distinct = np.unique(values, axis=0, return_index=True)[1]
    if not 1 <= size <= len(distinct):
        raise DecoyError(
            f"{size} decoys need as many distinct faces, there are {len(distinct)}: give more, or a smaller size"
        )
    rows = values[distinct].astype(np.float64)
    likeness = np.einsum("ni,ij,nj->n", rows, rows.T @ rows / len(rows), rows, optimize=True)
    indices: NDArray[np.int64] = np.sort(distinct[np.argsort(likeness, kind="stable")[:size]])
    return indices


def split_decoys(decoys: Decoys) -> tuple[Decoys, Decoys]:
    """Return a database as two without an entry in common: one for templates, one for probes.

    Two subspaces that share a decoy meet in it, and have distance 0 whoever the people are: with k decoys each from N,
    about k^2 / N of the s-to-s comparisons. Subspaces from halves that share no entry do not.

    Raises DecoyError for a database of one entry.
    """
    if len(decoys) < 2:
        raise DecoyError("one decoy cannot be split between templates and probes: build more from faces")
    assert decoys.permutation is not None
    rows = [np.sort(decoys.permutation[start::2]) for start in (0, 1)]
    first, second = (
        Decoys(
            decoys.descriptors[half],
            decoys.extractor,
            None,
            decoys.parts,
            None if decoys.labels is None else decoys.labels[half],
            {**decoys.made, "half_of": decoys.checksum},
        )
        for half in rows
    )
    return first, second


def conceal_parallel(embeddings: Embeddings, before: ConcealedTemplates) -> ConcealedTemplates:
    """Lift embeddings along the directions of templates that were released before, row for row.

    The mitigation that section 5 of the paper names: parallel subspaces of one person never meet, so that two of them
    reveal no more about the concealed directions than one. They reveal that they belong together. Nothing is drawn.

    Raises InputError for rows that do not fit.
    """
    if before.recipe.has_encoder:
        raise InputError(f"{before.recipe} changes the space: clear embeddings have no place beside its templates")
    if len(embeddings) != len(before) or embeddings.values.shape[1] != before.code.ambient_dim:
        raise InputError(
            f"{len(embeddings)} embeddings of {embeddings.values.shape[1]} dimensions cannot replace {before!r}"
        )
    if not embeddings.extractor.matches(before.extractor):
        raise InputError(f"these embeddings are {embeddings.extractor.name}, the templates {before.extractor.name}")
    moved = Subspaces(embeddings.values, before.subspaces.basis)
    return ConcealedTemplates(before.ids, moved, before.recipe, before.extractor)
