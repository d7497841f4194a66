# SPDX-License-Identifier: Apache-2.0
"""The service: time of a query over HTTP on this machine, alone and with other clients, and what too many of them get.

    python benchmarks/service.py --json out.json

A real server is started, a generated street of photos is uploaded and mapped by a job, and queries are sent. Features
are those of benchmarks/localize.py: sealed. Queries send codes alone, points of the map come back, and the client
solves the pose. While queries are asked, the server and its engine have one core and the clients the other, where
there are two; else the figures say that they shared. Times are those that a client sees, from the first byte sent to
the pose.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from common import arguments, finish, load_average, note
from localize import CLUTTER, RECIPE, Street, make_street

import sfumato
from sfumato import Camera
from sfumato.geometry import LandmarkMatches, solve_pose
from sfumato.store import encode_frame
from sfumato.store.frames import MEDIA_TYPE

CAMERA = "PINHOLE,1280,960,1000,1000,640,480"
POSE_CAMERA = Camera("PINHOLE", 1280, 960, (1000.0, 1000.0, 640.0, 480.0))
PLACE = "0123456789abcdef"
LIMITS = {"localize_rate": 1e6, "localize_burst": 10**6, "upload_rate": 1e6, "upload_burst": 10**6,
          "least_free_bytes": 0}  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """What a client got, and after how many seconds."""

    status: int
    seconds: float
    localized: bool


class LocalServer:
    """A server on this machine."""

    def __init__(self, folder: Path) -> None:
        config = folder / "limits.toml"
        config.write_text("[limits]\n" + "".join(f"{name} = {value}\n" for name, value in LIMITS.items()))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sfumato.server", "--data", str(folder / "data"), "--port", "0",
             "--config", str(config)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={"NUMBA_CACHE_DIR": "", **os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1].rstrip("/")
        self.key = self.process.stdout.readline().split()[-1]

    def client(self) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=120, trust_env=False)

    def pin(self, core: int) -> None:
        """Give all threads of the server and its engine one core."""
        with self.client() as client:
            engines = client.get("/v1/processes").json()["engines"]
        for process in (self.process.pid, *(engine["process"] for engine in engines)):
            for thread in Path(f"/proc/{process}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {core})

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def resident_megabytes(process: int) -> float:
    """Return the memory of a process, in MB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def wait_until(condition: Callable[[], bool], seconds: float = 3600) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("the server takes too long")
        time.sleep(0.3)


def fill(client: httpx2.Client, street: Street, images: int) -> dict[str, Any]:
    """Upload photos of a street and let the server map them; return the job."""
    client.put(f"/v1/places/{PLACE}").raise_for_status()
    for number in range(images):
        frame = encode_frame(street.photo(float(number))[0])
        answer = client.put(
            f"/v1/places/{PLACE}/images/{number:032x}", content=frame, params={"camera": CAMERA},
            headers={"Content-Type": MEDIA_TYPE},
        )  # fmt: skip
        answer.raise_for_status()
    body = {"mapper": "incremental", "tries": 1, "pairs": "votes:10" if images > 20 else "auto"}
    job = client.post(f"/v1/places/{PLACE}/maps", json=body, headers={"Idempotency-Key": "benchmark"}).json()
    wait_until(lambda: client.get(f"/v1/jobs/{job['id']}").json()["ended"] is not None)
    job = client.get(f"/v1/jobs/{job['id']}").json()
    if job["state"] != "done" or job["map"] is None:
        raise RuntimeError(f"no map was made: {job['state']}, {job['reason']}")
    return dict(job)


def ask(client: httpx2.Client, query: sfumato.ConcealedFeatures, candidates: int | None) -> Answer:
    frame, params = encode_frame(query.without_positions()), {} if candidates is None else {"candidates": candidates}
    started = time.perf_counter()
    answer = client.post(
        f"/v1/places/{PLACE}/landmarks", content=frame, params=params, headers={"Content-Type": MEDIA_TYPE}
    )
    if answer.status_code != 200:
        return Answer(answer.status_code, time.perf_counter() - started, False)
    facts = answer.json()
    found = LandmarkMatches(
        *(np.array(facts[name]) for name in ("rows", "landmarks", "positions", "distances")), candidates=("",)
    )
    pose = solve_pose(found, query.keypoints, POSE_CAMERA).pose
    return Answer(answer.status_code, time.perf_counter() - started, pose is not None)


