# SPDX-License-Identifier: Apache-2.0
"""What the tests of matching share: a small archive of generated images, some of which see the same points."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sfumato


def make_image(
    seed: int, count: int = 30, dim: int = 2, ambient_dim: int = 16, extractor: str = "sift"
) -> sfumato.ConcealedFeatures:
    """Subspaces through noisy copies of the same ``count`` points, in the same order."""
    points = np.random.default_rng(99).standard_normal((count, ambient_dim))
    rng = np.random.default_rng(seed)
    near = points + 0.1 * rng.standard_normal(points.shape)
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    subspaces = sfumato.Subspaces(near, rng.standard_normal((count, dim, ambient_dim)))
    return sfumato.ConcealedFeatures(
        rng.random((count, 4)) * 100, subspaces, f"random-{dim}", sfumato.Extractor(extractor)
    )


def write_archive(path: Path, count: int = 6, seed: int = 0, **more: Any) -> Path:
    """An archive of ``count`` images db/0.jpg, db/1.jpg, ... with fewer features each, the last without any."""
    images = {f"db/{i}.jpg": make_image(seed + i, 30 - i if i < count - 1 else 0, **more) for i in range(count)}
    sfumato.save(path, images)
    return path


def spoil_image(path: Path, name: str) -> None:
    """Flip a bit in the subspaces of one image."""
    with sfumato.load(path) as archive:
        raw = archive[name].code.origin.tobytes()
    content = bytearray(path.read_bytes())
    content[content.index(raw[:64])] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="session")
def archive_at() -> Callable[..., Path]:
    return write_archive


@pytest.fixture
def image() -> Callable[..., sfumato.ConcealedFeatures]:
    return make_image


@pytest.fixture
def spoil() -> Callable[[Path, str], None]:
    return spoil_image


@pytest.fixture
def archive_path(tmp_path: Path) -> Path:
    return write_archive(tmp_path / "a.sfm")
