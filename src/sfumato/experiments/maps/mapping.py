# SPDX-License-Identifier: Apache-2.0
"""Evaluation of maps: photos are mapped from the released features of each recipe (section 4.1.3 of the paper).

Every image is concealed, every pair matched (subspace to subspace; raw descriptors as points), and a map built as a
user builds it. The scores are the figures of the paper's Table 1, verified matches, times, how far the map is from that
of plain COLMAP on the same photos, and the errors of the cameras where the truth is known. A map that fails is a
result.
"""

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.auditing.runner import Results, run_task
from sfumato.auditing.subjects import Subject, choose_decoys
from sfumato.auditing.tables import Cell, SeedGroup, Table, group_by_seed, make_table
from sfumato.auditing.task import Figures, Prediction, Sample, Task
from sfumato.concealment.decoys import Decoys
from sfumato.errors import FileError, InputError, suggest
from sfumato.experiments.data.folders import PosedImages, UnposedImages
from sfumato.experiments.maps.plain_colmap import PlainMap, map_plainly
from sfumato.experiments.maps.scene import PhotoScene, named_subjects, verification_params
from sfumato.features.local import LocalParams, extractor_of
from sfumato.geometry.colmap import load_pycolmap
from sfumato.geometry.mappers import MapParams
from sfumato.geometry.mapping import MapOutcome, map_keypoints
from sfumato.geometry.statistics import compare_poses, poses_of
from sfumato.matching.mutual import default_ratio
from sfumato.types.progress import StageProgress
from sfumato.types.record import Record, Score, Value
from sfumato.types.scene import Pose

VERSION, SCORE_VERSION = 4, 2
"""Of predictions and scores: raise them with every change."""

COLMAP = "colmap"
"""The row of plain COLMAP."""
CLEAR_RATIOS = {"mutual": 1.0, "ratio 0.8": 0.8}
"""How clear descriptors are matched, for comparison: mutual nearest alone, and with the ratio test."""
CAMERAS = ("guessed", "known")

