# SPDX-License-Identifier: Apache-2.0
"""Problems: every refusal of the server as RFC 9457 says, with a code, a sentence, and whether to try again.

The sentences come from the library, which never quotes values or keys.
"""

import logging
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from sfumato.errors import FileError, FrameError, InputError, WorkerError
from sfumato.server.blobs import is_disk_full
from sfumato.server.engines import Deadline, EngineLost, QueueFull
from sfumato.server.places import Conflict, Missing

MEDIA_TYPE = "application/problem+json"
ON_THE_DEVICE = "conceal on the device: sfumato push photos/ --server URL --place NAME"
TITLES = {
    400: "bad request", 401: "no valid key", 403: "not allowed", 404: "not found", 405: "no such method",
    408: "too slow", 409: "conflict", 411: "no length", 413: "too large", 415: "not taken", 422: "not valid",
    429: "too many requests", 500: "internal error", 503: "not ready", 504: "too late", 507: "disk full",
}  # fmt: skip

log = logging.getLogger(__name__)


class Problem(BaseModel):
    """A refusal, as RFC 9457 says."""

    type: str
    title: str
    status: int
    code: str = Field(description="For programs.")
    detail: str = Field(description="A sentence for people.")
    retry: bool = Field(description="Whether the same request may succeed later.")
    request_id: str


class Refusal(HTTPException):
    """A request that is refused: the status, a code for programs and a sentence for people."""

    def __init__(
        self, status: int, code: str, sentence: str, *, retry: bool = False, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, sentence, dict(headers or {}))
        self.code, self.retry = code, retry


def too_large(what: str, most: int) -> Refusal:
    """Return the refusal of a body that is too large."""
    return Refusal(413, "too_large", f"{what} may have {most} bytes on this server, and this has more")


def answer(request: Request, refusal: Refusal) -> JSONResponse:
    """Return a refusal as a response."""
    problem = Problem(
        type=f"about:blank#{refusal.code}",
        title=TITLES.get(refusal.status_code, "refused"),
        status=refusal.status_code,
        code=refusal.code,
        detail=refusal.detail,
        retry=refusal.retry,
        request_id=getattr(request.state, "request_id", ""),
    )
    return JSONResponse(problem.model_dump(), refusal.status_code, media_type=MEDIA_TYPE, headers=refusal.headers)


def refusal_of(error: Exception) -> Refusal:
    """Return what a client is told about an error; what nobody foresaw is a 500 without details."""
    if is_disk_full(error):
        return Refusal(507, "disk_full", "the disk of the server is full: nothing was kept", retry=True)
    match error:
        case Refusal():
            return error
        case Missing():
            return Refusal(404, "not_found", f"{error}; or this key may not see it")
        case Conflict() if error.code == "queue_full":
            return Refusal(429, error.code, str(error), retry=True, headers={"Retry-After": "30"})
        case Conflict():
            return Refusal(409, error.code, str(error))
        case QueueFull():
            return Refusal(429, "queue_full", "too many queries wait: try again in a second", retry=True,
                           headers={"Retry-After": "1"})  # fmt: skip
        case EngineLost():
            return Refusal(503, "worker", "the process that worked on this query ended: try again", retry=True,
                           headers={"Retry-After": "2"})  # fmt: skip
        case ClientDisconnect():
            return Refusal(400, "aborted", "the request ended in the middle", retry=True)
        case Deadline():
            return Refusal(504, "deadline", "the query was not answered in time: try again", retry=True)
        case FrameError() if error.code == "not_a_frame":
            return Refusal(415, "pictures_are_not_taken", str(error))
        case FrameError():
            return Refusal(413 if error.code == "too_large" else 422, error.code, str(error))
        case InputError():
            return Refusal(422, "not_valid", str(error))
        case WorkerError():
            return Refusal(503, "worker", str(error), retry=True)
        case RequestValidationError():
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            return Refusal(422, "not_valid", f"{place}: {first['msg']}")
        case HTTPException():
            return Refusal(error.status_code, f"http_{error.status_code}", str(error.detail))
        case FileError():
            return Refusal(500, "internal", "a file of the server cannot be read: ask its administrator")
    return Refusal(500, "internal", "the server met an error: its log says which", retry=True)


def respond(request: Request, error: Exception) -> JSONResponse:
    """Return what a client is told about an error, and log what nobody foresaw."""
    refusal = refusal_of(error)
    if refusal.status_code == 500:
        log.error("internal error", exc_info=error)
    return answer(request, refusal)


def install(app: FastAPI) -> None:
    """Let an application answer the errors that are foreseen as problems; ``app.Envelope`` answers the others."""

    async def handle(request: Request, error: Exception) -> JSONResponse:
        return respond(request, error)

    for kind in (HTTPException, RequestValidationError, Missing, Conflict, QueueFull, Deadline, InputError, OSError):
        app.add_exception_handler(kind, handle)
