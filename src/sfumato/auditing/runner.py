# SPDX-License-Identifier: Apache-2.0
"""Runner of tasks: predict, score and summarise their samples, keep the results on disk, return a Record.

What was finished is used again: after Ctrl-C, a kill or a full disk the same call goes on where
it stopped, and only samples that changed are done again. A sample that fails is named in the record.
"""

import json
import logging
import math
import os
import subprocess
import time
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, as_completed
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sfumato import __version__
from sfumato.auditing.task import Figures, Prediction, Sample, Task
from sfumato.errors import FileError, InputError, MissingDependency, SfumatoError, WorkerError
from sfumato.files.atomic import read_text, write_file, write_text
from sfumato.types.progress import Progress
from sfumato.types.record import Record, Score, describe_machine

# --- where results are kept, so that what is finished is never done again
#     <folder>/<task>/<digest of the settings>/task.json          the settings: parameters, seed, version
#                                              predictions/*.npz  one file per sample, named by its key and digest
#                                              scores.jsonl       one line per sample
#                                              records/*.json     one Record for each set of samples
#
# Every file but ``scores.jsonl`` is written beside its place and then moved there; lines are only ever appended.
# Nothing
# is pickled. Damage raises a FileError; damaged lines are skipped; the runner makes them anew.


DAMAGE = (OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error)
"""What numpy may raise for a file that is no npz file of ours."""

SECONDS = "seconds"
"""The array of a prediction file that holds how long it took."""


