# SPDX-License-Identifier: Apache-2.0
"""How well concealed faces are verified: folds, receiver operating curve and error rates (section 4.2.1 of the paper).

The same code for clear and lifted embeddings. Each face is lifted once; what is kept of a pair is its distance.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.decoys import Decoys
from sfumato.errors import InputError
from sfumato.evaluate.facedata import FacePairs
from sfumato.evaluate.facelifting import lift_faces, need_decoys, row_distances
from sfumato.evaluate.results import Results
from sfumato.evaluate.runner import predict, run
from sfumato.evaluate.subjects import DISTANCES, Subject, choose_subjects
from sfumato.evaluate.tables import Table, group_by_seed, make_table
from sfumato.evaluate.task import Figures, Prediction, Sample, Task, digest_data
from sfumato.evaluate.verification import equal_error_rate, fold_accuracies, receiver_curve, true_accepts_at
from sfumato.types.record import Record, Score, Value

RATES = (1e-2, 1e-3, 1e-4)
"""False-accept rates at which true accepts are told."""

SCORES = {"accuracy": "accuracy", "equal error rate": "equal error rate"} | {
    f"TAR at FAR {rate:g}": f"true accepts at {rate:g}" for rate in RATES
}
"""Titles of columns, and the scores behind them."""

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FaceProtocol:
    """What is compared: recipes, distances and seeds of the liftings."""

    recipes: tuple[str, ...] = ("raw", "random-2", "adversarial-2", "hybrid-2", "random-4", "adversarial-4", "hybrid-4")
    distances: tuple[str, ...] = tuple(DISTANCES)
    seeds: tuple[int, ...] = (0,)


def evaluate_faces(
    pairs: FacePairs,
    folder: str | Path,
    protocol: FaceProtocol | None = None,
    decoys: Decoys | None = None,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    overwrite: bool = False,
) -> list[Record]:
    """Verify all pairs under every recipe, distance and seed; return a record for each, also kept below ``folder``.

    ``decoys`` are embeddings of other people. What was measured before is not measured again, unless ``overwrite``
    forgets it.

    Raises InputError where there is nothing to measure, DecoyError where a recipe lacks decoys, FileError if the folder
    can not be written.
    """
    protocol = protocol or FaceProtocol()
    if len(pairs) == 0:
        raise InputError("there are no pairs of faces to verify")
    subjects = choose_subjects(protocol.recipes, protocol.distances, protocol.seeds)
    for subject in subjects:
        need_decoys(subject.recipe, decoys)
    parts = (pairs.faces.values, pairs.left, pairs.right, pairs.same, pairs.fold)
    sample = Sample("pairs", digest_data(*parts))
    tasks = [_task(subject, pairs, sample, decoys) for subject in subjects]
    if overwrite:
        for task in tasks:
            Results(folder, task).forget(task.samples)
    for task in progress(tasks):
        predict(task, folder)
    return [run(task, folder) for task in tasks]


def _task(subject: Subject, pairs: FacePairs, sample: Sample, decoys: Decoys | None) -> Task:
    lifting = subject.recipe.lifting
    used = decoys if lifting is not None and lifting.decoy_count else None
    params: dict[str, Value] = {
        "recipe": str(subject.recipe),
        "distance": subject.distance,
        "decoys": None if used is None else used.checksum,
        "decoy_count": None if used is None else len(used),
    }
    return Task(
        name="faces",
        samples=[sample],
        predict=partial(_predict, subject, pairs, used),
        score=score_pairs,
        summarise=_summarise,
        params=params,
        seed=subject.seed,
        version=VERSION,
    )


def _predict(subject: Subject, pairs: FacePairs, decoys: Decoys | None, sample: Sample) -> Prediction:
    """Return the distance of every pair; the left face is clear where points meet subspaces."""
    lifted = lift_faces(pairs.faces, subject.recipe, decoys, seed=subject.seed or 0)
    left = lift_faces(pairs.faces, "raw", None, seed=0) if subject.distance == "p-to-s" else lifted
    found = row_distances(left, pairs.left, lifted, pairs.right)
    return {"distance": found.astype(np.float32), "same": pairs.same, "fold": pairs.fold}


def score_pairs(sample: Sample, prediction: Prediction) -> Figures:
    """Return accuracy by folds, equal error rate, and true accepts at the rates that so many impostors can tell."""
    distance, same, fold = (prediction[name] for name in ("distance", "same", "fold"))
    curve = receiver_curve(distance, same)
    figures = {"equal error rate": equal_error_rate(curve), "pairs": float(len(distance))}
    if np.unique(fold).size > 1:
        accuracies = fold_accuracies(distance, same, fold)
        figures |= {"accuracy": float(accuracies.mean()), "worst fold": float(accuracies.min())}
    for rate in RATES:
        accepted = true_accepts_at(curve, rate)
        if accepted is not None:
            figures[f"true accepts at {rate:g}"] = accepted
    return figures


def _summarise(figures: Mapping[str, Figures]) -> list[Score]:
    return [
        Score(name, value, samples=int(row["pairs"])) for row in figures.values() for name, value in row.items()
        if name != "pairs"
    ]  # fmt: skip


def read_distances(record: Record, folder: str | Path) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return the distances and truths behind a record of ``evaluate_faces``, where they are still kept."""
    for path in sorted(Path(folder, "faces").glob("*/records/*.json")):
        if Record.from_json(path.read_text(encoding="utf-8")) == record:
            for kept in sorted((path.parent.parent / "predictions").glob("*.npz")):
                with np.load(kept, allow_pickle=False) as members:
                    return members["distance"], members["same"]
    return None


def table_of(records: Iterable[Record]) -> Table:
    """Return one row a recipe and distance; rates that no record tells have no column."""
    groups = group_by_seed(records)
    told = {score.name for group in groups for record in group.records for score in record.scores}
    return make_table(groups, ("recipe", "distance"), {title: name for title, name in SCORES.items() if name in told})
