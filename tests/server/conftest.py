# SPDX-License-Identifier: Apache-2.0
"""A generated place as concealed frames, clients that speak HTTP to a live server, and a server with a map in it."""

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from sfumato.server.database import Store
from sfumato.store.frames import MEDIA_TYPE, encode_frame, frame_digest
from sfumato.types.concealed import Bits, ConcealedFeatures
from sfumato.types.scene import Camera

CAMERA = Camera("PINHOLE", 640, 480, (500, 500, 320, 240))
CAMERA_TEXT = "PINHOLE,640,480,500,500,320,240"
RECIPE = "sealed-512@0123456789ab"
GENEROUS = {
    "localize_rate": 10000.0, "localize_burst": 10000, "upload_rate": 10000.0, "upload_burst": 10000,
    "least_free_bytes": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """Points (N, 3) with the bits of each (N, 64), seen by cameras on a line."""

    points: np.ndarray
    bits: np.ndarray

    def photo(self, x: float, seed: int = 0) -> ConcealedFeatures:
        """What a camera at ``x`` sees: every point, with a twentieth of its bits wrong and half a pixel of noise."""
        rng = np.random.default_rng([seed, int(1000 * x)])
        pixels = 500 * (self.points[:, :2] - [x, 0]) / self.points[:, 2:] + [319.5, 239.5]
        wrong = np.packbits(rng.random((len(self.bits), 512)) < 0.05, axis=1)
        keypoints = np.hstack([pixels + rng.normal(0, 0.3, pixels.shape), np.tile([1.0, 0.0], (len(pixels), 1))])
        return ConcealedFeatures(keypoints.astype(np.float32), Bits(self.bits ^ wrong), RECIPE, image_size=(640, 480))

    def frame(self, x: float, seed: int = 0) -> bytes:
        return encode_frame(self.photo(x, seed))

    def photos(self, count: int = 4) -> dict[str, ConcealedFeatures]:
        """Photos by their opaque names."""
        return {name_of(number): self.photo(0.5 * number) for number in range(count)}


def name_of(number: int) -> str:
    return hashlib.blake2b(f"image {number}".encode(), digest_size=16).hexdigest()


@pytest.fixture(scope="session")
def scene() -> Scene:
    rng = np.random.default_rng(7)
    points = rng.uniform(-1, 1, (120, 3)) * [1.6, 1.2, 1] + [0.7, 0, 5]
    return Scene(points, rng.integers(0, 256, (120, 64), np.uint8))


@dataclass
class Api:
    """A client of a live server that leaves nothing out and retries nothing."""

    url: str
    key: str | None = field(repr=False)
    http: Any = field(init=False)

    def __post_init__(self) -> None:
        import httpx2

        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        self.http = httpx2.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def put_place(self) -> str:
        place = secrets.token_hex(16)
        assert self.http.put(f"/v1/places/{place}").status_code == 201
        return place

    def put_frame(self, place: str, name: str, frame: bytes, **params: Any) -> Any:
        return self.http.put(
            f"/v1/places/{place}/images/{name}", content=frame, params=params, headers={"Content-Type": MEDIA_TYPE}
        )

    def push(self, place: str, photos: dict[str, ConcealedFeatures]) -> None:
        for name, photo in photos.items():
            assert self.put_frame(place, name, encode_frame(photo), camera=CAMERA_TEXT).status_code == 201

    def start_map(self, place: str, key: str | None = None, **words: Any) -> dict[str, Any]:
        body = {"mapper": "incremental", "tries": 1, **words}
        answer = self.http.post(
            f"/v1/places/{place}/maps", json=body, headers={"Idempotency-Key": key or secrets.token_hex(8)}
        )
        assert answer.status_code in (200, 202), answer.text
        facts: dict[str, Any] = answer.json()
        return facts

    def wait(self, job: str, seconds: float = 120) -> dict[str, Any]:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            facts: dict[str, Any] = self.http.get(f"/v1/jobs/{job}", params={"wait": 5, "after": 10**6}).json()
            if facts["ended"] is not None:
                return facts
        raise AssertionError("the job did not end")

    def localize(self, place: str, frame: bytes, **params: Any) -> Any:
        return self.http.post(
            f"/v1/places/{place}/localize", content=frame, params={"camera": CAMERA_TEXT, **params},
            headers={"Content-Type": MEDIA_TYPE},
        )  # fmt: skip


@dataclass
class Served:
    """A live server with a place of four images and its map."""

    server: Any
    api: Api
    place: str
    job: dict[str, Any]

    def store(self) -> Store:
        return Store(self.server.folder)


@pytest.fixture(scope="session")
def connect() -> Iterator[Callable[..., Api]]:
    made = []

    def make(server: Any, key: str | None = "") -> Api:
        made.append(Api(server.url, server.key if key == "" else key))
        return made[-1]

    yield make
    for api in made:
        api.http.close()


@pytest.fixture(scope="session")
def generous() -> dict[str, Any]:
    """Limits under which tests need not wait."""
    return dict(GENEROUS)


@pytest.fixture(scope="session")
def served(
    live: ModuleType, connect: Callable[..., Api], scene: Scene, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        with live.start_server(tmp_path_factory.mktemp("served") / "data", limits=GENEROUS) as server:
            api = connect(server)
            place = api.put_place()
            api.push(place, scene.photos())
            job = api.wait(api.start_map(place)["id"])
            assert job["state"] == "done", job
            yield Served(server, api, place, job)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "data")
    yield store
    store.close()


def processes_of(server: Any) -> list[int]:
    """The processes of a server: itself and its children, and theirs."""
    numbers, todo = [], [server.process.pid]
    while todo:
        numbers.append(todo.pop())
        for task in Path(f"/proc/{numbers[-1]}/task").glob("*/children"):
            todo += map(int, task.read_text().split())
    return sorted(set(numbers))


@pytest.fixture(scope="session")
def list_processes() -> Callable[[Any], list[int]]:
    return processes_of


@pytest.fixture(scope="session")
def digest() -> Callable[[bytes], str]:
    return frame_digest
