# SPDX-License-Identifier: Apache-2.0
"""A live server: what its processes can reach, what they know, and the same answers as the library."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import sfumato
from sfumato.geometry.cameras import pose_numbers
from sfumato.geometry.localization import localize_query
from sfumato.geometry.mappers import MapParams
from sfumato.geometry.mapping import build_map
from sfumato.geometry.maps import load_map
from sfumato.images.samples import sample_image
from sfumato.matching.batch import match_archive
from sfumato.server import guard
from sfumato.server.blobs import MODEL, map_path
from sfumato.store.frames import MEDIA_TYPE, RELEASE_TYPE, decode_frame, encode_frame, encode_release
from sfumato.types.concealed import RowTags
from sfumato.types.scene import Camera

LIBRARIES = ("torch", "onnxruntime", "dlib")
WINDOW = 16
CAMERA = Camera("PINHOLE", 640, 480, (500, 500, 320, 240))


def model_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def tour(served: Any, scene: Any) -> list[int]:
    """Ask every route of the document once, with bodies that are taken; return the statuses."""
    http, place = served.api.http, served.place
    number, name = served.job["map"], next(iter(scene.photos()))
    frame, headers = scene.frame(0.0), {"Content-Type": MEDIA_TYPE}
    bare = encode_frame(scene.photo(0.0).without_positions())
    home = replace(scene.photo(0.6).without_positions(), tags=RowTags("5e" * 16, np.zeros((120, 8), np.uint8)))
    spare, job = "ab" * 8, served.job["id"]
    key = http.post("/v1/keys", json={"scopes": ["read:*"]}).json()["key"].split("_")[1]
    answers = [
        *(http.get(path) for path in ("/livez", "/readyz", "/metrics", "/v1/about", "/v1/keys", "/v1/places")),
        http.delete(f"/v1/keys/{key}"),
        http.put(f"/v1/places/{spare}"),
        http.get(f"/v1/places/{spare}"),
        http.delete(f"/v1/places/{spare}"),
        http.patch(f"/v1/places/{place}", json={"current_map": number}),
        http.post(f"/v1/places/{place}/images:missing", json=[{"name": name, "digest": "0" * 64}]),
        http.put(f"/v1/places/{place}/images/{name}", content=frame, headers=headers),
        *(http.get(f"/v1/places/{place}/images{rest}") for rest in ("", f"/{name}", f"/{name}/frame")),
        *(http.get(f"/v1/places/{place}/maps{rest}") for rest in ("", f"/{number}")),
        *(http.get(f"/v1/places/{place}/maps/{number}/{part}") for part in ("bundle", "points", "cameras")),
        http.post(f"/v1/places/{place}/localize", content=frame, headers=headers),
        http.post(f"/v1/places/{place}/landmarks", content=bare, headers=headers),
        *tour_of_releases(served, home),
        *(http.get(f"/v1/jobs{rest}") for rest in ("", f"/{job}", f"/{job}/events")),
        http.post(f"/v1/places/{place}/localize", content=b"\xff\xd8\xff picture", headers=headers),
    ]
    return [answer.status_code for answer in answers]


def tour_of_releases(served: Any, home: Any) -> list[Any]:
    """Push an image without positions to a new place, ask for evidence, and release; return the answers."""
    api, name = served.api, "5e" * 16
    place = api.put_place()
    answers = [api.put_frame(place, name, encode_frame(home))]
    words = {"json": {"own": [name]}, "headers": {"Idempotency-Key": "evidence"}}
    answers.append(api.http.post(f"/v1/places/{place}/evidence", **words))
    assert api.wait(answers[-1].json()["id"])["state"] == "done"
    answers.append(api.http.get(f"/v1/places/{place}/evidence/{answers[-1].json()['id']}"))
    body, headers = encode_release(np.array([3]), np.array([[5.0, 6.0]])), {"Content-Type": RELEASE_TYPE}
    answers.append(api.http.put(f"/v1/places/{place}/images/{name}/positions", content=body, headers=headers))
    eventually(lambda: not list((served.server.folder / "work").iterdir()))  # the process of the job has ended
    return [*answers, api.http.delete(f"/v1/places/{place}")]


def read_events(api: Any, job: str, last: int, most: int | None) -> list[tuple[int, str]]:
    """Events of a job after one, until the connection is broken after ``most`` lines."""
    events, number = [], 0
    with api.http.stream("GET", f"/v1/jobs/{job}/events", headers={"Last-Event-ID": str(last)}) as stream:
        for count, line in enumerate(stream.iter_lines()):
            if line.startswith("id: "):
                number = int(line[4:])
            if line.startswith("event: "):
                events.append((number, line[7:]))
            if most is not None and count >= most:
                break
    return events


@dataclass
class Watch:
    """A job from its start to its end: events, through a connection that broke, and memory maps of processes."""

    place: str
    job: str
    events: list[tuple[int, str]]
    breaks: int
    maps: dict[int, str]


@pytest.fixture(scope="module")
def watch(served: Any, scene: Any, list_processes: Callable[..., list[int]]) -> Watch:
    place = served.api.put_place()
    served.api.push(place, scene.photos(3))
    watch = Watch(place, served.api.start_map(place)["id"], [], 0, {})
    while not watch.events or watch.events[-1][1] not in ("done", "failed"):
        last = watch.events[-1][0] if watch.events else 0
        watch.events += read_events(served.api, watch.job, last, 2 + watch.breaks % 5)
        watch.breaks += 1
        for process in list_processes(served.server):
            with contextlib.suppress(OSError):
                watch.maps[process] = Path(f"/proc/{process}/maps").read_text()
    return watch


# --- reach


def test_no_process_of_a_server_that_worked_can_see(served: Any, scene: Any, watch: Watch):
    assert [status for status in tour(served, scene) if status >= 400] == [415]
    facts = served.api.http.get("/v1/processes").json()
    assert facts["server"]["process"] == served.server.process.pid
    assert not facts["server"]["clear"]
    assert all(engine["clear"] == [] for engine in facts["engines"])
    assert len(facts["engines"]) == 1
    assert len(watch.maps) >= 3  # the server, its engine and a job
    wrong = {name for text in watch.maps.values() for name in LIBRARIES if re.search(rf"/{name}[^/]*/", text)}
    assert not wrong
    assert any("pycolmap" in text for text in watch.maps.values())  # so that names of libraries show


def test_the_guard_raises_when_asked():
    words = (
        "from sfumato.server.guard import guard_imports, clear_modules; guard_imports()\n"
        "import importlib\n"
        "for name in ('sfumato.features', 'sfumato.concealment.seal', 'sfumato.types.clear', 'sfumato.cli', 'torch'):\n"
        "    try:\n        importlib.import_module(name)\n"
        "    except ImportError:\n        continue\n"
        "    raise SystemExit(name)\n"
        "assert not clear_modules()\n"
        "import sfumato\n"
        "try:\n    sfumato.extract\nexcept ImportError:\n    raise SystemExit(0)\n"
        "raise SystemExit('extract')"
    )
    ended = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_process_with_the_clear_side_is_no_server():
    import sfumato.features  # noqa: F401

    assert guard.clear_modules()
    with pytest.raises(RuntimeError):
        guard.guard_imports()
    words = "import sfumato.features\nimport runpy; runpy.run_module('sfumato.server', run_name='__main__')"
    ended = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "RuntimeError" in ended.stderr


# --- taint


def windows(secret: bytes) -> set[bytes]:
    """Every window of a secret but those that begin with few different bytes, which are everywhere."""
    parts = (secret[start : start + WINDOW] for start in range(0, len(secret) - WINDOW + 1, 4))
    return {part for part in parts if 0 not in part[:2] and len(set(part[:4])) > 2}


def is_in(data: bytes, needles: set[bytes]) -> bool:
    """Tell whether a window is somewhere in bytes: pairs of bytes first, all at once, then what is left in full."""
    tables = np.zeros((WINDOW // 2, 2**16), bool)
    for needle in needles:
        tables[np.arange(WINDOW // 2), np.frombuffer(needle, "<u2")] = True
    for offset in range(4):
        pairs = np.frombuffer(data, "<u2", max(0, len(data) - offset) // 2, offset)
        places = 2 * np.flatnonzero(tables[0][pairs[::2]])
        for number, table in enumerate(tables):
            places = places[places + number < len(pairs)]
            places = places[table[pairs[places + number]]]
        if any(data[place : place + WINDOW] in needles for place in (2 * places + offset).tolist()):
            return True
    return False


def memory_of(process: int) -> bytes:
    """The writable memory of a process, without pages of zeros."""
    parts = []
    with open(f"/proc/{process}/mem", "rb", 0) as memory:
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            span, rights = line.split()[:2]
            first, last = (int(word, 16) for word in span.split("-"))
            if not rights.startswith("rw") or "[vvar" in line:
                continue
            try:
                memory.seek(first)
                pages = np.frombuffer(memory.read(last - first), np.uint64).reshape(-1, 512)
            except (OSError, ValueError):
                continue
            parts.append(pages[pages.any(axis=1)].tobytes())
    return b"".join(parts)


@pytest.fixture(scope="module")
def secrets_of_device(device_key: Path) -> tuple[Any, set[bytes], set[bytes]]:
    """A photo's sealed features, windows of its clear descriptors, and those of the key."""
    clear = sfumato.extract(sample_image("coffee"), max_features=200)
    hidden = sfumato.conceal(clear, "sealed-512", secret=device_key.read_bytes())
    rows = np.ascontiguousarray(clear.descriptors, np.float32)
    descriptors: set[bytes] = set()
    for row in rows[:20]:
        descriptors |= windows(row.tobytes())
        descriptors |= windows(np.round(row * 512).astype(np.uint8).tobytes())
    return hidden, descriptors, windows(device_key.read_bytes())


