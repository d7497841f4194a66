# SPDX-License-Identifier: Apache-2.0
"""Reader and writer of hloc's features.h5: one group per image, descriptors of any extractor and dimension.

The group of an image holds ``keypoints`` (N, 2), centre of the first pixel at 0, ``descriptors`` (D, N), and
optionally ``scales`` (N,), taken as sigma in pixels, ``oris`` (N,), degrees as OpenCV counts them, and
``image_size`` (2,). Without scales sigma is 1, without orientations the angle is 0. hloc's own SIFT hands on
COLMAP's keypoints, half a pixel to the right and down; they are read as they stand. The file is not
trusted: ``files.hdf5`` reads it in a process of its own, and refuses what hloc never writes.

What is written is clear, for evaluations on the device, and must not leave it.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError, SourceError
from sfumato.files.hdf5 import GroupContent, Hdf5Reader, new_hdf5
from sfumato.types.clear import Features
from sfumato.types.extractor import GENERIC_EXTRACTORS, Extractor, is_label

log = logging.getLogger(__name__)

KIND = "sfumato-extractor"
"""Attribute of a file that ``write_hloc`` wrote: the name of its descriptors. hloc does not read it."""

SETTINGS = {"source": "hloc"}
"""What is known of how features in such a file were made."""
DEEPEST = 60
ARRAYS = ("keypoints", "descriptors", "scales", "oris", "image_size")
OTHER_FILES = {
    "global_descriptor": "global descriptors of whole images",
    "matches0": "matches",
}
ADVICE = "hloc or sfumato extract makes such a file"


def read_hloc(path: str | os.PathLike[str], *, extractor: str | None = None) -> Iterator[tuple[str, Features]]:
    """Read the features of every image, one at a time, in the order of their names.

    ``extractor`` names the descriptors, by default as the file does (``extractor_in_hloc``) or its name
    (``guess_extractor``).

    Raises SourceError naming the file and the image.
    """
    file = _open_hloc(path)
    try:
        names, kind = _names(file), Extractor(choose_extractor(file, extractor), SETTINGS)
    except BaseException:
        file.close()
        raise

    def read() -> Iterator[tuple[str, Features]]:
        with file:
            for name in names:
                yield name, _read_image(file, name, kind)

    return read()


def list_hloc(path: str | os.PathLike[str], extractor: str | None = None) -> tuple[list[str], str]:
    """Return the names of all images in the file, sorted, and of their descriptors; no feature is read."""
    with _open_hloc(path) as file:
        return _names(file), choose_extractor(file, extractor)


def features_in_hloc(
    path: str | os.PathLike[str], names: Iterable[str], *, extractor: str
) -> Iterator[tuple[str, Features | SourceError]]:
    """Yield the features of the named images; a damaged image gives its error."""
    kind = Extractor(extractor, SETTINGS)
    with _open_hloc(path) as file:
        for name in names:
            try:
                yield name, _read_image(file, name, kind)
            except SourceError as problem:
                yield name, problem


def extractor_in_hloc(path: str | os.PathLike[str]) -> str | None:
    """Return the name that a file gives its descriptors; None for hloc's own files, which give none."""
    with _open_hloc(path) as file:
        return _extractor(file)


def choose_extractor(file: Hdf5Reader, extractor: str | None) -> str:
    """Return the name of the descriptors: the user's, else the file's, else the one in the file's name, else hloc."""
    name = extractor or _extractor(file) or guess_extractor(file.path)
    if name is None:
        log.warning(
            "%s: the file does not name its descriptors; they are called hloc (choose a name with --extractor)",
            file.path,
        )
    return name or "hloc"


def guess_extractor(path: str | os.PathLike[str]) -> str | None:
    """Return the name of the descriptors in one of hloc's file names; None for other file names.

    hloc calls the square root of SIFT ``sift``. The number of keypoints and the size of the images are left out.

    >>> guess_extractor("feats-superpoint-n4096-r1024.h5"), guess_extractor("feats-sift.h5")
    ('superpoint', 'rootsift')
    """
    match = re.fullmatch(r"feats-([a-z0-9]+(?:-[a-z0-9]+)*?)(?:-n\d{3,})?(?:-r(?:max)?\d+)?", Path(path).stem)
    name = match[1] if match else None
    return "rootsift" if name == "sift" else name


def _open_hloc(path: str | os.PathLike[str]) -> Hdf5Reader:
    return Hdf5Reader(path, "file of features", ADVICE, SourceError)


def _extractor(file: Hdf5Reader) -> str | None:
    with file.explain():
        name = file.texts().get(KIND)
    return name if is_label(name) and name not in GENERIC_EXTRACTORS else None


