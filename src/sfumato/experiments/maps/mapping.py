# SPDX-License-Identifier: Apache-2.0
"""Evaluation of maps: posed photos are mapped from the released features of each recipe (section 4.1.3 of the paper).

Every image is concealed, every pair matched (subspace to subspace; raw descriptors as points), and a map built with the
true intrinsics and nothing else. The scores are the figures of the paper's Table 1, verified matches, and the errors of
the cameras. A map that fails is a result.
"""

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from sfumato.auditing.runner import Results, run_task
from sfumato.auditing.subjects import Subject, choose_decoys, choose_subjects
from sfumato.auditing.tables import Table, group_by_seed, make_table, raw_of
from sfumato.auditing.task import Figures, Prediction, Sample, Task
from sfumato.concealment.decoys import Decoys
from sfumato.errors import FileError
from sfumato.experiments.data.folders import PosedImages
from sfumato.experiments.maps.scene import PosedScene, verification_params
from sfumato.features.local import LocalParams, extractor_of
from sfumato.geometry.colmap import load_pycolmap
from sfumato.geometry.mappers import MapParams
from sfumato.geometry.mapping import MapOutcome, map_keypoints
from sfumato.geometry.statistics import compare_with_truth
from sfumato.types.progress import StageProgress
from sfumato.types.record import Record, Score

VERSION, SCORE_VERSION = 2, 1
"""Of predictions and scores: raise them with every change."""

