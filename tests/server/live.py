# SPDX-License-Identifier: Apache-2.0
"""Live servers for tests: a real process on a free port of this machine, with the key that it printed.

Tests get it from the fixtures ``live`` (this module) and ``live_server`` (one server for a session) of tests/conftest.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

READY_SECONDS = 90.0
TRIES = 5


@dataclass(slots=True, eq=False)
class LiveServer:
    """A running server: its address, an administrator's key with all scopes, its process, data folder and log."""

    url: str
    key: str = field(repr=False)
    process: "subprocess.Popen[str]"
    folder: Path
    log: Path

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the server with a signal, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(30)
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()

    def __enter__(self) -> "LiveServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start_server(
    folder: Path,
    *,
    limits: dict[str, Any] | None = None,
    engines: int = 1,
    key: str = "",
    is_ready: bool = True,
    words: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
    program: tuple[str, ...] = ("sfumato.server",),
) -> LiveServer:
    """Start a server with its data in ``folder``, and wait until it is ready, or until it lives (``is_ready`` False).

    ``limits`` replace the usual ones. ``key`` is kept where the folder has an administrator already, whose key is not
    printed again. The log lies beside the folder, ``<folder>.log``, and so do the limits, ``<folder>.toml``.
    ``program``: what Python runs, the server itself or ``("sfumato", "serve")``, which becomes it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_name(f"{folder.name}.log")
    if limits:
        config = folder.with_name(f"{folder.name}.toml")
        config.write_text("[limits]\n" + "".join(f"{name} = {value}\n" for name, value in limits.items()))
        words = (*words, "--config", str(config))
    for _ in range(TRIES):
        command = [*program, "--data", str(folder), "--engines", str(engines), *words]
        server = _start(folder, log, command, key, environment or {})
        if server is not None and _wait(server, "/readyz" if is_ready else "/livez"):
            return server
    raise RuntimeError(f"no server started: {log.read_text()[-4000:]}")


def _start(folder: Path, log: Path, command: list[str], key: str, environment: dict[str, str]) -> LiveServer | None:
    port = free_port()
    with log.open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", *command, "--port", str(port)],
            stdout=subprocess.PIPE, stderr=errors, text=True, env={"NUMBA_CACHE_DIR": "", **os.environ, **environment},
        )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    if not key:
        printed = re.search(r"sfm_\S+", process.stdout.readline())
        key = printed[0] if printed else ""
    return LiveServer(f"http://127.0.0.1:{port}", key, process, folder, log)


def _wait(server: LiveServer, path: str) -> bool:
    """Wait until a path answers with 200; False if the process ended, as when its port was taken."""
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until and server.process.poll() is None:
        try:
            with urllib.request.urlopen(server.url + path, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    server.stop()
    return False


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# --- a place to map: points that cameras in a row see, with codes that match and hide nothing


FOCAL_PX, SIZE = 500.0, (640, 480)


@dataclass(frozen=True, slots=True)
class Scene:
    """Concealed features of pictures of one place: ``images`` by names that people chose, a ``query``, a ``camera``."""

    images: dict[str, Any]
    query: Any
    camera: Any
    secret: bytes


def make_scene(
    seed: int = 0, *, count: int = 90, names: tuple[str, ...] = ("Küche 1.jpg", "attic 2.jpg", "3.jpg")
) -> Scene:
    """Return features, sealed under a key, with all positions, of cameras side by side; a seed is a place."""
    import numpy as np

    import sfumato

    rng = np.random.default_rng(seed)
    secret = rng.bytes(32)
    points = rng.uniform([-1, -1, 4], [1, 1, 6], (count, 3))
    descriptors = np.abs(rng.normal(size=(count, 128)))
    descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)

    def photo(x: float) -> Any:
        places = FOCAL_PX * (points[:, :2] - [x, 0]) / points[:, 2:] + [SIZE[0] / 2 - 0.5, SIZE[1] / 2 - 0.5]
        clear = sfumato.Features(
            np.hstack([places, np.ones((count, 2))]), descriptors, sfumato.Extractor("sift"), image_size=SIZE
        )
        return sfumato.conceal(clear, "sealed-512", secret=secret, positions=True)

    return Scene({name: photo(float(x)) for x, name in enumerate(names)}, photo(0.5), camera(), secret)


# --- devices whose positions stay home: photos of one made-up place


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Points of a place by the parts of it that photos see: each part its positions (N, 3) and descriptors (N, 128)."""

    parts: dict[str, tuple[Any, Any]]

    def photo(self, x: float, *parts: str, alone: int = 60) -> Any:
        """Clear features of a camera at ``x``: of some parts, and ``alone`` others that no other photo has."""
        import numpy as np

        import sfumato

        rng = np.random.default_rng([int(1000 * x) % 2**31, len(parts), alone])
        points = np.concatenate([self.parts[part][0] for part in parts])
        places = FOCAL_PX * (points[:, :2] - [x, 0]) / points[:, 2:] + [SIZE[0] / 2 - 0.5, SIZE[1] / 2 - 0.5]
        places = np.concatenate([places + rng.normal(0, 0.2, places.shape), rng.uniform(1, 470, (alone, 2))])
        rows = np.concatenate([self.parts[part][1] for part in parts])
        rows = np.concatenate([rows + rng.normal(0, 0.01, rows.shape), rng.normal(size=(alone, 128))])
        rows = np.abs(rows)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        order = rng.permutation(len(rows))
        keypoints = np.hstack([places, np.ones((len(places), 1)), np.zeros((len(places), 1))])
        return sfumato.Features(keypoints[order], rows[order], sfumato.Extractor("sift"), image_size=SIZE)


