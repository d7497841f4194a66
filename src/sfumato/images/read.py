# SPDX-License-Identifier: Apache-2.0
"""Reader of pictures: upright, 8 bits, grey or red-green-blue.

Colour profiles and transparency are ignored, 16-bit pictures lose the lower 8
bits, animations and multi-page files give their first picture. Formats whose orientation OpenCV does not
apply (AVIF, HEIC) are refused rather than read lying on their side.
"""

import os
import stat
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, ImageError, SfumatoError, load_pycolmap
from sfumato.types.clear import Image

SUFFIXES = (
    ".avif", ".bmp", ".gif", ".heic", ".heif", ".jp2", ".jpe", ".jpeg", ".jpg",
    ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip
"""Endings of images in a folder; AVIF and HEIC are here to be named, not silently left out."""

SIGNATURES = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"BM": "BMP",
    b"GIF8": "GIF",
    b"\0\0\0\x0cjP  ": "JPEG 2000",
    b"\xff\x4f\xff\x51": "JPEG 2000",
}

LARGEST_FILE = 2**31 - 1
PNG_NEEDED = (b"IHDR", b"PLTE", b"tRNS", b"eXIf", b"IDAT", b"IEND")

_quiet_lock = threading.Lock()
_quiet_depth = 0
_level_before = 0


def read_image(path: str | os.PathLike[str], name: str = "") -> Image:
    """Read a picture; its ``name`` is by default that of its file.

    Raises ImageError naming the file, the problem and what to do.
    """
    path = Path(path)
    data = _read_bytes(path)
    kind = image_format(data)
    if kind is None:
        raise ImageError(f"{path} is not an image of a known format: save it as JPEG or PNG, or remove it")
    if kind in ("AVIF", "HEIC"):
        raise ImageError(f"{path} is {kind}, which is not read here: convert it to JPEG or PNG")
    if kind == "PNG":
        data = _clean_png(path, data)
    pixels = _decode(path, data)
    if pixels is None or pixels.size == 0:
        raise ImageError(f"{path}: the {kind} image is cut off or damaged: copy or export it again")
    if pixels.ndim == 3:
        pixels = pixels[:, :, ::-1] if pixels.shape[2] == 3 else pixels[:, :, 0]
    return Image(np.ascontiguousarray(pixels), name or path.name)


def to_grey(image: Image) -> NDArray[np.uint8]:
    """Return the pixels as (H, W) uint8: 0.299 red + 0.587 green + 0.114 blue."""
    if image.pixels.ndim == 2:
        return image.pixels
    import cv2

    grey: NDArray[np.uint8] = cv2.cvtColor(image.pixels, cv2.COLOR_RGB2GRAY)
    return grey


AUDIT_MARK = ".sfumato-audit"
"""A file in the folder that an audit keeps beside its page."""


def list_images(place: str | os.PathLike[str]) -> list[tuple[str, Path]]:
    """Return (name, path) of one image file, or of all images in a folder and below it, sorted by name.

    Names are paths relative to the folder, with ``/``. Hidden files and folders are left out, and so is what an audit
    keeps beside its page: sample photos and second views must not be sealed by mistake. Links are followed; a folder
    that is reached twice is listed once.

    Raises ImageError if there is none, or if a folder cannot be listed.
    """
    place = Path(place)
    if not place.is_dir():
        _check_file(place)
        return [(_printable(place.name), place)]
    images = [(_printable(path.relative_to(place).as_posix()), path) for path in _walk(place, set())]
    if not images:
        raise ImageError(f"{place}: no images in it or below it; looked for {' '.join(SUFFIXES)}, in any case")
    twice = [name for name, count in Counter(name for name, _ in images).items() if count > 1]
    if twice:
        raise ImageError(f"{place}: two files would both be called {twice[0]!r:.80}: rename one of them")
    return sorted(images)


def image_format(head: bytes) -> str | None:
    """Return the format of an image by its first bytes; None for anything else."""
    if head[4:8] == b"ftyp":
        return "AVIF" if head[8:12] in (b"avif", b"avis") else "HEIC"
    if head[:4] == b"RIFF":
        return "WebP" if head[8:12] == b"WEBP" else None
    if head[:1] == b"P" and head[1:2] in b"123456" and head[2:3].isspace():
        return "PNM"
    return next((kind for start, kind in SIGNATURES.items() if head.startswith(start)), None)


def opencv_error(cause: Exception, error: SfumatoError) -> SfumatoError:
    """Return ``error`` for an error of OpenCV; raise MemoryError if memory was the cause."""
    if getattr(cause, "code", 0) == -4:
        raise MemoryError(str(error)) from cause
    return error


def _read_bytes(path: Path) -> bytes:
    _check_file(path)
    try:
        data = path.read_bytes()
    except OSError as cause:
        raise ImageError(f"{path} cannot be read: {cause.strerror}") from cause
    if not data:
        raise ImageError(f"{path} is empty (0 bytes): copy or export it again")
    return data


