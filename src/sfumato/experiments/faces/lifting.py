# SPDX-License-Identifier: Apache-2.0
"""Lifting of faces for evaluations, with draws that anyone can repeat, and distances between the lifted rows.

Such templates protect nobody and are never stored. Each face is an image of its own: it draws its own part of the
decoys.
"""

import os
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.auditing.subjects import single_part
from sfumato.concealment.decoy_clusters import draw_descriptors
from sfumato.concealment.decoys import FORMAT as DECOYS_FORMAT
from sfumato.concealment.decoys import Decoys, load_decoys
from sfumato.concealment.lifting import conceal
from sfumato.errors import DecoyError, EvaluationOnlyWarning
from sfumato.faces.enrollment import refuse_decoys
from sfumato.features.embeddings import read_embeddings
from sfumato.files.tensors import format_of
from sfumato.types.clear import Embeddings
from sfumato.types.concealed import Code, Subspaces
from sfumato.types.recipe import KINDS, Recipe

AT_ONCE = 512
DECOY_COUNT = 2000
SHARED = 1e-12
"""Squared sine of an angle below which two bases share a direction, as in ``subspace.reference``."""


def lift_faces(
    faces: Embeddings,
    recipe: Recipe | str,
    decoys: Decoys | None,
    *,
    seed: int,
    labels: ArrayLike | None = None,
) -> Subspaces:
    """Lift every face (raw: to a subspace of dimension 0) with draws that depend on the seed and all faces."""
    chain = Recipe.of(recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        if chain.lifting is None or KINDS[chain.lifting.kind].decoys != "part" or decoys is None:
            return _lifted(conceal(faces.values, chain, decoys, labels=labels, evaluation_seed=seed))
        drawn = np.random.default_rng([seed, len(faces)]).integers(decoys.parts, size=len(faces))
        origin = np.empty(faces.values.shape, np.float32)
        basis = np.empty((len(faces), chain.dim, faces.values.shape[1]), np.float32)
        for part in np.unique(drawn):
            rows = np.flatnonzero(drawn == part)
            lifted = _lifted(conceal(faces.values[rows], chain, single_part(decoys, int(part)), evaluation_seed=seed))
            origin[rows], basis[rows] = lifted.origin, lifted.basis
        return Subspaces(origin, basis)


def _lifted(code: Code) -> Subspaces:
    assert isinstance(code, Subspaces)  # these experiments seal nothing
    return code


def need_decoys(recipe: Recipe, decoys: Decoys | None) -> None:
    """Refuse a recipe whose decoys are missing, before anything is measured."""
    if decoys is None and recipe.lifting is not None and recipe.lifting.decoy_count:
        raise DecoyError(f"{recipe} needs decoys: embeddings of other people, with --decoys FILE (npz or csv)")


def read_face_decoys(path: str | os.PathLike[str], count: int = DECOY_COUNT, *, seed: int = 0) -> Decoys:
    """Read decoys made by ``sfumato decoys build``, or draw ``count`` faces of a file of embeddings.

    Raises DecoyError if there are fewer, FileError if the file is neither.
    """
    if format_of(path) == DECOYS_FORMAT:
        return load_decoys(path)
    return draw_descriptors(read_embeddings(Path(path)).values, count, seed=seed)


def read_other_people(path: Path | None, count: int, faces: Embeddings) -> Decoys | None:
    """Read decoys, if there is a file; raises DecoyError if a measured face is one of them."""
    decoys = None if path is None else read_face_decoys(path, count)
    refuse_decoys(faces, decoys)
    return decoys


def row_distances(
    a: Subspaces, rows_a: NDArray[np.int64], b: Subspaces, rows_b: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the distance (P,) of each pair of rows: the part of the offset that no basis reaches (Eq. 2)."""
    distances = np.empty(len(rows_a))
    for start in range(0, len(rows_a), AT_ONCE):
        block = slice(start, start + AT_ONCE)
        i, j = rows_a[block], rows_b[block]
        offset = a.origin[i].astype(np.float64) - b.origin[j]
        both = np.concatenate([a.basis[i], b.basis[j]], axis=1).astype(np.float64)
        along = np.einsum("pki,pi->pk", both, offset)
        inverse = np.linalg.pinv(np.matmul(both, both.transpose(0, 2, 1)), rcond=SHARED, hermitian=True)
        reached = np.einsum("pk,pkl,pl->p", along, inverse, along)
        distances[block] = np.sqrt(np.maximum(np.einsum("pi,pi->p", offset, offset) - reached, 0.0))
    return distances
