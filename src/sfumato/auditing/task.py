# SPDX-License-Identifier: Apache-2.0
"""Tasks of evaluations: samples, and the three steps predict, score and summarise; digests that name them."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError
from sfumato.types.extractor import is_label
from sfumato.types.record import Record, Score, Value

Prediction = Mapping[str, NDArray[Any]]
"""Prediction for a sample, as named arrays: matches, poses, decisions. Never a descriptor or another clear value."""

Figures = Mapping[str, float]
"""The scores of one sample."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One thing to measure on: a name, and a digest of all the data that decides its result."""

    key: str
    digest: str

    def __post_init__(self) -> None:
        if not is_label(self.key) or not is_label(self.digest):
            raise InputError(f"sample: expected a short name and a digest, got {self.key!r:.80}, {self.digest!r:.80}")

    @property
    def file_name(self) -> str:
        """A name for files about this sample, different for every key and digest."""
        return f"{re.sub('[^A-Za-z0-9._-]+', '_', self.key)[:80]}--{short_digest(self.key, self.digest)}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Task:
    """A measurement in three steps, each of which can be run again by itself.

    ``predict`` does the work on one sample and gives arrays; ``score`` turns them into figures; ``summarise`` turns the
    figures of all samples, by key, into the scores of the record. ``params`` and ``seed`` are all that decides a
    prediction beside the sample; ``version`` counts the changes of what ``predict`` does, ``score_version`` those of
    ``score``: raise it, and older results are not used. ``facts`` also stand among the parameters of the record, for
    its readers; no result depends on them.
    """

    name: str
    samples: Sequence[Sample]
    predict: Callable[[Sample], Prediction]
    score: Callable[[Sample, Prediction], Figures]
    summarise: Callable[[Mapping[str, Figures]], Sequence[Score]]
    params: Mapping[str, Value] = field(default_factory=dict)
    seed: int | None = None
    version: int = 1
    score_version: int = 1
    facts: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch("[a-z0-9][a-z0-9-]*", self.name):
            raise InputError(f"task: the name is made of small letters, digits and '-', got {self.name!r:.80}")
        Record(task=self.name, scores=(), params={**self.params, **self.facts}, seed=self.seed)  # checks them
        twice = [key for key, count in Counter(sample.key for sample in self.samples).items() if count > 1]
        if twice:
            raise InputError(
                f"task {self.name}: {len(twice)} samples have the same name, the first is {twice[0]!r:.80}"
            )

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides a prediction, beside the sample."""
        return {"task": self.name, "version": self.version, "params": dict(self.params), "seed": self.seed}

    @property
    def settings_digest(self) -> str:
        """A short digest of ``settings``."""
        return short_digest(self.settings)

    @property
    def data_digest(self) -> str:
        """A short digest of all samples, whatever their order."""
        return short_digest(sorted([sample.key, sample.digest] for sample in self.samples))

    def __repr__(self) -> str:
        return f"Task({self.name!r}, {len(self.samples)} samples)"


def short_digest(*values: Any) -> str:
    """Return 16 hexadecimal digits for plain values: texts, numbers, lists and mappings of them."""
    text = json.dumps(values, sort_keys=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def digest_data(*parts: Path | bytes | NDArray[Any]) -> str:
    """Return 32 hexadecimal digits for the contents of files, bytes and arrays, each with its length."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, Path):
            try:
                content = part.read_bytes()
            except OSError as cause:
                raise FileError(f"{part}: cannot be read: {cause.strerror or cause}") from cause
        elif isinstance(part, bytes):
            content = part
        else:
            little = np.ascontiguousarray(part.astype(part.dtype.newbyteorder("<")))
            content = f"{little.dtype.str}{little.shape}".encode() + little.tobytes()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()
