# SPDX-License-Identifier: Apache-2.0
"""The application: routes, errors, limits of bodies, headers, metrics, and what runs beside the requests."""

import asyncio
import contextlib
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi

from sfumato import __version__
from sfumato.server import blobs, metrics, places, problems
from sfumato.server.database import Store
from sfumato.server.jobs import open_jobs
from sfumato.server.limits import Limits
from sfumato.server.routes import admin_pages, html, jobs, maps, operations, pages, releases
from sfumato.server.routes import places as place_routes
from sfumato.server.service import OPEN, Service
from sfumato.store.frames import RELEASED

SWEEP_SECONDS = 600.0
FOLLOW_SECONDS = 0.5
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
NOT_STORED = (b"cache-control", b"no-store")
"""Of answers that say nothing else: what a browser stores can be read after the sign-out."""
TLS_ONLY = (b"strict-transport-security", b"max-age=31536000")
IMAGE_PATH = re.compile(r"/v1/places/[^/]+/images/[^/]+\Z")
QUERY_PATH = re.compile(r"/v1/places/[^/]+/(localize|landmarks)\Z")
"""Paths that take frames."""
RELEASE_PATH = re.compile(r"/v1/places/[^/]+/images/[^/]+/positions\Z")
ALIVE = "/livez"
"""It answers also when connections run out."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
log = logging.getLogger(__name__)


def make_app(service: Service) -> FastAPI:
    """Return the application of a service; its engines and foreman start with it and stop with it."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.engines.start(await asyncio.to_thread(places.current_maps, service.store))
        works = (service.foreman.work(), _follow_maps(service), _sweep(service))
        service.tasks = [asyncio.create_task(work) for work in works]
        try:
            yield
        finally:
            for task in service.tasks:
                task.cancel()
            await asyncio.gather(*service.tasks, return_exceptions=True)
            await service.engines.stop()
            service.store.close()

    app = FastAPI(
        title="Sfumato",
        version=__version__,
        description="A server that cannot see: concealed features of images, maps, and where queries were taken.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.service = service
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    problems.install(app)
    app.add_exception_handler(404, html.answer_unknown)
    routed = operations, place_routes, releases, maps, jobs, pages, admin_pages
    for router in (part.router for part in routed):
        app.include_router(router)
    app.add_middleware(Envelope, service=service)
    return app


async def _follow_maps(service: Service) -> None:
    """Let engines open maps as soon as they are current: the first query shall not wait for it."""
    while True:
        try:
            await service.engines.follow(await asyncio.to_thread(places.current_maps, service.store))
        except Exception:
            log.exception("maps cannot be followed")
        await asyncio.sleep(FOLLOW_SECONDS)


async def _sweep(service: Service) -> None:
    while True:
        try:
            await asyncio.to_thread(sweep, service.store)
        except Exception:
            log.exception("nothing was swept")
        await asyncio.sleep(SWEEP_SECONDS)


def sweep(store: Store, now: float | None = None) -> int:
    """Remove what kills left in the data folder; return how many files and folders."""
    rows = places.known_frames(store), places.known_maps(store), open_jobs(store)
    return blobs.sweep(store.folder, *rows, now)


class Envelope:
    """Limits, headers, a request id, a metric and a log line around every request, and an answer to every error."""

    def __init__(self, app: Any, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id, started, status = secrets.token_hex(8), time.perf_counter(), 0
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_more(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *self._headers(message["headers"], request_id)]
            await send(message)

        try:
            self._refuse_crowds(scope["path"])
            await self.app(scope, self._count(scope, receive), send_more)
        except Exception as error:
            if status:  # it is too late for another answer: the connection ends
                log.exception("a response broke off")
                raise
            await problems.respond(Request(scope), error)(scope, receive, send_more)
        finally:
            route = getattr(scope.get("route"), "path", "unknown")
            method = scope["method"] if scope["method"] in METHODS else "other"
            seconds = time.perf_counter() - started
            metrics.REQUESTS.labels(method, route, status).inc()
            metrics.DURATIONS.labels(route).observe(seconds)
            facts = {"method": method, "route": route, "status": status, "ms": round(1000 * seconds, 1),
                     "request_id": request_id}  # fmt: skip
            log.info("request", extra={"facts": facts})

    def _headers(self, headers: list[tuple[bytes, bytes]], request_id: str) -> list[tuple[bytes, bytes]]:
        """Return the headers that an answer gets beside its own."""
        result = [*HEADERS, (b"x-request-id", request_id.encode())]
        if not any(name.lower() == b"cache-control" for name, _ in headers):
            result.append(NOT_STORED)
        return [*result, TLS_ONLY] if self.service.is_secure else result

    def _refuse_crowds(self, path: str) -> None:
        """Refuse a request when too many connections are open; monitoring may still ask whether the server lives."""
        if len(self.service.connections) > self.service.limits.connections and path != ALIVE:
            raise problems.Refusal(503, "busy", "too many connections are open: try again in a few seconds", retry=True,
                                   headers={"Retry-After": "5", "Connection": "close"})  # fmt: skip

    def _count(self, scope: Message, receive: Receive) -> Receive:
        """Count the bytes of a body, and the time it takes: a sender may not pause for long, nor come drop by drop."""
        limits, most = self.service.limits, largest_body(scope["method"], scope["path"], self.service.limits)
        length = Request(scope).headers.get("content-length", "")
        is_long = length.isdecimal() and int(length[:20]) > most
        total, is_complete, start = 0, False, time.monotonic()

        async def receive_part() -> Message:
            nonlocal total, is_complete
            if is_long:
                raise problems.too_large("a request", most)
            if is_complete:
                return await receive()
            allowed = min(limits.body_seconds, limits.upload_seconds + total / max(1, limits.slowest_upload))
            left = start + allowed - time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, min(limits.upload_seconds, left))):
                    message = await receive()
            except TimeoutError as cause:
                raise problems.Refusal(408, "too_slow", "the body came too slowly", retry=True) from cause
            total += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
            if total > most:
                raise problems.too_large("a request", most)
            return message

        return receive_part


def largest_body(method: str, path: str, limits: Limits) -> int:
    """Return how many bytes the body of a request may have, by its method and path alone.

    >>> largest_body("PUT", "/v1/places/0123456789abcdef/images/00112233445566778899", Limits()) == 64 * 2**20
    True
    >>> largest_body("POST", "/v1/keys", Limits()) == 2 * 2**20
    True
    """
    if method == "PUT" and RELEASE_PATH.match(path):
        return RELEASED.itemsize * limits.features
    if method == "PUT" and IMAGE_PATH.match(path):
        return limits.image_bytes
    return limits.query_bytes if method == "POST" and QUERY_PATH.match(path) else limits.json_bytes


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of an application: what FastAPI knows, keys, and problems for every refusal."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    result = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas = result.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = problems.Problem.model_json_schema()
    result["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    refusal = {"content": {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    for operations_of in result["paths"].values():
        for operation in operations_of.values():
            responses = operation["responses"]
            responses.pop("422", None)
            responses["4XX"] = {"description": "The request is refused.", **refusal}
            responses["5XX"] = {"description": "The server cannot do it now.", **refusal}
            operation["security"] = [] if operation.get("x-scope") == OPEN else [{"key": []}]
    app.openapi_schema = result
    return result
