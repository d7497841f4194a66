# SPDX-License-Identifier: Apache-2.0
"""docs/reference/http.md is made of the OpenAPI document, and the codes of refusals in it are those of the source.

``python tests/server/routes/test_endpoints.py --update`` writes it, after ``test_scopes.py --update``.
"""

import ast
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "tests" / "server" / "openapi.json"
PAGE = ROOT / "docs" / "reference" / "http.md"
HOW = "python tests/server/routes/test_endpoints.py --update writes it"
FRAME = "application/vnd.sfumato.features.v1"
RELEASE = "application/vnd.sfumato.positions.v1"
OF_PAGES = {"html.py", "pages.py", "admin_pages.py"}
"""Modules of the pages for people, whose refusals are pages."""

INTRODUCTION = """# Requests of the server

Generated from the OpenAPI document by `python tests/server/routes/test_endpoints.py --update`; do not edit. A running
server has the same document at `/openapi.json`, and a page to try it at `/docs`. How to start a server:
[your own map server](../tutorials/map_server.md).

Every request carries `Authorization: Bearer sfm_...`, except those with the scope *none*. A scope is needed at the
place that the path names; *any* means that every valid key will do. A *frame* is the body of an upload or a query,
*positions* are what a device releases of an upload later ([wire format](wire.md)). JSON bodies with unknown fields are
refused. Every answer has an `X-Request-Id`, and is not to be stored (`Cache-Control: no-store`). Times are seconds
since 1970.
"""

REFUSALS = """## Refusals

Every refusal is `application/problem+json` ([Problem](#problem)), as RFC 9457 says. Programs read `code` and `retry`.
Other paths and methods are `http_404` and `http_405`. Any request may be refused with `internal` or `busy`, and any
that writes with `disk_full`. The key and its scope are checked before the body is read.
"""

SECTIONS = {
    "places": "Places and images",
    "releases": "Evidence and released positions",
    "maps": "Maps and localization",
    "jobs": "Jobs",
    "keys": "Keys",
    "operations": "Operations",
}

CODES: dict[str, tuple[str, str]] = {
    "aborted": ("400", "the connection broke in the middle of the body"),
    "no_key": ("401", "no key, or one that is wrong, expired or revoked"),
    "no_scope": ("403", "the key sees the place, and lacks the scope"),
    "not_found": ("404", "there is none, or the key may not see it: both look the same"),
    "too_slow": ("408", "the body came too slowly"),
    "already_released": ("409", "an image of this name is there with other content, or a row at another position"),
    "second_release": ("409", "an image with the same positions is there with other codes"),
    "space_mismatch": ("409", "the place has features of another recipe, device key or extractor"),
    "no_images": ("409", "the place has no images to map"),
    "no_positions": ("409", "no position of the images was released, and a map is made of such"),
    "no_map": ("409", "the place has no map yet"),
    "other_request": ("409", "this Idempotency-Key came with another request before"),
    "job_running": ("409", "a job is at work at this place, and did not end in time when it was cancelled"),
    "ended": ("409", "the job has ended already"),
    "too_many": ("409, 413, 422", "a limit on numbers: of places, images, names, pairs or candidates"),
    "too_large": ("413", "the body, or the number of its features, is beyond a limit"),
    "pictures_are_not_taken": ("415", "the body is no frame; the text says what to run on the device"),
    "not_compressed": ("415", "the body has a Content-Encoding"),
    "bad_frame": ("422", "the frame breaks a rule of the wire format"),
    "bad_release": ("422", "the positions break a rule of the wire format, or lie outside the image"),
    "other_version": ("422", "the frame has another version"),
    "clear_features": ("422", "the features protect nobody: raw, or with an evaluation seed"),
    "not_valid": ("422", "a parameter or a field is wrong; the text says which"),
    "rate": ("429", "too many requests of this key; Retry-After says how long to wait"),
    "uploads": ("429", "too many uploads at once, of all keys or of this one"),
    "queue_full": ("429", "too many queries or jobs wait, or too many queries of this key"),
    "internal": ("500", "an error of the server; its log says which"),
    "damaged_map": ("500", "the map of the place cannot be read; an administrator must make it again"),
    "busy": ("503", "too many connections are open"),
    "worker": ("503", "the process that worked on the query ended"),
    "deadline": ("504", "the query was not answered in time"),
    "disk_full": ("507", "the disk is full, or nearly; nothing was kept, reading goes on"),
}
RETRY = {
    "aborted", "too_slow", "rate", "uploads", "queue_full", "internal", "busy", "worker", "deadline", "disk_full"
}  # fmt: skip
"""Codes with ``retry`` true, or true in some cases."""

