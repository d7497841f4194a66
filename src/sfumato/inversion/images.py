# SPDX-License-Identifier: Apache-2.0
"""Image inverters: UNet, UResNet and cells, which turn a sparse map of released vectors back into a picture.

A map holds the vector of each keypoint at its pixel, 0 everywhere else (section 3.2 of the NinjaDesc paper). The first
layers work on the vectors before they are written into the map: a 1 x 1 convolution gives the same, at every pixel
instead of at every keypoint. The networks are convolutions, so a picture of any size is made at its own size. Trained
by ``training.image``; needs the extra ``learn``.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import FileError, InputError, need, suggest
from sfumato.files.tensors import checked_arrays, load_checkpoint
from sfumato.inversion import networks
from sfumato.types.arrays import frozen_array

KIND = "image inverter"
HIDDEN = 512
ENTRY = 128
"""Channels of the map, times the width: the length of the vectors that are written into it."""
LONGEST = 480
"""Larger photos are reduced to this longer side, in training and when a picture is made."""
TARGETS = ("picture", "outlines")
"""What networks learn to paint: the photo, or where it has contrast (``metrics.outlines``)."""


# --- sparse maps


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class FeaturePlaces:
    """Places of features in a map: ``rows`` (M,), ``pixels`` (M,), y * width + x, and ``offsets`` (M, 2) from those."""

    rows: NDArray[np.int64]
    pixels: NDArray[np.int64]
    size: tuple[int, int]
    offsets: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"FeaturePlaces({len(self)} features in {self.size[0]} x {self.size[1]} pixels)"


def place(
    keypoints: ArrayLike, size: tuple[int, int], *, corner: tuple[int, int] = (0, 0), every: bool = False
) -> FeaturePlaces:
    """Place keypoints (N, 4) in a window of ``size`` (width, height) pixels whose first pixel is ``corner`` (x, y).

    Places are rounded to whole pixels. Keypoints outside are left out. Where several fall on one pixel the first row,
    of features the strongest, is kept, because a map holds one vector per pixel; with ``every``, all are.
    """
    points = frozen_array(keypoints, "keypoints", (None, 4))
    width, height = size
    if width < 1 or height < 1:
        raise InputError(f"a map needs at least one pixel, got {width} x {height}")
    x = np.rint(points[:, 0].astype(np.float64)).astype(np.int64) - corner[0]
    y = np.rint(points[:, 1].astype(np.float64)).astype(np.int64) - corner[1]
    inside = np.flatnonzero((x >= 0) & (x < width) & (y >= 0) & (y < height))
    pixels = y[inside] * width + x[inside]
    if not every:
        pixels, first = np.unique(pixels, return_index=True)
        inside = inside[first]
    offsets = points[inside, :2] - np.rint(points[inside, :2])
    return FeaturePlaces(inside, pixels, (width, height), offsets.astype(np.float32))


def scatter(vectors: Any, placed: list[FeaturePlaces]) -> Any:
    """Write vectors (M, C), the rows of all maps one after the other, into a tensor of maps (B, C, H, W).

    All maps have one size. The result is laid out channels first: torch 2.13 on a processor corrupts memory in the
    gradient of a 1 x 1 convolution with a stride when channels are last.
    """
    torch: Any = need("torch", extra="learn")
    width, height = placed[0].size
    area = width * height
    flat = np.concatenate([places.pixels + number * area for number, places in enumerate(placed)])
    index = torch.from_numpy(flat).to(vectors.device)
    empty = vectors.new_zeros((len(placed) * area, vectors.shape[1]))
    filled = empty.index_copy(0, index, vectors)  # (B H W, C)
    return filled.view(len(placed), height, width, -1).permute(0, 3, 1, 2).contiguous()  # (B, C, H, W)


def in_cells(placed: FeaturePlaces) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the cell (M,) of each feature in a map of cells, and where in it the feature lies (M, 2), from -1 to 1."""
    side = networks.CELL
    y, x = np.divmod(placed.pixels, placed.size[0])
    within = np.stack([x % side, y % side], axis=1) + placed.offsets
    return y // side * (placed.size[0] // side) + x // side, ((2 * within + 1) / side - 1).astype(np.float32)


