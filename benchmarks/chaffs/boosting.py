# SPDX-License-Identifier: Apache-2.0
"""Boosting over plain statistics of positions and bits: the strongest attack on chaff that we have.

It learns from photos of other places under other keys. Photos have as many features as the default takes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import note

import sfumato
from chaffs.figures import Row, row
from chaffs.painting import paint
from chaffs.photos import Photo, photo_at, sample_part
from chaffs.separators import area_under_curve, statistics_of
from chaffs.sources import Mixture, Stock, mix
from chaffs.telling import Answers
from sfumato.features.local import LocalParams
from sfumato.images.read import list_images
from sfumato.images.samples import sample_names

Floats = np.ndarray

NEIGHBOURS, CODES, ROUNDS = 24, 12, 150
"""Nearest features, and nearest codes, that are measured of each row; and trees that are learned."""
LOCATION = "the third that location alone takes for real"
CASES = {"fountain-P11": "photos of 6 megapixels", "lund": "", "sceaux-castle": ""}
"""Places that are no tourist photos; the last two are only learned from."""
SAME = 3e-4
"""Pixels within which two offsets are one: a group and its copy."""


def plain_statistics(mixture: Mixture) -> Floats:
    """Return statistics (N, F) of each row: where it lies, its neighbours, its bits, and copies of its group."""
    assert mixture.codes is not None
    places, size, packed = mixture.places, np.array(mixture.size, float), mixture.codes.packed
    usual = np.sqrt(size.prod() / len(places))
    bits, near = nearest_codes(mixture)
    layout, neighbours = layout_statistics(places, size, usual)
    beside = np.bitwise_count(packed[neighbours] ^ packed[:, None]).sum(axis=2)  # bits that differ
    shared = np.column_stack([(beside < limit).sum(axis=1) for limit in (190, 215, 230)])
    offsets = places[near] - places[:, None]
    away = np.linalg.norm(offsets, axis=2) / usual
    alike = np.column_stack([(bits < limit).sum(axis=1) for limit in (1, 130, 170, 200, 215)])
    least = bits.min(axis=1, keepdims=True)
    around = np.column_stack([bits[neighbours, 0].mean(axis=1), least[neighbours].min(axis=1)[:, 0]])
    return np.column_stack([
        layout, bits, away[:, :6], offsets[:, :2].reshape(len(places), -1) / usual, alike, around,
        beside[:, :8], np.sort(beside, axis=1)[:, :3], beside.mean(axis=1), shared, shared[neighbours].mean(axis=1),
        layout[neighbours].mean(axis=1)[:, 7:22], statistics_of(mixture), copy_statistics(mixture, bits, near),
    ])  # fmt: skip


def nearest_codes(mixture: Mixture) -> tuple[Floats, Floats]:
    """Return how many bits differ from the nearest other codes (N, K), and the rows of these."""
    bits, near = sfumato.nearest(mixture.codes, mixture.codes, min(CODES + 1, len(mixture.places)), threads=1)
    itself = near == np.arange(len(near))[:, None]
    itself[~itself.any(axis=1), -1] = True  # so many twins that the row itself is not among them
    others, rows = (table[~itself].reshape(len(near), -1) for table in (bits, near))
    return others, rows


def layout_statistics(places: Floats, size: Floats, usual: float) -> tuple[Floats, Floats]:
    """Return statistics (N, F) of positions, and the rows of the nearest neighbours."""
    from scipy.spatial import cKDTree

    tree = cKDTree(places)
    reach, near = tree.query(places, min(NEIGHBOURS + 1, len(places)))
    counts = [tree.query_ball_point(places, times * usual, return_length=True) for times in (0.5, 1, 2, 4, 8, 16)]
    single, last = places.astype(np.float32), places.astype(np.float32).view(np.int32)
    zeros = np.log2((last & -last).astype(float) + (last == 0))  # bits at the end of a position that are 0
    return np.column_stack([
        places / size, places, np.minimum(places + 0.5, size - 0.5 - places).min(axis=1), np.full(places.shape, size),
        reach[:, 1:9] / usual, reach[:, -1] / usual, reach[:, 1:3], (reach[:, 1:] < SAME).sum(axis=1), *counts,
        (single + 0.5) % 1, (single + 0.5) % 8, zeros, np.full(len(places), usual), np.full(len(places), len(places)),
    ]), near[:, 1:]  # fmt: skip


def copy_statistics(mixture: Mixture, bits: Floats, near: Floats) -> Floats:
    """Return of each row whether its offsets from rows with near codes come again elsewhere, and how they are rounded.

    A copy of a group is moved and rounded to 32 bits. Where a position is small it has more binary places than the
    original had, which stay 0; so the last binary place of the offsets tells the original from its copies.
    """
    from scipy.spatial import cKDTree

    places, count = mixture.places, len(mixture.places)
    rows, ranks = np.nonzero(bits < 0.45 * 8 * mixture.codes.packed.shape[1])
    first, second = rows, near[rows, ranks]
    offsets = np.abs(places[first] - places[second])
    keep = offsets.max(axis=1) > 3
    first, second, offsets = first[keep], second[keep], offsets[keep]
    result = np.full((count, 10), np.nan)
    result[:, 0] = 0
    if len(first) < 2:
        return result
    pairs = cKDTree(offsets).query_pairs(SAME, output_type="ndarray")
    mine, other = np.concatenate([pairs, pairs[:, ::-1]]).T  # offsets that are the same, from other rows
    keep = (first[mine] != first[other]) & (first[mine] != second[other])
    mine, other = mine[keep], other[keep]
    if not len(mine):
        return result
    last = last_place(offsets)
    fine = np.log2(np.spacing(np.minimum(places[first], places[second]).clip(1e-3).astype(np.float32)))
    spare = last - fine  # binary places that could be used and are not
    values = np.column_stack([
        spare[mine], (last[mine] - last[other]), (fine[mine] - fine[other]), (spare[mine] - spare[other]),
        np.log2(np.abs(offsets[mine] - offsets[other]).max(axis=1) + 1e-12),
    ])  # fmt: skip
    result[:, 0] = number = np.bincount(first[mine], minlength=count)
    for column, part in enumerate(values.T, 1):
        sums = np.bincount(first[mine], part, minlength=count)
        result[:, column] = np.divide(sums, number, out=np.full(count, np.nan), where=number > 0)
    return result


def last_place(values: Floats) -> Floats:
    """Return the power of two of the last binary digit of each number."""
    fraction, power = np.frexp(values)
    whole = (fraction * 2.0**53).astype(np.int64)
    return np.where(whole == 0, 0, power - 53 + np.log2((whole & -whole).clip(1).astype(float)))


# --- the attack


@dataclass
class Rows:
    """A photo with chaff, the place that it shows, and the statistics (N, F) of its rows."""

    mixture: Mixture
    place: str
    statistics: Floats


def boost(args: Any, folder: Path | None) -> list[Row]:
    """Attack small photos, and tourist and large photos; of these nobody learns from the place under attack."""
    rows, rng = list[Row](), np.random.default_rng(args.seed)
    if "small" in args.boosted:
        learners, attacked = small_photos(args, folder)
        answers = tell([(measure(learners, rng), measure(attacked, rng))], args)
        rows += figures_of("small photos", answers, args)
    if "large" in args.boosted and folder is not None:
        known = measure(large_photos(folder), rng)
        for case in ("tourist photos", "photos of 6 megapixels"):
            places = dict.fromkeys(one.place for one in known if CASES.get(one.place, "tourist photos") == case)
            answers = tell([([one for one in known if one.place != place], [one for one in known if one.place == place])
                            for place in places], args)  # fmt: skip
            rows += figures_of(case, answers, args)
    return rows


def small_photos(args: Any, folder: Path | None) -> tuple[list[tuple[str, Photo]], ...]:
    """Return photos that are learned from, and photos under attack: those that no setting of chaff was chosen on."""
    if folder is None:
        parts = [sample_part(name, LocalParams(max_features=args.features)) for name in sample_names()[:4]]
        return [("", part) for part in parts[:2]], [("", part) for part in parts[2:]]
    val, train, others = (
        [path for _, path in list_images(folder / "photos" / name)]
        for name in ("bsds500/val", "bsds500/train", "imagenet-samples")
    )
    half = args.learners // 2
    groups = train[:half] + others[: args.learners - half], val[len(val) // 2 :][: args.photos]
    return tuple([("", photo_at(path, LocalParams())) for path in group] for group in groups)


def large_photos(folder: Path) -> list[tuple[str, Photo]]:
    """Return photos of places: all tourist photos, and some of each other place."""
    paths = sorted((folder / "unordered/internet").rglob("*.jpg"))
    for name, step in (("unordered/lund", 6), ("unordered/sceaux-castle", 4), ("posed/fountain-P11", 6)):
        paths += sorted((folder / name).rglob("*.jpg"))[::step]
    return [(path.parent.name.replace("images", "fountain-P11"), photo_at(path, LocalParams())) for path in paths]


def measure(photos: list[tuple[str, Photo]], rng: np.random.Generator) -> list[Rows]:
    """Mix each photo with chaff and seal it, under keys of its own, and return the statistics of its rows."""
    found = list[Rows]()
    for number, (place, photo) in enumerate(photos):
        note(f"boosting: photo {number + 1} of {len(photos)}")
        mixture = mix(photo, None, Stock([], []), rng, with_codes=True)
        found.append(Rows(mixture, place, plain_statistics(mixture)))
    return found


def tell(folds: list[tuple[list[Rows], list[Rows]]], args: Any) -> Answers:
    """Return what boosting says of the rows of the photos under attack, and what it says of their location alone."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    answers = Answers([], [], {LOCATION: []})
    for learners, attacked in folds:
        columns = np.concatenate([one.statistics for one in learners])
        is_real = np.concatenate([one.mixture.is_real for one in learners])
        chosen = np.random.default_rng(args.seed).permutation(len(columns))[: args.rows]
        for scores, part in ((answers.scores, slice(None)), (answers.others[LOCATION], slice(2))):
            trees = HistGradientBoostingClassifier(
                max_iter=5 if args.small else ROUNDS, class_weight="balanced", random_state=args.seed
            )
            trees.fit(columns[chosen, part], is_real[chosen])
            scores += [trees.decision_function(one.statistics[:, part]) for one in attacked]
        answers.mixtures += [one.mixture for one in attacked]
    return answers


def figures_of(case: str, answers: Answers, args: Any) -> list[Row]:
    """Return areas under the curve, their mean and the worst photo's, and the outlines that are painted."""
    rows = list[Row]()
    for name, found in (("boosting", answers.scores), ("location alone", answers.others[LOCATION])):
        areas = [area_under_curve(s, one.is_real) for s, one in zip(found, answers.mixtures, strict=True)]
        rows += [row(case, name, "area under the curve", areas), row(case, name, "worst photo", max(areas))]
    many = float(np.mean([len(one.is_real) for one in answers.mixtures]))
    rows.append(row(case, "boosting", "photos", float(len(answers.mixtures))))
    rows.append(row(case, "boosting", "rows of a photo", many))
    return rows + paint(answers, args, case)
