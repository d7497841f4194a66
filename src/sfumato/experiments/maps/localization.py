# SPDX-License-Identifier: Apache-2.0
"""Evaluation of localization: each photo is localized in a map of the others (appendix C of the paper).

The map is triangulated from the true poses of the other photos; of photos without ground truth, from those that plain
COLMAP found for all of them. Point-to-subspace: the map is made of clear descriptors that their owner published, the
query is concealed. Subspace-to-subspace: map and query are both concealed. The scores are the shares of queries within
(0.25 m, 2 deg), (0.5 m, 5 deg) and (5 m, 10 deg) where metres are known, median errors, also relative to the size of
the scene, and false poses.
"""

import logging
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from sfumato.auditing.runner import Results, run_tasks
from sfumato.auditing.subjects import POINTS, Subject, choose_decoys
from sfumato.auditing.tables import Table, group_by_seed, make_table
from sfumato.auditing.task import Figures, Prediction, Sample, Task, digest_data, short_digest
from sfumato.concealment.decoys import Decoys
from sfumato.errors import FileError, InputError
from sfumato.experiments.data.folders import PosedImages, UnposedImages
from sfumato.experiments.maps.plain_colmap import map_plainly, scene_size
from sfumato.experiments.maps.scene import PhotoScene, named_subjects, verification_params
from sfumato.features.local import LocalParams, extractor_of
from sfumato.geometry.cameras import pose_error
from sfumato.geometry.localization import LocalizeParams, localize_query
from sfumato.geometry.mapping import map_keypoints
from sfumato.geometry.maps import Map
from sfumato.geometry.model import Model, read_model
from sfumato.geometry.statistics import THRESHOLDS, PoseError, median_errors, recalls
from sfumato.matching.mutual import default_ratio
from sfumato.types.concealed import PublicPoints
from sfumato.types.progress import StageProgress
from sfumato.types.recipe import Recipe
from sfumato.types.record import Record, Score, Value
from sfumato.types.scene import Pose

log = logging.getLogger(__name__)

VERSION, SCORE_VERSION = 4, 2
"""Of predictions and scores: raise them with every change."""

FALSE_DEG, FALSE_SHARE = 5.0, 0.1
"""A pose is false if its rotation is more than this wrong, or its position more than this share of the scene's size."""
FEWEST = 3
"""Photos that a scene needs: one that is localized, and two that see something in common."""

