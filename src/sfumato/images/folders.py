# SPDX-License-Identifier: Apache-2.0
"""Checks of image folders, for readers of data sets: one error reports every problem of a folder."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import numpy as np

from sfumato.errors import FileError, ImageError
from sfumato.files.atomic import read_text
from sfumato.images.read import read_image

PROBLEMS_SHOWN = 20


def refuse(place: Path, problems: Iterable[str]) -> None:
    """Raise FileError naming the problems of a folder, if there are any."""
    lines = list(problems)
    if lines:
        more = f"; and {len(lines) - PROBLEMS_SHOWN} more" if len(lines) > PROBLEMS_SHOWN else ""
        raise FileError(f"{place}: {'; '.join(lines[:PROBLEMS_SHOWN])}{more}")


def need_folder(place: Path, what: str) -> None:
    """Raise FileError if there is no such folder."""
    if not place.is_dir():
        state = "is a file" if place.exists() else "is not there"
        raise FileError(f"{place} {state}: give the folder of {what}")


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file; raise FileError if it is missing, not a text, or too large."""
    return read_text(path).splitlines()


def numbers(words: Iterable[str]) -> list[float] | None:
    """Return words as finite numbers; None if one of them is not a number."""
    try:
        values = [float(word) for word in words]
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None


def is_inside(name: str) -> bool:
    """Tell whether a relative name stays in its folder."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and "\0" not in name


def image_size(path: Path) -> tuple[int, int]:
    """Return (width, height) of a picture, upright; only its header is read if that is enough.

    Raises ImageError naming the file.
    """
    from PIL import Image as Pillow  # comes with scikit-image and matplotlib

    try:
        with Pillow.open(path, formats=("PNG", "JPEG", "PPM", "BMP", "TIFF", "WEBP", "GIF")) as picture:
            width, height = picture.size
            turned = picture.getexif().get(0x112) in (5, 6, 7, 8)
    except Exception:  # what Pillow does not understand our own reader reads or reports
        return read_image(path).size
    return (height, width) if turned else (width, height)


def check_image(path: Path, name: str, size: tuple[int, int] | None = None) -> list[str]:
    """Return the problems of a picture: missing, unreadable, or of another size than its camera."""
    if not is_inside(name):
        return [f"the name {name!r:.80} leaves the folder of images"]
    if not path.is_file():
        return [f"image {name} is missing"]
    try:
        actual = image_size(path)
    except ImageError as problem:
        return [f"image {name} cannot be read ({problem})"]
    if size is not None and actual != size:
        return [f"image {name} is {actual[0]} x {actual[1]}, its camera says {size[0]} x {size[1]}"]
    return []