def _names(file: Hdf5Reader) -> list[str]:
    with file.explain():
        if file.texts().get("format") == "sfumato-archive":
            raise InputError("this is an archive of features that are already concealed")
        names, strangers = _find_images(file)
        if not names:
            what = next((text for key, text in OTHER_FILES.items() if key in strangers), None)
            raise InputError(
                f"it holds {what}, not local features" if what else "it holds no image with keypoints and descriptors"
            )
    return sorted(names)


def _find_images(file: Hdf5Reader) -> tuple[list[str], set[str]]:
    """Return the names of groups that should hold features, and the names of data outside of such groups."""
    names: list[str] = []
    incomplete: dict[str, None] = {}
    strangers: set[str] = set()
    addresses: set[int] = set()
    level = [("", -1)]
    while level:
        below = []
        for (name, address), members in zip(level, file.members([name for name, _ in level]), strict=True):
            if name and any(member.name in ("keypoints", "descriptors") for member in members):
                names.append(name)
                continue
            if address in addresses or name.count("/") > DEEPEST:
                raise InputError(f"group {name!r:.80} is nested in itself or too deep")
            addresses.add(address)
            for member in members:
                child = f"{name}/{member.name}" if name else member.name
                if member.kind == "link":
                    names.append(child)
                elif member.kind == "group":
                    below.append((child, int(member.detail)))
                else:
                    strangers.add(member.name)
                    incomplete[name] = None
        level = below
    return (names + [name for name in incomplete if name]) if names else [], strangers


def _read_image(file: Hdf5Reader, name: str, extractor: Extractor) -> Features:
    with file.explain(f", image {name}"):
        group = file.read(name, ARRAYS)
        if group is None:
            raise InputError("it is not in the file any more")
        points = _array(group, "keypoints", (None, 2))
        rows = _array(group, "descriptors", (None, len(points)))
        scales = _array(group, "scales", (len(points),)) if "scales" in group else np.ones(len(points))
        angles = _array(group, "oris", (len(points),)) if "oris" in group else np.zeros(len(points))
        size = _array(group, "image_size", (2,)) if "image_size" in group else None
        if (scales < 0).any():
            raise InputError("scales must not be negative")
        if size is not None and not np.isfinite(size).all():
            raise InputError("image_size is not two whole numbers")
        with np.errstate(invalid="ignore"):
            keypoints = np.column_stack([points, scales, np.mod(angles, 360)]).astype(np.float32)
        width_height = None if size is None else (int(size[0]), int(size[1]))
        return Features(keypoints, _exact_norms(rows.T), extractor, width_height)


def _array(group: GroupContent, key: str, shape: tuple[int | None, ...]) -> NDArray[np.float32]:
    data = group.array(key)
    if len(data.shape) != len(shape) or any(w is not None and w != g for w, g in zip(shape, data.shape, strict=True)):
        expected = ", ".join("any" if length is None else str(length) for length in shape)
        raise InputError(f"{key} has the shape {data.shape}, expected ({expected})")
    with np.errstate(over="ignore", invalid="ignore"):
        return data.astype(np.float32)


def _exact_norms(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return descriptors as they are, or scaled to unit norm where only rounding to float16 changed it."""
    if len(rows) == 0 or not np.isfinite(rows).all():
        return rows
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    if np.abs(norms - 1).max() > 0.01:
        return rows
    exact: NDArray[np.float32] = (rows / norms[:, None]).astype(np.float32)
    return exact


# --- writing

WARNING = "clear features: anyone who has this file can reconstruct the pictures"


def write_hloc(path: str | os.PathLike[str], images: Iterable[tuple[str, Features]]) -> int:
    """Write the features of images by name, atomically, for their owner only; return the number of images.

    A group holds ``keypoints`` (N, 2), ``descriptors`` (D, N), ``scales`` (N,), ``oris`` (N,), all float32, and
    ``image_size`` (2,) where it is known. An attribute of the file names the descriptors, if all are of one kind.

    Raises FileError if the file cannot be written, InputError for a name that cannot be the path of a group.
    """
    count, kinds = 0, set[str]()
    with new_hdf5(path, private=True) as file:
        for name, features in images:
            size = {} if features.image_size is None else {"image_size": np.array(features.image_size, np.int64)}
            try:
                file.add(name or "/", {**_arrays(features), **size})
            except InputError as cause:
                raise InputError(f"image name {cause}") from cause
            kinds.add(features.extractor.name)
            count += 1
        kind = {KIND: kinds.pop()} if len(kinds) == 1 and not kinds & set(GENERIC_EXTRACTORS) else {}
        file.add("", {}, {"": {"warning": WARNING, **kind}})
    return count


def _arrays(features: Features) -> dict[str, NDArray[np.float32]]:
    points, scales, angles = features.keypoints[:, :2], features.keypoints[:, 2], features.keypoints[:, 3]
    return {"keypoints": points, "descriptors": features.descriptors.T, "scales": scales, "oris": angles}
