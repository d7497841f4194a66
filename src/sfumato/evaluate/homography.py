# SPDX-License-Identifier: Apache-2.0
"""How well concealed features are matched between images related by a homography (section 4.1.2 of the paper).

Image 1 of each sequence is matched with each other one: mutual nearest, no threshold of distance but that of chance for
seals. The accuracy of a pair is the share of its matches that are correct, 0 without matches; what is reported is the
mean over pairs.

Point-to-subspace leaves image 1 clear and lifts image k; subspace-to-subspace lifts both. Kinds with parts draw one
part of the decoys for an image: two images draw the same with probability 1 / parts. Both cases are measured, and
added in these shares.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.concealment.decoys import Decoys
from sfumato.errors import InputError
from sfumato.evaluate.figures import Frame, Line, Panel, draw_lines
from sfumato.evaluate.pairs import (
    GROUPS,
    SCORE_VERSION,
    THRESHOLDS_PX,
    VERSION,
    HomographyProtocol,
    PairMatcher,
    pairs_of,
    score_name,
)
from sfumato.evaluate.results import Results
from sfumato.evaluate.runner import predict, run
from sfumato.evaluate.subjects import DISTANCES, POINTS, ClearFeatures, choose_decoys, choose_subjects
from sfumato.evaluate.tables import Group, Table, group_by_seed, make_table, raw_of
from sfumato.evaluate.task import Sample, Task, digest_data
from sfumato.features.local import extract, extractor_of
from sfumato.images.folders import HomographySequence
from sfumato.types.record import Record

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

    Raises InputError where there is nothing to measure or a setting is wrong, FileError if the folder can not be
    written. A pair that can not be measured is named in the records.
    """
    plan = plan_homography(sequences, protocol or HomographyProtocol(), decoys)
    if overwrite:
        for task in plan.tasks:
            Results(folder, task).forget(task.samples)
    for sequence, task in progress([(sequence, task) for sequence in sequences for task in plan.tasks]):
        plan.clear.keep_only(sequence.paths)
        predict(task, folder, [plan.samples[pair.key] for pair in pairs_of(sequence)])
    return [run(task, folder) for task in plan.tasks]


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
    subjects = choose_subjects(protocol.recipes, protocol.distances, protocol.seeds)
    decoys = choose_decoys(subjects, extractor_of(protocol.local), decoys)
    pairs = {pair.key: pair for sequence in sequences for pair in pairs_of(sequence)}
    if not pairs:
        raise InputError("there is no pair of images to evaluate")
    samples = {key: Sample(key, digest_data(p.first, p.second, p.homography)) for key, p in pairs.items()}
    clear = ClearFeatures(lambda path: extract(path, protocol.local))
    matchers = [PairMatcher(subject, pairs, clear, protocol, decoys) for subject in subjects]
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


def table_of(records: Iterable[Record]) -> Table:
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
        Panel(group, tuple(line for one in groups for line in [accuracy_line(one, group)] if line is not None))
        for group in GROUPS
    ]
    frame = Frame(
        title=title,
        x_label="threshold [px]",
        y_label="mean matching accuracy",
        variants=tuple(DISTANCES.values()),
    )
    return draw_lines(stem, [panel for panel in panels if panel.lines], frame)


def accuracy_line(group: Group, kind: str) -> Line | None:
    """Return the accuracy of one group of records over the threshold; None if it has none for this kind of pair."""
    values = [group.values(score_name(f"accuracy {px} px", kind)) for px in THRESHOLDS_PX]
    if not all(values):
        return None
    return Line(
        series=str(group.params.get("recipe")),
        variant=STYLES.get(str(group.params.get("distance")), ""),
        x=THRESHOLDS_PX,
        y=[sum(some) / len(some) for some in values],
        low=[min(some) for some in values],
        high=[max(some) for some in values],
    )
