# SPDX-License-Identifier: Apache-2.0
"""The server has a photo of the place: pairs, the key from them, and what is read of released and unreleased rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import note
from people import dots
from places.pairs import Pairs, bootstrap, merge, pairs_of

from releaseds.alignment import reading_rows, signs_of
from releaseds.material import Material
from releaseds.sets import Descriptors, Sealed, figure, key_of
from sfumato.attacks.seals.key import Waves, read_with_key, recover_key
from sfumato.auditing.toolbox import CELLS, TrainedInverter, bundled_inverters
from sfumato.concealment.seal import BANDWIDTH, Seal, make_seal
from sfumato.experiments.frontier.sheets import Column, draw_sheet
from sfumato.inversion.metrics import picture_scores
from sfumato.types.clear import Features

Floats = np.ndarray

KNOWN = (500, 1000, 2000, 4000, 8000)
FEW_BITS = 64
"""Bits of a key that are recovered where it is only measured how good they are."""
PHOTOS, ROWS, PAINTED = 20, 200, 600
"""Photos that are looked for, rows that are read of each, and rows that are painted of each released photo."""
FOUNTAIN = "fountain-P11"
PLACES = {
    FOUNTAIN: (5, (3, 4, 6, 7)),
    "sceaux-castle": (4, (2, 3, 5, 6)),
    "lund": (9, (7, 8, 10, 11)),
    "piazza_san_marco": (4, (0, 1, 2, 3)),
}
"""The attacker's photo of a place, and those of the archive that he lays it over."""
ORACLE, PLACE_KEY = "the key itself, an oracle", "key of a photo of the place"
WORDS, GALLERY_ROWS = 2000, 600
NEAR = 0.5
LIKE = 0.45
"""Agreement of two codes, 1 for equal ones and 0 for unrelated ones, from which they are taken for one feature."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that the attacker reads: their ``bits`` and the ``clear`` descriptors behind them, photo after photo of
    ``counts``, which nobody but us knows."""

    bits: Floats
    clear: Floats
    counts: list[int]

    @classmethod
    def of(cls, clear: list[Floats], seal: Seal) -> "Rows":
        """Seal descriptors."""
        every = np.ascontiguousarray(np.concatenate(clear), np.float32)
        return cls(seal(every).packed, every, [len(one) for one in clear])

    def split(self, values: Floats) -> list[Floats]:
        """Return values of all rows, photo by photo."""
        return np.split(values, np.cumsum(self.counts)[:-1])


def kept_key(file: Path, rows: Floats, codes: Floats, seed: int) -> Waves:
    """Return the key that pairs give, recovered once."""
    if not file.is_file():
        found = recover_key(rows, codes, BANDWIDTH, seed=seed)
        with file.open("wb") as out:
            np.savez(out, directions=found.directions, phases=found.phases)
    with np.load(file, allow_pickle=False) as kept:
        return Waves(kept["directions"], kept["phases"])


def foretold(waves: Waves, rows: Rows) -> float:
    """Return the share of bits that a key foretells; of the first bits if it has fewer."""
    codes = np.sign(signs_of(rows.bits))[:, : len(waves.phases)]
    return float((waves.codes(rows.clear) == codes).mean())


def seal_waves(seal: Seal) -> Waves:
    """Return the key itself."""
    return Waves(seal.directions, seal.phases)


def place_pairs(photos: list[Sealed], own: int, around: tuple[int, ...], key: bytes, seed: int) -> Pairs | None:
    """Return the pairs that positions give which were released: the attacker's photo is laid over those around."""
    mine, met = photos[own].clear(key), []
    for photo in (photos[number] for number in around):
        theirs = photo.clear(key).take(np.flatnonzero(photo.shown).astype(np.int32))
        found = pairs_of(
            mine, theirs.keypoints[:, :2].astype(float), photo.size, signs_of(photo.bits[photo.shown]), seed=seed
        )
        apart = np.linalg.norm(found.descriptors - theirs.descriptors[found.partners[:, 0]], axis=1)
        words = f"{len(theirs)} released, {len(found)} met, {(apart < NEAR).sum()} of them near in descriptors"
        note(f"{photo.name}: {found.stage}, {words}")
        if found.is_registered:
            met.append(found)
    waves, chosen = bootstrap(met, BANDWIDTH, FEW_BITS, seed)
    return merge(met, chosen) if waves is not None and any(len(rows) for rows, _ in chosen) else None


def words_of(rows: Floats, centres: Floats) -> Floats:
    """Return the counts of visual words (W,) of descriptors."""
    import faiss

    index = faiss.IndexFlatL2(centres.shape[1])
    index.add(centres)
    words = index.search(np.ascontiguousarray(rows, np.float32), 1)[1][:, 0]
    return np.bincount(words, minlength=len(centres)).astype(float)


