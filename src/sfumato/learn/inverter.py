# SPDX-License-Identifier: Apache-2.0
"""What somebody sees who has keypoints and descriptors: a picture, by a trained inverter, in numpy alone.

Knows keypoints (x, y, sigma, angle), rows of numbers, and the size of the picture; never the picture. A network gives
the patch around each keypoint, their gradients are averaged and integrated, and a second network refines and colours.
An inverter belongs to one kind of descriptor, and to one recipe: ``raw`` inverts clear descriptors, or what an attack
took for them; any other takes the canonical form of concealed ones.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError
from sfumato.learn import patchnet, refine
from sfumato.learn.metrics import GREY
from sfumato.learn.paint import Painted, PaintParams, paint
from sfumato.learn.weights import Header, load_weights
from sfumato.types.arrays import frozen_array

Floats = NDArray[np.float32]

BUNDLED = "inverter-sift.safetensors"
LARGEST_SIDE = 32_000


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Inverter:
    """A trained inverter.

    ``extractor_name`` and ``recipe`` say what it takes: rows of ``input_dim`` numbers. ``frame`` (n, n) float32 is the
    gauge of canonical forms, None for clear descriptors. ``made`` tells how it was trained, with its figures.
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
        """Whether it paints from keypoints alone: the one number of each row says nothing."""
        return self.input_dim == 1

    def __repr__(self) -> str:
        of = "keypoints" if self.is_blind else self.recipe
        return f"Inverter({of} of {self.extractor_name}, {self.input_dim} numbers)"


def load_inverter(path: str | os.PathLike[str] | None = None) -> Inverter:
    """Read an inverter made by ``sfumato train inverter``; without a path, the bundled one for clear SIFT.

    Raises FileError for a file that is missing, damaged, hostile, or something else.
    """
    if path is None:
        with resources.as_file(resources.files("sfumato.learn") / "data" / BUNDLED) as place:
            return load_inverter(place)
    return inverter_of(*load_weights(path))


def inverter_of(header: Header, tensors: Mapping[str, Floats]) -> Inverter:
    """Return the inverter that a header and its tensors are."""
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


def invert(inverter: Inverter, keypoints: ArrayLike, inputs: ArrayLike, size: tuple[int, int]) -> Floats:
    """Return the picture (H, W, 3) float32, values 0 to 1, seen in rows ``inputs`` (N, input_dim) at keypoints (N, 4).

    ``size`` is (width, height). Without keypoints the picture is what the network makes of nothing.

    Raises InputError for arrays that do not fit.
    """
    painted = paint_rows(inverter, keypoints, inputs, size)
    if not inverter.depth:
        return np.clip(np.repeat(painted.picture[:, :, None], 3, axis=2), 0, 1)
    return np.clip(refine.refine(inverter.tensors, painted.channels, inverter.depth), 0, 1)


def invert_grey(inverter: Inverter, keypoints: ArrayLike, inputs: ArrayLike, size: tuple[int, int]) -> Floats:
    """Return the picture in grey (H, W) float32, values 0 to 1, as ``invert`` does in colour."""
    return invert(inverter, keypoints, inputs, size) @ np.asarray(GREY, np.float32)


def paint_rows(inverter: Inverter, keypoints: ArrayLike, inputs: ArrayLike, size: tuple[int, int]) -> Painted:
    """Return the painting before it is refined."""
    width, height = size
    if not 1 <= min(width, height) <= max(width, height) <= LARGEST_SIDE:
        raise InputError(f"a picture must have sides from 1 to {LARGEST_SIDE} pixels, got {width} x {height}")
    places = frozen_array(keypoints, "keypoints", (None, 4))
    rows = frozen_array(inputs, "inputs", (len(places), inverter.input_dim))
    usable = places[:, 2] > 0
    patches = patchnet.predict_patches(inverter.tensors, rows[usable], places[usable, 2])
    return paint(places[usable], patches, size, inverter.paint_params)


def floor_input(inverter: Inverter) -> Floats:
    """Return the constant row (input_dim,) for the floor: the mean over the training, which tells nothing."""
    mean: Floats = inverter.tensors["patch.mean"][:-1].copy()
    return mean
