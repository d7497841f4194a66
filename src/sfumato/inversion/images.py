# SPDX-License-Identifier: Apache-2.0
"""Image inverters: UNet and UResNet, which turn a sparse map of released vectors back into a picture.

A map holds the vector of each keypoint at its pixel, 0 everywhere else (section 3.2 of the NinjaDesc paper). The first
layers work on the vectors before they are written into the map: a 1 x 1 convolution gives the same, at every pixel
instead of at every keypoint. The networks are convolutions, so a picture of any size is made at its own size. Trained
by ``training.image``; needs the extra ``learn``.
"""

import os
from collections.abc import Callable
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


# --- sparse maps


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class FeaturePlaces:
    """Places of features in a map: their ``rows`` (M,), and ``pixels`` (M,), y * width + x, each once."""

    rows: NDArray[np.int64]
    pixels: NDArray[np.int64]
    size: tuple[int, int]

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"FeaturePlaces({len(self)} features in {self.size[0]} x {self.size[1]} pixels)"


def place(keypoints: ArrayLike, size: tuple[int, int], *, corner: tuple[int, int] = (0, 0)) -> FeaturePlaces:
    """Place keypoints (N, 4) in a window of ``size`` (width, height) pixels whose first pixel is ``corner`` (x, y).

    Places are rounded to whole pixels. Keypoints outside are left out. Where several fall on one pixel the first row,
    of features the strongest, is kept: a map holds one vector per pixel.
    """
    points = frozen_array(keypoints, "keypoints", (None, 4))
    width, height = size
    if width < 1 or height < 1:
        raise InputError(f"a map needs at least one pixel, got {width} x {height}")
    x = np.rint(points[:, 0].astype(np.float64)).astype(np.int64) - corner[0]
    y = np.rint(points[:, 1].astype(np.float64)).astype(np.int64) - corner[1]
    inside = np.flatnonzero((x >= 0) & (x < width) & (y >= 0) & (y < height))
    pixels, first = np.unique(y[inside] * width + x[inside], return_index=True)
    return FeaturePlaces(inside[first], pixels, (width, height))


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


# --- the inverter


@dataclass(frozen=True, slots=True)
class Architecture:
    """Functions that make and run a network; the sides of its maps are multiples of ``multiple``."""

    build: Callable[[int, float], Any]
    run: Callable[[Any, Any], Any]
    multiple: int


ARCHITECTURES = {
    "unet": Architecture(networks.build_unet, networks.run_unet, networks.UNET_MULTIPLE),
    "uresnet": Architecture(networks.build_uresnet, networks.run_uresnet, networks.URESNET_MULTIPLE),
}


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ImageInverter:
    """A trained network. ``frame`` (n, n) is that of its canonical inputs; ``facts`` describe its training.

    Inputs are brought to mean 0 and deviation 1 with ``mean`` and ``deviation`` (C,) first.
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
    entry = nn.Sequential(nn.Linear(input_dim, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, channels))
    return nn.ModuleDict({"entry": entry, "body": ARCHITECTURES[architecture].build(channels, width)})


def run_network(modules: Any, architecture: str, vectors: Any, placed: list[FeaturePlaces]) -> Any:
    """Return pictures (B, 3, H, W) for standardised vectors (M, C) of all maps, and where they lie."""
    return ARCHITECTURES[architecture].run(modules["body"], scatter(modules["entry"](vectors), placed))


def load_image_inverter(path: str | os.PathLike[str]) -> ImageInverter:
    """Read a network written by ``train_image_inverter``.

    Raises FileError if it is missing, damaged or of another kind, MissingDependency without the extra ``learn``.
    """
    torch: Any = need("torch", extra="learn")
    arrays, facts = load_checkpoint(path, KIND)
    try:
        architecture, width, dim = facts["params"]["architecture"], float(facts["params"]["width"]), facts["input_dim"]
        n = len(arrays["frame"])
        if architecture not in ARCHITECTURES or not 0 < width <= 4 or not isinstance(dim, int) or not 0 < dim < 2**20:
            raise ValueError("settings that no training has")
        str(facts["recipe"]), str(facts["extractor"])
    except (KeyError, TypeError, ValueError) as cause:
        raise FileError(f"{path}: not a usable image inverter: its facts are incomplete ({cause})") from cause
    with torch.random.fork_rng(devices=[]):
        modules = build_network(architecture, dim, width)
    state = modules.state_dict()
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    tensors = checked_arrays(arrays, {**shapes, "mean": (dim,), "deviation": (dim,), "frame": (n, n)}, path)
    modules.load_state_dict({name: torch.from_numpy(tensors[name]).to(state[name].dtype) for name in state})
    modules.eval().requires_grad_(False)
    return ImageInverter(modules, architecture, tensors["mean"], tensors["deviation"], tensors["frame"], facts)


def invert_image(
    inverter: ImageInverter, keypoints: ArrayLike, inputs: ArrayLike, size: tuple[int, int]
) -> NDArray[np.float32]:
    """Return the picture (H, W, 3) float32, 0 to 1, of ``size`` (w, h) that released vectors (N, C) at keypoints show.

    ``inputs`` are clear descriptors, or ``canonical_input(subspaces, inverter.frame)``. The map has a pixel for each
    pixel of the picture. A picture longer than the training photos is made at their size, from keypoints scaled with
    it, and enlarged. Features beyond the first at a pixel do not show.
    """
    import cv2

    points = frozen_array(keypoints, "keypoints", (None, 4))
    vectors = frozen_array(inputs, "inputs", (len(points), inverter.input_dim))
    width, height = size
    if width < 1 or height < 1:
        raise InputError(f"size: expected a positive width and height, got ({width}, {height})")
    scale = min(1.0, LONGEST / max(size))
    small = max(1, round(width * scale)), max(1, round(height * scale))
    if scale < 1:  # pixel centres: the first lies at (0, 0), the corner of the picture at (-0.5, -0.5)
        points = np.concatenate([(points[:, :2] + 0.5) * scale - 0.5, points[:, 2:] * scale], axis=1)
    picture = _run(inverter, points, vectors, small)
    if small != (width, height):
        picture = np.clip(cv2.resize(picture, (width, height), interpolation=cv2.INTER_CUBIC), 0, 1)
    return picture


def _run(
    inverter: ImageInverter, points: NDArray[np.float32], vectors: NDArray[np.float32], size: tuple[int, int]
) -> NDArray[np.float32]:
    """Run the network on one map, made larger until its sides are multiples of what the network halves."""
    torch: Any = need("torch", extra="learn")
    multiple = ARCHITECTURES[inverter.architecture].multiple
    padded = -(-size[0] // multiple) * multiple, -(-size[1] // multiple) * multiple
    inside = place(points, size)
    placed = FeaturePlaces(inside.rows, inside.pixels // size[0] * padded[0] + inside.pixels % size[0], padded)
    standard = (vectors[placed.rows] - inverter.mean) / inverter.deviation
    with torch.inference_mode():
        output = run_network(inverter.modules, inverter.architecture, torch.from_numpy(standard), [placed])[0]
    picture: NDArray[np.float32] = output.permute(1, 2, 0).numpy()[: size[1], : size[0]]  # (H, W, 3)
    return np.ascontiguousarray(picture)
