# SPDX-License-Identifier: Apache-2.0
"""Released positions and evidence, request by request: what is taken, what is refused, and what then changes."""

import asyncio
import dataclasses
import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for library in ("fastapi", "httpx2", "sqlalchemy"):
    pytest.importorskip(library)

from starlette.testclient import TestClient  # noqa: E402

from sfumato.server import access, jobs, metrics, places  # noqa: E402
from sfumato.server.access import VERBS  # noqa: E402
from sfumato.server.app import largest_body, make_app  # noqa: E402
from sfumato.server.database import Store  # noqa: E402
from sfumato.server.engines import Engines  # noqa: E402
from sfumato.server.foreman import Foreman  # noqa: E402
from sfumato.server.limits import Limits  # noqa: E402
from sfumato.server.service import Service  # noqa: E402
from sfumato.store.frames import MEDIA_TYPE, RELEASE_TYPE, encode_frame, encode_release, frame_digest  # noqa: E402
from sfumato.types.concealed import Bits, ConcealedFeatures, RowTags  # noqa: E402

PLACE, NAME, WHOLE, STRANGER = "0123456789abcdef", "ab" * 16, "cd" * 16, "ef" * 16
COUNT = 40


def at_home(scene: Any, seed: int = 1, count: int = COUNT) -> ConcealedFeatures:
    """A photo whose positions stay home, with tags."""
    image, rng = scene.photo(0.5).take(np.arange(count)).without_positions(), np.random.default_rng(seed)
    return dataclasses.replace(image, tags=RowTags(rng.bytes(16).hex(), rng.integers(0, 256, (count, 8), np.uint8)))


@dataclass
class Server:
    """An application with a place that has an image without positions and one with all of them."""

    service: Service
    client: TestClient
    keys: dict[str, str]

    def put(self, content: bytes, name: str = NAME, path: str = "/positions", **headers: str) -> Any:
        kind = RELEASE_TYPE if path else MEDIA_TYPE
        words = {"Authorization": f"Bearer {self.keys['upload']}", "Content-Type": kind}
        words |= {key.replace("_", "-"): value for key, value in headers.items()}
        return self.client.put(f"/v1/places/{PLACE}/images/{name}{path}", content=content, headers=words)

    def post(self, path: str, verb: str, **words: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.keys[verb]}", **words.pop("headers", {})}
        return self.client.post(f"/v1/places/{PLACE}{path}", headers=headers, **words)

    def ask_for_evidence(self, own: list[str], key: str = "", **more: Any) -> Any:
        headers = {"Idempotency-Key": key or secrets.token_hex(8)}
        return self.post("/evidence", "upload", json={"own": own, **more}, headers=headers)

    def released(self, name: str = NAME) -> bytes:
        table = places.releases
        with self.service.store.read() as connection:
            query = table.select().where(table.c.place == PLACE, table.c.name == name)
            return bytes(connection.execute(query).one().positions)


@pytest.fixture
def server(tmp_path: Path, scene: Any) -> Iterator[Server]:
    limits = Limits(least_free_bytes=0, upload_burst=1000, localize_burst=1000, uploads_at_once=3, uploads_of_key=2)
    store = Store(tmp_path / "data")
    service = Service(store, limits, Engines(store.folder, limits), Foreman(store, limits))
    places.make_place(store, PLACE, 10)
    keys = {verb: access.make_key(store, [f"{verb}:*"]) for verb in VERBS}
    result = Server(service, TestClient(make_app(service)), keys)
    assert result.put(encode_frame(at_home(scene)), NAME, "").status_code == 201
    assert result.put(encode_frame(scene.photo(0.0)), WHOLE, "").status_code == 201
    yield result
    store.close()


def some(*rows: int, x: float = 100.0) -> bytes:
    return encode_release(np.array(rows), np.array([[x + row, 50.0] for row in rows]))


# --- what is taken


