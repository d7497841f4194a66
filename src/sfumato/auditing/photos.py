# SPDX-License-Identifier: Apache-2.0
"""Photos of an audit: read, downscaled, and each with a second view through a known homography.

What cannot be used is named with the reason. The downscaled photos and the generated views are kept in a folder on the
user's machine; the same photos give the same files, so that what was measured on them is used again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.auditing.task import digest_data, short_digest
from sfumato.errors import ImageError
from sfumato.features.local import LocalParams, extract
from sfumato.files.atomic import write_file
from sfumato.images.homography import HomographyParams, HomographySequence, draw_homography, make_pair
from sfumato.images.read import read_image
from sfumato.inversion.metrics import SMALLEST_SIDE
from sfumato.types.clear import Image
from sfumato.types.extractor import is_label

LONGEST_NAME = 120
VIEW = HomographyParams()
"""How much the second view of a photo differs."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PreparedPhotos:
    """Photos to audit by name, a pair of views of each, and what was ``left_out`` and why.

    ``reduced`` counts the photos that were larger than the audit works on.
    """

    photos: Mapping[str, Path]
    pairs: Mapping[str, HomographySequence]
    left_out: Mapping[str, str]
    reduced: int = 0

    def __repr__(self) -> str:
        return f"PreparedPhotos({len(self.photos)} photos, {len(self.left_out)} left out)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhotoParams:
    """Settings of preparing photos: the longest ``side``, the ``seed`` of the views, ``local`` features."""

    side: int = 640
    seed: int = 0
    local: LocalParams = field(default_factory=lambda: LocalParams(max_features=1000))


def prepare_photos(
    photos: Mapping[str, Path],
    folder: str | Path,
    params: PhotoParams,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
) -> PreparedPhotos:
    """Read and reduce photos given by name, and make their second views below ``folder``.

    Raises ImageError if none can be used, FileError if the folder cannot be written.
    """
    usable, pairs, left_out, reduced = dict[str, Path](), dict[str, HomographySequence](), dict[str, str](), 0
    for full_name, path in progress(list(photos.items())):
        name = short_name(full_name)
        try:
            image = read_image(path, name)
            small = reduce_image(image, params.side)
            if min(small.size) < SMALLEST_SIDE:
                raise ImageError(f"a photo needs {SMALLEST_SIDE} pixels or more per side, it has {min(small.size)}")
            if not len(extract(small, params.local)):
                raise ImageError("no feature was found in it: there is nothing to send, and nothing to attack")
        except ImageError as problem:
            left_out[name] = str(problem).removeprefix(f"{path}").lstrip(": ")
            continue
        reduced += small.size != image.size
        usable[name], pairs[name] = _write(small, path, Path(folder), params.seed)
    if not usable:
        reasons = "; ".join(f"{name}: {why}" for name, why in list(left_out.items())[:3]) or "there is none"
        raise ImageError(f"no photo can be audited: {reasons}")
    return PreparedPhotos(usable, pairs, left_out, reduced)


def reduce_image(image: Image, side: int) -> Image:
    """Return a picture whose longer side has at most ``side`` pixels, averaged over what falls on each."""
    import cv2

    longest = max(image.size)
    if longest <= side:
        return image
    size = tuple(max(1, round(length * side / longest)) for length in image.size)
    return Image(np.asarray(cv2.resize(image.pixels, size, interpolation=cv2.INTER_AREA), np.uint8), image.name)


def short_name(name: str) -> str:
    """Return a name as it can stand in tables; what is too long loses its beginning.

    >>> short_name("holiday/cat.jpg")
    'holiday/cat.jpg'
    """
    shown = "".join(c if c.isprintable() else "?" for c in name)
    if shown == name and len(name) <= LONGEST_NAME and is_label(name):
        return name
    return f"…{shown[-LONGEST_NAME:].strip()} ({short_digest(name)[:6]})"


def _write(image: Image, source: Path, folder: Path, seed: int) -> tuple[Path, HomographySequence]:
    """Keep a photo and its second view; return the photo's path, and the pair."""
    name = short_digest(image.name, digest_data(source), image.size, seed)
    first, second = folder / f"{name}-1.png", folder / f"{name}-2.png"

    def draws() -> np.random.Generator:
        return np.random.default_rng([seed, int(name, 16)])

    if not first.exists():
        write_file(first, encode(".png", image.pixels), with_folder=True, private=True)
    if not second.exists():
        content = encode(".png", make_pair(image, draws(), VIEW).second.pixels)
        write_file(second, content, with_folder=True, private=True)
    homography = draw_homography(image.size, draws(), VIEW)
    return first, HomographySequence(image.name, "viewpoint", (first, second), (homography,))


def encode(suffix: str, pixels: NDArray[np.uint8], *settings: int) -> bytes:
    """Return a picture (H, W) or (H, W, 3), red-green-blue, as the bytes of a file; it carries no other facts.

    Raises ImageError where OpenCV cannot.
    """
    import cv2

    turned = np.ascontiguousarray(pixels[..., ::-1] if pixels.ndim == 3 else pixels)
    done, encoded = cv2.imencode(suffix, turned, list(settings))
    if not done:
        raise ImageError(f"OpenCV cannot encode this picture as {suffix}")
    return bytes(encoded.tobytes())
