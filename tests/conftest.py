# SPDX-License-Identifier: Apache-2.0
"""Fixtures that all tests share: the depth of property searches, real data, and commands."""

import contextlib
import hashlib
import importlib.util
import itertools
import logging
import os
import signal
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from cachetools import LRUCache
from hypothesis import HealthCheck, settings

import sfumato
from sfumato.auditing.task import Sample, Task
from sfumato.features import local
from sfumato.images.samples import sample_image
from sfumato.types.record import Score

ROOT = Path(__file__).resolve().parent.parent

settings.register_profile("here", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("here"), max_examples=25, derandomize=True, print_blob=True)
settings.register_profile("thorough", settings.get_profile("here"), max_examples=500)
settings.load_profile("ci" if os.environ.get("CI") else "here")

if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a job in the background ignores it, and so would children


@pytest.fixture(scope="session", autouse=True)
def device_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A device key for sealed recipes, and a folder for keys of people, in place of those of whoever runs the tests."""
    place = tmp_path_factory.mktemp("keys") / "device.key"
    place.write_bytes(os.urandom(32))
    place.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_KEY", str(place))
        patch.setenv("SFUMATO_FACE_KEYS", str(place.parent / "faces"))
        yield place


@pytest.fixture(scope="session", autouse=True)
def remembered_detections() -> Iterator[None]:
    """COLMAP's detections of a picture are made once in a process: most tests look at the same few samples."""
    detect, known = local.DETECTORS["colmap"], LRUCache[Any, local.Detection](200)

    def remember(grey: np.ndarray, params: local.LocalParams) -> local.Detection:
        key = hashlib.blake2b(grey.tobytes()).digest(), grey.shape, params
        if key not in known:
            known[key] = detect(grey, params)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(local.DETECTORS, "colmap", remember)
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data: SFUMATO_DATA, by default ../shared/data beside the repository."""
    folder = Path(os.environ.get("SFUMATO_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"needs real data: {folder} is missing; set SFUMATO_DATA")
    return folder


@pytest.fixture(scope="session")
def make_encoder() -> Callable[..., Any]:
    """Make an encoder that was never trained: orthogonal weights, a ReLU after every other layer."""
    from sfumato.concealment.encoder import Encoder

    def make(seed: int = 0, dims: tuple[int, ...] = (128, 256, 128), name: str = "sift", **card: object) -> Encoder:
        rng, layers = np.random.default_rng(seed), []
        for number, (into, out) in enumerate(itertools.pairwise(dims)):
            tall = np.linalg.qr(rng.normal(size=(max(out, into), min(out, into))))[0]
            bias = rng.normal(0, 0.05, out).astype(np.float32)
            weight = (tall if out >= into else tall.T).astype(np.float32)
            layers.append((weight, bias, number % 2 == 0 and number < len(dims) - 2))
        return Encoder(layers=tuple(layers), extractor_name=name, card=card)

    return make


def load_module(name: str, path: Path) -> ModuleType:
    """Load a module of tests that is no test."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def places() -> ModuleType:
    """The module tests/geometry/places.py, which makes a place to map and pictures to localize in it."""
    return load_module("tests_places", ROOT / "tests" / "geometry" / "places.py")


@pytest.fixture(scope="session")
def live() -> ModuleType:
    """The module tests/server/live.py, whose ``start_server`` starts a real server in a folder."""
    for library in ("fastapi", "httpx2", "sqlalchemy", "uvicorn"):
        pytest.importorskip(library)
    return load_module("tests_live", ROOT / "tests" / "server" / "live.py")


