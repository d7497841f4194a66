# SPDX-License-Identifier: Apache-2.0
"""Reader and writer of hloc's features.h5: one group per image, descriptors of any extractor and dimension.

The group of an image holds ``keypoints`` (N, 2), centre of the first pixel at 0, ``descriptors`` (D, N), and
optionally ``scales`` (N,), taken as sigma in pixels, ``oris`` (N,), degrees as OpenCV counts them, and
``image_size`` (2,). Without scales sigma is 1, without orientations the angle is 0. hloc's own SIFT hands on
COLMAP's keypoints, half a pixel to the right and down; they are read as they stand. The file is not
trusted: links, data in other files, unknown filters and arrays larger than the file can hold are refused.

What is written is clear, for evaluations on the device, and must not leave it.
"""

import logging
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError, SourceError
from sfumato.files.hdf5 import find_array, is_member
from sfumato.types.clear import Features
from sfumato.types.extractor import GENERIC_EXTRACTORS, Extractor, is_label

log = logging.getLogger(__name__)

KIND = "sfumato-extractor"
"""Attribute of a file that ``write_hloc`` wrote: the name of its descriptors. hloc does not read it."""

SETTINGS = {"source": "hloc"}
"""What is known of how features in such a file were made."""
DEEPEST = 64
ARCHIVES = ("sfumato-archive", b"sfumato-archive")
OTHER_FILES = {
    "global_descriptor": "global descriptors of whole images",
    "matches0": "matches",
}


def read_hloc(path: str | os.PathLike[str], *, extractor: str | None = None) -> Iterator[tuple[str, Features]]:
    """Read the features of every image, one at a time, in the order of their names.

    ``extractor`` names the descriptors, by default as the file does (``extractor_in_hloc``) or its name
    (``guess_extractor``).

    Raises SourceError naming the file and the image.
    """
    results = features_in_hloc(path, names_in_hloc(path), extractor=choose_extractor(path, extractor))

    def raise_errors() -> Iterator[tuple[str, Features]]:
        for name, features in results:
            if isinstance(features, SourceError):
                raise features
            yield name, features

    return raise_errors()


