# SPDX-License-Identifier: Apache-2.0
"""One attack on one recipe, photo by photo: conceal, recover, paint, compare.

Knows the clear features of a photo only to conceal them and to score. What it keeps are distances, confidences and the
painted picture, never a descriptor.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.knowledge import Companions, Knowledge, KnownPairs, Recovered, run_attack
from sfumato.attacks.registry import ATTACKS
from sfumato.attacks.run import WITHIN
from sfumato.attacks.seals.attacks import thinned
from sfumato.auditing.subjects import ClearFeatures, Subject
from sfumato.auditing.task import Figures, Prediction, Sample, short_digest
from sfumato.auditing.toolbox import KEYPOINTS, Painter, Tools
from sfumato.concealment.resolve import before_seal, resolve
from sfumato.errors import ImageError
from sfumato.images.read import read_image
from sfumato.inversion.canonical import canonical_input
from sfumato.inversion.metrics import picture_scores
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures, as_points
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe
from sfumato.types.record import Score, Value

# ----------------------------------------------------------------
# What an attack left behind, in figures: how near descriptors and a painted picture come; pictures as kept bytes
# Knows arrays and photos; not which attack made them.


SHARES = ("distance", *(f"within {limit:g}" for limit in WITHIN))
OF_FEATURES = {f"{space}{name}" for space in ("", "lifted ") for name in SHARES}
"""Scores that are means over the features of a photo."""


def picture_figures(photo: Path, encoded: NDArray[np.uint8]) -> dict[str, float]:
    """Return how near a kept picture comes to a photo."""
    figures = picture_scores(decode_picture(encoded), read_image(photo).pixels)
    for name in ("psnr", "psnr_rgb"):
        if name in figures:
            figures[name] = min(figures[name], 100.0)  # of equal pictures it is infinite, which is no figure
    return figures


def distance_scores(distances: NDArray[np.floating[Any]]) -> dict[str, float]:
    """Return mean and median distance to the clear descriptors and the shares within some; nothing for none."""
    if not distances.size:
        return {}
    shares = {f"within {limit:g}": float((distances <= limit).mean()) for limit in WITHIN}
    return {"distance": float(distances.mean()), "median": float(np.median(distances)), **shares}


def encode_picture(picture: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """Return a picture (H, W, 3) of values 0 to 1 as the bytes of a PNG file of 8 bits."""
    import cv2

    pixels = np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8)
    done, encoded = cv2.imencode(".png", pixels[:, :, ::-1])
    if not done:
        raise ImageError("OpenCV cannot encode this picture")
    return np.asarray(encoded, np.uint8).ravel()


def decode_picture(encoded: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the picture (H, W, 3) uint8, red-green-blue, that ``encode_picture`` wrote."""
    import cv2

    pixels: Any = cv2.imdecode(np.ascontiguousarray(encoded), cv2.IMREAD_COLOR)
    if pixels is None:
        raise ImageError("a kept picture is damaged: run the evaluation again with --overwrite")
    found: NDArray[np.uint8] = np.ascontiguousarray(pixels[:, :, ::-1])
    return found


# ----------------------------------------------------------------
# How sure a figure is: intervals over photos, drawn again with replacement. Knows numbers by photo, nothing else


DRAWS = 2000
COVERED = 0.95
SMALLEST_SCALE = 0.01
"""Of structural similarity: where clear descriptors show less than this beyond the floor, there is nothing to leak."""


def leakage_interval(
    similar: Mapping[str, float], clear: Mapping[str, float], floor: Mapping[str, float]
) -> tuple[float, float, float] | None:
    """Return leakage (similar - floor) / (clear - floor) of the means over photos, and its interval of 95 %.

    Photos are drawn again with replacement, all three figures of a photo together (the percentile bootstrap), with
    fixed draws, so that the same figures give the same interval; draws of photos whose clear pictures are no better
    than the floor say nothing and are left out. None if no photo has all three figures, or the clear pictures of all
    together are no better than the floor.

    >>> leakage_interval({"a": 0.5, "b": 0.6}, {"a": 0.7, "b": 0.8}, {"a": 0.3, "b": 0.4})
    (0.5, 0.5, 0.5)
    """
    names = sorted(similar.keys() & clear.keys() & floor.keys())
    if not names:
        return None
    values = np.array([[one[name] for name in names] for one in (similar, clear, floor)])  # (3, N)
    drawn = np.random.default_rng(0).integers(len(names), size=(DRAWS, len(names)))
    means = values[:, drawn].mean(axis=2)  # (3, DRAWS)
    own = values.mean(axis=1)
    if own[1] - own[2] < SMALLEST_SCALE:
        return None
    scales = means[1] - means[2]
    telling = scales >= SMALLEST_SCALE
    spread = (
        (means[0] - means[2])[telling] / scales[telling] if telling.any() else (own[0] - own[2]) / (own[1] - own[2])
    )
    low, high = np.quantile(spread, [(1 - COVERED) / 2, (1 + COVERED) / 2])
    return round(float((own[0] - own[2]) / (own[1] - own[2])), 12), round(float(low), 12), round(float(high), 12)


