# SPDX-License-Identifier: Apache-2.0
"""Checks of image folders: every problem of a folder is reported in one error.

Shared by the readers of data sets. Knows paths and text; what a layout means is known by its reader.
"""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import numpy as np

from sfumato.errors import FileError, ImageError
from sfumato.images.read import read_image


def refuse(place: Path, problems: Iterable[str]) -> None:
    """Raise FileError naming all that is wrong with a folder; nothing wrong raises nothing."""
    told = list(problems)
    if told:
        more = f"; and {len(told) - TOLD_AT_ONCE} more" if len(told) > TOLD_AT_ONCE else ""
        raise FileError(f"{place}: {'; '.join(told[:TOLD_AT_ONCE])}{more}")


def need_folder(place: Path, what: str) -> None:
    """Raise FileError if there is no such folder."""
    if not place.is_dir():
        state = "is a file" if place.exists() else "is not there"
        raise FileError(f"{place} {state}: give the folder of {what}")


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file; FileError if it is missing, no text, or far too large."""
    try:
        if path.stat().st_size > LARGEST_TEXT:
            raise FileError(f"{path} is too large for a list of images: {path.stat().st_size} bytes")
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as cause:
        raise FileError(f"{path} is missing") from cause
    except UnicodeDecodeError as cause:
        raise FileError(f"{path} is no text") from cause
    except OSError as cause:
        raise FileError(f"{path} cannot be read: {cause.strerror or cause}") from cause


def numbers(words: Iterable[str]) -> list[float] | None:
    """Return words as finite numbers; None if one is none."""
    try:
        values = [float(word) for word in words]
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None


def is_inside(name: str) -> bool:
    """Tell whether a relative name stays in its folder, whoever wrote it."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and "\0" not in name


def image_size(path: Path) -> tuple[int, int]:
    """Return (width, height) of a picture as it stands upright; only its header is read where that is enough.

    Raises ImageError naming the file.
    """
    from PIL import Image as Pillow  # comes with scikit-image and matplotlib

    try:
        with Pillow.open(path, formats=("PNG", "JPEG", "PPM", "BMP", "TIFF", "WEBP", "GIF")) as picture:
            width, height = picture.size
            turned = picture.getexif().get(0x112) in (5, 6, 7, 8)
    except Exception:  # whatever Pillow does not understand is read, or told, by our own reader
        return read_image(path).size
    return (height, width) if turned else (width, height)


def check_image(path: Path, name: str, size: tuple[int, int] | None = None) -> list[str]:
    """Return what is wrong with a picture: missing, no picture, or of another size than it should have."""
    if not is_inside(name):
        return [f"the name {name!r:.80} leaves the folder of images"]
    if not path.is_file():
        return [f"image {name} is missing"]
    try:
        found = image_size(path)
    except ImageError as problem:
        return [f"image {name} cannot be read ({problem})"]
    if size is not None and found != size:
        return [f"image {name} is {found[0]} x {found[1]}, its camera says {size[0]} x {size[1]}"]
    return []


TOLD_AT_ONCE = 20


LARGEST_TEXT = 256 * 1024 * 1024
