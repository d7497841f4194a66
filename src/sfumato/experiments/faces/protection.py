# SPDX-License-Identifier: Apache-2.0
"""Unlinkability, renewability and revocation of templates, in the sense of ISO/IEC 24745, measured.

    unlinkability  nobody who has two databases can tell that two templates are of one person
    renewability   a new template serves as well as the one it replaces
    revocation     a replaced template is of no use any more

Affine subspaces are compared without any key: anyone who can verify can also link, and an old template of a face stays
a template of that face. The figures say how much.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.auditing.runner import figure_by_figure, run_tasks
from sfumato.auditing.tables import Table, group_by_seed, make_table
from sfumato.auditing.task import Figures, Prediction, Sample, Task, digest_data
from sfumato.concealment.decoys import Decoys
from sfumato.errors import InputError
from sfumato.experiments.faces.lifting import lift_faces, need_decoys, row_distances
from sfumato.experiments.faces.releases import Albums, clear_threshold, collect_albums, meeting_points, unit_length
from sfumato.experiments.faces.verification import equal_error_rate, receiver_curve, threshold_at
from sfumato.types.arrays import frozen_array
from sfumato.types.clear import Embeddings
from sfumato.types.concealed import Points, Subspaces
from sfumato.types.recipe import Recipe
from sfumato.types.record import Record

BINS = 20
SHIFTS = 10
"""Number of other people that each template is compared with."""

FALSE_ACCEPTS = 1e-2

VERSION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """Figures of protection. ``linkable`` is 0 if templates of one person look like those of two, 1 if they never do.

    Everyone has three photos: one enrolled, one to renew it with, independently, and one to probe with. ``linkable``
    compares templates of the first and the last, ``linkable_renewed`` of the first and the second. ``error_before`` and
    ``error_renewed`` are equal error rates of clear probes against the two. ``revoked_accepted`` is the share of
    replaced templates that still pass as the new ones, ``met`` the median distance of where the two meet to the mean of
    their photos, and ``met_accepted`` the share of such points that pass for the person, compared clear with the last
    photo at one false accept in a thousand.
    """

    people: int
    linkable: float
    linkable_renewed: float
    error_before: float
    error_renewed: float
    revoked_accepted: float
    met: float
    met_accepted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectionProtocol:
    """Recipes and seeds; everyone with three photos takes part."""

    recipes: tuple[str, ...] = ("random-2", "hybrid-2", "adversarial-2", "hybrid-4", "adversarial-4")
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        if not self.recipes or not self.seeds:
            raise InputError("nothing to evaluate: name at least one recipe and seed")


def evaluate_protection(
    faces: Embeddings,
    folder: str | Path,
    protocol: ProtectionProtocol | None = None,
    decoys: Decoys | None = None,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    overwrite: bool = False,
) -> list[Record]:
    """Measure every recipe and seed; return a record for each, also kept below ``folder``.

    Raises InputError for fewer than two people with two photos, DecoyError for a recipe without its decoys, FileError
    if the folder cannot be written.
    """
    protocol = protocol or ProtectionProtocol()
    albums = collect_albums(faces, 3)
    recipes = [Recipe.of(recipe) for recipe in dict.fromkeys(protocol.recipes)]
    for recipe in recipes:
        need_decoys(recipe, decoys)
    sample = Sample("albums", digest_data(faces.values, albums.photos))
    tasks = [
        Task(
            name="protection",
            samples=[sample],
            predict=partial(_predict, albums, recipe, decoys, seed),
            score=_score,
            summarise=figure_by_figure("people"),
            params={"recipe": str(recipe), "decoys": None if decoys is None else decoys.checksum},
            seed=seed,
            version=VERSION,
        )
        for recipe in recipes
        for seed in dict.fromkeys(protocol.seeds)
    ]
    return run_tasks(tasks, folder, progress=progress, overwrite=overwrite)


def _predict(albums: Albums, recipe: Recipe, decoys: Decoys | None, seed: int, sample: Sample) -> Prediction:
    measured = asdict(measure_protection(albums, recipe, decoys, seed=seed))
    return {name: np.array(value) for name, value in measured.items()}


def _score(sample: Sample, prediction: Prediction) -> Figures:
    return {name.replace("_", " "): float(value) for name, value in prediction.items()}


def protection_table(records: Iterable[Record]) -> Table:
    """Return one row per recipe."""
    groups = group_by_seed(records)
    names = dict.fromkeys(score.name for group in groups for record in group.records for score in record.scores)
    return make_table(groups, ("recipe",), {name: name for name in names})


def measure_protection(albums: Albums, recipe: Recipe, decoys: Decoys | None, *, seed: int) -> Protection:
    """Enrol the first photo of everyone, renew it with the second, and probe with the last."""
    enrolled, newer, later = (albums.faces[albums.photos[:, place]] for place in (0, 1, -1))
    old = lift_faces(enrolled, recipe, decoys, seed=2 * seed)
    new = lift_faces(newer, recipe, decoys, seed=2 * seed + 1)
    elsewhere = lift_faces(later, recipe, decoys, seed=2 * seed)
    clear = Points(later.values)
    threshold = threshold_at(receiver_curve(*_compared(elsewhere, new)), FALSE_ACCEPTS)
    own, others = _split(*_compared(old, new))
    met = unit_length(meeting_points([old, new]))
    mean = unit_length(enrolled.values + newer.values)
    return Protection(
        people=len(enrolled),
        linkable=linkability(*_split(*_compared(old, elsewhere))),
        linkable_renewed=linkability(own, others),
        error_before=equal_error_rate(receiver_curve(*_compared(clear, old))),
        error_renewed=equal_error_rate(receiver_curve(*_compared(clear, new))),
        revoked_accepted=float((own <= threshold).mean()),
        met=float(np.median(np.linalg.norm(met - mean, axis=1))),
        met_accepted=float((np.linalg.norm(met - later.values, axis=1) <= clear_threshold(albums)).mean()),
    )


def linkability(mated: ArrayLike, others: ArrayLike, bins: int = BINS) -> float:
    """Return the global linkability D of Gomez-Barrero et al. (2018), from 0 to 1, with equal priors.

    D = sum over scores of p(score | one person) max(0, (R - 1) / (R + 1)), R the ratio of the two densities, here of
    histograms whose bins hold equally many of both kinds together.

    Raises InputError where either side is empty.

    >>> linkability([0.0, 0.1], [5.0, 6.0], bins=2)
    1.0
    """
    near = frozen_array(mated, "mated", (None,), np.float64)
    far = frozen_array(others, "others", (None,), np.float64)
    if not near.size or not far.size:
        raise InputError("linkability needs distances of both kinds")
    weights = np.r_[np.full(len(near), 0.5 / len(near)), np.full(len(far), 0.5 / len(far))]
    values = np.r_[near, far]
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weights[order])
    cuts = [values[order[np.searchsorted(share, part / bins - 1e-9)]] for part in range(1, bins)]
    own, other = (_shares(side, np.unique(cuts)) for side in (near, far))
    both = own + other
    gain = np.where(both > 0, (own - other) / np.where(both > 0, both, 1), 0.0)
    return float((own * np.maximum(gain, 0.0)).sum())


def _shares(values: NDArray[np.float64], cuts: NDArray[np.float64]) -> NDArray[np.float64]:
    counts = np.bincount(np.searchsorted(cuts, values, side="left"), minlength=len(cuts) + 1)
    return counts / len(values)


def _compared(a: Subspaces, b: Subspaces) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return distances of everyone to themselves and to some others, and which are which."""
    people = np.arange(len(a))
    shifts = [0, *range(1, min(SHIFTS, len(a) - 1) + 1)]
    rows_b = np.concatenate([(people + shift) % len(a) for shift in shifts])
    rows_a = np.tile(people, len(shifts))
    return row_distances(a, rows_a, b, rows_b), rows_a == rows_b


def _split(distances: NDArray[np.float64], same: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return distances[same], distances[~same]