def test_positions_come_in_parts_and_each_once(server: Server, scene: Any):
    first = server.put(some(3, 7))
    assert (first.status_code, first.json()["released"], first.json()["count"]) == (200, 2, COUNT)
    assert server.put(some(3, 7)).json()["released"] == 2, "again is no change"
    assert server.put(some(0, 7, 39)).json()["released"] == 4
    assert server.put(b"").json()["released"] == 4
    assert server.released() == some(0, 3, 7, 39)
    row = places.read_image_row(server.service.store, PLACE, NAME)
    features = places.read_features(server.service.store, PLACE, row)
    assert np.flatnonzero(features.is_shown).tolist() == [0, 3, 7, 39]
    assert features.keypoints[7].tolist() == [107, 50, 1, 0]
    assert features.code.packed.tobytes() == at_home(scene).code.packed.tobytes()


def test_a_device_is_told_how_many_positions_the_server_has(server: Server, scene: Any):
    digests = [{"name": NAME, "digest": frame_digest(encode_frame(at_home(scene)))},
               {"name": WHOLE, "digest": frame_digest(encode_frame(scene.photo(0.0)))}]  # fmt: skip
    server.put(some(1, 2, 3))
    assert server.post("/images:missing", "upload", json=digests).json() == {
        "missing": [], "conflicting": [], "released": {NAME: 3}
    }  # fmt: skip


def test_the_frame_stays_as_it_came(server: Server, scene: Any):
    server.put(some(1, 2, 3))
    headers = {"Authorization": f"Bearer {server.keys['export']}"}
    frame = encode_frame(at_home(scene))
    assert server.client.get(f"/v1/places/{PLACE}/images/{NAME}/frame", headers=headers).content == frame
    again = server.put(frame, NAME, "")
    assert (again.status_code, again.json()["released"]) == (200, 3)


# --- what is refused


INFINITE = [struct.pack("<Iff", 1, *pair) for pair in ((float("nan"), 5.0), (5.0, float("inf")), (float("-inf"), 0.0))]
OUTSIDE = [struct.pack("<Iff", 1, *pair) for pair in ((641.0, 5.0), (5.0, 481.0), (-1.0, 5.0), (5.0, -0.75))]


@pytest.mark.parametrize(
    "content",
    [*INFINITE, *OUTSIDE, some(2)[:-1], some(2) + b"\0", some(5, 6)[12:] + some(5), some(5) + some(5), some(COUNT),
     some(2**32 - 1), some(1) + INFINITE[0], b"x"],
)  # fmt: skip
def test_positions_that_break_a_rule_are_refused(server: Server, content: bytes):
    server.put(some(7))
    answer = server.put(content)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_release")
    assert "frame" not in answer.json()["detail"]
    assert server.released() == some(7)


def test_positions_at_the_edge_are_taken(server: Server):
    edges = b"".join(struct.pack("<Iff", row, *pair) for row, pair in enumerate(((-0.5, -0.5), (639.5, 479.5))))
    assert server.put(edges).status_code == 200


def test_a_row_at_another_position_is_refused_and_nothing_of_it_is_taken(server: Server):
    server.put(some(3, 7))
    for content in (some(3, x=101.0), some(1, 2, 3, x=101.0), some(3, 7, 9, x=99.9375)):
        answer = server.put(content)
        assert (answer.status_code, answer.json()["code"]) == (409, "already_released")
        assert server.released() == some(3, 7)
    assert server.put(some(3, 8)).json()["released"] == 3


def test_an_image_that_came_with_all_positions_has_none_to_release(server: Server):
    answer = server.put(some(1), WHOLE)
    assert (answer.status_code, answer.json()["code"]) == (409, "already_released")
    assert "all its positions" in answer.json()["detail"]


def test_images_and_places_that_are_not_there_and_other_bodies_are_refused(server: Server):
    assert server.put(some(1), STRANGER).status_code == 404
    for kind in (MEDIA_TYPE, "application/json", "application/octet-stream", "image/png", ""):
        answer = server.put(some(1), Content_Type=kind)
        assert (answer.status_code, answer.json()["code"]) == (415, "pictures_are_not_taken")
    assert server.put(some(1), Content_Encoding="gzip").json()["code"] == "not_compressed"
    assert server.put(some(1), "not a name").status_code == 422
    longer = server.put(bytes(12 * COUNT + 1))
    assert (longer.status_code, longer.json()["code"]) == (413, "too_large")
    assert server.put(bytes(3 * 2**20)).status_code == 413
    assert server.released() == b""


