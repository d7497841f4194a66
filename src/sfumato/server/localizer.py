# SPDX-License-Identifier: Apache-2.0
"""The process that localizes queries: it holds maps in memory and answers one query at a time.

Requests come through its standard input and answers go through its standard output: a length, a JSON text, and for a
query its frame. Nothing of a query is written anywhere. Started by ``engines``.
"""

import json
import logging
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from sfumato.server.guard import clear_modules, guard_imports, log_quietly

if __name__ == "__main__":
    guard_imports()

import numpy as np

from sfumato.errors import InputError
from sfumato.geometry.cameras import default_camera, pose_numbers
from sfumato.geometry.localization import Localization, LocalizeParams, find_landmarks, localize_query
from sfumato.geometry.maps import Map, load_map
from sfumato.geometry.model import Model
from sfumato.geometry.shortlist import choose_candidates
from sfumato.matching.retrieval import USUAL_COUNT, is_sealed
from sfumato.server.blobs import damaged_files
from sfumato.server.engines import DAMAGED, LENGTHS, MOST_MAPS, message_bytes
from sfumato.server.places import parse_camera
from sfumato.store.frames import decode_frame
from sfumato.types.concealed import Bits, ConcealedFeatures
from sfumato.types.recipe import Recipe
from sfumato.types.scene import Landmarks

log = logging.getLogger(__name__)


class DamagedMap(Exception):
    """A map cannot be opened."""


