# SPDX-License-Identifier: Apache-2.0
"""Routes of maps and localization: jobs that make maps, what a map holds, and where a query was taken."""

import asyncio
import json
import time
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from sfumato.server import blobs, jobs, metrics, places
from sfumato.server.engines import QueueFull
from sfumato.server.problems import Refusal, too_large
from sfumato.server.routes.jobs import JobAnswer
from sfumato.server.routes.places import PlaceId, refuse_other_types
from sfumato.server.service import KeyedRoute, Service, grant_for, limit_rate, scope, service_of
from sfumato.store.frames import MEDIA_TYPE, read_header

router = APIRouter(prefix="/v1/places/{place}", route_class=KeyedRoute, tags=["maps"])

MapNumber = Annotated[int, Path(ge=1, le=2**31)]
PAIRS = r"^(auto|exhaustive|(sequential|votes):[1-9][0-9]{0,3})$"


class MapRequest(BaseModel):
    """How a map is to be made; ``images`` names some of a place, null means all."""

    model_config = ConfigDict(extra="forbid")
    images: list[Annotated[str, Field(pattern=places.pattern_of(places.IMAGE))]] | None = None
    pairs: Annotated[str, Field(pattern=PAIRS)] = "auto"
    mapper: Literal["auto", "incremental", "global"] = "auto"
    tries: Annotated[int, Field(ge=1, le=20)] = 4
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    refine_intrinsics: bool = False
    shared_camera: bool = False
    make_current: bool = True


class MapAnswer(BaseModel):
    """A map: its figures, what speaks against it, and the digest of its bundle."""

    id: str
    number: int
    facts: dict[str, Any]
    digest: str
    made: float
    is_current: bool


class MapList(BaseModel):
    """Maps of a place, the newest first."""

    items: list[MapAnswer]


class MapCameras(BaseModel):
    """Cameras of a map by image: where they stood, and how they were turned."""

    cameras: dict[str, dict[str, Any]]


class LocalizeAnswer(BaseModel):
    """Where a query was taken, or why that is not known. ``pose``: qw qx qy qz tx ty tz, camera from world."""

    localized: bool
    pose: list[float] | None
    inliers: int
    matches: int
    candidates: int
    map: int
    reason: str
    doubt: str
    ms: dict[str, float]


@router.post("/maps", status_code=202, responses={200: {"model": JobAnswer}}, **scope("map"))
async def make_map(
    request: Request,
    response: Response,
    place: PlaceId,
    body: MapRequest,
    key: Annotated[str, Header(alias="Idempotency-Key", min_length=8, max_length=128)],
) -> JobAnswer:
    """Queue a job that makes a map; the same Idempotency-Key again gives the same job."""
    service = service_of(request)
    service.need_space()
    job, is_new = await asyncio.to_thread(submit_map, service, place, body, key)
    response.status_code = 202 if is_new else 200
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return JobAnswer.of(job)


def submit_map(service: Service, place: str, body: MapRequest, key: str) -> tuple[jobs.Job, bool]:
    """Queue a job that makes a map of what a request names; return it with whether it is new."""
    return submit_job(service, place, body.model_dump(), key)


def submit_job(service: Service, place: str, request: dict[str, Any], key: str) -> tuple[jobs.Job, bool]:
    """Queue a job for the images that a request names, by default all; return it with whether it is new."""
    images, after = list[places.ImageRow](), ""
    if request["images"] is None:
        while rows := places.list_images(service.store, place, after):
            images += rows
            after = rows[-1].name
    else:
        images = [places.read_image_row(service.store, place, name) for name in sorted(set(request["images"]))]
    names = [row.name for row in images]
    if len(names) > service.limits.images_of_map:
        raise Refusal(422, "too_many", f"a map may have {service.limits.images_of_map} images on this server")
    rule, _, number = request["pairs"].partition(":")
    pairs = len(names) * int(number) if number else len(names) * (len(names) - 1) // 2
    if rule != "auto" and pairs > service.limits.pairs_of_map:
        raise Refusal(422, "too_many", f"a job may compare {service.limits.pairs_of_map} pairs: choose pairs votes:20")
    if request["images"] is not None and not names:
        raise Refusal(422, "not_valid", "images: the list is empty; name images, or leave it out to map all")
    if not names:
        places.read_place(service.store, place)
        raise Refusal(409, "no_images", "this place has no images: sfumato push uploads them")
    facts = {**request, "images": names, "every_image": request["images"] is None}
    if "own" not in request and any(row.count for row in images) and not any(row.released for row in images):
        sentence = "no position of these images was released, and a map is made of such: push them again, which does it"
        raise Refusal(409, "no_positions", sentence)
    if "own" in request:
        facts["own"] = sorted(set(request["own"]) & set(names))
        if not facts["own"]:
            raise Refusal(422, "not_valid", "own: none of these images is at this place: push them first")
    return jobs.submit(service.store, place, facts, key, service.limits.job_queue, service.limits.jobs_of_place)


