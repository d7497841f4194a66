# SPDX-License-Identifier: Apache-2.0
"""What the tests of the store share: generated features, exact comparison, and archives made by a forger."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.store import hdf5
from sfumato.store.layout import ImageHeader, digest_arrays, encode_name
from sfumato.types.concealed import ConcealedFeatures, Subspaces
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe

SIFT = Extractor("sift", {"max_features": 8000, "contrast_threshold": 0.04, "precise_upscale": True})


def make_features(seed: int = 0, count: int = 5, dim: int = 2, ambient_dim: int = 16, **more: Any) -> ConcealedFeatures:
    rng = np.random.default_rng(seed)
    subspaces = Subspaces(rng.standard_normal((count, ambient_dim)), rng.standard_normal((count, dim, ambient_dim)))
    settings = {"recipe": f"random-{dim}", "extractor": SIFT, "image_size": (640, 480), **more}
    return ConcealedFeatures(rng.random((count, 4)) * 100, subspaces, **settings)


def make_sealed(seed: int = 0, count: int = 5, bits: int = 64, **more: Any) -> ConcealedFeatures:
    """What a seal makes: points whose coordinates are plus or minus 1 / sqrt(bits)."""
    rng = np.random.default_rng(seed)
    origin = np.where(rng.random((count, bits)) < 0.5, -1, 1) / np.sqrt(bits)
    subspaces = Subspaces(origin, np.zeros((count, 0, bits)))
    settings = {"recipe": f"sealed-{bits}@0123456789ab", "extractor": SIFT, "image_size": (640, 480), **more}
    return ConcealedFeatures(rng.random((count, 4)) * 100, subspaces, **settings)


def assert_same(left: ConcealedFeatures, right: ConcealedFeatures) -> None:
    assert left.keypoints.tobytes() == right.keypoints.tobytes()
    assert left.subspaces.origin.tobytes() == right.subspaces.origin.tobytes()
    assert left.subspaces.basis.tobytes() == right.subspaces.basis.tobytes()
    assert left.subspaces.basis.shape == right.subspaces.basis.shape
    assert left.recipe.to_json() == right.recipe.to_json()
    assert left.extractor == right.extractor
    assert (left.image_size, left.payload) == (right.image_size, right.payload)
    assert left.focal_px == right.focal_px


def forge_header(header: ImageHeader, **changes: Any) -> ImageHeader:
    """A header that was never checked."""
    forged = object.__new__(ImageHeader)
    for name in ImageHeader.__dataclass_fields__:
        object.__setattr__(forged, name, changes.get(name, getattr(header, name)))
    return forged


def forge_archive(path: Path, name: str, features: ConcealedFeatures, **changes: Any) -> None:
    """An archive of one image with right checksums and whatever arrays and header entries the forger wants."""
    given = (features.keypoints, features.subspaces.origin, features.subspaces.basis)
    names = ("keypoints", "origin", "basis")
    arrays = [np.ascontiguousarray(changes.pop(key, value)) for key, value in zip(names, given, strict=True)]
    arrays += [np.ascontiguousarray(changes.pop("values"))] if "values" in changes else []
    count, dim, ambient_dim = arrays[2].shape
    honest = ImageHeader(name, 1, 2, 16, "float32", Recipe.of("random-2"), features.extractor, features.image_size, "")
    sizes = {"count": count, "dim": dim, "ambient_dim": ambient_dim, "recipe": features.recipe}
    dtype = {"dtype": {1: "bits", 2: "float16", 4: "float32"}[arrays[1].itemsize]}
    header = forge_header(honest, **{**sizes, **dtype, "data": digest_arrays(arrays), **changes})
    start = hdf5.SUPERBLOCK_SIZE
    head, places, end = hdf5.block_head(header, start)
    tail, root, size = hdf5.tail({encode_name(name): start}, end)
    raw = bytearray(size)
    raw[start : start + len(head)] = head
    for array, place in zip(arrays, places, strict=True):
        raw[place : place + array.nbytes] = array.tobytes()
    raw[end:] = tail
    raw[:start] = hdf5.superblock(size, root)
    path.write_bytes(raw)


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
