# SPDX-License-Identifier: Apache-2.0
"""Files of descriptor pairs. They hold clear descriptors: keep them where the photos are, and never publish them.

An uncompressed npz of ``header`` (JSON as bytes), ``first``, ``second``, ``points`` and ``groups``. Written whole or
not at all, read without unpickling anything, and nothing is allocated that the file does not hold.
"""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, SfumatoError
from sfumato.learn.pairs import DescriptorPairs
from sfumato.npzfile import read_npz
from sfumato.types.extractor import Extractor
from sfumato.whole import write_file

FORMAT, VERSION = "sfumato-pairs", 1
TYPES = {"header": "|u1", "first": "<f4", "second": "<f4", "points": "<i8", "groups": "<i4"}


def save_pairs(path: str | os.PathLike[str], pairs: DescriptorPairs) -> None:
    """Write pairs, atomically. What is written is clear: it must not leave the device.

    Raises FileError if the file can not be written.
    """
    header = {"format": FORMAT, "version": VERSION, "extractor": pairs.extractor.to_json()}
    members: dict[str, NDArray[Any]] = {
        "header": np.frombuffer(json.dumps(header, sort_keys=True).encode(), np.uint8),
        **{name: np.asarray(getattr(pairs, name), TYPES[name]) for name in TYPES if name != "header"},
    }
    write_file(path, lambda file: np.savez(file, allow_pickle=False, **members))


def load_pairs(path: str | os.PathLike[str]) -> DescriptorPairs:
    """Read what ``save_pairs`` wrote; the descriptors in it are clear.

    Raises FileError for a missing, damaged or hostile file, or one of another version.
    """
    source = Path(path)
    try:
        members = read_npz(source, {name: (kind,) for name, kind in TYPES.items()})
        header = json.loads(members.pop("header").tobytes())
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise FileError("it holds no pairs")
        if header.get("version") != VERSION:
            told = f"{header.get('version')!r:.20}"
            raise FileError(f"it has version {told}, this program reads version {VERSION}: update it")
        return DescriptorPairs(**members, extractor=Extractor.from_json(header["extractor"]))
    except FileNotFoundError as cause:
        raise FileError(f"{source}: no such file of pairs; check the path") from cause
    except (OSError, zipfile.BadZipFile, SfumatoError, ValueError, KeyError, TypeError, EOFError) as cause:
        raise FileError(f"{source}: not a usable file of pairs: {cause}") from cause
    except (NotImplementedError, RuntimeError, MemoryError) as cause:
        raise FileError(f"{source}: not a usable file of pairs: it is damaged") from cause
