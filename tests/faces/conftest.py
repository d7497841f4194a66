# SPDX-License-Identifier: Apache-2.0
"""People for tests: each a direction, photos of them near it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from sfumato.faces.compare import Threshold
from sfumato.faces.gallery import GalleryFacts
from sfumato.faces.gallery_file import GalleryWriter
from sfumato.types.clear import Embeddings
from sfumato.types.concealed import ConcealedTemplates
from sfumato.types.extractor import Extractor

DIMS = 64


def make_photos(people: range, photos: int = 1, noise: float = 0.03, seed: int = 0) -> Embeddings:
    """Some photos of each person, named person_photo; a person looks the same whatever the seed."""
    rng = np.random.default_rng([seed, 1])
    faces = [np.random.default_rng([77, person]).normal(size=DIMS) for person in people]
    rows = [face / np.linalg.norm(face) + noise * rng.normal(size=DIMS) for face in faces for _ in range(photos)]
    names = tuple(f"p{person}_{photo}" for person in people for photo in range(photos))
    return Embeddings(np.array(rows).reshape(-1, DIMS), names, Extractor("arcface"))


@pytest.fixture(scope="session", autouse=True)
def face_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the keys of people, in place of the one of whoever runs the tests."""
    folder = tmp_path_factory.mktemp("face-keys")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_FACE_KEYS", str(folder))
        yield folder


@pytest.fixture(scope="session")
def photos() -> Callable[..., Embeddings]:
    """Make photos of people: ``photos(range(3), photos=2, seed=1)``."""
    return make_photos


@pytest.fixture(scope="session")
def set_threshold() -> Callable[..., None]:
    """Give a gallery's file a threshold between photos of one person (0.3) and strangers (1.2): no draw decides."""

    def set_one(path: Path, distance: float = 0.6) -> None:
        threshold = Threshold(
            comparison="p-to-s",
            distance=distance,
            wanted_rate=0.01,
            measured_rate=0.01,
            impostor_pairs=1000,
            people=40,
        )
        with GalleryWriter(path) as writer, writer.turn():
            writer.set_threshold(threshold)

    return set_one


@pytest.fixture(scope="session")
def write_gallery() -> Callable[..., Path]:
    """Write templates to a new gallery, without the clear faces."""

    def write(path: Path, templates: ConcealedTemplates, *thresholds: Threshold) -> Path:
        facts = GalleryFacts(
            id=bytes(range(16)),
            recipe=templates.recipe,
            extractor=templates.extractor,
            dimensions=templates.code.ambient_dim,
            thresholds=thresholds,
        )
        with GalleryWriter(path) as writer, writer.turn():
            writer.begin(facts)
            writer.add(templates)
        return path

    return write
