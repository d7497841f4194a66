# SPDX-License-Identifier: Apache-2.0
"""Patch inverter: a picture from keypoints and descriptors, by trained networks, in numpy alone.

A network gives the patch around each keypoint, their gradients are averaged and integrated, and a second network
refines and colours. It sees keypoints (x, y, sigma, angle), rows of numbers, and the size of the picture; never the
picture. An inverter belongs to one kind of descriptor, and to one recipe: ``raw`` inverts clear descriptors, or an
attack's guesses at them; any other takes the canonical form of concealed ones.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import FileError, InputError, MissingDependency, SfumatoError, need
from sfumato.files.tensors import checked_arrays, load_checkpoint, save_checkpoint
from sfumato.inversion import refine
from sfumato.inversion.paint import PATCH_SIDE, Painting, PaintParams, paint
from sfumato.types.arrays import frozen_array
from sfumato.types.extractor import is_label
from sfumato.types.recipe import Recipe

Floats = NDArray[np.float32]

# --- the patch network: a small perceptron, run by numpy, trained by torch
#
# It takes one row of numbers (a descriptor of any kind, or the canonical form of a subspace) and the logarithm of
# sigma, and gives a patch of mean 0 and deviation about 1, and the logarithm of its contrast.


OUTPUTS = PATCH_SIDE**2 + 1
ROWS_AT_ONCE = 4096


def shapes(input_dim: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a network by name: three layers, and how inputs and contrast are scaled."""
    return {
        "patch.mean": (input_dim + 1,),
        "patch.deviation": (input_dim + 1,),
        "patch.contrast": (1,),
        "patch.0.weight": (hidden, input_dim + 1),
        "patch.0.bias": (hidden,),
        "patch.1.weight": (hidden, hidden),
        "patch.1.bias": (hidden,),
        "patch.2.weight": (OUTPUTS, hidden),
        "patch.2.bias": (OUTPUTS,),
    }


