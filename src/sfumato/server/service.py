# SPDX-License-Identifier: Apache-2.0
"""The service behind the routes: store, engines, foreman, limits and rates; and who may do what.

Handlers get it from the application. Every route names the scope it needs in the OpenAPI document, ``x-scope``, and
``KeyedRoute`` checks that scope before a byte of the body is read.
"""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from sfumato.server import blobs, jobs, places
from sfumato.server.access import Grant, RequestRate, Slots, grant_of, session_of
from sfumato.server.database import Store
from sfumato.server.engines import Engines
from sfumato.server.foreman import Foreman
from sfumato.server.limits import Limits
from sfumato.server.problems import Refusal

COOKIE = "sfumato_session"
FORM_TOKEN = "X-Form-Token"
ANY, OPEN = "any", "none"
"""Scopes of routes that every key may use, and of those that need none."""


@dataclass(slots=True, eq=False)
class Service:
    """All that handlers share. ``is_secure``: with TLS. ``connections``: those that are open, of a live server."""

    store: Store
    limits: Limits
    engines: Engines
    foreman: Foreman
    is_secure: bool = False
    localize_rate: RequestRate = field(init=False)
    upload_rate: RequestRate = field(init=False)
    uploads: Slots = field(init=False)
    queries: Slots = field(init=False)
    connections: Collection[Any] = ()
    is_stopping: bool = False
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.localize_rate = RequestRate(self.limits.localize_rate, self.limits.localize_burst)
        self.upload_rate = RequestRate(self.limits.upload_rate, self.limits.upload_burst)
        self.uploads = Slots(self.limits.uploads_at_once, self.limits.uploads_of_key)
        self.queries = Slots(self.limits.query_queue, self.limits.queries_of_key)

    @property
    def data(self) -> Path:
        """The folder of the server's data."""
        return self.store.folder

    def problems(self) -> list[str]:
        """Return why the server is not ready; empty if it is."""
        reasons = ["stopping"] if self.is_stopping else []
        if not self.engines.is_warm:
            reasons.append(f"warming up: {self.engines.ready} of {self.engines.count} engines are ready")
        if any(task.done() for task in self.tasks):
            reasons.append("a part of the server has ended: start it again")
        free = blobs.free_bytes(self.data)
        if free < self.limits.least_free_bytes:
            least = self.limits.least_free_bytes // 2**20
            reasons.append(f"{free // 2**20} MiB are left on the disk, {least} are needed")
        try:
            with self.store.write():
                pass
        except Exception:
            reasons.append("the database cannot be written")
        return reasons

    def remarks(self) -> list[str]:
        """Return what is wrong with single places, while the server is ready for all others."""
        count = len(self.engines.damaged)
        return [f"{count} of the current maps cannot be opened: make such maps again"] if count else []

    def need_space(self) -> None:
        """Refuse what would be written when the disk is nearly full."""
        if blobs.free_bytes(self.data) < self.limits.least_free_bytes:
            raise Refusal(507, "disk_full", "the disk of the server is nearly full: reading goes on, nothing is taken")


def service_of(request: Request) -> Service:
    """Return the service of an application."""
    service: Service = request.app.state.service
    return service


async def grant_for(request: Request) -> Grant:
    """Return what the sender of a request may do; the key is looked up once. Raises a refusal, 401."""
    if not hasattr(request.state, "grant"):
        request.state.grant = await read_grant(request)
    grant: Grant = request.state.grant
    return grant


async def read_grant(request: Request) -> Grant:
    """Look up what the sender of a request may do: by the key in its header, or the cookie of the page.

    With a cookie, requests that change something carry the token of the page's forms too. Raises a refusal, 401.
    """
    service = service_of(request)
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    grant: Grant | None = None
    if key:
        if scheme.lower() == "bearer":
            grant = await asyncio.to_thread(grant_of, service.store, key.strip())
    elif COOKIE in request.cookies:
        session = await asyncio.to_thread(session_of, service.store, request.cookies[COOKIE])
        token = request.headers.get(FORM_TOKEN, "").encode()
        if session is not None and (
            request.method in ("GET", "HEAD") or hmac.compare_digest(token, session.form.encode())
        ):
            grant = session.grant
    if grant is None:
        sentence = "give a valid key: Authorization: Bearer sfm_...; an administrator makes one (sfumato server key)"
        raise Refusal(401, "no_key", sentence, headers={"WWW-Authenticate": "Bearer"})
    return grant


def check(grant: Grant, verb: str, place: str | None = None) -> None:
    """Refuse what a grant does not allow: 404 at a place it may not see, else 403."""
    if verb == ANY or grant.allows(verb, place):
        return
    if place is not None and not grant.sees(place):
        raise places.Missing(f"no place {place:.64}")
    where = "" if place is None else f":{place:.64}"
    raise Refusal(403, "no_scope", f"this key may not do that: it needs the scope {verb}{where}")


def check_job(grant: Grant, verb: str, job: jobs.Job) -> None:
    """Refuse what a grant does not allow with a job. Who may ask for evidence may follow and cancel the job of it."""
    if not grant.sees(job.place):
        raise places.Missing(f"no job {job.id}")
    if job.kind != jobs.EVIDENCE_JOB or not grant.allows("upload", job.place):
        check(grant, verb, job.place)


def scope(verb: str) -> dict[str, Any]:
    """Return the words of a route that needs a scope, at the place or the job that its path names."""
    return {"openapi_extra": {"x-scope": verb}}


class KeyedRoute(APIRoute):
    """A route of the API. Its key and its scope are checked first: nobody without them makes the server read a body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, behind the check."""
        handle, verb = super().get_route_handler(), (self.openapi_extra or {})["x-scope"]

        async def handle_allowed(request: Request) -> Response:
            if verb != OPEN:
                await allow(request, verb)
            return await handle(request)

        return handle_allowed


async def allow(request: Request, verb: str) -> None:
    """Refuse a request without a valid key, and one whose key may not do a thing at the place or job of its path."""
    grant, place = await grant_for(request), request.path_params.get("place")
    if "job" in request.path_params:
        job = await asyncio.to_thread(jobs.read_job, service_of(request).store, request.path_params["job"])
        check_job(grant, verb, job)
    else:
        check(grant, verb, place)


def limit_rate(rate: RequestRate, grant: Grant) -> None:
    """Refuse a key that comes too often, 429."""
    seconds = rate.wait_seconds(grant.key)
    if seconds:
        wait = max(1, round(seconds + 0.5))
        raise Refusal(429, "rate", f"too many requests of this key: try again in {wait} s", retry=True,
                      headers={"Retry-After": str(wait)})  # fmt: skip


async def until(condition: Callable[[], Awaitable[bool]], seconds: float, pause: float = 0.25) -> bool:
    """Wait until a condition holds, or time is over; return whether it does."""
    end = time.monotonic() + seconds
    while not await condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(pause)
    return True
