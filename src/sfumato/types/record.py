# SPDX-License-Identifier: Apache-2.0
"""What ran, on what, with which result: the only thing a report reads."""

import json
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

from sfumato.errors import InputError

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Score:
    """One figure: what was measured, the value, its unit, and how many samples stand behind it."""

    name: str
    value: float
    unit: str = ""
    samples: int = 1

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("score: needs a name")
        if not math.isfinite(self.value):
            raise InputError(f"score {self.name}: the value is not finite; leave the score out and say why in dropped")


@dataclass(frozen=True, slots=True)
class Record:
    """One measured result: parameters, seed, data, code, machine, time, dropped samples and scores."""

    task: str
    scores: tuple[Score, ...]
    params: Mapping[str, Value] = field(default_factory=dict)
    seed: int | None = None
    data: str = ""
    commit: str = ""
    machine: Mapping[str, Value] = field(default_factory=dict)
    seconds: float = 0.0
    dropped: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the record as readable JSON."""
        return json.dumps(asdict(self), indent=2, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Record":
        """Read what ``to_json`` wrote."""
        try:
            data: Any = json.loads(text)
            scores = tuple(Score(**score) for score in data.pop("scores"))
            return cls(scores=scores, dropped=tuple(data.pop("dropped", ())), **data)
        except (ValueError, TypeError, KeyError, AttributeError) as cause:
            raise InputError(f"not a record: {cause}") from cause


def describe_machine() -> dict[str, Value]:
    """Return what a figure needs to be read rightly: processor, cores, system and library versions."""
    versions: dict[str, Value] = {}
    for name in ("numpy", "opencv-python-headless", "faiss-cpu", "h5py"):
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
