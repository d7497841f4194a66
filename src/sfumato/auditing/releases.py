# SPDX-License-Identifier: Apache-2.0
"""Positions that would leave the device of photos under audit, by the way that users go: seal, match, release.

What several of the audited photos see is released, all else stays home: an attacker gets the codes of all features and
the positions of these.
"""

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from sfumato.auditing.task import short_digest
from sfumato.concealment.lifting import conceal
from sfumato.concealment.rows import order_rows, to_grid
from sfumato.concealment.seal import without_key
from sfumato.device.positions import PositionsWriter
from sfumato.device.release import release_positions
from sfumato.errors import EvaluationOnlyWarning
from sfumato.features.local import LocalParams, extract
from sfumato.geometry.mapping import LARGEST_EXHAUSTIVE
from sfumato.matching.batch import match_archive
from sfumato.matching.retrieval import USUAL_COUNT
from sfumato.store.archive import Archive
from sfumato.store.writer import ArchiveWriter
from sfumato.types.recipe import Recipe

Shown = Mapping[str, Mapping[str, NDArray[np.bool_]]]
"""By sealed recipe and photo: which clear features (N,) have positions that were released."""


def released_rows(photos: Mapping[str, Path], recipes: Iterable[str], local: LocalParams, seed: int) -> Shown:
    """Return what the photos, given as paths by name, would release under each recipe that is sealed."""
    sealed = [recipe for recipe in recipes if Recipe.of(recipe).is_sealed]
    return {recipe: _released_under(photos, recipe, local, seed) for recipe in sealed}


def _released_under(
    photos: Mapping[str, Path], recipe: str, local: LocalParams, seed: int
) -> dict[str, NDArray[np.bool_]]:
    with TemporaryDirectory(prefix="sfumato-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        path, orders = Path(folder) / "photos.sfm", dict[str, NDArray[np.int64]]()
        keyless = without_key(Recipe.of(recipe))  # under the key of the seed, which tags are made with too
        with ArchiveWriter(path) as writer, PositionsWriter(path) as kept:
            for name, photo in photos.items():
                features = extract(photo, local)
                orders[name] = order_rows(features, evaluation_seed=seed)
                hidden = conceal(features, keyless, evaluation_seed=seed)
                assert hidden.tags is not None  # it is sealed
                kept.keep(name, hidden.tags.photo, to_grid(features.keypoints)[orders[name]])
                writer.add(name, hidden)
        shown = {name: np.zeros(len(order), bool) for name, order in orders.items()}
        if len(photos) < 2:
            return shown
        pairs = "exhaustive" if len(photos) <= LARGEST_EXHAUSTIVE else f"votes:{USUAL_COUNT}"
        match_archive(path, Path(folder) / "matches.h5", pairs)
        release_positions(path, Path(folder) / "matches.h5")
        with Archive(path) as images:
            for name, order in orders.items():
                shown[name][order[images[name].is_shown]] = True
        return shown


def digest_shown(shown: Mapping[str, NDArray[np.bool_]]) -> str:
    """Return a digest of what photos would release under one recipe."""
    return short_digest([[name, np.packbits(rows).tobytes().hex()] for name, rows in sorted(shown.items())])
