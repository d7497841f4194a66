# SPDX-License-Identifier: Apache-2.0
"""Routes of places and their images: what a device uploads, and what the server says of it."""

import asyncio
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path as FilePath
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from sfumato.server import blobs, jobs, places
from sfumato.server.access import ADMIN, Grant
from sfumato.server.problems import ON_THE_DEVICE, Refusal, too_large
from sfumato.server.service import ANY, KeyedRoute, Service, grant_for, limit_rate, scope, service_of, until
from sfumato.store.frames import MEDIA_TYPE, decode_frame, frame_digest
from sfumato.types.arrays import checked_focal
from sfumato.types.scene import Camera

router = APIRouter(prefix="/v1/places", route_class=KeyedRoute, tags=["places"])

LISTED_PLACES, MOST_JOBS = 1000, 100_000
CANCEL_SECONDS = 15.0
"""Time in which the process of a cancelled job ends: it is asked, and killed some seconds later."""
PlaceId = Annotated[str, Path(pattern=places.pattern_of(places.PLACE), description="An opaque id.")]
ImageName = Annotated[str, Path(pattern=places.pattern_of(places.IMAGE), description="An opaque name.")]


class PlaceAnswer(BaseModel):
    """A place as the server knows it."""

    id: str
    space: str | None = Field(description="What all features of the place have in common; null before the first.")
    images: int
    bytes: int
    made: float
    current_map: str | None


class PlaceList(BaseModel):
    """Places that a key may read by id, and where the next list begins."""

    items: list[PlaceAnswer]
    next: str | None


class StoredImage(BaseModel):
    """An image as the server knows it: numbers, no arrays."""

    name: str
    digest: str
    count: int
    released: int = Field(description="Rows whose positions the server has.")
    bytes: int
    size: tuple[int, int] | None
    recipe: str
    extractor: str
    camera: str | None
    focal_px: float | None
    made: float


class ImageList(BaseModel):
    """Images by name, and where the next list begins."""

    items: list[StoredImage]
    next: str | None


class ImageDigest(BaseModel):
    """The name of an image and the digest of its frame."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(pattern=places.pattern_of(places.IMAGE))
    digest: str = Field(pattern="^[0-9a-f]{64}$")


class MissingList(BaseModel):
    """Names that the server does not have, and those it has with other content.

    ``released``: of those it has without positions, how many were released since.
    """

    missing: list[str]
    conflicting: list[str]
    released: dict[str, int]


class MapChoice(BaseModel):
    """The map that queries meet from now on."""

    model_config = ConfigDict(extra="forbid")
    current_map: int = Field(ge=1, le=2**31, description="The number of a map of this place.")


@router.get("", **scope(ANY))
async def list_places(
    request: Request,
    after: Annotated[str, Query(max_length=64)] = "",
    limit: Annotated[int, Query(ge=1, le=LISTED_PLACES)] = LISTED_PLACES,
) -> PlaceList:
    """List the places that this key may read, by id; an administrator's key lists all."""
    grant, store = await grant_for(request), service_of(request).store
    rows = await asyncio.to_thread(places.page_of_places, store, listed_places(grant), after, limit)
    items = [PlaceAnswer(**asdict(row)) for row in rows]
    return PlaceList(items=items, next=items[-1].id if len(items) == limit else None)


def listed_places(grant: Grant) -> frozenset[str] | None:
    """Return the places that are listed to the holder of a key; None for all."""
    return None if grant.allows(ADMIN) else grant.places_of("read")


@router.put("/{place}", status_code=201, responses={200: {"model": PlaceAnswer}}, **scope(ADMIN))
async def make_place(request: Request, response: Response, place: PlaceId) -> PlaceAnswer:
    """Make a place; once more is no change."""
    service = service_of(request)
    is_new = await asyncio.to_thread(places.make_place, service.store, place, service.limits.places)
    response.status_code = 201 if is_new else 200
    return PlaceAnswer(**asdict(await asyncio.to_thread(places.read_place, service.store, place)))


