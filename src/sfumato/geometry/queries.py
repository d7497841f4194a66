# SPDX-License-Identifier: Apache-2.0
"""Queries: an archive of them localized against a map, and the results on disk.

Server side, but for queries whose positions stay home: then a server finds landmarks, which a file takes to the device,
and the device solves. Poses go to the list of poses and nowhere else: the table beside it holds counts and reasons.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import ArchiveError, FileError, InputError, suggest
from sfumato.files.atomic import write_text
from sfumato.files.tensors import load_checkpoint, save_checkpoint
from sfumato.geometry.cameras import (
    NAME_EARLIER,
    default_camera,
    is_listable,
    name_list,
    read_known_cameras,
    refuse_other_sizes,
    write_poses,
)
from sfumato.geometry.localization import (
    LandmarkMatches,
    Localization,
    LocalizeParams,
    find_landmarks,
    known_keypoints,
    localize_query,
)
from sfumato.geometry.maps import Map, load_map
from sfumato.geometry.outputs import POSES, TABLE, Inputs, map_paths, refuse_existing
from sfumato.geometry.shortlist import CandidatesLike, choose_candidates
from sfumato.matching.codebook import Codebook
from sfumato.matching.pairs import parse_rule
from sfumato.store.archive import Archive, open_archive
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.progress import Progress, StageProgress
from sfumato.types.scene import Camera, Pose

KeypointsOf = Callable[[str, ConcealedFeatures], NDArray[np.float32]]
"""Gives the keypoints (N, 2 or more) of the rows of a query."""
LANDMARK_PARTS = ("rows", "landmarks", "positions", "distances")
MOST_LANDMARKS, MOST_CANDIDATES = 2_000, 100_000
UNLISTABLE = f"left out, a list of poses holds no spaces and no # in front; {NAME_EARLIER}"


@dataclass(frozen=True, slots=True)
class NoPose:
    """The reason why a query has no pose."""

    reason: str


@dataclass(slots=True, eq=False)
class Localizations(Mapping[str, Pose | NoPose]):
    """A mapping of queries to their Pose, cam_from_world, or to a NoPose with the reason.

    ``results``: the Localization of each query that could be read, with its inliers. ``unreadable`` gives the reason
    for the others, ``unlisted`` for those whose names no list of poses can hold. ``guessed`` are the queries without a
    camera, whose focal length was estimated; ``from_archive`` those whose focal length the archive has. ``strangers``
    are candidates the map does not have, ``damaged`` images of the map that cannot be read.
    """

    results: dict[str, Localization] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    unlisted: dict[str, str] = field(default_factory=dict)
    guessed: list[str] = field(default_factory=list)
    from_archive: list[str] = field(default_factory=list)
    strangers: set[str] = field(default_factory=set)
    damaged: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Pose | NoPose:
        if name in self.results:
            result = self.results[name]
            return NoPose(result.reason) if result.pose is None else result.pose
        return NoPose({**self.unlisted, **self.unreadable}[name])

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({**self.results, **self.unlisted, **self.unreadable}))

    def __len__(self) -> int:
        return len(self.results) + len(self.unlisted) + len(self.unreadable)

    def __repr__(self) -> str:
        return f"Localizations({len(self.poses)} of {len(self)} queries localized)"

    @property
    def poses(self) -> dict[str, Pose]:
        """The poses of the queries that were localized."""
        return {name: result.pose for name, result in self.results.items() if result.pose is not None}

    @property
    def reasons(self) -> dict[str, str]:
        """The reasons why the other queries have no pose."""
        lost = {name: result.reason for name, result in self.results.items() if result.pose is None}
        return {**lost, **self.unlisted, **self.unreadable}

    @property
    def doubts(self) -> dict[str, str]:
        """Doubts about the given cameras, where another focal length explains clearly more."""
        return {name: result.doubt for name, result in self.results.items() if result.doubt}


def localize(
    queries: str | os.PathLike[str] | Archive,
    model: str | os.PathLike[str] | Map,
    cameras: str | os.PathLike[str] | Mapping[str, Camera] | None = None,
    pairs: CandidatesLike = "exhaustive",
    params: LocalizeParams | None = None,
    *,
    public: str | os.PathLike[str] | None = None,
    codebook: Codebook | None = None,
    keypoints: KeypointsOf = lambda name, query: known_keypoints(query),
    output: str | os.PathLike[str] | None = None,
    inputs: Inputs | None = None,
    overwrite: bool = False,
    progress: StageProgress = lambda stage, items, total: items,
) -> Localizations:
    """Localize the images of an archive against a map; return the Pose of each, or a NoPose with the reason.

    ``model``: the folder of a map, or an open Map. ``cameras``: hloc's or COLMAP's list of cameras, or Camera by name;
    a query without one gets the focal length that the archive has for it (``with_cameras``), or else a guess from its
    size, and its focal length is estimated along with the pose. ``pairs``: "exhaustive" for all images of a small map,
    "votes:20" for the 20 that look most like the query, also the default of a large map, a file with a query and an
    image of the map per line, or a mapping of queries to names. ``public``: a file of public points to use instead of
    the map's concealed landmarks. ``keypoints`` gives those of queries whose positions stay home, on their device
    (``sfumato.device.own_keypoints``). ``output`` writes the poses as hloc does, and a table with inliers and reasons
    beside them; it never replaces a file of ``inputs``.

    A query that is damaged does not stop the others.

    Raises InputError for cameras of none of the queries, or of other image sizes, and for features that cannot be
    compared with the map's; FileError if the map is damaged or the output cannot be written.

    >>> import tempfile, numpy as np
    >>> from sfumato import Camera, ConcealedFeatures, Subspaces, build_map, save
    >>> rng, work = np.random.default_rng(0), tempfile.mkdtemp()
    >>> points = rng.uniform(-1, 1, (90, 3)) + [0, 0, 5]
    >>> lines = Subspaces(rng.normal(size=(90, 16)), rng.normal(size=(90, 1, 16)))
    >>> def photo(x):  # a camera at x sees the points
    ...     pixels = 500 * (points[:, :2] - [x, 0]) / points[:, 2:] + [319.5, 239.5]
    ...     return ConcealedFeatures(np.hstack([pixels, np.ones((90, 2))]), lines, "random-1", image_size=(640, 480))
    >>> save(f"{work}/private.sfm", {f"{x}.jpg": photo(x) for x in (0, 1, 2)})
    >>> save(f"{work}/query.sfm", {"query.jpg": photo(0.5)})
    >>> camera = Camera("PINHOLE", 640, 480, (500, 500, 320, 240))
    >>> cameras = dict.fromkeys(["0.jpg", "1.jpg", "2.jpg", "query.jpg"], camera)
    >>> model = build_map(f"{work}/private.sfm", None, f"{work}/model", cameras)
    >>> localize(f"{work}/query.sfm", f"{work}/model", cameras)
    Localizations(1 of 1 queries localized)
    """
    params = params or LocalizeParams()
    with ExitStack() as files:
        archive = files.enter_context(open_archive(queries))
        if output is not None:
            read = {"the archive of queries": archive.path, "the list of cameras": _path_of(cameras),
                    "the file of public points": public, "the list of pairs": _path_of(pairs)}  # fmt: skip
            check_poses_output(
                output,
                model.folder if isinstance(model, Map) else model,
                {**read, **(inputs or {})},
                overwrite=overwrite,
            )
        camera_of = (
            cameras if isinstance(cameras, Mapping) else {} if cameras is None else read_known_cameras(cameras, archive)
        )
        map_ = model if isinstance(model, Map) else files.enter_context(load_map(model, public=public))
        choice = choose_candidates(map_, pairs, codebook, progress=lambda names: progress("voting", names, len(map_)))
        strangers = set[str]()

        def answer(name: str, query: ConcealedFeatures, camera: Camera, is_guessed: bool) -> Localization:
            candidates = tuple(choice(name, query))
            strangers.update(other for other in candidates if other not in map_)
            places = keypoints(name, query)
            return localize_query(query, camera, map_, candidates, params, keypoints=places, guessed_camera=is_guessed)

        outcome = localize_each(
            archive, camera_of, answer,
            listable=output is not None, progress=lambda names: progress("localizing", names, len(archive)),
        )  # fmt: skip
        outcome.strangers, outcome.damaged = strangers, dict(map_.damaged)
        if output is not None:
            save_localizations(output, outcome, params, {"map": "public points" if map_.is_public else "concealed"})
    return outcome


def _path_of(value: object) -> str | os.PathLike[str] | None:
    return value if isinstance(value, str | os.PathLike) and not parse_rule(value)[0] else None


Answer = Callable[[str, ConcealedFeatures, Camera, bool], Localization]
"""Localizes a query, by its name, with a camera; the bool says that its focal length is a guess."""


def localize_each(
    queries: Mapping[str, ConcealedFeatures],
    cameras: Mapping[str, Camera],
    answer: Answer,
    *,
    listable: bool = False,
    progress: Progress = iter,
) -> Localizations:
    """Localize every image of an archive; a damaged one is named in the outcome and does not stop the others.

    An image without a camera gets one from its focal length and size, or a guess from its size. ``listable`` leaves
    out, and names, the queries that no list of poses can hold.

    Raises InputError for cameras of none of the queries, or of other image sizes, all at once, and as ``answer`` does.
    """
    outcome, sizes = Localizations(), dict[str, tuple[int, int] | None]()
    refuse_strange_cameras(cameras, queries)
    for name in queries:
        if listable and not is_listable(name):
            outcome.unlisted[name] = UNLISTABLE
            continue
        try:
            image = queries.header(name) if isinstance(queries, Archive) else queries[name]
            sizes[name] = image.image_size
        except ArchiveError as problem:
            outcome.unreadable[name] = str(problem)
    refuse_other_sizes(cameras, sizes)
    for name in progress(list(sizes)):
        try:
            query = queries[name]
        except ArchiveError as problem:
            outcome.unreadable[name] = str(problem)
            continue
        camera, size = cameras.get(name), sizes[name]
        if camera is None and size is None:
            outcome.results[name] = Localization(None, 0, 0, (), "no camera is given and the image's size is not known")
            continue
        if camera is None and query.focal_px is not None and size is not None:
            camera = default_camera(size, query.focal_px)
            outcome.from_archive.append(name)
        if camera is None:
            outcome.guessed.append(name)
        try:
            given = camera or default_camera(size or (1, 1))
            outcome.results[name] = answer(name, query, given, camera is None)
        except InputError as cause:
            raise InputError(f"query {name!r:.80}: {cause}") from cause
    return outcome


# --- in two steps: landmarks where the map is, poses where the positions are


LANDMARKS_KIND = "landmarks of queries"


def write_landmarks(
    queries: str | os.PathLike[str] | Archive,
    model: str | os.PathLike[str] | Map,
    output: str | os.PathLike[str],
    pairs: CandidatesLike = "exhaustive",
    params: LocalizeParams | None = None,
    *,
    codebook: Codebook | None = None,
    most: int = MOST_LANDMARKS,
    overwrite: bool = False,
    progress: StageProgress = lambda stage, items, total: items,
) -> dict[str, LandmarkMatches]:
    """Write the points of a map that queries match to a file, with which their device solves the poses.

    ``most``: matches of a query, those of the nearest codes. Images that cannot be read are left out.

    Raises FileError for a file that is there already, InputError for features that cannot be compared with the map's.
    """
    if os.path.lexists(output) and not overwrite:
        raise FileError(f"{output} is there already: choose another file, or --overwrite")
    found = dict[str, LandmarkMatches]()
    with ExitStack() as files:
        archive = files.enter_context(open_archive(queries))
        map_ = model if isinstance(model, Map) else files.enter_context(load_map(model))
        choice = choose_candidates(map_, pairs, codebook, progress=lambda names: progress("voting", names, len(map_)))
        for name in progress("localizing", list(archive), len(archive)):
            with suppress(ArchiveError):
                query = archive[name]
                found[name] = find_landmarks(query, map_, tuple(choice(name, query)), params).nearest(most)
    arrays = {
        f"{part} {number}": getattr(matches, part)
        for number, matches in enumerate(found.values())
        for part in LANDMARK_PARTS
    }
    facts = {
        "kind": LANDMARKS_KIND,
        "queries": list(found),
        "candidates": [len(one.candidates) for one in found.values()],
    }
    save_checkpoint(output, arrays, facts)
    return found


def read_landmarks(path: str | os.PathLike[str]) -> dict[str, LandmarkMatches]:
    """Read what ``write_landmarks`` wrote, by query; raises FileError for a file that is damaged or of another kind."""
    arrays, facts = load_checkpoint(path, LANDMARKS_KIND)
    try:
        counts = [min(max(int(count), 0), MOST_CANDIDATES) for count in facts["candidates"]]
        return {
            str(name): LandmarkMatches(
                **{part: arrays[f"{part} {number}"] for part in LANDMARK_PARTS}, candidates=("",) * count
            )
            for number, (name, count) in enumerate(zip(facts["queries"], counts, strict=True))
        }
    except (KeyError, TypeError, ValueError) as cause:
        raise FileError(f"{path}: these landmarks cannot be read ({cause!s:.200}): write them again") from cause


def refuse_strange_cameras(cameras: Mapping[str, Camera], queries: Iterable[str]) -> None:
    """Raise InputError for cameras that are given and of none of the queries: they are named in another way."""
    names = list(queries)
    if cameras and names and not cameras.keys() & set(names):
        hint = suggest(names[0], cameras) or f"; a camera is named {next(iter(cameras))!r:.80}"
        raise InputError(
            f"none of the {len(cameras)} cameras is of a query: {name_list(names[:1])} is not among them{hint}. Name "
            f"cameras as the archive names its images (sfumato inspect), or give none and they are guessed"
        )


def check_poses_output(
    path: str | os.PathLike[str],
    map_folder: str | os.PathLike[str] | None,
    inputs: Inputs,
    *,
    overwrite: bool = False,
) -> None:
    """Refuse, before any work is done, a list of poses, or a table beside it, that could not be written.

    Neither takes the place of anything that is read, of a part of the map, or of another kind of file; of an older list
    and table only with ``overwrite``.
    """
    path = Path(path)
    if path.suffix == ".json":
        raise FileError(
            f"{path}: the poses are a text and a .json is written beside it: choose a name such as poses.txt"
        )
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise FileError(f"cannot write {path}: it is a folder, or its folder is missing")
    for place, kind in ((path, POSES), (path.with_suffix(".json"), TABLE)):
        parts = {} if map_folder is None else map_paths(map_folder)
        refuse_existing(place, kind, {**parts, **inputs}, overwrite=overwrite)


def save_localizations(
    path: str | os.PathLike[str],
    outcome: Localizations,
    params: LocalizeParams,
    facts: Mapping[str, Any] | None = None,
) -> Path:
    """Write the poses in hloc's form, and beside them ``.json`` with inliers and reasons; return the second's path.

    Each is whole or not there. Only queries that were localized are listed among the poses.
    """
    table = Path(path).with_suffix(".json")
    origin = {**dict.fromkeys(outcome.guessed, "guessed"), **dict.fromkeys(outcome.from_archive, "from the archive")}
    queries = {
        name: {
            "localized": result.pose is not None,
            "inliers": result.inliers,
            "matches": result.matches,
            "candidates": len(result.candidates),
            "camera": origin.get(name, "given"),
            "reason": result.reason,
            "doubt": result.doubt,
        }
        for name, result in sorted(outcome.results.items())
    }
    lost = {"unreadable": outcome.unreadable, "unlisted": outcome.unlisted}
    content = {"params": asdict(params), **(facts or {}), "queries": queries, **lost}
    write_text(table, json.dumps(content, indent=2, sort_keys=True) + "\n")
    write_poses(path, outcome.poses)
    return table


def summarise(outcome: Localizations) -> dict[str, Any]:
    """Return the counts of an outcome as plain values."""
    inliers = [result.inliers for result in outcome.results.values() if result.pose is not None]
    return {
        "queries": len(outcome.results) + len(outcome.unreadable) + len(outcome.unlisted),
        "localized": len(inliers),
        "median inliers": median(inliers) if inliers else 0,
        "not localized": outcome.reasons,
        "reasons": dict(Counter(reason.split(":")[0] for reason in outcome.reasons.values())),
        "cameras guessed": len(outcome.guessed),
        "cameras from the archive": len(outcome.from_archive),
        "cameras in doubt": outcome.doubts,
        "not listed": list(outcome.unlisted),
        "candidates not in the map": len(outcome.strangers),
        "damaged images of the map": outcome.damaged,
    }