Scale = Mapping[str, Mapping[str, float]]
"""Structural similarity by photo, of the clear descriptors and of the floor."""

VERSION, SCORE_VERSION = 1, 1
"""Of ``Intruder.predict`` and ``Intruder.score``: raise them with every change of what they return."""

SECOND = 1_000_003
"""Added to the seed for a second, independent release of the same photo."""

KNOWN_PAIRS = 10_000
"""How many descriptors the holder of a key has sealed for an attacker."""
WITH_DECOYS = ("vertex", "bounded", "density")
"""Attacks that also work without the decoys, and better with them."""

VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{name: (name, attack.needs) for name, attack in ATTACKS.items()},
    **{f"{name}+decoys": (name, (*ATTACKS[name].needs, "decoys")) for name in WITH_DECOYS},
    "decoys": ("decoys", ("public", "decoys")),
}
"""Every way of attacking: the attack, and what the attacker knows."""


def needs_on(attack: str, recipe: Recipe) -> tuple[str, ...] | None:
    """Return what the attacker knows in one way of attacking what a recipe releases; None if it is not for that."""
    if attack not in VARIANTS:
        return ()
    name, needs = VARIANTS[attack]
    found = ATTACKS[name].needs_on(recipe)
    if found is None or not recipe.has_encoder:
        return None if found is None else needs
    return tuple(dict.fromkeys((*found, *(("decoys",) if "decoys" in needs else ()))))


UNITS = {"psnr": "dB", "psnr_rgb": "dB", "features": "per image"}


@dataclass(frozen=True, slots=True)
class Case:
    """A subject, how it is attacked, and the inverter that paints what was recovered."""

    subject: Subject
    attack: str
    painter: Painter


