# SPDX-License-Identifier: Apache-2.0
"""How well concealed descriptors of patches are told apart, matched and retrieved: the tasks of HPatches, and FPR@95.

The same code for clear, lifted and encoded descriptors, on UBC's PhotoTour, HPatches, or patches generated from photos.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from sfumato.concealment.decoys import Decoys
from sfumato.errors import InputError
from sfumato.evaluate.patchjudge import SCORE_VERSION, VERSION, PatchJudge, PatchProtocol
from sfumato.evaluate.patchsources import DescribedPatches, PatchSource
from sfumato.evaluate.results import Results
from sfumato.evaluate.runner import predict, run
from sfumato.evaluate.subjects import choose_decoys, choose_subjects
from sfumato.evaluate.tables import Table, group_by_seed, make_table
from sfumato.evaluate.task import Task
from sfumato.features.cutpatches import is_describable
from sfumato.features.local import extractor_of
from sfumato.images.patchsets import LEVELS
from sfumato.types.record import Record

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

    Raises InputError where there is nothing to measure or a setting is wrong, FileError if the folder can not be
    written. A sample that can not be measured is named in the records.
    """
    protocol = protocol or PatchProtocol()
    if not is_describable(protocol.local.descriptor):
        raise InputError(f"patches can not be described by {protocol.local.descriptor!r:.80}")
    subjects = choose_subjects(protocol.recipes, protocol.distances, protocol.seeds)
    decoys = choose_decoys(subjects, extractor_of(protocol.local), decoys)
    patches = DescribedPatches(source, protocol.local)
    judges = [PatchJudge(subject, source.kind, patches, protocol, decoys) for subject in subjects]
    tasks = [make_task(judge, source) for judge in judges]
    if overwrite:
        for task in tasks:
            Results(folder, task).forget(task.samples)
    for sample, task in progress([(sample, task) for sample in source.samples for task in tasks]):
        predict(task, folder, [sample])
    return [run(task, folder) for task in tasks]


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


def table_of(records: Iterable[Record]) -> Table:
    """Return the mean of every task, and the figures by level or subset."""
    groups = group_by_seed(records)
    names = dict.fromkeys(score.name for group in groups for record in group.records for score in record.scores)
    found = [name.split(", ", 1)[1] for name in names if name.startswith("fpr95, ")]
    samples = sorted(found, key=lambda key: (LEVELS.index(key) if key in LEVELS else len(LEVELS), key))
    scores = {title: name for title, name in TASKS.items() if name in names}
    scores |= {f"{t} {key}": f"{name}, {key}" for t, name in list(scores.items()) for key in samples}
    return make_table(groups, ("descriptor", "recipe", "distance"), scores)