UNITS = {
    "reprojection error": "px",
    "median position error": "m",
    "median rotation error": "deg",
    "median relative error": "deg",
    "mapping time": "s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MapProtocol:
    """Settings: a map is made from every recipe and seed. ``threads`` are COLMAP's; one makes it repeatable."""

    recipes: tuple[str, ...] = ("raw", "sub-hybrid-2", "sub-hybrid-4")
    seeds: tuple[int, ...] = (0,)
    mapper: str = "incremental"
    local: LocalParams = field(default_factory=LocalParams)
    threads: int = 1


@dataclass(frozen=True, slots=True)
class MapResult:
    """A record, the images that are not in its map, and why there is no map, if so."""

    record: Record
    unregistered: tuple[str, ...]
    reason: str


def evaluate_map(
    images: PosedImages,
    folder: str | Path,
    protocol: MapProtocol | None = None,
    decoys: Decoys | None = None,
    *,
    progress: StageProgress = lambda stage, items, total: items,
    overwrite: bool = False,
) -> list[MapResult]:
    """Build a map for every recipe and seed and compare it with the truth; records are stored below ``folder``.

    Matches and maps that were made before are not made again, unless ``overwrite`` forgets the maps.
    """
    protocol = protocol or MapProtocol()
    subjects = choose_subjects(protocol.recipes, ["s-to-s"], protocol.seeds)
    decoys = choose_decoys(subjects, extractor_of(protocol.local), decoys)
    scene = PosedScene(images, folder, protocol.local, decoys)
    MapParams(mapper=protocol.mapper, threads=protocol.threads)  # refuses wrong settings before anything is matched
    return [_evaluate(scene, subject, protocol, progress, overwrite) for subject in subjects]


def _evaluate(
    scene: PosedScene, subject: Subject, protocol: MapProtocol, progress: StageProgress, overwrite: bool
) -> MapResult:
    sample = Sample("map", scene.digest)
    task = Task(
        name="map",
        samples=[sample],
        predict=lambda _: make_map(scene, subject, protocol, progress),
        score=score_map,
        summarise=summarise_map,
        params={
            **scene.params(subject),
            "mapper": protocol.mapper,
            "images": len(scene.names),
            **verification_params(),
        },
        seed=subject.seed,
        version=VERSION,
        score_version=SCORE_VERSION,
    )
    record = run_task(task, scene.folder, overwrite=overwrite)
    if not record.dropped:
        prediction, record = _prediction_of(task, scene.folder, record)
    else:
        prediction = {}
    missing, reason = prediction.get("unregistered", np.array([])), prediction.get("reason", np.array(""))
    return MapResult(record, tuple(map(str, missing)), str(reason))


def _prediction_of(task: Task, folder: str | Path, record: Record) -> tuple[Prediction, Record]:
    """Return the stored prediction; one that was removed or damaged is made anew, with its record."""
    (sample,) = task.samples
    try:
        return Results(folder, task).load_prediction(sample)[0], record
    except FileError:
        record = run_task(task, folder, overwrite=True)
        return Results(folder, task).load_prediction(sample)[0] if not record.dropped else {}, record


def make_map(scene: PosedScene, subject: Subject, protocol: MapProtocol, progress: StageProgress) -> Prediction:
    """Match and map; return figures of the map and the errors of its cameras, never their positions."""
    matches = scene.matches(subject, progress)
    keypoints = {name: scene.clear(name).keypoints for name in scene.names}
    params = MapParams(mapper=protocol.mapper, seed=subject.seed or 0, threads=protocol.threads)
    with tempfile.TemporaryDirectory(prefix="sfumato-map-") as place:
        outcome = map_keypoints(
            keypoints, scene.images.cameras, matches, Path(place) / "model", params, progress=progress
        )
        return {**_figures_of(outcome), **_errors_of(outcome, scene)}


def _figures_of(outcome: MapOutcome) -> dict[str, np.ndarray]:
    pairs = outcome.verified.pairs
    return {
        **{name: np.array(value) for name, value in asdict(outcome.statistics).items()},
        "pair_matches": np.array([pair.matches for pair in pairs], np.int64),
        "pair_inliers": np.array([pair.inliers for pair in pairs], np.int64),
        "mapping_seconds": np.array(outcome.seconds),
        "unregistered": np.array(outcome.unregistered, np.str_),
        "reason": np.array(outcome.reason, np.str_),
    }


def _errors_of(outcome: MapOutcome, scene: PosedScene) -> dict[str, np.ndarray]:
    if outcome.folder is None:
        return {name: np.zeros(0) for name in ("position", "rotation", "relative")}
    errors = compare_with_truth(load_pycolmap().Reconstruction(str(outcome.folder)), scene.images.poses)
    relative = np.maximum(errors.relative_rotation, errors.relative_direction)
    return {"position": errors.position, "rotation": errors.rotation, "relative": relative}


def score_map(_sample: Sample, prediction: Prediction) -> Figures:
    """Return the figures of Table 1, verified matches, and median errors where there is something to compare."""
    figures = {
        "registered images": float(prediction["registered"]),
        "points": float(prediction["points"]),
        "observations": float(prediction["observations"]),
        "track length": float(prediction["track_length"]),
        "observations per image": float(prediction["observations_per_image"]),
        "reprojection error": float(prediction["reprojection_error_px"]),
        "matches": float(prediction["pair_matches"].sum()),
        "inliers": float(prediction["pair_inliers"].sum()),
        "verified pairs": float(np.count_nonzero(prediction["pair_inliers"])),
        "mapping time": float(prediction["mapping_seconds"]),
    }
    for name in ("position", "rotation", "relative"):
        if prediction[name].size and np.isfinite(prediction[name]).all():
            figures[f"median {name} error"] = float(np.median(prediction[name]))
    return figures


def summarise_map(figures: Mapping[str, Figures]) -> list[Score]:
    """Return the figures of the only map."""
    return [Score(name, value, UNITS.get(name, "")) for row in figures.values() for name, value in row.items()]


def map_table(records: Iterable[Record]) -> Table:
    """Return the main figures, and their ratios to raw."""
    groups = group_by_seed(records)
    raw = raw_of(groups)
    scores = {
        "registered": "registered images", "points": "points", "track length": "track length",
        "reprojection [px]": "reprojection error", "inliers": "inliers", "position [m]": "median position error",
        "rotation [deg]": "median rotation error", "relative [deg]": "median relative error",
    }  # fmt: skip
    ratios = {
        "points / raw": "points", "inliers / raw": "inliers", "position / raw": "median position error",
        "rotation / raw": "median rotation error", "relative / raw": "median relative error",
    }  # fmt: skip
    return make_table(
        groups, ("recipe", "images"), scores, ratios=ratios if any(map(raw, groups)) else None, baseline=raw
    )
