# SPDX-License-Identifier: Apache-2.0
"""Bits alone: what rows without positions tell of a photo, and whether the number of a row tells where it lies."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from common import note
from people import PEOPLE

from releaseds.material import Material
from releaseds.sets import Descriptors, Sealed, figure, key_of
from sfumato.concealment.seal import make_seal

Floats = np.ndarray

MOST_ROWS = 3000
LIMITS = (40, 80, 120, 160)
"""Rows that differ in fewer bits are repeats of each other, of 512."""
GROUPS = (1, 2, 4, 8, 16)
STEP = 16
FOLDS, DRAWS = 5, 1000
ANIMALS, DOGS = ("n00000000", "n02666195"), ("n02085620", "n02113978")
"""Ranges of WordNet numbers: the first 398 classes are animals, of these 118 dogs."""


def summary(packed: Floats, rng: np.random.Generator) -> Floats:
    """Return what a server counts in the rows (N, 64) of a photo: distances, nearest ones, groups of repeats."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    rows = packed[np.sort(rng.permutation(len(packed))[:MOST_ROWS])]
    count, bits = len(rows), 8 * packed.shape[1]
    signs = np.unpackbits(rows, axis=1).astype(np.float32) * 2 - 1
    apart = np.rint((bits - signs @ signs.T) / 2).astype(np.int16)
    np.fill_diagonal(apart, bits)
    apart_at_most = np.minimum(apart, bits - 1) // STEP
    every = np.bincount(apart_at_most.ravel(), minlength=bits // STEP) / max(1, count * (count - 1))
    parts = [every, np.bincount(apart_at_most.min(axis=1), minlength=bits // STEP) / max(1, count)]
    for limit in LIMITS:
        first, second = np.nonzero(apart < limit)
        graph = coo_matrix((np.ones(len(first), np.int8), (first, second)), (count, count))
        sizes = np.bincount(connected_components(graph, directed=False)[1])
        in_groups = [sizes[(sizes >= least)].sum() / max(1, count) for least in GROUPS[1:]]
        parts.append(np.array([*in_groups, sizes.max(initial=0) / max(1, count), len(first) / max(1, count)]))
    return np.concatenate(parts)


def summaries(photos: Descriptors, seed: int) -> Floats:
    """Return the count of rows, the size of the photo, and the summary of each photo, every one under its own key."""
    rng, results = np.random.default_rng(seed), []
    for number in range(len(photos.names)):
        if number % 200 == 0:
            note(f"bits: {number} of {len(photos.names)} photos")
        rows = photos.of(number)
        packed = make_seal(key_of(seed, number), rows.shape[1], 512)(rows).packed
        results.append(np.concatenate([[np.log(len(rows))], np.log(photos.sizes[number]), summary(packed, rng)]))
    return np.array(results)


SEEN = {
    "the number of rows": slice(0, 1), "size of the photo": slice(1, 3), "bits": slice(3, None), "all": slice(0, None)
}  # fmt: skip
"""What a server sees of each photo; the size is in the archive too."""


def tell(inputs: Floats, labels: Floats, seed: int) -> tuple[float, float, float]:
    """Return the area under the curve of gradient boosting on photos that it was not trained on, and its interval."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    model = HistGradientBoostingClassifier(max_iter=150, learning_rate=0.05, max_leaf_nodes=8, random_state=seed)
    folds = StratifiedKFold(min(FOLDS, int(min(labels.sum(), (~labels).sum()))), shuffle=True, random_state=seed)
    chance = cross_val_predict(model, inputs, labels, cv=folds, method="predict_proba")[:, 1]
    rng, drawn = np.random.default_rng(seed), []
    for _ in range(DRAWS):
        some = rng.integers(len(labels), size=len(labels))
        if labels[some].any() and not labels[some].all():
            drawn.append(roc_auc_score(labels[some], chance[some]))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(roc_auc_score(labels, chance)), float(low), float(high)


def textured(material: Material, names: list[str]) -> Floats:
    """Return how much of each photo has contrast, by the photos themselves."""
    from sfumato.images.read import read_image
    from sfumato.inversion.metrics import outlines

    paths = {path.stem: path for path in material.collections["imagenet"]}
    return np.array([1 - outlines(read_image(paths[name]).pixels).mean() for name in names])


def within(names: list[str], ends: tuple[str, str]) -> Floats:
    """Tell which photos are of the classes of a range."""
    return np.array([ends[0] <= name.split("_")[0] <= ends[1] for name in names])


def bit_rows(material: Material) -> Iterator[dict[str, Any]]:
    """Yield what a classifier tells of photos from their rows, and what the number of a row tells of its position."""
    seed = material.seed
    photos, others = material.descriptors("imagenet"), material.descriptors("bsds-val")
    inputs, people = summaries(photos, seed), summaries(others, seed + 1)
    texture, is_animal = textured(material, photos.names), within(photos.names, ANIMALS)
    names = np.array(others.names)
    has_people = np.arange(len(names)) % 5 == 0 if material.small else np.isin(names, PEOPLE)
    questions = {
        "textured, more than half of the photos": (inputs, texture > np.median(texture)),
        "an animal": (inputs, is_animal),
        "a dog, of animals": (inputs[is_animal], within(photos.names, DOGS)[is_animal]),
        "people large, of bsds500/val": (people, has_people),
    }
    if material.small:
        questions = {"an animal": (inputs, np.arange(len(inputs)) % 2 == 0)}
    for question, (rows, labels) in questions.items():
        for seen, columns in SEEN.items():
            area, low, high = tell(rows[:, columns], labels, seed)
            yield figure("bits", question, f"area under the curve, {seen}", area, len(labels), low=low, high=high)
    yield from order_rows([photo for photos in material.sets.values() for photo in photos], seed)
    material.say("bits", photos=len(photos.names), bsds=len(others.names), people=int(has_people.sum()), folds=FOLDS,
                 rows_a_photo=float(np.mean(photos.counts)), most_rows=MOST_ROWS, limits=LIMITS)  # fmt: skip


def order_rows(photos: list[Sealed], seed: int) -> Iterator[dict[str, Any]]:
    """Yield the rank correlation of the number of a row with its position; and whether neighbours in the archive are
    near each other in the photo, as a share of the distance of two rows at random; with intervals over photos."""
    from scipy.stats import spearmanr

    rng = np.random.default_rng(seed)
    found: dict[str, list[float]] = {"x": [], "y": [], "distance from the middle": []}
    steps = list[float]()
    for photo in photos:
        places, numbers = photo.positions, np.arange(len(photo.positions))
        away = np.linalg.norm(places - np.array(photo.size) / 2, axis=1)
        for name, values in zip(found, (places[:, 0], places[:, 1], away), strict=True):
            found[name].append(float(spearmanr(numbers, values).statistic))
        step = np.linalg.norm(np.diff(places, axis=0), axis=1).mean()
        steps.append(float(step / np.linalg.norm(places - rng.permutation(places), axis=1).mean()))
    figures = {f"correlation with {name}": values for name, values in found.items()}
    for name, values in (figures | {"distance of neighbours, of chance": steps}).items():
        mean, spread = float(np.mean(values)), 1.96 * float(np.std(values)) / np.sqrt(len(values))
        yield figure("bits", "order of rows", name, mean, len(values), low=mean - spread, high=mean + spread)
