# SPDX-License-Identifier: Apache-2.0
"""Clear features as hloc keeps them: a features.h5 with a group an image, for evaluations on the device.

What ``features.hloc`` reads back is what was written. The file is clear: it must not leave the device.
"""

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from sfumato.errors import FileError, InputError
from sfumato.features.hloc import KIND, UNTOLD
from sfumato.types.clear import Features

WARNING = "clear features: whoever has this file can show the pictures"


def write_hloc(path: str | os.PathLike[str], images: Iterable[tuple[str, Features]]) -> int:
    """Write the features of images by name, atomically; return how many images there were.

    A group holds ``keypoints`` (N, 2), ``descriptors`` (D, N), ``scales`` (N,), ``oris`` (N,), all float32, and
    ``image_size`` (2,) where it is known. An attribute of the file says what the descriptors are, if all are the same.

    Raises FileError if the file can not be written, InputError for a name that is no path of a group.
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
            if len(kinds) == 1 and not kinds & set(UNTOLD):
                file.attrs[KIND] = kinds.pop()
        os.replace(temporary, target)
    except OSError as cause:
        raise FileError(f"{target}: can not write the features: {cause.strerror or cause}") from cause
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