def test_nothing_of_a_device_is_on_a_server(served: Any, scene: Any, secrets_of_device: Any, list_processes: Any):
    hidden, descriptors, key = secrets_of_device
    assert len(descriptors) > 500
    assert len(key) >= 4
    place = served.api.put_place()
    assert served.api.put_frame(place, "aa" * 16, encode_frame(hidden)).status_code == 201
    tour(served, scene)
    served.api.localize(served.place, encode_frame(hidden))
    needles = descriptors | key
    stored = b"".join(path.read_bytes() for path in served.server.folder.rglob("*") if path.is_file())
    assert hidden.code.packed[7].tobytes() in stored  # what was sent is there, so the search works
    texts = served.server.log.read_bytes() + served.api.http.get("/metrics").content
    assert not is_in(stored, needles)
    assert not is_in(texts, needles)
    for process in list_processes(served.server):
        memory = memory_of(process)
        assert len(memory) > 2**24
        assert not is_in(memory, needles), process


def test_a_planted_secret_is_found(secrets_of_device: Any, tmp_path: Path):
    _, descriptors, key = secrets_of_device
    planted = max(descriptors)
    assert is_in(bytes(3 * 2**24 - 7) + planted + bytes(9), descriptors)
    assert not is_in(bytes(3 * 2**24 - 7) + planted[1:] + bytes(9), {planted})
    words = "import sys, time; held = bytes.fromhex(sys.stdin.readline()); print(len(held), flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", words], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write((bytes(1000) + planted + bytes(1000)).hex() + "\n")
        process.stdin.flush()
        process.stdout.readline()
        try:
            assert is_in(memory_of(process.pid), {planted})
            assert not is_in(memory_of(process.pid), key)
        finally:
            process.kill()


