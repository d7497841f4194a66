# SPDX-License-Identifier: Apache-2.0
"""A server and its places, as a device uses them: push concealed features, build maps, localize, pull maps.

Sends frames that it encodes itself from ConcealedFeatures, and nothing else of what is on the device; ids take the
place of names (``names``).
"""

import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.client.answers import (
    JobState,
    MapSummary,
    PlaceSummary,
    read_items,
    read_landmarks,
    read_localization,
    read_map,
    read_mapping,
    read_place,
    read_state,
    strange,
)
from sfumato.client.bundle import LARGEST_BUNDLE, name_images, unpack
from sfumato.client.jobs import MapJob
from sfumato.client.names import PLACE_ID, NameTable
from sfumato.client.transport import RetryParams, Transport
from sfumato.client.uploads import (
    PushOutcome,
    Source,
    camera_words,
    frame_of,
    name_evidence,
    need_concealed,
    open_images,
    send_ahead,
)
from sfumato.device import ReleaseOutcome, ReleaseParams, own_keypoints, release_positions
from sfumato.errors import ArchiveError, FileError, InputError, RecipeError, ServerError
from sfumato.geometry.cameras import default_camera, read_known_cameras
from sfumato.geometry.localization import (
    LandmarkMatches,
    Localization,
    LocalizeParams,
    known_keypoints,
    solve_pose,
)
from sfumato.geometry.model_folder import new_model_folder
from sfumato.geometry.queries import Localizations, localize_each
from sfumato.store.evidence import load_evidence
from sfumato.store.frames import MEDIA_TYPE, RELEASE_TYPE, encode_release, frame_digest
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.progress import Progress, identity
from sfumato.types.scene import Camera

KEY_ID = re.compile(r"[a-z2-7]{8}\Z")
NAMES_AT_ONCE = 1000
LARGEST_EVIDENCE = 2**30
SHOWN = 3


