# SPDX-License-Identifier: Apache-2.0
"""What an attack left behind, in figures: how near descriptors and a painted picture come; pictures as kept bytes.

Knows arrays and photos; not which attack made them.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.attack.score import WITHIN
from sfumato.errors import ImageError
from sfumato.images.read import read_image
from sfumato.learn.metrics import picture_scores

SHARES = ("distance", *(f"within {limit:g}" for limit in WITHIN))
OF_FEATURES = {f"{space}{name}" for space in ("", "lifted ") for name in SHARES}
"""Scores that are means over the features of a photo."""


def picture_figures(photo: Path, encoded: NDArray[np.uint8]) -> dict[str, float]:
    """Return how near a kept picture comes to a photo."""
    figures = picture_scores(decode_picture(encoded), read_image(photo).pixels)
    for name in ("psnr", "psnr_rgb"):
        if name in figures:
            figures[name] = min(figures[name], 100.0)  # of equal pictures it is infinite, which is no figure
    return figures


def distance_scores(distances: NDArray[np.floating[Any]]) -> dict[str, float]:
    """Return mean and median distance to the clear descriptors and the shares within some; nothing for none."""
    if not distances.size:
        return {}
    shares = {f"within {limit:g}": float((distances <= limit).mean()) for limit in WITHIN}
    return {"distance": float(distances.mean()), "median": float(np.median(distances)), **shares}


def encode_picture(picture: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """Return a picture (H, W, 3) of values 0 to 1 as the bytes of a PNG file of 8 bits."""
    import cv2

    pixels = np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8)
    done, encoded = cv2.imencode(".png", pixels[:, :, ::-1])
    if not done:
        raise ImageError("OpenCV can not encode this picture")
    return np.asarray(encoded, np.uint8).ravel()


def decode_picture(encoded: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the picture (H, W, 3) uint8, red-green-blue, that ``encode_picture`` wrote."""
    import cv2

    pixels: Any = cv2.imdecode(np.ascontiguousarray(encoded), cv2.IMREAD_COLOR)
    if pixels is None:
        raise ImageError("a kept picture is damaged: run the evaluation again with --overwrite")
    found: NDArray[np.uint8] = np.ascontiguousarray(pixels[:, :, ::-1])
    return found
