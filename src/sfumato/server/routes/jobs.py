# SPDX-License-Identifier: Apache-2.0
"""Routes of jobs: how far they are, at once, after a wait, or as a stream of events."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from sfumato.server import jobs
from sfumato.server.places import Missing
from sfumato.server.problems import Refusal
from sfumato.server.service import ANY, KeyedRoute, Service, grant_for, read_grant, scope, service_of, until

router = APIRouter(prefix="/v1/jobs", route_class=KeyedRoute, tags=["jobs"])

JobId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
POLL_SECONDS, HEARTBEAT_SECONDS = 0.3, 15.0
KEY_SECONDS = 5.0
"""A stream ends so long after its key was revoked, at most."""


class JobAnswer(BaseModel):
    """A job and how far it is. ``events``: the number of its last event."""

    id: str
    number: int
    place: str
    kind: Literal["map", "evidence"] = "map"
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    stage: str
    done: int
    total: int
    reason: str
    attempt: int
    made: float
    ended: float | None
    map: int | None = None
    figures: dict[str, Any] | None = None
    events: int = 0

    @classmethod
    def of(cls, job: jobs.Job, last: jobs.Event | None = None) -> "JobAnswer":
        """Return the answer about a job; of one that has ended, with what its last event says."""
        facts = {name: getattr(job, name) for name in cls.model_fields if hasattr(job, name)}
        if last is not None:
            facts |= {"events": last.number}
            facts |= {name: last.facts[name] for name in ("map", "figures") if job.has_ended and name in last.facts}
        return cls(**facts)


class JobList(BaseModel):
    """Jobs that a key may read, the newest first."""

    items: list[JobAnswer]


def _read(service: Service, name: str) -> JobAnswer:
    job, steps = jobs.read_job(service.store, name), jobs.events_after(service.store, name)
    return JobAnswer.of(job, steps[-1] if steps else None)


@router.get("", **scope(ANY))
async def list_jobs(
    request: Request,
    place: Annotated[str | None, Query(pattern="^[0-9a-f]{8,64}$")] = None,
    state: Annotated[Literal["queued", "running", "done", "failed", "cancelled"] | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    before: Annotated[int | None, Query(ge=1, le=2**31, description="List jobs with a smaller number.")] = None,
) -> JobList:
    """List jobs at places that this key may read, the newest first."""
    store, visible = service_of(request).store, (await grant_for(request)).places_of("read")
    rows = await asyncio.to_thread(jobs.list_jobs, store, place, state, limit, visible, before)
    last = await asyncio.to_thread(jobs.last_events, store, [row.id for row in rows])
    return JobList(items=[JobAnswer.of(row, last.get(row.id)) for row in rows])


@router.get("/{job}", **scope("read"))
async def read_job(
    request: Request,
    job: JobId,
    wait: Annotated[float, Query(ge=0, le=60, description="Seconds to wait for an event.")] = 0,
    after: Annotated[int, Query(ge=0, le=2**31, description="Wait for an event that follows this one.")] = 0,
) -> JobAnswer:
    """Say how far a job is, at once or when something happens."""
    service = service_of(request)

    async def is_news() -> bool:
        answer = await asyncio.to_thread(_read, service, job)
        return answer.events > after or answer.ended is not None or service.is_stopping

    if wait:
        await until(is_news, wait)
    return await asyncio.to_thread(_read, service, job)


@router.get(
    "/{job}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
    **scope("read"),
)
async def stream_events(
    request: Request,
    job: JobId,
    last: Annotated[int, Header(alias="Last-Event-ID", ge=0, le=2**31)] = 0,
) -> StreamingResponse:
    """Stream the events of a job until it ends; after a break, from the one that follows ``Last-Event-ID``."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_events(request, job, last), media_type="text/event-stream", headers=headers)


async def _events(request: Request, name: str, last: int) -> AsyncIterator[str]:
    service, beat, checked = service_of(request), time.monotonic(), time.monotonic()
    while not service.is_stopping:
        try:
            job = await asyncio.to_thread(jobs.read_job, service.store, name)
            if time.monotonic() - checked > KEY_SECONDS:
                await read_grant(request)
                checked = time.monotonic()
        except (Missing, Refusal):  # its place was removed, or the key revoked
            return
        for event in await asyncio.to_thread(jobs.events_after, service.store, name, last):
            last, beat = event.number, time.monotonic()
            yield f"id: {event.number}\nevent: {event.kind}\ndata: {json.dumps(event.facts)}\n\n"
        if job.has_ended:
            return
        if time.monotonic() - beat > HEARTBEAT_SECONDS:
            beat = time.monotonic()
            yield ": still at work\n\n"
        await asyncio.sleep(POLL_SECONDS)


@router.post("/{job}:cancel", status_code=202, **scope("map"))
async def cancel_job(request: Request, job: JobId) -> JobAnswer:
    """Cancel a job; its process is ended within seconds."""
    service = service_of(request)
    await asyncio.to_thread(jobs.cancel, service.store, job)
    return await asyncio.to_thread(_read, service, job)
