# SPDX-License-Identifier: Apache-2.0
"""Refinement network: from a painting to a picture in colour; it sharpens, fills in, and guesses colours.

A small U-shaped network on the painting folded to half its side, so that a picture takes less than a second in numpy.
One description of the network runs in numpy, and in torch to train it; both compute the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sfumato.inversion.paint import CHANNELS, USUAL_BRIGHTNESS

Floats = NDArray[np.float32]

INPUTS = 15
"""Picture and two differences in four phases each; energy, cover and scale."""

OUTPUTS = 12
"""Red, green and blue in four phases."""

COLUMN_BYTES = 2**24


class Operations(Protocol):
    """Operations of the network, in numpy or torch; values (B, C, H, W)."""

    def convolve(self, values: Any, name: str) -> Any: ...
    def rectify(self, values: Any) -> Any: ...
    def halve(self, values: Any) -> Any: ...
    def double(self, values: Any) -> Any: ...
    def join(self, first: Any, second: Any) -> Any: ...


def shapes(channels: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a network by name, with ``channels`` at half, a quarter ... of the picture's side."""
    tensors: dict[str, tuple[int, ...]] = {}

    def add(name: str, before: int, after: int) -> None:
        tensors[f"refine_{name}_weight"] = (after, before, 3, 3)
        tensors[f"refine_{name}_bias"] = (after,)

    for level, count in enumerate(channels):
        add(f"down{level}_0", channels[level - 1] if level else INPUTS, count)
        add(f"down{level}_1", count, count)
    for level, count in enumerate(channels[:-1]):
        add(f"up{level}_0", channels[level + 1] + count, count)
        add(f"up{level}_1", count, count)
    add("last", channels[0], OUTPUTS)
    return tensors


def run(operations: Operations, values: Any, depth: int) -> Any:
    """Run the network of ``depth`` levels on folded paintings (B, 15, h, w), to (B, 12, h, w)."""
    skips = []
    for level in range(depth):
        values = operations.halve(values) if level else values
        values = operations.rectify(operations.convolve(values, f"refine_down{level}_0"))
        values = operations.rectify(operations.convolve(values, f"refine_down{level}_1"))
        skips.append(values)
    for level in reversed(range(depth - 1)):
        values = operations.join(operations.double(values), skips[level])
        values = operations.rectify(operations.convolve(values, f"refine_up{level}_0"))
        values = operations.rectify(operations.convolve(values, f"refine_up{level}_1"))
    return operations.convolve(values, "refine_last")


def refine(tensors: Mapping[str, Floats], channels: Floats, depth: int) -> Floats:
    """Return a picture (H, W, 3), not clipped, of a painting's channels (6, H, W)."""
    height, width = channels.shape[1:]
    factor = 2**depth
    padding = (0, 0), (0, -height % factor), (0, -width % factor)
    padded = np.pad(channels, padding, mode="edge")
    folded = run(InNumpy(tensors), fold(padded)[None], depth)[0]  # (12, h, w)
    colours = unfold(folded) + padded[0]  # (3, H, W)
    picture: Floats = np.ascontiguousarray(colours[:, :height, :width].transpose(1, 2, 0))
    return picture


def fold(channels: Floats) -> Floats:
    """Return a painting's channels (6, H, W) as inputs of the network, (15, H / 2, W / 2), of about equal spread."""
    assert channels.shape[0] == CHANNELS
    picture, right, down, energy, cover, scale = channels
    phases = [
        layer[row::2, column::2]
        for layer in (4 * (picture - USUAL_BRIGHTNESS), 20 * right, 20 * down)
        for row in (0, 1)
        for column in (0, 1)
    ]
    means = [_mean(layer) for layer in (20 * energy, 2 * cover, scale)]
    return np.stack(phases + means).astype(np.float32)


def unfold(values: Floats) -> Floats:
    """Return (12, h, w) as (3, 2 h, 2 w)."""
    _, height, width = values.shape
    phases = values.reshape(3, 2, 2, height, width)  # colour, row, column of the phase
    return phases.transpose(0, 3, 1, 4, 2).reshape(3, 2 * height, 2 * width)


class InNumpy:
    """The operations on numpy arrays."""

    def __init__(self, tensors: Mapping[str, Floats]) -> None:
        self.tensors = tensors

    def convolve(self, values: Floats, name: str) -> Floats:
        """3 x 3, zeros around the border, a strip of rows at a time as one matrix product."""
        weight, bias = self.tensors[f"{name}_weight"], self.tensors[f"{name}_bias"]
        _, count, height, width = values.shape
        around = np.pad(values[0], ((0, 0), (1, 1), (1, 1)))
        result = np.empty((1, len(weight), height, width), np.float32)
        strip = max(1, COLUMN_BYTES // (4 * 9 * count * width))
        flat = weight.reshape(len(weight), 9 * count)
        for top in range(0, height, strip):
            rows = min(strip, height - top)
            columns = np.empty((count, 3, 3, rows, width), np.float32)
            for i in range(3):
                for j in range(3):
                    columns[:, i, j] = around[:, top + i : top + i + rows, j : j + width]
            product = flat @ columns.reshape(9 * count, rows * width)
            result[0, :, top : top + rows] = (product + bias[:, None]).reshape(-1, rows, width)
        return result

    def rectify(self, values: Floats) -> Floats:
        """Nothing below 0."""
        return np.maximum(values, 0, out=values)

    def halve(self, values: Floats) -> Floats:
        """Means of 2 x 2."""
        return _mean(values)

    def double(self, values: Floats) -> Floats:
        """Each value 2 x 2 times."""
        return values.repeat(2, axis=2).repeat(2, axis=3)

    def join(self, first: Floats, second: Floats) -> Floats:
        """Channels of both."""
        return np.concatenate([first, second], axis=1)


def _mean(values: Floats) -> Floats:
    top, bottom = values[..., 0::2, :], values[..., 1::2, :]
    return (top[..., 0::2] + top[..., 1::2] + bottom[..., 0::2] + bottom[..., 1::2]) * np.float32(0.25)