def make_surroundings(seed: int = 0, **counts: int) -> Surroundings:
    """Return a place with parts of so many points each; by default one part, ``hall``."""
    import numpy as np

    rng, parts = np.random.default_rng(seed), {}
    for name, count in (counts or {"hall": 250}).items():
        rows = np.abs(rng.normal(size=(count, 128)))
        parts[name] = (
            rng.uniform([-1, -1, 4], [2, 1, 7], (count, 3)),
            rows / np.linalg.norm(rows, axis=1, keepdims=True),
        )
    return Surroundings(parts)


@dataclass(slots=True)
class Device:
    """A device: the archive of its photos, beside it the positions that stay home; ``place`` they are sealed for."""

    archive: Path
    secret: bytes
    place: str
    positions: dict[str, Any] = field(default_factory=dict)

    def take(self, **photos: Any) -> None:
        """Conceal clear features of photos; an underscore of a name stands for the point of ``.jpg``."""
        import sfumato
        from sfumato.device.positions import PositionsWriter

        images = {}
        with PositionsWriter(self.archive) as kept:
            for word, features in photos.items():
                name = word.replace("_", ".")
                images[name], self.positions[name] = self.conceal(features)
                kept.keep(name, images[name].tags.photo, self.positions[name])
        sfumato.save(self.archive, images, append=self.archive.exists())

    def conceal(self, features: Any) -> tuple[Any, Any]:
        """Return what leaves the device of a photo, and the positions (N, 2) of its rows."""
        import sfumato
        from sfumato.concealment.rows import order_rows, to_grid

        hidden = sfumato.conceal(features, "sealed-512", secret=self.secret, place=self.place)
        rows = order_rows(features, secret=self.secret, place=self.place)
        return hidden, to_grid(features.keypoints)[rows]

    def shown(self) -> dict[str, Any]:
        """Rows (K,) of each photo whose positions left the device."""
        import numpy as np

        import sfumato

        with sfumato.load(self.archive) as images:
            return {name: np.flatnonzero(images[name].is_shown) for name in images}


def camera() -> Any:
    """Return the camera of all these photos."""
    import sfumato

    return sfumato.Camera("PINHOLE", *SIZE, (FOCAL_PX, FOCAL_PX, SIZE[0] / 2, SIZE[1] / 2))
