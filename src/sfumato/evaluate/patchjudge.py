# SPDX-License-Identifier: Apache-2.0
"""The patch tasks for one subject: its patches are concealed picture by picture, compared, and the results counted.

Point-to-subspace leaves the first patch of every comparison clear (or encoded, where the recipe encodes before it
lifts) and conceals the second; subspace-to-subspace conceals both, each patch once. What an encoder alone makes are
points, compared as points. Each picture draws its own part of the decoys, so that two share one as often as chance
says. What is kept are distances and figures, never a descriptor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.decoys import Decoys
from sfumato.concealment.encoders import encode_points, resolve
from sfumato.errors import InputError
from sfumato.evaluate.patchsources import Described, DescribedPatches, SourceParams
from sfumato.evaluate.subjects import DISTANCES, Subject, conceal_repeatably
from sfumato.evaluate.task import Figures, Prediction, Sample
from sfumato.features.local import LocalParams, extractor_of
from sfumato.images.settings import Range, settle_numbers
from sfumato.learn.patchmetrics import distance_between
from sfumato.learn.patchtasks import draw_pairs, matching, pair_distances, retrieval, verification
from sfumato.types.clear import Features
from sfumato.types.concealed import Subspaces
from sfumato.types.record import Score, Value

RECIPES = ("raw", "random-2", "sub-hybrid-2")
VERSION, SCORE_VERSION = 1, 1
"""Of ``PatchJudge.predict`` and ``PatchJudge.score``: raise them with every change of what they return."""

LISTS_SEED = 0
"""Which pairs, queries and distractors are drawn: the same for all recipes, as HPatches' lists are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchProtocol:
    """What is measured: every recipe with every distance and seed.

    ``pairs`` true pairs and as many false ones of either kind for verification; at most ``queries`` and ``distractors``
    for retrieval. Of ``local`` only the descriptor counts; where the points are is the data's business.
    """

    recipes: tuple[str, ...] = RECIPES
    distances: tuple[str, ...] = tuple(DISTANCES)
    seeds: tuple[int, ...] = (0,)
    pairs: int = 50_000
    queries: int = 2_000
    distractors: int = 10_000
    local: LocalParams = field(default_factory=LocalParams)
    source: SourceParams = SourceParams()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        ranges = {name: Range(1, 10**9, whole=True) for name in ("pairs", "queries", "distractors")}
        problems = settle_numbers(self, ranges)
        if problems:
            raise InputError("; ".join(problems))


class PatchJudge:
    """Runs the tasks for one subject."""

    def __init__(
        self, subject: Subject, kind: str, patches: DescribedPatches, protocol: PatchProtocol, decoys: Decoys | None
    ) -> None:
        link = subject.recipe.lifting
        self.subject, self._kind = subject, kind
        self._patches, self._protocol = patches, protocol
        self._decoys = decoys if link is not None and link.decoy_count else None
        self._extractor = extractor_of(protocol.local)
        self._resolved = resolve(subject.recipe)

    @property
    def params(self) -> dict[str, Value]:
        """All that decides a result, but the seed and the patches."""
        protocol = self._protocol
        return {
            "recipe": str(self._resolved.recipe),
            "distance": self.subject.distance,
            "patches": self._kind,
            "decoys": None if self._decoys is None else self._decoys.checksum,
            "draws": None if self.subject.seed is None else "evaluation seed",
            "pairs": protocol.pairs,
            "queries": protocol.queries,
            "distractors": protocol.distractors,
            "descriptor": self._extractor.name,
        }

    def predict(self, sample: Sample) -> Prediction:
        """Return distances of pairs to tell apart, and the average precision of every matched pair and query."""
        described = self._patches[sample.key]
        labels, listed = described.labels, described.pairs
        distance = distance_between(*self._sides(described))
        if listed is not None:
            found = distance(listed.rows[:, 0], listed.rows[:, 1]).astype(np.float32)
            return {"true": found[listed.same], "listed": found[~listed.same]}
        rng = np.random.default_rng(LISTS_SEED)
        pairs = pair_distances(distance, draw_pairs(labels, self._protocol.pairs, rng))
        queries, distractors = self._protocol.queries, self._protocol.distractors
        return {
            **{name: values.astype(np.float32) for name, values in pairs.items()},
            "matching": matching(distance, labels),
            "retrieval": retrieval(distance, labels, queries, distractors, rng),
        }

    def score(self, sample: Sample, prediction: Prediction) -> Figures:
        """Return the figures of one sample: FPR@95, verification, and mean average precisions."""
        means = {name: float(np.mean(prediction[name])) for name in ("matching", "retrieval") if name in prediction}
        told = verification({name: values for name, values in prediction.items() if name not in means})
        return {**told, **means}

    def summarise(self, figures: Mapping[str, Figures]) -> list[Score]:
        """Return every figure of every sample, and its mean over the samples."""
        names = list(dict.fromkeys(name for row in figures.values() for name in row))
        scores = []
        for name in names:
            by_sample = {key: row[name] for key, row in figures.items() if name in row}
            scores.append(Score(name, fmean(by_sample.values()), samples=len(by_sample)))
            scores += [Score(f"{name}, {key}", value) for key, value in by_sample.items()]
        return scores

    def _sides(self, described: Described) -> tuple[Subspaces | NDArray[np.float32], Subspaces | NDArray[np.float32]]:
        """Return the two sides of every comparison."""
        points = encode_points(self._resolved, described.descriptors)
        if self.subject.recipe.lifting is None:
            return points, points
        hidden = self._concealed(described)
        return points if self.subject.distance == "p-to-s" else hidden, hidden

    def _concealed(self, described: Described) -> Subspaces:
        """Conceal the patches of each picture by themselves, as a device would."""
        labels, clear = described.labels, described.descriptors
        pictures = np.stack([labels.groups, labels.views], axis=1)
        numbers = np.unique(pictures, axis=0, return_inverse=True)[1].reshape(-1)
        origin: list[NDArray[np.float32]] = []
        basis: list[NDArray[np.float32]] = []
        order = np.argsort(numbers, kind="stable")
        starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
        for rows in np.split(order, starts[1:]):
            own = Features(np.zeros((len(rows), 4), np.float32), clear[rows], self._extractor)
            made = conceal_repeatably(own, self.subject.recipe, self._decoys, seed=self.subject.seed or 0).subspaces
            origin.append(made.origin)
            basis.append(made.basis)
        back = np.argsort(order)
        return Subspaces(np.concatenate(origin)[back], np.concatenate(basis)[back])
