# SPDX-License-Identifier: Apache-2.0
"""Pages for people: the sign-in, places, maps in 3D, images as the server sees them, and jobs.

They show what the API answers to the same key, and change things by the same functions.
"""

import asyncio
import secrets
import shutil
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import FileResponse, RedirectResponse, Response

from sfumato.server import access, jobs, places
from sfumato.server.database import Store
from sfumato.server.guard import clear_modules
from sfumato.server.routes.drawing import (
    draw_dots,
    first_bits,
    first_numbers,
    threat_sentence,
)
from sfumato.server.routes.html import (
    Page,
    Visit,
    post_of,
    read_form,
    refuse_other_sites,
    render,
    static_files,
    visit_of,
)
from sfumato.server.routes.jobs import JobId
from sfumato.server.routes.maps import MapRequest, submit_map
from sfumato.server.routes.operations import SEES
from sfumato.server.routes.places import ImageName, PlaceId, listed_places, remove_place
from sfumato.server.service import COOKIE, Service, check_job, service_of
from sfumato.types.recipe import Recipe

router = APIRouter(route_class=Page)

RECENT_JOBS, LISTED_JOBS, LISTED_PLACES, LISTED_IMAGES = 8, 100, 200, 100
FAILURES_PER_SECOND, FAILURES_AT_ONCE = 0.5, 20
FAILURES = "sign-in"
STAGES = {
    "collect": "Collect the images",
    "match": "Match pairs of images",
    "verify": "Verify the matches",
    "map": "Build the map",
    "landmarks": "Gather landmarks",
    "publish": "Publish the result",
}
"""Stages of a job in words."""

sign_in_failures = access.RequestRate(FAILURES_PER_SECOND, FAILURES_AT_ONCE)
"""Failures of all sign-ins together: addresses of clients are not kept. A key that is valid is never kept waiting."""