@pytest.fixture(scope="session")
def live_server(live: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One real server for a session, with generous rates; tests make places of their own in it."""
    generous = {"localize_rate": 1000.0, "localize_burst": 1000, "upload_rate": 1000.0, "upload_burst": 1000}
    with live.start_server(tmp_path_factory.mktemp("live") / "data", limits=generous) as server:
        yield server


@pytest.fixture(scope="session")
def scene(live: ModuleType) -> Any:
    """Concealed features of three pictures of a place, and of a query."""
    return live.make_scene()


@pytest.fixture(scope="session")
def mapped_place(live_server: Any, scene: Any) -> str:
    """The name of a place of the live server that has the scene's pictures and a map of them."""
    from sfumato.client import Client

    with Client(live_server.url, live_server.key) as client:
        place = client.place("Dr Smith, bedroom")
        place.push(scene.images, dict.fromkeys(scene.images, scene.camera))
        place.build_map().wait()
    return "Dr Smith, bedroom"


@pytest.fixture(scope="session")
def write_photo() -> Callable[..., Path]:
    """Write a JPEG of grey pixels (H, W), with the focal length for 35 mm film in its EXIF if one is given."""

    def write(path: Path, pixels: Any, focal_35mm: int | None = None) -> Path:
        import cv2

        done, data = cv2.imencode(".jpg", pixels)
        assert done
        content = data.tobytes()
        if focal_35mm is not None:
            # A TIFF header, a first directory that points to the Exif directory, and there FocalLengthIn35mmFilm.
            tiff = b"II*\0" + struct.pack("<I", 8)
            tiff += struct.pack("<HHHIII", 1, 0x8769, 4, 1, 26, 0)
            tiff += struct.pack("<HHHIHHI", 1, 0xA405, 3, 1, focal_35mm, 0, 0)
            segment = b"Exif\0\0" + tiff
            content = content[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + content[2:]
        path.write_bytes(content)
        return path

    return write


# --- commands


@pytest.fixture(scope="session")
def run_sfumato() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command in this process, or in one of its own with ``real``; return its code, output and errors.

    A process is the point where signals, a terminal or what is imported matter; tests/cli/test_processes.py starts
    every command once as one.
    """

    def run(*arguments: object, cwd: Path | None = None, code: int = 0, real: bool = False):
        words = [str(argument) for argument in arguments]
        done = run_process(words, cwd) if real else run_here(words, cwd)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


def run_process(words: list[str], cwd: Path | None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sfumato", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=200, check=False)


def run_here(words: list[str], cwd: Path | None) -> subprocess.CompletedProcess[str]:
    from typer.testing import CliRunner

    from sfumato.cli.app import app

    with new_process(["sfumato", *words], cwd):
        done = CliRunner().invoke(app, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


FORMAT_WARNING = warnings.formatwarning


@contextlib.contextmanager
def new_process(arguments: list[str], cwd: Path | None) -> Iterator[None]:
    """Let warnings, logging, folder and environment be as in a new process, and take back what a command changes."""
    root, signals = logging.getLogger(), (signal.SIGINT, signal.SIGTERM)
    handlers, level, environment = root.handlers, root.level, dict(os.environ)
    actions = [signal.getsignal(number) for number in signals]
    with (
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(),
        np.errstate(),
        contextlib.chdir(cwd or Path.cwd()),
    ):
        patch.setattr(sys, "argv", arguments)
        patch.setattr(warnings, "formatwarning", FORMAT_WARNING)
        warnings.showwarning = show_warning
        warnings.resetwarnings()
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", category)
        root.handlers = []
        try:
            yield
        finally:
            for handler in root.handlers:
                handler.close()
            root.handlers = handlers
            root.setLevel(level)
            os.environ.clear()
            os.environ.update(environment)
            for number, action in zip(signals, actions, strict=True):
                if threading.current_thread() is threading.main_thread():
                    signal.signal(number, action)


def show_warning(message, category, filename, lineno, file=None, line=None):
    sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))


# --- tasks, photos and faces that tests of several packages use


class Counting:
    """A task on numbers that counts how often each step is called."""

    def __init__(self) -> None:
        self.predicted: list[str] = []
        self.scored: list[str] = []
        self.broken: dict[str, Exception | BaseException] = {}

    def predict(self, sample: Sample):
        self.predicted.append(sample.key)
        if sample.key in self.broken:
            raise self.broken[sample.key]
        return {"doubled": np.array([2 * int(sample.digest)]), "names": np.array(["a", "b"])}

    def score(self, sample: Sample, prediction):
        self.scored.append(sample.key)
        return {"value": float(prediction["doubled"][0])}

    def task(self, samples="abc", **changes) -> Task:
        made = [Sample(key, str(ord(key))) if isinstance(key, str) else key for key in samples]
        given = {"params": {"factor": 2}, "seed": 5, **changes}
        return Task(name="doubling", samples=made, predict=self.predict, score=self.score, summarise=mean_of, **given)

    def calls(self) -> tuple[str, str]:
        """What was called since the last time this was asked."""
        told = "".join(self.predicted), "".join(self.scored)
        self.predicted, self.scored = [], []
        return told


def mean_of(figures):
    return [Score("mean", fmean(row["value"] for row in figures.values()), samples=len(figures))] if figures else []


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture(scope="session")
def small_sequences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two generated sequences of two pairs each."""
    from sfumato.experiments.data.generated import make_homography_folder

    folder = tmp_path_factory.mktemp("sequences")
    return make_homography_folder(folder / "made", np.random.default_rng(3), photos=("coffee",), others=2)


@pytest.fixture
def files_below() -> Callable[[Path], dict[str, bytes]]:
    def read(folder: Path) -> dict[str, bytes]:
        paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

    return read


@pytest.fixture(scope="session")
def small_room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five posed pictures of a made-up room."""
    from sfumato.experiments.data.generated import make_room_folder

    folder = tmp_path_factory.mktemp("room") / "made"
    return make_room_folder(folder, np.random.default_rng(0), views=5, width=480, height=360, step=8)


@pytest.fixture(scope="session")
def make_painter():
    """A painter without a network: it fills the picture with a number read off the rows."""
    from sfumato.auditing.toolbox import TrainedInverter

    def make(recipe="raw", architecture="patch", extractor_name="sift", *, dim=128):
        def paint(keypoints, rows, size):
            assert rows.shape == (len(keypoints), dim)
            picture = np.full((size[1], size[0], 3), 0.5, np.float32)
            if len(rows):
                columns = np.clip(keypoints[:, 0].astype(int), 0, size[0] - 1)
                picture[:, columns] = np.clip(np.abs(rows).mean(axis=1) * 5, 0, 1)[None, :, None]
            return picture

        return TrainedInverter(
            architecture=architecture,
            extractor_name=extractor_name,
            recipe=recipe,
            digest=f"{recipe} {architecture}",
            frame=None if recipe == "raw" else np.eye(128, dtype=np.float32),
            floor=np.full(dim, 0.02, np.float32),
            paint=paint,
        )

    return make


@pytest.fixture(scope="session")
def small_photos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three small photos, the last without features."""
    import cv2

    from sfumato.images.samples import sample_image

    folder = tmp_path_factory.mktemp("photos")
    for name in ("coffee", "chelsea"):
        cv2.imwrite(str(folder / f"{name}.png"), cv2.resize(sample_image(name).pixels[:, :, ::-1], (160, 120)))
    cv2.imwrite(str(folder / "wall.png"), np.full((40, 60, 3), 128, np.uint8))
    return {path.name: path for path in sorted(folder.iterdir())}


@pytest.fixture(scope="session")
def made_faces():
    """Embeddings of made-up people: two kinds of people, told by one direction, several photos of each."""
    from sfumato.types.clear import Embeddings

    def make(people=40, photos=3, dim=64, noise=0.4, seed=0):
        rng = np.random.default_rng(seed)
        kinds = np.arange(people) % 2
        centres = rng.normal(size=(people, dim)) / np.sqrt(dim)
        centres[:, 0] += np.where(kinds, 0.6, -0.6)
        rows = np.repeat(centres, photos, axis=0) + noise * rng.normal(size=(people * photos, dim)) / np.sqrt(dim)
        names = tuple(f"person{number}_{photo:04d}" for number in range(people) for photo in range(1, photos + 1))
        return Embeddings(rows, names), np.repeat(kinds, photos)

    return make


@pytest.fixture(scope="session")
def strangers(made_faces):
    """Decoys of other made-up people, with their kinds as labels."""
    from sfumato.concealment.decoys import Decoys

    faces, kinds = made_faces(people=60, photos=1, seed=99)
    return Decoys(faces.values, labels=kinds)


@pytest.fixture(scope="session")
def sift():
    """SIFT of a sample photo, 150 features."""
    return sfumato.extract(sample_image("coffee"), max_features=150)


@pytest.fixture(scope="session")
def rootsift():
    return sfumato.extract(sample_image("coffee"), max_features=150, descriptor="rootsift")


@pytest.fixture(scope="session")
def decoys():
    return sfumato.load_decoys()


@pytest.fixture(scope="session")
def gaussian():
    """Points of the unit sphere with no structure at all."""
    rows = np.random.default_rng(3).normal(size=(60, 128))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return sfumato.Features(np.zeros((60, 4)), rows, sfumato.Extractor("unknown"))


@pytest.fixture
def encoder(make_encoder):
    """An encoder of SIFT, resolved as a recipe, that this process remembers."""
    from sfumato.concealment.resolve import remember, resolve

    made = remember(make_encoder(5))
    return resolve(f"ninja:made@{made.checksum[:12]}")


@pytest.fixture(scope="session")
def flipped() -> Callable[[bytes, np.random.Generator], bytes]:
    """Return a copy of a file with up to four changes: flipped bits, bytes of interest, moved pieces, a cut."""

    def change(content: bytes, rng: np.random.Generator) -> bytes:
        broken = bytearray(content)
        for _ in range(int(rng.integers(1, 5))):
            at, kind = int(rng.integers(len(broken))), int(rng.integers(6))
            if kind < 3:
                broken[at] ^= 1 << int(rng.integers(8))
            elif kind == 3:
                broken[at] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF]))
            elif kind == 4:
                piece, place = broken[at : at + int(rng.integers(1, 64))], int(rng.integers(len(broken)))
                broken[place : place + len(piece)] = piece
            elif rng.random() < 0.1:
                del broken[at + 8 :]
        return bytes(broken)

    return change