FRAME_CODES = ("too_large", "pictures_are_not_taken", "not_compressed", "bad_frame", "other_version", "clear_features",
               "space_mismatch", "rate")  # fmt: skip
QUERY_CODES = ("no_map", "422 too_many", "queue_full", "damaged_map", "worker", "deadline")
OWN_CODES = {
    "put /v1/places/{place}": ("409 too_many", "disk_full"),
    "delete /v1/places/{place}": ("job_running",),
    "post /v1/places/{place}/images:missing": ("413 too_many",),
    "put /v1/places/{place}/images/{name}": (
        "already_released", "second_release", "409 too_many", "uploads", "disk_full"
    ),
    "put /v1/places/{place}/images/{name}/positions": ("already_released", "bad_release", "uploads", "disk_full"),
    "post /v1/places/{place}/evidence": ("no_images", "other_request", "422 too_many", "queue_full", "disk_full"),
    "post /v1/places/{place}/maps": (
        "no_images", "no_positions", "other_request", "422 too_many", "queue_full", "disk_full"
    ),
    "post /v1/places/{place}/localize": QUERY_CODES,
    "post /v1/places/{place}/landmarks": QUERY_CODES,
    "post /v1/jobs/{job}:cancel": ("ended",),
    "post /v1/keys": ("disk_full",),
}  # fmt: skip
"""Refusals of single routes, beside those that follow from scope, path and body; of several statuses with the one."""


def refusals_of(route: str, operation: dict[str, Any]) -> str:
    """Refusals of a route: statuses, each with its codes."""
    scope, body = operation["x-scope"], operation.get("requestBody", {}).get("content", {})
    codes = set(OWN_CODES.get(route, ()))
    codes |= set() if scope == "none" else {"no_key"}
    codes |= set() if scope in ("none", "any") else {"no_scope"}
    codes |= {"not_found"} if "{" in route else set()
    codes |= {"not_valid"} if operation.get("parameters") or body else set()
    codes |= {"too_large", "too_slow", "aborted"} if body else set()
    codes |= set(FRAME_CODES) if FRAME in body else set()
    codes |= {"pictures_are_not_taken", "not_compressed", "rate"} if RELEASE in body else set()
    by_status: dict[str, list[str]] = {}
    for code in sorted(codes, key=lambda code: list(CODES).index(code.split()[-1])):
        status, name = code.split() if " " in code else (CODES[code][0], code)
        by_status.setdefault(status, []).append(f"`{name}`")
    return "; ".join(f"{status} {', '.join(names)}" for status, names in sorted(by_status.items()))