class Intruder:
    """Attacks the photos of one case, and scores what it got."""

    def __init__(
        self, case: Case, photos: Mapping[str, Path], clear: ClearFeatures, tools: Tools, extractor: Extractor
    ) -> None:
        self.case, self.photos = case, photos
        self._clear, self.tools, self._extractor = clear, tools, extractor

    @property
    def needs(self) -> tuple[str, ...]:
        """What the attacker knows beside the concealed features."""
        return needs_on(self.case.attack, self.case.subject.recipe) or ()

    @property
    def params(self) -> dict[str, Value]:
        """All that decides a result, but the seed and the photos."""
        case, tools, kind = self.case, self.tools, self._extractor.name
        lifting = case.subject.recipe.lifting
        lifted = lifting is not None and lifting.decoy_count and case.subject.seed is not None
        decoder = tools.decoder(kind, str(case.subject.recipe))
        return {
            "recipe": str(case.subject.recipe),
            "attack": case.attack,
            "knows": ", ".join(self.needs),
            "inverter": case.painter.title,
            "inverter_digest": case.painter.digest,
            "decoys": tools.decoys.checksum if lifted and tools.decoys is not None else None,
            "public": tools.public_digest if "public" in self.needs else None,
            "decoder": decoder[0] if "decoder" in self.needs and decoder is not None else None,
            "pool": self._pool_name if {"pool", "told"} & set(self.needs) else None,
            "draws": None if case.subject.seed is None else "evaluation seed",
            **{**self._extractor.settings, "descriptor": kind},
        }

    def work_on(self, sample: Sample) -> None:
        """Let go of the features of all other photos."""
        self._clear.keep_only([self.photos[sample.key]])

    def predict(self, sample: Sample) -> Prediction:
        """Attack one photo: distances (N,) to the clear descriptors, confidence (N,), the picture as PNG bytes."""
        features = self._clear[self.photos[sample.key]]
        recovered, rows = self._attack(features)
        size = features.image_size
        if size is None:
            raise ImageError(f"{sample.key}: the size of the photo is not known")
        painted = self.case.painter.paint(features.keypoints, rows, size)
        distances = np.empty(0, np.float32)
        if recovered is not None:
            distances = np.linalg.norm(recovered.descriptors - features.descriptors, axis=1).astype(np.float32)
        return {
            "distances": distances,
            "confidence": np.empty(0, np.float32) if recovered is None else recovered.confidence,
            "features": np.array([len(features)], np.int32),
            "picture": encode_picture(painted),
        }

    def score(self, sample: Sample, prediction: Prediction) -> Figures:
        """Return how near the descriptors and the picture came to the clear ones."""
        figures = picture_figures(self.photos[sample.key], prediction["picture"])
        return {**figures, **distance_scores(prediction["distances"]), "features": float(prediction["features"][0])}

    def summarise(self, figures: Mapping[str, Figures], scale: Scale) -> list[Score]:
        """Return the mean of each score over the photos, picture scores with deviation, and the leakage.

        Of distances it is the mean over all features: a photo with few of them decides little.
        """
        names = list(dict.fromkeys(name for row in figures.values() for name in row))
        scores = []
        for name in names:
            values = [row[name] for row in figures.values() if name in row]
            if name.endswith("_rgb") and len(values) < len(figures):
                continue  # of grey photos there is none: a mean over others would not be beside that in grey
            weights = [row["features"] for row in figures.values() if name in row] if name in OF_FEATURES else None
            scores.append(
                Score(
                    name, fmean(values, weights if weights and any(weights) else None), UNITS.get(name, ""), len(values)
                )
            )
            if len(values) > 1 and name in ("ssim", "psnr", "mae", "ssim_rgb", "psnr_rgb", "mae_rgb"):
                scores.append(Score(f"{name} deviation", stdev(values), UNITS.get(name, ""), len(values)))
        similar = {key: row["ssim"] for key, row in figures.items() if "ssim" in row}
        found = leakage_interval(similar, scale.get("clear", {}), scale.get("floor", {}))
        if found is not None:
            titles = ("leakage", "leakage low", "leakage high")
            paired = len(similar.keys() & scale.get("clear", {}).keys() & scale.get("floor", {}).keys())
            scores += [Score(name, value, "", paired) for name, value in zip(titles, found, strict=True)]
        return scores

    def _attack(self, features: Features) -> tuple[Recovered | None, NDArray[np.float32]]:
        """Return what was recovered, None for attacks that see no descriptor, and the rows to paint."""
        case = self.case
        if case.attack == "clear":
            return None, features.descriptors
        if case.attack in ("floor", KEYPOINTS):
            return None, np.broadcast_to(case.painter.floor, (len(features), len(case.painter.floor)))
        concealed = self._concealed(features, 0)
        if case.attack in VARIANTS:
            recovered = run_attack(ATTACKS[VARIANTS[case.attack][0]], concealed, self._knowledge(features))
            return recovered, self._painted_rows(recovered.descriptors)
        frame = np.empty((0, 0)) if case.painter.frame is None else case.painter.frame
        return None, canonical_input(concealed.subspaces, frame)

    def _painted_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return recovered descriptors as the inverter takes them."""
        frame = self.case.painter.frame
        return rows if frame is None else canonical_input(as_points(rows), frame)

    def _concealed(self, features: Features, further: int) -> ConcealedFeatures:
        subject = self.case.subject
        return self.tools.releases.of(features, subject.recipe, self.tools.decoys, (subject.seed or 0) + further)

    @property
    def _pool_name(self) -> str:
        """Which photos the pool is made of: all of this run, as all of an owner's are sealed under one key."""
        return short_digest(*sorted(self.photos))

    def _of_all_photos(self, rows_of: Callable[[Features], NDArray[np.float32]]) -> NDArray[np.float32]:
        """Return rows of all photos of this run, one below the other; one that cannot be read is told in its turn."""
        found = []
        for path in self.photos.values():
            try:
                found.append(rows_of(self._clear[path]))
            except ImageError:
                continue
            self._clear.keep_only([])
        return np.concatenate(found)

    def _pool(self, recipe: Recipe) -> NDArray[np.float32]:
        """Return the codes of all photos, made once."""

        def codes() -> NDArray[np.float32]:
            return self._of_all_photos(lambda features: self._concealed(features, 0).subspaces.origin)

        return self.tools.pools.of(recipe, self._pool_name, codes)

    def _known_pairs(self, recipe: Recipe, public: NDArray[np.float32]) -> KnownPairs:
        """Return public descriptors with their codes, made once: attacks know them again, and learn once."""
        pools, name = self.tools.pools, f"{KNOWN_PAIRS} known pairs"
        rows = pools.of(Recipe.of("raw"), name, lambda: thinned(public, KNOWN_PAIRS).copy())
        return KnownPairs(descriptors=rows, codes=pools.of(recipe, name, lambda: resolve(recipe)(rows)))

    def _knowledge(self, features: Features) -> Knowledge:
        """Return what this attack needs, and nothing else."""
        tools, known = self.tools, dict[str, Any]()
        if "public" in self.needs:
            known["public"] = tools.public_descriptors
        if "decoys" in self.needs and tools.decoys is not None:
            known["decoys"] = tools.decoys.descriptors
        if "clear" in self.needs:
            known["clear"] = features.descriptors
        if "releases" in self.needs:
            rows = np.arange(len(features), dtype=np.int32)
            known["releases"] = Companions(rows=rows, subspaces=self._concealed(features, SECOND).subspaces)
        decoder = tools.decoder(self._extractor.name, str(self.case.subject.recipe))
        if "decoder" in self.needs and decoder is not None:
            known["decoder"] = decoder[1]
        recipe = self.case.subject.recipe
        if recipe.is_sealed:
            known["encoder"] = before_seal(recipe)  # the seal itself only who has the key may know
        elif "encoder" in self.needs:
            known["encoder"] = resolve(recipe)
        if "pool" in self.needs:
            known["pool"] = self._pool(recipe)
        if "told" in self.needs:
            clear = tools.pools.of(Recipe.of("raw"), self._pool_name, lambda: self._of_all_photos(_descriptors))
            known["told"] = KnownPairs(descriptors=clear, codes=self._pool(recipe))
        if "pairs" in self.needs and tools.public_descriptors is not None:
            known["pairs"] = self._known_pairs(recipe, tools.public_descriptors)
        return Knowledge(**known)


def _descriptors(features: Features) -> NDArray[np.float32]:
    return features.descriptors.copy()
