# SPDX-License-Identifier: Apache-2.0
"""Patch benchmarks of concealed descriptors: the three tasks of HPatches, and FPR@95.

The same code for clear, lifted and encoded descriptors, on UBC's PhotoTour, HPatches, or patches generated from photos.
Patches are concealed picture by picture. Point-to-subspace leaves the first patch of every comparison clear (or
encoded, if the recipe encodes before it lifts) and conceals the second; subspace-to-subspace conceals both, each patch
once. An encoder alone makes points, compared as points. Each picture draws its own part of the decoys, so that two
share one as often as by chance. Files hold distances and figures, never a descriptor.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.auditing.runner import run_tasks
from sfumato.auditing.subjects import DISTANCES, Subject, choose_decoys, choose_subjects, conceal_repeatably
from sfumato.auditing.tables import COLOURS, SeedGroup, Table, group_by_seed, make_table, save_figure
from sfumato.auditing.task import Figures, Prediction, Sample, Task
from sfumato.concealment.decoys import Decoys
from sfumato.concealment.resolve import encode_points, resolve
from sfumato.errors import InputError
from sfumato.experiments.patches.protocols import (
    distance_between,
    draw_pairs,
    matching,
    pair_distances,
    retrieval,
    verification,
)
from sfumato.experiments.patches.sources import PatchDescriptors, PatchReader, PatchSource, PatchSourceParams
from sfumato.features.cut_patches import is_describable
from sfumato.features.local import LocalParams, extractor_of
from sfumato.training.patch_sets import LEVELS
from sfumato.types.arrays import Range, settle_numbers
from sfumato.types.clear import Features
from sfumato.types.concealed import Subspaces
from sfumato.types.record import Record, Score, Value

RECIPES = ("raw", "random-2", "sub-hybrid-2")
VERSION, SCORE_VERSION = 1, 1
"""Of ``PatchJudge.predict`` and ``PatchJudge.score``: raise them with every change of their results."""

LISTS_SEED = 0
"""Seed of pairs, queries and distractors: the same for all recipes, as HPatches' lists are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchProtocol:
    """Settings: every recipe is measured with every distance and seed.

    ``pairs`` true pairs and as many false ones of either kind for verification; at most ``queries`` and ``distractors``
    for retrieval. Of ``local`` only the descriptor counts; the data says where the points are.
    """

    recipes: tuple[str, ...] = RECIPES
    distances: tuple[str, ...] = tuple(DISTANCES)
    seeds: tuple[int, ...] = (0,)
    pairs: int = 50_000
    queries: int = 2_000
    distractors: int = 10_000
    local: LocalParams = field(default_factory=LocalParams)
    source: PatchSourceParams = PatchSourceParams()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        ranges = {name: Range(1, 10**9, whole=True) for name in ("pairs", "queries", "distractors")}
        problems = settle_numbers(self, ranges)
        if problems:
            raise InputError("; ".join(problems))


