# SPDX-License-Identifier: Apache-2.0
"""What the tests of folders share: small pictures, and where real data lies, if it is there."""

import os
from pathlib import Path

import cv2
import numpy as np
import pytest


@pytest.fixture(scope="session")
def save_picture():
    """Write a small picture of noise; return its path."""

    def save(path: Path, size=(64, 48), seed=0) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
        assert cv2.imwrite(str(path), pixels)
        return path

    return save


@pytest.fixture(scope="session")
def real_data():
    """Return a folder of the real data, named by SFUMATO_DATA; skip where it is missing."""
    root = Path(os.environ.get("SFUMATO_DATA", Path(__file__).resolve().parents[4] / "shared" / "data"))

    def find(name: str) -> Path:
        if not (root / name).is_dir():
            pytest.skip(f"needs {name} of the real data: set SFUMATO_DATA")
        return root / name

    return find


@pytest.fixture(scope="session")
def turn():
    """A rotation that mixes all axes, and a quaternion w x y z of it."""

    def make(angle=0.7, axis=(1.0, -2.0, 0.5)):
        unit = np.array(axis) / np.linalg.norm(axis)
        rotation, _ = cv2.Rodrigues(unit * angle)
        return rotation, np.array([np.cos(angle / 2), *(np.sin(angle / 2) * unit)])

    return make
