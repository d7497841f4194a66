# SPDX-License-Identifier: Apache-2.0
"""Kills at random moments of uploads, jobs and publishing: what was acknowledged is there, and work goes on.

Places are filled, and one of them is mapped, while the server or its job is killed again and again. Counts of what the
kills interrupted are kept: a test of kills that hit nothing proves nothing.
"""

import logging
import os
import re
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from sfumato.server import jobs, places
from sfumato.server.app import sweep
from sfumato.server.blobs import MODEL, frame_path, map_path
from sfumato.server.database import Store
from sfumato.store.frames import encode_frame, frame_digest

CAMERA = "PINHOLE,640,480,500,500,320,240"
log = logging.getLogger(__name__)
ORDER = {stage: number for number, stage in enumerate(("", *jobs.STAGES))}


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of a model; beside its landmarks there may be what SQLite needs while an engine reads them."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.name: path.read_bytes() for path in paths if not path.name.endswith(("-wal", "-shm"))}


def job_process(store: Store, name: str) -> int | None:
    return jobs.read_job(store, name).process


class Tormented:
    """A server that is killed and started again, and what it acknowledged."""

    def __init__(self, live: ModuleType, connect: Any, folder: Path, limits: dict[str, Any], seed: int) -> None:
        self.live, self.connect, self.folder = live, connect, folder
        self.limits, self.rng = limits, np.random.default_rng(seed)
        self.key, self.kills = "", 0
        self.interrupted = Counter[str]()
        self.start()
        self.key = self.server.key

    def start(self) -> None:
        self.server = self.live.start_server(self.folder, limits=self.limits, key=self.key, is_ready=False)
        self.api = self.connect(self.server)

    def kill(self) -> None:
        self.server.process.kill()
        self.server.stop()
        self.kills += 1

    def upload(self, place: str, name: str, frame: bytes) -> bool:
        """Send a frame while the server may die; tell whether it was acknowledged."""
        import httpx2

        try:
            return bool(self.api.put_frame(place, name, frame, camera=CAMERA).status_code in (200, 201))
        except httpx2.TransportError:
            return False


def kill_uploads(torment: Tormented, frames: dict[str, bytes], kills: int) -> None:
    """Upload frames to a new place in several threads, kill the server in the middle, and look at what there is.

    What it had is sent again after the kill, together with the rest.
    """
    from concurrent.futures import ThreadPoolExecutor

    for _ in range(kills):
        place, names = torment.api.put_place(), list(frames)
        torment.rng.shuffle(names)
        with ThreadPoolExecutor(3) as pool:
            answers = [(name, pool.submit(torment.upload, place, name, frames[name])) for name in names]
            time.sleep(float(torment.rng.uniform(0, 0.12)))
            torment.kill()
        acknowledged = {name for name, answer in answers if answer.result()}
        kind = "no upload" if not acknowledged else "all uploads" if len(acknowledged) == len(names) else "some uploads"
        torment.interrupted[f"after {kind}"] += 1
        check_images(torment, place, frames, acknowledged)
        torment.start()
        for name, frame in frames.items():
            assert torment.api.put_frame(place, name, frame, camera=CAMERA).status_code in (200, 201)


