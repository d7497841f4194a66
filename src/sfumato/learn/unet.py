# SPDX-License-Identifier: Apache-2.0
"""UNet: pairs of 3 x 3 convolutions on five levels, with concatenated skip connections (NinjaDesc, section E).

Knows tensors (B, C, H, W); H and W are multiples of ``MULTIPLE``. Modules are put together here and run by a function,
so that torch is only needed when a network is made.
"""

from typing import Any

from sfumato.errors import need

LEVELS = (64, 128, 256, 512, 1024)
MULTIPLE = 16
"""Four halvings."""


def build_unet(channels: int, width: float) -> Any:
    """Return the modules of a UNet for maps of so many channels; ``width`` scales the channels of every level."""
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
    """Two times convolution, normalisation, rectifier."""
    layers: list[Any] = []
    for inside in (channels, out):
        layers += [nn.Conv2d(inside, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)
