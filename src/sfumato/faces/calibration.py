# SPDX-License-Identifier: Apache-2.0
"""The threshold of a gallery, from faces of other people: how near do strangers come?

Runs where clear embeddings may be seen. The faces should be of people who are neither enrolled nor among the decoys.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.concealment.decoys import Decoys
from sfumato.concealment.faces import conceal_embeddings, split_decoys
from sfumato.errors import FileError, InputError
from sfumato.faces.compare import POINT, SUBSPACE, Threshold, checked_comparison, choose_threshold, pair_distances
from sfumato.faces.enrollment import refuse_decoys
from sfumato.faces.gallery_file import changing, load_gallery
from sfumato.faces.probe import gallery_decoys, make_probe, need_decoys
from sfumato.types.clear import Embeddings, people_of
from sfumato.types.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateParams:
    """``rate`` the share of strangers that may be accepted; ``pairs`` how many are compared, drawn by ``seed``."""

    rate: float = 1e-3
    comparison: str = POINT
    pairs: int = 200_000
    seed: int = 0

    def __post_init__(self) -> None:
        checked_comparison(self.comparison)
        if self.pairs < 1 or self.seed < 0:
            raise InputError(f"pairs must be positive, seed not negative: got {self.pairs}, {self.seed}")


def calibrate(
    embeddings: Embeddings,
    recipe: Recipe,
    decoys: Decoys | None,
    params: CalibrateParams,
    *,
    people: Sequence[str] | None = None,
    labels: ArrayLike | None = None,
) -> Threshold:
    """Conceal faces as a gallery does, compare pairs of different people, and choose the threshold.

    ``people`` (N,) says who each is; by default their names without a number behind. Each face is lifted once, and for
    s-to-s a second time as a probe, with decoys of the other half of the database.

    Raises InputError where there are too few pairs to measure the wanted rate, DecoyError for a face among the decoys.
    """
    need_decoys(recipe, decoys)
    refuse_decoys(embeddings, decoys)
    who = people_of(embeddings.names) if people is None else tuple(people)
    if len(who) != len(embeddings):
        raise InputError(f"people: {len(embeddings)} faces have {len(who)} names")
    if len(set(who)) < 2:
        raise InputError(_one_person(embeddings.names, who, by_name=people is None))
    rows0, rows1 = stranger_pairs(who, params.pairs, np.random.default_rng(params.seed))
    halves = (None, None) if decoys is None else split_decoys(decoys)
    templates = conceal_embeddings(embeddings, recipe, halves[0], labels=labels)
    probes = (
        conceal_embeddings(embeddings, recipe, halves[1], labels=labels)
        if params.comparison == SUBSPACE
        else embeddings.values
    )
    found = pair_distances(probes, templates.subspaces, rows0, rows1)
    return choose_threshold(found, params.rate, comparison=params.comparison, people=len(set(who)))


def _one_person(names: Sequence[str], who: Sequence[str], *, by_name: bool) -> str:
    """Say why there are no two people to compare, and how names make people."""
    if not names:
        return "there is no face to calibrate with: give faces of many people"
    if not by_name:
        return f"all {len(names)} faces are of {who[0]!r:.80}: give faces of many people, or another table of people"
    return (
        f"all {len(names)} faces would be of one person, {who[0]!r:.80}: a name without '_' or '-' and a number behind "
        f"it is the person, so that {names[0]!r:.80} is of {who[0]!r:.80}. Say who each is with --people TABLE "
        f"('name,person'), or give other names"
    )


def stranger_pairs(
    people: Sequence[str], wanted: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows of pairs of different people: every pair, both ways, or about so many drawn at random."""
    _, of_person = np.unique(np.array(people, np.str_), return_inverse=True)
    count = len(of_person)
    few = count * count <= 2 * wanted
    rows0, rows1 = np.indices((count, count)).reshape(2, -1) if few else rng.integers(0, count, (2, 2 * wanted))
    strangers = np.flatnonzero(of_person[rows0] != of_person[rows1])
    strangers = strangers if few else strangers[:wanted]
    return rows0[strangers].astype(np.int64), rows1[strangers].astype(np.int64)


def calibrate_gallery(
    path: str | os.PathLike[str],
    embeddings: Embeddings,
    decoys: Decoys | None,
    params: CalibrateParams,
    *,
    people: Sequence[str] | None = None,
    labels: ArrayLike | None = None,
) -> Threshold:
    """Choose the threshold for a gallery's file and store it there, in the place of the one for the same comparison."""
    gallery = load_gallery(path)
    make_probe(embeddings[:0], gallery, POINT)  # of the same network and dimension
    gallery_decoys(gallery.recipe, decoys)
    chosen = calibrate(embeddings, gallery.recipe, decoys, params, people=people, labels=labels)
    with changing(path) as change:
        if change.before is None or change.before.recipe.identity != gallery.recipe.identity:
            raise FileError(f"{path}: the gallery was replaced meanwhile; calibrate again")
        change.after = change.before.with_threshold(chosen)
    return chosen