RAW = Subject(Recipe("raw"), POINTS, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalizeProtocol:
    """Settings: every recipe is measured with every distance and seed."""

    recipes: tuple[str, ...] = ("raw", "default", "sub-hybrid-2")
    distances: tuple[str, ...] = ("s-to-s",)
    seeds: tuple[int, ...] = (0,)
    local: LocalParams = field(default_factory=LocalParams)
    params: LocalizeParams = field(default_factory=LocalizeParams)


class NoReferenceMap(InputError):
    """Photos without ground truth that plain COLMAP cannot map: nothing tells where they were taken."""


class LeftOutMaps:
    """Maps of a scene without one of its images, made at first use; those of the last image stay in memory."""

    def __init__(self, scene: PhotoScene, progress: StageProgress) -> None:
        self._scene, self._progress = scene, progress
        self._cameras, self._poses = scene.cameras, scene.truth
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
        keypoints = {name: scene.concealed(name, owner).keypoints for name in scene.names if name != query}
        poses = {name: self._poses[name] for name in keypoints}
        with tempfile.TemporaryDirectory(prefix="sfumato-map-") as place:
            outcome = map_keypoints(keypoints, self._cameras, matches, Path(place) / "model", poses=poses)
            if outcome.folder is None:
                return outcome.reason
            model = read_model(outcome.folder)
        if owner.recipe.is_clear:
            return Map(model, {name: self._public(name, model) for name in model.names}, is_public=True)
        rows = {name: model.sight(name).keypoints for name in model.names}
        hidden = {name: scene.concealed(name, owner).take(rows[name]) for name in model.names}
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
    images: PosedImages | UnposedImages,
    folder: str | Path,
    protocol: LocalizeProtocol | None = None,
    decoys: Decoys | None = None,
    *,
    name: str = "scene",
    progress: StageProgress = lambda stage, items, total: items,
    overwrite: bool = False,
) -> list[Record]:
    """Localize every image in a map of the others, for every recipe, distance and seed; one record each.

    Of photos without ground truth, those that plain COLMAP can map are localized, and its poses are the truth. ``name``
    is that of the scene in the records. Queries that were localized before are not localized again, unless
    ``overwrite`` forgets them.

    Raises NoReferenceMap where plain COLMAP maps fewer than three photos.
    """
    protocol = protocol or LocalizeProtocol()
    rows = named_subjects(protocol.recipes, protocol.distances, protocol.seeds, protocol.local.descriptor)
    decoys = choose_decoys([subject for _, subject in rows], extractor_of(protocol.local), decoys)
    posed = images
    if isinstance(images, UnposedImages):
        for _ in progress(f"{name}: plain COLMAP", [name], 1):
            posed = pose_by_colmap(images, folder, name)
    assert isinstance(posed, PosedImages)
    scene = PhotoScene(posed, folder, protocol.local, decoys, threads=protocol.params.threads)
    facts: dict[str, Value] = {"scene": name, "truth": "poses" if posed is images else "plain COLMAP"}
    maps = LeftOutMaps(scene, progress)
    tasks = [make_task(scene, subject, maps, protocol, {**facts, "row": row}) for row, subject in rows]
    records = run_tasks(
        tasks,
        folder,
        progress=lambda items: progress(f"{name}: localizing", items, len(items)),
        overwrite=overwrite,
        by_sample=True,
    )
    for task, (_, subject) in zip(tasks, rows, strict=True):
        for query, reason in failures(task, folder).items():
            log.warning("%s: %s is not localized: %s", subject, query, reason)
    return records


def pose_by_colmap(images: UnposedImages, folder: str | Path, name: str) -> PosedImages:
    """Return the photos that plain COLMAP can map, with its poses in a world where the scene's size is 1."""
    digests = {photo: digest_data(path) for photo, path in images.paths.items()}
    plain = map_plainly(images.paths, digests, folder)
    if len(plain.poses) < FEWEST:
        raise NoReferenceMap(
            f"{name}: plain COLMAP maps {len(plain.poses)} of {len(images)} photos, and {FEWEST} or more are needed to "
            f"localize one in a map of the others"
        )
    if not plain.agreeing:
        log.warning(
            "%s: the truth is doubtful, maps of plain COLMAP with other seeds differ by up to %.1f degrees",
            name,
            plain.seed_degrees,
        )
    poses = {photo: Pose(pose.rotation, pose.translation / plain.size) for photo, pose in plain.poses.items()}
    return PosedImages({photo: images.paths[photo] for photo in poses}, plain.cameras, poses)


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


def make_task(
    scene: PhotoScene, subject: Subject, maps: LeftOutMaps, protocol: LocalizeProtocol, facts: Mapping[str, Value]
) -> Task:
    """Return the task of one subject."""
    params: dict[str, Value] = {
        "distance": subject.distance,
        **{name: value for name, value in asdict(protocol.params).items() if name != "threads"},
        "map_ratio": default_ratio(owner_of(subject).recipe),
        **verification_params(),
    }
    return Task(
        name="localize",
        samples=[Sample(name, short_digest(scene.digest, name)) for name in scene.names],
        predict=lambda sample: localize_one(scene, subject, maps, protocol, sample.key),
        score=score_query,
        summarise=lambda figures: summarise_queries(figures, in_metres=facts["truth"] == "poses"),
        params={**scene.params(subject), **params},
        seed=subject.seed,
        version=VERSION,
        score_version=SCORE_VERSION,
        facts=facts,
    )