UNITS = {
    "reprojection error": "px",
    "median position error": "m",
    "median rotation error": "deg",
    "median relative error": "deg",
    "median rotation difference": "deg",
    "largest rotation difference": "deg",
    "median position difference": "of the scene",
    "extraction time": "s per photo",
    "concealment time": "s per photo",
    "photo time": "s per photo",
    "matching time": "s",
    "verification time": "s",
    "pair time": "s",
    "matching speed": "pairs per s",
    "mapping time": "s",
    "total time": "s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MapProtocol:
    """Settings: a map is made from every recipe and seed. ``threads`` are COLMAP's; one makes it repeatable.

    ``cameras``: those that users have, from EXIF or guessed, or the known ones of posed images. ``baselines``: whether
    maps are compared with that of plain COLMAP, and clear descriptors are matched both with and without a ratio test.
    """

    recipes: tuple[str, ...] = ("raw", "default", "sub-hybrid-2")
    seeds: tuple[int, ...] = (0,)
    mapper: str = field(default_factory=lambda: MapParams().mapper)
    local: LocalParams = field(default_factory=LocalParams)
    threads: int = 1
    cameras: str = CAMERAS[0]
    baselines: bool = True

    def __post_init__(self) -> None:
        MapParams(mapper=self.mapper, threads=self.threads)  # refuses wrong settings before anything is matched
        if self.cameras not in CAMERAS:
            hint = suggest(str(self.cameras), CAMERAS)
            raise InputError(f"cameras: expected one of {', '.join(CAMERAS)}, got {self.cameras!r:.40}{hint}")


@dataclass(frozen=True, slots=True)
class Contender:
    """What a row of the table is made from: its name, a subject, and the ratio of its matches; 1 asks nothing."""

    name: str
    subject: Subject
    ratio: float


@dataclass(frozen=True, slots=True)
class MapResult:
    """A record, the images that are not in its map, why there is no map, if so, and what speaks against the map."""

    record: Record
    unregistered: tuple[str, ...]
    reason: str
    doubt: str = ""


def evaluate_map(
    images: PosedImages | UnposedImages,
    folder: str | Path,
    protocol: MapProtocol | None = None,
    decoys: Decoys | None = None,
    *,
    name: str = "scene",
    progress: StageProgress = lambda stage, items, total: items,
    overwrite: bool = False,
) -> list[MapResult]:
    """Build a map for every recipe and seed and compare it with plain COLMAP's and, where there is one, the truth.

    Records are stored below ``folder``; the first is that of plain COLMAP. ``name`` is that of the scene in them.
    Matches and maps that were made before are not made again, unless ``overwrite`` forgets the maps.
    """
    protocol = protocol or MapProtocol()
    if protocol.cameras == "known" and isinstance(images, UnposedImages):
        raise InputError(f"{name}: the cameras of these photos are not known: let them be guessed (--cameras guessed)")
    rows = choose_contenders(protocol)
    decoys = choose_decoys([row.subject for row in rows], extractor_of(protocol.local), decoys)
    scene = PhotoScene(images, folder, protocol.local, decoys)
    results: list[MapResult] = []
    plain: PlainMap | None = None
    if protocol.baselines:
        plain = watch_colmap(scene, name, progress)
        results.append(_evaluate_plain(scene, plain, name, overwrite))
    for row in rows:
        results.append(_evaluate(scene, row, protocol, plain, name, progress, overwrite))
        scene.forget()
    return results


def watch_colmap(scene: PhotoScene, name: str, progress: StageProgress) -> PlainMap:
    """Return what plain COLMAP makes of the photos of a scene, as one stage of the work."""
    (made,) = (map_plainly(scene.images.paths, scene.digests, scene.folder)
               for _ in progress(f"{name}: plain COLMAP", [name], 1))  # fmt: skip
    return made


def choose_contenders(protocol: MapProtocol) -> list[Contender]:
    """Return the rows of a table, each once: clear descriptors in several ways, other recipes as they are matched."""
    rows = []
    for name, subject in named_subjects(protocol.recipes, ["s-to-s"], protocol.seeds, protocol.local.descriptor):
        if subject.recipe.is_clear and protocol.baselines:
            rows += [Contender(f"{name}, {text}", subject, ratio) for text, ratio in CLEAR_RATIOS.items()]
        else:
            rows.append(Contender(name, subject, default_ratio(subject.recipe)))
    return rows


def _evaluate(
    scene: PhotoScene,
    row: Contender,
    protocol: MapProtocol,
    plain: PlainMap | None,
    name: str,
    progress: StageProgress,
    overwrite: bool,
) -> MapResult:
    task = _make_task(
        scene,
        lambda _: make_map(scene, row, protocol, plain, progress),
        {
            **scene.params(row.subject),
            "ratio": row.ratio,
            "mapper": protocol.mapper,
            "images": len(scene.names),
            "cameras": protocol.cameras,
            "reference": None if plain is None else f"plain COLMAP {load_pycolmap().__version__}",
            **verification_params(),
        },
        row.subject.seed,
        {"scene": name, "row": row.name},
    )
    return _run(task, scene.folder, overwrite)


def _evaluate_plain(scene: PhotoScene, plain: PlainMap, name: str, overwrite: bool) -> MapResult:
    task = _make_task(
        scene,
        lambda _: _plain_prediction(scene, plain),
        {"recipe": COLMAP, "images": len(scene.names), "reference": f"plain COLMAP {load_pycolmap().__version__}"},
        None,
        {"scene": name, "row": COLMAP},
    )
    return _run(task, scene.folder, overwrite)


def _make_task(
    scene: PhotoScene, predict: Any, params: dict[str, Value], seed: int | None, facts: dict[str, Value]
) -> Task:
    return Task(
        name="map",
        samples=[Sample("map", scene.digest)],
        predict=predict,
        score=score_map,
        summarise=summarise_map,
        params=params,
        seed=seed,
        version=VERSION,
        score_version=SCORE_VERSION,
        facts=facts,
    )


def _run(task: Task, folder: Path, overwrite: bool) -> MapResult:
    record = run_task(task, folder, overwrite=overwrite)
    if not record.dropped:
        prediction, record = _prediction_of(task, folder, record)
    else:
        prediction = {}
    missing, reason, doubt = (prediction.get(key, np.array([])) for key in ("unregistered", "reason", "doubt"))
    return MapResult(record, tuple(map(str, missing)), _text(reason), _text(doubt))


def _text(value: Any) -> str:
    return str(value) if np.ndim(value) == 0 else ""


def _prediction_of(task: Task, folder: str | Path, record: Record) -> tuple[Prediction, Record]:
    """Return the stored prediction; one that was removed or damaged is made anew, with its record."""
    (sample,) = task.samples
    try:
        return Results(folder, task).load_prediction(sample)[0], record
    except FileError:
        record = run_task(task, folder, overwrite=True)
        return Results(folder, task).load_prediction(sample)[0] if not record.dropped else {}, record


def make_map(
    scene: PhotoScene, row: Contender, protocol: MapProtocol, plain: PlainMap | None, progress: StageProgress
) -> Prediction:
    """Match and map; return figures of the map and the errors of its cameras, never their positions."""
    photo_seconds = scene.photo_seconds(row.subject)
    matches = scene.matches(row.subject, progress, ratio=row.ratio)
    keypoints = {name: scene.concealed(name, row.subject).keypoints for name in scene.names}
    known = protocol.cameras == "known"
    params = MapParams(
        mapper=protocol.mapper,
        seed=row.subject.seed or 0,
        threads=protocol.threads,
        guessed=() if known else set(scene.names) - set(scene.focal_lengths),
        refine_intrinsics=None if known else True,
    )
    watch = StageWatch(progress)
    cameras = scene.cameras if known else scene.guesses
    with tempfile.TemporaryDirectory(prefix="sfumato-map-") as place:
        outcome = map_keypoints(keypoints, cameras, matches, Path(place) / "model", params, progress=watch)
        poses = {} if outcome.folder is None else poses_of(load_pycolmap().Reconstruction(str(outcome.folder)))
    verifying = watch.seconds.get("verifying", 0.0)
    times = scene.match_times(row.subject, ratio=row.ratio).seconds, verifying, outcome.seconds - verifying
    return {
        **_figures_of(outcome),
        "photo_seconds": np.array(photo_seconds),
        "step_seconds": np.array(times),
        "pairs": np.array(len(matches)),
        **_compare(poses, scene.truth, plain),
    }


class StageWatch:
    """A progress of stages that also adds up how long each of them took."""

    def __init__(self, progress: StageProgress) -> None:
        self._progress = progress
        self.seconds: dict[str, float] = {}

    def __call__(self, stage: str, items: Iterable[Any], total: int) -> Iterator[Any]:
        """Work through the items of a stage."""
        started = time.perf_counter()
        try:
            yield from self._progress(stage, items, total)
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - started


def _plain_prediction(scene: PhotoScene, plain: PlainMap) -> Prediction:
    names, seconds = scene.names, plain.seconds
    pairs = len(names) * (len(names) - 1) // 2
    counts = ", ".join(map(str, plain.seed_counts))
    doubt = f"its seeds do not agree: {counts} images, rotations differ by up to {plain.seed_degrees:.1f} degrees"
    return {
        **{name: np.array(value) for name, value in asdict(plain.statistics).items()},
        "pair_matches": np.zeros(0, np.int64),
        "pair_inliers": np.zeros(0, np.int64),
        "unregistered": np.array([name for name in names if name not in plain.poses], np.str_),
        "reason": np.array("" if plain.poses else "none of its seeds made a map", np.str_),
        "doubt": np.array(doubt if plain.poses and not plain.agreeing else "", np.str_),
        "photo_seconds": np.array((seconds["extraction"] / len(names), 0.0)),
        "step_seconds": np.array((seconds["matching"], 0.0, seconds["mapping"])),
        "pairs": np.array(pairs),
        "seed_degrees": np.array(plain.seed_degrees),
        **_compare(plain.poses, scene.truth, plain),
        "rotation_difference": np.zeros(0),  # from itself
        "position_difference": np.zeros(0),
    }


def _figures_of(outcome: MapOutcome) -> dict[str, np.ndarray]:
    pairs = outcome.verified.pairs
    return {
        **{name: np.array(value) for name, value in asdict(outcome.statistics).items()},
        "pair_matches": np.array([pair.matches for pair in pairs], np.int64),
        "pair_inliers": np.array([pair.inliers for pair in pairs], np.int64),
        "unregistered": np.array(outcome.unregistered, np.str_),
        "reason": np.array(outcome.reason, np.str_),
        "doubt": np.array("; ".join(outcome.doubt), np.str_),
    }


def _compare(poses: Mapping[str, Pose], truth: Mapping[str, Pose], plain: PlainMap | None) -> dict[str, np.ndarray]:
    """Return errors against the truth, and differences from plain COLMAP's map, of all cameras and pairs of them."""
    errors, other = compare_poses(poses, truth), compare_poses(poses, {} if plain is None else plain.poses)
    size = 0.0 if plain is None else plain.size
    return {
        "position": errors.position,
        "rotation": errors.rotation,
        "relative": np.maximum(errors.relative_rotation, errors.relative_direction),
        "rotation_difference": other.relative_rotation,
        "position_difference": other.position / size if size else np.zeros(0),
        "plain_registered": np.array(0 if plain is None else plain.statistics.registered),
        "plain_points": np.array(0 if plain is None else plain.statistics.points),
        "shared": np.array(len(other.names)),
    }


def score_map(_sample: Sample, prediction: Prediction) -> Figures:
    """Return the figures of Table 1, verified matches, times, and differences where there is something to compare."""
    extracting, concealing = (float(value) for value in prediction["photo_seconds"])
    matching, verifying, mapping = (float(value) for value in prediction["step_seconds"])
    images, pairs = float(prediction["images"]), float(prediction["pairs"])
    figures = {
        "registered images": float(prediction["registered"]),
        "points": float(prediction["points"]),
        "observations": float(prediction["observations"]),
        "observations per image": float(prediction["observations_per_image"]),
        "matches": float(prediction["pair_matches"].sum()),
        "inliers": float(prediction["pair_inliers"].sum()),
        "verified pairs": float(np.count_nonzero(prediction["pair_inliers"])),
        "doubt": float(bool(_text(prediction["doubt"]))),
        "extraction time": extracting,
        "concealment time": concealing,
        "photo time": extracting + concealing,
        "matching time": matching,
        "verification time": verifying,
        "pair time": matching + verifying,
        "matching speed": pairs / max(matching + verifying, 1e-9),
        "mapping time": mapping,
        "total time": images * (extracting + concealing) + matching + verifying + mapping,
    }
    if prediction["points"]:
        figures["track length"] = float(prediction["track_length"])
        figures["reprojection error"] = float(prediction["reprojection_error_px"])
    for name in ("position", "rotation", "relative"):
        if prediction[name].size and np.isfinite(prediction[name]).all():
            figures[f"median {name} error"] = float(np.median(prediction[name]))
    return figures | _differences(prediction)


def _differences(prediction: Prediction) -> dict[str, float]:
    """Return how a map compares with that of plain COLMAP, if there is one."""
    figures: dict[str, float] = {}
    if prediction["plain_registered"]:
        figures["images of COLMAP's"] = float(prediction["shared"] / prediction["plain_registered"])
        figures["points of COLMAP's"] = float(prediction["points"] / max(1, prediction["plain_points"]))
    turns, shifts = prediction["rotation_difference"], prediction["position_difference"]
    if turns.size:
        figures |= {
            "median rotation difference": float(np.median(turns)),
            "largest rotation difference": float(turns.max()),
        }
    if shifts.size and np.isfinite(shifts).all():
        figures["median position difference"] = float(np.median(shifts))
    return figures


def summarise_map(figures: Mapping[str, Figures]) -> list[Score]:
    """Return the figures of the only map."""
    return [Score(name, value, UNITS.get(name, "")) for row in figures.values() for name, value in row.items()]


ROW = ("scene", "row")

TABLES = {
    "Maps": {
        "images": "registered images", "shared": "images of COLMAP's", "points": "points",
        "points / COLMAP": "points of COLMAP's", "track": "track length", "error [px]": "reprojection error",
        "doubt": "doubt",
    },
    "Differences from plain COLMAP's map, and errors where the truth is known": {
        "rotation [deg]": "median rotation difference", "largest [deg]": "largest rotation difference",
        "position [scene]": "median position difference", "error [deg]": "median rotation error",
        "error [m]": "median position error",
    },
    "Speed: a photo extracted and concealed, pairs matched and verified, a map": {
        "photo [s]": "photo time", "pairs [1/s]": "matching speed", "map [s]": "mapping time", "all [s]": "total time",
    },
}  # fmt: skip
MULTIPLES = {"photo": "photo time", "pairs": "pair time", "map": "mapping time", "all": "total time"}


def map_table(records: Iterable[Record]) -> Table:
    """Return all figures, one row for each scene and recipe."""
    return _table(group_by_seed(records), {title: name for scores in TABLES.values() for title, name in scores.items()})


def map_tables(records: Iterable[Record]) -> dict[str, Table]:
    """Return the figures in tables that a page has room for, by their titles: maps, differences, speed."""
    groups = group_by_seed(records)
    tables = {title: _table(groups, scores) for title, scores in TABLES.items()}
    plain = {str(group.params["scene"]): group for group in groups if group.params["recipe"] == COLMAP}
    tables["Time, as a multiple of plain COLMAP's"] = _table(
        groups, {}, ratios=MULTIPLES if plain else None, baseline=lambda group: plain.get(str(group.params["scene"]))
    )
    return {title: table for title, table in tables.items() if len(table.columns) > len(ROW)}


def _table(groups: list[SeedGroup], scores: Mapping[str, str], **ratios: Any) -> Table:
    """Return a table of the scores that there are, with a recipe called as it was asked for."""
    used = {heading: name for heading, name in scores.items() if any(group.values(name) for group in groups)}
    table = make_table(groups, ROW, used, **ratios).without_single_seeds()
    columns = ("scene", "recipe", *table.columns[len(ROW) :])
    words = {0.0: "no", 1.0: "yes"}
    rows = [
        tuple(
            Cell(words[cell.value]) if title == "doubt" and cell.value in words else cell
            for title, cell in zip(columns, row, strict=True)
        )
        for row in table.rows
    ]
    return Table(columns, tuple(rows))
