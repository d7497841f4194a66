# SPDX-License-Identifier: Apache-2.0
"""Pictures of what an attack recovered: descriptors painted by an inverter, one file an image and attack.

Knows how recovered descriptors become an inverter's input; not how they were recovered.
"""

import os
from pathlib import Path
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from sfumato.attack.knowledge import Recovered
from sfumato.errors import InputError
from sfumato.learn.inverter import Inverter, invert
from sfumato.types.concealed import ConcealedFeatures
from sfumato.whole import write_file


def paint_recovered(inverter: Inverter, features: ConcealedFeatures, recovered: Recovered) -> NDArray[np.float32]:
    """Return the picture (H, W, 3), values 0 to 1, that an inverter of clear descriptors sees.

    RootSIFT is squared and scaled back to SIFT for an inverter of SIFT.

    Raises InputError for an inverter of something else, or features of a picture of unknown size.
    """
    if inverter.recipe != "raw" or features.image_size is None:
        raise InputError("a picture needs an inverter of clear descriptors, and the size of the image")
    rows, kind = recovered.descriptors, features.extractor.name
    if kind == "rootsift" and inverter.extractor_name == "sift":
        rows, kind = as_sift(rows), "sift"
    if kind != inverter.extractor_name or rows.shape[1] != inverter.input_dim:
        raise InputError(
            f"the inverter is for {inverter.extractor_name}, these descriptors are {features.extractor.name}: train "
            f"one for them with sfumato train inverter"
        )
    return invert(inverter, features.keypoints, rows, features.image_size)


def as_sift(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return RootSIFT (N, 128) as SIFT of unit norm: its squares are the histogram."""
    squares = np.square(rows.astype(np.float64))
    lengths = np.linalg.norm(squares, axis=1, keepdims=True)
    unit: NDArray[np.float32] = (squares / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return unit


def save_picture(folder: str | os.PathLike[str], image: str, attack: str, picture: NDArray[np.float32]) -> Path:
    """Write a picture (H, W, 3) as ``<image>--<attack>.png`` in a folder, atomically; no name leads out of it."""
    from PIL import Image as Pillow

    target = Path(folder) / f"{quote(image, safe='')[:150]}--{attack}.png"
    pixels = Pillow.fromarray(np.rint(255 * np.clip(picture, 0, 1)).astype(np.uint8))
    write_file(target, lambda file: pixels.save(file, "PNG"), with_folder=True)
    return target
