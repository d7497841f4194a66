# SPDX-License-Identifier: Apache-2.0
"""Records of what ran, on which machine and with which result. Reports read nothing else; no descriptor is in them."""

import json
import math
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from importlib import metadata
from numbers import Real
from types import MappingProxyType
from typing import Any

from sfumato.errors import InputError

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Score:
    """One figure: what was measured, the value, its unit, and how many samples stand behind it.

    >>> Score("accuracy", 0.5, samples=40).value
    0.5
    """

    name: str
    value: float
    unit: str = ""
    samples: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError("score: needs a name")
        value: Any = self.value
        if isinstance(value, bool) or not isinstance(value, Real):
            raise InputError(f"score {self.name}: the value is no number but {type(value).__name__}")
        if not math.isfinite(value):
            raise InputError(f"score {self.name}: the value is not finite; leave the score out and say why in dropped")
        object.__setattr__(self, "value", float(value))
        if not isinstance(self.unit, str) or not isinstance(self.samples, int) or self.samples < 0:
            raise InputError(f"score {self.name}: expected a text as unit and a count of samples")


@dataclass(frozen=True, slots=True, repr=False)
class Record:
    """One measured result: parameters, seed, data, code, machine, time, dropped samples and scores.

    ``params`` and ``machine`` map names to plain values. ``dropped`` names the samples that gave no score.

    Raises InputError naming all that is wrong at once.
    """

    task: str
    scores: tuple[Score, ...]
    params: Mapping[str, Value] = field(default_factory=dict, hash=False)
    seed: int | None = None
    data: str = ""
    commit: str = ""
    machine: Mapping[str, Value] = field(default_factory=dict, hash=False)
    seconds: float = 0.0
    dropped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be {wanted}"
            for name, good, wanted in (
                ("task", isinstance(self.task, str) and bool(self.task), "a text"),
                ("scores", _all(self.scores, Score), "a list of Score values"),
                ("params", _is_plain(self.params), "a mapping of names to texts, finite numbers or None"),
                ("seed", self.seed is None or type(self.seed) is int, "an integer or None"),
                ("data", isinstance(self.data, str), "a text"),
                ("commit", isinstance(self.commit, str), "a text"),
                ("machine", _is_plain(self.machine), "a mapping of names to texts, finite numbers or None"),
                ("seconds", _is_value(self.seconds, int | float), "a finite number"),
                ("dropped", _all(self.dropped, str), "a list of texts"),
            )
            if not good
        ]
        if problems:
            raise InputError(f"record: {'; '.join(problems)}")
        for name, value in (
            ("scores", tuple(self.scores)),
            ("params", MappingProxyType(dict(self.params))),
            ("machine", MappingProxyType(dict(self.machine))),
            ("dropped", tuple(self.dropped)),
        ):
            object.__setattr__(self, name, value)

    def to_json(self) -> str:
        """Return the record as readable JSON."""
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        data |= {"params": dict(self.params), "machine": dict(self.machine)}
        data["scores"] = [asdict(score) for score in self.scores]
        return json.dumps(data, indent=2, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Record":
        """Read what ``to_json`` wrote; anything else is an InputError."""
        try:
            data: Any = json.loads(text)
            return cls(scores=tuple(Score(**score) for score in data.pop("scores")), **data)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as cause:
            raise InputError(f"not a record: {cause}") from cause

    def __repr__(self) -> str:
        return f"Record({self.task!r}, {len(self.scores)} scores, {len(self.dropped)} dropped)"


class AttackRole(StrEnum):
    """What an attack is to a verdict, beside counting in it or not."""

    ORDINARY = ""
    SCALE = "scale"  # the two ends that leakage is measured between
    KEYPOINTS = "keypoints"  # sees where keypoints are, and no descriptor
    INVERTER = "inverter"  # an inverter trained on what the recipe releases
    DECODER = "decoder"  # a decoder trained to undo the recipe
    ALIGNMENT = "alignment"  # of all sealed codes, without the key
    BOUND = "bound"  # the same, given the answer by an oracle
    KNOWN_PAIRS = "known pairs"  # has features with their codes under the key


ENOUGH_CODES = 16_000
"""Codes of one key, about those of twenty photos: an alignment that fails with fewer is no evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackFacts:
    """What the record of an attack says to its readers; the registry of attacks writes it, reports read it.

    ``title``: the attack and, unless it is the usual one, the inverter. ``about``: what the attacker does and has.
    ``counts``: whether it takes part in the worst case. ``trained``: whether a network trained on what this recipe
    releases is part of it. No result depends on any of them.
    """

    title: str
    about: str = "no description"
    counts: bool = True
    role: AttackRole = AttackRole.ORDINARY
    trained: bool = False

    @property
    def params(self) -> dict[str, Value]:
        """The facts as parameters of a record."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def of(cls, params: Mapping[str, Value]) -> "AttackFacts":
        """Read the facts of a record; where it has none, the name of the attack is all that is known."""
        values: dict[str, Any] = {one.name: params[one.name] for one in fields(cls) if one.name in params}
        try:
            role = AttackRole(values.get("role", ""))
        except ValueError:
            role = AttackRole.ORDINARY  # of a later version
        return cls(**{"title": str(params.get("attack")), **values, "role": role})


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Picture:
    """A picture that belongs to records: what it ``shows``, of which photo, recipe and attack, and its file's bytes.

    ``media`` is the type of the file, as in image/webp. Names are empty where they do not apply.
    """

    shows: str
    content: bytes
    media: str
    photo: str = ""
    recipe: str = ""
    attack: str = ""

    def __post_init__(self) -> None:
        texts = (self.shows, self.media, self.photo, self.recipe, self.attack)
        if not all(isinstance(text, str) for text in texts) or not self.shows or not isinstance(self.content, bytes):
            raise InputError("picture: expected what it shows, its media type and its names as texts, and bytes")
        if not re.fullmatch("image/[a-z0-9.+-]+", self.media):
            raise InputError(f"picture: expected a media type such as image/webp, got {self.media!r:.80}")

    def __repr__(self) -> str:
        return f"Picture({self.shows!r}, {len(self.content)} bytes)"


def _is_value(value: Any, kind: Any = str | int | float | None) -> bool:
    return isinstance(value, kind) and (not isinstance(value, float) or math.isfinite(value))


def _is_plain(mapping: Any) -> bool:
    return isinstance(mapping, Mapping) and all(isinstance(k, str) and _is_value(v) for k, v in mapping.items())


def _all(values: Any, kind: type) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, kind) for value in values)


def describe_machine() -> dict[str, Value]:
    """Return the machine behind a figure: processor, cores, system and library versions."""
    versions: dict[str, Value] = {}
    for name in ("numpy", "opencv-python-headless", "faiss-cpu", "h5py", "pycolmap", "torch", "kornia"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **versions,
    }


def _processor() -> str:
    """Return the processor's model name where the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
