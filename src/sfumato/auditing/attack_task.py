# SPDX-License-Identifier: Apache-2.0
"""Attack task: one attack on one recipe, photo by photo: conceal, recover, paint, compare.

The clear features of a photo serve to conceal them and to score. What is kept are distances, confidences and the
painted picture, never a descriptor.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.knowledge import Companions, Knowledge, KnownPairs, Recovery, rows_of
from sfumato.attacks.registry import ATTACKS, PATCH, AttackId, run_attack
from sfumato.attacks.run import WITHIN
from sfumato.attacks.seals.attacks import thinned
from sfumato.auditing.releases import Shown, digest_shown
from sfumato.auditing.runner import SampleScores, measure
from sfumato.auditing.subjects import ClearFeatures, Subject
from sfumato.auditing.task import Figures, Prediction, Sample, Task, short_digest
from sfumato.auditing.toolbox import Tools, TrainedInverter
from sfumato.concealment.resolve import before_seal, resolve
from sfumato.errors import ImageError
from sfumato.images.read import read_image
from sfumato.inversion.canonical import canonical_input
from sfumato.inversion.metrics import outline_score, picture_scores
from sfumato.types.clear import Features
from sfumato.types.concealed import Code, ConcealedFeatures, Points
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe
from sfumato.types.record import AttackRole, Score, Value

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


# --- leakage with its interval


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

VERSION, SCORE_VERSION = 3, 2
"""Of ``AttackTask.predict`` and ``AttackTask.score``: raise them with every change of what they return."""

SECOND = 1_000_003
"""Added to the seed for a second, independent release of the same photo."""

KNOWN_PAIRS = 10_000
"""How many descriptors the holder of a key has sealed for an attacker."""

UNITS = {"psnr": "dB", "psnr_rgb": "dB", "features": "per image"}


# --- the task


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class AttackData:
    """Data that all attack tasks share: ``photos`` by name, ``samples`` of them, their ``clear`` features, the
    attacker's ``tools`` and the ``extractor``. ``released``: of sealed features the attacker has these positions, and
    all of them if it is None."""

    photos: Mapping[str, Path]
    samples: Sequence[Sample]
    clear: ClearFeatures
    tools: Tools
    extractor: Extractor
    released: Shown | None = None


class AttackTask:
    """One attack on one recipe and seed, with the inverter that paints what it recovers."""

    def __init__(self, subject: Subject, attack: AttackId, inverter: TrainedInverter, data: AttackData) -> None:
        self.subject, self.inverter, self.data = subject, inverter, data
        self.attack = replace(attack, inverter=inverter.title)

    def task(self, scale: Scale | None = None) -> Task:
        """Return the task for the runner; with a scale its record also has the leakage."""
        return Task(
            name="leakage",
            samples=self.data.samples,
            predict=self.predict,
            score=self.score,
            summarise=lambda figures: self.summarise(figures, scale or {}),
            params=self.params,
            seed=self.subject.seed,
            version=VERSION,
            score_version=SCORE_VERSION,
            facts=self.attack.facts.params,
        )

    def measure(self, folder: str | Path, sample: Sample) -> SampleScores | None:
        """Attack one photo and keep the prediction; return the scores, if they are new."""
        self.data.clear.keep_only([self.data.photos[sample.key]])
        return measure(self.task(), folder, sample)

    @property
    def is_scale(self) -> bool:
        """Whether it is an end of the scale of leakage: what the usual inverter paints of clear features, and of none.

        One scale for all: what attacks paint of concealed features is a share of what is painted of clear ones.
        """
        return self.attack.role is AttackRole.SCALE and self.inverter.architecture == PATCH

    @property
    def needs(self) -> tuple[str, ...]:
        """What the attacker knows beside the concealed features."""
        return self.attack.knows_on(self.subject.recipe) or ()

    @property
    def params(self) -> dict[str, Value]:
        """All that decides a result, but the seed and the photos."""
        tools, kind, recipe = self.data.tools, self.data.extractor.name, self.subject.recipe
        has_decoys = recipe.lifting is not None and recipe.lifting.decoy_count and self.subject.seed is not None
        decoder = tools.decoder(kind, str(recipe))
        return {
            "recipe": str(recipe),
            "attack": self.attack.label,
            "knows": ", ".join(self.needs),
            "inverter": self.inverter.title,
            "inverter_digest": self.inverter.digest,
            "decoys": tools.decoys.checksum if has_decoys and tools.decoys is not None else None,
            "public": tools.public_digest if "public" in self.needs else None,
            "decoder": decoder[0] if "decoder" in self.needs and decoder is not None else None,
            "pool": self._pool_name if {"pool", "told"} & set(self.needs) else None,
            "draws": None if self.subject.seed is None else "evaluation seed",
            "positions": None if self._shown is None else digest_shown(self._shown),
            **{**self.data.extractor.settings, "descriptor": kind},
        }

    @property
    def _shown(self) -> Mapping[str, NDArray[np.bool_]] | None:
        """Which positions the attacker has, by photo; None for all."""
        return (self.data.released or {}).get(str(self.subject.recipe))

    def predict(self, sample: Sample) -> Prediction:
        """Attack one photo: distances (N,) to the clear descriptors, confidence (N,), the picture as PNG bytes.

        The attacker has just what an archive of the recipe holds: its rows, and of keypoints the sizes and
        angles only where it keeps them; of sealed features the positions that were released.
        """
        features = self.data.clear[self.data.photos[sample.key]]
        if features.image_size is None:
            raise ImageError(f"{sample.key}: the size of the photo is not known")
        released = features if self.subject.recipe.is_clear else self._concealed(features, 0)
        recovery, rows = self._attack(features, released)
        shown = np.ones(len(features), bool) if self._shown is None else self._shown[sample.key]
        picture = self.inverter.paint(released.keypoints[shown], rows[shown], features.image_size)
        distances = confidence = np.empty(0, np.float32)
        if recovery is not None:
            errors = recovery.descriptors - features.descriptors
            distances, confidence = np.linalg.norm(errors, axis=1).astype(np.float32), recovery.confidence
        return {
            "distances": distances,
            "confidence": confidence,
            "features": np.array([len(features)], np.int32),
            "released": np.array([np.count_nonzero(shown)], np.int32),
            "picture": encode_picture(picture),
        }

    def score(self, sample: Sample, prediction: Prediction) -> Figures:
        """Return how near the descriptors and the picture came to the clear ones."""
        photo, picture = self.data.photos[sample.key], prediction["picture"]
        if self.inverter.paints_outlines:
            figures = {"outlines": outline_score(decode_picture(picture), read_image(photo).pixels)}
        else:
            figures = picture_figures(photo, picture)
        if self._shown is not None:
            figures["released"] = float(prediction["released"][0]) / max(1, float(prediction["features"][0]))
        return {**figures, **distance_scores(prediction["distances"]), "features": float(prediction["features"][0])}

    def summarise(self, figures: Mapping[str, Figures], scale: Scale) -> list[Score]:
        """Return the mean of each score over the photos, picture scores with deviation, and the leakage.

        Distances are averaged over all features: a photo with few of them decides little.
        """
        names = list(dict.fromkeys(name for row in figures.values() for name in row))
        scores = []
        for name in names:
            values = [row[name] for row in figures.values() if name in row]
            if name.endswith("_rgb") and len(values) < len(figures):
                continue  # grey photos have none, and a mean over the others would not compare with that in grey
            weights = [row["features"] for row in figures.values() if name in row] if name in OF_FEATURES else None
            mean = fmean(values, weights if weights and any(weights) else None)
            scores.append(Score(name, mean, UNITS.get(name, ""), len(values)))
            if len(values) > 1 and name in ("ssim", "psnr", "mae", "ssim_rgb", "psnr_rgb", "mae_rgb"):
                scores.append(Score(f"{name} deviation", stdev(values), UNITS.get(name, ""), len(values)))
        similarity = {key: row["ssim"] for key, row in figures.items() if "ssim" in row}
        interval = leakage_interval(similarity, scale.get("clear", {}), scale.get("floor", {}))
        if interval is not None:
            titles = ("leakage", "leakage low", "leakage high")
            paired = len(similarity.keys() & scale.get("clear", {}).keys() & scale.get("floor", {}).keys())
            scores += [Score(name, value, "", paired) for name, value in zip(titles, interval, strict=True)]
        return scores

    def _attack(
        self, features: Features, released: Features | ConcealedFeatures
    ) -> tuple[Recovery | None, NDArray[np.float32]]:
        """Return what was recovered, None for attacks that recover no descriptor, and the rows to paint."""
        name = self.attack.name
        if name == "clear":
            return None, features.descriptors
        if isinstance(released, Features) or self.attack.role is AttackRole.KEYPOINTS:
            return None, np.broadcast_to(self.inverter.floor, (len(released), len(self.inverter.floor)))
        if name in ATTACKS:
            recovery = run_attack(ATTACKS[name], released, self._knowledge(features))
            return recovery, self._rows_to_paint(recovery.descriptors)
        frame = np.empty((0, 0)) if self.inverter.frame is None else self.inverter.frame
        return None, canonical_input(released.subspaces, frame)

    def _rows_to_paint(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return recovered descriptors as the inverter takes them."""
        return rows if self.inverter.frame is None else canonical_input(Points(rows), self.inverter.frame)

    def _concealed(self, features: Features, further: int) -> ConcealedFeatures:
        tools, recipe, seed = self.data.tools, self.subject.recipe, self.subject.seed or 0
        return tools.concealed.conceal(features, recipe, tools.decoys, seed + further)

    # --- what the attacker knows

    def _knowledge(self, features: Features) -> Knowledge:
        """Return what this attack needs, and nothing else."""
        tools, recipe, values = self.data.tools, self.subject.recipe, dict[str, Any]()
        if "public" in self.needs:
            values["public"] = tools.public_descriptors
        if "decoys" in self.needs and tools.decoys is not None:
            values["decoys"] = tools.decoys.descriptors
        if "clear" in self.needs:
            values["clear"] = features.descriptors
        if "releases" in self.needs:
            rows = np.arange(len(features), dtype=np.int32)
            values["releases"] = Companions(rows=rows, subspaces=self._concealed(features, SECOND).subspaces)
        decoder = tools.decoder(self.data.extractor.name, str(recipe))
        if "decoder" in self.needs and decoder is not None:
            values["decoder"] = decoder[1]
        if recipe.is_sealed:
            values["encoder"] = before_seal(recipe)  # the seal itself only a holder of the key may know
        elif "encoder" in self.needs:
            values["encoder"] = resolve(recipe)
        if "pool" in self.needs:
            values["pool"] = self._pool(recipe)
        if "told" in self.needs:
            clear = tools.codes.get(
                Recipe.of("raw"),
                self._pool_name,
                lambda: self._of_all_photos(lambda features: features.descriptors),
            )
            values["told"] = KnownPairs(descriptors=clear, codes=self._pool(recipe))
        if "pairs" in self.needs and tools.public_descriptors is not None:
            values["pairs"] = self._known_pairs(recipe, tools.public_descriptors)
        return Knowledge(**values)

    @property
    def _pool_name(self) -> str:
        """A digest of the photos in the pool: all of this run, as all photos of an owner are sealed under one key."""
        return short_digest(*sorted(self.data.photos))

    def _pool(self, recipe: Recipe) -> NDArray[np.float32]:
        """Return the codes of all photos, made once."""

        def codes() -> NDArray[np.float32]:
            return self._of_all_photos(lambda features: rows_of(self._concealed(features, 0).code))

        return self.data.tools.codes.get(recipe, self._pool_name, codes)

    def _of_all_photos(self, rows_of: Callable[[Features], NDArray[np.float32]]) -> NDArray[np.float32]:
        """Return rows of all photos of this run, one below the other; one that cannot be read is named in its turn."""
        blocks = []
        for path in self.data.photos.values():
            try:
                blocks.append(rows_of(self.data.clear[path]))
            except ImageError:
                continue
            self.data.clear.keep_only([])
        return np.concatenate(blocks)

    def _known_pairs(self, recipe: Recipe, public: NDArray[np.float32]) -> KnownPairs:
        """Return public descriptors with their codes, made once: attacks know them again, and learn once."""
        codes, name = self.data.tools.codes, f"{KNOWN_PAIRS} known pairs"
        rows = codes.get(Recipe.of("raw"), name, lambda: thinned(public, KNOWN_PAIRS).copy())
        return KnownPairs(descriptors=rows, codes=codes.get(recipe, name, lambda: rows_of(_sealed(recipe, rows))))


def _sealed(recipe: Recipe, rows: NDArray[np.float32]) -> Code:
    """Return descriptors as a sealed recipe makes them."""
    resolved = resolve(recipe)
    assert resolved.seal is not None
    return resolved.seal(resolved(rows))