def predict_patches(tensors: Mapping[str, Floats], inputs: Floats, sigmas: Floats) -> Floats:
    """Return patches (N, 24, 24) in units of brightness, for inputs (N, d) and sigmas (N,) of keypoints."""
    patches = np.empty((len(inputs), PATCH_SIDE, PATCH_SIDE), np.float32)
    for start in range(0, len(inputs), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        values = scaled(tensors, inputs[rows], sigmas[rows])
        for layer in range(3):
            values = values @ tensors[f"patch.{layer}.weight"].T + tensors[f"patch.{layer}.bias"]
            if layer < 2:
                np.maximum(values, 0, out=values)
        contrasts = np.exp(np.clip(values[:, -1] + tensors["patch.contrast"], -7, 0))
        patches[rows] = (values[:, :-1] * contrasts[:, None]).reshape(-1, PATCH_SIDE, PATCH_SIDE)
    return patches


def scaled(tensors: Mapping[str, Floats], inputs: Floats, sigmas: Floats) -> Floats:
    """Return inputs (N, d) with log sigma, (N, d + 1), each of about mean 0 and deviation 1 over the training data."""
    rows = np.concatenate([inputs, np.log(np.maximum(sigmas, 1e-3))[:, None]], axis=1)
    values: Floats = ((rows - tensors["patch.mean"]) / tensors["patch.deviation"]).astype(np.float32)
    return values


def build(input_dim: int, hidden: int) -> Any:
    """Return the torch network, (N, d + 1) scaled inputs to (N, 577); its parameters are named as in ``shapes``."""
    nn: Any = need("torch", extra="learn").nn
    return nn.Sequential(
        nn.Linear(input_dim + 1, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, OUTPUTS)
    )


def tensors_of(network: Any) -> dict[str, Floats]:
    """Return the parameters of a torch network by the names of ``shapes``."""
    tensors = {}
    for layer in range(3):
        for part in ("weight", "bias"):
            tensors[f"patch.{layer}.{part}"] = getattr(network[2 * layer], part).detach().cpu().numpy().copy()
    return tensors


# --- files of patch inverters; the header is checked before anything else is read


KIND = "patch inverter"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class InverterHeader:
    """Header of an inverter's file.

    ``refine`` lists the channels of the refinement, none without one; ``frame`` is the dimension n of the gauge of
    canonical forms, 0 for clear descriptors; ``made`` describes its training, with its figures.
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
        tensors = shapes(self.input_dim, self.hidden)
        if self.refine:
            tensors |= refine.shapes(self.refine)
        return tensors | ({"frame": (self.frame, self.frame)} if self.frame else {})


def save_weights(path: str | os.PathLike[str], header: InverterHeader, tensors: Mapping[str, Floats]) -> None:
    """Write an inverter, atomically, with 16 bits per number.

    Raises FileError if it cannot be written.
    """
    facts = asdict(header) | {"kind": KIND, "version": VERSION, "refine": list(header.refine)}
    half = {name: np.asarray(tensors[name], np.float16) for name in header.shapes()}
    save_checkpoint(path, half, facts)


def load_weights(path: str | os.PathLike[str]) -> tuple[InverterHeader, dict[str, Floats]]:
    """Read what ``save_weights`` wrote; numbers come as float32.

    Raises FileError for a missing, damaged or hostile file, one of another kind, or of a newer version.
    """
    arrays, facts = load_checkpoint(path, KIND)
    version = facts.get("version")
    if type(version) is not int or version != VERSION:
        raise FileError(f"{path}: it has version {version!r:.20}, this program reads version {VERSION}: update it")
    header = _checked(facts, path)
    return header, checked_arrays(arrays, header.shapes(), path)


def _checked(facts: Mapping[str, Any], path: object) -> InverterHeader:
    problems = [f"{name} must be a short text" for name in ("extractor", "recipe") if not is_label(facts.get(name))]
    problems += _integer_problems(facts, "input_dim", 1, 65_536) + _integer_problems(facts, "hidden", 1, 65_536)
    problems += _integer_problems(facts, "frame", 0, 8192)
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
    return InverterHeader(**settled, refine=tuple(levels or ()), paint=PaintParams(**paint or {}), made=made or {})


def _integer_problems(facts: Mapping[str, Any], name: str, low: int, high: int) -> list[str]:
    value = facts.get(name)
    fits = type(value) is int and low <= value <= high
    return [] if fits else [f"{name} must be a whole number from {low} to {high}"]


def _in(value: Any, low: float, high: float) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and low <= value <= high


# --- the inverter


BUNDLED = "inverter-sift.safetensors"
LARGEST_SIDE = 32_000


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Inverter:
    """A trained inverter.

    ``extractor_name`` and ``recipe`` say what it takes: rows of ``input_dim`` numbers. ``frame`` (n, n) float32 is the
    gauge of canonical forms, None for clear descriptors. ``made`` describes its training, with its figures.
    """

    extractor_name: str
    recipe: str
    input_dim: int
    frame: Floats | None
    made: Mapping[str, Any]
    tensors: Mapping[str, Floats]
    paint_params: PaintParams
    depth: int  # levels of the refinement, 0 without one

    @property
    def is_blind(self) -> bool:
        """Whether it paints from keypoints alone: the one number of each row is constant."""
        return self.input_dim == 1

    def __repr__(self) -> str:
        of = "keypoints" if self.is_blind else self.recipe
        return f"Inverter({of} of {self.extractor_name}, {self.input_dim} numbers)"


def load_inverter(path: str | os.PathLike[str] | None = None) -> Inverter:
    """Read an inverter made by ``sfumato train inverter``; without a path, the bundled one for clear SIFT.

    Raises FileError for a file that is missing, damaged, hostile, or something else.
    """
    return inverter_of(*load_weights(network_folder() / BUNDLED if path is None else path))


def network_folder() -> Path:
    """Return the folder of the networks that come with Sfumato, which are a package of their own.

    Raises MissingDependency without that package.
    """
    spec = find_spec("sfumato_networks")
    if spec is None or spec.origin is None:
        raise MissingDependency(
            "this needs the attack networks, which are not installed: pip install 'sfumato[audit]', "
            "or in a clone: pip install ./networks"
        )
    return Path(spec.origin).parent


def inverter_of(header: InverterHeader, tensors: Mapping[str, Floats]) -> Inverter:
    """Return the inverter of a header and its tensors."""
    return Inverter(
        extractor_name=header.extractor,
        recipe=header.recipe,
        input_dim=header.input_dim,
        frame=tensors.get("frame"),
        made=header.made,
        tensors=tensors,
        paint_params=header.paint,
        depth=len(header.refine),
    )


def check_fits(inverter: Any, extractor_name: str) -> None:
    """Raise InputError if an inverter is for another kind of descriptor; ``unknown`` fits all."""
    if "unknown" not in (extractor_name, inverter.extractor_name) and extractor_name != inverter.extractor_name:
        raise InputError(
            f"this inverter is for {inverter.extractor_name}, these descriptors are {extractor_name}: train one for "
            f"them with sfumato train inverter, or give another file"
        )


def invert_rows(inverter: Inverter, keypoints: ArrayLike, inputs: ArrayLike, size: tuple[int, int]) -> Floats:
    """Return the picture (H, W, 3) float32, values 0 to 1, of rows ``inputs`` (N, input_dim) at keypoints (N, 4).

    ``size`` is (width, height). Without keypoints it is the picture of an empty painting.

    Raises InputError for arrays that do not fit.
    """
    painted = paint_rows(inverter, keypoints, inputs, size)
    if not inverter.depth:
        return np.clip(np.repeat(painted.picture[:, :, None], 3, axis=2), 0, 1)
    return np.clip(refine.refine(inverter.tensors, painted.channels, inverter.depth), 0, 1)


def paint_rows(inverter: Inverter, keypoints: ArrayLike, inputs: ArrayLike, size: tuple[int, int]) -> Painting:
    """Return the painting before it is refined."""
    width, height = size
    if not 1 <= min(width, height) <= max(width, height) <= LARGEST_SIDE:
        raise InputError(f"a picture must have sides from 1 to {LARGEST_SIDE} pixels, got {width} x {height}")
    places = frozen_array(keypoints, "keypoints", (None, 4))
    rows = frozen_array(inputs, "inputs", (len(places), inverter.input_dim))
    usable = places[:, 2] > 0
    patches = predict_patches(inverter.tensors, rows[usable], places[usable, 2])
    return paint(places[usable], patches, size, inverter.paint_params)


def floor_input(inverter: Inverter) -> Floats:
    """Return the constant row (input_dim,) for the floor: the mean over the training."""
    mean: Floats = inverter.tensors["patch.mean"][:-1].copy()
    return mean
