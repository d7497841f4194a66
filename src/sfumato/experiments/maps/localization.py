# SPDX-License-Identifier: Apache-2.0
"""Evaluation of localization: each posed photo is localized in a map of the others (appendix C of the paper).

The map is triangulated from the true poses of the other photos. Point-to-subspace: the map is made of clear descriptors
that their owner published, the query is concealed. Subspace-to-subspace: map and query are both concealed. The scores
are the shares of queries within (0.25 m, 2 deg), (0.5 m, 5 deg) and (5 m, 10 deg), and median errors.
"""

import logging
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from sfumato.auditing.runner import Results, run_tasks
from sfumato.auditing.subjects import POINTS, Subject, choose_decoys, choose_subjects
from sfumato.auditing.tables import Table, group_by_seed, make_table
from sfumato.auditing.task import Figures, Prediction, Sample, Task, short_digest
from sfumato.concealment.decoys import Decoys
from sfumato.errors import FileError, InputError
from sfumato.experiments.data.folders import PosedImages
from sfumato.experiments.maps.scene import PosedScene, verification_params
from sfumato.features.local import LocalParams, extractor_of
from sfumato.geometry.cameras import pose_error
from sfumato.geometry.localization import LocalizeParams, localize_query
from sfumato.geometry.mapping import map_keypoints
from sfumato.geometry.maps import Map, select_rows
from sfumato.geometry.model import Model, read_model
from sfumato.geometry.statistics import THRESHOLDS, PoseError, median_errors, recalls
from sfumato.types.concealed import PublicPoints
from sfumato.types.progress import StageProgress
from sfumato.types.recipe import Recipe
from sfumato.types.record import Record, Score, Value

log = logging.getLogger(__name__)

VERSION, SCORE_VERSION = 1, 1
"""Of predictions and scores: raise them with every change."""