def check_images(torment: Tormented, place: str, frames: dict[str, bytes], acknowledged: set[str]) -> None:
    folder, store = torment.folder, Store(torment.folder)
    rows = {row.name: row for row in places.list_images(store, place)}
    assert acknowledged <= rows.keys()
    for name, row in rows.items():
        assert row.digest == frame_digest(frames[name])
        assert frame_path(folder, place, row.digest).read_bytes() == frames[name]
    parts = list((folder / "uploads").glob("*"))
    torment.interrupted["within an upload"] += bool(parts)
    torment.interrupted["between frame and row"] += bool(
        {path.name for path in (folder / "frames" / place).rglob("*") if path.is_file()}
        - {row.digest for row in rows.values()}
    )
    sweep(store, time.time() + 7200)
    assert not list((folder / "uploads").glob("*"))
    stored = {path.name for path in (folder / "frames" / place).rglob("*") if path.is_file()}
    assert stored == {row.digest for row in rows.values()}
    store.close()
    with closing(sqlite3.connect(folder / "server.sqlite")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def kill_job(torment: Tormented, name: str, kills: int) -> None:
    """Kill the job, or the server and its job's server both, until the job ends or there were enough kills."""
    store, last = Store(torment.folder), 0
    for number in range(kills):
        stage = torment.rng.choice(list(ORDER))
        until = time.monotonic() + 60
        while time.monotonic() < until:
            job = jobs.read_job(store, name)
            is_new = job.state == jobs.RUNNING and job.process and job.fence > last
            if job.has_ended or (is_new and ORDER[job.stage] >= ORDER[stage]):
                break
            time.sleep(0.005)
        time.sleep(float(torment.rng.uniform(0, 0.05)))
        job = jobs.read_job(store, name)
        if job.has_ended:
            break
        last = job.fence
        torment.interrupted[job.stage or "start"] += 1
        if number % 2:
            torment.kill()
            torment.start()
        elif job.process is not None:
            with suppress(ProcessLookupError):
                os.kill(job.process, signal.SIGKILL)
            torment.kills += 1
    store.close()


def matched_pairs(store: Store, name: str) -> list[tuple[int, int]]:
    """How many pairs were matched when each attempt began to match, and how many there are."""
    return [
        (event.facts["done"], event.facts["total"])
        for event in jobs.events_after(store, name)
        if event.kind == "stage" and event.facts["stage"] == "match"
    ]


def run(live: ModuleType, connect: Any, limits: dict[str, Any], folder: Path, scene: Any, kills: int,
        expected: dict[str, bytes]) -> Counter[str]:  # fmt: skip
    """Torment a server; its maps must be the expected one. Returns what the kills interrupted."""
    photos = scene.photos()
    frames = {name: encode_frame(photo) for name, photo in photos.items()}
    torment = Tormented(live, connect, folder / "data", limits, kills)
    place = torment.api.put_place()
    try:
        kill_uploads(torment, frames, max(1, kills // 2))
        for name, frame in frames.items():
            assert torment.api.put_frame(place, name, frame, camera=CAMERA).status_code in (200, 201)
        store = Store(torment.folder)
        left = kills - kills // 2
        while left > 0:
            job = torment.api.start_map(place)["id"]
            before = torment.kills
            kill_job(torment, job, min(left, 6))
            left -= max(1, torment.kills - before)
            ended = torment.api.wait(job)
            assert ended["state"] == "done", ended
            check_map(torment, store, place, job, expected)
    finally:
        torment.server.stop()
    return torment.interrupted


def check_map(torment: Tormented, store: Store, place: str, job: str, expected: dict[str, bytes]) -> None:
    files = files_of(map_path(torment.folder, place, places.read_map(store, place).id, MODEL))
    assert files.keys() == expected.keys()
    assert all(files[name] == expected[name] for name in files if re.search(r"\.(bin|txt)$", name))
    pairs = matched_pairs(store, job)
    assert pairs == sorted(pairs)  # no pair is matched twice
    assert len({total for _, total in pairs}) <= 1
    kinds = [event.kind for event in jobs.events_after(store, job)]
    assert kinds.count("done") == 1
    assert [event.number for event in jobs.events_after(store, job)] == list(range(1, len(kinds) + 1))
    until = time.monotonic() + 20
    while list((torment.folder / "work").glob("*")) and time.monotonic() < until:
        time.sleep(0.1)
    sweep(store, time.time() + 7200)
    assert not list((torment.folder / "work").glob("*"))
    rows = {row.id for row in places.list_maps(store, place)}
    assert {path.name for path in (torment.folder / "maps" / place).iterdir()} == rows


@pytest.mark.parametrize("kills", [1, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_kills_lose_nothing(
    live: ModuleType, connect: Any, generous: dict[str, Any], scene: Any, served: Any, tmp_path: Path,
    kills: int, monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    name = places.read_map(served.store(), served.place, 1).id
    expected = files_of(map_path(served.server.folder, served.place, name, MODEL))
    limits = {**generous, "attempts": 100, "lease_seconds": 5, "uploads_of_key": 8}
    interrupted = run(live, connect, limits, tmp_path, scene, kills, expected)
    log.info("kills interrupted: %s", dict(interrupted))
    if kills > 100:
        assert interrupted["after some uploads"] > kills / 20
        assert interrupted["within an upload"] + interrupted["between frame and row"] > kills / 20
        assert all(interrupted[stage] for stage in ("collect", "match", "verify", "map", "publish"))


@pytest.mark.slow
def test_a_job_that_is_stopped_is_taken_over(
    live: ModuleType, connect: Any, generous: dict[str, Any], scene: Any, tmp_path: Path,
    list_processes: Callable[[Any], list[int]],
):  # fmt: skip
    with live.start_server(tmp_path / "data", limits={**generous, "lease_seconds": 1.5}, is_ready=False) as server:
        api = connect(server)
        place = api.put_place()
        api.push(place, scene.photos(3))
        job = api.start_map(place)["id"]
        store = Store(server.folder)
        while (process := job_process(store, job)) is None:
            time.sleep(0.02)
        os.kill(process, signal.SIGSTOP)
        ended = api.wait(job)
        assert (ended["state"], ended["attempt"]) == ("done", 2)
        assert process not in list_processes(server)
        assert len(places.list_maps(store, place)) == 1
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
