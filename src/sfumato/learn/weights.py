# SPDX-License-Identifier: Apache-2.0
"""Files of trained patch inverters: what their header says, checked before anything is used.

Knows names, shapes and settings, not what a network does with them; the container is that of ``checkpoint``. The header
names the extractor whose descriptors the inverter takes, the recipe they were released under, how patches are painted,
and how the training went.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, SfumatoError
from sfumato.learn import patchnet, refine
from sfumato.learn.checkpoint import checked_arrays, load_checkpoint, save_checkpoint
from sfumato.learn.paint import PaintParams
from sfumato.types.extractor import is_label
from sfumato.types.recipe import Recipe

Floats = NDArray[np.float32]

KIND = "patch inverter"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a file says about its inverter.

    ``refine`` lists the channels of the refinement, none without one; ``frame`` is the dimension n of the gauge of
    canonical forms, 0 for clear descriptors; ``made`` tells how it was trained, with its figures.
    """

    extractor: str
    recipe: str
    input_dim: int
    hidden: int
    refine: tuple[int, ...] = ()
    frame: int = 0
    paint: PaintParams = field(default_factory=PaintParams)
    made: Mapping[str, Any] = field(default_factory=dict)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the tensors the file must hold."""
        wanted = patchnet.shapes(self.input_dim, self.hidden)
        if self.refine:
            wanted |= refine.shapes(self.refine)
        return wanted | ({"frame": (self.frame, self.frame)} if self.frame else {})


def save_weights(path: str | os.PathLike[str], header: Header, tensors: Mapping[str, Floats]) -> None:
    """Write an inverter, atomically, with 16 bits a number.

    Raises FileError if it can not be written.
    """
    facts = asdict(header) | {"kind": KIND, "version": VERSION, "refine": list(header.refine)}
    half = {name: np.asarray(tensors[name], np.float16) for name in header.shapes()}
    save_checkpoint(path, half, facts)


def load_weights(path: str | os.PathLike[str]) -> tuple[Header, dict[str, Floats]]:
    """Read what ``save_weights`` wrote; numbers come as float32.

    Raises FileError for a missing, damaged or hostile file, one of another kind, or of a newer version.
    """
    arrays, facts = load_checkpoint(path, KIND)
    version = facts.get("version")
    if type(version) is not int or version != VERSION:
        raise FileError(f"{path}: it has version {version!r:.20}, this program reads version {VERSION}: update it")
    header = _checked(facts, path)
    return header, checked_arrays(arrays, header.shapes(), path)


def _checked(facts: Mapping[str, Any], path: object) -> Header:
    problems = [f"{name} must be a short text" for name in ("extractor", "recipe") if not is_label(facts.get(name))]
    problems += _wrong_whole(facts, "input_dim", 1, 65_536) + _wrong_whole(facts, "hidden", 1, 65_536)
    problems += _wrong_whole(facts, "frame", 0, 8192)
    levels, paint, made = facts.get("refine"), facts.get("paint"), facts.get("made")
    if not isinstance(levels, list) or len(levels) > 6 or any(type(n) is not int or not 0 < n <= 4096 for n in levels):
        problems.append("refine must list up to 6 numbers of channels")
    limits = {"window": (0.1, 10), "fineness": (0, 10), "faint": (1e-9, 1e3)}
    if not isinstance(paint, dict) or set(paint) != set(limits):
        problems.append(f"paint must have {', '.join(limits)}")
    else:
        problems += [
            f"{name} is not from {a:g} to {b:g}" for name, (a, b) in limits.items() if not _in(paint[name], a, b)
        ]
    if not isinstance(made, dict):
        problems.append("made must be a mapping")
    try:
        Recipe.of(facts["recipe"] if is_label(facts.get("recipe")) else "raw")
    except SfumatoError as cause:
        problems.append(str(cause))
    if problems:
        raise FileError(f"{path}: its header is wrong: {'; '.join(problems)}")
    names = ("extractor", "recipe", "input_dim", "hidden", "frame")
    settled = {name: facts[name] for name in names}
    return Header(**settled, refine=tuple(levels or ()), paint=PaintParams(**paint or {}), made=made or {})


def _wrong_whole(facts: Mapping[str, Any], name: str, low: int, high: int) -> list[str]:
    value = facts.get(name)
    fits = type(value) is int and low <= value <= high
    return [] if fits else [f"{name} must be a whole number from {low} to {high}"]


def _in(value: Any, low: float, high: float) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and low <= value <= high