# --- logs and metrics


def test_logs_and_metrics_hold_no_ids_and_no_values(served: Any, scene: Any):
    tour(served, scene)
    served.api.http.request("SECRETMETHOD", "/v1/places/secretplace?secret=1", headers={"X-Secret": "secretvalue"})
    served.api.http.post("/v1/keys", json={"scopes": ["secretscope:*"], "label": "secretlabel"})
    served.api.http.get(f"/v1/places/{served.place}/images", params={"after": "secretname", "limit": "secret"})
    log, metrics = served.server.log.read_text(), served.api.http.get("/metrics").text
    names = list(scene.photos())
    for text in (log, metrics):
        assert not re.search(r"secret", text, re.IGNORECASE)
        for word in (served.place, served.job["id"], *names, served.server.key, served.server.key.split("_")[1]):
            assert word not in text
    assert str(served.server.folder) not in log
    assert all(line.startswith("{") for line in log.splitlines())
    pose = served.api.localize(served.place, scene.frame(0.25)).json()["pose"]
    assert not any(f"{number:.6f}" in served.server.log.read_text() for number in pose)


def test_metrics_count_queries_and_their_stages(served: Any, scene: Any):
    served.api.localize(served.place, scene.frame(0.25))
    text = served.api.http.get("/metrics").text
    outcome = re.search(r'sfumato_localize_outcomes_total\{outcome="localized"\} (\S+)', text)
    assert outcome is not None
    assert float(outcome[1]) >= 1
    served.api.http.post(
        f"/v1/places/{served.place}/landmarks", headers={"Content-Type": MEDIA_TYPE},
        content=encode_frame(scene.photo(0.25).without_positions()),
    )  # fmt: skip
    assert re.search(r'outcome="landmarks"\} [1-9]', served.api.http.get("/metrics").text)
    text = served.api.http.get("/metrics").text
    for stage in ("open", "shortlist", "localize", "match"):
        assert re.search(rf'sfumato_localize_stage_seconds_count\{{stage="{stage}"\}} [1-9]', text)