def pool(vectors: Any, placed: list[FeaturePlaces]) -> Any:
    """Add the vectors (M, C) of each cell up, in a tensor of maps (B, C, H / 4, W / 4)."""
    torch: Any = need("torch", extra="learn")
    width, height = (side // networks.CELL for side in placed[0].size)
    flat = np.concatenate([in_cells(places)[0] + number * width * height for number, places in enumerate(placed)])
    empty = vectors.new_zeros((len(placed) * width * height, vectors.shape[1]))
    filled = empty.index_add(0, torch.from_numpy(flat).to(vectors.device), vectors)
    return filled.view(len(placed), height, width, -1).permute(0, 3, 1, 2)  # channels last, which is faster here


# --- the inverter


@dataclass(frozen=True, slots=True)
class Architecture:
    """Functions that make and run a network; the sides of its maps are multiples of ``multiple``.

    ``has_cells``: it takes every feature, and where in its cell it lies; else one a pixel.
    """

    build: Callable[[int, float], Any]
    run: Callable[[Any, Any], Any]
    multiple: int
    has_cells: bool = False


ARCHITECTURES = {
    "unet": Architecture(networks.build_unet, networks.run_unet, networks.UNET_MULTIPLE),
    "uresnet": Architecture(networks.build_uresnet, networks.run_uresnet, networks.URESNET_MULTIPLE),
    "cells": Architecture(networks.build_cells, networks.run_cells, networks.CELLS_MULTIPLE, has_cells=True),
}


COUNTER = "num_batches_tracked"
"""What torch counts beside the weights, and nothing reads."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ImageInverter:
    """A trained network. ``frame`` (n, n) is that of its canonical inputs; ``facts`` describe its training.

    Inputs are brought to mean 0 and deviation 1 with ``mean`` and ``deviation`` (C,) first. ``modules`` are torch's, of
    ``cells`` arrays by name.
    """

    modules: Any
    architecture: str
    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]
    frame: NDArray[np.float32]
    facts: dict[str, Any]

    @property
    def input_dim(self) -> int:
        """Length of the vector of each keypoint."""
        return len(self.mean)

    @property
    def is_blind(self) -> bool:
        """Whether it paints from positions alone: the one number of each row is constant."""
        return self.input_dim == 1

    @property
    def scale(self) -> float:
        """Pictures are made at this part of their size, then enlarged; photos are reduced to LONGEST before."""
        return float(self.facts["params"].get("scale", 1.0))

    @property
    def target(self) -> str:
        """What it paints: ``picture``, or ``outlines``."""
        return str(self.facts["params"].get("target", TARGETS[0]))

    @property
    def extractor_name(self) -> str:
        """The kind of descriptor that was released."""
        return str(self.facts["extractor"])

    @property
    def recipe(self) -> str:
        """The recipe it inverts; raw for clear descriptors."""
        return str(self.facts["recipe"])

    def __repr__(self) -> str:
        return f"ImageInverter({self.architecture}, {self.input_dim} numbers of {self.extractor_name}, {self.recipe})"


def build_network(architecture: str, input_dim: int, width: float) -> Any:
    """Return the modules of a network: ``entry`` works on the vectors of the keypoints, ``body`` on the map."""
    nn: Any = need("torch.nn", extra="learn")
    if architecture not in ARCHITECTURES:
        hint = suggest(architecture, ARCHITECTURES)
        raise InputError(f"no architecture is called {architecture!r:.80}{hint}; there are {', '.join(ARCHITECTURES)}")
    channels = max(8, round(ENTRY * width))
    length = input_dim + 2 * ARCHITECTURES[architecture].has_cells
    entry = nn.Sequential(nn.Linear(length, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, channels))
    return nn.ModuleDict({"entry": entry, "body": ARCHITECTURES[architecture].build(channels, width)})


def run_network(modules: Any, architecture: str, vectors: Any, placed: list[FeaturePlaces]) -> Any:
    """Return pictures (B, 3, H, W) for standardised vectors (M, C) of all maps, and where they lie."""
    torch: Any = need("torch", extra="learn")
    shape = ARCHITECTURES[architecture]
    if not shape.has_cells:
        return shape.run(modules["body"], scatter(modules["entry"](vectors), placed))
    within = torch.from_numpy(np.concatenate([in_cells(places)[1] for places in placed])).to(vectors.device)
    return shape.run(modules["body"], pool(modules["entry"](torch.cat([vectors, within], dim=1)), placed))


def load_image_inverter(path: str | os.PathLike[str]) -> ImageInverter:
    """Read a network written by ``train_image_inverter``.

    Raises FileError if it is missing, damaged or of another kind; MissingDependency without the extra ``learn``, which
    networks of ``cells`` do not need.
    """
    arrays, facts = load_checkpoint(path, KIND)
    try:
        architecture, width, dim = facts["params"]["architecture"], float(facts["params"]["width"]), facts["input_dim"]
        n, scale = len(arrays["frame"]), float(facts["params"].get("scale", 1.0))
        if architecture not in ARCHITECTURES or not 0 < width <= 4 or not 0 < scale <= 1:
            raise ValueError("settings that no training has")
        if facts["params"].get("target", TARGETS[0]) not in TARGETS:
            raise ValueError("settings that no training has")
        if not isinstance(dim, int) or not 0 < dim < 2**20:
            raise ValueError("settings that no training has")
        str(facts["recipe"]), str(facts["extractor"])
    except (KeyError, TypeError, ValueError) as cause:
        raise FileError(f"{path}: not a usable image inverter: its facts are incomplete ({cause})") from cause
    own = {"mean": (dim,), "deviation": (dim,), "frame": (n, n)}
    arrays = {name: value for name, value in arrays.items() if not name.endswith(COUNTER)}
    modules: Any
    if ARCHITECTURES[architecture].has_cells:
        modules = tensors = checked_arrays(arrays, {**cell_shapes(dim, width), **own}, path)
        return ImageInverter(modules, architecture, tensors["mean"], tensors["deviation"], tensors["frame"], facts)
    torch: Any = need("torch", extra="learn")
    with torch.random.fork_rng(devices=[]):
        modules = build_network(architecture, dim, width)
    state = {name: value for name, value in modules.state_dict().items() if not name.endswith(COUNTER)}
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    tensors = checked_arrays(arrays, {**shapes, **own}, path)
    weights = {name: torch.from_numpy(tensors[name]).to(state[name].dtype) for name in state}
    modules.load_state_dict(weights, strict=False)
    modules.eval().requires_grad_(False)
    return ImageInverter(modules, architecture, tensors["mean"], tensors["deviation"], tensors["frame"], facts)


def cell_shapes(input_dim: int, width: float) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of a network of cells, by their names: what torch calls its modules."""
    channels, levels = max(8, round(ENTRY * width)), [max(8, round(one * width)) for one in networks.CELL_LEVELS]
    shapes: dict[str, tuple[int, ...]] = {
        "entry.0.weight": (HIDDEN, input_dim + 2), "entry.0.bias": (HIDDEN,), "entry.2.weight": (channels, HIDDEN),
        "entry.2.bias": (channels,), "body.last.weight": (3 * networks.CELL**2, levels[0], 1, 1),
        "body.last.bias": (3 * networks.CELL**2,),
    }  # fmt: skip
    down = zip([channels, *levels[:-1]], levels, strict=True)
    up = zip((a + b for a, b in zip(levels[:0:-1], levels[-2::-1], strict=True)), levels[-2::-1], strict=True)
    for side, pairs in (("down", down), ("up", up)):
        for level, (before, after) in enumerate(pairs):
            for number, entering in ((0, before), (3, after)):
                name = f"body.{side}.{level}"
                shapes[f"{name}.{number}.weight"] = (after, entering, 3, 3)
                for part in ("weight", "bias", "running_mean", "running_var"):
                    shapes[f"{name}.{number + 1}.{part}"] = (after,)
    return shapes


def invert_image(
    inverter: ImageInverter, keypoints: ArrayLike, inputs: ArrayLike, size: tuple[int, int]
) -> NDArray[np.float32]:
    """Return the picture (H, W, 3) float32, 0 to 1, of ``size`` (w, h) that released vectors (N, C) at keypoints show.

    ``inputs`` are clear descriptors, or ``canonical_input(subspaces, inverter.frame)``. The map has a pixel for each
    pixel of the picture. A picture larger than those of the training is made at their size, from keypoints scaled with
    it, and enlarged. Features beyond the first at a pixel do not show.
    """
    import cv2

    points = frozen_array(keypoints, "keypoints", (None, 4))
    vectors = frozen_array(inputs, "inputs", (len(points), inverter.input_dim))
    width, height = size
    if width < 1 or height < 1:
        raise InputError(f"size: expected a positive width and height, got ({width}, {height})")
    scale = min(1.0, LONGEST / max(size)) * inverter.scale
    small = max(1, round(width * scale)), max(1, round(height * scale))
    picture = _run(inverter, scaled(points, scale), vectors, small)
    if small != (width, height):
        picture = np.clip(cv2.resize(picture, (width, height), interpolation=cv2.INTER_CUBIC), 0, 1)
    return picture


def scaled(keypoints: NDArray[np.float32], scale: float) -> NDArray[np.float32]:
    """Return keypoints (N, 4) as they lie in a picture of ``scale`` times the size, its first pixel's centre (0, 0)."""
    if scale == 1:
        return keypoints
    places = (keypoints[:, :2] + 0.5) * scale - 0.5
    return np.concatenate([places, keypoints[:, 2:3] * scale, keypoints[:, 3:]], axis=1, dtype=np.float32)


def _run(
    inverter: ImageInverter, points: NDArray[np.float32], vectors: NDArray[np.float32], size: tuple[int, int]
) -> NDArray[np.float32]:
    """Run the network on one map, made larger until its sides are multiples of what the network halves."""
    shape = ARCHITECTURES[inverter.architecture]
    padded = -(-size[0] // shape.multiple) * shape.multiple, -(-size[1] // shape.multiple) * shape.multiple
    inside = place(points, size, every=shape.has_cells)
    pixels = inside.pixels // size[0] * padded[0] + inside.pixels % size[0]
    placed = FeaturePlaces(inside.rows, pixels, padded, inside.offsets)
    standard = (vectors[placed.rows] - inverter.mean) / inverter.deviation
    if shape.has_cells:
        return np.ascontiguousarray(_paint_cells(inverter.modules, standard, placed)[: size[1], : size[0]])
    torch: Any = need("torch", extra="learn")
    with torch.inference_mode():
        output = run_network(inverter.modules, inverter.architecture, torch.from_numpy(standard), [placed])[0]
    picture: NDArray[np.float32] = output.permute(1, 2, 0).numpy()[: size[1], : size[0]]  # (H, W, 3)
    return np.ascontiguousarray(picture)


def _paint_cells(
    arrays: Mapping[str, NDArray[np.float32]], vectors: NDArray[np.float32], placed: FeaturePlaces
) -> NDArray[np.float32]:
    """Do in numpy what ``run_network`` does with one map."""
    cells, within = in_cells(placed)
    rows = np.concatenate([vectors, within], axis=1) @ arrays["entry.0.weight"].T + arrays["entry.0.bias"]
    entered = np.maximum(rows, 0) @ arrays["entry.2.weight"].T + arrays["entry.2.bias"]
    width, height = (side // networks.CELL for side in placed.size)
    filled = np.zeros((height * width, entered.shape[1]), np.float32)
    np.add.at(filled, cells, entered)
    return networks.paint_cells(arrays, np.ascontiguousarray(filled.T).reshape(-1, height, width))