RAW = Subject(Recipe("raw"), POINTS, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalizeProtocol:
    """Settings: every recipe is measured with every distance and seed."""

    recipes: tuple[str, ...] = ("raw", "sub-hybrid-2", "sub-hybrid-16")
    distances: tuple[str, ...] = ("p-to-s",)
    seeds: tuple[int, ...] = (0,)
    local: LocalParams = field(default_factory=LocalParams)
    params: LocalizeParams = field(default_factory=LocalizeParams)


class LeftOutMaps:
    """Maps of a scene without one of its images, made at first use; those of the last image stay in memory."""

    def __init__(self, scene: PosedScene, progress: StageProgress) -> None:
        self._scene, self._progress = scene, progress
        self._maps: dict[tuple[str, Subject], Map | str] = {}

    def get(self, query: str, subject: Subject) -> Map | str:
        """Return the map for a query of this subject, or why there is none."""
        owner = owner_of(subject)
        key = (query, owner)
        if key not in self._maps:
            self._maps = {other: made for other, made in self._maps.items() if other[0] == query}
            self._maps[key] = self._make(query, owner)
        return self._maps[key]

    def _make(self, query: str, owner: Subject) -> Map | str:
        scene = self._scene
        matches = scene.matches(owner, self._progress)
        keypoints = {name: scene.clear(name).keypoints for name in scene.names if name != query}
        poses = {name: scene.images.poses[name] for name in keypoints}
        with tempfile.TemporaryDirectory(prefix="sfumato-map-") as place:
            outcome = map_keypoints(keypoints, scene.images.cameras, matches, Path(place) / "model", poses=poses)
            if outcome.folder is None:
                return outcome.reason
            model = read_model(outcome.folder)
        if owner.recipe.is_clear:
            return Map(model, {name: self._public(name, model) for name in model.names}, is_public=True)
        rows = {name: model.sight(name).keypoints for name in model.names}
        hidden = {name: select_rows(scene.concealed(name, owner), rows[name]) for name in model.names}
        return Map(model, hidden, is_public=False)

    def _public(self, name: str, model: Model) -> PublicPoints:
        """Return the descriptors that the owner of a map would publish; in memory, for this evaluation alone."""
        sight, features = model.sight(name), self._scene.clear(name)
        return PublicPoints(model.numbers[sight.landmarks], features.descriptors[sight.keypoints], features.extractor)


def owner_of(subject: Subject) -> Subject:
    """Return the subject that a map is made of: the same, or, for queries against points, the one without a lifting."""
    if subject.distance != "p-to-s":
        return subject
    encoders = subject.recipe.encoders
    return Subject(Recipe(links=encoders), POINTS, None) if encoders else RAW


def evaluate_localization(
    images: PosedImages,
    folder: str | Path,
    protocol: LocalizeProtocol | None = None,
    decoys: Decoys | None = None,
    *,
    progress: StageProgress = lambda stage, items, total: items,
    overwrite: bool = False,
) -> list[Record]:
    """Localize every image in a map of the others, for every recipe, distance and seed; one record each.

    Queries that were localized before are not localized again, unless ``overwrite`` forgets them.
    """
    protocol = protocol or LocalizeProtocol()
    subjects = choose_subjects(protocol.recipes, protocol.distances, protocol.seeds)
    decoys = choose_decoys(subjects, extractor_of(protocol.local), decoys)
    scene = PosedScene(images, folder, protocol.local, decoys, threads=protocol.params.threads)
    maps = LeftOutMaps(scene, progress)
    tasks = [make_task(scene, subject, maps, protocol) for subject in subjects]
    records = run_tasks(
        tasks,
        folder,
        progress=lambda items: progress("localizing", items, len(items)),
        overwrite=overwrite,
        by_sample=True,
    )
    for task, subject in zip(tasks, subjects, strict=True):
        for name, reason in failures(task, folder).items():
            log.warning("%s: %s is not localized: %s", subject, name, reason)
    return records


def failures(task: Task, folder: str | Path) -> dict[str, str]:
    """Return the queries of a task that were not localized, and why."""
    results, reasons = Results(folder, task), {}
    scores = results.scores()
    for sample in task.samples:
        if sample in scores and not scores[sample][0].get("localized"):
            try:
                reasons[sample.key] = str(results.load_prediction(sample)[0].get("reason", "")) or "unknown"
            except FileError:
                reasons[sample.key] = "the prediction is no longer there"
    return reasons


def make_task(scene: PosedScene, subject: Subject, maps: LeftOutMaps, protocol: LocalizeProtocol) -> Task:
    """Return the task of one subject."""
    params: dict[str, Value] = {
        "distance": subject.distance,
        **{name: value for name, value in asdict(protocol.params).items() if name != "threads"},
        **verification_params(),
    }
    return Task(
        name="localize",
        samples=[Sample(name, short_digest(scene.digest, name)) for name in scene.names],
        predict=lambda sample: localize_one(scene, subject, maps, protocol, sample.key),
        score=score_query,
        summarise=summarise_queries,
        params={**scene.params(subject), **params},
        seed=subject.seed,
        version=VERSION,
        score_version=SCORE_VERSION,
    )


def localize_one(
    scene: PosedScene, subject: Subject, maps: LeftOutMaps, protocol: LocalizeProtocol, query: str
) -> Prediction:
    """Localize one image in a map of the others; return its error, never its position."""
    map_ = maps.get(query, subject)
    if isinstance(map_, str):
        return _prediction(None, (0, 0), map_)
    params = replace(protocol.params, seed=subject.seed or protocol.params.seed)
    found = localize_query(scene.concealed(query, subject), scene.images.cameras[query], map_, map_.names, params)
    if map_.damaged:
        raise InputError(f"the map has images that cannot be used: {next(iter(map_.damaged.values()))}")
    error = None if found.pose is None else pose_error(found.pose, scene.images.poses[query])
    return _prediction(error, (found.inliers, found.matches), found.reason)


def _prediction(error: PoseError | None, counts: tuple[int, int], reason: str) -> Prediction:
    return {
        "localized": np.array(error is not None),
        "error": np.array(error or (0.0, 0.0)),
        "counts": np.array(counts, np.int64),
        "reason": np.array(reason, np.str_),
    }


def score_query(_sample: Sample, prediction: Prediction) -> Figures:
    """Return errors of a query that was localized, and what it was localized from."""
    inliers, matches = (float(count) for count in prediction["counts"])
    figures = {"localized": float(prediction["localized"]), "inliers": inliers, "matches": matches}
    if prediction["localized"]:
        figures |= {"metres": float(prediction["error"][0]), "degrees": float(prediction["error"][1])}
    return figures


def summarise_queries(figures: Mapping[str, Figures]) -> list[Score]:
    """Return recall at the three thresholds, medians over all queries where they are finite, and mean counts."""
    rows = list(figures.values())
    if not rows:
        return []
    errors = [(row["metres"], row["degrees"]) if row["localized"] else None for row in rows]
    shares = zip(THRESHOLDS, recalls(errors), strict=True)
    scores = [Score(recall_name(limit), share, samples=len(rows)) for limit, share in shares]
    for name, unit, value in zip(("position", "rotation"), ("m", "deg"), median_errors(errors), strict=True):
        if np.isfinite(value):
            scores.append(Score(f"median {name} error", value, unit, len(rows)))
    counts = {name: fmean(row[name] for row in rows) for name in ("localized", "inliers", "matches")}
    return scores + [
        Score(name, value, "" if name == "localized" else "per query", len(rows)) for name, value in counts.items()
    ]


def recall_name(limit: tuple[float, float]) -> str:
    """Return the name of a score.

    >>> recall_name((0.25, 2))
    'recall (0.25 m, 2 deg)'
    """
    return f"recall ({limit[0]:g} m, {limit[1]:g} deg)"


def localization_table(records: Iterable[Record]) -> Table:
    """Return the figures people compare."""
    scores = {f"{limit[0]:g} m, {limit[1]:g} deg": recall_name(limit) for limit in THRESHOLDS}
    scores |= {"position [m]": "median position error", "rotation [deg]": "median rotation error"}
    scores |= {"matches": "matches", "inliers": "inliers"}
    return make_table(group_by_seed(records), ("recipe", "distance"), scores)