# --- the same answers


@pytest.fixture(scope="module")
def library_map(served: Any, scene: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The map that the library's functions make of the same frames."""
    work = tmp_path_factory.mktemp("library")
    photos = {name: decode_frame(encode_frame(photo)) for name, photo in scene.photos().items()}
    sfumato.save(work / "images.sfm", dict(sorted(photos.items())))
    match_archive(work / "images.sfm", work / "matches.h5", "exhaustive")
    cameras = dict.fromkeys(photos, CAMERA)
    params = MapParams(mapper="incremental", tries=1)
    build_map(work / "images.sfm", work / "matches.h5", work / "model", cameras, params)
    return work / "model"


def test_a_job_makes_the_map_that_the_library_makes(served: Any, library_map: Path):
    ours = map_path(served.server.folder, served.place, served.api.http.get(
        f"/v1/places/{served.place}").json()["current_map"], MODEL)  # fmt: skip
    mine, theirs = load_map(ours), load_map(library_map)
    assert mine.names == theirs.names
    assert np.array_equal(mine.positions, theirs.positions)
    files, others = model_files(ours), model_files(library_map)
    assert files.keys() == others.keys()
    assert all(files[name] == others[name] for name in files if name.endswith((".bin", ".txt")))


def test_queries_over_http_are_answered_as_by_the_library(served: Any, scene: Any, library_map: Path):
    map_, places = load_map(library_map), [0.2, 0.45, 0.7, 0.95, 1.2, 1.3, 0.6, 0.33]
    expected = []
    for number, x in enumerate(places):
        query = decode_frame(scene.frame(x, number))
        expected.append(localize_query(query, CAMERA, map_, map_.names))
    frames = [scene.frame(x, number) for number, x in enumerate(places)]
    alone = [served.api.localize(served.place, frame).json() for frame in frames]
    with ThreadPoolExecutor(8) as clients:
        crowd = [answer.json() for answer in clients.map(lambda f: served.api.localize(served.place, f), 2 * frames)]
    for number, result in enumerate(expected):
        assert result.pose is not None
        for answer in (alone[number], crowd[number], crowd[number + 8]):
            assert answer["pose"] == pose_numbers(result.pose)
            assert (answer["inliers"], answer["matches"]) == (result.inliers, result.matches)


def test_a_query_that_is_not_localized_is_an_answer(served: Any, scene: Any):
    rng = np.random.default_rng(0)
    strange = sfumato.ConcealedFeatures(
        scene.photo(0).keypoints, sfumato.Bits(rng.integers(0, 256, (120, 64), np.uint8)), "sealed-512@0123456789ab",
        image_size=(640, 480),
    )  # fmt: skip
    answer = served.api.localize(served.place, encode_frame(strange))
    assert answer.status_code == 200
    assert answer.json()["localized"] is False
    assert answer.json()["reason"]


def test_a_query_of_another_space_is_refused(served: Any, scene: Any):
    other = sfumato.ConcealedFeatures(
        scene.photo(0).keypoints, scene.photo(0).code, "sealed-512@fedcba987654", image_size=(640, 480)
    )
    answer = served.api.localize(served.place, encode_frame(other))
    assert (answer.status_code, answer.json()["code"]) == (409, "space_mismatch")
    answer = served.api.put_frame(served.place, "bb" * 16, encode_frame(other))
    assert (answer.status_code, answer.json()["code"]) == (409, "space_mismatch")


def test_a_deadline_of_a_client_ends_no_engine(served: Any, scene: Any):
    engine = served.api.http.get("/v1/processes").json()["engines"][0]["process"]
    statuses = {served.api.localize(served.place, scene.frame(0.2), deadline_ms=1).status_code for _ in range(5)}
    assert statuses <= {504, 200}
    assert served.api.localize(served.place, scene.frame(0.2)).status_code == 200
    assert served.api.http.get("/v1/processes").json()["engines"][0]["process"] == engine


def test_a_map_is_open_before_the_first_query(served: Any, scene: Any, watch: Watch):
    time.sleep(1)  # in the background, soon
    assert served.api.localize(watch.place, scene.frame(0.2)).json()["ms"]["open"] < 50


def test_no_event_is_lost_or_comes_twice(served: Any, watch: Watch):
    numbers = [number for number, _ in watch.events]
    assert numbers == list(range(1, len(numbers) + 1))
    assert watch.events[-1][1] == "done"
    assert watch.breaks > 5
    assert read_events(served.api, watch.job, 0, None) == watch.events
    assert read_events(served.api, watch.job, numbers[-1], None) == []


# --- life


def test_a_server_stops_in_order_and_its_job_goes_on(
    live: ModuleType, connect: Any, scene: Any, generous: dict[str, Any], tmp_path: Path, list_processes: Any
):
    server = live.start_server(tmp_path / "data", limits=generous, is_ready=False)
    api = connect(server)
    place = api.put_place()
    api.push(place, scene.photos(3))
    job = api.start_map(place)["id"]
    thread_events: list[Any] = []
    watcher = threading.Thread(target=lambda: thread_events.extend(read_events(api, job, 0, None)))
    watcher.start()
    while api.http.get(f"/v1/jobs/{job}").json()["state"] != "running":
        time.sleep(0.05)
    processes = list_processes(server)
    started = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - started < 8
    watcher.join(10)
    assert not watcher.is_alive()
    time.sleep(0.2)
    assert not [process for process in processes if is_running(process)]
    with live.start_server(tmp_path / "data", limits=generous, key=server.key) as again:
        ended = connect(again, server.key).wait(job)
        assert (ended["state"], ended["attempt"]) == ("done", 1)
        work = tmp_path / "data" / "work"
        eventually(lambda: not list(work.iterdir()))
        check_rights(tmp_path / "data")
        second = [sys.executable, "-m", "sfumato.server", "--data", str(tmp_path / "data"), "--port", "0"]
        refused = subprocess.run(second, capture_output=True, text=True, check=False, timeout=60)
        assert refused.returncode == 2
        assert "another server" in refused.stderr


def eventually(condition: Callable[[], bool], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def is_running(process: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def check_rights(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        assert not path.stat().st_mode & 0o077, path


def test_an_engine_that_died_is_replaced_and_readiness_says_so(served: Any, scene: Any):
    engine = served.api.http.get("/v1/processes").json()["engines"][0]["process"]
    os.kill(engine, signal.SIGKILL)
    time.sleep(0.1)
    answer = served.api.http.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["problems"]
    answer = served.api.localize(served.place, scene.frame(0.2))  # it waits for the next engine, as long as it may
    assert answer.status_code in (200, 504)
    eventually(lambda: served.api.http.get("/readyz").status_code == 200)
    assert served.api.localize(served.place, scene.frame(0.2)).json()["localized"]


def test_tls(live: ModuleType, generous: dict[str, Any], tmp_path: Path):
    import ssl
    import urllib.request

    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
             "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]  # fmt: skip
    try:
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs openssl to make a certificate")
    with subprocess.Popen(
        [sys.executable, "-m", "sfumato.server", "--data", str(tmp_path / "data"), "--host", "0.0.0.0", "--port", "0",
         "--tls-cert", "cert.pem", "--tls-key", "key.pem"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={"NUMBA_CACHE_DIR": "", **os.environ},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            port = int(line.rstrip("/\n").rpartition(":")[2])
            assert f"https://{socket.gethostname()}:" in line
            trust = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
            assert ask(f"https://127.0.0.1:{port}/livez", trust) == b"ok"
            with pytest.raises(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=5)
        finally:
            process.terminate()
        assert process.wait(20) == 0


def ask(url: str, trust: Any) -> bytes:
    import urllib.error
    import urllib.request

    for _ in range(200):
        try:
            with urllib.request.urlopen(url, timeout=5, context=trust) as answer:
                data: bytes = answer.read()
                return data
        except urllib.error.URLError:
            time.sleep(0.05)
    raise AssertionError("no answer")
