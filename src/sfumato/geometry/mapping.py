# SPDX-License-Identifier: Apache-2.0
"""Maps: from an archive and its matches, or from keypoints and cameras, to a COLMAP model on disk.

A reconstruction that fails is a result with a reason, not an error, and one that may be wrong is a result in doubt. The
model is made in a folder beside the place where it belongs and takes that place at once. COLMAP gets keypoints and
matched rows, never a descriptor.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import ArchiveError, FileError, InputError, SfumatoError
from sfumato.files.atomic import new_file
from sfumato.geometry.cameras import NAME_EARLIER, default_camera, name_fault, read_marked_cameras, refuse_other_sizes
from sfumato.geometry.colmap import Keypoints, ShownMatches, real_names, refuse_missing, silence, write_database
from sfumato.geometry.mappers import DATABASE, MapParams, doubt_cameras, run_mapper, triangulate
from sfumato.geometry.maps import save_landmarks
from sfumato.geometry.model_folder import new_model_folder, other_folder, refuse_taken, write_model
from sfumato.geometry.statistics import (
    AGREEING_DEG,
    MapRun,
    MapStatistics,
    doubt_agreement,
    doubt_images,
    doubt_map,
    pose_differences,
    poses_of,
    statistics_of,
)
from sfumato.geometry.verify import ExplainedPair, VerifyOutcome, explain_matches, verify
from sfumato.matching.batch import match_pairs
from sfumato.matching.match_file import MatchFile, load_matches
from sfumato.matching.pairs import Pair
from sfumato.matching.retrieval import USUAL_COUNT, choose_pairs
from sfumato.store.archive import Archive, open_archive
from sfumato.types.progress import StageProgress
from sfumato.types.scene import Camera, Matches, Pose

LARGEST_EXHAUSTIVE = 60
"""Images that are compared each with every other where no matches are given."""

HINT = (
    "the images see too little in common from different places, or their cameras are wrong: take photos with more "
    "overlap, step aside between them, or check the cameras"
)
UNMATCHED = (
    "Photos of one place match, so look at the features before the photos: were all sealed with the same key, is the "
    "seal's bandwidth meant for this kind of descriptor, are all of the same kind (sfumato inspect shows it), and is "
    "the ratio test or largest distance too strict?"
)

FEW_MATCHES = 0.01
"""Matches of a pair as a share of the features of its images: with fewer, the features do not match at all."""
SAME_SCORE = 0.98
"""Maps whose scores differ by less explain the matches equally well; of them, the one with most points is kept."""
WORTH = {"global": 1.1}
"""Of two maps that are both right, the global mapper's cameras are nearer to the truth: it may have fewer points."""