def localize_one(
    scene: PhotoScene, subject: Subject, maps: LeftOutMaps, protocol: LocalizeProtocol, query: str
) -> Prediction:
    """Localize one image in a map of the others; return its error, never its position."""
    map_ = maps.get(query, subject)
    if isinstance(map_, str):
        return _prediction(None, (0, 0), map_, scene_size(scene.truth))
    params = replace(protocol.params, seed=subject.seed or protocol.params.seed)
    found = localize_query(scene.concealed(query, subject), scene.cameras[query], map_, map_.names, params)
    if map_.damaged:
        raise InputError(f"the map has images that cannot be used: {next(iter(map_.damaged.values()))}")
    error = None if found.pose is None else pose_error(found.pose, scene.truth[query])
    counts, size = (found.inliers, found.matches), scene_size(scene.truth)
    return _prediction(error, counts, found.reason, size, is_doubtful=bool(found.doubt))


def _prediction(
    error: PoseError | None, counts: tuple[int, int], reason: str, size: float, *, is_doubtful: bool = False
) -> Prediction:
    return {
        "localized": np.array(error is not None),
        "error": np.array(error or (0.0, 0.0)),
        "counts": np.array(counts, np.int64),
        "reason": np.array(reason, np.str_),
        "doubtful": np.array(is_doubtful),
        "scene_size": np.array(size),
    }


def score_query(_sample: Sample, prediction: Prediction) -> Figures:
    """Return errors of a query that was localized, also as a share of the scene's size, and whether it is false."""
    inliers, matches = (float(count) for count in prediction["counts"])
    figures = {"localized": float(prediction["localized"]), "inliers": inliers, "matches": matches}
    if prediction["localized"]:
        metres, degrees = (float(value) for value in prediction["error"])
        share = metres / max(float(prediction["scene_size"]), 1e-12)
        is_false = degrees > FALSE_DEG or share > FALSE_SHARE
        figures |= {"metres": metres, "degrees": degrees, "share": share, "false": float(is_false)}
        figures["unsuspected"] = float(is_false and not prediction["doubtful"])
    return figures


def summarise_queries(figures: Mapping[str, Figures], *, in_metres: bool = True) -> list[Score]:
    """Return how many are localized, false poses, medians over all queries where they are finite, and mean counts.

    In metres also the recall at the three thresholds.
    """
    rows = list(figures.values())
    if not rows:
        return []
    errors = [(row["metres"], row["degrees"]) if row["localized"] else None for row in rows]
    shares = [(row["share"], row["degrees"]) if row["localized"] else None for row in rows]
    scores = []
    if in_metres:
        recall = zip(THRESHOLDS, recalls(errors), strict=True)
        scores += [Score(recall_name(limit), share, samples=len(rows)) for limit, share in recall]
    metres, degrees = median_errors(errors)
    medians = {"median rotation error": (degrees, "deg"), "median position share": (median_errors(shares)[0], "scene")}
    if in_metres:
        medians["median position error"] = metres, "m"
    scores += [Score(name, value, unit, len(rows)) for name, (value, unit) in medians.items() if np.isfinite(value)]
    for name, figure in (("false poses", "false"), ("false poses without a doubt", "unsuspected")):
        scores.append(Score(name, sum(row.get(figure, 0.0) for row in rows), samples=len(rows)))
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
    """Return the figures people compare; recall and metres where the truth is known."""
    groups = group_by_seed(records)
    scores = {"localized": "localized", "false": "false poses", "rotation [deg]": "median rotation error"}
    scores |= {"position [scene]": "median position share", "inliers": "inliers"}
    scores |= {"matches": "matches", "position [m]": "median position error"}
    scores |= {f"{limit[0]:g} m {limit[1]:g} deg": recall_name(limit) for limit in THRESHOLDS}
    if not any(group.values("median position error") for group in groups):
        del scores["matches"]  # one table less
    used = {title: name for title, name in scores.items() if any(group.values(name) for group in groups)}
    table = make_table(groups, ("scene", "row", "distance"), used).without_single_seeds()
    return Table(("scene", "recipe", *table.columns[2:]), table.rows)