@router.get("/{place}", **scope("read"))
async def read_place(request: Request, place: PlaceId) -> PlaceAnswer:
    """Say what there is at a place."""
    return PlaceAnswer(**asdict(await asyncio.to_thread(places.read_place, service_of(request).store, place)))


@router.patch("/{place}", **scope("map"))
async def choose_map(request: Request, place: PlaceId, choice: MapChoice) -> PlaceAnswer:
    """Let queries meet another map of the place."""
    store = service_of(request).store
    await asyncio.to_thread(places.choose_map, store, place, choice.current_map)
    return PlaceAnswer(**asdict(await asyncio.to_thread(places.read_place, store, place)))


@router.delete("/{place}", status_code=204, **scope(ADMIN))
async def delete_place(request: Request, place: PlaceId) -> Response:
    """Remove a place with its images, maps and jobs. Copies in backups of the disk are not reached.

    A job that is at work there is cancelled first, which takes some seconds.
    """
    await remove_place(service_of(request), place)
    return Response(status_code=204)


async def remove_place(service: Service, place: str) -> None:
    """Remove a place; its jobs are cancelled first, so that no process of one writes files again.

    Raises Missing, and Conflict if a job does not end in time.
    """

    async def is_idle() -> bool:
        rows = await asyncio.to_thread(jobs.list_jobs, service.store, place, jobs.RUNNING)
        return not rows

    await asyncio.to_thread(_cancel_jobs, service, place)
    await until(is_idle, CANCEL_SECONDS)
    await asyncio.to_thread(places.delete_place, service.store, place)


def _cancel_jobs(service: Service, place: str) -> None:
    for state in (jobs.QUEUED, jobs.RUNNING):
        for job in jobs.list_jobs(service.store, place, state, MOST_JOBS):
            with suppress(places.Conflict):  # it has ended meanwhile
                jobs.cancel(service.store, job.id)


@router.post("/{place}/images:missing", **scope("upload"))
async def missing_images(request: Request, place: PlaceId, images: list[ImageDigest]) -> MissingList:
    """Tell a device which of its images the server does not have."""
    service = service_of(request)
    if len(images) > service.limits.names_at_once:
        raise Refusal(413, "too_many", f"ask for {service.limits.names_at_once} names at once at most")
    digests = {image.name: image.digest for image in images}
    found = await asyncio.to_thread(places.missing_images, service.store, place, digests)
    return MissingList(missing=found[0], conflicting=found[1], released=found[2])