@router.get("/maps", **scope("read"))
async def list_maps(request: Request, place: PlaceId) -> MapList:
    """List the maps of a place."""
    rows = await asyncio.to_thread(places.list_maps, service_of(request).store, place)
    return MapList(items=[MapAnswer(**asdict(row)) for row in rows])


@router.get("/maps/{number}", **scope("read"))
async def read_map(request: Request, place: PlaceId, number: MapNumber) -> MapAnswer:
    """Say what a map holds."""
    return MapAnswer(**asdict(await asyncio.to_thread(places.read_map, service_of(request).store, place, number)))


@router.get(
    "/maps/{number}/bundle",
    response_class=FileResponse,
    responses={200: {"content": {"application/x-tar": {}}}},
    **scope("export"),
)
async def read_bundle(request: Request, place: PlaceId, number: MapNumber) -> FileResponse:
    """Return a map as a tar file: a COLMAP model with landmarks, to localize offline."""
    row, path = await _part(request, place, number, blobs.BUNDLE)
    return FileResponse(path, media_type="application/x-tar", headers={"ETag": f'"{row.digest}"'})


@router.get(
    "/maps/{number}/points",
    response_class=FileResponse,
    responses={200: {"content": {"application/octet-stream": {}}}},
    **scope("read"),
)
async def read_points(request: Request, place: PlaceId, number: MapNumber) -> FileResponse:
    """Return the points of a map, 16 bytes each: x, y, z float32, images uint16, error in 1/100 pixel uint16."""
    _, path = await _part(request, place, number, blobs.POINTS)
    return FileResponse(path, media_type="application/octet-stream")


@router.get("/maps/{number}/cameras", **scope("poses"))
async def read_cameras(request: Request, place: PlaceId, number: MapNumber) -> MapCameras:
    """Return where the cameras of a map stood: where people were."""
    _, path = await _part(request, place, number, blobs.CAMERAS)
    return MapCameras(cameras=json.loads(await asyncio.to_thread(path.read_text)))


async def _part(request: Request, place: str, number: int, part: str) -> tuple[places.MapRow, Any]:
    service = service_of(request)
    row = await asyncio.to_thread(places.read_map, service.store, place, number)
    return row, blobs.map_path(service.data, place, row.id, part)