def test_a_key_with_slow_positions_leaves_room_for_others(server: Server):
    app, key = server.client.app, f"Bearer {server.keys['upload']}"
    other = f"Bearer {access.make_key(server.service.store, ['upload:*'])}"

    async def crowd() -> list[int]:
        end, begun = asyncio.Event(), []

        async def wait() -> dict[str, Any]:
            begun.append(1)
            await end.wait()
            return {"type": "http.request", "body": some(1), "more_body": False}

        async def send(key: str) -> int:
            path, statuses = f"/v1/places/{PLACE}/images/{NAME}/positions", list[int]()

            async def answer(message: Any) -> None:
                statuses.extend([message["status"]] if "status" in message else [])

            headers = {"authorization": key, "content-type": RELEASE_TYPE}
            scope = {
                "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "PUT", "path": path,
                "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http", "server": ("x", 80),
                "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            }  # fmt: skip
            await app(scope, wait, answer)
            return statuses[0]

        slow = [asyncio.create_task(send(key)) for _ in range(2)]
        while len(begun) < 2:
            await asyncio.sleep(0.01)
        third, last = await send(key), asyncio.create_task(send(other))
        while len(begun) < 3:
            await asyncio.sleep(0.01)
        end.set()
        return [third, await last, *(await asyncio.gather(*slow))]

    assert asyncio.run(crowd()) == [429, 200, 200, 200]


def test_a_full_disk_takes_no_positions(server: Server):
    server.service.limits = dataclasses.replace(server.service.limits, least_free_bytes=2**60)
    answers = [server.put(some(1)), server.ask_for_evidence([NAME])]
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(507, "disk_full")] * 2


# --- frames


def test_frames_with_neither_positions_nor_tags_are_for_queries(server: Server, scene: Any):
    bare = encode_frame(dataclasses.replace(at_home(scene), tags=None))
    answer = server.put(bare, STRANGER, "")
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_frame")
    assert "tags" in answer.json()["detail"]
    assert server.client.get(
        f"/v1/places/{PLACE}/images/{STRANGER}", headers={"Authorization": f"Bearer {server.keys['read']}"}
    ).status_code == 404  # fmt: skip
    empty = encode_frame(scene.photo(0.0).take(np.arange(0)).without_positions())
    assert server.put(empty, STRANGER, "").status_code == 201, "a photo without features has nothing to release"


def test_a_photo_under_another_name_with_other_bits_is_a_second_release(server: Server, scene: Any):
    image = at_home(scene)
    other = dataclasses.replace(image, code=Bits(image.code.packed ^ 1))
    answer = server.put(encode_frame(other), STRANGER, "")
    assert (answer.status_code, answer.json()["code"]) == (409, "second_release")
    fewer = encode_frame(at_home(scene, count=COUNT - 1))
    assert server.put(fewer, STRANGER, "").json()["code"] == "second_release"


def test_queries_are_taken_by_the_route_of_their_form(server: Server, scene: Any):
    """Before the place, its map or an engine is looked at."""
    whole, bare, tagged = scene.photo(0.0), scene.photo(0.0).without_positions(), at_home(scene)
    answers = {
        (kind, word): server.post(f"/{kind}", kind, content=encode_frame(query), headers={"Content-Type": MEDIA_TYPE})
        for kind in ("localize", "landmarks")
        for word, query in (("whole", whole), ("bare", bare), ("tagged", tagged))
    }
    assert {key: (answer.status_code, answer.json()["code"]) for key, answer in answers.items()} == {
        ("localize", "whole"): (409, "no_map"), ("localize", "bare"): (422, "not_valid"),
        ("localize", "tagged"): (422, "not_valid"), ("landmarks", "whole"): (422, "not_valid"),
        ("landmarks", "bare"): (409, "no_map"), ("landmarks", "tagged"): (422, "not_valid"),
    }  # fmt: skip
    assert "ask for landmarks" in answers["localize", "bare"].json()["detail"]
    assert "leave them out" in answers["landmarks", "whole"].json()["detail"]
    assert largest_body("POST", f"/v1/places/{PLACE}/landmarks", Limits()) == Limits().query_bytes
    assert largest_body("PUT", f"/v1/places/{PLACE}/images/{NAME}/positions", Limits(features=10**6)) == 12 * 10**6


