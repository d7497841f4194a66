# SPDX-License-Identifier: Apache-2.0
"""What the tests of the store share: generated features, exact comparison, and archives made by a forger."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.store.layout import digest, digest_lines, encode_image
from sfumato.store.writer import INSERT, save
from sfumato.types.concealed import Bits, ConcealedFeatures, Points, Subspaces
from sfumato.types.extractor import Extractor

SIFT = Extractor("sift", {"max_features": 8000, "contrast_threshold": 0.04, "precise_upscale": True})
COLUMNS = (
    *("name", "count", "dim", "ambient_dim", "dtype", "recipe", "extractor", "width", "height", "focal_px"),
    *("data", "checksum", "keypoints", "code"),
)


def make_features(seed: int = 0, count: int = 5, dim: int = 2, ambient_dim: int = 16, **more: Any) -> ConcealedFeatures:
    rng = np.random.default_rng(seed)
    origin, basis = rng.standard_normal((count, ambient_dim)), rng.standard_normal((count, dim, ambient_dim))
    settings = {"recipe": f"random-{dim}", "extractor": SIFT, "image_size": (640, 480), **more}
    return ConcealedFeatures(
        rng.random((count, 4)) * 100, Subspaces(origin, basis) if dim else Points(origin), **settings
    )


def make_sealed(seed: int = 0, count: int = 5, bits: int = 64, **more: Any) -> ConcealedFeatures:
    """What a seal makes, with positions alone."""
    rng = np.random.default_rng(seed)
    keypoints = np.concatenate((rng.random((count, 2)) * 100, np.tile([1, 0], (count, 1))), axis=1)
    settings = {"recipe": f"sealed-{bits}@0123456789ab", "extractor": SIFT, "image_size": (640, 480), **more}
    return ConcealedFeatures(keypoints, Bits(rng.integers(0, 256, (count, bits // 8), np.uint8)), **settings)


def bytes_of(image: ConcealedFeatures) -> tuple[Any, ...]:
    """Everything of an image, to the bit."""
    code = image.code
    arrays = [code.packed] if isinstance(code, Bits) else [code.origin, code.basis]
    described = image.recipe.to_json(), image.extractor.to_json(), image.image_size, image.focal_px, type(code).__name__
    return *described, *((array.shape, array.dtype.str, array.tobytes()) for array in (image.keypoints, *arrays))


def assert_same(left: ConcealedFeatures, right: ConcealedFeatures) -> None:
    assert bytes_of(left) == bytes_of(right)


def run_sql(path: Path, *statements: str | tuple[str, tuple[Any, ...]]) -> None:
    """Change a file with SQLite, as anyone can."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        for statement in statements:
            connection.execute(*((statement,) if isinstance(statement, str) else statement))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def forge_row(features: ConcealedFeatures, **changes: Any) -> tuple[Any, ...]:
    """The row of an image with right digests, and whatever columns a forger wants."""
    header, keypoints, code = encode_image("a.jpg", features, "float32")
    row = dict(zip(COLUMNS, (*header.values, header.checksum, keypoints, code), strict=True)) | changes
    if not {"data", "checksum"} & set(changes) and all(isinstance(row[key], bytes) for key in COLUMNS[12:]):
        row["data"] = digest((row["keypoints"], row["code"]))
    if "checksum" not in changes:
        row["checksum"] = digest_lines([row[key] for key in COLUMNS[:11]])
    return tuple(row.values())


def forge_archive(path: Path, features: ConcealedFeatures, **changes: Any) -> None:
    """An archive of one image, ``a.jpg``, made by a forger."""
    save(path, {})
    run_sql(path, (INSERT, forge_row(features, **changes)))


@pytest.fixture
def features() -> Callable[..., ConcealedFeatures]:
    return make_features


@pytest.fixture
def sealed() -> Callable[..., ConcealedFeatures]:
    return make_sealed


@pytest.fixture
def same() -> Callable[[ConcealedFeatures, ConcealedFeatures], None]:
    return assert_same


@pytest.fixture
def forge() -> Callable[..., None]:
    return forge_archive


@pytest.fixture
def sql() -> Callable[..., None]:
    return run_sql
