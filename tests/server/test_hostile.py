# SPDX-License-Identifier: Apache-2.0
"""Hostile clients: frames with other bytes, bodies without end, slow senders, broken connections, and a full disk."""

import resource
import socket
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import sfumato
from sfumato.store.frames import MAGIC, MEDIA_TYPE, PREFIX
from sfumato.types.concealed import Bits, ConcealedFeatures

MOST_GROWTH = 64 * 2**20
PICTURES = {
    "jpeg": b"\xff\xd8\xff\xe0" + bytes(500),
    "png": b"\x89PNG\r\n\x1a\n" + bytes(500),
    "zip": b"PK\x03\x04" + bytes(500),
    "hdf5": b"\x89HDF\r\n\x1a\n" + bytes(500),
    "sqlite": b"SQLite format 3\0" + bytes(500),
    "nothing": b"",
    "text": b"{}",
}
PATIENCE = {"upload_seconds": 0.6, "head_seconds": 0.6, "image_bytes": 300_000, "query_bytes": 200_000,
            "json_bytes": 100_000}  # fmt: skip


@pytest.fixture(scope="module")
def strict(
    live: ModuleType, connect: Any, generous: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A server with small limits and little patience, and a client of it."""
    folder = tmp_path_factory.mktemp("strict") / "data"
    with live.start_server(folder, limits={**generous, **PATIENCE}, is_ready=False) as server:
        api = connect(server)
        api.place = api.put_place()
        api.server = server
        yield api


def memory_of(process: int) -> int:
    """The most memory that a process ever had, in bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def files_below(folder: Path) -> set[Path]:
    return {path for name in ("frames", "uploads") for path in (folder / name).rglob("*") if path.is_file()}


def mutate(frame: bytes, rng: np.random.Generator) -> bytes:
    """Change a few bytes of a frame, its length, or a number in its first 64 bytes."""
    data = bytearray(frame)
    kind = rng.integers(6)
    if kind == 0:
        return bytes(data[: rng.integers(len(data))])
    if kind == 1:
        return bytes(data) + rng.bytes(int(rng.integers(1, 500)))
    if kind == 2:
        start = int(rng.choice([16, 20, 24]))
        data[start : start + 4] = rng.choice([0, 1, 63, 64, 2**16, 2**31, 2**32 - 1]).astype("<u4").tobytes()
    elif kind == 3:  # in the header, with a digest that is right
        header = int.from_bytes(data[20:24], "little")
        place = PREFIX.size + int(rng.integers(header))
        data[place] = int(rng.choice(list(b'0123456789[]{}",:\\ \xff\0')))
        return with_digest(bytes(data))
    elif kind == 4:  # in the payload, with a digest that is right: numbers that are none
        place = len(data) - int(rng.integers(1, 3000)) // 4 * 4 - 4
        data[place : place + 4] = rng.choice([b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\x80\xff"])
        return with_digest(bytes(data))
    else:
        for _ in range(rng.integers(1, 4)):
            data[int(rng.integers(len(data)))] ^= int(rng.integers(1, 256))
    return bytes(data)


def with_digest(frame: bytes) -> bytes:
    import hashlib

    digest = hashlib.blake2b(frame[PREFIX.size :], digest_size=32, person=b"sfumato-wire").digest()
    return frame[:32] + digest + frame[64:]


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_hostile_frames_are_refused_and_leave_nothing(strict: Any, scene: Any, count: int):
    rng, frame = np.random.default_rng(count), scene.frame(0.0)
    process, before = strict.server.process.pid, files_below(strict.server.folder)
    grown, statuses = memory_of(process), Counter[tuple[int, str]]()
    for number in range(count):
        data = mutate(frame, rng)
        started = time.monotonic()
        if number % 2:
            answer = strict.put_frame(strict.place, f"{number:032x}", data)
        else:
            answer = strict.localize(strict.place, data)
        if answer.status_code in (200, 201):  # codes are coin throws: other bits are as good
            assert b"bits" in data
            before = files_below(strict.server.folder)
            continue
        assert time.monotonic() - started < 5
        assert 400 <= answer.status_code < 500, answer.text
        statuses[answer.status_code, answer.json()["code"]] += 1
    assert sum(statuses.values()) > 0.7 * count
    assert {status for status, _ in statuses} <= {409, 413, 415, 422}
    assert files_below(strict.server.folder) == before
    assert memory_of(process) - grown < MOST_GROWTH


@pytest.mark.parametrize("kind", PICTURES)
def test_pictures_are_not_taken(strict: Any, kind: str):
    for answer in (
        strict.put_frame(strict.place, "cc" * 16, PICTURES[kind]), strict.localize(strict.place, PICTURES[kind])
    ):  # fmt: skip
        assert (answer.status_code, answer.json()["code"]) == (415, "pictures_are_not_taken")
        assert "sfumato" in answer.json()["detail"]
    answer = strict.http.put(
        f"/v1/places/{strict.place}/images/{'cc' * 16}", content=PICTURES[kind], headers={"Content-Type": "image/jpeg"}
    )
    assert answer.status_code == 415


@pytest.mark.parametrize("recipe", ["raw", "random-1"])
def test_clear_features_and_evaluation_seeds_are_refused(strict: Any, scene: Any, recipe: str):
    text = scene.frame(0.0)
    header = int.from_bytes(text[20:24], "little")
    words = text[PREFIX.size : PREFIX.size + header].rstrip()
    if recipe == "raw":
        other = words.replace(b'\\"kind\\":\\"sealed\\"', b'\\"kind\\":\\"random\\"').replace(b"512", b"0")
    else:
        other = words.replace(b'\\"evaluation_seed\\":null', b'\\"evaluation_seed\\":7')
    assert other != words
    padded = other.ljust(-(-len(other) // 64) * 64)
    frame = PREFIX.pack(MAGIC, 1, len(padded), len(text) - PREFIX.size - header, bytes(32)) + padded
    answer = strict.put_frame(strict.place, "dd" * 16, with_digest(frame + text[PREFIX.size + header :]))
    assert answer.status_code == 422
    assert answer.json()["code"] in ("clear_features", "bad_frame")


def test_a_second_release_is_refused(strict: Any, scene: Any):
    place = strict.put_place()
    assert strict.put_frame(place, "ee" * 16, scene.frame(0.5)).status_code == 201
    assert strict.put_frame(place, "ee" * 16, scene.frame(0.5)).status_code == 200
    answer = strict.put_frame(place, "ee" * 16, scene.frame(0.6))
    assert (answer.status_code, answer.json()["code"]) == (409, "already_released")
    photo = scene.photo(0.5)
    twin = ConcealedFeatures(photo.keypoints, Bits(scene.bits), photo.recipe, image_size=photo.image_size)
    answer = strict.put_frame(place, "ef" * 16, sfumato.store.encode_frame(twin))
    assert (answer.status_code, answer.json()["code"]) == (409, "second_release")
    missing = strict.http.post(
        f"/v1/places/{place}/images:missing",
        json=[{"name": "ee" * 16, "digest": "0" * 64}, {"name": "ff" * 16, "digest": "0" * 64}],
    )
    assert missing.json() == {"missing": ["ff" * 16], "conflicting": ["ee" * 16], "released": {}}


# --- HTTP itself


def talk(server: Any, *parts: bytes, pause: float = 0.0) -> bytes:
    """Send bytes with pauses, and return all that comes back until the end of the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as line:
        answer = b""
        try:
            for part in parts:
                line.sendall(part)
                time.sleep(pause)
            while more := line.recv(65536):
                answer += more
        except OSError:
            pass
        return answer


def head(api: Any, path: str, *lines: str, method: str = "PUT") -> bytes:
    words = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {api.key}", "Connection: close", *lines]
    return "\r\n".join([*words, "", ""]).encode()


def upload_head(api: Any, *lines: str) -> bytes:
    return head(api, f"/v1/places/{api.place}/images/{'ab' * 16}", f"Content-Type: {MEDIA_TYPE}", *lines)


def status_of(answer: bytes) -> int:
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def test_two_lengths_are_refused(strict: Any):
    answer = talk(strict.server, upload_head(strict, "Content-Length: 5", "Content-Length: 6"), b"hello!")
    assert status_of(answer) == 400
    answer = talk(strict.server, upload_head(strict, "Content-Length: 5", "Transfer-Encoding: chunked"), b"0\r\n\r\n")
    assert status_of(answer) in (400, 415)


def test_a_body_over_the_limit_is_refused_with_and_without_its_length(strict: Any, scene: Any):
    before = files_below(strict.server.folder)
    answer = talk(strict.server, upload_head(strict, "Content-Length: 99999999999"), b"x" * 1000)
    assert status_of(answer) == 413
    part = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    answer = talk(strict.server, upload_head(strict, "Transfer-Encoding: chunked"), *[part] * 6)
    assert status_of(answer) in (413, 0)  # it may end before the answer is read
    assert strict.put_frame(strict.place, "ab" * 16, b"x" * 300_001).status_code == 413
    answer = strict.localize(strict.place, b"x" * 200_001)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    answer = strict.http.post(f"/v1/places/{strict.place}/images:missing", content=b"[" + b" " * 100_001)
    assert answer.status_code == 413

    def drops() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * 10_000

    answer = strict.http.post(f"/v1/places/{strict.place}/images:missing", content=drops())
    assert answer.status_code == 413
    assert files_below(strict.server.folder) == before


def test_slow_senders_are_ended(strict: Any):
    started = time.monotonic()
    assert status_of(talk(strict.server, upload_head(strict, "Content-Length: 1000"), b"x" * 10)) == 408
    assert status_of(talk(strict.server, b"GET /livez HTTP/1.1\r\nHost:")) == 408
    assert talk(strict.server, b"") == b""
    slow = head(strict, "/v1/keys", "Content-Type: application/json", "Content-Length: 1000", method="POST")
    assert status_of(talk(strict.server, slow, b"{")) == 408
    assert time.monotonic() - started < 10
    started = time.monotonic()  # drop by drop, but with bytes that come: 1 kB a second is the least
    drops = [b"x"] * 12
    assert status_of(talk(strict.server, upload_head(strict, "Content-Length: 1000"), *drops, pause=0.1)) in (408, 0)
    assert time.monotonic() - started < 3
    assert not list((strict.server.folder / "uploads").glob("*"))


def test_uploads_that_break_off_leave_nothing(strict: Any, scene: Any):
    frame, before = scene.frame(0.3), files_below(strict.server.folder)
    host, port = strict.server.url.removeprefix("http://").split(":")
    for tenth in range(10):
        with socket.create_connection((host, int(port)), 10) as line:
            line.sendall(upload_head(strict, f"Content-Length: {len(frame)}") + frame[: len(frame) * tenth // 10])
    until = time.monotonic() + 10
    while files_below(strict.server.folder) != before and time.monotonic() < until:
        time.sleep(0.05)
    assert files_below(strict.server.folder) == before
    assert strict.put_frame(strict.put_place(), "ab" * 16, frame).status_code == 201  # and there is room for others


def test_heads_without_end_are_refused(strict: Any):
    line = b"X-More: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n"
    answer = talk(strict.server, b"GET /livez HTTP/1.1\r\nHost: x\r\n", *[100 * line] * 20, pause=0.01)
    assert status_of(answer) in (400, 431, 0)
    answer = strict.http.put(
        f"/v1/places/{strict.place}/images/{'ab' * 16}", content=b"x",
        headers={"Content-Type": MEDIA_TYPE, "Content-Encoding": "gzip"},
    )  # fmt: skip
    assert answer.status_code == 415
    assert strict.http.get("/livez").text == "ok"


# --- a full disk


def limit_files(size: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes, or a skip where none can be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    folder.chmod(0o700)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_disk_that_is_nearly_full_and_a_key_that_comes_too_often_are_refused(
    live: ModuleType, connect: Any, scene: Any, tmp_path: Path
):
    limits = {"least_free_bytes": 2**60, "localize_rate": 0.001, "localize_burst": 2}
    with live.start_server(tmp_path / "data", limits=limits, is_ready=False) as server:
        api = connect(server)
        place = api.put_place()
        answer = api.put_frame(place, "ab" * 16, scene.frame(0.0))
        assert (answer.status_code, answer.json()["code"]) == (507, "disk_full")
        answer = api.http.post(f"/v1/places/{place}/maps", json={}, headers={"Idempotency-Key": "12345678"})
        assert answer.status_code == 507
        assert api.http.get(f"/v1/places/{place}").status_code == 200
        assert api.http.get("/readyz").status_code == 503
        answers = [api.localize(place, scene.frame(0.0)) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [409, 409, 429]
        assert answers[2].json()["retry"] is True
        assert int(answers[2].headers["retry-after"]) >= 1


def test_a_full_disk_loses_nothing_and_reading_goes_on(
    live: ModuleType, connect: Any, generous: dict[str, Any], small_disk: Path
):
    rng = np.random.default_rng(0)

    def frame(count: int) -> bytes:
        keypoints = rng.random((count, 4)).astype(np.float32)
        bits = Bits(rng.integers(0, 256, (count, 64), np.uint8))
        return sfumato.store.encode_frame(ConcealedFeatures(keypoints, bits, "sealed-512@0123456789ab"))

    folder = small_disk / "data"
    with live.start_server(folder, limits=generous, is_ready=False) as server:
        api = connect(server)
        place, stored, statuses = api.put_place(), {}, []
        for number in range(80):
            data = frame(3000)  # 216 kB each
            answer = api.put_frame(place, f"{number:032x}", data)
            statuses.append(answer.status_code)
            if answer.status_code == 201:
                stored[f"{number:032x}"] = data
        assert set(statuses) == {201, 507}
        assert stored
        for _ in range(200):  # to the last byte: the database has no room either
            small = frame(10)
            name = f"{rng.integers(2**60):032x}"
            status = api.put_frame(place, name, small).status_code
            assert status in (201, 507)
            if status == 201:
                stored[name] = small
        for name, data in stored.items():
            answer = api.http.get(f"/v1/places/{place}/images/{name}/frame")
            assert answer.content == data
        assert len(api.http.get(f"/v1/places/{place}/images", params={"limit": 500}).json()["items"]) == len(stored)
        assert not list((folder / "uploads").glob("*"))
        spare = api.http.put("/v1/places/ffffffff").status_code
        assert spare in (201, 507)
        subprocess.run(["mount", "-o", "remount,size=30m", str(small_disk)], check=True)
        assert api.put_frame(place, "ff" * 16, frame(100)).status_code == 201  # it recovers
    with closing(sqlite3.connect(folder / "server.sqlite")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("name", ["Dr%20Smith%200123456789abcdef", "0123456789ABCDEF", "0123456789abcdef%0A", "short"])
def test_names_that_people_can_read_are_refused(strict: Any, scene: Any, name: str):
    assert strict.put_frame(strict.place, name, scene.frame(0.0)).status_code == 422
