# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests: none is read without a key, each has its size, its time and its slot; cameras of uploads."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

for library in ("fastapi", "httpx2", "sqlalchemy"):
    pytest.importorskip(library)

from starlette.testclient import TestClient  # noqa: E402

from sfumato.server import access, metrics, places  # noqa: E402
from sfumato.server import service as service_module  # noqa: E402
from sfumato.server.access import SERVER_SCOPES, VERBS  # noqa: E402
from sfumato.server.app import make_app  # noqa: E402
from sfumato.server.database import Store  # noqa: E402
from sfumato.server.engines import Engines  # noqa: E402
from sfumato.server.foreman import Foreman  # noqa: E402
from sfumato.server.limits import MEBIBYTE, Limits  # noqa: E402
from sfumato.server.service import OPEN, Service  # noqa: E402
from sfumato.store.frames import MEDIA_TYPE  # noqa: E402

KNOWN = Path(__file__).resolve().parent.parent / "openapi.json"
PLACE, NAME, JOB = "0123456789abcdef", "ab" * 16, "cd" * 16
UPLOAD, QUERY = f"/v1/places/{PLACE}/images/{NAME}", f"/v1/places/{PLACE}/localize"
LANDMARKS = f"/v1/places/{PLACE}/landmarks"
CAMERA = "PINHOLE,640,480,500,500,320,240"
Receive = Callable[[], Awaitable[dict[str, Any]]]


def routes() -> list[str]:
    """Method and path of every route that needs a key."""
    paths = {**json.loads(KNOWN.read_text())["paths"], "/v1/processes": {"get": {"x-scope": "admin"}}}
    return sorted(
        f"{method.upper()} {path.format(place=PLACE, name=NAME, number=1, job=JOB, key='aaaaaaaa')}"
        for path, methods in paths.items()
        for method, operation in methods.items()
        if operation["x-scope"] != OPEN
    )


@dataclass
class Wire:
    """An application that is spoken to without HTTP, so that every read of a body shows."""

    service: Service
    keys: dict[str, str]
    app: Any = field(init=False)
    reads: int = 0

    def __post_init__(self) -> None:
        self.app = make_app(self.service)

    async def send(self, route: str, headers: dict[str, str], receive: Receive | None = None) -> int:
        """Send a request and return the status of the answer."""
        method, path = route.split()
        statuses: list[int] = []

        async def read_nothing() -> dict[str, Any]:
            self.reads += 1
            return {"type": "http.request", "body": b" " * MEBIBYTE, "more_body": True}

        async def answer(message: Any) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
            "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http", "server": ("x", 80),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }  # fmt: skip
        await self.app(scope, receive or read_nothing, answer)
        return statuses[0]

    def status(self, route: str, **headers: str) -> int:
        return asyncio.run(self.send(route, {name.replace("_", "-"): value for name, value in headers.items()}))


def make_wire(folder: Path, **limits: Any) -> Wire:
    chosen = Limits(**{"least_free_bytes": 0, "upload_burst": 1000, "localize_burst": 1000, **limits})
    store = Store(folder)
    places.make_place(store, PLACE, 10)
    everything = [*SERVER_SCOPES, *(f"{verb}:*" for verb in VERBS)]
    keys = {name: f"Bearer {access.make_key(store, everything)}" for name in ("mine", "other")}
    keys["small"] = f"Bearer {access.make_key(store, ['localize:feedfeed'])}"
    return Wire(Service(store, chosen, Engines(folder, chosen), Foreman(store, chosen)), keys)


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    result = make_wire(tmp_path / "data")
    yield result
    result.service.store.close()


# --- keys come first


@pytest.mark.parametrize("kind", [MEDIA_TYPE, "application/json", "application/x-www-form-urlencoded"])
def test_no_byte_of_a_body_is_read_without_a_key(wire: Wire, kind: str):
    statuses = {}
    for route in routes():
        for length in ({"content_length": str(60 * MEBIBYTE)}, {"transfer_encoding": "chunked"}):
            for key in ({}, {"authorization": "Bearer sfm_wrong"}):
                statuses[route, *length, *key] = wire.status(route, content_type=kind, **length, **key)
    assert set(statuses.values()) == {401}
    assert len(statuses) > 80
    assert wire.reads == 0