# --- evidence and maps


def test_evidence_is_of_images_that_are_there(server: Server):
    answer = server.ask_for_evidence([STRANGER])
    assert (answer.status_code, answer.json()["code"]) == (422, "not_valid")
    assert server.ask_for_evidence([]).status_code == 422
    answer = server.ask_for_evidence([STRANGER, NAME, NAME])
    assert (answer.status_code, answer.json()["kind"]) == (202, "evidence")
    job = jobs.read_job(server.service.store, answer.json()["id"])
    assert (job.request["own"], sorted(job.request["images"])) == ([NAME], [NAME, WHOLE])
    headers = {"Authorization": f"Bearer {server.keys['upload']}"}
    unfinished = server.client.get(f"/v1/places/{PLACE}/evidence/{job.id}", headers=headers)
    assert (unfinished.status_code, unfinished.json()["code"]) == (404, "not_found")


def test_a_request_for_evidence_is_repeated_by_its_key(server: Server):
    first = server.ask_for_evidence([NAME], "same key")
    again = server.ask_for_evidence([NAME], "same key")
    assert (first.status_code, again.status_code, again.json()["id"]) == (202, 200, first.json()["id"])
    assert server.ask_for_evidence([NAME, WHOLE], "same key").json()["code"] == "other_request"
    headers = {"Idempotency-Key": "same key"}
    assert server.post("/maps", "map", json={}, headers=headers).json()["code"] in ("other_request", "no_positions")
    assert server.ask_for_evidence([NAME]).status_code == 202
    full = server.ask_for_evidence([NAME])
    assert (full.status_code, full.json()["code"]) == (429, "queue_full")
    for words in ({"own": NAME}, {"own": ["x"]}, {"own": [NAME], "pairs": "all"}, {"own": [NAME], "extra": 1}):
        assert server.ask_for_evidence(**words).status_code == 422


def test_a_map_needs_a_position(server: Server):
    headers = {"Idempotency-Key": "12345678"}
    answer = server.post("/maps", "map", json={"images": [NAME]}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (409, "no_positions")
    assert server.post("/maps", "map", json={}, headers=headers).status_code == 202, "one image has some"
    server.put(some(1))
    headers = {"Idempotency-Key": "another key"}
    assert server.post("/maps", "map", json={"images": [NAME]}, headers=headers).status_code == 202


def test_outcomes_of_landmarks_are_counted(server: Server, scene: Any, monkeypatch: pytest.MonkeyPatch):
    with server.service.store.write() as connection:
        places.publish_map(connection, PLACE, "map", {}, "0" * 64, make_current=True)
    answers = [{"rows": [0], "landmarks": [0], "positions": [[0.0, 0.0, 1.0]], "distances": [1.0]},
               {"rows": [], "landmarks": [], "positions": [], "distances": []}]  # fmt: skip
    asked: list[Any] = []

    async def localize(words: Any, frame: bytes, seconds: float) -> Any:
        asked.append(words)
        return {**answers[len(asked) - 1], "candidates": 1, "ms": {}}

    monkeypatch.setattr(server.service.engines, "localize", localize)
    before = outcomes()
    frame = encode_frame(scene.photo(0.0).without_positions())
    for _ in answers:
        answer = server.post("/landmarks", "landmarks", content=frame, headers={"Content-Type": MEDIA_TYPE})
        assert answer.status_code == 200
    assert asked[0]["most"] == Limits().landmarks_of_query
    assert {name: count - before[name] for name, count in outcomes().items()} == {"landmarks": 1, "no landmarks": 1}


def outcomes() -> dict[str, float]:
    read = metrics.registry.get_sample_value
    return {
        name: read("sfumato_localize_outcomes_total", {"outcome": name}) or 0 for name in ("landmarks", "no landmarks")
    }
