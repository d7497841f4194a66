# SPDX-License-Identifier: Apache-2.0
"""Routes for those who run a server: health, metrics, limits, and keys."""

import asyncio
import os
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from sfumato import __version__
from sfumato.server import access, places
from sfumato.server.access import ADMIN
from sfumato.server.guard import clear_modules
from sfumato.server.metrics import CONTENT_TYPE, metrics_text
from sfumato.server.service import ANY, OPEN, KeyedRoute, scope, service_of
from sfumato.store.frames import MEDIA_TYPE

router = APIRouter(route_class=KeyedRoute, tags=["operations"])

SEES = (
    "The server sees codes that it cannot read, which images match, positions that devices released of what several "
    "images see, the map, and when it is asked. It never sees a picture, a clear descriptor, a name that people chose, "
    "or a key of a device. A device that was told to do so sends all positions of its features: these show outlines."
)


class About(BaseModel):
    """What this server is, takes and holds back."""

    version: str
    takes: str = Field(description="The media type of frames.")
    limits: dict[str, float]
    clear_modules: list[str] = Field(description="Modules of the clear side in this process: none, ever.")
    sees: str


class KeyRequest(BaseModel):
    """A key to make."""

    model_config = ConfigDict(extra="forbid")
    scopes: Annotated[list[Annotated[str, Field(max_length=100)]], Field(min_length=1, max_length=1000)]
    label: Annotated[str, Field(max_length=access.LONGEST_LABEL)] = ""
    seconds: Annotated[float | None, Field(gt=0, lt=1e9)] = None


class KeyAnswer(BaseModel):
    """A new key; it is shown this once."""

    key: str


class KeyFacts(BaseModel):
    """A key without its secret."""

    id: str
    label: str
    scopes: list[str]
    expires: float | None
    revoked: bool
    made: float
    last_day: str | None


class KeyList(BaseModel):
    """All keys, the newest first."""

    items: list[KeyFacts]


@router.head("/livez", include_in_schema=False, **scope(OPEN))
@router.get("/livez", response_class=PlainTextResponse, **scope(OPEN))
async def live() -> str:
    """Say that the process answers."""
    return "ok"


@router.head("/readyz", include_in_schema=False, **scope(OPEN))
@router.get("/readyz", responses={503: {}}, **scope(OPEN))
async def ready(request: Request) -> Response:
    """Say whether the server is ready, and if not, why; and what is wrong with single places."""
    service = service_of(request)
    problems = await asyncio.to_thread(service.problems)
    facts = {"ready": not problems, "problems": problems, "remarks": service.remarks()}
    return JSONResponse(facts, 503 if problems else 200)


@router.get("/metrics", response_class=PlainTextResponse, **scope("metrics"))
async def metrics(request: Request) -> Response:
    """Return figures for Prometheus; no label holds a name, an id or a key."""
    text = await asyncio.to_thread(metrics_text, service_of(request))
    return Response(text, media_type=CONTENT_TYPE)


@router.get("/v1/about", **scope(ANY))
async def about(request: Request) -> About:
    """Say what this server is, its limits, and what it sees."""
    limits = service_of(request).limits.facts()
    return About(version=__version__, takes=MEDIA_TYPE, limits=limits, clear_modules=clear_modules(), sees=SEES)


@router.post("/v1/keys", status_code=201, tags=["keys"], **scope(ADMIN))
async def make_key(request: Request, body: KeyRequest) -> KeyAnswer:
    """Make a key with scopes; the answer is the only copy."""
    store = service_of(request).store
    key = await asyncio.to_thread(access.make_key, store, body.scopes, label=body.label, seconds=body.seconds)
    return KeyAnswer(key=key)


@router.get("/v1/keys", tags=["keys"], **scope(ADMIN))
async def list_keys(request: Request) -> KeyList:
    """List keys without their secrets."""
    rows: list[dict[str, Any]] = await asyncio.to_thread(access.list_keys, service_of(request).store)
    return KeyList(items=[KeyFacts(**row) for row in rows])


@router.delete("/v1/keys/{key}", status_code=204, tags=["keys"], **scope(ADMIN))
async def revoke_key(request: Request, key: Annotated[str, Path(pattern="^[a-z2-7]{8}$")]) -> Response:
    """Revoke a key, and end the sign-ins made with it."""
    if not await asyncio.to_thread(access.revoke_key, service_of(request).store, key):
        raise places.Missing(f"no key {key}")
    return Response(status_code=204)


@router.get("/v1/processes", include_in_schema=False, **scope(ADMIN))
async def processes(request: Request) -> dict[str, Any]:
    """Name the processes of the server and their modules of the clear side: for tests that read them from outside."""
    engines = await service_of(request).engines.ask_all({"kind": "modules"})
    return {"server": {"process": os.getpid(), "clear": clear_modules()}, "engines": engines}
