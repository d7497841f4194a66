# SPDX-License-Identifier: Apache-2.0
"""The perceptual loss: how far two pictures are apart in the eyes of VGG16 (NinjaDesc, Eq. 4).

The paper's layers 2, 9 and 16 are slice ends in torchvision's ``features``: the taps are the outputs of features[1],
[8] and [15], ReLU 1_1, 2_2 and 3_3. Means take the place of the printed sums, over elements and then over taps, so that
the loss does not depend on the size of the picture. Weights come from a file with torchvision's names; none come with
this package.
"""

import os
from pathlib import Path
from typing import Any

from sfumato.errors import FileError, need

CONVOLUTIONS = {0: (3, 64), 2: (64, 64), 5: (64, 128), 7: (128, 128), 10: (128, 256), 12: (256, 256), 14: (256, 256)}
"""Channels in and out of the convolutions up to the last tap, by their place in torchvision's ``features``."""
POOLS = (4, 9)
TAPS = (1, 8, 15)
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
"""Of red, green and blue over ImageNet: what VGG16 was trained with."""


def load_perceptual(path: str | os.PathLike[str]) -> Any:
    """Return VGG16 up to the last tap, frozen, with the weights of a file, .safetensors or torch; float16 will do.

    A file of the whole network is fine, what is deeper is not used.

    Raises FileError if the file can not be read or holds another network.
    """
    torch: Any = need("torch", extra="learn")
    place = Path(path)
    try:
        if place.suffix == ".safetensors":
            found = need("safetensors.torch", extra="learn").load_file(place)
        else:
            found = torch.load(place, map_location="cpu", weights_only=True)
        network = _build(torch.nn)
        wanted = {f"features.{name}": value for name, value in network.state_dict().items()}
        problems = [name for name in wanted if name not in found or found[name].shape != wanted[name].shape]
        state = {name.removeprefix("features."): found[name].float() for name in wanted if not problems}
    except (ImportError, MemoryError):
        raise
    except Exception as cause:  # torch and safetensors let through whatever their parsers meet
        raise FileError(
            f"{place}: no weights that can be read ({type(cause).__name__}): give VGG16 with torchvision's names"
        ) from cause
    if problems:
        raise FileError(f"{place}: not VGG16 with torchvision's names: {problems[0]} is missing or has another shape")
    network.load_state_dict(state)
    return network.eval().requires_grad_(False)


def perceptual_loss(network: Any, seen: Any, truth: Any) -> Any:
    """Return the mean over taps of the mean squared difference, of pictures (B, 3, H, W) with values from 0 to 1."""
    torch: Any = need("torch", extra="learn")
    x = _standard(seen)
    with torch.no_grad():
        wanted = _taps(network, _standard(truth))
    differences = [torch.mean((one - other) ** 2) for one, other in zip(_taps(network, x), wanted, strict=True)]
    return sum(differences) / len(differences)


def _standard(pictures: Any) -> Any:
    mean, deviation = (pictures.new_tensor(values).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
    return (pictures - mean) / deviation


def _taps(network: Any, x: Any) -> list[Any]:
    found = []
    for place, layer in enumerate(network):
        x = layer(x)
        if place in TAPS:
            found.append(x)
    return found


def _build(nn: Any) -> Any:
    layers = []
    for place in range(TAPS[-1] + 1):
        if place in CONVOLUTIONS:
            layers.append(nn.Conv2d(*CONVOLUTIONS[place], 3, padding=1))
        else:
            layers.append(nn.MaxPool2d(2) if place in POOLS else nn.ReLU())
    return nn.Sequential(*layers)