@router.get("/static/{path:path}")
async def read_static(request: Request, path: str) -> Response:
    """Return a static file; it needs no key, and tells nothing."""
    entry = static_files().get(path)
    if entry is None:
        raise places.Missing("no such file")
    file, kind, digest = entry
    headers = {"ETag": f'"{digest}"', "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return FileResponse(file, media_type=kind, headers=headers)


# --- the sign-in


@router.get("/login")
async def show_sign_in(next: Annotated[str, Query(max_length=300)] = "/") -> Response:
    """Show the form of the sign-in."""
    return _sign_in_page(next)


def _sign_in_page(target: str, sentence: str = "", status: int = 200, headers: Any = None) -> Response:
    facts = {"title": "Sign in", "visit": None, "next": _own_path(target), "sentence": sentence, "sees": SEES}
    return render("login.html", facts, status, headers=headers)


def _own_path(target: str) -> str:
    """Return a path of this server; the first page for anything else."""
    is_own = target.startswith("/") and all(part.isalnum() for part in target.split("/")[1:] if part)
    return target if is_own and target.isascii() and "//" not in target else "/"


@router.post("/login")
async def sign_in(request: Request) -> Response:
    """Sign in with a key: the cookie that comes back cannot be read by scripts, nor sent by other sites."""
    refuse_other_sites(request)
    service, fields = service_of(request), dict(await read_form(request))
    target, seconds = fields.get("next", "/"), service.limits.session_seconds
    token = await asyncio.to_thread(access.sign_in, service.store, fields.get("key", "").strip(), seconds)
    if token is None:
        wait = sign_in_failures.wait_seconds(FAILURES)
        if wait:
            again = {"Retry-After": str(max(1, round(wait + 0.5)))}
            return _sign_in_page(target, "Too many keys were wrong just now. Try again in a few seconds.", 429, again)
        return _sign_in_page(target, "This key is not valid. It may be mistyped, revoked or expired.", 401)
    response = RedirectResponse(_own_path(target), 303)
    response.set_cookie(
        COOKIE, token, max_age=int(seconds), path="/", httponly=True, samesite="strict", secure=service.is_secure
    )
    return response


@router.post("/logout")
async def sign_out(request: Request) -> Response:
    """End a sign-in."""
    await post_of(request)
    await asyncio.to_thread(access.sign_out, service_of(request).store, request.cookies[COOKIE])
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict", secure=service_of(request).is_secure)
    return response


# --- the first page


@router.get("/")
async def show_home(request: Request) -> Response:
    """Show places, jobs, the disk, and what the server sees."""
    visit, service = await visit_of(request), service_of(request)
    visible = listed_places(visit.grant)
    rows = await asyncio.to_thread(places.list_places, service.store, visible, LISTED_PLACES)
    count = await asyncio.to_thread(places.count_places, service.store, visible)
    recent = await asyncio.to_thread(_recent_jobs, service, visit.grant)
    usage = shutil.disk_usage(service.data) if visit.is_admin or "metrics" in visit.grant.scopes else None
    facts = {
        "title": "Places",
        "visit": visit,
        "sees": SEES,
        "places": rows,
        "hidden": count - len(rows),
        "jobs": recent,
        "stages": STAGES,
        "disk": usage,
        "problems": await asyncio.to_thread(service.problems),
        "remarks": service.remarks(),
        "clear_modules": clear_modules(),
    }
    return render("home.html", facts)


def _recent_jobs(service: Service, grant: access.Grant) -> list[jobs.Job]:
    """Return jobs at work, then those that wait, then the last that ended."""
    rows = jobs.list_jobs(service.store, limit=500, visible=grant.places_of("read"))
    rank = {jobs.RUNNING: 0, jobs.QUEUED: 1}
    return sorted(rows, key=lambda job: (rank.get(job.state, 2), -job.number))[:RECENT_JOBS]


# --- places


@router.get("/places/{place}")
async def show_place(
    request: Request,
    place: PlaceId,
    map_number: Annotated[int | None, Query(alias="map", ge=1, le=2**31)] = None,
    after: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Show a place: its map in 3D, its maps and its images."""
    visit, store = await visit_of(request, "read", place), service_of(request).store
    row = await asyncio.to_thread(places.read_place, store, place)
    maps = await asyncio.to_thread(places.list_maps, store, place)
    images = await asyncio.to_thread(places.list_images, store, place, after, LISTED_IMAGES)
    latest = await asyncio.to_thread(jobs.list_jobs, store, place, None, 3)
    choices = [one for one in maps if one.number == map_number or (map_number is None and one.is_current)]
    if map_number is not None and not choices:
        raise places.Missing(f"no map {map_number}")
    facts = {
        "title": f"Place {place[:12]}",
        "visit": visit,
        "place": row,
        "maps": maps,
        "map": choices[0] if choices else None,
        "images": images,
        "more_images": images[-1].name if len(images) == LISTED_IMAGES else "",
        "jobs": [job for job in latest if not job.has_ended],
        "may_map": visit.allows("map", place),
        "has_poses": visit.allows("poses", place),
        "request_key": secrets.token_urlsafe(18),
    }
    return render("place.html", facts)


@router.post("/places/{place}/maps")
async def make_map(request: Request, place: PlaceId) -> Response:
    """Queue a job that makes a map; a form that is sent twice makes one."""
    _, fields = await post_of(request, "map", place)
    service = service_of(request)
    service.need_space()
    key = dict(fields).get("request_key", "")
    key = key if 8 <= len(key) <= 128 else secrets.token_urlsafe(18)
    job, _ = await asyncio.to_thread(submit_map, service, place, MapRequest(), key)
    return RedirectResponse(f"/jobs/{job.id}", 303)


@router.post("/places/{place}/maps/{number}/current")
async def choose_map(request: Request, place: PlaceId, number: Annotated[int, Path(ge=1, le=2**31)]) -> Response:
    """Let queries meet another map."""
    await post_of(request, "map", place)
    await asyncio.to_thread(places.choose_map, service_of(request).store, place, number)
    return RedirectResponse(f"/places/{place}", 303)


@router.get("/places/{place}/remove")
async def show_removal(request: Request, place: PlaceId) -> Response:
    """Ask whether a place is to be removed, and say with what."""
    visit = await visit_of(request, access.ADMIN)
    row = await asyncio.to_thread(places.read_place, service_of(request).store, place)
    return render("remove.html", {"title": "Remove a place", "visit": visit, "place": row})


@router.post("/places/{place}/remove")
async def drop_place(request: Request, place: PlaceId) -> Response:
    """Remove a place with its images, maps and jobs."""
    await post_of(request, access.ADMIN)
    await remove_place(service_of(request), place)
    return RedirectResponse("/", 303)


@router.get("/places/{place}/images/{name}")
async def show_image(request: Request, place: PlaceId, name: ImageName) -> Response:
    """Show an image as the server sees it. Positions and codes need the scope of the frame, ``export``."""
    visit, service = await visit_of(request, "read", place), service_of(request)
    row = await asyncio.to_thread(places.read_image_row, service.store, place, name)
    recipe = Recipe.of(row.recipe)
    facts: dict[str, Any] = {
        "title": f"Image {name[:12]}",
        "visit": visit,
        "place": place,
        "image": row,
        "checksums": sorted({link.checksum for link in recipe.encoders if link.checksum}),
        "threat": threat_sentence(recipe, has_all_positions=0 < row.count == row.released),
        "dots": None,
    }
    if visit.allows("export", place):
        facts |= await asyncio.to_thread(_drawings, service, place, row)
    return render("image.html", facts)


def _drawings(service: Service, place: str, image: places.ImageRow) -> dict[str, Any]:
    features = places.read_features(service.store, place, image, service.limits.frame)
    return {"dots": draw_dots(features), "bits": first_bits(features), "numbers": first_numbers(features)}


# --- jobs


@router.get("/jobs")
async def list_jobs(request: Request, before: Annotated[int | None, Query(ge=1, le=2**31)] = None) -> Response:
    """Show jobs, the newest first, with a link to earlier ones."""
    visit, store = await visit_of(request), service_of(request).store
    visible = visit.grant.places_of("read")
    rows = await asyncio.to_thread(jobs.list_jobs, store, None, None, LISTED_JOBS, visible, before)
    more = rows[-1].number if len(rows) == LISTED_JOBS else None
    return render("jobs.html", {"title": "Jobs", "visit": visit, "jobs": rows, "stages": STAGES, "more": more})


@router.get("/jobs/{job}")
async def show_job(request: Request, job: JobId) -> Response:
    """Show a job: its stages, live, and how it ended."""
    visit, store = await visit_of(request), service_of(request).store
    row, steps = await asyncio.to_thread(_read_job, store, job)
    check_job(visit.grant, "read", row)
    last = steps[-1] if steps else None
    facts = {
        "title": f"Job {row.number}",
        "visit": visit,
        "job": row,
        "stages": [(name, STAGES[name], *_progress(row, name)) for name in row.stages],
        "last_event": last.number if last else 0,
        "map": last.facts.get("map") if last and row.has_ended else None,
        "figures": (last.facts.get("figures") or {}) if last and row.has_ended else {},
        "may_cancel": not row.has_ended and _may_cancel(visit, row),
    }
    return render("job.html", facts)


def _read_job(store: Store, name: str) -> tuple[jobs.Job, list[jobs.Event]]:
    """Return a job and its events: the last of them, once it has ended, and none that is ahead of it before."""
    steps = jobs.events_after(store, name)
    job = jobs.read_job(store, name)
    return job, jobs.events_after(store, name) if job.has_ended else steps


def _may_cancel(visit: Visit, job: jobs.Job) -> bool:
    return visit.allows("map", job.place) or (job.kind == jobs.EVIDENCE_JOB and visit.allows("upload", job.place))


def _progress(job: jobs.Job, stage: str) -> tuple[int, int]:
    """Return how much of a stage is done, and of how much."""
    order = job.stages
    current = order.index(job.stage) if job.stage in order else -1
    if job.state == jobs.DONE or order.index(stage) < current:
        return 1, 1
    return (job.done, max(job.total, 1)) if stage == job.stage else (0, 1)


@router.post("/jobs/{job}/cancel")
async def cancel_job(request: Request, job: JobId) -> Response:
    """Cancel a job."""
    visit, _ = await post_of(request)
    store = service_of(request).store
    check_job(visit.grant, "map", await asyncio.to_thread(jobs.read_job, store, job))
    await asyncio.to_thread(jobs.cancel, store, job)
    return RedirectResponse(f"/jobs/{job}", 303)
