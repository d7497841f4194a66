# SPDX-License-Identifier: Apache-2.0
"""UNet and UResNet, the networks of image inverters (NinjaDesc, section E), and one of our own that runs in numpy.

The UNet has pairs of 3 x 3 convolutions on five levels, with concatenated skip connections. The UResNet has the five
stages of ResNet50 going down, residual blocks going up, and added skip connections: four residual blocks bring the map
to the three channels that ResNet50 starts from; its max-pool is left out and the first block of conv2_x strides
instead, so that each of the five stages halves the picture. The authors start from ImageNet weights; none come with
this package, so without a file everything is trained from scratch. Tensors are (B, C, H, W); H and W are multiples of
``UNET_MULTIPLE`` or ``URESNET_MULTIPLE``. torch is imported when a network is made.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError, need

LEVELS = (64, 128, 256, 512, 1024)
UNET_MULTIPLE = 16
"""Four halvings."""


def build_unet(channels: int, width: float) -> Any:
    """Return the modules of a UNet for maps of ``channels``; ``width`` scales the channels of every level."""
    nn: Any = need("torch.nn", extra="learn")
    levels = [max(1, round(level * width)) for level in LEVELS]
    before = [channels, *levels[:-1]]
    return nn.ModuleDict(
        {
            "down": nn.ModuleList([_pair(nn, *ends) for ends in zip(before, levels, strict=True)]),
            "grow": nn.ModuleList(
                [
                    nn.ConvTranspose2d(deep, shallow, 2, stride=2)
                    for deep, shallow in zip(levels[:0:-1], levels[-2::-1], strict=True)
                ]
            ),
            "up": nn.ModuleList([_pair(nn, 2 * level, level) for level in levels[-2::-1]]),
            "last": nn.Conv2d(levels[0], 3, 1),
        }
    )


def run_unet(modules: Any, maps: Any) -> Any:
    """Return pictures (B, 3, H, W) with values from 0 to 1 for maps (B, C, H, W)."""
    torch: Any = need("torch", extra="learn")
    skips, x = [], maps
    for level, pair in enumerate(modules["down"]):
        x = pair(torch.nn.functional.max_pool2d(x, 2) if level else x)  # (B, 64 2^level, H / 2^level, W / 2^level)
        skips.append(x)
    for grow, pair, skip in zip(modules["grow"], modules["up"], skips[-2::-1], strict=True):
        x = pair(torch.cat([skip, grow(x)], dim=1))
    return torch.sigmoid(modules["last"](x))


def _pair(nn: Any, channels: int, out: int) -> Any:
    """Return two times convolution, normalisation, rectifier."""
    layers: list[Any] = []
    for inside in (channels, out):
        layers += [nn.Conv2d(inside, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


# --- cells: a UNet over squares of 4 x 4 pixels, in which the vectors of all features are added up
#
# At a quarter of the size a network of the same depth costs a tenth, and no feature is lost where several share a
# pixel. It is learned with torch and painted with numpy, so that every audit can use it.


CELL = 4
CELL_LEVELS = (64, 96, 128, 160, 160)
CELLS_MULTIPLE = CELL * 2 ** (len(CELL_LEVELS) - 1)
"""Four halvings of cells."""

Floats = NDArray[np.float32]


def build_cells(channels: int, width: float) -> Any:
    """Return the modules of a network for maps of cells with ``channels``; ``width`` scales those of every level."""
    nn: Any = need("torch.nn", extra="learn")
    levels = [max(8, round(level * width)) for level in CELL_LEVELS]
    return nn.ModuleDict(
        {
            "down": nn.ModuleList([_pair(nn, *ends) for ends in zip([channels, *levels[:-1]], levels, strict=True)]),
            "up": nn.ModuleList([_pair(nn, a + b, b) for a, b in zip(levels[:0:-1], levels[-2::-1], strict=True)]),
            "last": nn.Conv2d(levels[0], 3 * CELL**2, 1),
        }
    )


def run_cells(modules: Any, maps: Any) -> Any:
    """Return pictures (B, 3, H, W) with values from 0 to 1 for maps of cells (B, C, H / 4, W / 4)."""
    torch: Any = need("torch", extra="learn")
    functional, skips, x = torch.nn.functional, [], maps
    for level, pair in enumerate(modules["down"]):
        x = pair(functional.max_pool2d(x, 2) if level else x)
        skips.append(x)
    for pair, skip in zip(modules["up"], skips[-2::-1], strict=True):
        x = pair(torch.cat([skip, functional.interpolate(x, scale_factor=2, mode="nearest")], dim=1))
    return torch.sigmoid(functional.pixel_shuffle(modules["last"](x), CELL))


def paint_cells(arrays: Mapping[str, Floats], cells: Floats) -> Floats:
    """Return the picture (H, W, 3) that ``run_cells`` gives for one map (C, H / 4, W / 4), from a network's arrays."""
    skips, x, depth = list[Floats](), cells, len(CELL_LEVELS)
    for level in range(depth):
        if level:
            count, height, width = x.shape
            x = x.reshape(count, height // 2, 2, width // 2, 2).max(axis=(2, 4))
        x = _paint_pair(arrays, f"body.down.{level}", x)
        skips.append(x)
    for level, skip in enumerate(skips[-2::-1]):
        x = _paint_pair(arrays, f"body.up.{level}", np.concatenate([skip, x.repeat(2, axis=1).repeat(2, axis=2)]))
    last = np.tensordot(arrays["body.last.weight"][:, :, 0, 0], x, axes=1) + arrays["body.last.bias"][:, None, None]
    _, height, width = last.shape
    squares = last.reshape(3, CELL, CELL, height, width).transpose(3, 1, 4, 2, 0)
    picture: Floats = 1 / (1 + np.exp(-squares.reshape(CELL * height, CELL * width, 3)))
    return picture


def _paint_pair(arrays: Mapping[str, Floats], name: str, x: Floats) -> Floats:
    """Do the same as the modules of ``_pair`` do once they are trained."""
    for convolution, normal in ((0, 1), (3, 4)):
        weight = arrays[f"{name}.{convolution}.weight"]  # (O, C, 3, 3)
        mean, variance, scale, shift = (
            arrays[f"{name}.{normal}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        gain = scale / np.sqrt(variance + np.float32(1e-5))
        _, height, width = x.shape
        framed = np.pad(x, ((0, 0), (1, 1), (1, 1)))
        total = np.broadcast_to((shift - mean * gain)[:, None, None], (len(weight), height, width)).copy()
        for down in range(3):
            for right in range(3):
                part = framed[:, down : down + height, right : right + width]
                total += np.tensordot(gain[:, None] * weight[:, :, down, right], part, axes=1)
        x = np.maximum(total, 0, out=total)
    return x


# --- UResNet


PLANES = (64, 128, 256, 512)
BLOCKS = (3, 4, 6, 3)
EXPANSION = 4
PREPARING = 64
URESNET_MULTIPLE = 32
"""Five halvings."""


def build_uresnet(channels: int, width: float) -> Any:
    """Return the modules of a UResNet for maps of ``channels``; ``width`` scales every channel but the three."""
    nn: Any = need("torch.nn", extra="learn")
    planes = [max(1, round(plane * width)) for plane in PLANES]
    start = max(1, round(PREPARING * width))
    sides = [start, planes[0], *(EXPANSION * plane for plane in planes)]  # channels at 1, 1/2, ... 1/32
    encoder = nn.ModuleDict(
        {"conv1": nn.Conv2d(3, planes[0], 7, stride=2, padding=3, bias=False), "bn1": nn.BatchNorm2d(planes[0])}
    )
    before = planes[0]
    for stage, (plane, count) in enumerate(zip(planes, BLOCKS, strict=True), 1):
        blocks = [_bottleneck(nn, EXPANSION * plane if i else before, plane, 1 if i else 2) for i in range(count)]
        encoder[f"layer{stage}"] = nn.ModuleList(blocks)
        before = EXPANSION * plane
    ends = ((channels, start), (start, start), (start, start), (start, 3))
    return nn.ModuleDict(
        {
            "prepare": nn.ModuleList([_residual(nn, *pair) for pair in ends]),
            "encoder": encoder,
            "up": nn.ModuleList([_residual(nn, *pair) for pair in zip(sides[:0:-1], sides[-2::-1], strict=True)]),
            "last": nn.Conv2d(start, 3, 1),
        }
    )


def run_uresnet(modules: Any, maps: Any) -> Any:
    """Return pictures (B, 3, H, W) with values from 0 to 1 for maps (B, C, H, W)."""
    torch: Any = need("torch", extra="learn")
    functional = torch.nn.functional
    x, skips, encoder = maps, [], modules["encoder"]
    for block in modules["prepare"]:
        skips, x = [x], _run_residual(block, x)  # the last block leaves three channels: skip what came before it
    x = torch.relu(encoder["bn1"](encoder["conv1"](x)))
    for stage in ("layer1", "layer2", "layer3", "layer4"):
        skips.append(x)
        for block in encoder[stage]:
            x = _run_bottleneck(block, x)  # the first of each halves H and W
    for block, skip in zip(modules["up"], reversed(skips), strict=True):
        x = functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        x = _run_residual(block, x) + skip
    return torch.sigmoid(modules["last"](x))


def load_encoder(modules: Any, path: str | os.PathLike[str]) -> None:
    """Take the weights of the five stages from a ResNet50 file with torchvision's names, .safetensors or torch.

    Raises FileError if it cannot be read or holds another network, InputError for a UResNet that is not full width.
    """
    torch: Any = need("torch", extra="learn")
    place = Path(path)
    try:
        if place.suffix == ".safetensors":
            weights = need("safetensors.torch", extra="learn").load_file(place)
        else:
            weights = torch.load(place, map_location="cpu", weights_only=True)
        own = modules["encoder"].state_dict()
        missing = [name for name in own if name not in weights and not name.endswith("num_batches_tracked")]
    except (ImportError, MemoryError):
        raise
    except Exception as cause:  # torch and safetensors let through whatever their parsers meet
        raise FileError(f"{place}: cannot read the weights ({type(cause).__name__}): give a ResNet50 file") from cause
    if missing:
        raise FileError(f"{place}: not a ResNet50 with torchvision's names: {missing[0]} is missing")
    if any(weights[name].shape != own[name].shape for name in own if name in weights):
        raise InputError(f"{place}: these weights are for a UResNet of width 1, this one has another")
    modules["encoder"].load_state_dict({name: weights.get(name, own[name]).float() for name in own})


def _residual(nn: Any, channels: int, out: int) -> Any:
    """Return a basic residual block; where the channels change, so does the shortcut."""
    path = nn.Sequential(
        nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True),
        nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out),
    )  # fmt: skip
    same = channels == out
    return nn.ModuleDict({"path": path, "short": nn.Identity() if same else nn.Conv2d(channels, out, 1)})


def _run_residual(block: Any, x: Any) -> Any:
    return (block["path"](x) + block["short"](x)).relu()


def _bottleneck(nn: Any, channels: int, plane: int, stride: int) -> Any:
    """Return ResNet's bottleneck, 1 x 1, 3 x 3, 1 x 1, with torchvision's names; the 3 x 3 convolution strides."""
    out = EXPANSION * plane
    parts = {
        "conv1": nn.Conv2d(channels, plane, 1, bias=False), "bn1": nn.BatchNorm2d(plane),
        "conv2": nn.Conv2d(plane, plane, 3, stride=stride, padding=1, bias=False), "bn2": nn.BatchNorm2d(plane),
        "conv3": nn.Conv2d(plane, out, 1, bias=False), "bn3": nn.BatchNorm2d(out),
    }  # fmt: skip
    if stride > 1 or channels != out:
        parts["downsample"] = nn.Sequential(nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))
    return nn.ModuleDict(parts)


def _run_bottleneck(block: Any, x: Any) -> Any:
    y = block["bn1"](block["conv1"](x)).relu()
    y = block["bn2"](block["conv2"](y)).relu()
    y = block["bn3"](block["conv3"](y))
    return (y + (block["downsample"](x) if "downsample" in block else x)).relu()