def ask_many(
    server: LocalServer, queries: list[sfumato.ConcealedFeatures], clients: int, each: int, candidates: int | None
) -> list[Answer]:
    """Let clients ask at once, each one query after the other."""

    def work(number: int) -> list[Answer]:
        with server.client() as client:
            return [ask(client, queries[(number + turn) % len(queries)], candidates) for turn in range(each)]

    with ThreadPoolExecutor(clients) as pool:
        return [answer for answers in pool.map(work, range(clients)) for answer in answers]


def summarise(case: str, clients: int, answers: list[Answer], memory: tuple[float, float]) -> dict[str, Any]:
    """Return the figures of one case; ``lost`` are queries that got neither an answer nor a quick refusal."""
    statuses = [answer.status for answer in answers]
    spent = [answer.seconds for answer in answers if answer.status == 200]
    refused = [answer.seconds for answer in answers if answer.status == 429]
    quantiles = [float(np.quantile(spent, share)) if spent else None for share in (0.5, 0.95, 0.99)]
    return {
        "case": case, "clients": clients, "queries": len(answers), "answered": len(spent), "refused": len(refused),
        "lost": len(answers) - len(spent) - len(refused),
        "statuses": " ".join(f"{status}: {count}" for status, count in sorted(Counter(statuses).items())),
        "localized": sum(answer.localized for answer in answers),
        "p50_seconds": quantiles[0], "p95_seconds": quantiles[1], "p99_seconds": quantiles[2],
        "refusal_p95_seconds": float(np.quantile(refused, 0.95)) if refused else None,
        "server_mb": memory[0], "engine_mb": memory[1],
    }  # fmt: skip


def measure(server: LocalServer, queries: list[sfumato.ConcealedFeatures], args: Any) -> list[dict[str, Any]]:
    """Ask alone, with 8 clients, and with more clients than the queue has room for."""
    rows = []
    with server.client() as client:
        for candidates in (None, 100):
            name = "as the server chooses" if candidates is None else f"votes:{candidates}"
            for _ in range(3):
                ask(client, queries[0], candidates)
            for clients, each in ((1, args.queries), (8, max(2, args.queries // 8)), (args.crowd, 2)):
                note(f"{clients} clients, {name}")
                answers = ask_many(server, queries, clients, each, candidates)
                engine = client.get("/v1/processes").json()["engines"][0]["process"]
                memory = resident_megabytes(server.process.pid), resident_megabytes(engine)
                rows.append(summarise(name, clients, answers, memory))
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=100, help="images of the map")
    parser.add_argument("--queries", type=int, default=200, help="queries of the client that asks alone")
    parser.add_argument("--crowd", type=int, default=100, help="clients at once, more than the queue has room for")
    args = parser.parse_args(argv)
    if args.small:
        args.images, args.queries, args.crowd = 6, 4, 10
    load_average()
    rng, cores = np.random.default_rng(args.seed), sorted(os.sched_getaffinity(0))
    is_pinned = len(cores) > 1
    street = make_street(args.images, rng)
    with tempfile.TemporaryDirectory() as folder:
        server = LocalServer(Path(folder))
        try:
            with server.client() as client:
                wait_until(lambda: is_up(client))
                note(f"a map of {args.images} images is made")
                job = fill(client, street, args.images)
                time.sleep(3)  # the engine opens it
                if is_pinned:
                    server.pin(cores[0])
                    os.sched_setaffinity(0, {cores[1]})
                places = rng.uniform(1, args.images - 2, 20)
                queries = [street.photo(float(x), CLUTTER)[0] for x in places]
                rows = measure(server, queries, args)
        finally:
            os.sched_setaffinity(0, cores)
            server.stop()
    figures = job["figures"]
    sizes = {
        "place": "generated street", "recipe": RECIPE, "map_images": figures["registered"], "points": figures["points"],
        "query_rows": int(np.median([len(query) for query in queries])),
        "query_bytes": len(encode_frame(queries[0].without_positions())),
        "job_seconds": figures["seconds"],
        "cores": "server on one core, clients on the other" if is_pinned else "server and clients share a core",
    }  # fmt: skip
    note(json.dumps(sizes))
    finish("service", args, sizes, rows)


def is_up(client: httpx2.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx2.TransportError:
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