def type_of(schema: dict[str, Any]) -> str:
    """A type in words: integer, text or null, list of StoredImage."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(type_of(part) for part in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {type_of(schema.get('items', {}))}" if "items" in schema else "list of numbers"
    return {"string": "text", "boolean": "true or false"}.get(schema.get("type", ""), schema.get("type", "anything"))


def plain(text: str) -> str:
    return " ".join(text.replace("``", "`").split()).replace("|", "\\|")


def row_of(name: str, schema: dict[str, Any], *, is_required: bool, where: str | None = None) -> str:
    default = "" if is_required else f"`{json.dumps(schema.get('default'))}`"
    cells = [f"`{name}`", *([] if where is None else [where]), type_of(schema), default]
    return f"| {' | '.join(cells)} | {plain(schema.get('description', ''))} |"


def fields_of(schema: dict[str, Any]) -> list[str]:
    needed = set(schema.get("required", ()))
    rows = [row_of(name, field, is_required=name in needed) for name, field in schema["properties"].items()]
    return ["| field | type | default | |", "|---|---|---|---|", *rows]


def answers_of(operation: dict[str, Any]) -> str:
    answers = []
    for status, answer in operation["responses"].items():
        if status.endswith("XX"):
            continue
        kinds = [
            type_of(content["schema"]) if "$ref" in content.get("schema", {}) else f"`{media}`"
            for media, content in answer.get("content", {}).items()
        ]
        usual = [kind for kind in kinds if kind != "`application/json`"]  # what FastAPI adds beside a file
        answers.append(" ".join([status, ", ".join(usual or kinds)]).strip())
    return "; ".join(answers)


def body_of(operation: dict[str, Any]) -> str:
    kinds = operation.get("requestBody", {}).get("content", {})
    words = {FRAME: f"a frame, `{FRAME}`", RELEASE: f"positions, `{RELEASE}`"}
    return ", ".join(words.get(media) or f"JSON, {type_of(kind['schema'])}" for media, kind in kinds.items())


def section_of(route: str, operation: dict[str, Any]) -> list[str]:
    """The lines about one route."""
    facts = {
        "Scope": f"`{operation['x-scope']}`",
        "Body": body_of(operation),
        "Answers": answers_of(operation),
        "Refusals": refusals_of(route, operation),
    }
    lines = [f"### `{title_of(route)}`", "", plain(operation["description"]), ""]
    lines += [*(f"- {name}: {text}" for name, text in facts.items() if text), ""]
    parameters = [one for one in operation.get("parameters", ()) if one["in"] != "path"]
    if parameters:
        lines += ["| parameter | in | type | default | |", "|---|---|---|---|---|"]
        for one in parameters:
            schema = {**one["schema"], **({"description": one["description"]} if "description" in one else {})}
            lines.append(row_of(one["name"], schema, is_required=one.get("required", False), where=one["in"]))
        lines.append("")
    return lines


def title_of(route: str) -> str:
    method, path = route.split()
    return f"{method.upper()} {path}"


def page(document: dict[str, Any]) -> str:
    """The whole page."""
    routes = {
        f"{method} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    lines = [INTRODUCTION, "| request | scope | what it does |", "|---|---|---|"]
    for route, operation in routes.items():
        lines.append(f"| `{title_of(route)}` | `{operation['x-scope']}` | {plain(operation['description'])} |")
    for tag, title in SECTIONS.items():
        lines += ["", f"## {title}", ""]
        for route, operation in routes.items():
            if operation["tags"][-1] == tag:
                lines += section_of(route, operation)
    lines += ["## Objects", ""]
    for name, schema in document["components"]["schemas"].items():
        lines += [f"### {name}", "", plain(schema["description"]), "", *fields_of(schema), ""]
    lines += [REFUSALS, "| status | code | meaning | retry |", "|---|---|---|---|"]
    for code, (status, text) in CODES.items():
        lines.append(f"| {status} | `{code}` | {text} | {'yes' if code in RETRY else 'no'} |")
    return "\n".join(lines) + "\n"


def source_codes() -> set[str]:
    """Codes of refusals in the source of the server and of frames."""
    paths = [path for path in (ROOT / "src/sfumato/server").rglob("*.py") if path.name not in OF_PAGES]
    codes = set()
    for path in [*paths, ROOT / "src/sfumato/store/frames.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            place = {"Refusal": 1, "Conflict": 0, "FrameError": 1}.get(name)
            if place is not None and len(node.args) > place and isinstance(node.args[place], ast.Constant):
                codes.add(node.args[place].value)
    return codes - {"not_a_frame"}  # a client gets pictures_are_not_taken


def test_the_page_is_that_of_the_document():
    assert page(json.loads(DOCUMENT.read_text(encoding="utf-8"))) == PAGE.read_text(encoding="utf-8"), HOW


def test_codes_are_those_of_the_source():
    codes = source_codes()
    assert {"too_slow", "already_released", "clear_features"} <= codes
    assert codes <= set(CODES)
    assert set(CODES) - codes == {"bad_frame"} - codes


def test_routes_of_own_codes_exist():
    paths = json.loads(DOCUMENT.read_text(encoding="utf-8"))["paths"]
    assert set(OWN_CODES) <= {f"{method} {path}" for path, methods in paths.items() for method in methods}
    assert {code.split()[-1] for codes in OWN_CODES.values() for code in codes} <= set(CODES)


def test_every_route_has_a_section():
    document = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    text = page(document)
    for path, methods in document["paths"].items():
        for method in methods:
            assert f"### `{method.upper()} {path}`" in text


if __name__ == "__main__" and sys.argv[1:] == ["--update"]:
    PAGE.write_text(page(json.loads(DOCUMENT.read_text(encoding="utf-8"))), encoding="utf-8")
