# SPDX-License-Identifier: Apache-2.0
"""Pages for those who run a server: keys, limits, and the description of the API."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from sfumato.errors import InputError
from sfumato.server import access, places
from sfumato.server.access import ADMIN, EVERYWHERE, SERVER_SCOPES, VERBS
from sfumato.server.problems import Refusal, answer
from sfumato.server.routes.html import API_POLICY, Page, Visit, number, post_of, render, size, visit_of
from sfumato.server.service import grant_for, service_of

router = APIRouter(route_class=Page)

VERB_WORDS = {
    "read": "what there is",
    "upload": "images of a device, and evidence for what it releases of them",
    "map": "make maps, cancel jobs",
    "landmarks": "find where a photo was taken, by codes alone: points of the map come back; phones need this alone",
    "localize": "find where a photo was taken, from positions that are sent too",
    "export": "take frames and maps away, see dots",
    "poses": "see where cameras stood",
}
DAYS = {"": "for ever", "1": "one day", "30": "30 days", "365": "a year"}
DAY_SECONDS = 86_400.0
LIMIT_WORDS = {
    "image_bytes": "Frame of one image",
    "query_bytes": "Frame of one query",
    "json_bytes": "Body of any other request",
    "features": "Features of one image",
    "names_at_once": "Names a device may ask for at once",
    "places": "Places",
    "images": "Images of one place",
    "images_of_map": "Images of one map",
    "pairs_of_map": "Pairs that one job compares",
    "candidates": "Images that one query is compared with",
    "landmarks_of_query": "Points of a map that one query without positions gets",
    "localize_rate": "Queries of one key, a second",
    "localize_burst": "Queries of one key in a short burst",
    "upload_rate": "Uploads of one key, a second",
    "upload_burst": "Uploads of one key in a short burst",
    "uploads_at_once": "Uploads under way, of all keys",
    "uploads_of_key": "Uploads under way, of one key",
    "connections": "Connections that are open",
    "query_queue": "Queries that wait or are worked on",
    "queries_of_key": "Queries of one key that wait or are worked on",
    "job_queue": "Jobs that wait",
    "jobs_of_place": "Jobs of one place that wait",
    "query_seconds": "Time for a query",
    "upload_seconds": "Pause in a body",
    "slowest_upload": "Bytes a second of the slowest body",
    "body_seconds": "Time for a body",
    "head_seconds": "Time for the head of a request",
    "job_seconds": "Time for a job",
    "lease_seconds": "Silence after which a job is given to another process",
    "attempts": "Attempts at a job",
    "events_of_job": "Events of a job that are recorded",
    "session_seconds": "Time of a sign-in to this page",
    "least_free_bytes": "Disk space that stays free; below it nothing is taken",
}
"""Limits in words."""


# --- keys


@router.get("/keys")
async def show_keys(request: Request) -> Response:
    """Show all keys, without their secrets, and a form for a new one."""
    return await _keys_page(request, await visit_of(request, ADMIN))


async def _keys_page(
    request: Request, visit: Visit, *, new_key: str = "", sentence: str = "", status: int = 200
) -> Response:
    store = service_of(request).store
    rows = await asyncio.to_thread(access.list_keys, store)
    ids = [row.id for row in await asyncio.to_thread(places.list_places, store)]
    facts: dict[str, Any] = {
        "title": "Keys",
        "visit": visit,
        "keys": rows,
        "places": ids,
        "verbs": VERB_WORDS,
        "server_scopes": SERVER_SCOPES,
        "days": DAYS,
        "new_key": new_key,
        "sentence": sentence,
        "longest_label": access.LONGEST_LABEL,
    }
    return render("keys.html", facts, status)


@router.post("/keys")
async def make_key(request: Request) -> Response:
    """Make a key and show it, this once."""
    visit, fields = await post_of(request, ADMIN)
    facts, marks = dict(fields), {value for name, value in fields if name == "scope"}
    place, days = facts.get("place", EVERYWHERE), facts.get("days", "")
    scopes = [f"{verb}:{place}" for verb in VERBS if verb in marks] + [one for one in SERVER_SCOPES if one in marks]
    try:
        if days not in DAYS:
            raise InputError("choose how long the key is valid")
        seconds = float(days) * DAY_SECONDS if days else None
        label = facts.get("label", "").strip()
        key = await asyncio.to_thread(access.make_key, service_of(request).store, scopes, label=label, seconds=seconds)
    except InputError as problem:
        return await _keys_page(request, visit, sentence=str(problem), status=422)
    return await _keys_page(request, visit, new_key=key)


@router.post("/keys/{key}/revoke")
async def revoke_key(request: Request, key: Annotated[str, Path(pattern="^[a-z2-7]{8}$")]) -> Response:
    """Revoke a key, and end the sign-ins made with it."""
    await post_of(request, ADMIN)
    if not await asyncio.to_thread(access.revoke_key, service_of(request).store, key):
        raise places.Missing(f"no key {key}")
    return RedirectResponse("/keys", 303)


# --- limits


@router.get("/limits")
async def show_limits(request: Request) -> Response:
    """Show the limits of the server."""
    visit, limits = await visit_of(request), service_of(request).limits.facts()
    rows = [(LIMIT_WORDS.get(name, name), name, limit_text(name, value)) for name, value in limits.items()]
    return render("limits.html", {"title": "Limits", "visit": visit, "rows": rows})


def limit_text(name: str, value: float) -> str:
    """Return a limit for people.

    >>> limit_text("image_bytes", 2**26), limit_text("job_seconds", 21600.0), limit_text("places", 10000)
    ('64 MiB', '6 h', '10,000')
    """
    if name.endswith("_bytes"):
        return size(value)
    if not name.endswith("_seconds"):
        return number(value)
    for unit, seconds in (("h", 3600), ("min", 60)):
        if value >= seconds and value % seconds == 0:
            return f"{value / seconds:.0f} {unit}"
    return f"{number(value)} s"


# --- the API


@router.get("/openapi.json")
async def read_schema(request: Request) -> Response:
    """Return the OpenAPI document, to a holder of any key."""
    try:
        await grant_for(request)
    except Refusal as refusal:  # programs read this, and want no page
        return answer(request, refusal)
    return JSONResponse(request.app.openapi(), headers={"Cache-Control": "no-store"})


@router.get("/docs")
async def show_schema(request: Request) -> Response:
    """Show the OpenAPI document; requests that are tried there are of the one who is signed in."""
    return render("docs.html", {"title": "API", "visit": await visit_of(request)}, policy=API_POLICY)
