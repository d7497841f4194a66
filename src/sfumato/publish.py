# SPDX-License-Identifier: Apache-2.0
"""Publication in the clear, by the owner's device and on request only: public points of a map, features for hloc.

Nothing a server runs imports this module; a test follows the imports and says so. Reading what was published is for
``sfumato.store.public_points``.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from sfumato.errors import FileError, InputError, SfumatoError
from sfumato.features.sources import FeatureSource
from sfumato.files.sqlite import replacement
from sfumato.geometry.hloc import FEATURES_FILE, HlocImage, HlocOutcome, new_files, refuse_names, write_features
from sfumato.geometry.model import Model, read_model, refuse_other_keypoints
from sfumato.geometry.model_folder import LANDMARKS
from sfumato.geometry.outputs import PUBLIC, refuse_existing
from sfumato.store.archive import load
from sfumato.store.public_points import PUBLIC_POINTS, row_of
from sfumato.types.clear import Features
from sfumato.types.concealed import PublicPoints
from sfumato.types.progress import Progress

SHOWN = 5
INSERT = "INSERT INTO image VALUES (?, ?, ?, ?, ?, ?, ?, ?)"


@dataclass(slots=True)
class PublishOutcome:
    """Counts of what was published: images, descriptors, distinct points; and the images that were not, and why."""

    images: int = 0
    descriptors: int = 0
    points: int = 0
    missing: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)


def publish_points(
    source: FeatureSource,
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Progress = iter,
) -> PublishOutcome:
    """Write the clear descriptors of the mapped points of a COLMAP model to a file for everyone to read.

    Of each registered image, those of the keypoints that see a mapped point; all others stay where they are. The
    features must be the ones that were mapped, row for row. Images of the model that the source lacks or cannot read
    are named in what is returned.

    Raises FileError for a model that was made from other features, and if the file cannot be written, or is there and
    holds anything but public points; InputError for a map of sealed features: beside their seals, published descriptors
    give away the key.
    """
    output = Path(output)
    refuse_existing(output, PUBLIC, {"the source": source.path}, overwrite=overwrite)
    _refuse_sealed(Path(folder))
    model, done = read_model(folder), PublishOutcome()
    done.missing = sorted(set(model.names) - set(source.names))
    published, wrong = [], []
    strangers = {name for name in source.names if name not in model}
    for name, features in progress(source.features(skip=strangers)):
        if isinstance(features, SfumatoError):
            done.unreadable[name] = str(features)
            continue
        try:
            published.append((name, _select_points(name, features, model)))
        except InputError as problem:
            wrong.append(str(problem))
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise FileError(
            f"{folder} was not mapped from these features: {'; '.join(wrong[:SHOWN])}{more}. Nothing was published; "
            f"extract them as they were when they were concealed"
        )
    if not any(len(points) for _, points in published):
        raise FileError(f"nothing to publish: no image of {source.path} sees a point of the map {folder}")
    _write_public(output, published)
    done.images, done.descriptors = len(published), sum(len(points) for _, points in published)
    done.points = len(np.unique(np.concatenate([points.points for _, points in published])))
    return done


def _refuse_sealed(folder: Path) -> None:
    """Raise InputError for a map whose landmarks are sealed: with their descriptors they are known pairs."""
    if not (folder / LANDMARKS).exists():
        return
    with load(folder / LANDMARKS) as landmarks:
        sealed = next((name for name in landmarks if landmarks.header(name).recipe.is_sealed), None)
    if sealed is not None:
        raise InputError(
            f"{folder} was mapped from sealed features. Anyone who has them and their published descriptors can "
            f"recover the key. Map a lifting instead: sfumato conceal PHOTOS -o open.sfm --recipe sub-hybrid-2"
        )


def _select_points(name: str, features: Features, model: Model) -> PublicPoints:
    """Return the descriptors of the mapped points one image sees; raises InputError if it was mapped from others."""
    refuse_other_keypoints(name, model, features.keypoints)
    sight = model.sight(name)
    return PublicPoints(model.numbers[sight.landmarks], features.descriptors[sight.keypoints], features.extractor)


def _write_public(output: Path, images: list[tuple[str, PublicPoints]]) -> None:
    """Write a file of public points, at once."""
    kinds = {(points.extractor.name, points.descriptors.shape[1]) for _, points in images}
    if len(kinds) != 1:
        names = " and ".join(sorted(f"{name} of {width} dimensions" for name, width in kinds))
        raise InputError(f"public points must be of one kind of descriptor, these are {names or 'none'}")
    extractor = min(images, key=lambda one: one[0])[1].extractor  # one for all: what is told of it may differ
    with replacement(output, PUBLIC_POINTS) as database, database.transaction():
        for name, points in images:
            database.rows(INSERT, row_of(name, replace(points, extractor=extractor)))


def export_clear(
    source: FeatureSource,
    folder: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Progress = iter,
) -> tuple[HlocOutcome, dict[str, str]]:
    """Write clear features as hloc's features.h5, descriptors (n, N) included, for a pipeline on the same device.

    Returns what was written, and the images that could not be read with the reason.
    """
    refuse_names(source.names)
    outcome, unreadable = HlocOutcome(), dict[str, str]()

    def images() -> Iterator[tuple[str, HlocImage]]:
        for name, features in progress(source.features()):
            if isinstance(features, SfumatoError):
                unreadable[name] = str(features)
                continue
            more = {"descriptors": np.ascontiguousarray(features.descriptors.T)}
            yield name, HlocImage(features.keypoints, features.image_size, more)

    with new_files(folder, [FEATURES_FILE], {"the source": source.path}, overwrite=overwrite) as (part, places):
        write_features(part / FEATURES_FILE, images(), outcome, private=True)
        if not outcome.images:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in list(unreadable.items())[:3])
            raise FileError(f"nothing to write to {folder}: no image of {source.path} could be read. {reasons}")
    outcome.files = places
    return outcome, unreadable
