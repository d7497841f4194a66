# SPDX-License-Identifier: Apache-2.0
"""Generated data for evaluations without data: sample photos seen through known homographies, and a rendered room.

Written as folders of the layout that ``experiments.data.folders`` reads, so that they are measured like real data and
can be looked at.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.errors import FileError, InputError
from sfumato.experiments.data.folders import (
    PosedImages,
    UnposedImages,
    read_homography_folder,
    read_posed_folder,
    read_scene_folder,
)
from sfumato.experiments.data.room import make_room, save_room
from sfumato.files.atomic import new_folder, write_file, write_text
from sfumato.images.homography import HomographyParams, HomographySequence, make_pair
from sfumato.images.samples import sample_image
from sfumato.types.clear import Image

PHOTOS = ("astronaut", "brick", "chelsea", "coffee")

CHANGES = {
    "i": HomographyParams(rotation=0, scale=1, perspective=0, translation=0, brightness=60, contrast=0.6, noise=6),
    "v": HomographyParams(rotation=40, scale=1.6, perspective=0.25, brightness=10, contrast=0.1),
}
"""Changes in sequences of light, and in those of viewpoint."""


def open_sequences(data: Path | None, output: Path) -> list[HomographySequence]:
    """Read a folder of sequences; without one, generate sequences below ``output``."""
    return read_homography_folder(data or make_homography_folder(output / "generated", np.random.default_rng(0)))


def open_scenes(folders: Sequence[Path], output: Path) -> dict[str, PosedImages | UnposedImages]:
    """Read folders of photos, by the names of the folders; without one, render a room below ``output``.

    Raises InputError for two folders of one name, FileError for a folder that is no scene.
    """
    if not folders:
        return {"room": read_posed_folder(make_room_folder(output / "generated-room", np.random.default_rng(0)))}
    names = [folder.resolve().name for folder in folders]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"two folders are called {twice[0]!r:.80}: rename one, so that their rows can be told apart")
    return {name: read_scene_folder(folder) for name, folder in zip(names, folders, strict=True)}


def make_homography_folder(
    folder: str | os.PathLike[str], rng: np.random.Generator, *, photos: tuple[str, ...] | None = None, others: int = 3
) -> Path:
    """Write a sequence of light and one of viewpoint for each of several sample photos, ``others`` changed images each.

    The pictures are lossless, the homographies exact to the last digit. The folder appears when it is complete; an
    existing one is left as it is. Returns the folder.
    """
    target = Path(folder)
    if target.exists():
        return target
    with new_folder(target) as temporary:
        for photo in PHOTOS if photos is None else photos:
            image = sample_image(photo)
            for letter, params in CHANGES.items():
                place = temporary / f"{letter}_{photo}"
                _write_picture(place / "1.png", image)
                for number in range(2, others + 2):
                    pair = make_pair(image, rng, params)
                    _write_picture(place / f"{number}.png", pair.second)
                    rows = "".join(" ".join(map(repr, row)) + "\n" for row in pair.homography.tolist())
                    write_text(place / f"H_1_{number}", rows, with_folder=True)
    return target


def make_room_folder(folder: str | os.PathLike[str], rng: np.random.Generator, **settings: Any) -> Path:
    """Write posed images of a generated room, with the settings of RoomParams; an existing folder is left alone."""
    target = Path(folder)
    if not target.exists():
        save_room(make_room(None, rng, **settings), target)
    return target


def _write_picture(path: Path, image: Image) -> None:
    import cv2

    done, encoded = cv2.imencode(".png", image.pixels[..., ::-1] if image.pixels.ndim == 3 else image.pixels)
    if not done:
        raise FileError(f"{path}: OpenCV cannot encode this picture")
    write_file(path, encoded.tobytes(), with_folder=True)