@router.post(
    "/localize",
    openapi_extra={
        "x-scope": "localize",
        "requestBody": {"required": True, "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}},
    },
)
async def localize(
    request: Request,
    place: PlaceId,
    camera: Annotated[str | None, Query(max_length=500, description="MODEL,width,height,parameters")] = None,
    focal_px: Annotated[float | None, Query(gt=0, lt=1e7, description="Focal length in pixels.")] = None,
    candidates: Annotated[
        int | None,
        Query(
            ge=1,
            le=1000,
            description="Images of the map to compare with; by default all of up to 20, else 20 by votes.",
        ),
    ] = None,
    max_error_px: Annotated[float, Query(gt=0, lt=1000)] = 12.0,
    min_inliers: Annotated[int, Query(ge=4, le=10_000)] = 20,
    seed: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    deadline_ms: Annotated[int | None, Query(ge=1, le=600_000)] = None,
) -> LocalizeAnswer:
    """Find where a picture was taken, from its concealed features and their positions. Nothing of the query is kept."""
    if camera is not None:
        places.parse_camera(camera)
    words = {
        "kind": "localize", "camera": camera, "focal_px": focal_px, "candidates": candidates,
        "params": {"max_error_px": max_error_px, "min_inliers": min_inliers, "seed": seed},
    }  # fmt: skip
    facts = await _ask_engine(request, place, words, deadline_ms, has_positions=True)
    metrics.OUTCOMES.labels("localized" if facts["localized"] else "not localized").inc()
    return LocalizeAnswer(**facts)


class LandmarksAnswer(BaseModel):
    """Points of a map that rows of a query match: all that a device needs to solve the pose with its own positions.

    Match i is of row ``rows[i]`` of the query with the point ``positions[landmarks[i]]``, at ``distances[i]`` bits.
    """

    rows: list[int]
    landmarks: list[int]
    positions: list[tuple[float, float, float]]
    distances: list[float]
    candidates: int
    map: int
    ms: dict[str, float]


@router.post(
    "/landmarks",
    openapi_extra={
        "x-scope": "landmarks",
        "requestBody": {"required": True, "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}},
    },
)
async def find_landmarks(
    request: Request,
    place: PlaceId,
    candidates: Annotated[int | None, Query(ge=1, le=1000, description="Images of the map to compare with.")] = None,
    deadline_ms: Annotated[int | None, Query(ge=1, le=600_000)] = None,
) -> LandmarksAnswer:
    """Find points of the map that match a query without positions; its device solves the pose. Nothing is kept.

    Without the device key, or bits of this place out of frames (``export``) or evidence (``upload``), nobody makes bits
    that match: such a client learns how many images were compared, and no point. With either, each query tells where in
    the map up to ``landmarks_of_query`` of its rows lie: anyone who has photos of all of a place gets its map piece by
    piece, as fast as the rate of queries allows.
    """
    most = service_of(request).limits.landmarks_of_query
    words = {"kind": "landmarks", "candidates": candidates, "most": most}
    facts = await _ask_engine(request, place, words, deadline_ms, has_positions=False)
    metrics.OUTCOMES.labels("landmarks" if facts["rows"] else "no landmarks").inc()
    return LandmarksAnswer(**facts)


async def _ask_engine(
    request: Request, place: str, words: dict[str, Any], deadline_ms: int | None, *, has_positions: bool
) -> dict[str, Any]:
    """Let an engine work on the query in the body of a request, and return its answer."""
    started, service = time.perf_counter(), service_of(request)
    grant = await grant_for(request)
    limit_rate(service.localize_rate, grant)
    refuse_other_types(request)
    if words["candidates"] is not None and words["candidates"] > service.limits.candidates:
        raise Refusal(422, "too_many", f"a query may be compared with {service.limits.candidates} images")
    with service.queries.take(grant.key, QueueFull()):  # before its body takes memory
        frame = await _receive_query(request, service)
        row = await asyncio.to_thread(_map_for, service, place, frame, has_positions=has_positions)
        seconds = min(service.limits.query_seconds, (deadline_ms or 600_000) / 1000)
        facts = await service.engines.localize({**words, "place": place, "map": row.id}, frame, seconds)
    if "error" in facts:
        raise _refusal_of(facts)
    for stage, spent in facts["ms"].items():
        metrics.STAGES.labels(stage).observe(spent / 1000)
    facts["ms"]["all"] = round(1000 * (time.perf_counter() - started), 1)
    return {**facts, "map": row.number}


async def _receive_query(request: Request, service: Service) -> bytes:
    frame, most = bytearray(), service.limits.query_bytes
    async for chunk in request.stream():
        frame += chunk
        if len(frame) > most:
            raise too_large("the frame of a query", most)
    return bytes(frame)


def _map_for(service: Service, place: str, frame: bytes, *, has_positions: bool) -> places.MapRow:
    """Return the map that a query meets; refuses what is no frame, of another space, or has more or less than asked."""
    header = read_header(frame, limits=service.limits.frame)
    if header.count and header.has_positions != has_positions:
        sentence = (
            "this query has no positions, and this server is asked to solve its pose: ask for landmarks, and solve it "
            "on the device"
            if has_positions
            else "this query holds positions, which a server need not see to find landmarks: leave them out"
        )
        raise Refusal(422, "not_valid", sentence)
    if header.has_tags:
        raise Refusal(422, "not_valid", "this query holds tags, which say which photo it is: they are for uploads")
    known = places.read_place(service.store, place)
    try:
        row = places.read_map(service.store, place)
    except places.Missing as cause:
        raise Refusal(409, "no_map", "this place has no map yet: sfumato map --server makes one") from cause
    places.refuse_other_space(known.space, header)
    return row


def _refusal_of(facts: dict[str, Any]) -> Refusal:
    metrics.OUTCOMES.labels("refused").inc()
    if facts["kind"] == "InputError":
        return Refusal(422, "not_valid", facts["error"])
    if facts["kind"] == "FrameError":
        return Refusal(422, "bad_frame", facts["error"])
    if facts["kind"] == "DamagedMap":
        return Refusal(500, "damaged_map", facts["error"])
    return Refusal(500, "internal", "the query could not be worked on: the server's log says why", retry=True)
