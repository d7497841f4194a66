# SPDX-License-Identifier: Apache-2.0
"""Answers of a server, as a device reads them: they may come from anything that listens there."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato.client.names import NameTable, translate
from sfumato.client.transport import STRANGE
from sfumato.errors import ServerError
from sfumato.geometry.localization import LandmarkMatches, Localization
from sfumato.types.scene import Pose, unit_rotation

DONE, FAILED, CANCELLED = "done", "failed", "cancelled"
ENDED = (DONE, FAILED, CANCELLED)
JOB_ID = re.compile(r"[0-9a-f]{32}\Z")


@dataclass(frozen=True, slots=True)
class PlaceSummary:
    """A place of a server. ``name`` is None where this device does not know what people call it.

    ``space`` is what all its features have in common, None before the first image.
    """

    id: str
    name: str | None
    images: int
    bytes: int
    space: str | None
    has_map: bool


@dataclass(frozen=True, slots=True)
class MapSummary:
    """A map of a place: its number, its figures, the digest of its bundle, and whether queries meet it."""

    number: int
    figures: Mapping[str, Any]
    digest: str
    is_current: bool


@dataclass(frozen=True, slots=True)
class JobState:
    """How far a job is. ``map`` and ``figures`` are there once it is done; ``map`` is None where there is no map.

    ``place`` is the id of its place, ``place_name`` what people call it, if this device knows. ``kind``: "map" for a
    job that makes a map, "evidence" for one that matches for a device which may release positions.
    """

    id: str
    number: int
    place: str
    state: str
    stage: str = ""
    done: int = 0
    total: int = 0
    reason: str = ""
    map: int | None = None
    figures: Mapping[str, Any] | None = None
    place_name: str | None = None
    kind: str = "map"

    @property
    def has_ended(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in ENDED

    def __str__(self) -> str:
        title = f"job {self.number}, {self.kind}"
        if self.state == "running" and self.stage:
            return f"{title}: {self.stage} {self.done} of {self.total}"
        reason = f", {self.reason}" if self.reason not in ("", self.state) else ""
        return f"{title}: {self.state}{reason}"


def strange(what: str) -> ServerError:
    """Return the error for an answer that a server of this version would not give."""
    return ServerError(f"the server's answer about {what} cannot be read: update the older program", code=STRANGE)


def read_mapping(facts: Any) -> dict[str, Any]:
    """Return an answer that has fields; raises ServerError for another."""
    if not isinstance(facts, dict):
        raise strange("this request")
    return facts


def read_items(facts: Any) -> list[dict[str, Any]]:
    """Return the things of an answer that lists some; raises ServerError for another."""
    found = read_mapping(facts).get("items")
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise strange("this request")
    return found


def read_place(facts: Any, names: NameTable) -> PlaceSummary:
    """Return a place from the server's answer, with people's names; raises ServerError for another."""
    try:
        key, space = str(facts["id"]), facts["space"]
        return PlaceSummary(
            key, names.place_name(key), int(facts["images"]), int(facts["bytes"]),
            None if space is None else str(space), facts["current_map"] is not None,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as cause:
        raise strange("a place") from cause


def read_map(facts: Any, names: NameTable) -> MapSummary:
    """Return a map from the server's answer, with people's names; raises ServerError for another."""
    try:
        figures: Any = translate(facts["facts"], names.reveal)
        return MapSummary(int(facts["number"]), dict(figures), str(facts["digest"]), bool(facts["is_current"]))
    except (KeyError, TypeError, ValueError) as cause:
        raise strange("a map") from cause


def read_state(facts: Any, names: NameTable) -> JobState:
    """Return the state of a job from the server's answer, with people's names; raises ServerError for another."""
    try:
        figures = facts.get("figures")
        if not JOB_ID.match(facts["id"]):
            raise ValueError("no id of a job")
        return JobState(
            str(facts["id"]),
            int(facts["number"]),
            str(facts["place"]),
            str(facts["state"]),
            str(facts["stage"]),
            int(facts["done"]),
            int(facts["total"]),
            names.reveal(str(facts["reason"])),
            None if facts.get("map") is None else int(facts["map"]),
            None if figures is None else dict(translate(figures, names.reveal)),  # type: ignore[call-overload]
            names.place_name(str(facts["place"])),
            str(facts.get("kind", "map"))[:40],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise strange("a job") from cause


def read_localization(facts: Any, names: NameTable) -> Localization:
    """Return the answer to a query, with people's names; raises ServerError for another."""
    try:
        numbers, pose = facts["pose"], None
        if numbers is not None:
            values = [float(value) for value in numbers]
            pose = Pose(unit_rotation(values[:4]), values[4:])  # type: ignore[arg-type]
        count = min(max(int(facts["candidates"]), 0), 100_000)
        return Localization(
            pose, int(facts["inliers"]), int(facts["matches"]), ("",) * count,
            names.reveal(str(facts["reason"])), str(facts["doubt"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as cause:
        raise strange("a query") from cause


def read_landmarks(facts: Any) -> LandmarkMatches:
    """Return the points of a map that a query matches; raises ServerError for another answer."""
    try:
        count = min(max(int(facts["candidates"]), 0), 100_000)
        return LandmarkMatches(
            np.array(facts["rows"], np.int64),
            np.array(facts["landmarks"], np.int64),
            np.array(facts["positions"], np.float64).reshape(-1, 3),
            np.array(facts["distances"], np.float32),
            ("",) * count,
        )
    except (KeyError, TypeError, ValueError, OverflowError) as cause:
        raise strange("a query") from cause
