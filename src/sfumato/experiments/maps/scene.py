# SPDX-License-Identifier: Apache-2.0
"""Photos of a scene, for evaluations of maps and localization: clear and concealed features, and matches.

Features are in memory only. Matches are stored pair by pair, as rows and distances, so that maps made in other ways use
them again. Times are measured when something is made for the first time, and stored with it.
"""

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from sfumato.auditing.runner import Results, predict
from sfumato.auditing.subjects import POINTS, ClearFeatures, Subject, choose_subjects, conceal_repeatably
from sfumato.auditing.task import Figures, Prediction, Sample, Task, digest_data, short_digest
from sfumato.concealment.decoys import Decoys
from sfumato.errors import FileError, InputError
from sfumato.experiments.data.folders import PosedImages, UnposedImages
from sfumato.features.local import LocalParams, extract, extractor_of
from sfumato.geometry.cameras import default_camera
from sfumato.geometry.verify import VerifyParams
from sfumato.images.read import focal_from_exif
from sfumato.matching.mutual import (
    MatchParams,
    Prepared,
    default_ratio,
    match_prepared,
    prepare_side,
    side_of,
    warn_if_void,
)
from sfumato.matching.pairs import Pair, exhaustive
from sfumato.subspace.subspace_set import SubspaceSet
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.progress import Progress, StageProgress
from sfumato.types.recipe import Recipe
from sfumato.types.record import Score, Value
from sfumato.types.scene import Camera, Matches, Pose

log = logging.getLogger(__name__)