def test_no_byte_of_a_body_is_read_without_the_scope(wire: Wire):
    free = {"GET /v1/about", "GET /v1/places", "GET /v1/jobs"}
    statuses = {route: wire.status(route, authorization=wire.keys["small"]) for route in routes() if route not in free}
    assert set(statuses.values()) == {403, 404}
    assert wire.reads == 0


def test_json_that_is_broken_needs_a_key_first(wire: Wire):
    client, words = TestClient(wire.app), {"content": b"{", "headers": {"Content-Type": "application/json"}}
    assert client.post("/v1/keys", **words).status_code == 401
    words["headers"]["Authorization"] = wire.keys["mine"]
    assert client.post("/v1/keys", **words).status_code == 422


def test_a_key_is_looked_up_once(wire: Wire, scene: Any, monkeypatch: pytest.MonkeyPatch):
    lookups = []

    def look_up(store: Store, key: str) -> Any:
        lookups.append(key)
        return access.grant_of(store, key)

    monkeypatch.setattr(service_module, "grant_of", look_up)
    assert put(wire, scene.frame(0.0)).status_code == 201
    assert len(lookups) == 1


# --- sizes


@pytest.mark.parametrize(
    ("route", "most"),
    [(f"PUT {UPLOAD}", 64), (f"POST {QUERY}", 8), (f"POST {LANDMARKS}", 8), ("POST /v1/keys", 2),
     (f"PATCH /v1/places/{PLACE}", 2), (f"POST /v1/places/{PLACE}/images:missing", 2),
     (f"POST /v1/places/{PLACE}/maps", 2), (f"POST /v1/places/{PLACE}/evidence", 2)],
)  # fmt: skip
def test_a_route_takes_bodies_of_its_own_size(wire: Wire, route: str, most: int):
    words = {"authorization": wire.keys["mine"], "content_type": MEDIA_TYPE, "idempotency_key": "12345678"}
    assert wire.status(route, **words, content_length=str(most * MEBIBYTE + 1)) == 413
    assert wire.reads == 0
    assert wire.status(route, **words, transfer_encoding="chunked") == 413
    assert wire.reads == most + 1  # of a mebibyte each


# --- times and slots


def test_a_body_has_an_end(tmp_path: Path):
    wire = make_wire(tmp_path / "data", body_seconds=0.3, upload_seconds=10.0, slowest_upload=1)

    async def drop() -> dict[str, Any]:
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b"x" * 1000, "more_body": True}

    async def upload() -> int:
        headers = {"Authorization": wire.keys["mine"], "Content-Type": MEDIA_TYPE}
        return await asyncio.wait_for(wire.send(f"PUT {UPLOAD}", headers, drop), 5)

    assert asyncio.run(upload()) == 408
    assert not list((tmp_path / "data" / "uploads").iterdir())
    wire.service.store.close()


@pytest.mark.parametrize(
    ("route", "limits"),
    [(f"PUT {UPLOAD}", {"uploads_at_once": 3, "uploads_of_key": 2}),
     (f"POST {QUERY}", {"query_queue": 3, "queries_of_key": 2}),
     (f"POST {LANDMARKS}", {"query_queue": 3, "queries_of_key": 2})],
)  # fmt: skip
def test_a_key_with_slow_bodies_leaves_room_for_others(tmp_path: Path, route: str, limits: dict[str, int]):
    wire = make_wire(tmp_path / "data", **limits)

    async def crowd() -> list[int]:
        end, begun = asyncio.Event(), []

        async def wait() -> dict[str, Any]:
            begun.append(1)
            await end.wait()
            return {"type": "http.request", "body": b"no frame", "more_body": False}

        async def send(key: str) -> int:
            return await wire.send(route, {"Authorization": wire.keys[key], "Content-Type": MEDIA_TYPE}, wait)

        slow = [asyncio.create_task(send("mine")) for _ in range(2)]
        while len(begun) < 2:
            await asyncio.sleep(0.01)
        third = await send("mine")
        other = asyncio.create_task(send("other"))
        while len(begun) < 3:
            await asyncio.sleep(0.01)
        end.set()
        return [third, await other, *(await asyncio.gather(*slow)), await send("mine")]

    assert asyncio.run(crowd()) == [429, 415, 415, 415, 415]
    wire.service.store.close()


