# SPDX-License-Identifier: Apache-2.0
"""What the tests of a device share: features of another program, photos with cameras, and generated scenes."""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest

import sfumato
from sfumato.concealment import order_rows
from sfumato.device import conceal_photos
from sfumato.features import write_hloc
from sfumato.features.local import order_by_position
from sfumato.features.sources import open_source
from sfumato.images.read import read_image, to_grey
from sfumato.images.samples import sample_paths
from sfumato.types.clear import Features
from sfumato.types.extractor import Extractor


@pytest.fixture
def hloc_file(tmp_path):
    """An hloc features.h5 of two images with 256-dimensional unit-norm descriptors, one in a folder."""
    path = tmp_path / "feats-superpoint-n4096.h5"
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for name in ("db/1.jpg", "query.jpg"):
            descriptors = rng.normal(size=(256, 90))
            group = file.create_group(name)
            group["keypoints"] = rng.uniform(0, 600, (90, 2)).astype(np.float32)
            group["descriptors"] = (descriptors / np.linalg.norm(descriptors, axis=0)).astype(np.float16)
            group["scores"] = np.ones(90, np.float16)
            group["image_size"] = np.array([640, 480])
    return path


@pytest.fixture
def camera_photos(tmp_path, write_photo):
    """Two photos with a focal length in their EXIF, and one without."""
    pixels = to_grey(read_image(sample_paths()["coffee"]))[:200, :300]
    (tmp_path / "photos").mkdir()
    write_photo(tmp_path / "photos" / "a.jpg", pixels, 28)
    write_photo(tmp_path / "photos" / "b.jpg", pixels, 35)  # the same picture, another camera
    write_photo(tmp_path / "photos" / "c.jpg", pixels[:, ::-1])
    return tmp_path / "photos"


# --- generated scenes: points in space, seen by cameras


@dataclass(frozen=True, eq=False)
class Scene:
    """Features of photos by name, and of each feature the number of its point in space, -1 for clutter."""

    features: dict[str, Features]
    points: dict[str, np.ndarray]

    def seen(self, least: int) -> dict[str, np.ndarray]:
        """Of each photo, which features show a point that ``least`` photos see."""
        views = np.bincount(np.concatenate([ids[ids >= 0] for ids in self.points.values()]))
        return {name: (ids >= 0) & (views[ids] >= least) for name, ids in self.points.items()}

    def rows(self, least: int, key: bytes) -> dict[str, np.ndarray]:
        """The same of the rows of an archive, which lie in an order under the key."""
        seen = self.seen(least)
        return {name: seen[name][order_rows(one, secret=key)] for name, one in self.features.items()}


def make_scene(photos=4, points=900, clutter=300, noise=0.02, seed=0, prefix="", camera=0.6, kinds=None) -> Scene:
    """Photos of a box of random points from places side by side, with descriptors that are nearly the same in each.

    ``clutter``: features that one photo alone has; ``camera``: how far the places are from one another; ``kinds``: how
    many different things there are to see, in every scene the same, so that much looks alike that is not the same.
    """
    rng, size = np.random.default_rng(seed), np.array([640, 480])
    world, features, numbers = rng.uniform((-3, -2, 4), (3, 2, 9), (points, 3)), {}, {}

    def look(count):
        """Descriptors of things; those of one kind differ a little."""
        if kinds is None:
            return unit(rng.standard_normal((count, 128)) ** 2)
        every = unit(np.random.default_rng(99).standard_normal((kinds, 128)) ** 2)
        return unit(every[rng.integers(kinds, size=count)] + rng.normal(0, 0.015, (count, 128)))

    looks = look(points)
    for photo in range(photos):
        angle = np.deg2rad(rng.uniform(-4, 4))
        turn = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
        centre = [camera * (photo - (photos - 1) / 2), *(camera * rng.uniform(-0.4, 0.4, 2))]
        at = (world - centre) @ turn.T
        pixels = 500 * at[:, :2] / at[:, 2:] + size / 2 + rng.normal(0, 0.3, (points, 2))
        seen = np.flatnonzero(((pixels > 0) & (pixels < size - 1)).all(axis=1))
        places = np.concatenate([pixels[seen], rng.uniform(0, 1, (clutter, 2)) * (size - 1)])
        rows = np.concatenate([looks[seen], look(clutter)])
        rows[: len(seen)] = unit(rows[: len(seen)] + rng.normal(0, noise, (len(seen), 128)))
        keypoints = np.column_stack([places, np.full(len(places), 2), np.zeros(len(places))]).astype(np.float32)
        order = order_by_position(keypoints)
        name = f"{prefix}{photo}.jpg"
        features[name] = Features(keypoints[order], rows[order], Extractor("sift"), tuple(size.tolist()))
        numbers[name] = np.concatenate([seen, np.full(clutter, -1)])[order]
    return Scene(features, numbers)


def unit(rows):
    rows = np.abs(rows)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="session", name="make_scene")
def make_scene_fixture():
    return make_scene


@pytest.fixture(scope="session")
def scene():
    """Four photos of one place."""
    return make_scene()


@dataclass(frozen=True, eq=False)
class Device:
    """An archive of a scene on the device that made it, the file its features came from, and what a server matched."""

    archive: Path
    photos: Path
    matches: Path
    key: bytes
    scene: Scene

    @property
    def positions(self) -> Path:
        return self.archive.with_name(f"{self.archive.name}.positions")

    def shown(self) -> dict[str, np.ndarray]:
        """Of each photo, the rows whose positions are in the archive."""
        with sfumato.load(self.archive) as images:
            return {name: np.flatnonzero(images[name].is_shown) for name in images}


DEVICE_KEY = hashlib.sha256(b"a device of the tests").digest()


def make_device(folder: Path, scene: Scene, key: bytes = DEVICE_KEY, **given) -> Device:
    folder.mkdir(parents=True, exist_ok=True)
    write_hloc(folder / "clear.h5", scene.features.items())
    scene = Scene(dict(open_source(folder / "clear.h5").features()), scene.points)  # as they come out of the file
    device = Device(folder / "private.sfm", folder / "clear.h5", folder / "matches.h5", key, scene)
    conceal_photos(device.photos, device.archive, secret=key, **given)
    sfumato.match_archive(device.archive, device.matches)
    return device


@pytest.fixture(scope="session", name="make_device")
def make_device_fixture():
    return make_device


@pytest.fixture(scope="session")
def made_device(tmp_path_factory, scene):
    return make_device(tmp_path_factory.mktemp("device"), scene)


@pytest.fixture
def device(made_device, tmp_path):
    """A device that has concealed four photos of one place; each test has its own."""
    for path in (made_device.archive, made_device.positions, made_device.photos, made_device.matches):
        shutil.copy(path, tmp_path)
    moved = [tmp_path / path.name for path in (made_device.archive, made_device.photos, made_device.matches)]
    return Device(*moved, made_device.key, made_device.scene)