class PatchJudge:
    """Runs the tasks for one subject."""

    def __init__(
        self, subject: Subject, kind: str, patches: PatchReader, protocol: PatchProtocol, decoys: Decoys | None
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
        labels, pair_list = described.labels, described.pairs
        distance = distance_between(*self._sides(described))
        if pair_list is not None:
            distances = distance(pair_list.rows[:, 0], pair_list.rows[:, 1]).astype(np.float32)
            return {"true": distances[pair_list.same], "listed": distances[~pair_list.same]}
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
        rates = verification({name: values for name, values in prediction.items() if name not in means})
        return {**rates, **means}

    def summarise(self, figures: Mapping[str, Figures]) -> list[Score]:
        """Return every figure of every sample, and its mean over the samples."""
        names = list(dict.fromkeys(name for row in figures.values() for name in row))
        scores = []
        for name in names:
            by_sample = {key: row[name] for key, row in figures.items() if name in row}
            scores.append(Score(name, fmean(by_sample.values()), samples=len(by_sample)))
            scores += [Score(f"{name}, {key}", value) for key, value in by_sample.items()]
        return scores

    def _sides(
        self, described: PatchDescriptors
    ) -> tuple[Subspaces | NDArray[np.float32], Subspaces | NDArray[np.float32]]:
        """Return the two sides of every comparison."""
        points = encode_points(self._resolved, described.descriptors)
        if self.subject.recipe.lifting is None:
            return points, points
        hidden = self._concealed(described)
        return points if self.subject.distance == "p-to-s" else hidden, hidden

    def _concealed(self, described: PatchDescriptors) -> Subspaces:
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
            seed = self.subject.seed or 0
            subspaces = conceal_repeatably(own, self.subject.recipe, self._decoys, seed=seed).subspaces
            origin.append(subspaces.origin)
            basis.append(subspaces.basis)
        back = np.argsort(order)
        return Subspaces(np.concatenate(origin)[back], np.concatenate(basis)[back])


TASKS = {"FPR@95": "fpr95", "verification": "verification", "matching": "matching", "retrieval": "retrieval"}
"""Titles of the tasks, and the scores behind them. Of FPR@95 less is better, of the others more."""


def evaluate_patches(
    source: PatchSource,
    folder: str | Path,
    protocol: PatchProtocol | None = None,
    decoys: Decoys | None = None,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    overwrite: bool = False,
) -> list[Record]:
    """Measure every recipe, distance and seed on every sample; return a record for each, also kept below ``folder``.

    Without ``decoys`` SIFT and RootSIFT get the bundled ones. What was measured before is not measured again, unless
    ``overwrite`` forgets it. Descriptors of one sample at a time are in memory, and none is written anywhere.

    Raises InputError where there is nothing to measure or a setting is wrong, FileError if the folder cannot be
    written. A sample that cannot be measured is named in the records.
    """
    protocol = protocol or PatchProtocol()
    if not is_describable(protocol.local.descriptor):
        raise InputError(f"patches cannot be described by {protocol.local.descriptor!r:.80}")
    subjects = choose_subjects(protocol.recipes, protocol.distances, protocol.seeds, protocol.local.descriptor)
    decoys = choose_decoys(subjects, extractor_of(protocol.local), decoys)
    patches = PatchReader(source, protocol.local)
    judges = [PatchJudge(subject, source.kind, patches, protocol, decoys) for subject in subjects]
    tasks = [make_task(judge, source) for judge in judges]
    return run_tasks(tasks, folder, progress=progress, overwrite=overwrite, by_sample=True)


def make_task(judge: PatchJudge, source: PatchSource) -> Task:
    """Return the task of one subject."""
    return Task(
        name="patches",
        samples=source.samples,
        predict=judge.predict,
        score=judge.score,
        summarise=judge.summarise,
        params=judge.params,
        seed=judge.subject.seed,
        version=VERSION,
        score_version=SCORE_VERSION,
    )


def patch_table(records: Iterable[Record]) -> Table:
    """Return the mean of every task, and the figures by level or subset."""
    groups = group_by_seed(records)
    names = dict.fromkeys(score.name for group in groups for record in group.records for score in record.scores)
    keys = [name.split(", ", 1)[1] for name in names if name.startswith("fpr95, ")]
    samples = sorted(keys, key=lambda key: (LEVELS.index(key) if key in LEVELS else len(LEVELS), key))
    scores = {title: name for title, name in TASKS.items() if name in names}
    scores |= {f"{t} {key}": f"{name}, {key}" for t, name in list(scores.items()) for key in samples}
    return make_table(groups, ("descriptor", "recipe", "distance"), scores)


# --- bars: one panel per task, one cluster per level or subset, one bar per recipe and distance


HATCHES = ("", "//", "..", "xx", "--", "\\\\", "++", "oo")


def draw_bars(records: Iterable[Record], stem: str | Path, title: str = "") -> tuple[Path, Path]:
    """Draw every task with its levels, the mean last, to ``<stem>.png`` and ``<stem>.svg``; a line spans all seeds.

    Raises InputError where no record has a figure, FileError if a file cannot be written.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    groups = [group for group in group_by_seed(records) if group.values("fpr95")]
    if not groups:
        raise InputError("figure: no record has figures of patches")
    tasks = {title: name for title, name in TASKS.items() if any(group.values(name) for group in groups)}
    samples = _samples(groups)
    with mpl.rc_context({"svg.hashsalt": "sfumato", "font.size": 9}):
        figure = Figure(figsize=(1.2 + 3.0 * len(tasks), 4.0), layout="constrained")
        for axes, (name, score) in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks.items(), strict=True):
            for number, group in enumerate(groups):
                _draw(axes, group, [*(f"{score}, {key}" for key in samples), score], number, len(groups))
            axes.set_xticks(range(len(samples) + 1), [*samples, "mean"])
            axes.set_title(f"{name} ({'less' if score == 'fpr95' else 'more'} is better)", fontsize=9)
            axes.set_ylim(0, 1)
            axes.grid(axis="y", color="#e8e8e8")
            axes.set_axisbelow(True)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(groups)), frameon=False)
        if title:
            figure.suptitle(title, fontsize=11)
        return save_figure(figure, stem)


def _samples(groups: list[SeedGroup]) -> list[str]:
    """Return the levels or subsets, in the order of the records."""
    names = dict.fromkeys(score.name for group in groups for record in group.records for score in record.scores)
    return [name.removeprefix("fpr95, ") for name in names if name.startswith("fpr95, ")]


def _draw(axes: Any, group: SeedGroup, scores: list[str], number: int, count: int) -> None:
    """Draw the bars of one recipe and distance, beside those of the others."""
    width = 0.8 / count
    values = [group.values(name) for name in scores]
    heights = [fmean(seeds) if seeds else 0.0 for seeds in values]
    places = [place - 0.4 + width * (number + 0.5) for place in range(len(scores))]
    recipe, distance = group.params.get("recipe"), group.params.get("distance")
    look = {"color": COLOURS[number % len(COLOURS)], "hatch": HATCHES[number % len(HATCHES)], "edgecolor": "#ffffff"}
    axes.bar(places, heights, width, label=f"{re.sub('@[0-9a-f]+', '', str(recipe))} {distance}", linewidth=0.4, **look)
    for place, seeds in zip(places, values, strict=True):
        if len(seeds) > 1:
            axes.plot([place, place], [min(seeds), max(seeds)], color="#444444", linewidth=1)