def test_one_key_has_a_part_of_all_slots():
    limits = Limits()
    assert limits.uploads_of_key <= limits.uploads_at_once / 4
    assert limits.queries_of_key <= limits.query_queue / 2


# --- connections


def test_a_server_with_too_many_connections_says_so_and_lives(wire: Wire):
    client = TestClient(wire.app)
    wire.service.connections = range(wire.service.limits.connections)
    assert client.get("/v1/about", headers={"Authorization": wire.keys["mine"]}).status_code == 200
    wire.service.connections = range(wire.service.limits.connections + 1)
    words = {"method": "GET", "route": "unknown", "status": "503"}
    before = metrics.registry.get_sample_value("sfumato_requests_total", words) or 0
    answer = client.get("/v1/about", headers={"Authorization": wire.keys["mine"]})
    assert (answer.status_code, answer.json()["code"], answer.json()["retry"]) == (503, "busy", True)
    assert int(answer.headers["retry-after"]) >= 1
    assert metrics.registry.get_sample_value("sfumato_requests_total", words) == before + 1
    assert client.get("/livez").status_code == 200


# --- cameras


def put(wire: Wire, frame: bytes, **params: Any) -> Any:
    headers = {"Authorization": wire.keys["mine"], "Content-Type": MEDIA_TYPE}
    return TestClient(wire.app).put(UPLOAD, content=frame, params=params, headers=headers)


@pytest.mark.parametrize(
    ("camera", "word"),
    [("PINHOLE,640,480,0,0,0,0", "focal"), ("PINHOLE,640,480,500,320,240", "parameters"), ("FOO,640,480,500", "FOO"),
     ("PINHOLE,640,480,-500,500,320,240", "focal"), ("PINHOLE,640,480,1e308,500,320,240", "at most"),
     ("PINHOLE,640,480,500,500,nan,240", "finite"), ("PINHOLE,640,480,500,500,x,240", "number"),
     ("EQUIRECTANGULAR,640,480,640,480", "focal"), ("PINHOLE,0,480,500,500,320,240", "width"), ("", "model"),
     ("PINHOLE,480,640,500,500,320,240", "480 x 640")],
)  # fmt: skip
def test_a_camera_that_no_map_can_use_is_refused(wire: Wire, scene: Any, camera: str, word: str):
    answer = put(wire, scene.frame(0.0), camera=camera)
    assert answer.status_code == 422
    assert word in answer.json()["detail"]
    assert not places.list_images(wire.service.store, PLACE)
    if "640,480" in camera:  # queries have the same cameras
        words = {"headers": {"Authorization": wire.keys["mine"], "Content-Type": MEDIA_TYPE}, "content": b"x"}
        assert TestClient(wire.app).post(QUERY, params={"camera": camera}, **words).status_code == 422


def test_a_camera_is_corrected_by_the_same_frame(wire: Wire, scene: Any):
    frame = scene.frame(0.0)
    assert put(wire, frame, camera=CAMERA).status_code == 201
    first = put(wire, frame).json()
    assert first["camera"] == "PINHOLE,640,480,500.0,500.0,320.0,240.0"
    other = put(wire, frame, camera=CAMERA.replace("500", "510"))
    assert other.status_code == 200
    assert other.json() == {**first, "camera": "PINHOLE,640,480,510.0,510.0,320.0,240.0"}
    assert put(wire, frame, camera="FOO,1").status_code == 422
    assert put(wire, frame).json() == other.json()
    assert put(wire, frame, focal_px=520).json() == {**first, "camera": None, "focal_px": 520.0}
    assert put(wire, scene.frame(0.5), camera=CAMERA).status_code == 409
    assert put(wire, frame).json()["focal_px"] == 520.0
