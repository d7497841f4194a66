# SPDX-License-Identifier: Apache-2.0
"""What the tests of features share: files as hloc and COLMAP write them."""

import importlib.util
import sqlite3
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from sfumato.images.samples import sample_image


def unit_rows(rng, count, dim):
    rows = rng.normal(size=(count, dim))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture
def write_hloc(tmp_path):
    """Write a features.h5 as hloc does: {name: {dataset: array}}."""

    def write(images, name="feats-superpoint-n4096-r1024.h5"):
        with h5py.File(tmp_path / name, "w", libver="latest") as file:
            for image, arrays in images.items():
                group = file.create_group(image)
                for key, value in arrays.items():
                    group.create_dataset(key, data=value)
        return tmp_path / name

    return write


@pytest.fixture
def hloc_image():
    """The arrays of one image of N keypoints as hloc stores them."""

    def make(count=30, dim=256, seed=0, dtype=np.float16):
        rng = np.random.default_rng(seed)
        return {
            "keypoints": rng.uniform(0, 400, (count, 2)).astype(dtype),
            "descriptors": unit_rows(rng, count, dim).T.astype(dtype),
            "scores": rng.random(count).astype(dtype),
            "image_size": np.array([640, 480]),
        }

    return make


OLD_SCHEMA = """
CREATE TABLE cameras (camera_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, model INTEGER NOT NULL,
    width INTEGER NOT NULL, height INTEGER NOT NULL, params BLOB, prior_focal_length INTEGER NOT NULL);
CREATE TABLE images (image_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, name TEXT NOT NULL UNIQUE,
    camera_id INTEGER NOT NULL, prior_qw REAL, prior_qx REAL, prior_qy REAL, prior_qz REAL,
    prior_tx REAL, prior_ty REAL, prior_tz REAL);
CREATE TABLE keypoints (image_id INTEGER PRIMARY KEY NOT NULL,
    rows INTEGER NOT NULL, cols INTEGER NOT NULL, data BLOB);
CREATE TABLE descriptors (image_id INTEGER PRIMARY KEY NOT NULL,
    rows INTEGER NOT NULL, cols INTEGER NOT NULL, data BLOB);
"""


@pytest.fixture
def write_colmap(tmp_path):
    """Write a database with the schema of COLMAP 3: {name: (keypoints, descriptors)}; None writes no row."""

    def write(images, name="database.db", schema=OLD_SCHEMA):
        with sqlite3.connect(tmp_path / name) as database:
            database.executescript(schema)
            database.execute("INSERT INTO cameras VALUES (7, 2, 640, 480, NULL, 0)")
            for image, (keypoints, descriptors) in images.items():
                row = database.execute("INSERT INTO images (name, camera_id) VALUES (?, 7)", (image,)).lastrowid
                for table, matrix in (("keypoints", keypoints), ("descriptors", descriptors)):
                    if matrix is not None:
                        values = (row, *matrix.shape, matrix.tobytes() or None)
                        database.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", values)
        database.close()
        return tmp_path / name

    return write


@pytest.fixture
def colmap_image():
    """Keypoints (N, 6) and descriptors (N, 128) of one image as COLMAP stores them."""

    def make(count=20, seed=0):
        rng = np.random.default_rng(seed)
        angle, sigma = rng.uniform(-np.pi, np.pi, count), rng.uniform(1, 9, count)
        cos, sin = sigma * np.cos(angle), sigma * np.sin(angle)
        place = rng.uniform(1, 400, (2, count))
        keypoints = np.stack([*place, cos, -sin, sin, cos], axis=1).astype(np.float32)
        descriptors = np.rint(512 * np.abs(unit_rows(rng, count, 128))).astype(np.uint8)
        return keypoints, descriptors

    return make


@pytest.fixture(scope="session")
def run_pycolmap():
    """Run a program that uses pycolmap, in a process of its own: its zlib and OpenCV's do not get on."""
    if importlib.util.find_spec("pycolmap") is None:
        pytest.skip("needs pycolmap")

    def run(program: str, *arguments):
        head = "import sys, numpy as np, pycolmap\npycolmap.logging.minloglevel = 2\n"
        command = [sys.executable, "-c", head + program, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr

    return run


@pytest.fixture(scope="session")
def colmap_database(run_pycolmap, tmp_path_factory) -> Path:
    """A database that COLMAP itself made of a sample photo and of a flat picture."""
    import cv2

    folder = tmp_path_factory.mktemp("colmap")
    (folder / "images" / "sub").mkdir(parents=True)
    assert cv2.imwrite(str(folder / "images" / "astronaut.png"), sample_image("astronaut").pixels[:, :, ::-1])
    assert cv2.imwrite(str(folder / "images" / "sub" / "flat.png"), np.full((60, 80, 3), 128, np.uint8))
    program = """
options = pycolmap.FeatureExtractionOptions(use_gpu=False, num_threads=1)
pycolmap.extract_features(sys.argv[1], sys.argv[2], extraction_options=options, device=pycolmap.Device.cpu,
                          camera_mode=pycolmap.CameraMode.PER_IMAGE)
"""
    run_pycolmap(program, folder / "database.db", folder / "images")
    return folder / "database.db"


@pytest.fixture(scope="session")
def untrained(tmp_path_factory):
    """Write the weights of a hardtfeat network that was never trained; return their file, one for each seed."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("kornia.feature")
    save_file = pytest.importorskip("safetensors.torch").save_file
    folder = tmp_path_factory.mktemp("weights")
    shapes = {
        "features.0.weight": (32, 1, 7, 7), "features.0.bias": (32,), "features.3.weight": (64, 32, 6, 6),
        "features.3.bias": (64,), "classifier.1.weight": (128, 64, 8, 8), "classifier.1.bias": (128,),
    }  # fmt: skip

    def write(seed=0):
        path = folder / f"{seed}.safetensors"
        if not path.exists():
            generator = torch.Generator().manual_seed(seed)
            save_file({name: 0.05 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}, path)
        return path

    return write