class Localizer:
    """Maps by the ids of their places, and what answers queries with them."""

    def __init__(self) -> None:
        self._maps: OrderedDict[str, tuple[str, Map]] = OrderedDict()
        self._damaged: set[str] = set()

    def open_map(self, place: str, name: str, folder: str) -> Map:
        """Return a map of a place, opened and read once; an older one of the same place is closed.

        Raises DamagedMap; the log has the id of the map and its files that are not as they were made.
        """
        known = self._maps.get(place)
        if known is not None and known[0] == name:
            self._maps.move_to_end(place)
            return known[1]
        if known is not None:
            known[1].close()
            del self._maps[place]
        try:
            map_ = read_map(folder)
        except MemoryError:
            raise
        except Exception as cause:
            if name not in self._damaged:  # once: all its files are read
                files = damaged_files(Path(folder).parent)
                log.exception("a map cannot be opened", extra={"facts": {"map": name, "files": files}})
            self._damaged.add(name)
            raise DamagedMap(name) from cause
        self._maps[place] = name, map_
        while len(self._maps) > MOST_MAPS:
            self._maps.popitem(last=False)[1][1].close()
        return map_

    @property
    def opened(self) -> dict[str, str]:
        """The ids of the open maps by place."""
        return {place: name for place, (name, _) in self._maps.items()}

    def keep(self, places: set[str]) -> None:
        """Close the maps of all other places."""
        for place in self._maps.keys() - places:
            self._maps.pop(place)[1].close()

    def warm_up(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Open a map, and compile what queries need by asking for one of its own images."""
        map_ = self.open_map(request["place"], request["map"], request["folder"])
        for name in map_.names[:1]:
            features = map_.landmarks()[name]
            size = features.image_size or (640, 480)
            choose_candidates(map_)(name, features)
            localize_query(features, default_camera(size), map_, [name], guessed_camera=True)
        return {"images": len(map_), "points": len(map_.positions)}

    def warm_kernels(self) -> dict[str, Any]:
        """Load and compile what every query needs, by a query in a map of a hundred random landmarks."""
        rng = np.random.default_rng(0)
        positions = rng.uniform(-1, 1, (100, 3)) + np.array([0, 0, 5])
        pixels = 500 * positions[:, :2] / positions[:, 2:] + [319.5, 239.5]
        keypoints = np.hstack([pixels, np.tile([1.0, 0.0], (100, 1))])
        bits = Bits(rng.integers(0, 256, (100, 64), np.uint8))
        image = ConcealedFeatures(keypoints, bits, Recipe.of("sealed-512@000000000000"), image_size=(640, 480))
        rows = np.column_stack([np.arange(100), np.zeros(100, int), np.arange(100)])
        model = Model(Landmarks(positions, rows, ("image",)), np.arange(100), pixels, np.array([100]))
        map_ = Map(model, {"image": image}, is_public=False)
        choose_candidates(map_, "votes:1")("query", image)
        localize_query(image, default_camera((640, 480)), map_, ["image"], guessed_camera=True)
        return {"clear": clear_modules(), "process": os.getpid()}

    def answer(self, request: Mapping[str, Any], frame: bytes) -> dict[str, Any]:
        """Localize the query of a frame; what a person can mend is an answer with the key ``error``."""
        started = time.perf_counter()
        query = decode_frame(frame)
        map_ = self.open_map(request["place"], request["map"], request["folder"])
        opened = time.perf_counter()
        camera = None if request["camera"] is None else parse_camera(request["camera"])
        if camera is None and query.image_size is None:
            return _answer(Localization(None, 0, 0, (), "no camera is given and the image's size is not known"), {})
        if camera is None and request["focal_px"] is not None and query.image_size is not None:
            camera = default_camera(query.image_size, request["focal_px"])
        candidates = choose_candidates(map_, rule_for(map_, request["candidates"]))("query", query)
        chosen_at = time.perf_counter()
        params = LocalizeParams(**request["params"])
        guess = camera or default_camera(query.image_size or (1, 1))
        result = localize_query(query, guess, map_, candidates, params, guessed_camera=camera is None)
        stages = {
            "open": opened - started,
            "shortlist": chosen_at - opened,
            "localize": time.perf_counter() - chosen_at,
        }
        return _answer(result, stages)

    def find(self, request: Mapping[str, Any], frame: bytes) -> dict[str, Any]:
        """Return the points of a map that the rows of a frame match, those of the nearest codes."""
        started = time.perf_counter()
        query = decode_frame(frame)
        map_ = self.open_map(request["place"], request["map"], request["folder"])
        opened = time.perf_counter()
        candidates = choose_candidates(map_, rule_for(map_, request["candidates"]))("query", query)
        chosen_at = time.perf_counter()
        found = find_landmarks(query, map_, candidates).nearest(request["most"])
        ends = opened - started, chosen_at - opened, time.perf_counter() - chosen_at
        return {
            "rows": found.rows.tolist(),
            "landmarks": found.landmarks.tolist(),
            "positions": found.positions.tolist(),
            "distances": found.distances.tolist(),
            "candidates": len(found.candidates),
            "ms": {name: round(1000 * end, 1) for name, end in zip(("open", "shortlist", "match"), ends, strict=True)},
        }


def read_map(folder: str) -> Map:
    """Open a map and read all of its images; raises FileError, and what libraries raise for damaged files."""
    map_ = load_map(folder)
    try:
        for image in map_.names:
            map_.view(image)
    except BaseException:
        map_.close()
        raise
    return map_


def rule_for(map_: Map, count: int | None) -> str:
    """Return the rule that chooses the images to compare a query with.

    Without a count, votes choose as many as usual of a sealed map that has more: with all of 100 images a query takes a
    second and more on one core, with 20 a third of that.
    """
    if count is not None:
        return f"votes:{count}"
    return f"votes:{USUAL_COUNT}" if len(map_) > USUAL_COUNT and is_sealed(map_.landmarks()) else "exhaustive"


def _answer(result: Localization, stages: Mapping[str, float]) -> dict[str, Any]:
    pose = None if result.pose is None else pose_numbers(result.pose)
    return {
        "localized": pose is not None,
        "pose": pose,
        "inliers": result.inliers,
        "matches": result.matches,
        "candidates": len(result.candidates),
        "reason": result.reason,
        "doubt": result.doubt,
        "ms": {name: round(1000 * seconds, 1) for name, seconds in stages.items()},
    }


def read_message(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """Read a JSON text and what follows it; None at the end."""
    head = stream.read(LENGTHS.size)
    if len(head) < LENGTHS.size:
        return None
    text, rest = LENGTHS.unpack(head)
    return json.loads(stream.read(text)), stream.read(rest)


def answer_request(localizer: Localizer, request: Mapping[str, Any], body: bytes) -> dict[str, Any]:
    """Answer one request; nothing that a client sends may end the process."""
    facts: dict[str, Any] = {}
    try:
        if request["kind"] == "modules":
            facts = {"clear": clear_modules(), "process": os.getpid()}
        elif request["kind"] == "start":
            facts = localizer.warm_kernels()
        elif request["kind"] == "keep":
            localizer.keep(set(request["places"]))
        elif request["kind"] == "open":
            localizer.open_map(request["place"], request["map"], request["folder"])
        elif request["kind"] == "warm":
            facts = localizer.warm_up(request)
        elif request["kind"] == "landmarks":
            facts = localizer.find(request, body)
        else:
            facts = localizer.answer(request, body)
    except InputError as problem:
        facts = {"error": str(problem), "kind": type(problem).__name__}
    except DamagedMap:
        facts = {"error": "the map of this place is damaged: make it again (sfumato map --server)", "kind": DAMAGED}
    except Exception as problem:
        log.exception("a request failed")
        facts = {"error": "", "kind": type(problem).__name__}
    return {**facts, "open": localizer.opened}


def main() -> int:
    """Answer requests until standard input ends."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    log_quietly()
    localizer = Localizer()
    while (message := read_message(requests)) is not None:
        answers.write(message_bytes(answer_request(localizer, *message)))
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
