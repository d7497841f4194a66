# SPDX-License-Identifier: Apache-2.0
"""Scene of posed images, for evaluations of maps and localization: clear and concealed features, and matches.

Features are in memory only. Matches are stored pair by pair, as rows and distances, so that maps made in other ways use
them again.
"""

import logging
from collections import OrderedDict
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

import numpy as np

from sfumato.auditing.runner import Results, predict
from sfumato.auditing.subjects import ClearFeatures, Subject, conceal_repeatably
from sfumato.auditing.task import Figures, Prediction, Sample, Task, digest_data, short_digest
from sfumato.concealment.decoys import Decoys
from sfumato.errors import FileError, InputError
from sfumato.experiments.data.folders import PosedImages
from sfumato.features.local import LocalParams, extract, extractor_of
from sfumato.geometry.verify import VerifyParams
from sfumato.matching.mutual import MatchParams, Side, match_prepared, side_of, warn_if_void
from sfumato.matching.pairs import Pair, exhaustive
from sfumato.subspace.fast import prepare
from sfumato.subspace.subspace_set import SubspaceSet
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.progress import StageProgress
from sfumato.types.record import Score, Value
from sfumato.types.scene import Matches

log = logging.getLogger(__name__)


VERSION = 1
"""Of the stored matches: raise it with every change of matching."""
CACHE_BYTES = 2 * 2**30
READY_SHARE = 4
"""Memory of an image that is ready to be matched, about this many times its arrays."""


class PosedScene:
    """Posed images with their features and matches; matches are stored in ``folder``."""

    def __init__(
        self,
        images: PosedImages,
        folder: str | Path,
        local: LocalParams,
        decoys: Decoys | None = None,
        *,
        threads: int | None = None,
    ) -> None:
        if len(images) < 3 or not images.paths:
            raise InputError(f"an evaluation needs three posed images or more, there are {len(images.paths)}")
        self.images, self.folder, self.local, self.threads = images, Path(folder), local, threads
        self._decoys = decoys
        self._matches: dict[Subject, dict[Pair, Matches]] = {}
        self._clear = ClearFeatures(lambda path: extract(path, local))
        self._ready: OrderedDict[tuple[Subject, str], tuple[ConcealedFeatures, SubspaceSet]] = OrderedDict()

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
        """A digest of all pictures, cameras and poses."""
        facts = []
        for name in self.names:
            camera, pose = self.images.cameras[name], self.images.poses[name]
            true = digest_data(pose.rotation, pose.translation)
            facts.append([name, self.digests[name], camera.model, camera.width, camera.height, camera.params, true])
        return short_digest(facts)

    def matches(
        self, subject: Subject, progress: StageProgress = lambda stage, items, total: items
    ) -> dict[Pair, Matches]:
        """Return the matches of every image with every other, for one subject; stored ones are read."""
        if subject not in self._matches:
            task = self._matching(subject)
            results = Results(self.folder, task)
            results.forget([sample for sample in task.samples if _is_damaged(results, sample)])
            dropped = predict(
                task, self.folder, progress=lambda items: progress(f"matching {subject}", items, len(task.samples))
            )
            if dropped:
                raise InputError(f"{subject}: {len(dropped)} pairs cannot be matched: {next(iter(dropped.values()))}")
            stored = [results.load_prediction(sample)[0] for sample in task.samples]
            matches = (Matches(arrays["indices"], arrays["distances"]) for arrays in stored)
            self._matches[subject] = dict(zip(self._pairs, matches, strict=True))
        return self._matches[subject]

    @cached_property
    def _pairs(self) -> list[Pair]:
        return list(exhaustive(self.names))

    def _matching(self, subject: Subject) -> Task:
        keys = {f"{a} {b}": (a, b) for a, b in self._pairs}

        def match_pair(sample: Sample) -> Prediction:
            a, b = (self._prepared(name, subject)[1] for name in keys[sample.key])
            b.frame = b.frame or a.frame  # one for all: each image is projected once
            warn_if_void(Side(a.origin, a.basis), Side(b.origin, b.basis))
            matches = match_prepared(a, b, MatchParams(threads=self.threads), subject.recipe)
            return {"indices": matches.indices, "distances": matches.distances}

        return Task(
            name="scene-matches",
            samples=[Sample(key, short_digest(self.digests[a], self.digests[b])) for key, (a, b) in keys.items()],
            predict=match_pair,
            score=_count_matches,
            summarise=_no_score,
            params=self.params(subject),
            seed=subject.seed,
            version=VERSION,
        )

    def _prepared(self, name: str, subject: Subject) -> tuple[ConcealedFeatures, SubspaceSet]:
        key = (subject, name)
        if key not in self._ready:
            features = conceal_repeatably(self.clear(name), subject.recipe, self._decoys, seed=subject.seed or 0)
            side = side_of(features, name)
            ready = prepare(side.origin, side.basis)
            ready.frame = next((old.frame for (other, _), (_, old) in self._ready.items() if other == subject), None)
            self._ready[key] = features, ready
            while len(self._ready) > 2 and sum(map(_bytes, self._ready.values())) > CACHE_BYTES:
                self._ready.popitem(last=False)
        self._ready.move_to_end(key)
        return self._ready[key]


def _bytes(ready: tuple[ConcealedFeatures, SubspaceSet]) -> int:
    return READY_SHARE * (ready[1].origin.nbytes + ready[1].basis.nbytes)


def _count_matches(_sample: Sample, prediction: Prediction) -> Figures:
    return {"matches": float(np.shape(prediction["indices"])[0])}


def _is_damaged(results: Results, sample: Sample) -> bool:
    if not results.prediction_path(sample).exists():
        return False
    try:
        results.load_prediction(sample)
    except FileError as damage:
        log.warning("%s; it is made anew", damage)
        return True
    return False


def _no_score(_figures: object) -> list[Score]:
    return []


def verification_params() -> dict[str, Value]:
    """Return the settings of verification as parameters of a record."""
    fixed = asdict(VerifyParams())
    return {f"verification_{name}": fixed[name] for name in sorted(fixed) if name not in ("seed", "threads")}