def names_in_hloc(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of all images in the file, sorted; no feature is read."""
    path = Path(path)
    with _open_hloc(path) as file, _error_place(path):
        mark = file.attrs.get("format")
        if path.name.endswith(".sfm.h5") or (isinstance(mark, str | bytes) and mark in ARCHIVES):
            raise SourceError("this is an archive of features that are already concealed")
        names, strangers = _find_images(file)
    if not names:
        what = next((text for key, text in OTHER_FILES.items() if key in strangers), None)
        content = f"holds {what}, not local features" if what else "holds no image with keypoints and descriptors"
        raise SourceError(f"{path} {content}: give the features.h5 that hloc extracted")
    return sorted(names)


def features_in_hloc(
    path: str | os.PathLike[str], names: Iterable[str], *, extractor: str
) -> Iterator[tuple[str, Features | SourceError]]:
    """Yield the features of the named images; a damaged image gives its error."""
    path = Path(path)
    kind = Extractor(extractor, SETTINGS)
    with _open_hloc(path) as file:
        for name in names:
            try:
                yield name, _read_image(path, file, name, kind)
            except SourceError as problem:
                yield name, problem


def choose_extractor(path: str | os.PathLike[str], extractor: str | None) -> str:
    """Return the name of the descriptors: the user's, else the file's, else the one in the file's name, else hloc."""
    name = extractor or extractor_in_hloc(path) or guess_extractor(path)
    if name is None:
        log.warning(
            "%s: the file does not name its descriptors; they are called hloc (choose a name with --extractor)", path
        )
    return name or "hloc"


def extractor_in_hloc(path: str | os.PathLike[str]) -> str | None:
    """Return the name that a file gives its descriptors; None for hloc's own files, which give none."""
    path = Path(path)
    with _open_hloc(path) as file, _error_place(path):
        name = file.attrs.get(KIND)
    return name if is_label(name) and name not in GENERIC_EXTRACTORS else None


def guess_extractor(path: str | os.PathLike[str]) -> str | None:
    """Return the name of the descriptors in one of hloc's file names; None for other file names.

    hloc calls the square root of SIFT ``sift``. The number of keypoints and the size of the images are left out.

    >>> guess_extractor("feats-superpoint-n4096-r1024.h5"), guess_extractor("feats-sift.h5")
    ('superpoint', 'rootsift')
    """
    match = re.fullmatch(r"feats-([a-z0-9]+(?:-[a-z0-9]+)*?)(?:-n\d{3,})?(?:-r(?:max)?\d+)?", Path(path).stem)
    name = match[1] if match else None
    return "rootsift" if name == "sift" else name


def _find_images(file: Any) -> tuple[list[str], set[str]]:
    """Return the names of groups that should hold features, and the names of data outside of such groups."""
    import h5py

    names: list[str] = []
    incomplete: dict[str, None] = {}
    strangers: set[str] = set()
    addresses: set[int] = set()
    todo = [(file, "")]
    while todo:
        group, name = todo.pop()
        keys = list(group)
        if name and ("keypoints" in keys or "descriptors" in keys):
            names.append(name)
            continue
        address = h5py.h5o.get_info(group.id).addr
        if address in addresses or name.count("/") > DEEPEST:
            raise SourceError(f"group {name!r:.80} is nested in itself or too deep")
        addresses.add(address)
        for key in keys:
            child = f"{name}/{key}" if name else key
            if not is_member(group, key):
                names.append(child)
            elif isinstance(entry := group[key], h5py.Group):
                todo.append((entry, child))
            else:
                strangers.add(key)
                incomplete[name] = None
    return (names + [name for name in incomplete if name]) if names else [], strangers


def _read_image(path: Path, file: Any, name: str, extractor: Extractor) -> Features:
    with _error_place(path, name):
        group = _group(file, name)
        points = _array(path, group, "keypoints", (None, 2))
        rows = _array(path, group, "descriptors", (None, len(points)))
        scales = _array(path, group, "scales", (len(points),)) if "scales" in group else np.ones(len(points))
        angles = _array(path, group, "oris", (len(points),)) if "oris" in group else np.zeros(len(points))
        size = _array(path, group, "image_size", (2,)) if "image_size" in group else None
        if (scales < 0).any():
            raise SourceError("scales must not be negative")
        with np.errstate(invalid="ignore"):
            keypoints = np.column_stack([points, scales, np.mod(angles, 360)]).astype(np.float32)
        width_height = None if size is None else (int(size[0]), int(size[1]))
        return Features(keypoints, _exact_norms(rows.T), extractor, width_height)


def _group(file: Any, name: str) -> Any:
    """Walk to an image's group without following any link."""
    group = file
    for part in name.split("/"):
        if not is_member(group, part):
            raise SourceError("the file links to somewhere else instead of holding the image: links are refused")
        group = group[part]
    return group


def _array(path: Path, group: Any, key: str, shape: tuple[int | None, ...]) -> NDArray[np.float32]:
    """Read a dataset of numbers after checking that the file really holds what it declares."""
    if key not in group:
        raise SourceError(f"{key} is missing")
    data = find_array(group, key, path.stat().st_size)
    if data.dtype.kind not in "fiu" or data.dtype.itemsize > 8:
        raise SourceError(f"{key} is not an array of numbers")
    if len(data.shape) != len(shape) or any(w is not None and w != g for w, g in zip(shape, data.shape, strict=True)):
        expected = ", ".join("any" if length is None else str(length) for length in shape)
        raise SourceError(f"{key} has the shape {data.shape}, expected ({expected})")
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(data[()]).astype(np.float32)


def _exact_norms(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return descriptors as they are, or scaled to unit norm where only rounding to float16 changed it."""
    if len(rows) == 0 or not np.isfinite(rows).all():
        return rows
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    if np.abs(norms - 1).max() > 0.01:
        return rows
    exact: NDArray[np.float32] = (rows / norms[:, None]).astype(np.float32)
    return exact


@contextmanager
def _open_hloc(path: Path) -> Iterator[Any]:
    import h5py

    try:
        file = h5py.File(path, "r", locking="best-effort")
    except (OSError, RuntimeError, ValueError) as cause:
        if not path.exists():
            raise SourceError(f"{path} is not there: check the path") from cause
        if isinstance(cause, PermissionError):
            raise SourceError(f"{path} cannot be read: check its permissions") from cause
        what = "a folder, not" if path.is_dir() else "not a complete HDF5 file, and so not"
        raise SourceError(f"{path} is {what} a file of features: hloc or sfumato extract makes one") from cause
    with file:
        yield file


@contextmanager
def _error_place(path: Path, name: str | None = None) -> Iterator[None]:
    """Name the file and the image in every error: a damaged file fails in many ways inside h5py."""
    where = str(path) if name is None else f"{path}, image {name}"
    try:
        yield
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, SystemError) as cause:
        raise SourceError(f"{where}: {cause}") from cause


# --- writing

WARNING = "clear features: anyone who has this file can reconstruct the pictures"


def write_hloc(path: str | os.PathLike[str], images: Iterable[tuple[str, Features]]) -> int:
    """Write the features of images by name, atomically; return the number of images.

    A group holds ``keypoints`` (N, 2), ``descriptors`` (D, N), ``scales`` (N,), ``oris`` (N,), all float32, and
    ``image_size`` (2,) where it is known. An attribute of the file names the descriptors, if all are of one kind.

    Raises FileError if the file cannot be written, InputError for a name that cannot be the path of a group.
    """
    import h5py

    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    count, kinds = 0, set[str]()
    try:
        with h5py.File(temporary, "x", libver="latest") as file:
            file.attrs["warning"] = WARNING
            for name, features in images:
                _write_image(file, name, features)
                kinds.add(features.extractor.name)
                count += 1
            if len(kinds) == 1 and not kinds & set(GENERIC_EXTRACTORS):
                file.attrs[KIND] = kinds.pop()
        os.replace(temporary, target)
    except OSError as cause:
        raise FileError(f"{target}: cannot write the features: {cause.strerror or cause}") from cause
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _write_image(file: object, name: str, features: Features) -> None:
    import h5py

    assert isinstance(file, h5py.File)
    parts = name.split("/")
    if not name or any(part in ("", ".", "..") for part in parts) or name in file:
        raise InputError(f"image name {name!r:.80}: a features file needs different names of plain parts")
    try:
        group = file.create_group(name)
        group.create_dataset("keypoints", data=features.keypoints[:, :2])
        group.create_dataset("descriptors", data=features.descriptors.T)
        group.create_dataset("scales", data=features.keypoints[:, 2])
        group.create_dataset("oris", data=features.keypoints[:, 3])
        if features.image_size is not None:
            group.create_dataset("image_size", data=list(features.image_size))
    except ValueError as cause:
        raise InputError(f"image name {name!r:.80} does not go beside the others in one file: {cause}") from cause
