# SPDX-License-Identifier: Apache-2.0
"""Pages as HTML: templates, the sign-in of a request, forms with their token, errors as pages, and static files.

All that a page needs comes from this server: no script or style stands in a page itself, and nothing is loaded from
elsewhere. The template engine escapes everything that comes from outside.
"""

import asyncio
import hashlib
import hmac
import mimetypes
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from sfumato import __version__
from sfumato.server.access import ADMIN, Grant, Session, session_of
from sfumato.server.problems import TITLES, Refusal, log, refusal_of, respond
from sfumato.server.service import COOKIE, check, service_of

FOLDER = Path(__file__).resolve().parent.parent
TEMPLATES, STATIC = FOLDER / "templates", FOLDER / "static"
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'none'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
API_POLICY = POLICY.replace("img-src 'self'", "img-src 'self' data:")
"""The page of the API draws its icons from addresses of data in its own style sheet."""
FIELDS, FORM_BYTES = 200, 65_536
NOTHING = "There is nothing at this address."

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class SignedOut(Exception):
    """Nobody is signed in: the page of the sign-in comes first."""


class Page(APIRoute):
    """A route of the page: it is not in the OpenAPI document, and its errors are pages too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **(options | {"include_in_schema": False, "response_model": None}))

    def get_route_handler(self) -> Handler:
        """Return the handler, with errors turned into pages."""
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            try:
                return await handle(request)
            except SignedOut:
                path = quote(request.url.path) if request.method == "GET" else "/"
                return RedirectResponse("/login" if path == "/" else f"/login?next={path}", 303)
            except Exception as error:
                return error_page(request, error)

        return handle_page


def error_page(request: Request, error: Exception) -> Response:
    """Return a small page about an error, with the sentence of the API's answer."""
    refusal = refusal_of(error)
    if isinstance(error, RequestValidationError):  # an id of another form is an address that is not there
        refusal = Refusal(404, "not_found", NOTHING)
    if refusal.status_code == 500:
        log.error("internal error", exc_info=error)
    title, sentence = TITLES.get(refusal.status_code, "refused"), str(refusal.detail).rstrip(".")
    facts = {"title": title.capitalize(), "sentence": f"{sentence[:1].upper()}{sentence[1:]}.", "visit": None}
    return render("error.html", facts, refusal.status_code, headers=refusal.headers)


async def answer_unknown(request: Request, error: Exception) -> Response:
    """Answer for an address that is not there: a page to a browser, a problem to a program."""
    is_page = "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/v1")
    return error_page(request, Refusal(404, "not_found", NOTHING)) if is_page else respond(request, error)


# --- who is there


@dataclass(frozen=True, slots=True)
class Visit:
    """A request of somebody who is signed in."""

    grant: Grant
    form: str

    @property
    def is_admin(self) -> bool:
        """Whether keys may be made and revoked."""
        return ADMIN in self.grant.scopes

    def allows(self, verb: str, place: str) -> bool:
        """Tell whether a verb is allowed at a place."""
        return self.grant.allows(verb, place)


async def visit_of(request: Request, verb: str | None = None, place: str | None = None) -> Visit:
    """Return who is signed in and may do something, at a place.

    Raises SignedOut, Missing for a place that is not for this key, and a refusal, 403.
    """
    token = request.cookies.get(COOKIE, "")
    session: Session | None = await asyncio.to_thread(session_of, service_of(request).store, token) if token else None
    if session is None:
        raise SignedOut
    if verb is not None:
        check(session.grant, verb, place)
    return Visit(session.grant, session.form)


async def read_form(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a form; raises a refusal for what is no form, or too large a one."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refusal(415, "no_form", "This address takes forms of the page alone.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES:
            raise Refusal(413, "too_large", "This form is too large.")
    try:
        return parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=FIELDS, errors="strict")
    except ValueError as cause:
        raise Refusal(422, "not_valid", "This form cannot be read.") from cause


async def post_of(
    request: Request, verb: str | None = None, place: str | None = None
) -> tuple[Visit, list[tuple[str, str]]]:
    """Return who sent a form, and its fields; raises as ``visit_of`` does, and a refusal, 403, without its token."""
    visit = await visit_of(request)
    fields = await read_form(request)
    if not hmac.compare_digest(dict(fields).get("token", "").encode(), visit.form.encode()):
        raise Refusal(403, "no_token", "This form is not from a page of this sign-in. Load the page again.")
    if verb is not None:
        check(visit.grant, verb, place)
    return visit, fields


def refuse_other_sites(request: Request) -> None:
    """Refuse a form that a page of another site sent, as far as the browser says so."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Refusal(403, "other_site", "This form was sent from another site.")


# --- templates


def render(
    template: str, facts: dict[str, Any], status: int = 200, *, headers: Any = None, policy: str = POLICY
) -> HTMLResponse:
    """Return a page; ``facts`` names ``visit`` and ``title`` at least."""
    text = engine().get_template(template).render(facts)
    extra = {"Content-Security-Policy": policy, "Cache-Control": "no-store"}
    return HTMLResponse(text, status, headers={**(headers or {}), **extra})


@cache
def engine() -> Environment:
    """Return the template engine."""
    result = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    result.filters |= {"short": short, "size": size, "number": number, "date": date, "plural": plural}
    result.globals["version"] = __version__
    return result


def short(name: str) -> str:
    """Return the beginning of an opaque id.

    >>> short("0123456789abcdef0123")
    '0123456789ab…'
    """
    return name if len(name) <= 16 else f"{name[:12]}…"


def size(count: float) -> str:
    """Return bytes for people.

    >>> size(67108864), size(1536), size(12)
    ('64 MiB', '1.5 KiB', '12 B')
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if count >= 10 or count == int(count) else f"{count:.1f} {unit}"


def number(value: float) -> str:
    """Return a number with commas between thousands.

    >>> number(18000), number(0.2805)
    ('18,000', '0.28')
    """
    return f"{int(value):,}" if value == int(value) else f"{value:,.2f}"


def plural(count: int, one: str, more: str = "") -> str:
    """Return a count with its noun.

    >>> plural(1, "image"), plural(1200, "image")
    ('1 image', '1,200 images')
    """
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def date(seconds: float | None) -> str:
    """Return a time to the minute, in UTC; nothing for None.

    >>> date(0)
    '1970-01-01 00:00 UTC'
    """
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


# --- static files


@cache
def static_files() -> dict[str, tuple[Path, str, str]]:
    """Return every static file by its path below ``/static``: where it is, its media type, and its digest."""
    paths = sorted(path for path in STATIC.rglob("*") if path.is_file())
    kinds = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".json": "application/json"}
    return {
        path.relative_to(STATIC).as_posix(): (
            path,
            kinds.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "text/plain",
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in paths
    }
