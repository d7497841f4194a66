# SPDX-License-Identifier: Apache-2.0
"""Concealment of faces for evaluations: liftings, seals, their distances, and the inversion of seals with the key.

Draws and keys can be repeated by anyone: such templates protect nobody and are never stored. Each face is an image of
its own: it draws its own part of the decoys.
"""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.auditing.subjects import single_part
from sfumato.concealment.decoy_clusters import draw_descriptors
from sfumato.concealment.decoys import FORMAT as DECOYS_FORMAT
from sfumato.concealment.decoys import Decoys, load_decoys
from sfumato.concealment.keys import SEEDED
from sfumato.concealment.lifting import conceal
from sfumato.concealment.seal import Seal, bandwidth_of, make_seal
from sfumato.errors import DecoyError, EvaluationOnlyWarning
from sfumato.faces.enrollment import refuse_decoys
from sfumato.features.embeddings import read_embeddings
from sfumato.files.tensors import format_of
from sfumato.types.clear import Embeddings
from sfumato.types.concealed import Bits, Code, Subspaces
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
    assert isinstance(code, Subspaces)  # seals are made by face_seal
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


# --- seals (Boufounos and Rane 2011), with odd waves


def face_seal(recipe: Recipe, dimensions: int, *, seed: int, owner: str = "everyone", odd: bool = True) -> Seal:
    """Return the seal of a recipe under a public key of evaluations, another one for each seed and owner.

    Without ``odd`` it is one with random phases, weak on purpose: no face is sealed so.
    """
    link = recipe.links[-1]
    key = SEEDED + f"{seed} of {owner}".encode()
    return make_seal(key, dimensions, link.dim or 0, bandwidth_of(link), odd=odd)


def bit_distances(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the share of different bits (...) of packed codes (..., bytes), row by row."""
    return np.asarray(np.bitwise_count(a ^ b).sum(axis=-1, dtype=np.int64) / (8 * a.shape[-1]), np.float32)


def bit_signs(bits: Bits) -> NDArray[np.float32]:
    """Return bits (N, B) as plus or minus 1."""
    return 2 * np.unpackbits(bits.packed, axis=1).astype(np.float32) - 1


# --- inversion of a seal, by whoever has its key

HARMONICS = (1, 3, 5, 7, 9, 11, 13)
"""Harmonics of the square wave that a bit is of its angle."""
STEPS, DAMPING = 60, 0.5
LEAST_LIKELY, LEAST_VARIANCE = 1e-3, 0.03
"""Bounds of the chance of a bit and of the variance of an angle: the sum of so few harmonics is wrong below them."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class FacePrior:
    """An attacker's knowledge of faces in general, a Gaussian: ``mean`` (n,), ``axes`` (n, n), ``variances`` (n,)."""

    mean: NDArray[np.float32]
    axes: NDArray[np.float32]
    variances: NDArray[np.float32]


def face_prior(public: NDArray[np.float32] | None, dimensions: int) -> FacePrior:
    """Return the Gaussian of public faces (N, n), drawn to a round one where they are few; without them a round one."""
    if public is None or len(public) < 2:
        unit = np.full(dimensions, 1 / dimensions, np.float32)
        return FacePrior(np.zeros(dimensions, np.float32), np.eye(dimensions, dtype=np.float32), unit)
    spread, axes = np.linalg.eigh(np.cov(public.T.astype(np.float64)))
    round_share = dimensions / (dimensions + len(public))
    variances = (1 - round_share) * np.maximum(spread, 0) + round_share * spread.mean()
    return FacePrior(public.mean(axis=0), axes.astype(np.float32), variances.astype(np.float32))


def invert_seals(
    bits: Bits, directions: NDArray[np.float32], phases: NDArray[np.float32], prior: FacePrior, trust: float = 1.0
) -> NDArray[np.float32]:
    """Return the likely embeddings (N, n) of unit norm behind bits (N, B), for whoever has the seal's key.

    Approximate message passing for a generalised linear model (Rangan 2011, algorithm 1, with scalar variances): angles
    t = A x are Gaussian, x has the prior, and bit i is the sign of cos(t_i + w_i). ``trust`` is 1 for the key itself,
    and for a key that was guessed twice the share of bits that it foretells, less 1.
    """
    signs, matrix = bit_signs(bits), directions @ prior.axes
    centre, power = prior.mean @ prior.axes, np.float32(np.square(matrix).mean())
    rows = np.repeat(centre[None], len(signs), axis=0)
    spread = np.repeat(prior.variances[None], len(signs), axis=0)
    pull = np.zeros_like(signs)
    for step in range(STEPS):
        share = np.float32(DAMPING if step else 1)
        variance = np.maximum(power * spread.sum(axis=1, keepdims=True), np.float32(LEAST_VARIANCE))
        slope, curve = _bit_likelihood(rows @ matrix.T - variance * pull, variance, phases, signs * np.float32(trust))
        pull += share * (slope - pull)
        noise = 1 / np.maximum(power * curve.sum(axis=1, keepdims=True), np.float32(1e-6))
        gain = prior.variances / (prior.variances + noise)
        rows += share * (centre + gain * (rows + noise * (pull @ matrix) - centre) - rows)
        spread += share * (gain * noise - spread)
    guesses = rows @ prior.axes.T
    lengths = np.linalg.norm(guesses, axis=1, keepdims=True)
    return np.asarray(guesses / np.maximum(lengths, np.finfo(np.float32).tiny), np.float32)


def _bit_likelihood(
    angles: NDArray[np.float32], variance: NDArray[np.float32], phases: NDArray[np.float32], signs: NDArray[np.float32]
) -> tuple[Any, Any]:
    """Return the slope and the negative curvature of log P(bit) in Gaussian angles (N, B) of a variance (N, 1).

    P(bit) = 1/2 + b/2 sum_h (+-4 / (pi h)) exp(-h^2 v / 2) cos(h (t + w)), h odd: the square wave, blurred.
    """
    turned = angles + phases
    chance, first, second = np.ones_like(angles), np.zeros_like(angles), np.zeros_like(angles)
    for number, harmonic in enumerate(HARMONICS):
        height = np.exp(-(harmonic**2) * variance / 2) * np.float32(4 / np.pi / harmonic * (-1) ** number)
        if np.abs(height).max(initial=0) < 1e-6:
            break
        part = signs * height * np.cos(harmonic * turned)
        chance += part
        second -= harmonic**2 * part
        first -= harmonic * signs * height * np.sin(harmonic * turned)
    chance = np.maximum(chance, np.float32(LEAST_LIKELY))
    slope = first / chance
    return slope, np.square(slope) - second / chance
