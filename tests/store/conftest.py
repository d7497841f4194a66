# SPDX-License-Identifier: Apache-2.0
"""What the tests of the store share: generated features, exact comparison, changed bytes, and a forger's archives."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.store.layout import digest, digest_lines, encode_image
from sfumato.store.writer import INSERT, save
from sfumato.types.concealed import Bits, ConcealedFeatures, Points, RowTags, Subspaces
from sfumato.types.extractor import Extractor

SIFT = Extractor("sift", {"max_features": 8000, "contrast_threshold": 0.04, "precise_upscale": True})
HUGE = (0, 1, -1, 2**7, 2**15, 2**31 - 1, 2**31, 2**63 - 1)
"""Numbers at the edges of their types."""
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


def make_home(seed: int = 0, count: int = 5, shown: int = 0, **more: Any) -> ConcealedFeatures:
    """What a seal makes where positions stay home, but for those of the first ``shown`` rows: with tags."""
    image, rng = make_sealed(seed, count, **more), np.random.default_rng(seed)
    keypoints = np.where(np.arange(count)[:, None] < shown, image.keypoints, np.float32(np.nan))
    tags = RowTags(rng.bytes(16).hex(), rng.integers(0, 256, (count, 8), np.uint8))
    return replace(image, keypoints=keypoints, tags=tags)


def bytes_of(image: ConcealedFeatures) -> tuple[Any, ...]:
    """Everything of an image, to the bit."""
    code = image.code
    arrays = [code.packed] if isinstance(code, Bits) else [code.origin, code.basis]
    described = image.recipe.to_json(), image.extractor.to_json(), image.image_size, image.focal_px, type(code).__name__
    tags = () if image.tags is None else (image.tags.photo, image.tags.rows.tobytes())
    return *described, tags, *((one.shape, one.dtype.str, one.tobytes()) for one in (image.keypoints, *arrays))


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


def mutate(raw: bytes, rng: np.random.Generator) -> bytes:
    """Return the bytes with one to three changes; half of them at the start of a page, where its structure is."""
    data = bytearray(raw)
    for _ in range(int(rng.integers(1, 4))):
        if len(data) < 2:
            break
        size = len(data)
        kind = rng.integers(9)
        at, other = (int(rng.integers(size)) for _ in range(2))
        if rng.random() < 0.5:
            at = min(size - 1, at // 16384 * 16384 + int(rng.integers(120)))
        length = int(rng.integers(1, 1 + min(64 if rng.random() < 0.7 else 4096, size)))
        if kind <= 1:  # bits
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == 2:  # a burst of noise
            data[at : at + length] = rng.bytes(len(data[at : at + length]))
        elif kind == 3:  # zeros or ones
            data[at : at + length] = bytes([int(rng.choice([0, 255]))]) * len(data[at : at + length])
        elif kind == 4:  # an interesting number
            width = int(rng.choice([1, 2, 4, 8]))
            number = [*(abs(one) for one in HUGE), size, at, size // 16384][rng.integers(len(HUGE) + 3)]
            data[at : at + width] = (number % 2 ** (8 * width)).to_bytes(width, "big")
        elif kind == 5:  # cut
            del data[at:]
        elif kind == 6:  # a block in the place of another, or a page
            start, to, length = (other, at, length) if rng.random() < 0.5 else (other & ~16383, at & ~16383, 16384)
            block = data[start : start + length]
            data[to : to + len(block)] = block
        elif kind == 7:  # two blocks swapped
            low, high = sorted((at, other))
            length = min(length, high - low, len(data) - high)
            data[low : low + length], data[high : high + length] = (
                data[high : high + length], data[low : low + length],
            )  # fmt: skip
        elif rng.random() < 0.5:  # something inserted
            data[at:at] = rng.bytes(length)
        else:  # something left out
            del data[at : at + length]
    return bytes(data)


@pytest.fixture
def features() -> Callable[..., ConcealedFeatures]:
    return make_features


@pytest.fixture
def sealed() -> Callable[..., ConcealedFeatures]:
    return make_sealed


@pytest.fixture
def home() -> Callable[..., ConcealedFeatures]:
    return make_home


@pytest.fixture
def same() -> Callable[[ConcealedFeatures, ConcealedFeatures], None]:
    return assert_same


@pytest.fixture
def forge() -> Callable[..., None]:
    return forge_archive


@pytest.fixture
def sql() -> Callable[..., None]:
    return run_sql


@pytest.fixture(name="mutate")
def mutate_fixture() -> Callable[[bytes, np.random.Generator], bytes]:
    return mutate
