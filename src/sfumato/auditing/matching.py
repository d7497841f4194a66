# SPDX-License-Identifier: Apache-2.0
"""Matching evaluation: concealed features of images related by a homography (section 4.1.2 of the paper).

Image 1 of each sequence is matched with each other one: mutual nearest, no threshold of distance but that of chance for
seals. The accuracy of a pair is the share of its matches that are correct, 0 without matches; what is reported is the
mean over pairs.

Point-to-subspace leaves image 1 clear and lifts image k; subspace-to-subspace lifts both. Kinds with parts draw one
part of the decoys for an image: two images draw the same with probability 1 / parts. Both cases are measured, and
added in these shares.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.auditing.runner import Results, predict, run_task
from sfumato.auditing.subjects import (
    DISTANCES,
    PARTS,
    POINTS,
    ClearFeatures,
    Subject,
    choose_decoys,
    choose_subjects,
    conceal_repeatably,
    draw_parts,
    single_part,
    unlifted,
)
from sfumato.auditing.tables import (
    PlotFrame,
    PlotLine,
    PlotPanel,
    SeedGroup,
    Table,
    draw_lines,
    group_by_seed,
    make_table,
    raw_of,
)
from sfumato.auditing.task import Figures, Prediction, Sample, Task, digest_data
from sfumato.concealment.decoys import Decoys
from sfumato.errors import InputError, suggest
from sfumato.features.local import LocalParams, extract, extractor_of
from sfumato.images.homography import HomographySequence, warp_points
from sfumato.matching.mutual import MatchParams, Prepared, match_prepared, prepare_side, side_of, warn_if_void
from sfumato.types.clear import Features
from sfumato.types.record import Record, Score, Value

# --- pairs of images related by a homography: matched for one subject, and counted
#
# A match is correct at t pixels if its keypoint of image 1, taken through the homography, is at most t pixels from
# its keypoint of image k, measured in image k; the centre of the first pixel is (0, 0) in both. What is kept of a
# pair are row numbers, distances and errors in pixels, never a descriptor.


THRESHOLDS_PX = tuple(range(1, 11))
GROUPS = ("overall", "illumination", "viewpoint")
RECIPES = ("raw", "default", "sub-hybrid-2")
VERSION, SCORE_VERSION = 2, 1
"""Of ``PairMatcher.predict`` and ``PairMatcher.score``: raise them with every change of what they return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HomographyProtocol:
    """What is measured: every recipe with every distance and seed.

    ``parts``: whether two images draw the same part of the decoys: ``different``, ``same``, or ``expected`` (both, in
    the shares that chance gives them). ``clear_ratio``: clear descriptors are also matched with a ratio test of this
    limit, for comparison. ``threads``: None takes the cores there are.
    """

    recipes: tuple[str, ...] = RECIPES
    distances: tuple[str, ...] = tuple(DISTANCES)
    seeds: tuple[int, ...] = (0,)
    parts: str = PARTS[0]
    clear_ratio: float | None = None
    local: LocalParams = field(default_factory=LocalParams)
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.parts not in PARTS:
            raise InputError(f"parts: expected one of {', '.join(PARTS)}{suggest(str(self.parts), PARTS)}")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Pair:
    """Image 1 and image k of a sequence; ``homography`` (3, 3) takes pixels of the one to the other."""

    sequence: str
    kind: str
    number: int
    first: Path
    second: Path
    homography: NDArray[np.float64]

    @property
    def key(self) -> str:
        """A name for the pair."""
        return f"{self.sequence} 1-{self.number}"


def pairs_of(sequence: HomographySequence) -> list[Pair]:
    """Return the pairs of image 1 with each other image, every homography with a positive determinant.

    A homography may be written with any factor, also a negative one, and seen by a camera it keeps orientation: so with
    a positive determinant the third coordinate is positive before the horizon.
    """
    others = zip(sequence.paths[1:], sequence.homographies, strict=True)
    return [
        Pair(sequence.name, sequence.kind, number, sequence.paths[0], path, with_positive_determinant(homography))
        for number, (path, homography) in enumerate(others, 2)
    ]