def _check_file(path: Path) -> None:
    try:
        status = path.stat()
    except (OSError, ValueError) as cause:
        reason = "is not there" if isinstance(cause, FileNotFoundError) else f"cannot be read: {cause}"
        raise ImageError(f"{str(path)!r} {reason}: check the path") from cause
    if stat.S_ISDIR(status.st_mode):
        raise ImageError(f"{path} is a folder, not an image: name a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise ImageError(f"{path} is not a regular file")
    if status.st_size > LARGEST_FILE:
        raise ImageError(f"{path} has {status.st_size} bytes, more than the {LARGEST_FILE} an image may have")


def _decode(path: Path, data: bytes) -> NDArray[np.uint8] | None:
    """Decode with OpenCV: blue-green-red or grey, orientation applied."""
    import cv2

    pixels: NDArray[np.uint8] | None
    with _quiet():
        try:
            pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_ANYCOLOR)
        except cv2.error as cause:
            error = ImageError(f"{path} cannot be decoded, it may be too large or damaged: {cause.err}")
            raise opencv_error(cause, error) from cause
    return pixels


def _clean_png(path: Path, data: bytes) -> bytes:
    """Check the chunks of a PNG and drop those without pixels: libpng would report them on standard error."""
    chunks, at = [data[:8]], 8
    while at + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 12 + length
        if end > len(data):
            break
        if kind in PNG_NEEDED:
            if zlib.crc32(memoryview(data)[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
                raise ImageError(f"{path}: the PNG image is damaged (wrong checksum): copy or export it again")
            chunks.append(data[at:end])
        if kind == b"IEND":
            return b"".join(chunks)
        at = end
    raise ImageError(f"{path}: the PNG image is cut off: copy or export it again")


def _walk(folder: Path, visited: set[tuple[int, int]]) -> Iterator[Path]:
    """Yield the image files of a folder and below it, each folder once."""
    try:
        status = folder.stat()
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as cause:
        raise ImageError(f"{folder} cannot be listed: {cause.strerror}") from cause
    if (status.st_dev, status.st_ino) in visited or (visited and (folder / AUDIT_MARK).exists()):
        return
    visited.add((status.st_dev, status.st_ino))
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if os.path.isdir(folder / entry.name):  # follows links, but not one that leads to itself
            yield from _walk(folder / entry.name, visited)
        elif Path(entry.name).suffix.lower() in SUFFIXES:
            yield folder / entry.name


def _printable(name: str) -> str:
    """Return a file name as text that can be written anywhere; bytes that are no UTF-8 become escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep OpenCV's log off standard error. The level belongs to the process: the last thread restores it."""
    global _quiet_depth, _level_before
    import cv2

    log = cv2.utils.logging
    with _quiet_lock:
        if _quiet_depth == 0:
            _level_before = log.setLogLevel(log.LOG_LEVEL_SILENT)
        _quiet_depth += 1
    try:
        yield
    finally:
        with _quiet_lock:
            _quiet_depth -= 1
            if _quiet_depth == 0:
                log.setLogLevel(_level_before)


# --- focal lengths from EXIF; place and time of the photo are not read


def focal_from_exif(path: str | os.PathLike[str], size: tuple[int, int]) -> float | None:
    """Return the focal length, in pixels of an image of (width, height), in the EXIF of a photo; None without one.

    The photo may be larger or smaller than ``size``, or lie on its side. COLMAP reads the tags, and knows the sensor
    width of many cameras.

    Raises ImageError if there is no such photo or it cannot be read.
    """
    pycolmap: Any = load_pycolmap()
    path = Path(path)
    if not path.is_file():
        raise ImageError(f"{str(path)!r} is not there: check the path")
    level = pycolmap.logging.minloglevel
    pycolmap.logging.minloglevel = int(pycolmap.logging.Level.FATAL)
    try:
        camera = pycolmap.infer_camera_from_image(str(path))
    except (RuntimeError, ValueError) as cause:
        raise ImageError(f"{path} cannot be read as an image: copy or export it again") from cause
    finally:
        pycolmap.logging.minloglevel = level
    if not camera.has_prior_focal_length:
        return None
    return float(camera.mean_focal_length() * max(size) / max(camera.width, camera.height))


def read_focal_lengths(
    folder: str | os.PathLike[str], sizes: Mapping[str, tuple[int, int]]
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the focal lengths, in pixels, that the EXIF of photos in a folder gives, and why others cannot be read.

    ``sizes``: (width, height) of each image by the name of its photo. Raises FileError if there is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileError(f"{folder} is not a folder of photos: check the path")
    lengths: dict[str, float] = {}
    problems: dict[str, str] = {}
    for name, size in sizes.items():
        try:
            focal = focal_from_exif(folder / name, size)  # a link is followed, as when the photo was concealed
        except ImageError as problem:
            problems[name] = str(problem)
            continue
        if focal is not None:
            lengths[name] = focal
    return lengths, problems