class Client:
    """A server, by its address and an API key; use it in a ``with`` statement.

    ``secret``: the device key from which ids of names are made, by default this user's; ``names``: the file of the
    table of names. ``allow_http`` sends the key to another machine without TLS; ``ca_file`` names the certificates to
    trust, where the usual ones are not meant. Nothing is sent before something is asked for.

    Raises InputError for an address or a key that is none, MissingDependency without the extra ``client``.

    >>> from sfumato.client import Client
    >>> Client("http://127.0.0.1:8765", f"sfm_{'a' * 8}_{'b' * 43}_{'c' * 6}")
    Client('http://127.0.0.1:8765')
    """

    def __init__(
        self,
        url: str,
        api_key: str,
        *,
        secret: bytes | None = None,
        names: str | os.PathLike[str] | None = None,
        allow_http: bool = False,
        ca_file: str | os.PathLike[str] | None = None,
        timeout_seconds: float = 60.0,
        retries: RetryParams | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.names = NameTable(secret, names)
        self.transport = Transport(
            url, api_key, allow_http=allow_http, ca_file=ca_file, timeout_seconds=timeout_seconds, retries=retries,
            sleep=sleep, reveal=self.names.reveal,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"Client({self.transport.url!r})"

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.transport.close()

    def about(self) -> dict[str, Any]:
        """Return what the server is: its version, its limits, and a sentence about what it sees; raises ServerError."""
        return read_mapping(self.transport.ask("GET", "/v1/about"))

    def problems(self) -> list[str]:
        """Return why the server is not ready, and what is wrong with single places; empty if all is well.

        Raises ServerError if it does not answer.
        """
        facts = read_mapping(self.transport.ask("GET", "/readyz", answers=frozenset({503})))
        reasons, remarks = facts.get("problems", []), facts.get("remarks", [])
        if not isinstance(reasons, list) or not isinstance(remarks, list):
            raise strange("its health")
        return [str(reason) for reason in (*reasons, *remarks)]

    def place(self, name: str | None = None, *, id: str | None = None) -> "Place":
        """Return a place by the name that people gave it, or by the id that the server knows; nothing is asked yet."""
        if (name is None) == (id is None):
            raise InputError("give the name of a place, or its id")
        if id is None:
            key = self.names.place_id(name or "")
            return Place(self.transport, self.names, key, (name or "").strip())
        if not PLACE_ID.match(id):
            raise InputError(f"an id of a place is 8 to 64 hexadecimal digits, got {id!r:.80}")
        return Place(self.transport, self.names, id, self.names.place_name(id))

    def places(self) -> list[PlaceSummary]:
        """Return the places that the key may read, by id; raises ServerError."""
        result, after = list[PlaceSummary](), ""
        while True:
            facts = self.transport.ask("GET", "/v1/places", params={"after": after})
            result += [read_place(one, self.names) for one in read_items(facts)]
            following = facts.get("next")
            if not isinstance(following, str) or following <= after:
                return result
            after = following

    def jobs(self, place: "Place | None" = None, *, limit: int = 100) -> list[MapJob]:
        """Return jobs that the key may see, of all places or one, the newest first; raises ServerError."""
        words = {"limit": limit, "place": None if place is None else place.id}
        found = read_items(self.transport.ask("GET", "/v1/jobs", params=words))
        return [MapJob(self.transport, self.names, read_state(facts, self.names)) for facts in found]

    # --- for administrators

    def make_key(self, scopes: Iterable[str], *, label: str = "", seconds: float | None = None) -> str:
        """Make an API key with scopes and return it, the only copy; needs the scope admin. Raises ServerError."""
        facts = self.transport.ask(
            "POST", "/v1/keys", body={"scopes": list(scopes), "label": label, "seconds": seconds}
        )
        return str(read_mapping(facts).get("key"))

    def list_keys(self) -> list[dict[str, Any]]:
        """Return all API keys of the server without their secrets, the newest first; raises ServerError."""
        return read_items(self.transport.ask("GET", "/v1/keys"))

    def revoke_key(self, id: str) -> None:
        """Revoke an API key by the eight characters of its id; raises ServerError."""
        if not KEY_ID.match(id):
            raise InputError("the id of a key is the eight characters after sfm_, as sfumato server key list shows it")
        self.transport.ask("DELETE", f"/v1/keys/{id}")


@dataclass(slots=True, eq=False)
class Place:
    """A place of a server. ``name`` is what people call it, None if this device does not know."""

    transport: Transport = field(repr=False)
    names: NameTable = field(repr=False)
    id: str
    name: str | None = None

    @property
    def title(self) -> str:
        """The name, or the id where there is none."""
        return self.name or self.id

    @property
    def _path(self) -> str:
        return f"/v1/places/{self.id}"

    def create(self) -> PlaceSummary:
        """Make the place; once more is no change. Needs the scope admin. Raises ServerError."""
        facts = self.transport.ask("PUT", self._path)
        self._remember()
        return read_place(facts, self.names)

    def read(self) -> PlaceSummary:
        """Return what there is at the place; raises ServerError."""
        return read_place(self.transport.ask("GET", self._path), self.names)

    def delete(self) -> None:
        """Remove the place with its images and maps from the server; raises ServerError."""
        self.transport.ask("DELETE", self._path)
        self.names.forget(self.id)

    # --- uploads

    def push(
        self,
        source: Source,
        cameras: Mapping[str, Camera] | str | os.PathLike[str] | None = None,
        *,
        progress: Progress = identity,
    ) -> PushOutcome:
        """Send the images that the server does not have; run again after a break, it goes on.

        ``source``: an archive, its path, or ConcealedFeatures by name. ``cameras`` go along, those of a list that are
        marked as guesses do not; without one the focal length goes along where the archive has it. Sizes and angles of
        keypoints never do. The camera of an image that the server has stays as it is. The place is made if it is
        missing and the key may.

        Raises TypeError for features that are not concealed and FrameError for features that protect nobody, before
        anything is sent; ServerError with the code ``already_released`` for an image that the server has with other
        content, named as people know it, or with other positions, after those of all other images were sent.
        """
        with ExitStack() as stack:
            images = stack.enter_context(open_images(source))
            known = read_known_cameras(cameras, images) if isinstance(cameras, str | os.PathLike) else cameras or {}
            outcome, ids, digests = PushOutcome(), dict[str, str](), dict[str, str]()
            shown, refusals = dict[str, int](), list[ServerError]()
            for name in images:
                try:
                    frame = frame_of(name, images[name])
                except ArchiveError as problem:
                    outcome.unreadable[name] = str(problem)
                    continue
                ids[name], digests[name] = self.names.image_id(self.id, name), frame_digest(frame)
                if images[name].tags is not None:
                    shown[name] = int(images[name].is_shown.sum())
            self._remember({key: name for name, key in ids.items()})
            outcome.is_new_place = self.prepare()
            missing, released = self._missing(ids, digests)
            outcome.present = [name for name in ids if name not in missing]

            def uploads() -> Iterator[tuple[str, str, bytes, dict[str, str | None]]]:
                for name in progress(sorted(missing)):
                    features = images[name]
                    yield name, ids[name], frame_of(name, features), camera_words(features, known.get(name))

            for name, size in send_ahead(self._put, uploads()):
                outcome.sent.append(name)
                outcome.bytes += size
            for name in (name for name, count in shown.items() if count and count != released.get(name)):
                rows = np.flatnonzero(images[name].is_shown)
                body = encode_release(rows, images[name].keypoints[rows, :2])
                try:
                    self._put(name, f"{ids[name]}/positions", body, {}, RELEASE_TYPE)
                except ServerError as problem:
                    if problem.status not in (409, 422):
                        raise
                    refusals.append(problem)
                    continue
                outcome.released[name] = len(rows)
                outcome.bytes += len(body)
        if refusals:
            raise refusals[0]
        return outcome

    def _remember(self, images: Mapping[str, str] | None = None) -> None:
        if self.name is not None:
            self.names.remember({self.id: self.name})
        if images:
            self.names.remember(images, self.id)

    def _missing(self, ids: Mapping[str, str], digests: Mapping[str, str]) -> tuple[set[str], dict[str, int]]:
        """Return the names of the images that the server does not have, and positions it has; raises ServerError."""
        missing, released = set[str](), dict[str, int]()
        conflicts: list[str] = []
        listed, by_id = list(ids), {key: name for name, key in ids.items()}
        for start in range(0, len(listed), NAMES_AT_ONCE):
            body = [{"name": ids[name], "digest": digests[name]} for name in listed[start : start + NAMES_AT_ONCE]]
            facts = self._ask_missing(body)
            missing |= {by_id[key] for key in facts.get("missing", ()) if key in by_id}
            conflicts += [by_id[key] for key in facts.get("conflicting", ()) if key in by_id]
            released |= {by_id[key]: int(count) for key, count in facts.get("released", {}).items() if key in by_id}
        if conflicts:
            some = ", ".join(repr(name) for name in conflicts[:SHOWN])
            more = f" and {len(conflicts) - SHOWN} more" if len(conflicts) > SHOWN else ""
            raise ServerError(
                f"{some}{more}: released to {self.title!r} before, with other content; a second release of a photo "
                f"tells more than one: push the archive of the first, or give the photos other names; nothing was sent",
                status=409,
                code="already_released",
            )
        return missing, released

    # --- positions, against evidence

    def release(
        self,
        archive: str | os.PathLike[str],
        params: ReleaseParams | None = None,
        *,
        secret: bytes | None = None,
        pairs: str = "auto",
        photos: str | os.PathLike[str] | None = None,
        never: str | os.PathLike[str] | None = None,
        dry_run: bool = False,
        progress: Callable[[JobState], object] | None = None,
    ) -> ReleaseOutcome:
        """Release positions of an archive that was pushed: of what several photos of the place see, and nothing else.

        The server matches and shows evidence; this device checks it, writes what it lets go into the archive, and sends
        it. The other arguments are those of ``sfumato.device.release_positions``; ``secret`` is by default the
        client's. New photos at the place let more of old ones go: run it again then.

        Raises ServerError, FileError if the positions are not on this device, RecipeError for another key.
        """
        with open_images(archive) as images:
            names = {self.names.image_id(self.id, name): name for name in images}
        job = self._start_job("evidence", {"own": sorted(names), "pairs": pairs})
        job.wait(progress)
        with TemporaryDirectory(prefix="sfumato-") as folder:
            path = Path(folder) / "evidence"
            with open(path, "xb") as file:
                self.transport.download(f"{self._path}/evidence/{job.state.id}", file, LARGEST_EVIDENCE)
            evidence, received = name_evidence(load_evidence(path), names), path.stat().st_size
        words = {
            "secret": self.names.secret if secret is None else secret,
            "photos": photos,
            "never": never,
            "dry_run": dry_run,
        }
        try:
            outcome = release_positions(archive, evidence, params, place=self.name, **words)  # type: ignore[arg-type]
        except RecipeError:  # sealed with the device key itself
            outcome = release_positions(archive, evidence, params, **words)  # type: ignore[arg-type]
        outcome.bytes = received + (0 if dry_run else self.push(archive).bytes)
        return outcome

    def _start_job(self, kind: str, body: Mapping[str, Any], request_key: str | None = None) -> MapJob:
        headers = {"Idempotency-Key": request_key or secrets.token_hex(16)}
        facts = self.transport.ask("POST", f"{self._path}/{kind}", body=body, headers=headers)
        return MapJob(self.transport, self.names, read_state(facts, self.names))

    def prepare(self) -> bool:
        """Make the place if it is missing; return whether it is new.

        Raises ServerError if the key may not make it, or may not upload to it: to be asked before long work.
        """
        try:
            self._ask_missing([])
        except ServerError as problem:
            if problem.status != 404:
                raise
            try:
                self.create()
            except ServerError as refusal:
                raise ServerError(
                    f"there is no place {self.title!r} at {self.transport.url}, and this key may not make it: ask an "
                    f"administrator for it (sfumato server place create id:{self.id})",
                    status=404,
                    code="not_found",
                ) from refusal
            return True
        return False

    def _ask_missing(self, body: list[dict[str, str]]) -> dict[str, Any]:
        return read_mapping(self.transport.ask("POST", f"{self._path}/images:missing", body=body))

    def _put(self, name: str, key: str, content: bytes, words: Mapping[str, str | None], kind: str = MEDIA_TYPE) -> int:
        path = f"{self._path}/images/{key}"
        try:
            self.transport.ask("PUT", path, content=content, params=words, headers={"Content-Type": kind})
        except ServerError as problem:
            raise ServerError(
                f"image {name!r:.80}: {problem}", status=problem.status, code=problem.code, retry=problem.retry
            ) from problem
        return len(content)

    # --- maps

    def build_map(
        self,
        *,
        pairs: str = "auto",
        mapper: str = "auto",
        tries: int = 4,
        seed: int = 0,
        refine_intrinsics: bool = False,
        shared_camera: bool = False,
        make_current: bool = True,
        request_key: str | None = None,
    ) -> MapJob:
        """Let the server make a map of all images of the place, and return the job; ``MapJob.wait`` waits for it.

        ``pairs``: ``auto``, ``exhaustive``, ``sequential:10`` or ``votes:20``; the others as in ``MapParams``. The same
        ``request_key`` again gives the same job. Raises ServerError.
        """
        body = {
            "pairs": pairs, "mapper": mapper, "tries": tries, "seed": seed, "refine_intrinsics": refine_intrinsics,
            "shared_camera": shared_camera, "make_current": make_current,
        }  # fmt: skip
        return self._start_job("maps", body, request_key)

    def maps(self) -> list[MapSummary]:
        """Return the maps of the place, the newest first; raises ServerError."""
        return [read_map(facts, self.names) for facts in read_items(self.transport.ask("GET", f"{self._path}/maps"))]

    def choose_map(self, number: int) -> None:
        """Let queries meet another map of the place; raises ServerError."""
        self.transport.ask("PATCH", self._path, body={"current_map": number})

    def pull(
        self, folder: str | os.PathLike[str], number: int | None = None, *, overwrite: bool = False,
        most_bytes: int = LARGEST_BUNDLE,
    ) -> MapSummary:  # fmt: skip
        """Fetch a map into a folder, by default the one that queries meet, to localize without the server.

        The folder is a map as ``build_map`` of the library writes it, and its images have people's names, as far as
        this device knows them. It appears whole or not at all; with ``overwrite`` it takes the place of another map.

        Raises ServerError, and FileError for a bundle that is damaged or hostile and a folder that is taken.
        """
        found = self.maps()
        match = [one for one in found if (one.is_current if number is None else one.number == number)]
        if not match:
            some = (
                "no map yet: make one with build_map (sfumato map --server)" if number is None else f"no map {number}"
            )
            raise ServerError(f"{self.title!r} has {some}", status=404, code="no_map")
        with new_model_folder(folder, overwrite=overwrite) as (work, model):
            path = work / "bundle.tar"
            with open(path, "xb") as file:
                self.transport.download(f"{self._path}/maps/{match[0].number}/bundle", file, most_bytes)
            with open(path, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != match[0].digest:
                    raise FileError("the bundle of the map was damaged on the way: pull it again")
                file.seek(0)
                unpack(file, model, most_bytes)
            name_images(model, self.names.image_names(self.id))
        return match[0]

    # --- queries

    def localize(
        self,
        features: ConcealedFeatures,
        camera: Camera | None = None,
        params: LocalizeParams | None = None,
        *,
        keypoints: NDArray[np.float32] | None = None,
        candidates: int | None = None,
    ) -> Localization:
        """Find where a picture was taken, against the current map of the place; the server keeps nothing of it.

        With the ``keypoints`` (N, 2 or more) of its rows the pose is solved here: codes alone go to the server, and the
        points of the map that they match come back. Without, the features hold their positions, the server gets these
        and solves; of ``params`` it takes ``max_error_px``, ``min_inliers`` and ``seed``. Without a ``camera`` the
        focal length that the features have counts, and is estimated if they have none. ``candidates``: compare with
        this many images of the map. The server says how many images it compared, not which: ``candidates`` of the
        answer has empty texts in their place.

        Raises TypeError for features that are not concealed and InputError for features without positions, before
        anything is sent, and ServerError.
        """
        need_concealed("the query", features)
        if keypoints is not None:
            matches = self.find_landmarks(features, candidates=candidates)
            focal, size = features.focal_px, features.image_size
            given = camera or (None if focal is None or size is None else default_camera(size, focal))
            guess = given or default_camera(size or (1, 1))
            return solve_pose(matches, keypoints, guess, params, guessed_camera=given is None)
        known_keypoints(features)
        params = params or LocalizeParams()
        _refuse_local_params(params)
        words: dict[str, Any] = {
            **camera_words(features, camera),
            "candidates": candidates,
            "max_error_px": params.max_error_px,
            "min_inliers": params.min_inliers,
            "seed": params.seed,
        }
        return read_localization(self._query("localize", features, words), self.names)

    def find_landmarks(self, features: ConcealedFeatures, *, candidates: int | None = None) -> LandmarkMatches:
        """Return the points of the current map that rows of a query match: its codes are sent, and nothing else.

        Raises TypeError for features that are not concealed, and ServerError.
        """
        need_concealed("the query", features)
        return read_landmarks(self._query("landmarks", features.without_positions(), {"candidates": candidates}))

    def _query(self, kind: str, features: ConcealedFeatures, words: Mapping[str, Any]) -> Any:
        frame, headers = frame_of("the query", features), {"Content-Type": MEDIA_TYPE}
        return self.transport.ask("POST", f"{self._path}/{kind}", content=frame, params=words, headers=headers)

    def localize_archive(
        self,
        queries: Source,
        cameras: Mapping[str, Camera] | None = None,
        params: LocalizeParams | None = None,
        *,
        candidates: int | None = None,
        listable: bool = False,
        progress: Progress = identity,
    ) -> Localizations:
        """Localize the images of an archive one after the other, as ``sfumato.localize`` does with a map on disk.

        Positions that stay on this device, in the file beside the archive, stay here, and poses are solved here.
        ``listable`` leaves out, and names, the queries that no list of poses can hold. A query that is damaged does not
        stop the others.

        Raises InputError for cameras of none of the queries or of other sizes, TypeError and ServerError as
        ``localize`` does.
        """
        own = own_keypoints(queries) if isinstance(queries, str | os.PathLike) else None

        def answer(name: str, query: ConcealedFeatures, camera: Camera, is_guessed: bool) -> Localization:
            keypoints = None if own is None or query.is_shown.all() else own(name, query)
            given = None if is_guessed else camera
            return self.localize(query, given, params, keypoints=keypoints, candidates=candidates)

        with open_images(queries) as images:
            return localize_each(images, cameras or {}, answer, listable=listable, progress=progress)


def _refuse_local_params(params: LocalizeParams) -> None:
    """Raise InputError for settings that a server does not take."""
    usual = LocalizeParams()
    names = [name for name in ("max_false_alarms", "ratio", "max_distance", "threads")
             if getattr(params, name) != getattr(usual, name)]  # fmt: skip
    if names:
        raise InputError(f"{', '.join(names)}: a server has its own; leave it out, or pull the map and localize here")