class Gallery:
    """Photos that the attacker looks among: bags of words, and their descriptors for codes that a key foretells."""

    def __init__(self, photos: list[Floats], other: Floats, rng: np.random.Generator, seed: int) -> None:
        import faiss

        kmeans = faiss.Kmeans(other.shape[1], min(WORDS, len(other) // 40), niter=10, seed=seed)
        kmeans.train(other)
        self.centres = kmeans.centroids
        counts = np.array([words_of(rows, self.centres) for rows in photos])
        self.weights = np.log((1 + len(photos)) / (1 + (counts > 0).sum(axis=0)))
        self.bags = self._bag(counts)
        self.rows = [rows[rng.permutation(len(rows))[:GALLERY_ROWS]] for rows in photos]

    def _bag(self, counts: Floats) -> Floats:
        weighed = np.sqrt(counts) * self.weights
        return weighed / np.maximum(np.linalg.norm(weighed, axis=-1, keepdims=True), 1e-12)

    def by_words(self, read: Floats) -> Floats:
        """Return how like each photo of the gallery is to descriptors that were read."""
        return self.bags @ self._bag(words_of(read, self.centres))

    def by_codes(self, bits: Floats, waves: Waves) -> Floats:
        """Return how many of the rows (N, 64) have a like code among those that a key foretells of each photo."""
        width = len(waves.phases)
        codes = np.sign(signs_of(bits)[:, :width]) / np.float32(width)
        alike = [(codes @ waves.codes(rows).T).max(axis=1) > LIKE for rows in self.rows]
        return np.array([one.sum() for one in alike], float)


def rank(likeness: Floats, true: int) -> float:
    """Return the rank of a photo, 1 for the first; halfway among equals."""
    return 1 + float((likeness > likeness[true]).sum()) + 0.5 * float((likeness == likeness[true]).sum() - 1)


def rank_rows(of: str, ranks: list[float]) -> Iterator[dict[str, Any]]:
    """Yield the figures of ranks."""
    yield figure("known", of, "median rank", float(np.median(ranks)), len(ranks), low=min(ranks), high=max(ranks))
    yield figure("known", of, "found first", float(np.mean(np.array(ranks) < 1.5)), len(ranks))


def known_rows(material: Material) -> Iterator[dict[str, Any]]:
    """Yield what pairs, keys and readings are worth."""
    seed, rng = material.seed, np.random.default_rng(material.seed)
    key = key_of(seed)
    seal = make_seal(key, 128, 512)
    mine, targets, other = (material.descriptors(name) for name in ("bsds-train", "bsds-val", "imagenet"))
    public = sample(other, 60_000, rng)
    some = [targets.of(number) for number in range(min(PHOTOS, len(targets.names)))]
    each = 20 if material.small else ROWS
    unknown = Rows.of([rows[rng.permutation(len(rows))[:each]] for rows in some], seal)
    known = sample(mine, max(KNOWN), rng)
    keys = {ORACLE: seal_waves(seal)}
    for count in KNOWN[: 1 if material.small else None]:
        codes = signs_of(seal(known[:count]).packed)[:, :FEW_BITS]
        waves = kept_key(material.work / f"key-{count}.npz", known[:count], codes, seed)
        yield figure("known", f"{count} known features", "bits foretold", foretold(waves, unknown), count)
    for name, (own, around) in ({next(iter(material.sets)): (0, (1, 2))} if material.small else PLACES).items():
        pairs = place_pairs(material.sets[name], own, around, key, seed)
        of, total = f"a photo of {name}", 0.0 if pairs is None else float(len(pairs))
        yield figure("known", of, "pairs by released positions", total, len(around))
        if pairs is None:
            continue
        full = name == FOUNTAIN
        codes = pairs.codes if full else pairs.codes[:, :FEW_BITS]
        waves = kept_key(material.work / f"key-{name}.npz", pairs.descriptors, codes, seed)
        yield figure("known", of, "bits foretold", foretold(waves, unknown), len(pairs))
        if full:
            keys[PLACE_KEY] = waves
    yield from unreleased_rows(material, unknown, keys, public)
    yield from place_rows(material, keys, public, key)
    material.say("known", public=len(public), photos=len(unknown.counts), rows_a_photo=each, words=WORDS,
                 gallery=len(mine.names) + len(targets.names), bits=512)  # fmt: skip


def sample(photos: Descriptors, count: int, rng: np.random.Generator) -> Floats:
    """Return descriptors at random."""
    rows = photos.rows[np.sort(rng.permutation(len(photos.rows))[:count])].astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows[rng.permutation(len(rows))]


def unreleased_rows(
    material: Material, unknown: Rows, keys: dict[str, Waves], public: Floats
) -> Iterator[dict[str, Any]]:
    """Yield what is read of photos that released nothing, and the rank of the true photo among all."""
    rng = np.random.default_rng(material.seed + 1)
    collections = [material.descriptors(name) for name in ("bsds-val", "bsds-train")]
    photos = [one.of(number) for one in collections for number in range(len(one.names))]
    gallery = Gallery(photos, public, rng, material.seed)
    clear = [rank(gallery.by_words(rows), number) for number, rows in enumerate(unknown.split(unknown.clear))]
    yield from rank_rows("unreleased rows, clear descriptors: by words", clear)
    for name, waves in keys.items():
        read = read_with_key(signs_of(unknown.bits), waves, public)
        yield from reading_rows("known", f"unreleased rows, {name}", read, unknown.clear, public)
        ranks = [rank(gallery.by_words(rows), number) for number, rows in enumerate(unknown.split(read))]
        yield from rank_rows(f"unreleased rows, {name}: by words", ranks)
        ranks = [rank(gallery.by_codes(bits, waves), number) for number, bits in enumerate(unknown.split(unknown.bits))]
        yield from rank_rows(f"unreleased rows, {name}: by codes of the photos", ranks)


def place_rows(material: Material, keys: dict[str, Waves], public: Floats, key: bytes) -> Iterator[dict[str, Any]]:
    """Yield the rank of another photo of the place, by unreleased rows, among photos of other places."""
    rng = np.random.default_rng(material.seed + 2)
    sets = list(material.sets.values())
    far = [material.descriptors(name) for name in ("bsds-val", "bsds-train")]
    places = [(number, photos[0], photos[-1]) for number, photos in enumerate(sets)]
    photos = [known.clear(key).descriptors for _, known, _ in places]
    photos += [one.of(number) for one in far for number in range(len(one.names))]
    gallery = Gallery(photos, public, rng, material.seed)
    hidden = []
    for _, _, photo in places:
        rows = rng.permutation(np.flatnonzero(~photo.shown))[:1000]
        hidden.append(photo.bits[rows])
    for name, waves in keys.items():
        ranks = [rank(gallery.by_codes(bits, waves), number) for number, bits in enumerate(hidden)]
        yield from rank_rows(f"place of unreleased rows, {name}: by codes of another photo", ranks)


def cells() -> TrainedInverter:
    """Return the strongest inverter of clear descriptors at positions alone."""
    return next(one for one in bundled_inverters() if (one.recipe, one.architecture) == ("raw", CELLS))


def painted_rows(material: Material) -> Iterator[dict[str, Any]]:
    """Yield what released positions show with the descriptors that were read, on the scale from a mean descriptor at
    these positions to the clear ones there; and draw it. With the key itself, and the one that ``known`` recovered."""
    rng, inverter, key = np.random.default_rng(material.seed + 3), cells(), key_of(material.seed)
    keys, file = {ORACLE: seal_waves(make_seal(key, 128, 512))}, material.work / f"key-{FOUNTAIN}.npz"
    if file.is_file():
        with np.load(file, allow_pickle=False) as kept:
            keys[PLACE_KEY] = Waves(kept["directions"], kept["phases"])
    public = sample(material.descriptors("imagenet"), 60_000, rng)
    wanted = material.sets if material.small else PLACES
    subjects = list[tuple[Sealed, Features, Floats]]()
    for name in wanted:
        photo = max(material.sets[name][:5], key=lambda one: int(one.shown.sum()))
        shown = np.flatnonzero(photo.shown | material.small)
        rows = np.sort(rng.permutation(shown)[: 100 if material.small else PAINTED])
        subjects.append((photo, photo.clear(key).take(rows.astype(np.int32)), photo.bits[rows]))
    clear = np.concatenate([features.descriptors for _, features, _ in subjects])
    counts = np.cumsum([len(features) for _, features, _ in subjects])[:-1]
    bits = np.concatenate([one for _, _, one in subjects])
    readings = {"mean descriptor": np.tile(inverter.floor, (len(clear), 1)), "clear descriptors": clear}
    for name, waves in keys.items():
        readings[name] = read_with_key(signs_of(bits), waves, public)
        yield from reading_rows("painted", name, readings[name], clear, public)
    columns = {
        "photo": [photo.pixels for photo, _, _ in subjects],
        "released dots": [dots(features.keypoints, photo.size) for photo, features, _ in subjects],
    }
    scores = dict[str, list[float]]()
    for name, rows in readings.items():
        for (photo, features, _), own in zip(subjects, np.split(rows.astype(np.float32), counts), strict=True):
            keypoints = np.zeros_like(features.keypoints)
            pixels, factor = photo.reduced()
            keypoints[:, :2], keypoints[:, 2] = factor * features.keypoints[:, :2], 1
            picture = inverter.paint(keypoints, np.ascontiguousarray(own), (pixels.shape[1], pixels.shape[0]))
            scores.setdefault(name, []).append(picture_scores(picture, pixels)["ssim"])
            columns.setdefault(name, []).append(np.rint(255 * np.clip(picture, 0, 1)).astype(np.uint8))
    floor, best = (np.mean(scores[name]) for name in ("mean descriptor", "clear descriptors"))
    for name, values in scores.items():
        of, ends = name, {"low": min(values), "high": max(values)}
        yield figure("painted", of, "similarity", float(np.mean(values)), len(values), **ends)
        share = float((np.mean(values) - floor) / (best - floor)) if best > floor else None  # clear ones add nothing
        yield figure("painted", of, "of what clear descriptors add", share, len(values))
    material.say("painted", photos=len(subjects), rows=len(clear), most_rows_a_photo=PAINTED, public=len(public))
    sheet = material.sheet("painted")
    if sheet is not None:
        draw_sheet(sheet, [Column(title, pictures) for title, pictures in columns.items()])
