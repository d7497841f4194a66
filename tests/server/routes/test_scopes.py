# SPDX-License-Identifier: Apache-2.0
"""Who may do what: every route of the OpenAPI document with every kind of key, against the scope that it names."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

for library in ("fastapi", "httpx2", "sqlalchemy"):
    pytest.importorskip(library)

import sqlalchemy  # noqa: E402
from starlette.testclient import TestClient  # noqa: E402

from sfumato.server import access, jobs, places  # noqa: E402
from sfumato.server.access import SERVER_SCOPES, VERBS, Grant  # noqa: E402
from sfumato.server.app import make_app  # noqa: E402
from sfumato.server.blobs import BUNDLE, CAMERAS, POINTS, evidence_path, map_path  # noqa: E402
from sfumato.server.database import Store  # noqa: E402
from sfumato.server.engines import Engines  # noqa: E402
from sfumato.server.foreman import Foreman  # noqa: E402
from sfumato.server.limits import Limits  # noqa: E402
from sfumato.server.routes import jobs as job_routes  # noqa: E402
from sfumato.server.routes import maps, operations, releases  # noqa: E402
from sfumato.server.routes import places as place_routes  # noqa: E402
from sfumato.server.service import ANY, OPEN, Service  # noqa: E402
from sfumato.store.frames import MEDIA_TYPE, RELEASE_TYPE  # noqa: E402

KNOWN = Path(__file__).resolve().parent.parent / "openapi.json"
HOW = "Meant? Then: python tests/server/routes/test_scopes.py --update, and a line in CHANGELOG.md"
PLACE, OTHER, NAME = "0123456789abcdef", "feedfeedfeed", "ab" * 16
HIDDEN = {"/v1/processes", "/livez", "/readyz"}
"""Routes of the interface that are not in the document, or not with all their methods: HEAD."""
SINGLE = [*SERVER_SCOPES, *(f"{verb}:{where}" for verb in VERBS for where in (PLACE, OTHER, "*"))]
BODIES: dict[str, dict[str, Any]] = {
    "post /v1/keys": {"json": {"scopes": ["read:*"]}},
    "patch /v1/places/{place}": {"json": {"current_map": 1}},
    "post /v1/places/{place}/images:missing": {"json": []},
    "put /v1/places/{place}/images/{name}": {"content": b"x", "headers": {"Content-Type": MEDIA_TYPE}},
    "put /v1/places/{place}/images/{name}/positions": {"content": b"", "headers": {"Content-Type": RELEASE_TYPE}},
    "post /v1/places/{place}/evidence": {"json": {"own": [NAME]}, "headers": {"Idempotency-Key": "87654321"}},
    "post /v1/places/{place}/maps": {"json": {}, "headers": {"Idempotency-Key": "12345678"}},
    "post /v1/places/{place}/localize": {"content": b"x", "headers": {"Content-Type": MEDIA_TYPE}},
    "post /v1/places/{place}/landmarks": {"content": b"x", "headers": {"Content-Type": MEDIA_TYPE}},
}


def make_service(folder: Path) -> Service:
    """A service without engines and jobs at work."""
    limits = Limits(localize_rate=1e6, localize_burst=10**6, upload_rate=1e6, upload_burst=10**6, least_free_bytes=0)
    store = Store(folder)
    return Service(store, limits, Engines(folder, limits), Foreman(store, limits))


def document(folder: Path) -> dict[str, Any]:
    app = make_app(make_service(folder))
    result: dict[str, Any] = app.openapi()
    return result


def operations_of(doc: dict[str, Any]) -> dict[str, str | None]:
    """The scope that each route names, by method and path."""
    return {
        f"{method} {path}": operation.get("x-scope")
        for path, methods in doc["paths"].items()
        for method, operation in methods.items()
    }


@dataclass
class World:
    """A service with a place that has an image, a map and a job that has ended, and keys of every kind."""

    service: Service
    client: TestClient
    keys: dict[str, str]
    spare: str
    all_scopes: str
    job: str = ""

    def prepare(self) -> None:
        """Make the place and what is in it, again if the last request removed it."""
        store = self.service.store
        if not places.make_place(store, PLACE, 100):
            return
        with store.write() as connection:
            connection.execute(
                places.images.insert().values(
                    place=PLACE, name=NAME, digest="0" * 64, layout="", count=0, bytes=0, made=0.0,
                    recipe="sealed-512@0123456789ab", extractor="sift",
                )
            )  # fmt: skip
            connection.execute(places.releases.insert().values(place=PLACE, name=NAME, count=0, positions=b""))
            places.publish_map(connection, PLACE, "map", {}, "0" * 64, make_current=True)
        for part, text in ((BUNDLE, ""), (POINTS, ""), (CAMERAS, json.dumps({}))):
            path = map_path(self.service.data, PLACE, "map", part)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        frame = self.service.data / "frames" / PLACE / "00" / ("0" * 64)
        frame.parent.mkdir(parents=True, exist_ok=True)
        frame.touch()
        job, _ = jobs.submit(store, PLACE, {"images": [NAME]}, "request", 100, 100)
        jobs.cancel(store, job.id)
        self.job = job.id
        evidence = evidence_path(self.service.data, PLACE, job.id)
        evidence.parent.mkdir(parents=True, exist_ok=True)
        evidence.touch()

    def ask(self, route: str, key: str | None) -> Any:
        self.prepare()
        method, path = route.split()
        path = path.format(place=PLACE, name=NAME, number=1, job=self.job, key=self.spare)
        words = dict(BODIES.get(route, {}))
        headers = {**words.pop("headers", {}), **({} if key is None else {"Authorization": f"Bearer {key}"})}
        return self.client.request(method.upper(), path, headers=headers, **words)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    service = make_service(tmp_path_factory.mktemp("scopes") / "data")
    keys = {scope: access.make_key(service.store, [scope]) for scope in SINGLE}
    spare = access.make_key(service.store, ["metrics"]).split("_")[1]
    all_scopes = access.make_key(service.store, [*SERVER_SCOPES, *(f"{verb}:*" for verb in VERBS)])
    yield World(service, TestClient(make_app(service), raise_server_exceptions=False), keys, spare, all_scopes)
    service.store.close()


def expected(needed: str, scopes: str, route: str) -> set[int] | None:
    """Statuses of a refusal for a key with one scope; None if it is allowed."""
    grant = Grant("key", frozenset([scopes]))
    about_place = "{place}" in route or "{job}" in route
    if needed in (ANY, OPEN) or grant.allows(needed, PLACE if about_place else None):
        return None
    return {403} if not about_place or grant.sees(PLACE) else {404}


def routes() -> list[tuple[str, str]]:
    doc = json.loads(KNOWN.read_text()) if KNOWN.exists() else {"paths": {}}
    return sorted((route, str(needed)) for route, needed in operations_of(doc).items())


@pytest.mark.parametrize(("route", "needed"), routes())
def test_a_key_may_do_what_its_scope_says(world: World, route: str, needed: str):
    wrong = {}
    for scopes, key in world.keys.items():
        status, refusals = world.ask(route, key).status_code, expected(needed, scopes, route)
        is_right = status not in (401, 403, 404) if refusals is None else status in refusals
        if not is_right:
            wrong[scopes] = status
    assert not wrong


def test_who_may_ask_for_evidence_follows_and_cancels_the_job_of_it_and_no_other(world: World):
    world.prepare()
    store, wrong = world.service.store, {}
    request = {"kind": jobs.EVIDENCE_JOB, "images": [NAME], "own": [NAME]}
    kinds = {"evidence": request, "map": {"images": [NAME]}}
    for kind, facts in kinds.items():
        job, _ = jobs.submit(store, PLACE, facts, f"{kind} followed", 100, 100)
        jobs.cancel(store, job.id)
        for scopes, key in world.keys.items():
            grant = Grant("key", frozenset([scopes]))
            headers = {"Authorization": f"Bearer {key}"}
            for method, path, verb in (("GET", "", "read"), ("GET", "/events", "read"), ("POST", ":cancel", "map")):
                status = world.client.request(method, f"/v1/jobs/{job.id}{path}", headers=headers).status_code
                may = grant.allows(verb, PLACE) or (kind == "evidence" and grant.allows("upload", PLACE))
                if (status in (401, 403, 404)) == may:
                    wrong[kind, scopes, path] = status
    assert not wrong


def test_evidence_of_another_place_is_not_there(world: World):
    world.prepare()
    for scopes in ("upload:*", f"upload:{OTHER}"):
        headers = {"Authorization": f"Bearer {world.keys[scopes]}"}
        assert world.client.get(f"/v1/places/{OTHER}/evidence/{world.job}", headers=headers).status_code == 404
    headers = {"Authorization": f"Bearer {world.keys['upload:*']}"}
    assert world.client.get(f"/v1/places/{PLACE}/evidence/{world.job}", headers=headers).status_code == 200
    evidence_path(world.service.data, PLACE, world.job).unlink()  # an hour later
    assert world.client.get(f"/v1/places/{PLACE}/evidence/{world.job}", headers=headers).status_code == 404
    places.delete_place(world.service.store, PLACE)


def bad_keys(store: Store) -> dict[str, str | None]:
    everything = [*SERVER_SCOPES, *(f"{verb}:*" for verb in VERBS)]
    good, revoked = (access.make_key(store, everything) for _ in range(2))
    access.revoke_key(store, revoked.split("_")[1])
    expired = access.make_key(store, everything, seconds=0.001)
    time.sleep(0.01)
    head, name, *_ = good.split("_")
    stranger = "A" * 43
    return {
        "none": None, "empty": "", "garbage": "garbage", "long": "sfm_" + "a" * 10_000, "expired": expired,
        "revoked": revoked, "without its end": good[:-1], "with more": good + "a",
        "another secret": f"{head}_{name}_{stranger}_{access._checksum(name, stranger)}",
        "another checksum": good[:-6] + ("000000" if good[-6:] != "000000" else "111111"),
        "capitals": good.upper(),
    }  # fmt: skip


def test_a_key_that_is_not_valid_may_do_nothing(world: World):
    wrong = []
    for kind, key in bad_keys(world.service.store).items():
        few = () if kind in ("none", "expired", "revoked") else ("get /v1/about", "post /v1/keys", "get /livez")
        for route, needed in routes():
            if few and route not in few:
                continue  # a key is read by one function: what is no key at all need not be tried everywhere
            answer = world.ask(route, key)
            if (answer.status_code == 401) != (needed != OPEN):
                wrong.append((kind, route, answer.status_code))
    assert not wrong


@pytest.mark.parametrize("header", ["Basic {key}", "bearer", "{key}", "Token {key}"])
def test_keys_are_taken_as_bearers_alone(world: World, header: str):
    key = world.keys["metrics"]
    assert world.client.get("/metrics", headers={"Authorization": header.format(key=key)}).status_code == 401
    assert world.client.get(f"/metrics?key={key}").status_code == 401


def test_a_place_that_is_not_there_looks_like_one_of_others(world: World):
    key, answers = world.keys[f"read:{OTHER}"], []
    world.prepare()
    for place in (PLACE, "0" * 16):
        answer = world.client.get(f"/v1/places/{place}", headers={"Authorization": f"Bearer {key}"})
        answers.append((answer.status_code, answer.json()["detail"].replace(place, "")))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404


def test_lists_hold_what_a_key_may_see(world: World):
    world.prepare()
    expected = {f"read:{PLACE}": (1, 1), f"read:{OTHER}": (0, 0), "read:*": (1, 1), "localize:*": (0, 0),
                f"localize:{PLACE}": (0, 0), "poses:*": (0, 0), "metrics": (0, 0), "admin": (1, 0)}  # fmt: skip
    counts = {}
    for scopes in expected:
        headers = {"Authorization": f"Bearer {world.keys[scopes]}"}
        answers = [world.client.get(path, params={"limit": 1}, headers=headers) for path in ("/v1/places", "/v1/jobs")]
        counts[scopes] = tuple(len(answer.json()["items"]) for answer in answers)
    assert counts == expected


def test_every_route_names_its_scope(tmp_path: Path):
    allowed = {*VERBS, *SERVER_SCOPES, ANY, OPEN}
    assert not {route for route, needed in operations_of(document(tmp_path / "data")).items() if needed not in allowed}
    hidden = set()
    for router in (operations.router, place_routes.router, releases.router, maps.router, job_routes.router):
        for route in router.routes:
            extra = getattr(route, "openapi_extra", None) or {}
            assert extra.get("x-scope") in allowed, route
            if not getattr(route, "include_in_schema", True):
                hidden.add(getattr(route, "path", ""))
    assert hidden == HIDDEN


def test_a_route_without_a_scope_is_seen():
    doc = {"paths": {"/v1/new": {"get": {}}, "/v1/old": {"get": {"x-scope": "any"}}}}
    assert operations_of(doc) == {"get /v1/new": None, "get /v1/old": "any"}


def test_the_hidden_route_needs_an_administrator(world: World):
    for scopes, key in world.keys.items():
        if scopes != "admin":
            headers = {"Authorization": f"Bearer {key}"}
            assert world.client.get("/v1/processes", headers=headers).status_code == 403
    assert world.client.get("/v1/processes").status_code == 401


@pytest.mark.parametrize(("route", "needed"), routes())
def test_no_answer_of_the_interface_is_stored(world: World, route: str, needed: str):
    for key in (None, world.all_scopes):
        assert world.ask(route, key).headers["cache-control"] == "no-store"


def test_health_answers_head(world: World):
    assert world.client.head("/livez").status_code == 200
    assert world.client.head("/readyz").status_code == 503  # its engines never started
    assert not world.client.head("/readyz").content


def test_tls_is_asked_for_where_there_is_tls(world: World, monkeypatch: pytest.MonkeyPatch):
    name = "strict-transport-security"
    assert name not in world.client.get("/livez").headers
    monkeypatch.setattr(world.service, "is_secure", True)
    assert world.client.get("/livez").headers[name].startswith("max-age=")


@pytest.mark.parametrize("number", [0, -1, 2**31 + 1, 2**63, 10**30])
def test_numbers_have_bounds(world: World, number: int):
    world.prepare()
    headers = {"Authorization": f"Bearer {world.all_scopes}"}
    job = f"/v1/jobs/{world.job}"
    answers = [
        world.client.patch(f"/v1/places/{PLACE}", json={"current_map": number}, headers=headers),
        world.client.get(f"/v1/places/{PLACE}/maps/{number}", headers=headers),
        world.client.get("/v1/jobs", params={"before": number}, headers=headers),
    ]
    if number:
        answers += [
            world.client.get(f"{job}/events", headers={**headers, "Last-Event-ID": str(number)}),
            world.client.get(job, params={"after": number}, headers=headers),
        ]
    assert {answer.status_code for answer in answers} == {422}


def test_a_list_of_no_images_is_empty_and_not_the_place(world: World):
    world.prepare()
    headers = {"Authorization": f"Bearer {world.all_scopes}", "Idempotency-Key": "12345678"}
    answer = world.client.post(f"/v1/places/{PLACE}/maps", json={"images": []}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "not_valid")
    assert "empty" in answer.json()["detail"]


# --- lists


@pytest.fixture
def statements(world: World) -> Iterator[list[str]]:
    """What the database is asked, as it is asked."""
    asked: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    sqlalchemy.event.listen(world.service.store.engine, "before_cursor_execute", note)
    yield asked
    sqlalchemy.event.remove(world.service.store.engine, "before_cursor_execute", note)


def test_places_are_listed_with_few_questions_and_in_parts(world: World, statements: list[str]):
    world.prepare()
    ids = [f"{number:016x}" for number in range(40)]
    for name in ids:
        places.make_place(world.service.store, name, 100)
    headers = {"Authorization": f"Bearer {world.keys['read:*']}"}
    statements.clear()
    items = world.client.get("/v1/places", headers=headers).json()["items"]
    assert len(statements) <= 6
    assert [item["id"] for item in items] == sorted([*ids, PLACE])
    assert {item["id"]: item["images"] for item in items if item["images"]} == {PLACE: 1}
    parts, after = [], ""
    while after is not None:
        answer = world.client.get("/v1/places", params={"limit": 10, "after": after}, headers=headers).json()
        parts += [item["id"] for item in answer["items"]]
        after = answer["next"]
    assert parts == sorted([*ids, PLACE])
    for name in ids:
        places.delete_place(world.service.store, name)


def test_a_list_of_jobs_names_the_maps_that_they_made(world: World, statements: list[str]):
    store = world.service.store
    world.prepare()
    places.delete_place(store, PLACE)  # with the jobs of other tests
    world.prepare()
    for number in range(12):
        job, _ = jobs.submit(store, PLACE, {"images": [NAME]}, f"request {number}", 100, 100)
        claim = jobs.claim(store, 30, 3)
        assert claim is not None
        facts = {"map": 70 + number, "figures": {"points": number}}
        jobs.finish(store, job.id, claim.fence, jobs.DONE, "", lambda _, facts=facts: facts)
    headers = {"Authorization": f"Bearer {world.keys['read:*']}"}
    statements.clear()
    items = world.client.get("/v1/jobs", params={"limit": 12}, headers=headers).json()["items"]
    assert len(statements) <= 6
    assert [item["map"] for item in items] == list(range(81, 69, -1))
    assert items[0]["figures"] == {"points": 11}
    assert items[0]["events"] == 3
    earlier = world.client.get("/v1/jobs", params={"before": items[9]["number"]}, headers=headers).json()["items"]
    assert [item["map"] for item in earlier][:2] == [71, 70]
    places.delete_place(store, PLACE)


def snapshot(doc: dict[str, Any]) -> str:
    text = json.dumps(doc, indent=1, sort_keys=True) + "\n"
    return re.sub(r'"version": "[^"]*"', '"version": ""', text)


def test_the_document_is_the_known_one(tmp_path: Path):
    assert snapshot(document(tmp_path / "data")) == KNOWN.read_text(), HOW


def test_refusals_are_problems_with_headers(world: World):
    for route, status in (("get /v1/about", 401), ("get /v1/nowhere", 404), ("post /livez", 405)):
        answer = world.ask(route, None)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        facts = answer.json()
        assert set(facts) == {"type", "title", "status", "code", "detail", "retry", "request_id"}
        assert facts["request_id"] == answer.headers["x-request-id"]
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_an_error_that_nobody_foresaw_is_a_problem_without_details(world: World, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any) -> None:
        raise RuntimeError("secretvalue")

    monkeypatch.setattr(access, "list_keys", fail)
    answer = world.ask("get /v1/keys", world.keys["admin"])
    assert answer.status_code == 500
    assert answer.json()["code"] == "internal"
    assert "secretvalue" not in answer.text
    assert answer.headers["x-request-id"] == answer.json()["request_id"]


if __name__ == "__main__":
    import sys
    import tempfile

    if sys.argv[1:] == ["--update"]:
        with tempfile.TemporaryDirectory() as made:
            KNOWN.write_text(snapshot(document(Path(made) / "data")))
