# SPDX-License-Identifier: Apache-2.0
"""Where results are kept, so that what is finished is never done again.

    <folder>/<task>/<digest of the settings>/task.json          the settings: parameters, seed, version
                                             predictions/*.npz  one file a sample, named by its key and digest
                                             scores.jsonl       one line a sample
                                             records/*.json     one Record for each set of samples

Every file but ``scores.jsonl`` is written beside its place and then moved there; lines are only ever appended. Nothing
is pickled. What is damaged is told by a FileError, or, of lines, left out; the runner makes it anew.
"""

import json
import math
import os
import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError
from sfumato.evaluate.task import Figures, Prediction, Sample, Task
from sfumato.types.record import Record
from sfumato.whole import write_file, write_text

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
            raise FileError(f"{self.folder}: can not be made: {cause.strerror or cause}") from cause
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

        write_file(self.prediction_path(sample), write, with_folder=True)

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
        """Return the scores of every sample that has some of the present version, and the seconds they took."""
        known: dict[Sample, tuple[dict[str, float], float]] = {}
        for line in _read_lines(self.folder / "scores.jsonl"):
            try:
                told: Any = json.loads(line)
                if told["version"] == self._task.score_version:
                    figures = {str(name): float(value) for name, value in told["scores"].items()}
                    if not all(map(math.isfinite, figures.values())):
                        continue
                    known[Sample(told["sample"], told["digest"])] = figures, float(told[SECONDS])
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                continue  # torn or damaged: that sample has no score, and is scored again
        return known

    def add_scores(self, sample: Sample, figures: Figures, seconds: float) -> dict[str, float]:
        """Keep the scores of a sample, and return them as plain numbers; InputError if one is not finite."""
        plain = {name: float(value) for name, value in figures.items()}
        wrong = [name for name, value in plain.items() if not math.isfinite(value)]
        if wrong:
            raise InputError(f"{', '.join(wrong)} is not finite")
        told = {
            "sample": sample.key,
            "digest": sample.digest,
            "version": self._task.score_version,
            "seconds": seconds,
            "scores": plain,
        }
        _append(self.folder / "scores.jsonl", [json.dumps(told)])
        return plain

    def forget(self, samples: Collection[Sample]) -> None:
        """Remove the predictions and scores of some samples."""
        try:
            for sample in samples:
                self.prediction_path(sample).unlink(missing_ok=True)
        except OSError as cause:
            raise FileError(f"{self.folder}: can not be changed: {cause.strerror or cause}") from cause
        path, gone = self.folder / "scores.jsonl", {sample.key for sample in samples}
        kept = [line for line in _read_lines(path) if _named(line) not in gone]
        if path.exists():
            write_text(path, "".join(f"{line}\n" for line in kept), with_folder=True)

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

    Raises FileError for a folder that is missing, or a record that can not be read.
    """
    if not Path(folder).is_dir():
        raise FileError(f"{folder}: no such folder of results")
    records = []
    for path in sorted(Path(folder).rglob("records/*.json")):
        try:
            records.append(Record.from_json(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as cause:
            raise FileError(f"{path}: {cause}; remove it, and run the evaluation again") from cause
    return records


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as cause:
        raise FileError(f"{path}: can not be read: {cause.strerror or cause}") from cause


def _append(path: Path, lines: list[str]) -> None:
    """Add lines; a line torn by a kill is ended first."""
    try:
        with path.open("ab+") as file:
            torn = file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
            file.write(("\n" * bool(torn) + "".join(f"{line}\n" for line in lines)).encode("utf-8"))
    except OSError as cause:
        raise FileError(f"{path}: can not be written: {cause.strerror or cause}") from cause


def _named(line: str) -> str | None:
    try:
        told: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return told.get("sample") if isinstance(told, Mapping) else None
