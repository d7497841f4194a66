# SPDX-License-Identifier: Apache-2.0
"""Verification of concealed faces: folds, receiver operating curve and error rates (section 4.2.1 of the paper).

A pair is accepted if its distance is at most a threshold. The same code for clear, lifted and sealed embeddings: each
face is concealed once, and files hold the distance of each pair. Sealed faces are all under one key: every impostor has
the victim's key. Those without it are measured beside them, under other keys.

The pairs of a benchmark are too few to resolve low false-accept rates: if names say who is who, strangers are paired at
will, and the scores of these pairs have names of their own. Intervals are of 95 percent, by drawing people again and
again from those there are (bootstrap): pairs of one person do not count as many people.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.auditing.runner import figure_by_figure, run_tasks
from sfumato.auditing.subjects import DISTANCES, Subject, choose_subjects
from sfumato.auditing.tables import Cell, Table, group_by_seed, make_table
from sfumato.auditing.task import Figures, Prediction, Sample, Task, digest_data
from sfumato.concealment.decoys import Decoys
from sfumato.concealment.faces import face_recipe, split_decoys
from sfumato.errors import InputError
from sfumato.experiments.data.face_benchmarks import FacePairs
from sfumato.experiments.faces.lifting import bit_distances, face_seal, lift_faces, need_decoys, row_distances
from sfumato.faces.calibration import stranger_pairs
from sfumato.faces.compare import POINT, SUBSPACE, pair_distances
from sfumato.faces.enrollment import refuse_decoys
from sfumato.types.arrays import frozen_array
from sfumato.types.clear import people_of
from sfumato.types.recipe import Recipe
from sfumato.types.record import Record, Value

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ReceiverCurve:
    """Error rates at every threshold that decides differently: ``threshold`` (T,) ascending, and two rates (T,).

    ``false_accept`` is the share of pairs of two faces that are accepted, ``true_accept`` that of pairs of one.
    """

    threshold: Floats
    false_accept: Floats
    true_accept: Floats
    impostors: int
    genuine: int

    def __repr__(self) -> str:
        return f"ReceiverCurve({len(self.threshold)} thresholds, {self.genuine} genuine, {self.impostors} impostors)"


def receiver_curve(distances: ArrayLike, same: ArrayLike) -> ReceiverCurve:
    """Return the curve of pairs: ``distances`` (P,), and whether both sides are the same face, ``same`` (P,).

    Thresholds lie half-way between distances that differ; the first accepts nothing, the last everything.

    Raises InputError unless there are pairs of both kinds.
    """
    values, truths = checked_pairs(distances, same)
    genuine, impostors = int(truths.sum()), int((~truths).sum())
    if not genuine or not impostors:
        raise InputError(f"verification needs pairs of both kinds, got {genuine} genuine and {impostors} impostors")
    order = np.argsort(values, kind="stable")
    ranked, hits = values[order], truths[order]
    last = np.flatnonzero(np.r_[np.diff(ranked) > 0, True])  # of equal distances all are accepted, or none
    between = (ranked[last[:-1]] + ranked[last[:-1] + 1]) / 2
    return ReceiverCurve(
        threshold=np.r_[ranked[0] - 1.0, between, ranked[-1] + 1.0],
        false_accept=np.r_[0.0, np.cumsum(~hits)[last] / impostors],
        true_accept=np.r_[0.0, np.cumsum(hits)[last] / genuine],
        impostors=impostors,
        genuine=genuine,
    )


def best_threshold(distances: ArrayLike, same: ArrayLike) -> float:
    """Return the threshold that decides most pairs rightly; of several, the middle one.

    >>> best_threshold([0.0, 1.0, 2.0, 4.0], [True, True, False, False])
    1.5
    """
    curve = receiver_curve(distances, same)
    right = curve.true_accept * curve.genuine + (1 - curve.false_accept) * curve.impostors
    best = np.flatnonzero(right > right.max() - 0.5)
    return float(curve.threshold[best[(len(best) - 1) // 2]])


def fold_accuracies(distances: ArrayLike, same: ArrayLike, fold: ArrayLike) -> Floats:
    """Return the accuracy on each fold with the best threshold of the others (section 4.2.1 of the paper).

    Raises InputError for fewer than two folds, or where what is left beside one fold has pairs of one kind only.
    """
    values, truths = checked_pairs(distances, same)
    folds = frozen_array(fold, "fold", (len(values),), np.int64)
    names = np.unique(folds)
    if len(names) < 2:
        raise InputError(f"folds: need at least two, got {len(names)}")
    accuracies = []
    for name in names:
        held_out = folds == name
        threshold = best_threshold(values[~held_out], truths[~held_out])
        accuracies.append(float(((values[held_out] <= threshold) == truths[held_out]).mean()))
    return np.array(accuracies)


def true_accepts_at(curve: ReceiverCurve, rate: float) -> float | None:
    """Return the share of genuine pairs accepted where at most ``rate`` of the impostors are.

    None if there are too few impostors to resolve such a rate: one of them alone would be more.
    """
    if rate * curve.impostors < 1:
        return None
    return float(curve.true_accept[_last_within(curve, rate)])


def threshold_at(curve: ReceiverCurve, rate: float) -> float:
    """Return the largest threshold at which at most ``rate`` of the impostors are accepted."""
    return float(curve.threshold[_last_within(curve, rate)])


def equal_error_rate(curve: ReceiverCurve) -> float:
    """Return the rate at which as many impostors are accepted as genuine pairs rejected, between two thresholds."""
    reject = 1 - curve.true_accept
    gap = curve.false_accept - reject  # grows from -1 to 1
    after = int(np.argmax(gap >= 0))
    step = gap[after] - gap[after - 1]
    part = -gap[after - 1] / step
    return float(curve.false_accept[after - 1] + part * (curve.false_accept[after] - curve.false_accept[after - 1]))


def checked_pairs(distances: ArrayLike, same: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    """Return distances and truths as arrays of one length; InputError for other shapes."""
    values = frozen_array(distances, "distances", (None,), np.float64)
    truths = np.asarray(same)
    if truths.shape != values.shape or (truths.size and not np.isin(truths, (0, 1)).all()):
        raise InputError(f"same: expected {len(values)} truth values, got {truths.dtype} {truths.shape}")
    return values, truths.astype(bool)


def _last_within(curve: ReceiverCurve, rate: float) -> int:
    return int(np.flatnonzero(curve.false_accept <= rate)[-1])


RESAMPLES = 200
INTERVAL = (0.025, 0.975)


def resampled_curves(distances: ArrayLike, same: ArrayLike, people: ArrayLike) -> tuple[Floats, Floats]:
    """Return false and true accept rates (R, T), at ascending thresholds, of people drawn again with replacement.

    ``people`` (2, P) are the two people of each pair. A pair counts as often as its people were drawn: one of two
    people as often as the one times the other.
    """
    values, truths = checked_pairs(distances, same)
    pairs = frozen_array(people, "people", (2, len(values)), np.int64)
    order = np.argsort(values, kind="stable")
    hits, (one, other) = truths[order], pairs[:, order]
    last = np.flatnonzero(np.r_[np.diff(values[order]) > 0, True])
    count, rng = int(pairs.max(initial=-1)) + 1, np.random.default_rng(0)
    false_accept, true_accept = (np.zeros((RESAMPLES, len(last) + 1)) for _ in range(2))
    for row in range(RESAMPLES):
        drawn = rng.multinomial(count, np.full(count, 1 / count))
        weights = np.where(one == other, drawn[one], drawn[one] * drawn[other]).astype(np.float64)
        for rates, kind in ((false_accept, ~hits), (true_accept, hits)):
            total = np.cumsum(np.where(kind, weights, 0.0))
            rates[row, 1:] = total[last] / max(total[-1], 1.0)
    return false_accept, true_accept


def accept_intervals(curves: tuple[Floats, Floats], rates: Sequence[float]) -> NDArray[np.float64]:
    """Return the interval (K, 2) of true accepts at false-accept rates (K,), of curves of people drawn again."""
    false_accept, true_accept = curves
    values = [
        true[np.searchsorted(false, rates, side="right") - 1]
        for false, true in zip(false_accept, true_accept, strict=True)
    ]
    return np.asarray(np.quantile(np.array(values), INTERVAL, axis=0).T)


# --- the evaluation


RATES = (1e-2, 1e-3, 1e-4)
"""False-accept rates at which true accepts are reported."""

STRANGERS = "strangers"
"""Name of the distances of strangers beyond the pairs of a benchmark."""

BITS = "bits"
"""The distance of sealed faces: the share of different bits."""

KEYLESS = "keyless"
"""Name of the distances between faces under the key and faces under other keys."""
OTHER_KEYS = 20

LOW, HIGH = " low", " high"
"""Ends of names of scores and columns: the interval of what is named before."""

ACCEPTS = {
    f"TAR at FAR {rate:g}{ending}": f"true accepts at {rate:g}{of}"
    for ending, of in (("", ""), (f", all {STRANGERS}", f" of {STRANGERS}"))
    for rate in RATES
}
SCORES = {
    "accuracy": "accuracy",
    "equal error rate": "equal error rate",
    **{title + end: name + end for title, name in ACCEPTS.items() for end in ("", LOW, HIGH)},
    "accepted without the key": "accepted without the key",
    "pairs without the key": "pairs without the key",
}
"""Titles of columns, and the scores behind them."""

VERSION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationProtocol:
    """Recipes, distances and seeds of the liftings and keys to compare; sealed faces have one distance, that of bits.

    ``strangers``: this many pairs of different people beyond those of the benchmark, for low false-accept rates.
    ``halves``: probes and templates draw from different halves of the decoys, as those of a gallery do; the paper's
    draw from one.
    """

    recipes: tuple[str, ...] = (
        "raw", "sealed-2048:1", "random-2", "adversarial-2", "hybrid-2", "random-4", "adversarial-4", "hybrid-4",
    )  # fmt: skip
    distances: tuple[str, ...] = tuple(DISTANCES)
    seeds: tuple[int, ...] = (0,)
    strangers: int = 0
    halves: bool = False

    def __post_init__(self) -> None:
        if self.strangers < 0:
            raise InputError(f"strangers: expected a number of pairs, got {self.strangers}")


def evaluate_verification(
    pairs: FacePairs,
    folder: str | Path,
    protocol: VerificationProtocol | None = None,
    decoys: Decoys | None = None,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    overwrite: bool = False,
) -> list[Record]:
    """Verify all pairs under every recipe, distance and seed; return a record for each, also kept below ``folder``.

    ``decoys`` are embeddings of other people. What was measured before is not measured again, unless ``overwrite``
    forgets it.

    Raises InputError where there is nothing to measure, DecoyError where a recipe lacks decoys or a measured face is
    one of them, FileError if the folder cannot be written.
    """
    protocol = protocol or VerificationProtocol()
    if len(pairs) == 0:
        raise InputError("there are no pairs of faces to verify")
    subjects = _subjects(protocol, pairs.faces.extractor.name)
    for subject in subjects:
        need_decoys(subject.recipe, decoys)
    parts = (pairs.faces.values, pairs.left, pairs.right, pairs.same, pairs.fold)
    sample = Sample("pairs", digest_data(*parts))
    if protocol.strangers:
        refuse_unknown_people(pairs)
    measured = np.arange(len(pairs.faces)) if protocol.strangers else np.union1d(pairs.left, pairs.right)
    refuse_decoys(pairs.faces[measured], decoys)
    tasks = [_task(subject, pairs, sample, decoys, protocol) for subject in subjects]
    return run_tasks(tasks, folder, progress=progress, overwrite=overwrite)


def _subjects(protocol: VerificationProtocol, network: str) -> list[Subject]:
    """Return the subjects in the order of their recipes; a seal gets the bandwidth of the network."""
    others = [recipe for recipe in protocol.recipes if not Recipe.of(recipe).is_sealed]
    sealed = [face_recipe(recipe, network) for recipe in protocol.recipes if Recipe.of(recipe).is_sealed]
    subjects = [Subject(recipe, BITS, seed) for recipe in sealed for seed in protocol.seeds]
    if others or not subjects:
        subjects = [*choose_subjects(others, protocol.distances, protocol.seeds), *subjects]
    order = {str(face_recipe(recipe, network)): place for place, recipe in enumerate(protocol.recipes)}
    return sorted(dict.fromkeys(subjects), key=lambda one: order.get(str(one.recipe), len(order)))


def _persons(pairs: FacePairs) -> NDArray[np.int64] | None:
    """Return a number of the person on each face; None if names and pairs do not agree about who is who."""
    who = np.unique(people_of(pairs.faces.names), return_inverse=True)[1].astype(np.int64)
    return who if np.array_equal(who[pairs.left] == who[pairs.right], pairs.same) else None


def refuse_unknown_people(pairs: FacePairs) -> None:
    """Raise InputError unless the names of faces and the pairs agree about who is who."""
    if _persons(pairs) is None:
        raise InputError(
            "the names of these faces do not tell who is who, so that strangers cannot be paired: names such as "
            "Aaron_Sorkin_0002 are needed"
        )


def _task(
    subject: Subject, pairs: FacePairs, sample: Sample, decoys: Decoys | None, protocol: VerificationProtocol
) -> Task:
    lifting = subject.recipe.lifting
    used = decoys if lifting is not None and lifting.decoy_count else None
    more: dict[str, Value] = {"strangers": protocol.strangers} if protocol.strangers else {}
    if protocol.halves and subject.distance == SUBSPACE:
        more["halves"] = True
    params: dict[str, Value] = {
        "recipe": str(subject.recipe),
        "distance": subject.distance,
        "decoys": None if used is None else used.checksum,
        "decoy_count": None if used is None else len(used),
        **more,
    }
    return Task(
        name="faces",
        samples=[sample],
        predict=partial(_predict, subject, pairs, used, protocol),
        score=score_pairs,
        summarise=figure_by_figure("pairs"),
        params=params,
        seed=subject.seed,
        version=VERSION,
    )


def _predict(
    subject: Subject, pairs: FacePairs, decoys: Decoys | None, protocol: VerificationProtocol, sample: Sample
) -> Prediction:
    """Return the distance of every pair and, by number, its two people; pairs that name nobody have one of their own.

    The left face is clear where points meet subspaces.
    """
    who = _persons(pairs)
    people = np.tile(np.arange(len(pairs)), (2, 1)) if who is None else np.stack([who[pairs.left], who[pairs.right]])
    prediction = {"same": pairs.same, "fold": pairs.fold, "people": people.astype(np.int32)}
    rows = None
    if protocol.strangers:
        rows = stranger_pairs(people_of(pairs.faces.names), protocol.strangers, np.random.default_rng(0))
        assert who is not None
        prediction[f"{STRANGERS} people"] = np.stack([who[rows[0]], who[rows[1]]]).astype(np.int32)
    if subject.distance == BITS:
        return prediction | _sealed_distances(subject, pairs, rows)
    seed, other = subject.seed or 0, decoys
    if protocol.halves and decoys is not None and subject.distance == SUBSPACE:
        decoys, other = split_decoys(decoys)
    right = lift_faces(pairs.faces, subject.recipe, decoys, seed=seed)
    left = right if other is decoys else lift_faces(pairs.faces, subject.recipe, other, seed=seed)
    if subject.distance == POINT:
        left = lift_faces(pairs.faces, "raw", None, seed=0)
    prediction["distance"] = row_distances(left, pairs.left, right, pairs.right).astype(np.float32)
    if rows is not None:
        prediction[STRANGERS] = pair_distances(left, right, *rows).astype(np.float32)
    return prediction


def _sealed_distances(
    subject: Subject, pairs: FacePairs, rows: tuple[NDArray[np.int64], NDArray[np.int64]] | None
) -> dict[str, NDArray[Any]]:
    """Return the shares of different bits of all pairs under one key, and with the right face under other keys."""
    values, seed = pairs.faces.values, subject.seed or 0
    packed = face_seal(subject.recipe, values.shape[1], seed=seed)(values).packed
    keyless = []
    for number in range(OTHER_KEYS):
        seal = face_seal(subject.recipe, values.shape[1], seed=seed, owner=f"stranger {number}")
        keyless.append(bit_distances(packed[pairs.left], seal(values).packed[pairs.right]))
    distances = {
        "distance": bit_distances(packed[pairs.left], packed[pairs.right]),
        KEYLESS: np.concatenate(keyless),
    }
    if rows is not None:
        distances[STRANGERS] = bit_distances(packed[rows[0]], packed[rows[1]])
    return distances


def score_pairs(sample: Sample, prediction: Prediction) -> Figures:
    """Return accuracy by folds, equal error rate, and true accepts at rates that this many impostors can resolve.

    ``accepted without the key`` is at the threshold that decides most pairs rightly, which is wider than those of the
    rates.
    """
    distance, same, fold = (prediction[name] for name in ("distance", "same", "fold"))
    people = prediction["people"]
    curve = receiver_curve(distance, same)
    figures = {"equal error rate": equal_error_rate(curve), "pairs": float(len(distance))}
    if np.unique(fold).size > 1:
        accuracies = fold_accuracies(distance, same, fold)
        figures |= {"accuracy": float(accuracies.mean()), "worst fold": float(accuracies.min())}
    figures |= accepts_with_intervals(distance, same, people, "")
    if KEYLESS in prediction:
        accepted = prediction[KEYLESS] <= best_threshold(distance, same)
        figures |= {"accepted without the key": float(accepted.mean()), "pairs without the key": float(len(accepted))}
    if STRANGERS in prediction:
        known, others = distance[same], prediction[STRANGERS]
        truth = np.arange(len(known) + len(others)) < len(known)
        both = np.concatenate([people[:, same], prediction[f"{STRANGERS} people"]], axis=1)
        figures |= accepts_with_intervals(np.concatenate([known, others]), truth, both, f" of {STRANGERS}")
    return figures


def accepts_with_intervals(distances: ArrayLike, same: ArrayLike, people: ArrayLike, of: str) -> dict[str, float]:
    """Return the true accepts, with their intervals, at every rate that this many impostors can resolve."""
    curve = receiver_curve(distances, same)
    accepts = {rate: value for rate in RATES if (value := true_accepts_at(curve, rate)) is not None}
    if not accepts:
        return {}
    ends = accept_intervals(resampled_curves(distances, same, people), list(accepts))
    figures = dict[str, float]()
    for (rate, value), (low, high) in zip(accepts.items(), ends, strict=True):
        name = f"true accepts at {rate:g}{of}"
        figures |= {name: value, name + LOW: float(low), name + HIGH: float(high)}
    return figures


def read_prediction(record: Record, folder: str | Path) -> dict[str, NDArray[Any]] | None:
    """Return the arrays behind a record of one sample, if they still exist."""
    for path in sorted(Path(folder, record.task).glob("*/records/*.json")):
        if Record.from_json(path.read_text(encoding="utf-8")) == record:
            for prediction in sorted((path.parent.parent / "predictions").glob("*.npz")):
                with np.load(prediction, allow_pickle=False) as members:
                    return {name: members[name] for name in members.files}
    return None


def read_distances(record: Record, folder: str | Path) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return the distances and truths behind a record of ``evaluate_faces``, if they still exist."""
    prediction = read_prediction(record, folder)
    return None if prediction is None else (prediction["distance"], prediction["same"])


def verification_table(records: Iterable[Record]) -> Table:
    """Return one row per recipe and distance, intervals in columns of their own; what no record has gets no column."""
    groups = group_by_seed(records)
    names = {score.name for group in groups for record in group.records for score in record.scores}
    return make_table(groups, ("recipe", "distance"), {title: name for title, name in SCORES.items() if name in names})


def with_intervals(table: Table) -> Table:
    """Return a table with the columns of an interval in that of its figure: 0.985 (0.978 to 0.991)."""
    place = {title: number for number, title in enumerate(table.columns)}
    titles = [
        title for title in table.columns if not (title.endswith((LOW, HIGH)) and title.rpartition(" ")[0] in place)
    ]
    rows = []
    for row in table.rows:
        cells = []
        for title in titles:
            cell = row[place[title]]
            if title + LOW in place and cell.value is not None:
                low, high = (row[place[title + end]].value for end in (LOW, HIGH))
                cell = Cell(f"{cell.value:.3f} ({low:.3f} to {high:.3f})")
            cells.append(cell)
        rows.append(tuple(cells))
    return Table(tuple(titles), tuple(rows))