@dataclass(frozen=True, slots=True)
class OtherModel:
    """A map of another part of the scene, which could not be joined with the largest one; a COLMAP model too.

    ``doubt`` says in words what speaks against this map, as in MapOutcome.
    """

    folder: Path
    images: int
    points: int
    doubt: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOutcome:
    """Result of a reconstruction. ``folder`` is None where there is no map, and ``reason`` says why.

    ``doubt`` says in words what speaks against the map, as far as it can be seen without knowing the truth; it is empty
    for a map that is convincing. ``doubtful_images`` names single images whose poses are in doubt, with the reason.
    ``runs`` are the runs of mappers that were compared, with what each made.

    ``unregistered`` are the images that are not in the map; ``other_models`` the maps of other parts of the scene, the
    largest first, which are kept within its folder, each with its own doubt. Of a map of an archive, ``unreadable`` are
    the images left out, with the reason, and ``guessed`` those whose focal length is a guess.
    """

    folder: Path | None
    statistics: MapStatistics
    verified: VerifyOutcome = field(default_factory=VerifyOutcome)
    seconds: float = 0.0
    reason: str = ""
    unregistered: tuple[str, ...] = ()
    other_models: tuple[OtherModel, ...] = ()
    doubt: tuple[str, ...] = ()
    doubtful_images: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[MapRun, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    guessed: frozenset[str] = frozenset()


def outcome_facts(outcome: MapOutcome) -> dict[str, Any]:
    """Return an outcome as plain values, for --json and for answers of a server; no folder of the map itself."""
    return {
        **{key.replace("_", " "): value for key, value in asdict(outcome.statistics).items()},
        "pairs": len(outcome.verified.pairs),
        "verified pairs": outcome.verified.verified,
        "matches": outcome.verified.matches,
        "inliers": outcome.verified.inliers,
        "unregistered": list(outcome.unregistered),
        "other models": [{**asdict(other), "folder": str(other.folder)} for other in outcome.other_models],
        "runs": [_run_facts(run) for run in outcome.runs],
        "unreadable": dict(outcome.unreadable),
        "guessed cameras": len(outcome.guessed),
        "doubt": list(outcome.doubt),
        "images in doubt": dict(outcome.doubtful_images),
        "reason": outcome.reason,
        "seconds": round(outcome.seconds, 2),
    }


def _run_facts(run: MapRun) -> dict[str, Any]:
    """Return a run as plain values; what cannot be compared is None."""
    facts = {**asdict(run), "explained_share": run.explained_share}
    if isnan(run.difference_deg):
        facts["difference_deg"] = None
    return {key.replace("_", " "): value for key, value in facts.items()}


@dataclass(slots=True)
class _ArchiveScene:
    """Keypoints and cameras of the readable images of an archive, and what is wrong with the others."""

    keypoints: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    cameras: Mapping[str, Camera] = field(default_factory=dict)
    guessed: frozenset[str] = frozenset()
    unreadable: dict[str, str] = field(default_factory=dict)
    shown: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    """Of images whose positions stay home, which rows were released: ``keypoints`` are of these."""

    def of_shown(self, matches: Mapping[Pair, Matches]) -> Mapping[Pair, Matches]:
        """Return the matches of rows with positions, by their numbers among these."""
        everything = {name: np.ones(len(rows), bool) for name, rows in self.keypoints.items()}
        return ShownMatches(matches, everything | self.shown) if self.shown else matches


def build_map(
    archive: str | os.PathLike[str] | Archive,
    matches: str | os.PathLike[str] | Mapping[Pair, Matches] | None,
    folder: str | os.PathLike[str],
    cameras: str | os.PathLike[str] | Mapping[str, Camera] | None = None,
    params: MapParams | None = None,
    *,
    focal_lengths: Mapping[str, float] | None = None,
    overwrite: bool = False,
    progress: StageProgress = lambda stage, items, total: items,
) -> MapOutcome:
    """Build a map of the images of an archive, and write it as a COLMAP model with concealed landmarks to a folder.

    ``matches``: the path of a match file, an open one, or Matches by pairs of names; None matches every image with
    every other, up to 60 images. ``cameras``: hloc's or COLMAP's list of cameras, in which those marked as guesses are
    adjusted, or Camera by name; None guesses them from the sizes of the images, with ``focal_lengths`` in pixels where
    they are known, or else those in the archive, and adjusts them while mapping. ``overwrite``: replace the map that is
    in the folder.

    By default the incremental and the global mapper are run and their maps compared; if they differ, other seeds are
    tried too, up to ``params.tries`` runs in all, and the map is kept that explains most verified matches and
    contradicts fewest. ``MapParams(mapper="incremental")`` or "global" asks for one run.

    A map may be wrong and still be a map: ``outcome.doubt`` says what speaks against it (runs that disagree, few images
    or points, short tracks, matches it does not explain, parts that did not join, focal lengths that do not fit), and
    is empty if nothing does. An image that cannot be read is named in the outcome and left out. Where there is no map,
    ``outcome.folder`` is None and ``outcome.reason`` says why.

    Raises InputError for cameras that do not fit the images, FileError for matches of other features and if the folder
    is taken already or cannot be written.

    >>> import tempfile, numpy as np
    >>> from sfumato import ConcealedFeatures, Subspaces, save
    >>> lines = Subspaces(np.eye(8)[:3], np.eye(8)[3:6, None])
    >>> features = ConcealedFeatures(np.zeros((3, 4)), lines, "random-1", image_size=(640, 480))
    >>> work = tempfile.mkdtemp()
    >>> save(f"{work}/private.sfm", {"desk.jpg": features})
    >>> build_map(f"{work}/private.sfm", None, f"{work}/model").reason
    'a map needs two images or more, there is one'
    """
    params = params or MapParams()
    params = replace(params, overwrite=overwrite or params.overwrite)
    refuse_taken(folder, overwrite=params.overwrite)  # before any work
    started = time.perf_counter()
    with open_archive(archive) as images, _open_matches(matches) as file:
        scene = _read_scene(images, cameras, focal_lengths)
        if cameras is None and params.refine_intrinsics is None:
            params = replace(params, refine_intrinsics=True)
        pairs = _match_all(images, scene, progress) if file is None else _select_matches(file, images, scene)
        pairs = scene.of_shown(pairs)
        guessed = scene.guessed | (frozenset(params.guessed) & scene.keypoints.keys())
        outcome = map_keypoints(
            scene.keypoints,
            scene.cameras,
            pairs,
            folder,
            replace(params, guessed=guessed),
            progress=progress,
            complete=lambda model: save_landmarks(model, images),
        )
    seconds = time.perf_counter() - started
    return replace(outcome, unreadable=scene.unreadable, guessed=guessed, seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColmapOutcome:
    """Counts of what a COLMAP database got; ``guessed`` names the images whose cameras are guesses."""

    images: int
    features: int
    pairs: int
    matches: int
    guessed: frozenset[str]
    unreadable: Mapping[str, str]


def export_colmap(
    archive: str | os.PathLike[str] | Archive,
    matches: str | os.PathLike[str] | Mapping[Pair, Matches],
    path: str | os.PathLike[str],
    cameras: str | os.PathLike[str] | Mapping[str, Camera] | None = None,
    *,
    focal_lengths: Mapping[str, float] | None = None,
) -> ColmapOutcome:
    """Write keypoints, cameras and matches of an archive as a new database, which unmodified COLMAP verifies and maps.

    No descriptor is written. ``matches``, ``cameras`` and ``focal_lengths`` as in ``build_map``. A pair in both orders
    is written once.

    Raises InputError for cameras that do not fit the images, FileError for matches of other features, and if the file
    is there already or cannot be written.

    >>> import tempfile, numpy as np
    >>> from sfumato import ConcealedFeatures, Matches, Subspaces, save
    >>> lines = Subspaces(np.eye(8)[:3], np.eye(8)[3:6, None])
    >>> features = ConcealedFeatures(np.zeros((3, 4)), lines, "random-1", image_size=(640, 480))
    >>> work = tempfile.mkdtemp()
    >>> save(f"{work}/private.sfm", {"a.jpg": features, "b.jpg": features})
    >>> pairs = {("a.jpg", "b.jpg"): Matches([[0, 2]], [0.1])}
    >>> export_colmap(f"{work}/private.sfm", pairs, f"{work}/database.db").matches
    1
    """
    if os.path.lexists(path):
        raise FileError(f"{path} is there already, and no database is ever replaced: choose another path")
    with open_archive(archive) as images, _open_matches(matches) as file, new_file(path) as (_, part):
        scene = _read_scene(images, cameras, focal_lengths)
        pairs = {} if file is None else scene.of_shown(_select_matches(file, images, scene))
        trusted = scene.keypoints.keys() - scene.guessed
        part.unlink()
        write_database(part, scene.keypoints, scene.cameras, pairs, trusted=trusted)
        return ColmapOutcome(
            images=len(scene.keypoints),
            features=sum(map(len, scene.keypoints.values())),
            pairs=len(pairs),
            matches=sum(len(pairs[pair]) for pair in pairs),
            guessed=frozenset(scene.guessed),
            unreadable=scene.unreadable,
        )


@contextmanager
def _open_matches(
    matches: str | os.PathLike[str] | Mapping[Pair, Matches] | None,
) -> Iterator[Mapping[Pair, Matches] | None]:
    if isinstance(matches, str | os.PathLike):
        with load_matches(matches) as file:
            yield file
    else:
        yield matches


def _read_scene(
    archive: Archive,
    cameras: str | os.PathLike[str] | Mapping[str, Camera] | None,
    focal_lengths: Mapping[str, float] | None,
) -> _ArchiveScene:
    """Return keypoints and cameras of the images of an archive; damaged images are named and left out."""
    scene = _ArchiveScene()
    sizes: dict[str, tuple[int, int] | None] = {}
    focal: dict[str, float] = {}
    for name in archive:
        if name_fault(name):
            scene.unreadable[name] = f"no map can hold this name: {name_fault(name)}; {NAME_EARLIER}"
            continue
        try:
            features = archive[name]
        except ArchiveError as problem:
            scene.unreadable[name] = str(problem)
            continue
        shown = features.is_shown
        if not shown.all():
            scene.shown[name] = shown
        scene.keypoints[name], sizes[name] = features.keypoints[shown], features.image_size
        if features.focal_px is not None:
            focal[name] = features.focal_px
    if scene.shown and not any(map(len, scene.keypoints.values())):
        raise InputError(
            f"no position of {archive.path} has left its device, and a map is made of positions: match the archive "
            f"(sfumato match), and release on the device what the photos agree on (sfumato release)"
        )
    if cameras is not None:
        given = (cameras, frozenset()) if isinstance(cameras, Mapping) else read_marked_cameras(cameras, sizes)
        scene.cameras, scene.guessed = given[0], given[1] & sizes.keys()
        refuse_missing(scene.keypoints, scene.cameras)
        refuse_other_sizes(scene.cameras, sizes)
        return scene
    unknown = [name for name, size in sizes.items() if size is None]
    if unknown:
        raise InputError(
            f"the archive does not say how large {len(unknown)} of its images are, such as {unknown[0]!r:.80}: "
            f"give their cameras (--cameras)"
        )
    focal |= focal_lengths or {}
    scene.cameras = {name: default_camera(size, focal.get(name)) for name, size in sizes.items() if size is not None}
    scene.guessed = frozenset(sizes) - frozenset(focal)
    return scene


def _match_all(archive: Archive, scene: _ArchiveScene, progress: StageProgress) -> dict[Pair, Matches]:
    """Match every image with every other, or of many images each with those that look most like it."""
    if len(scene.keypoints) <= LARGEST_EXHAUSTIVE:
        pairs = choose_pairs(scene.keypoints, "exhaustive").pairs
    else:
        try:
            pairs = choose_pairs(
                archive, f"votes:{USUAL_COUNT}", progress=lambda names: progress("voting", names, len(archive))
            ).pairs
        except InputError as cause:
            raise InputError(
                f"{len(scene.keypoints)} images are too many to match each with all others, and {cause}. Choose pairs "
                f"with sfumato match, and give its file with --matches"
            ) from cause
    return dict(match_pairs(archive, pairs, progress=lambda items: progress("matching", items, len(pairs))))


def _select_matches(matches: Mapping[Pair, Matches], archive: Archive, scene: _ArchiveScene) -> Mapping[Pair, Matches]:
    """Return the matches of the readable images; raises FileError for matches of other features."""
    if isinstance(matches, MatchFile) and matches.provenance is not None:
        facts = matches.provenance.images
        other = [name for name in facts if name in scene.keypoints and archive.header(name).checksum != facts[name][1]]
        if other:
            raise FileError(
                f"{matches.path} holds matches of other features: {len(other)} of its images, such as "
                f"{other[0]!r:.80}, are not the ones in {archive.path}; match again"
            )
    if not scene.unreadable:
        return matches
    return {pair: matches[pair] for pair in matches if not scene.unreadable.keys() & set(pair)}


# --- from keypoints, cameras and matches


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class _Scene:
    """Input of a map; ``poses`` are None where they are not known."""

    keypoints: Keypoints
    cameras: Mapping[str, Camera]
    matches: Mapping[Pair, Matches]
    poses: Mapping[str, Pose] | None = None


class _NoMap(Exception):
    """The reason why there is no map; never leaves this module."""


def map_keypoints(
    keypoints: Keypoints,
    cameras: Mapping[str, Camera],
    matches: Mapping[Pair, Matches],
    folder: str | os.PathLike[str],
    params: MapParams | None = None,
    *,
    poses: Mapping[str, Pose] | None = None,
    progress: StageProgress = lambda stage, items, total: items,
    complete: Callable[[Path], object] | None = None,
) -> MapOutcome:
    """Build a map from keypoints, and write it as a COLMAP model to a folder.

    ``keypoints`` and ``cameras`` for every image, ``matches`` of pairs of them. With ``poses`` the cameras stay where
    they are and points are triangulated; images without a pose are left out, and so are their matches. ``complete`` is
    called with the folder of the finished model before it takes its place: what it writes there belongs to the map.

    Raises InputError for cameras or matches that do not fit the images, FileError if the folder is taken already or
    cannot be written; never because the images cannot be mapped.
    """
    scene = _Scene(keypoints, cameras, matches, poses)
    if poses is not None:
        real = real_names(matches, {**dict.fromkeys(keypoints), **dict.fromkeys(cameras), **dict.fromkeys(poses)})
        posed = {name: keypoints[name] for name in keypoints if name in poses}
        among = {pair: matches[pair] for pair in matches if real[pair[0]] in posed and real[pair[1]] in posed}
        scene = _Scene(posed, cameras, among, poses)
    return _make(scene, Path(folder), params or MapParams(), progress, complete)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class _MapPart:
    """A reconstruction that a run made, its figures as a MapRun, and what it makes of the verified matches."""

    model: Any
    run: MapRun
    poses: Mapping[str, Pose]
    explained: tuple[ExplainedPair, ...] = ()


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class _Trial:
    """A run of a mapper and the parts of the scene that it made maps of, the largest first."""

    run: MapRun
    parts: tuple[_MapPart, ...] = ()


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class _Judgement:
    """What speaks against one part and against single images of it, and all runs compared with it."""

    doubt: tuple[str, ...]
    doubtful_images: Mapping[str, str]
    runs: tuple[MapRun, ...]


def _make(
    scene: _Scene,
    output: Path,
    params: MapParams,
    progress: StageProgress,
    complete: Callable[[Path], object] | None,
) -> MapOutcome:
    started = time.perf_counter()
    names, verified = sorted(scene.keypoints), VerifyOutcome()
    nothing = MapOutcome(folder=None, statistics=statistics_of(None, len(names)), unregistered=tuple(names))
    try:
        with new_model_folder(output, overwrite=params.overwrite) as (work, model):
            _need_features(scene)
            trusted = [name for name in names if name not in params.guessed]
            write_database(
                work / DATABASE, scene.keypoints, scene.cameras, scene.matches,
                trusted=trusted, shared=params.shared_camera,
            )  # fmt: skip
            with _explain_errors(output):
                verified = verify(
                    work / DATABASE, params.verify_params, poses=scene.poses,
                    progress=lambda pairs: progress("verifying", pairs, len(scene.matches)),
                )  # fmt: skip
            _need_verified(scene, verified)
            if scene.poses is None:
                trials = _run_all(output, work, params, verified, progress)
                outcome, models = _choose(trials, params, verified, names)
            else:
                with _explain_errors(output):
                    models = [triangulate(work, params, scene.poses)]
                _need_points(models, verified)
                outcome = _describe(models[0], names)
            _write_all(models, model, complete)
            others = tuple(replace(other, folder=output / other.folder) for other in outcome.other_models)
            outcome = replace(outcome, folder=output, other_models=others)
    except _NoMap as problem:
        outcome = replace(nothing, reason=str(problem))
    return replace(outcome, verified=verified, seconds=time.perf_counter() - started)


def _describe(reconstruction: Any, names: list[str]) -> MapOutcome:
    """Return the figures of a map and the images that are not in it."""
    registered = poses_of(reconstruction)
    return MapOutcome(
        folder=None,
        statistics=statistics_of(reconstruction, len(names)),
        unregistered=tuple(name for name in names if name not in registered),
    )


def _write_all(models: list[Any], folder: Path, complete: Callable[[Path], object] | None) -> None:
    """Write the largest model to a folder and the others below it."""
    for number, model in enumerate(models):
        place = other_folder(folder, number) if number else folder
        place.mkdir(parents=True, exist_ok=True)
        write_model(model, place)
        if complete is not None:
            complete(place)


# --- several runs, of which the best is kept


def _run_all(
    output: Path, work: Path, params: MapParams, verified: VerifyOutcome, progress: StageProgress
) -> list[_Trial]:
    """Return the runs of mappers, one by one until two agree on all images; raises _NoMap if none made a map."""
    trials: list[_Trial] = []
    problem: _NoMap | None = None
    for mapper, seed in params.runs:
        run = MapRun(mapper=mapper, seed=seed)
        try:
            with _explain_errors(output):
                models = run_mapper(work, params, mapper, seed, lambda items, total: progress("mapping", items, total))
                parts = tuple(_examine(run, model, work, params) for model in models if model.num_points3D())
        except _NoMap as stop:
            problem, parts = stop, ()
        trials.append(_Trial(run, parts))
        if len(trials) == 2 and _is_settled(trials, verified):
            break
    if not any(trial.parts for trial in trials):
        if problem is not None:
            raise problem
        _need_points([], verified)
    return trials


def _examine(run: MapRun, model: Any, work: Path, params: MapParams) -> _MapPart:
    explained = explain_matches(work / DATABASE, model, params.verify_params.max_error_px)
    run = replace(
        run,
        registered=int(model.num_reg_images()),
        points=int(model.num_points3D()),
        track_length=float(model.compute_mean_track_length()),
        verified=sum(pair.inliers for pair in explained),
        explained=sum(pair.explained for pair in explained),
    )
    return _MapPart(model, run, poses_of(model), explained)


def _is_settled(trials: list[_Trial], verified: VerifyOutcome) -> bool:
    """Tell whether two runs make a third unnecessary: they agree, hold all images, and nothing speaks against them."""
    reachable = {name for pair in verified.pairs if pair.inliers for name in pair.names}
    for trial in trials:
        if {name for part in trial.parts for name in part.poses} != reachable:
            return False
        judgements = [_judge(part, trial, trials, verified) for part in trial.parts]
        if any(judgement.doubt or judgement.doubtful_images for judgement in judgements):
            return False
    return True


def _choose(
    trials: list[_Trial], params: MapParams, verified: VerifyOutcome, names: list[str]
) -> tuple[MapOutcome, list[Any]]:
    """Return the outcome and the reconstructions of the best run, with all that speaks against each of them."""
    best = _best(trials)
    judgements = [_judge(part, best, trials, verified) for part in best.parts]
    doubts = [
        (*judgement.doubt, *_doubt_focal_lengths(part, params))
        for part, judgement in zip(best.parts, judgements, strict=True)
    ]
    others = [
        OtherModel(other_folder(Path(), number), part.run.registered, part.run.points, doubt)
        for number, (part, doubt) in enumerate(zip(best.parts, doubts, strict=True))
    ]
    outcome = replace(
        _describe(best.parts[0].model, names),
        doubt=doubts[0],
        doubtful_images=judgements[0].doubtful_images,
        runs=judgements[0].runs,
        other_models=tuple(others[1:]),
    )
    return outcome, [part.model for part in best.parts]


def _best(trials: list[_Trial]) -> _Trial:
    """Return the run whose largest map explains most verified matches, contradicts fewest and has most points."""
    made = [trial for trial in trials if trial.parts]
    most = max(trial.parts[0].run.score for trial in made)
    equal = [trial for trial in made if trial.parts[0].run.score >= most - (1 - SAME_SCORE) * abs(most)]
    return max(equal, key=lambda trial: WORTH.get(trial.run.mapper, 1.0) * trial.parts[0].run.points)


def _judge(part: _MapPart, trial: _Trial, trials: list[_Trial], verified: VerifyOutcome) -> _Judgement:
    """Return what speaks against one part of a run, from its figures, from the other runs, and from the other parts."""
    compared = [_compare(part, other) for other in trials]
    runs = tuple(run for run, _ in compared)
    statistics = statistics_of(part.model, len(_connected(set(part.poses), verified)))
    doubt = doubt_map(statistics, part.run) + doubt_agreement(runs) + _doubt_parts(part, trial, verified)
    agreeing = [(run, of_image) for run, of_image in compared if of_image and run.difference_deg <= AGREEING_DEG]
    agreeing.sort(key=lambda pair: pair[0].mapper == part.run.mapper)  # the other mapper says more than another seed
    differences = agreeing[0][1] if agreeing else {}
    return _Judgement(tuple(doubt), doubt_images(part.model, part.explained, differences), runs)


def _compare(part: _MapPart, trial: _Trial) -> tuple[MapRun, Mapping[str, float]]:
    """Return what a run made of the images of a part, by how much that differs, and the same for each image.

    A run may have made maps of several scenes: the one that shares most images with the part is compared.
    """
    if part in trial.parts:
        return replace(part.run, is_best=True, difference_deg=0.0), {}
    if not trial.parts:
        return trial.run, {}
    nearest = max(trial.parts, key=lambda other: len(part.poses.keys() & other.poses.keys()))
    difference, of_image = pose_differences(part.poses, nearest.poses)
    return replace(nearest.run, difference_deg=difference), of_image


def _connected(names: set[str], verified: VerifyOutcome) -> set[str]:
    """Return these images and all that chains of verified pairs connect with them."""
    pairs = [set(pair.names) for pair in verified.pairs if pair.inliers]
    while True:
        more = names.union(*(pair for pair in pairs if pair & names))
        if more == names:
            return names
        names = more


def _doubt_parts(part: _MapPart, trial: _Trial, verified: VerifyOutcome) -> list[str]:
    """Return whether verified pairs connect a part with other parts of the same run."""
    names = set(part.poses)
    pairs = [set(pair.names) for pair in verified.pairs if pair.inliers and len(names & set(pair.names)) == 1]
    apart = [set(other.poses) - names for other in trial.parts if other is not part]
    joined = sum(any(pair & other for pair in pairs) for other in apart)
    between = sum(any(pair & other for other in apart) for pair in pairs)
    if not between:
        return []
    return [
        f"the images fall into {joined + 1} models that could not be joined, though {between} verified pairs connect "
        f"them"
    ]


def _doubt_focal_lengths(part: _MapPart, params: MapParams) -> list[str]:
    reason = doubt_cameras(part.model, params.is_fixed, threads=params.threads)
    return [reason] if reason else []


# --- reasons why there is no map


def _need_features(scene: _Scene) -> None:
    count = len(scene.keypoints)
    if count < 2:
        raise _NoMap(f"a map needs two images or more, there {'is one' if count else 'are none'}")
    empty = sum(len(scene.keypoints[name]) == 0 for name in scene.keypoints)
    if empty > count - 2:
        raise _NoMap(f"{empty} of {count} images have no features: a map needs two images with features")
    if not any(len(scene.matches[pair]) for pair in scene.matches):
        why = f". {UNMATCHED}" if len(scene.matches) else ""
        raise _NoMap(f"no two of {count} images have a match ({len(scene.matches)} pairs were compared){why}")


def _need_verified(scene: _Scene, verified: VerifyOutcome) -> None:
    if verified.verified:
        return
    counts = {name: len(scene.keypoints[name]) for name in scene.keypoints}
    smaller = [min(counts[name] for name in pair.names) for pair in verified.pairs]
    shares = [pair.matches / count for pair, count in zip(verified.pairs, smaller, strict=True) if count]
    if shares and float(np.median(shares)) < FEW_MATCHES:
        matches = float(np.median([pair.matches for pair in verified.pairs]))
        raise _NoMap(
            f"nearly nothing matched: a pair of images has {matches:.0f} matches in the median, an image "
            f"{float(np.median(list(counts.values()))):.0f} features. {UNMATCHED}"
        )
    raise _NoMap(
        f"none of {len(verified.pairs)} pairs of images, with {verified.matches} matches, agrees with one scene: {HINT}"
    )


def _need_points(models: list[Any], verified: VerifyOutcome) -> None:
    if not models or not models[0].num_points3D():
        raise _NoMap(f"none of the {verified.verified} verified pairs of images could begin a map: {HINT}")


@contextmanager
def _explain_errors(output: Path) -> Iterator[None]:
    """Take what COLMAP raises for a reason why there is no map, unless it is the disk's fault."""
    try:
        with silence():
            yield
    except SfumatoError:
        raise
    except (RuntimeError, ValueError, LookupError) as cause:
        message = str(cause).strip().split("\n")[0]
        if "disk" in message.lower() or "sqlite" in message.lower():
            raise FileError(f"cannot write {output}, is the disk full? ({message}) Free space and run again") from cause
        raise _NoMap(f"COLMAP stopped: {message:.300}") from cause
