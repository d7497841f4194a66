# SPDX-License-Identifier: Apache-2.0
"""Attacks by matches: image 1 of a sequence, attacked with all that its matches in the other images show.

The server matches the images as it should, and then uses the matches: matched features are liftings of nearly the same
descriptor. Measured in the space that was lifted; where an encoder comes before the lifting and a decoder of it is at
hand, also in the clear space. Keeps distances, never a descriptor.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.knowledge import Knowledge, Recovery
from sfumato.attacks.registry import ATTACKS, AttackId, run_attack
from sfumato.attacks.run import companions_from_matches
from sfumato.auditing.attack_task import distance_scores
from sfumato.auditing.runner import Results, run_task
from sfumato.auditing.subjects import Subject, choose_subjects, conceal_repeatably
from sfumato.auditing.task import Figures, Prediction, Sample, Task, digest_data
from sfumato.auditing.toolbox import Tools
from sfumato.auditing.two_stage import EncodedSpace, encoder_part
from sfumato.features.local import LocalParams, extract, extractor_of
from sfumato.images.homography import HomographySequence
from sfumato.matching.mutual import MatchParams, match_prepared, prepare_side, side_of
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures, Points
from sfumato.types.record import Record, Score, Value
from sfumato.types.scene import Matches

VERSION, SCORE_VERSION = 1, 1
"""Of ``predict`` and ``score`` here: raise them with every change."""

WAYS = ("reveal", "tracks")
"""Attacks by the nearest match alone, and by all of them."""


def evaluate_matched(
    sequences: Sequence[HomographySequence],
    folder: str | Path,
    recipes: Iterable[str],
    tools: Tools,
    *,
    local: LocalParams,
    seeds: Sequence[int] = (0,),
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    overwrite: bool = False,
) -> list[Record]:
    """Attack image 1 of every sequence under every recipe with a lifting; return a record for each and each attack.

    What was measured before is not measured again, unless ``overwrite`` forgets it. Without a lifting a match reveals
    nothing that was not released; such recipes have no record.
    """
    subjects = [one for one in choose_subjects(recipes, ("s-to-s",), seeds) if one.recipe.lifting is not None]
    by_name = {sequence.name: sequence for sequence in sequences}
    samples = [Sample(name, digest_data(*sequence.paths)) for name, sequence in by_name.items()]
    tasks = [
        make_task(MatchedTask(subject, way, by_name, tools, local), samples) for subject in subjects for way in WAYS
    ]
    if overwrite:
        for task in tasks:
            Results(folder, task).forget(samples)
    return [run_task(task, folder) for task in progress(tasks)]


def make_task(attack: "MatchedTask", samples: Sequence[Sample]) -> Task:
    """Return the task of one attack on one subject."""
    return Task(
        name="matched",
        samples=samples,
        predict=attack.predict,
        score=attack.score,
        summarise=summarise,
        params=attack.params,
        seed=attack.subject.seed,
        version=VERSION,
        score_version=SCORE_VERSION,
        facts=AttackId(attack.way).facts.params,
    )


class MatchedTask:
    """One attack by matches on image 1 of every sequence."""

    def __init__(
        self,
        subject: Subject,
        way: str,
        sequences: Mapping[str, HomographySequence],
        tools: Tools,
        local: LocalParams,
    ) -> None:
        self.subject, self.way, self.sequences = subject, way, sequences
        self._tools, self._local = tools, local
        self._space = EncodedSpace(subject.recipe, tools)
        kind = extractor_of(local).name
        self._decoder = tools.decoder(kind, str(encoder_part(subject.recipe))) if self._encoded else None

    @property
    def _encoded(self) -> bool:
        return self.subject.recipe.has_encoder

    @property
    def params(self) -> dict[str, Value]:
        """All that decides a result, but the seed and the images."""
        extractor, tools = extractor_of(self._local), self._tools
        return {
            "recipe": str(self.subject.recipe),
            "attack": self.way,
            "matching": "mutual nearest",
            "decoys": None if tools.decoys is None else tools.decoys.checksum,
            "public": tools.public_digest,
            "decoder": None if self._decoder is None else self._decoder[0],
            "draws": "evaluation seed",
            **{**extractor.settings, "descriptor": extractor.name},
        }

    def predict(self, sample: Sample) -> Prediction:
        """Attack image 1: distances (N,) in the lifted and, decoded, in the clear space; which rows have a match."""
        clear = [extract(path, self._local) for path in self.sequences[sample.key].paths]
        archive = {str(number): self._concealed(features) for number, features in enumerate(clear)}
        first = archive["0"]
        matches = {("0", name): match_features(first, other) for name, other in archive.items() if name != "0"}
        companions = companions_from_matches("0", matches, archive, nearest_only=self.way == "reveal")
        field = "partners" if self.way == "reveal" else "tracks"
        needs = ATTACKS[self.way].helped_by
        values: dict[str, Any] = {field: companions, **self._space.knowledge(needs)}
        recovery = run_attack(ATTACKS[self.way], self._space.as_lifted(first), Knowledge(**values))
        matched: NDArray[np.bool_] = np.zeros(len(first), bool)
        matched[companions.rows] = True
        truth = self._space.encode(clear[0])
        lifted = np.linalg.norm(recovery.descriptors - truth, axis=1).astype(np.float32)
        distances = self._clear_distances(recovery, clear[0], lifted)
        return {"lifted": lifted, "matched": matched, "distances": distances}

    def score(self, _sample: Sample, prediction: Prediction) -> Figures:
        """Return the shares within some distances of all features, and of the matched ones."""
        matched = prediction["matched"].astype(bool)
        figures = {"matched": float(matched.mean()) if matched.size else 0.0}
        for space, name in (("lifted ", "lifted"), ("", "distances")):
            distances = prediction[name]
            figures |= {f"{space}{title}": value for title, value in distance_scores(distances).items()}
            if distances.size:
                shares = distance_scores(distances[matched])
                figures |= {f"{space}{title} of matched": value for title, value in shares.items()}
        return figures

    def _concealed(self, features: Features) -> ConcealedFeatures:
        return conceal_repeatably(features, self.subject.recipe, self._tools.decoys, seed=self.subject.seed or 0)

    def _clear_distances(self, recovery: Recovery, clear: Features, lifted: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return distances in the clear space: the same without an encoder, none without a decoder for one."""
        if not self._encoded:
            return lifted
        if self._decoder is None:
            return np.empty(0, np.float32)
        decoded = self._decoder[1](Points(recovery.descriptors))
        distances: NDArray[np.float32] = np.linalg.norm(decoded - clear.descriptors, axis=1).astype(np.float32)
        return distances


def match_features(first: ConcealedFeatures, second: ConcealedFeatures) -> Matches:
    """Return the mutual nearest matches of two images, as a server finds them."""
    sides = [side_of(features, "concealed features") for features in (first, second)]
    first_set, second_set = (prepare_side(side) for side in sides)
    pair = match_prepared(first_set, second_set, MatchParams(ratio=1), sides[0].recipe)
    return Matches(pair.indices, pair.distances)


def summarise(figures: Mapping[str, Figures]) -> list[Score]:
    """Return the mean of each score over the sequences that have it."""
    names = dict.fromkeys(name for row in figures.values() for name in row)
    values = {name: [row[name] for row in figures.values() if name in row] for name in names}
    return [Score(name, fmean(numbers), "", len(numbers)) for name, numbers in values.items()]