class Results:
    """The folder of one task with one choice of settings."""

    def __init__(self, folder: str | os.PathLike[str], task: Task) -> None:
        self.folder = Path(folder) / task.name / task.settings_digest
        self._task = task
        try:
            (self.folder / "predictions").mkdir(parents=True, exist_ok=True)
            (self.folder / "records").mkdir(exist_ok=True)
        except OSError as cause:
            raise FileError(f"{self.folder}: cannot be made: {cause.strerror or cause}") from cause
        if not (self.folder / "task.json").exists():
            write_text(
                self.folder / "task.json", json.dumps(task.settings, indent=2, sort_keys=True) + "\n", with_folder=True
            )

    def prediction_path(self, sample: Sample) -> Path:
        """Return where the prediction of a sample is, or would be."""
        return self.folder / "predictions" / f"{sample.file_name}.npz"

    def save_prediction(self, sample: Sample, prediction: Prediction, seconds: float) -> None:
        """Keep a prediction; only plain arrays of numbers and texts are taken."""
        arrays = {name: np.asarray(value) for name, value in prediction.items()}
        wrong = [name for name, array in arrays.items() if array.dtype.kind not in "fiubU" or name == SECONDS]
        if wrong:
            raise InputError(f"prediction of {sample.key}: {', '.join(wrong)} is no array of numbers or texts")

        def write(file: BinaryIO) -> None:
            members: dict[str, Any] = {**arrays, SECONDS: np.array(seconds)}
            np.savez_compressed(file, allow_pickle=False, **members)

        write_file(self.prediction_path(sample), write, with_folder=True, private=True)

    def load_prediction(self, sample: Sample) -> tuple[Prediction, float]:
        """Return a prediction and the seconds it took; FileError if it is damaged."""
        path = self.prediction_path(sample)
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as members:
                arrays: dict[str, NDArray[Any]] = {name: members[name] for name in members.files}
            return arrays, float(arrays.pop(SECONDS))
        except DAMAGE as cause:
            raise FileError(f"{path}: this prediction is missing or damaged") from cause

    def scores(self) -> dict[Sample, tuple[dict[str, float], float]]:
        """Return the scores of every sample that has scores of the present version, and the seconds they took."""
        known: dict[Sample, tuple[dict[str, float], float]] = {}
        for line in _read_lines(self.folder / "scores.jsonl"):
            try:
                entry: Any = json.loads(line)
                if entry["version"] == self._task.score_version:
                    figures = {str(name): float(value) for name, value in entry["scores"].items()}
                    if not all(map(math.isfinite, figures.values())):
                        continue
                    known[Sample(entry["sample"], entry["digest"])] = figures, float(entry[SECONDS])
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                continue  # torn or damaged: that sample has no score, and is scored again
        return known

    def add_scores(self, sample: Sample, figures: Figures, seconds: float) -> dict[str, float]:
        """Keep the scores of a sample, and return them as plain numbers; InputError if one is not finite."""
        plain = {name: float(value) for name, value in figures.items()}
        wrong = [name for name, value in plain.items() if not math.isfinite(value)]
        if wrong:
            raise InputError(f"{', '.join(wrong)} is not finite")
        entry = {
            "sample": sample.key,
            "digest": sample.digest,
            "version": self._task.score_version,
            "seconds": seconds,
            "scores": plain,
        }
        _append(self.folder / "scores.jsonl", [json.dumps(entry)])
        return plain

    def forget(self, samples: Collection[Sample]) -> None:
        """Remove the predictions and scores of some samples."""
        try:
            for sample in samples:
                self.prediction_path(sample).unlink(missing_ok=True)
        except OSError as cause:
            raise FileError(f"{self.folder}: cannot be changed: {cause.strerror or cause}") from cause
        path, gone = self.folder / "scores.jsonl", {sample.key for sample in samples}
        lines = [line for line in _read_lines(path) if _named(line) not in gone]
        if path.exists():
            write_text(path, "".join(f"{line}\n" for line in lines), with_folder=True)

    def record(self) -> Record | None:
        """Return the record kept for exactly these samples, if there is one that can be read."""
        try:
            return Record.from_json(self._record_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # missing, damaged or no record: it is made anew
            return None

    def save_record(self, record: Record) -> None:
        """Keep the record of exactly these samples."""
        write_text(self._record_path, record.to_json() + "\n", with_folder=True)

    @property
    def _record_path(self) -> Path:
        return self.folder / "records" / f"{self._task.data_digest}.json"


def load_records(folder: str | os.PathLike[str]) -> list[Record]:
    """Return all records below a folder, in the order of their paths.

    Raises FileError for a folder that is missing, or a record that cannot be read.
    """
    if not Path(folder).is_dir():
        raise FileError(f"{folder}: no such folder of results")
    records = []
    for path in sorted(Path(folder).rglob("records/*.json")):
        try:
            records.append(Record.from_json(read_text(path)))
        except (OSError, ValueError) as cause:
            raise FileError(f"{path}: {cause}; remove it, and run the evaluation again") from cause
    return records


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as cause:
        raise FileError(f"{path}: cannot be read: {cause.strerror or cause}") from cause


def _append(path: Path, lines: list[str]) -> None:
    """Add lines; a line torn by a kill is ended first."""
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
        with os.fdopen(os.open(path, flags, 0o600), "ab+") as file:
            torn = file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
            file.write(("\n" * bool(torn) + "".join(f"{line}\n" for line in lines)).encode("utf-8"))
    except OSError as cause:
        raise FileError(f"{path}: cannot be written: {cause.strerror or cause}") from cause


def _named(line: str) -> str | None:
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry.get("sample") if isinstance(entry, Mapping) else None


log = logging.getLogger(__name__)

Attempt = tuple[Prediction | str, float]
"""A prediction, or why there is none, and the seconds it took."""
SampleScores = tuple[Figures | str, float]
"""The scores of a sample, or why there are none, and the seconds they and the prediction took."""


def run_task(
    task: Task,
    folder: str | os.PathLike[str],
    *,
    executor: Executor | None = None,
    progress: Progress = iter,
    overwrite: bool = False,
) -> Record:
    """Run a task and return its record, which is also kept below ``folder``.

    ``executor`` predicts several samples at once; its workers must be able to receive ``task.predict``. ``overwrite``
    forgets what was kept of these samples. A sample whose prediction or score raises a SfumatoError is left out and
    named in the record; a library that is missing ends the run. Where nothing was left to do, the record is the old
    one: it says which code made the figures, not which code used them again.

    Raises FileError if the folder cannot be written, WorkerError if a worker of the executor dies.
    """
    results = Results(folder, task)
    if overwrite:
        results.forget(task.samples)
    before = results.scores()
    dropped = predict(task, folder, executor=executor, progress=progress)
    figures, seconds = _score_all(task, results, dropped)
    record = Record(
        task=task.name,
        scores=tuple(task.summarise(figures)),
        params={**task.params, **task.facts},
        seed=task.seed,
        data=task.data_digest,
        commit=code_version(),
        machine=describe_machine(),
        seconds=seconds,
        dropped=tuple(f"{sample.key}: {dropped[sample.key]}" for sample in task.samples if sample.key in dropped),
    )
    previous = results.record()
    is_new = any(sample not in before for sample in task.samples if sample.key not in dropped)
    if previous is not None and not is_new and (previous.scores, previous.dropped) == (record.scores, record.dropped):
        if previous.params == record.params:
            return previous
        record = replace(previous, params=record.params)  # of a version that wrote fewer facts
    results.save_record(record)
    return record


def predict(
    task: Task,
    folder: str | os.PathLike[str],
    samples: Iterable[Sample] | None = None,
    *,
    executor: Executor | None = None,
    progress: Progress = iter,
) -> dict[str, str]:
    """Make the predictions that are missing, by default of all samples; return why samples failed, by key.

    For tasks that share something costly: predict samples of each task in turn, then run them.
    """
    results = Results(folder, task)
    scored = results.scores()
    candidates = task.samples if samples is None else samples
    missing = [one for one in candidates if one not in scored and not results.prediction_path(one).exists()]
    dropped: dict[str, str] = {}
    for sample, (outcome, seconds) in progress(_attempts(task, missing, executor)):
        if isinstance(outcome, str):
            log.info("%s: %s is left out: %s", task.name, sample.key, outcome)
            dropped[sample.key] = outcome
        else:
            results.save_prediction(sample, outcome, seconds)
    return dropped


def measure(task: Task, folder: str | os.PathLike[str], sample: Sample) -> SampleScores | None:
    """Predict and score one sample; None where it was scored before or cannot be predicted.

    For workers: the prediction is kept in a file of its own, but scores share one, so that they are only returned;
    whoever collects them calls ``note``.
    """
    results = Results(folder, task)
    if sample in results.scores() or predict(task, folder, [sample]):
        return None
    return _scored(task, results, sample)


def note(task: Task, folder: str | os.PathLike[str], sample: Sample, measured: SampleScores) -> None:
    """Keep what ``measure`` returned; why a sample failed ``run_task`` finds out again, and records."""
    figures, seconds = measured
    if not isinstance(figures, str):
        with suppress(InputError):  # a score that is not finite: ``run_task`` records it
            Results(folder, task).add_scores(sample, figures, seconds)


def _attempts(task: Task, samples: Sequence[Sample], executor: Executor | None) -> Iterator[tuple[Sample, Attempt]]:
    """Yield every sample with what became of it, as soon as it is known."""
    if executor is None:
        yield from ((sample, _attempt(task.predict, sample)) for sample in samples)
        return
    futures = {executor.submit(_attempt, task.predict, sample): sample for sample in samples}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenExecutor as cause:
        raise WorkerError(f"{task.name}: a worker died; what was finished is kept, run it again") from cause
    finally:
        for future in futures:
            future.cancel()


def _attempt(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Return what the work gives, or as a text why it failed, and the seconds it took."""
    start = time.perf_counter()
    try:
        outcome = work(*arguments)
    except MissingDependency:
        raise
    except SfumatoError as problem:
        outcome = str(problem) or type(problem).__name__
    return outcome, time.perf_counter() - start


def _score_all(task: Task, results: Results, dropped: dict[str, str]) -> tuple[dict[str, Figures], float]:
    """Return the scores of all samples, by key in their order, and the seconds they took; add to ``dropped``."""
    known = results.scores()
    figures: dict[str, Figures] = {}
    total = 0.0
    for sample in task.samples:
        if sample.key in dropped:
            continue
        outcome, seconds = known[sample] if sample in known else _score_one(task, results, sample)
        if isinstance(outcome, str):
            log.info("%s: %s is left out: %s", task.name, sample.key, outcome)
            dropped[sample.key] = outcome
        else:
            figures[sample.key] = outcome
            total += seconds
    return figures, total


def _score_one(task: Task, results: Results, sample: Sample) -> tuple[dict[str, float] | str, float]:
    """Score one sample and keep the scores, or say why it cannot be scored."""
    outcome, seconds = _scored(task, results, sample)
    if isinstance(outcome, str):
        return outcome, seconds
    try:
        return results.add_scores(sample, outcome, seconds), seconds
    except InputError as problem:  # a score that is no finite number
        return str(problem), seconds


def _scored(task: Task, results: Results, sample: Sample) -> SampleScores:
    """Score one sample, or say why it cannot be; a damaged prediction is named and made anew."""
    try:
        prediction, seconds = results.load_prediction(sample)
    except FileError as damage:
        log.warning("%s; it is made anew", damage)
        outcome, seconds = _attempt(task.predict, sample)
        if isinstance(outcome, str):
            return outcome, seconds
        results.save_prediction(sample, outcome, seconds)
        prediction = outcome
    try:
        figures, more = _attempt(task.score, sample, prediction)
    except (KeyError, IndexError, TypeError, ValueError) as cause:
        raise FileError(
            f"{results.prediction_path(sample)}: this prediction is not what {task.name} makes: remove it"
        ) from cause
    return figures, seconds + more


@lru_cache(maxsize=1)
def code_version() -> str:
    """Return the commit of the package's repository, "-dirty" if changed since, or else the version of the package."""
    package = Path(__file__).resolve().parent.parent
    calls = (("ls-files", "--error-unmatch", "__init__.py"),  # a repository that only surrounds us is not ours
             ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"))  # fmt: skip
    version = ""
    for arguments in calls:
        try:
            done = subprocess.run(
                ["git", *arguments],
                cwd=package,
                env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
                capture_output=True,
                text=True,
                timeout=30,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return f"sfumato {__version__}"
        version = done.stdout.strip()
    return version


def run_tasks(
    tasks: Sequence[Task],
    folder: str | Path,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    overwrite: bool = False,
    by_sample: bool = False,
) -> list[Record]:
    """Run tasks one after the other; return their records, which are also kept below ``folder``.

    What was measured before is not measured again, unless ``overwrite`` forgets it. With ``by_sample`` all tasks, of
    equally many samples, predict one sample before the next, so that its data is read once. Raises FileError if the
    folder cannot be written.
    """
    if overwrite:
        for task in tasks:
            Results(folder, task).forget(task.samples)
    if by_sample and tasks:
        for number, task in progress([(number, task) for number in range(len(tasks[0].samples)) for task in tasks]):
            predict(task, folder, [task.samples[number]])
    else:
        for task in progress(tasks):
            predict(task, folder)
    return [run_task(task, folder) for task in tasks]


def figure_by_figure(counted: str) -> Callable[[Mapping[str, Figures]], list[Score]]:
    """Return a summary that makes every figure a score, but ``counted``, the number of samples behind them."""

    def summarise(figures: Mapping[str, Figures]) -> list[Score]:
        return [
            Score(name, value, samples=int(row[counted]))
            for row in figures.values()
            for name, value in row.items()
            if name != counted
        ]

    return summarise
