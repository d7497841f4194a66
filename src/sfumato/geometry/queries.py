# SPDX-License-Identifier: Apache-2.0
"""Many queries: an archive of them against a map, and what became of each, on disk.

Server side. Poses go to the list of poses and nowhere else: the table beside it holds counts and reasons.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from sfumato.errors import ArchiveError, FileError, InputError, suggest
from sfumato.files.atomic import write_text
from sfumato.geometry.cameras import NAME_EARLIER, default_camera, is_listable, refuse_other_sizes, some, write_poses
from sfumato.geometry.localization import Localized, LocalizeParams, localize
from sfumato.geometry.maps import Map
from sfumato.geometry.outputs import POSES, TABLE, Inputs, parts_of_map, refuse_existing
from sfumato.geometry.shortlist import Shortlist
from sfumato.store import Archive
from sfumato.types.scene import Camera, Pose


@dataclass(slots=True)
class QueriesOutcome:
    """What became of all queries.

    ``results`` of those that could be read, localized or not; ``unreadable`` names the others and why, ``unlisted``
    those left out because no list of poses can hold their names. ``guessed`` are those without a given camera, whose
    focal length was estimated. ``strangers`` are candidates the map does not have, ``damaged`` those it could not read.
    """

    results: dict[str, Localized] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    unlisted: dict[str, str] = field(default_factory=dict)
    guessed: list[str] = field(default_factory=list)
    strangers: set[str] = field(default_factory=set)
    damaged: dict[str, str] = field(default_factory=dict)

    @property
    def poses(self) -> dict[str, Pose]:
        """The poses of the queries that were localized."""
        return {name: result.pose for name, result in self.results.items() if result.pose is not None}

    @property
    def reasons(self) -> dict[str, str]:
        """Why the others were not."""
        lost = {name: result.reason for name, result in self.results.items() if result.pose is None}
        return {**lost, **self.unlisted, **self.unreadable}

    @property
    def doubts(self) -> dict[str, str]:
        """What speaks against the cameras that were given, where another focal length explains clearly more."""
        return {name: result.doubt for name, result in self.results.items() if result.doubt}


def localize_queries(
    queries: Archive,
    cameras: Mapping[str, Camera],
    map_: Map,
    shortlist: Shortlist,
    params: LocalizeParams | None = None,
    *,
    listable: bool = False,
    progress: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> QueriesOutcome:
    """Localize every image of an archive; one that is damaged is named in the outcome and does not stop the others.

    An image without a camera gets a guess from its size. ``listable`` leaves out, and names, the queries that no list
    of poses can hold.

    Raises InputError for cameras of none of the queries, or of other image sizes, all at once, and for features the
    map's cannot be compared with.
    """
    outcome, sizes = QueriesOutcome(), {}
    refuse_strange_cameras(cameras, queries)
    for name in queries:
        if listable and not is_listable(name):
            outcome.unlisted[name] = f"left out, a list of poses holds no spaces and no # in front; {NAME_EARLIER}"
            continue
        try:
            sizes[name] = queries.header(name).image_size
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
            outcome.results[name] = Localized(None, 0, 0, (), "no camera is given and the image's size is not known")
            continue
        if camera is None:
            outcome.guessed.append(name)
        chosen = camera or default_camera(size or (1, 1))
        wanted = tuple(shortlist(name, query))
        outcome.strangers.update(other for other in wanted if other not in map_)
        try:
            outcome.results[name] = localize(query, chosen, map_, wanted, params, guessed_camera=camera is None)
        except InputError as cause:
            raise InputError(f"query {name!r:.80}: {cause}") from cause
    outcome.damaged = dict(map_.damaged)
    return outcome


def refuse_strange_cameras(cameras: Mapping[str, Camera], queries: Iterable[str]) -> None:
    """Raise InputError for cameras that are given and of none of the queries: they are named in another way."""
    names = list(queries)
    if cameras and names and not cameras.keys() & set(names):
        hint = suggest(names[0], cameras) or f"; a camera is named {next(iter(cameras))!r:.80}"
        raise InputError(
            f"none of the {len(cameras)} cameras is of a query: {some(names[:1])} is not among them{hint}. Name "
            f"cameras as the archive names its images (sfumato inspect), or give none and they are guessed"
        )


def check_output(
    path: str | os.PathLike[str],
    map_folder: str | os.PathLike[str],
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
        refuse_existing(place, kind, {**parts_of_map(map_folder), **inputs}, overwrite=overwrite)


def save_outcome(
    path: str | os.PathLike[str],
    outcome: QueriesOutcome,
    params: LocalizeParams,
    facts: Mapping[str, Any] | None = None,
) -> Path:
    """Write the poses in hloc's form, and beside them ``.json`` with inliers and reasons; return the second's path.

    Each is whole or not there. Only queries that were localized are listed among the poses.
    """
    table, guessed = Path(path).with_suffix(".json"), set(outcome.guessed)
    queries = {
        name: {
            "localized": result.pose is not None,
            "inliers": result.inliers,
            "matches": result.matches,
            "candidates": len(result.candidates),
            "camera": "guessed" if name in guessed else "given",
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


def summarise(outcome: QueriesOutcome) -> dict[str, Any]:
    """Return the counts of an outcome as plain values."""
    inliers = [result.inliers for result in outcome.results.values() if result.pose is not None]
    return {
        "queries": len(outcome.results) + len(outcome.unreadable) + len(outcome.unlisted),
        "localized": len(inliers),
        "median inliers": median(inliers) if inliers else 0,
        "not localized": outcome.reasons,
        "reasons": dict(Counter(reason.split(":")[0] for reason in outcome.reasons.values())),
        "cameras guessed": len(outcome.guessed),
        "cameras in doubt": outcome.doubts,
        "not listed": list(outcome.unlisted),
        "candidates not in the map": len(outcome.strangers),
        "damaged images of the map": outcome.damaged,
    }