VERSION = 3
"""Of the stored matches: raise it with every change of matching."""
CACHE_BYTES = 2 * 2**30
READY_SHARE = 4
"""Memory of an image that is ready to be matched, about this many times its arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchTimes:
    """Seconds that the matching of all pairs takes, and pairs per second."""

    seconds: float
    pairs_per_second: float


class PhotoScene:
    """Photos of a scene with their features and matches; matches are stored in ``folder``.

    ``cameras`` are the true ones of posed images. Of others the focal length comes from EXIF, or is a guess.
    """

    def __init__(
        self,
        images: PosedImages | UnposedImages,
        folder: str | Path,
        local: LocalParams,
        decoys: Decoys | None = None,
        *,
        threads: int | None = None,
    ) -> None:
        fewest = 3 if isinstance(images, PosedImages) else 2
        if len(images) < fewest or not images.paths:
            raise InputError(f"an evaluation needs {fewest} images of a scene or more, there are {len(images.paths)}")
        self.images, self.folder, self.local, self.threads = images, Path(folder), local, threads
        self._decoys = decoys
        self._matches: dict[tuple[Subject, float], tuple[dict[Pair, Matches], MatchTimes]] = {}
        self._clear = ClearFeatures(lambda path: extract(path, local))
        self._ready: OrderedDict[tuple[Subject, str], tuple[ConcealedFeatures, Prepared]] = OrderedDict()
        self._preparing = 0.0

    @cached_property
    def cameras(self) -> Mapping[str, Camera]:
        """The camera of each image, as far as it is known."""
        return self.images.cameras if isinstance(self.images, PosedImages) else self.guesses

    @cached_property
    def guesses(self) -> dict[str, Camera]:
        """The camera of each image as a user has it: a focal length from EXIF, or guessed."""
        return {name: default_camera(_size_of(self.images, name), self.focal_lengths.get(name)) for name in self.names}

    @cached_property
    def focal_lengths(self) -> dict[str, float]:
        """The focal lengths in pixels that EXIF gives."""
        found = {n: focal_from_exif(self.images.paths[n], _size_of(self.images, n)) for n in self.names}
        return {name: focal for name, focal in found.items() if focal is not None}

    @property
    def truth(self) -> Mapping[str, Pose]:
        """True poses; none where they are not known."""
        return self.images.poses if isinstance(self.images, PosedImages) else {}

    @property
    def names(self) -> tuple[str, ...]:
        """The images, sorted."""
        return self.images.names

    def clear(self, name: str) -> Features:
        """Return the clear features of an image."""
        return self._clear[self.images.paths[name]]

    def concealed(self, name: str, subject: Subject) -> ConcealedFeatures:
        """Return an image as this subject releases it; raw ones are points, for comparison."""
        return self._prepared(name, subject)[0]

    def params(self, subject: Subject) -> dict[str, Value]:
        """Return the settings of extraction, concealment and matching, without the seed and the images."""
        link, extractor = subject.recipe.lifting, extractor_of(self.local)
        used = self._decoys if link is not None and link.decoy_count else None
        return {
            "recipe": str(subject.recipe),
            "matching": subject.matching,
            "decoys": None if used is None else used.checksum,
            "draws": None if subject.seed is None else "evaluation seed",
            **{**extractor.settings, "descriptor": extractor.name},
        }

    @cached_property
    def digests(self) -> dict[str, str]:
        """A digest of each picture."""
        return {name: digest_data(path) for name, path in self.images.paths.items()}

    @cached_property
    def digest(self) -> str:
        """A digest of all pictures, and of cameras and poses where they are known."""
        facts = []
        for name in self.names:
            known: list[object] = []
            if isinstance(self.images, PosedImages):
                camera, pose = self.images.cameras[name], self.images.poses[name]
                true = digest_data(pose.rotation, pose.translation)
                known = [camera.model, camera.width, camera.height, camera.params, true]
            facts.append([name, self.digests[name], *known])
        return short_digest(facts)

    def photo_seconds(self, subject: Subject) -> tuple[float, float]:
        """Return the seconds that a photo takes to be extracted, with all cores at work, and to be concealed."""
        raw = Subject(Recipe("raw"), POINTS, None)
        seconds = [self._timing("extract", self.params(raw), None, self._extract_all)]
        if not subject.recipe.is_clear:
            params = self.params(subject)
            seconds.append(self._timing("conceal", params, subject.seed, lambda: self._conceal_all(subject)))
        extracting, concealing = (*seconds, 0.0)[:2]
        return extracting / len(self.names), concealing / len(self.names)

    def _extract_all(self) -> float:
        """Extract all images as ``features.sources`` does, one per core at a time; return the seconds."""
        self._clear.keep_only([])
        extractor_of(self.local)  # loads networks
        started = time.perf_counter()
        with ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None) as pool:
            list(pool.map(self.clear, self.names))
        return time.perf_counter() - started

    def _conceal_all(self, subject: Subject) -> float:
        """Conceal all images, one after the other; return the seconds."""
        features = [self.clear(name) for name in self.names]
        started = time.perf_counter()
        for one in features:
            conceal_repeatably(one, subject.recipe, self._decoys, seed=subject.seed or 0)
        return time.perf_counter() - started

    def _timing(self, step: str, params: dict[str, Value], seed: int | None, work: Callable[[], float]) -> float:
        """Return the seconds that some work on all images takes, measured once."""
        task = Task(
            name="scene-times",
            samples=[Sample("photos", short_digest(sorted(self.digests.items())))],
            predict=lambda _: {"wall_seconds": np.array(work())},
            score=lambda _, prediction: {"seconds": float(prediction["wall_seconds"])},
            summarise=_no_score,
            params={**params, "step": step},
            seed=seed,
        )
        return float(stored_predictions(task, self.folder)[0]["wall_seconds"])

    def matches(
        self,
        subject: Subject,
        progress: StageProgress = lambda stage, items, total: items,
        *,
        ratio: float | None = None,
    ) -> dict[Pair, Matches]:
        """Return the matches of every image with every other, for one subject; stored ones are read.

        ``ratio``: that of the ratio test; 1 is mutual nearest alone, None what matching does by default.
        """
        return self._matched(subject, progress, ratio)[0]

    def match_times(self, subject: Subject, *, ratio: float | None = None) -> MatchTimes:
        """Return how long the matches took when they were made."""
        return self._matched(subject, lambda stage, items, total: items, ratio)[1]

    def _matched(
        self, subject: Subject, progress: StageProgress, choice: float | None
    ) -> tuple[dict[Pair, Matches], MatchTimes]:
        ratio = default_ratio(subject.recipe) if choice is None else choice
        if (subject, ratio) not in self._matches:
            task = self._matching(subject, ratio)
            stored = stored_predictions(
                task, self.folder, lambda items: progress(f"matching {subject}", items, len(task.samples))
            )
            matches = (Matches(arrays["indices"], arrays["distances"]) for arrays in stored)
            typical = float(np.median([arrays["match_seconds"] for arrays in stored]))  # the first one compiles
            preparing = float(sum(arrays["prepare_seconds"] for arrays in stored))
            total = typical * len(stored) + preparing
            times = MatchTimes(seconds=total, pairs_per_second=len(stored) / max(total, 1e-9))
            self._matches[subject, ratio] = dict(zip(self._pairs, matches, strict=True)), times
        return self._matches[subject, ratio]

    def forget(self) -> None:
        """Drop matches and concealed features from memory; what is stored stays."""
        self._matches.clear()
        self._ready.clear()

    @cached_property
    def _pairs(self) -> list[Pair]:
        return list(exhaustive(self.names))

    def _matching(self, subject: Subject, ratio: float) -> Task:
        keys = {f"{a} {b}": (a, b) for a, b in self._pairs}

        def match_pair(sample: Sample) -> Prediction:
            before = self._preparing
            a, b = (self._prepared(name, subject)[1] for name in keys[sample.key])
            if isinstance(a, SubspaceSet) and isinstance(b, SubspaceSet):
                b.frame = b.frame or a.frame  # one for all: each image is projected once
            warn_if_void(a, b)
            started = time.perf_counter()
            matches = match_prepared(a, b, MatchParams(ratio=ratio, threads=self.threads), subject.recipe)
            return {
                "indices": matches.indices,
                "distances": matches.distances,
                "match_seconds": np.array(time.perf_counter() - started),
                "prepare_seconds": np.array(self._preparing - before),
            }

        return Task(
            name="scene-matches",
            samples=[Sample(key, short_digest(self.digests[a], self.digests[b])) for key, (a, b) in keys.items()],
            predict=match_pair,
            score=_count_matches,
            summarise=_no_score,
            params={**self.params(subject), "ratio": ratio},
            seed=subject.seed,
            version=VERSION,
        )

    def _prepared(self, name: str, subject: Subject) -> tuple[ConcealedFeatures, Prepared]:
        key = (subject, name)
        if key not in self._ready:
            features = conceal_repeatably(self.clear(name), subject.recipe, self._decoys, seed=subject.seed or 0)
            started = time.perf_counter()
            side = side_of(features, name)
            ready = prepare_side(side)
            self._preparing += time.perf_counter() - started
            if isinstance(ready, SubspaceSet):
                ready.frame = next((old.frame for old in self._sets(subject)), None)
            self._ready[key] = features, ready
            while len(self._ready) > 2 and sum(map(_bytes, self._ready.values())) > CACHE_BYTES:
                self._ready.popitem(last=False)
        self._ready.move_to_end(key)
        return self._ready[key]

    def _sets(self, subject: Subject) -> Iterator[SubspaceSet]:
        """Yield what is prepared of a subject, if it is subspaces."""
        for (other, _), (_, ready) in self._ready.items():
            if other == subject and isinstance(ready, SubspaceSet):
                yield ready


def _bytes(ready: tuple[ConcealedFeatures, Prepared]) -> int:
    prepared = ready[1]
    if isinstance(prepared, SubspaceSet):
        return READY_SHARE * (prepared.origin.nbytes + prepared.basis.nbytes)
    return prepared.nbytes


def _count_matches(_sample: Sample, prediction: Prediction) -> Figures:
    return {"matches": float(np.shape(prediction["indices"])[0])}


def stored_predictions(task: Task, folder: str | Path, progress: Progress = lambda items: items) -> list[Prediction]:
    """Return the predictions of all samples, made where they are missing or damaged.

    Raises InputError where one cannot be made.
    """
    results = Results(folder, task)
    results.forget([sample for sample in task.samples if _is_damaged(results, sample)])
    dropped = predict(task, folder, progress=progress)
    if dropped:
        raise InputError(f"{task.name}: {len(dropped)} samples failed: {next(iter(dropped.values()))}")
    return [results.load_prediction(sample)[0] for sample in task.samples]


def _is_damaged(results: Results, sample: Sample) -> bool:
    if not results.prediction_path(sample).exists():
        return False
    try:
        results.load_prediction(sample)
    except FileError as damage:
        log.warning("%s; it is made anew", damage)
        return True
    return False


def _size_of(images: PosedImages | UnposedImages, name: str) -> tuple[int, int]:
    if isinstance(images, UnposedImages):
        return images.sizes[name]
    return images.cameras[name].width, images.cameras[name].height


def _no_score(_figures: object) -> list[Score]:
    return []


def named_subjects(
    recipes: Iterable[str], distances: Sequence[str], seeds: Sequence[int], kind: str
) -> list[tuple[str, Subject]]:
    """Return what ``choose_subjects`` does, with what a table calls each: the recipe as it was asked for.

    ``kind``: the name of the descriptors.

    Raises InputError for what is unknown or nothing at all.
    """
    rows: dict[Subject, str] = {}
    for recipe in recipes:
        for subject in choose_subjects([recipe], distances, seeds, kind):
            rows.setdefault(subject, short_name(recipe))
    if not rows:
        raise InputError("nothing to evaluate: name at least one recipe, distance and seed")
    return [(name, subject) for subject, name in rows.items()]


def short_name(recipe: str) -> str:
    """Return a recipe as a table shows it, with the names of encoder files alone.

    >>> short_name("ninja:models/own.safetensors+random-2")
    'ninja:own+random-2'
    """
    links = []
    for link in recipe.split("+"):
        kind, colon, file = link.partition(":")
        is_file = "/" in file or file.endswith(".safetensors")
        links.append(f"{kind}{colon}{Path(file).name.removesuffix('.safetensors')}" if is_file else link)
    return "+".join(links)


def verification_params() -> dict[str, Value]:
    """Return the settings of verification as parameters of a record."""
    fixed = asdict(VerifyParams())
    return {f"verification_{name}": fixed[name] for name in sorted(fixed) if name not in ("seed", "threads")}
