# SPDX-License-Identifier: Apache-2.0
"""Maps: from an archive and its matches, or from keypoints and cameras, to a COLMAP model on disk.

A reconstruction that fails is a result with a reason, not an error. The model is made in a folder beside the place
where it belongs and takes that place at once. COLMAP gets keypoints and matched rows, never a descriptor.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import ArchiveError, FileError, InputError, SfumatoError
from sfumato.geometry.cameras import NAME_EARLIER, default_camera, name_fault, read_cameras, refuse_other_sizes
from sfumato.geometry.colmap import silence
from sfumato.geometry.database import Keypoints, real_names, refuse_missing, write_database
from sfumato.geometry.mappers import DATABASE, MAPPERS, MapParams, doubt_cameras, triangulate
from sfumato.geometry.maps import save_landmarks
from sfumato.geometry.model_folder import new_model_folder, refuse_taken, write_model
from sfumato.geometry.statistics import MapStatistics, statistics_of
from sfumato.geometry.verify import VerifyOutcome, verify
from sfumato.matching.batch import match_pairs
from sfumato.matching.match_file import MatchFile, load_matches
from sfumato.matching.pairs import Pair
from sfumato.matching.retrieval import choose_pairs
from sfumato.store.archive import Archive, open_archive
from sfumato.types.progress import StageProgress
from sfumato.types.scene import Camera, Matches, Pose

LARGEST_EXHAUSTIVE = 60
"""Images that are compared each with every other where no matches are given."""

HINT = (
    "the images see too little in common from different places, or their cameras are wrong: take photos with more "
    "overlap, step aside between them, or check the cameras"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOutcome:
    """Result of a reconstruction. ``folder`` is None where there is no map, and ``reason`` says why.

    ``unregistered`` are the images that are not in the map; ``other_models`` the sizes of the maps of other parts of
    the scene, which could not be joined with the largest one and are not kept. ``doubt`` says what speaks against the
    cameras that were given, where other focal lengths fit clearly better. Of a map of an archive, ``unreadable`` are
    the images left out, with the reason, and ``guessed`` those whose focal length is a guess.
    """

    folder: Path | None
    statistics: MapStatistics
    verified: VerifyOutcome = field(default_factory=VerifyOutcome)
    seconds: float = 0.0
    reason: str = ""
    unregistered: tuple[str, ...] = ()
    other_models: tuple[int, ...] = ()
    doubt: str = ""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    guessed: frozenset[str] = frozenset()


@dataclass(slots=True)
class _ArchiveScene:
    """Keypoints and cameras of the readable images of an archive, and what is wrong with the others."""

    keypoints: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    cameras: Mapping[str, Camera] = field(default_factory=dict)
    guessed: frozenset[str] = frozenset()
    unreadable: dict[str, str] = field(default_factory=dict)


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
    every other, up to 60 images. ``cameras``: hloc's or COLMAP's list of cameras, or Camera by name; None guesses them
    from the sizes of the images, with ``focal_lengths`` in pixels where they are known, or else those in the archive,
    and adjusts them while mapping. ``overwrite``: replace the map that is in the folder.

    An image that cannot be read is named in the outcome and left out. Where there is no map, ``outcome.folder`` is None
    and ``outcome.reason`` says why.

    Raises InputError for cameras that do not fit the images, FileError for matches of other features and if the folder
    is taken already or cannot be written.

    >>> import tempfile, numpy as np
    >>> from sfumato import ConcealedFeatures, Subspaces, save
    >>> lines = Subspaces(np.eye(8)[:3], np.eye(8)[3:6, None])
    >>> features = ConcealedFeatures(np.zeros((3, 4)), lines, "random-1", image_size=(640, 480))
    >>> work = tempfile.mkdtemp()
    >>> save(f"{work}/private.sfm.h5", {"desk.jpg": features})
    >>> build_map(f"{work}/private.sfm.h5", None, f"{work}/model").reason
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
        outcome = map_keypoints(
            scene.keypoints,
            scene.cameras,
            pairs,
            folder,
            replace(params, guessed=scene.guessed | frozenset(params.guessed)),
            progress=progress,
            complete=lambda model: save_landmarks(model, images),
        )
    seconds = time.perf_counter() - started
    return replace(outcome, unreadable=scene.unreadable, guessed=scene.guessed, seconds=seconds)


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
        scene.keypoints[name], sizes[name] = features.keypoints, features.image_size
        if features.focal_px is not None:
            focal[name] = features.focal_px
    if cameras is not None:
        scene.cameras = cameras if isinstance(cameras, Mapping) else read_cameras(cameras, scene.keypoints)
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
    """Match every image with every other, if they are few."""
    pairs = choose_pairs(scene.keypoints, "exhaustive").pairs
    if len(pairs.names) > LARGEST_EXHAUSTIVE:
        raise InputError(
            f"{len(pairs.names)} images make {len(pairs)} pairs: match those worth comparing first, with sfumato match "
            f"and --sequential, --pairs or (not for sealed archives) --retrieval, and give the file with --matches"
        )
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


def _make(
    scene: _Scene,
    output: Path,
    params: MapParams,
    progress: StageProgress,
    complete: Callable[[Path], object] | None,
) -> MapOutcome:
    started = time.perf_counter()
    names, verified, models = sorted(scene.keypoints), VerifyOutcome(), []
    reason = doubt = ""
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
                _need_verified(verified)
                models = _reconstruct(scene, work, params, progress)
                if not models or not models[0].num_points3D():
                    raise _NoMap(f"none of the {verified.verified} verified pairs of images could begin a map: {HINT}")
                doubt = "" if scene.poses else doubt_cameras(models[0], params.is_fixed, threads=params.threads)
            write_model(models[0], model)
            if complete is not None:
                complete(model)
    except _NoMap as problem:
        reason, models = str(problem), []
    registered = {made.image(number).name for made in models[:1] for number in made.reg_image_ids()}
    return MapOutcome(
        folder=output if models else None,
        statistics=statistics_of(models[0] if models else None, len(names)),
        verified=verified,
        seconds=time.perf_counter() - started,
        reason=reason,
        unregistered=tuple(name for name in names if name not in registered),
        doubt=doubt,
        other_models=tuple(int(other.num_reg_images()) for other in models[1:]),
    )


def _reconstruct(scene: _Scene, work: Path, params: MapParams, progress: StageProgress) -> list[Any]:
    """Return all reconstructions, the largest first."""
    if scene.poses is not None:
        return [triangulate(work, params, scene.poses)]
    models = MAPPERS[params.mapper](work, params, lambda items, total: progress("mapping", items, total))
    return sorted(models, key=lambda model: (model.num_reg_images(), model.num_points3D()), reverse=True)


def _need_features(scene: _Scene) -> None:
    count = len(scene.keypoints)
    if count < 2:
        raise _NoMap(f"a map needs two images or more, there {'is one' if count else 'are none'}")
    empty = sum(len(scene.keypoints[name]) == 0 for name in scene.keypoints)
    if empty > count - 2:
        raise _NoMap(f"{empty} of {count} images have no features: a map needs two images with features")
    if not any(len(scene.matches[pair]) for pair in scene.matches):
        raise _NoMap(f"no two of {count} images have a match ({len(scene.matches)} pairs were compared)")


def _need_verified(verified: VerifyOutcome) -> None:
    if not verified.verified:
        raise _NoMap(
            f"none of {len(verified.pairs)} pairs of images, with {verified.matches} matches, agrees with one scene: "
            f"{HINT}"
        )


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