def with_positive_determinant(homography: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the same homography with a positive determinant."""
    return -homography if np.linalg.det(homography) < 0 else homography


class PairMatcher:
    """Matches pairs of images for one subject, and counts what is correct; a ratio of 1 asks nothing."""

    def __init__(
        self,
        subject: Subject,
        pairs: Mapping[str, Pair],
        clear: ClearFeatures,
        protocol: HomographyProtocol,
        decoys: Decoys | None,
        ratio: float = 1,
    ) -> None:
        link = subject.recipe.lifting
        self.subject, self.pairs, self._ratio = subject, pairs, ratio
        self._clear, self._protocol = clear, protocol
        self._decoys = decoys if link is not None and link.decoy_count else None
        self._first: tuple[object, Prepared] | None = None

    @property
    def shares(self) -> dict[str, float]:
        """Which cases are measured, and their shares: whether both images draw the same part of the decoys."""
        if not (self.subject.draws_parts and self.subject.distance == "s-to-s" and self._decoys):
            return {"": 1.0}
        if self._protocol.parts != "expected":
            return {self._protocol.parts: 1.0}
        return {"different": 1 - 1 / self._decoys.parts, "same": 1 / self._decoys.parts}

    @property
    def params(self) -> dict[str, Value]:
        """All that decides a result, but the seed and the images."""
        extractor = extractor_of(self._protocol.local)
        asked = "" if self._ratio == 1 else f", ratio {self._ratio:g}"
        return {
            "recipe": f"{self.subject.recipe}{asked}",
            "distance": self.subject.distance,
            "matching": f"{self.subject.matching}{asked}",
            "decoys": None if self._decoys is None else self._decoys.checksum,
            "draws": None if self.subject.seed is None else "evaluation seed",
            "parts": None if "" in self.shares else self._protocol.parts,
            "part_count": None if "" in self.shares or self._decoys is None else self._decoys.parts,
            **{**extractor.settings, "descriptor": extractor.name},
        }

    def predict(self, sample: Sample) -> Prediction:
        """Match a pair: rows, distances, and for each match how far off it is in pixels of image k."""
        pair = self.pairs[sample.key]
        clear = self._clear[pair.first], self._clear[pair.second]
        found: dict[str, NDArray[Any]] = {"features": np.array([len(one) for one in clear], np.int32)}
        for case in self.shares:
            parts = self._parts(pair, case)
            a = self._prepared_first(pair, clear[0], parts[0])
            b = self._prepared(clear[1], parts[1], lifted=True)
            warn_if_void(a, b)
            params = MatchParams(ratio=self._ratio, threads=self._protocol.threads)
            matches = match_prepared(a, b, params, self.subject.recipe)
            points = (features.keypoints[matches.indices[:, i], :2] for i, features in enumerate(clear))
            found |= {
                f"{case}indices": matches.indices,
                f"{case}distances": matches.distances,
                f"{case}errors_px": transfer_errors(pair.homography, *points).astype(np.float32),
            }
        return found

    def score(self, sample: Sample, prediction: Prediction) -> Figures:
        """Return matches, correct matches and accuracy at every threshold, expected over the cases."""
        by_case = {case: count_correct(prediction[f"{case}errors_px"]) for case in self.shares}
        names = next(iter(by_case.values()))
        figures = {name: sum(share * by_case[case][name] for case, share in self.shares.items()) for name in names}
        if len(by_case) > 1:
            figures |= {f"{name} of {case} parts": by_case[case][name] for case in by_case for name in names}
        return {**figures, "features": float(np.mean(prediction["features"]))}

    def summarise(self, figures: Mapping[str, Figures]) -> list[Score]:
        """Return the mean over the pairs of each group that has some."""
        scores = []
        for group in GROUPS:
            rows = [row for key, row in figures.items() if group in ("overall", self.pairs[key].kind)]
            for name in rows[0] if rows else ():
                unit = "" if name.startswith("accuracy") else "per image" if name == "features" else "per pair"
                scores.append(Score(score_name(name, group), fmean(row[name] for row in rows), unit, len(rows)))
        return scores

    def _parts(self, pair: Pair, case: str) -> tuple[int | None, int | None]:
        if not case or self._decoys is None or self.subject.seed is None:
            return None, None
        own, other = draw_parts(self.subject.seed, pair.sequence, pair.key, self._decoys.parts)
        return own, own if case == "same" else other

    def _prepared_first(self, pair: Pair, features: Features, part: int | None) -> Prepared:
        """Prepare image 1 of a sequence once for all its pairs."""
        key = (pair.first, part)
        if self._first is None or self._first[0] != key:
            self._first = key, self._prepared(features, part, lifted=self.subject.distance != "p-to-s")
        return self._first[1]

    def _prepared(self, features: Features, part: int | None, *, lifted: bool) -> Prepared:
        """Prepare released rows: points of a recipe that has no more than encoders, or as they are concealed."""
        recipe = self.subject.recipe
        if not lifted or (recipe.lifting is None and not recipe.is_sealed):
            side = side_of(unlifted(features, recipe), "points")
        else:
            decoys = self._decoys if part is None or self._decoys is None else single_part(self._decoys, part)
            side = side_of(
                conceal_repeatably(features, recipe, decoys, seed=self.subject.seed or 0), "concealed features"
            )
        return prepare_side(side)


def transfer_errors(
    homography: NDArray[np.float64], first: NDArray[np.floating[Any]], second: NDArray[np.floating[Any]]
) -> NDArray[np.float64]:
    """Return how far points (N, 2) of image 1, taken through the homography, are from points (N, 2) of image k.

    In pixels of image k; infinite beyond the horizon of the homography.
    """
    exact = np.asarray(first, np.float64)
    before = exact @ homography[2, :2] + homography[2, 2] > 0
    errors = np.linalg.norm(warp_points(homography, exact) - second, axis=1)
    result: NDArray[np.float64] = np.where(before & np.isfinite(errors), errors, np.inf)
    return result


def count_correct(errors_px: NDArray[np.floating[Any]]) -> dict[str, float]:
    """Return matches, and correct matches and accuracy at every threshold; the accuracy of no match is 0."""
    figures = {"matches": float(len(errors_px))}
    for threshold in THRESHOLDS_PX:
        correct = float(np.count_nonzero(errors_px <= threshold))
        figures[f"correct {threshold} px"] = correct
        figures[f"accuracy {threshold} px"] = correct / max(1, len(errors_px))
    return figures


def score_name(name: str, group: str) -> str:
    """Return the name of a score of a group of pairs in a record.

    >>> score_name("accuracy 3 px", "viewpoint")
    'accuracy 3 px, viewpoint'
    """
    return f"{name}, {group}"


STYLES = {POINTS: DISTANCES["p-to-s"], **DISTANCES}
"""Raw descriptors are drawn as a solid line."""


def evaluate_homography(
    sequences: Sequence[HomographySequence],
    folder: str | Path,
    protocol: HomographyProtocol | None = None,
    decoys: Decoys | None = None,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    overwrite: bool = False,
) -> list[Record]:
    """Measure every recipe, distance and seed on every pair; return a record for each, also kept below ``folder``.

    Without ``decoys`` SIFT and RootSIFT get the bundled ones. Pairs measured before are not measured again, unless
    ``overwrite`` forgets them. Sequences are worked through one at a time: the clear features of one alone are in
    memory, and none is written anywhere.

    Raises InputError where there is nothing to measure or a setting is wrong, FileError if the folder cannot be
    written. A pair that cannot be measured is named in the records.
    """
    plan = plan_homography(sequences, protocol or HomographyProtocol(), decoys)
    if overwrite:
        for task in plan.tasks:
            Results(folder, task).forget(task.samples)
    for sequence, task in progress([(sequence, task) for sequence in sequences for task in plan.tasks]):
        plan.clear.keep_only(sequence.paths)
        predict(task, folder, [plan.samples[pair.key] for pair in pairs_of(sequence)])
    return [run_task(task, folder) for task in plan.tasks]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class HomographyPlan:
    """All that is to be done: ``samples`` by the keys of their pairs, a task for each subject, and their features."""

    samples: Mapping[str, Sample]
    tasks: Sequence[Task]
    clear: ClearFeatures


def plan_homography(
    sequences: Sequence[HomographySequence], protocol: HomographyProtocol, decoys: Decoys | None = None
) -> HomographyPlan:
    """Return what ``evaluate_homography`` does; it raises what that does before anything is measured."""
    extractor = extractor_of(protocol.local)
    subjects = choose_subjects(protocol.recipes, protocol.distances, protocol.seeds, extractor.name)
    decoys = choose_decoys(subjects, extractor, decoys)
    pairs = {pair.key: pair for sequence in sequences for pair in pairs_of(sequence)}
    if not pairs:
        raise InputError("there is no pair of images to evaluate")
    samples = {key: Sample(key, digest_data(p.first, p.second, p.homography)) for key, p in pairs.items()}
    clear = ClearFeatures(lambda path: extract(path, protocol.local))
    matchers = [PairMatcher(subject, pairs, clear, protocol, decoys) for subject in subjects]
    if protocol.clear_ratio is not None:
        plain = [subject for subject in subjects if subject.recipe.is_clear]
        matchers += [PairMatcher(one, pairs, clear, protocol, decoys, protocol.clear_ratio) for one in plain]
    return HomographyPlan(samples, [make_task(matcher, list(samples.values())) for matcher in matchers], clear)


def make_task(matcher: PairMatcher, samples: Sequence[Sample]) -> Task:
    """Return the task of one subject."""
    return Task(
        name="homography",
        samples=samples,
        predict=matcher.predict,
        score=matcher.score,
        summarise=matcher.summarise,
        params=matcher.params,
        seed=matcher.subject.seed,
        version=VERSION,
        score_version=SCORE_VERSION,
    )


def homography_table(records: Iterable[Record]) -> Table:
    """Return the figures people compare: accuracy, matches and correct matches, and their shares of raw."""
    groups = group_by_seed(records)
    scores = {f"{px} px": score_name(f"accuracy {px} px", "overall") for px in (1, 3, 5, 10)}
    scores |= {f"{group} 3 px": score_name("accuracy 3 px", group) for group in GROUPS[1:]}
    scores |= {name: score_name(name, "overall") for name in ("matches", "correct 3 px")}
    ratios = {f"{name} / raw": score_name(name, "overall") for name in ("accuracy 3 px", "correct 3 px")}
    used = {title: name for title, name in scores.items() if any(group.values(name) for group in groups)}
    columns = ("descriptor", "recipe", "distance")
    raw = raw_of(groups)
    return make_table(groups, columns, used, ratios=ratios if any(map(raw, groups)) else None, baseline=raw)


def draw_accuracy(records: Iterable[Record], stem: str | Path, title: str = "") -> tuple[Path, Path]:
    """Draw accuracy over the threshold like Figure 1 of the paper; point-to-subspace solid, the other dashed.

    A shade spans all seeds. Returns the two files, PNG and SVG.
    """
    groups = group_by_seed(records)
    panels = [
        PlotPanel(group, tuple(line for one in groups for line in [accuracy_line(one, group)] if line is not None))
        for group in GROUPS
    ]
    frame = PlotFrame(
        title=title,
        x_label="threshold [px]",
        y_label="mean matching accuracy",
        variants=tuple(DISTANCES.values()),
    )
    return draw_lines(stem, [panel for panel in panels if panel.lines], frame)


def accuracy_line(group: SeedGroup, kind: str) -> PlotLine | None:
    """Return the accuracy of one group of records over the threshold; None if it has none for this kind of pair."""
    values = [group.values(score_name(f"accuracy {px} px", kind)) for px in THRESHOLDS_PX]
    if not all(values):
        return None
    return PlotLine(
        series=str(group.params.get("recipe")),
        variant=STYLES.get(str(group.params.get("distance")), ""),
        x=THRESHOLDS_PX,
        y=[sum(some) / len(some) for some in values],
        low=[min(some) for some in values],
        high=[max(some) for some in values],
    )
