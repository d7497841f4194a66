# SPDX-License-Identifier: Apache-2.0
"""After a place is removed nothing of it is on the disk: frames, maps, work of its jobs, uploads under way."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for library in ("fastapi", "httpx2", "sqlalchemy"):
    pytest.importorskip(library)

from starlette.testclient import TestClient  # noqa: E402

from sfumato.server import access, blobs, jobs, places  # noqa: E402
from sfumato.server.app import make_app  # noqa: E402
from sfumato.server.database import Store  # noqa: E402
from sfumato.server.engines import Engines  # noqa: E402
from sfumato.server.foreman import Foreman  # noqa: E402
from sfumato.server.limits import Limits  # noqa: E402
from sfumato.server.routes import places as place_routes  # noqa: E402
from sfumato.server.service import Service  # noqa: E402
from sfumato.store.frames import MEDIA_TYPE, decode_frame, frame_digest  # noqa: E402
from sfumato.types.concealed import RowTags  # noqa: E402

PLACE, OTHER, NAME = "0123456789abcdef", "feedfeedfeed", "ab" * 16
LEAST = 200
"""Bytes of a frame that are searched for: codes, which nothing else has."""


@pytest.fixture
def service(tmp_path: Path, scene: Any) -> Iterator[Service]:
    """Two places with an image each."""
    store, limits = Store(tmp_path / "data"), Limits(least_free_bytes=0)
    for place, x in ((PLACE, 0.0), (OTHER, 0.5)):
        places.make_place(store, place, 10)
        add(store, place, scene.frame(x))
    yield Service(store, limits, Engines(store.folder, limits), Foreman(store, limits))
    store.close()


def add(store: Store, place: str, frame: bytes) -> None:
    digest = frame_digest(frame)
    path = blobs.frame_path(store.folder, place, digest)
    path.parent.mkdir(parents=True)
    path.write_bytes(frame)
    places.add_image(store, place, NAME, digest, len(frame), decode_frame(frame), 10)


def leave_work(store: Store, job: str, frame: bytes) -> None:
    """What a process of a job leaves when it is ended in the middle."""
    folder = store.folder / blobs.WORK / job
    folder.mkdir(parents=True)
    (folder / "images.sfm").write_bytes(b"archive" + frame)


def traces(folder: Path, frame: bytes, *words: str) -> list[str]:
    """Files below a folder that hold codes of a frame or a word, or have a word in their name."""
    codes = frame[-LEAST:]
    assert len(set(codes)) > 50
    found = []
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        name = str(path.relative_to(folder))
        if codes in content or any(word in name or word.encode() in content for word in words):
            found.append(name)
    return found


def ask(service: Service, method: str, path: str) -> Any:
    key = access.make_key(service.store, ["admin"])
    return TestClient(make_app(service)).request(method, path, headers={"Authorization": f"Bearer {key}"})


def submit(store: Store, key: str, place: str = PLACE) -> str:
    return jobs.submit(store, place, {"images": [NAME]}, key, 10, 10)[0].id


def test_work_of_queued_interrupted_and_ended_jobs_is_removed(service: Service, scene: Any):
    store, frame = service.store, scene.frame(0.0)
    interrupted = submit(store, "interrupted")
    claim = jobs.claim(store, 30, 3)
    assert claim is not None
    jobs.expire(store, interrupted, claim.fence)  # its process died, and nobody has taken over
    resumed, ended = submit(store, "resumed"), submit(store, "ended")
    jobs.cancel(store, ended)
    matched, shown = blobs.matches_path(store.folder, PLACE), blobs.evidence_path(store.folder, PLACE, ended)
    for path in (matched, shown):
        path.parent.mkdir(parents=True)
        path.write_bytes(frame)
    names = [interrupted, resumed, ended]
    for job in names:
        leave_work(store, job, frame)
    neighbour = submit(store, "neighbour", OTHER)
    leave_work(store, neighbour, scene.frame(0.5))
    assert len(traces(store.folder, frame, PLACE)) >= 5
    assert len(traces(store.folder, frame, f"matches/{PLACE}", f"evidence/{PLACE}/{ended}")) >= 4
    places.delete_place(store, PLACE)
    assert not traces(store.folder, frame, PLACE, *names)
    assert len(traces(store.folder, scene.frame(0.5), neighbour)) >= 2
    assert jobs.read_job(store, neighbour).state == jobs.QUEUED


def test_positions_that_were_released_are_removed_to_the_last_byte(service: Service, scene: Any):
    store, other = service.store, "99" * 16
    image = scene.photo(1.0).without_positions()
    tagged = replace(image, tags=RowTags("5e" * 16, np.arange(8 * len(image), dtype=np.uint8).reshape(-1, 8)))
    places.add_image(store, PLACE, other, "77" * 32, 1, tagged, 10)
    positions = np.random.default_rng(0).uniform(0, 400, (len(image), 2)).astype(np.float32)
    places.release(store, PLACE, other, np.arange(len(image)), positions)
    needles = [positions[row].tobytes() for row in range(5, 50)]
    assert sum(needle in content(store.folder) for needle in needles) > 40
    places.delete_place(store, PLACE)
    assert not any(needle in content(store.folder) for needle in needles)
    with store.read() as connection:
        assert connection.execute(places.releases.select()).all() == []


def content(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("state", ["queued", "running"])
def test_the_api_ends_jobs_first(service: Service, scene: Any, monkeypatch: pytest.MonkeyPatch, state: str):
    monkeypatch.setattr(place_routes, "CANCEL_SECONDS", 0.3)
    store, frame = service.store, scene.frame(0.0)
    job = submit(store, "job")
    leave_work(store, job, frame)
    if state == "running":
        claim = jobs.claim(store, 30, 3)
        assert claim is not None
        answer = ask(service, "DELETE", f"/v1/places/{PLACE}")  # no foreman ends it here
        assert (answer.status_code, answer.json()["code"]) == (409, "job_running")
        assert jobs.read_job(store, job).is_cancelled
        assert traces(store.folder, frame, PLACE)
        jobs.end_cancelled(store, job, claim.fence)
    assert ask(service, "DELETE", f"/v1/places/{PLACE}").status_code == 204
    assert not traces(store.folder, frame, PLACE, job)
    assert ask(service, "DELETE", f"/v1/places/{PLACE}").status_code == 404


def test_a_place_with_a_job_at_work_is_not_removed_from_outside(service: Service):
    submit(service.store, "job")
    assert jobs.claim(service.store, 30, 3) is not None
    with pytest.raises(places.Conflict):
        places.delete_place(service.store, PLACE)
    assert places.read_place(service.store, PLACE).images == 1


async def upload(service: Service, frame: bytes, remove: Any) -> int:
    """Send a frame in two parts, with a pause in which ``remove`` is called; return the status."""
    key = access.make_key(service.store, ["upload:*"])
    path, statuses, parts = f"/v1/places/{PLACE}/images/{'cd' * 16}", list[int](), [frame[:-1], frame[-1:]]

    async def receive() -> dict[str, Any]:
        if len(parts) == 1:
            await asyncio.to_thread(remove)
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    headers = {"authorization": f"Bearer {key}", "content-type": MEDIA_TYPE}
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "PUT", "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http", "server": ("x", 80),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    await make_app(service)(scope, receive, send)
    return statuses[0]


def test_an_upload_that_is_under_way_leaves_nothing(service: Service, scene: Any):
    frame, during = scene.frame(1.0), []

    def remove() -> None:
        places.delete_place(service.store, PLACE)
        during.extend(traces(service.data, frame[: len(frame) // 2], PLACE))

    assert asyncio.run(upload(service, frame, remove)) == 404
    assert not during
    assert not traces(service.data, frame, PLACE)


def test_a_place_that_is_removed_while_a_frame_is_moved(service: Service, scene: Any, monkeypatch: pytest.MonkeyPatch):
    def check(*arguments: Any) -> bool:
        places.delete_place(service.store, PLACE)
        (service.data / blobs.UPLOADS).mkdir(exist_ok=True)
        upload_of[0].write_bytes(scene.frame(1.0))  # as if the removal had come a moment earlier
        return True

    upload_of: list[Path] = []
    make_path = blobs.upload_path

    def note_path(data: Path, place: str) -> Path:
        upload_of.append(make_path(data, place))
        return upload_of[0]

    monkeypatch.setattr(place_routes.blobs, "upload_path", note_path)
    monkeypatch.setattr(places, "check_image", check)
    assert asyncio.run(upload(service, scene.frame(1.0), lambda: None)) == 404
    assert not traces(service.data, scene.frame(1.0), PLACE)


def test_a_place_is_removed_while_its_job_works(served: Any, scene: Any, list_processes: Any):
    api, folder = served.api, served.server.folder
    place = api.put_place()
    api.push(place, scene.photos(4))
    job = api.start_map(place, tries=20)["id"]
    while api.http.get(f"/v1/jobs/{job}").json()["state"] == "queued" or not (folder / "work" / job).exists():
        time.sleep(0.02)
    before = len(list_processes(served.server))
    answer = api.http.delete(f"/v1/places/{place}")
    assert answer.status_code == 204, answer.text
    for _ in range(2):
        names = {path.name for path in folder.rglob("*")}
        assert not {place, job} & names
        time.sleep(0.7)
    assert len(list_processes(served.server)) < before  # its process has ended
    assert api.http.get(f"/v1/jobs/{job}").status_code == 404
    again = api.put_place()  # and the foreman goes on
    api.push(again, scene.photos(3))
    assert api.wait(api.start_map(again)["id"])["state"] == "done"