@router.put(
    "/{place}/images/{name}",
    status_code=201,
    responses={200: {"model": StoredImage}},
    openapi_extra={
        "x-scope": "upload",
        "requestBody": {"required": True, "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}},
    },
)
async def put_image(
    request: Request,
    response: Response,
    place: PlaceId,
    name: ImageName,
    camera: Annotated[str | None, Query(max_length=500, description="MODEL,width,height,parameters")] = None,
    focal_px: Annotated[float | None, Query(gt=0, lt=1e7, description="Focal length in pixels.")] = None,
) -> StoredImage:
    """Take the frame of one image; another one for a known name is refused.

    The same frame again changes nothing but the camera: a camera or a focal length that comes along replaces both.
    """
    service, grant = service_of(request), await grant_for(request)
    limit_rate(service.upload_rate, grant)
    refuse_other_types(request)
    service.need_space()
    await asyncio.to_thread(places.read_place, service.store, place)
    taken = None if camera is None else places.parse_camera(camera)
    with service.uploads.take(grant.key, too_many_uploads()):
        upload = blobs.upload_path(service.data, place)
        try:
            size = await blobs.receive(request.stream(), upload, service.limits.image_bytes)
            is_new = await asyncio.to_thread(_keep, service, place, name, upload, size, taken, focal_px)
        except blobs.TooLarge as cause:
            raise too_large("the frame of an image", service.limits.image_bytes) from cause
        except FileNotFoundError as cause:  # removed with the place
            raise places.Missing(f"no place {place:.64}") from cause
        finally:
            upload.unlink(missing_ok=True)  # moved away if it was kept
    response.status_code = 201 if is_new else 200
    return StoredImage(**asdict(await asyncio.to_thread(places.read_image_row, service.store, place, name)))


def too_many_uploads() -> Refusal:
    """Return the refusal of an upload for which there is no room."""
    return Refusal(429, "uploads", "too many uploads are under way, of all keys or of this one: try again in a second",
                   retry=True, headers={"Retry-After": "1"})  # fmt: skip


def _keep(
    service: Service, place: str, name: str, upload: FilePath, size: int, camera: Camera | None, focal: float | None
) -> bool:
    """Check an upload, and move it to its place; return whether it is new. Raises FileNotFoundError if it is gone."""
    data = upload.read_bytes()
    features = decode_frame(data, limits=service.limits.frame)
    if camera is not None and features.image_size not in (None, (camera.width, camera.height)):
        raise Refusal(422, "not_valid", f"the camera is {camera.width} x {camera.height}, the image is not")
    if not features.is_shown.all() and features.tags is None:
        raise Refusal(422, "bad_frame", "this frame has neither positions nor tags, as queries do: nothing could be "
                      "released of it")  # fmt: skip
    features, digest = replace(features, focal_px=checked_focal(focal)), frame_digest(data)
    if not places.check_image(service.store, place, name, digest, features, service.limits.images):
        if camera is not None or focal is not None:
            places.change_camera(service.store, place, name, camera, features.focal_px)
        return False
    blobs.keep_frame(service.data, place, digest, upload)
    try:
        return places.add_image(
            service.store, place, name, digest, size, features, service.limits.images, camera, features.focal_px
        )
    except places.Missing:  # the place was removed meanwhile
        blobs.drop_frame(service.data, place, digest)
        raise


def refuse_other_types(request: Request, media_type: str = MEDIA_TYPE) -> None:
    """Refuse bodies that do not say that they are frames, or what else is wanted."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != media_type:
        sentence = f"the server takes {media_type} alone, no pictures: {ON_THE_DEVICE}"
        raise Refusal(415, "pictures_are_not_taken", sentence)
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Refusal(415, "not_compressed", "send frames as they are: bits of a seal cannot be compressed")


@router.get("/{place}/images", **scope("read"))
async def list_images(
    request: Request,
    place: PlaceId,
    after: Annotated[str, Query(max_length=64)] = "",
    limit: Annotated[int, Query(ge=1, le=places.LISTED)] = 100,
) -> ImageList:
    """List images by name."""
    rows = await asyncio.to_thread(places.list_images, service_of(request).store, place, after, limit)
    items = [StoredImage(**asdict(row)) for row in rows]
    return ImageList(items=items, next=items[-1].name if len(items) == limit else None)


@router.get("/{place}/images/{name}", **scope("read"))
async def read_image(request: Request, place: PlaceId, name: ImageName) -> StoredImage:
    """Say what the server knows of an image."""
    return StoredImage(**asdict(await asyncio.to_thread(places.read_image_row, service_of(request).store, place, name)))


@router.get(
    "/{place}/images/{name}/frame",
    response_class=FileResponse,
    responses={200: {"content": {MEDIA_TYPE: {}}}},
    **scope("export"),
)
async def read_frame(request: Request, place: PlaceId, name: ImageName) -> FileResponse:
    """Return the frame of an image, the bytes as they came."""
    service = service_of(request)
    row = await asyncio.to_thread(places.read_image_row, service.store, place, name)
    path = blobs.frame_path(service.data, place, row.digest)
    return FileResponse(path, media_type=MEDIA_TYPE, headers={"ETag": f'"{row.digest}"'})
