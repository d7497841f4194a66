# SPDX-License-Identifier: Apache-2.0
"""Routes of releases: what a server shows of matches, and the positions that devices release against it."""

import asyncio
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from sfumato.server import blobs, jobs, places
from sfumato.server.problems import Refusal, too_large
from sfumato.server.routes.jobs import JobAnswer, JobId
from sfumato.server.routes.maps import PAIRS, submit_job
from sfumato.server.routes.places import ImageName, PlaceId, StoredImage, refuse_other_types, too_many_uploads
from sfumato.server.service import KeyedRoute, grant_for, limit_rate, scope, service_of
from sfumato.store.frames import RELEASE_TYPE, RELEASED, decode_release

router = APIRouter(prefix="/v1/places/{place}", route_class=KeyedRoute, tags=["releases"])


class EvidenceRequest(BaseModel):
    """Images that the asking device has: it is shown what matches theirs."""

    model_config = ConfigDict(extra="forbid")
    own: Annotated[list[Annotated[str, Field(pattern=places.pattern_of(places.IMAGE))]], Field(max_length=10_000)]
    pairs: Annotated[str, Field(pattern=PAIRS)] = "auto"


@router.post("/evidence", status_code=202, responses={200: {"model": JobAnswer}}, **scope("upload"))
async def ask_for_evidence(
    request: Request,
    response: Response,
    place: PlaceId,
    body: EvidenceRequest,
    key: Annotated[str, Header(alias="Idempotency-Key", min_length=8, max_length=128)],
) -> JobAnswer:
    """Queue a job that matches the images of a place, for a device that may release positions then.

    ``own``: images that the device has; others of the place are shown to it where they match these. The same
    Idempotency-Key again gives the same job. Who may upload here may follow and cancel such a job.
    """
    service = service_of(request)
    service.need_space()
    words = {"kind": jobs.EVIDENCE_JOB, "images": None, "own": body.own, "pairs": body.pairs}
    job, is_new = await asyncio.to_thread(submit_job, service, place, words, key)
    response.status_code = 202 if is_new else 200
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return JobAnswer.of(job)


@router.get(
    "/evidence/{job}",
    response_class=FileResponse,
    responses={200: {"content": {"application/octet-stream": {}}}},
    **scope("upload"),
)
async def read_evidence(request: Request, place: PlaceId, job: JobId) -> FileResponse:
    """Return what a job found: matched rows, and bits and tags of such rows of other devices. Kept for an hour,
    the last five of a place.

    Any key that may upload here can read it. Without the device key it tells which images overlap, and no bit of it can
    be read.
    """
    service = service_of(request)
    row = await asyncio.to_thread(jobs.read_job, service.store, job)
    path = blobs.evidence_path(service.data, place, job)
    if row.place != place or not path.is_file():
        raise places.Missing(f"no evidence {job}")
    return FileResponse(path, media_type="application/octet-stream")


@router.put(
    "/images/{name}/positions",
    openapi_extra={
        "x-scope": "upload",
        "requestBody": {
            "required": True,
            "content": {RELEASE_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        },
    },
)
async def put_positions(request: Request, place: PlaceId, name: ImageName) -> StoredImage:
    """Take positions of rows of an image, 12 bytes each: row uint32, x and y float32. A row keeps its position.

    They are added to those that came before, all of them or none. The server cannot tell whether they are true: who may
    upload here, and knows the name of an image, can spoil its part of the map, and learns nothing by it.
    """
    service, grant = service_of(request), await grant_for(request)
    limit_rate(service.upload_rate, grant)
    refuse_other_types(request, RELEASE_TYPE)
    service.need_space()
    row = await asyncio.to_thread(places.read_image_row, service.store, place, name)
    body, most = bytearray(), RELEASED.itemsize * row.count
    with service.uploads.take(grant.key, too_many_uploads()):
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise too_large("the positions of this image", most)
    rows, positions = decode_release(bytes(body), row.count)
    if row.size is not None and ((positions < -0.5) | (positions > row.size)).any():
        raise Refusal(422, "bad_release", "some of these positions are outside the image")
    await asyncio.to_thread(places.release, service.store, place, name, rows, positions)
    return StoredImage(**asdict(await asyncio.to_thread(places.read_image_row, service.store, place, name)))
