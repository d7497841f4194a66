# SPDX-License-Identifier: Apache-2.0
"""Files of decoy databases, and the one that comes with the package. The format is in docs/format.md.

Lossless: a database that is read has the checksum of the one that was written. Nothing is unpickled, and nothing larger
than the file is allocated.
"""

import json
import os
import zipfile
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.decoys import Decoys, as_rootsift
from sfumato.errors import DecoyError, FileError, SfumatoError
from sfumato.files.atomic import write_file
from sfumato.files.npz import Types, read_npz
from sfumato.types.extractor import Extractor

FORMAT = "sfumato-decoys"
VERSION = 1
BUNDLED = "decoys-sift-65536.npz"
HEADER_KEYS = {"format", "version", "encoding", "parts", "extractor", "made", "checksum"}
TYPES: dict[str, Types] = {"header": ("|u1",), "entries": ("|u1", "<f4"), "permutation": ("<i4",), "labels": None}
BYTE_SCALE = 512  # SIFT's own: unit norm is 512


def save_decoys(path: str | os.PathLike[str], decoys: Decoys) -> None:
    """Write a database, atomically. Entries that are bytes over a common norm, as SIFT is, take one byte per number."""
    codes = encode_bytes(decoys.descriptors)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "encoding": "float32" if codes is None else "uint8",
        "parts": decoys.parts,
        "extractor": decoys.extractor.to_json(),
        "made": dict(decoys.made),
        "checksum": decoys.checksum,
    }
    members: dict[str, NDArray[Any]] = {
        "header": np.frombuffer(json.dumps(header, sort_keys=True, allow_nan=False).encode(), np.uint8),
        "entries": decoys.descriptors.astype("<f4") if codes is None else codes,
        "permutation": np.asarray(decoys.permutation, "<i4"),
    }
    if decoys.labels is not None:
        members["labels"] = decoys.labels.astype(decoys.labels.dtype.newbyteorder("<"))
    write_file(path, lambda file: np.savez(file, allow_pickle=False, **members))


def load_decoys(path: str | os.PathLike[str] | None = None) -> Decoys:
    """Read a database made by ``sfumato decoys build``; without a path, the bundled one for SIFT.

    Raises FileError for a missing, damaged or hostile file, or one of a newer version.
    """
    if path is None:
        bundled = resources.files("sfumato.concealment") / "data" / BUNDLED
        with resources.as_file(bundled) as file:
            return load_decoys(file)
    source = Path(path)
    try:
        members = read_npz(source, TYPES, optional=("labels",))
        header = _checked_header(members.pop("header"))
        decoys = Decoys(
            decode_bytes(members["entries"]) if header["encoding"] == "uint8" else members["entries"],
            Extractor.from_json(header["extractor"]),
            members["permutation"],
            header["parts"],
            members.get("labels"),
            header["made"],
        )
    except FileNotFoundError as cause:
        raise FileError(f"{source}: no such file; sfumato decoys build makes one") from cause
    except (OSError, zipfile.BadZipFile, SfumatoError, ValueError, KeyError, TypeError, EOFError) as cause:
        raise FileError(f"{source}: not a usable decoys file: {cause}") from cause
    except (NotImplementedError, RuntimeError, MemoryError) as cause:
        raise FileError(f"{source}: not a usable decoys file: it is damaged") from cause
    if decoys.checksum != header["checksum"]:
        raise FileError(f"{source}: the contents do not match their checksum; the file is damaged: build it again")
    return decoys


def as_decoys(decoys: Decoys | str | os.PathLike[str] | None) -> Decoys | None:
    """Return decoys as they are, or read from a file that is named; None stays None."""
    return decoys if isinstance(decoys, Decoys | None) else load_decoys(decoys)


def bundled_decoys(extractor: Extractor) -> Decoys:
    """Return the decoys that come with the package, for SIFT or RootSIFT; they are read once.

    Raises DecoyError for other descriptors.
    """
    if extractor.name not in ("sift", "rootsift"):
        raise DecoyError(
            f"the bundled decoys are SIFT, these features are {extractor.name}: build decoys of the same kind with "
            f"sfumato decoys build and pass them with --decoys"
        )
    return _bundled(extractor.name)


@cache
def _bundled(name: str) -> Decoys:
    return load_decoys() if name == "sift" else as_rootsift(_bundled("sift"))


def encode_bytes(descriptors: NDArray[np.float32]) -> NDArray[np.uint8] | None:
    """Return the bytes (N, n) that ``decode_bytes`` turns into exactly these descriptors, or None."""
    if descriptors.min() < 0:
        return None
    codes = round_to_bytes(descriptors)
    return codes if np.array_equal(decode_bytes(codes), descriptors) else None


def round_to_bytes(descriptors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Round non-negative descriptors (N, n) to bytes on SIFT's scale, or a smaller one where values exceed 255."""
    largest = np.maximum(descriptors.max(axis=1, keepdims=True), 1e-9).astype(np.float64)
    codes: NDArray[np.uint8] = np.rint(descriptors * np.minimum(BYTE_SCALE, 255 / largest)).astype(np.uint8)
    return codes


def decode_bytes(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return bytes (N, n) scaled to unit norm; sums are exact, so that every machine gives the same numbers."""
    squared = np.einsum("ni,ni->n", codes.astype(np.int64), codes.astype(np.int64))
    decoded: NDArray[np.float32] = (codes / np.sqrt(np.maximum(squared, 1))[:, None]).astype(np.float32)
    return decoded


def _checked_header(raw: NDArray[np.uint8]) -> dict[str, Any]:
    header = json.loads(raw.tobytes())
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise FileError("it is not a decoys file")
    if type(header.get("version")) is not int or header["version"] != VERSION:
        raise FileError(
            f"it has version {header.get('version')!r:.20}, this program reads version {VERSION}: update it"
        )
    if (
        set(header) != HEADER_KEYS
        or not isinstance(header["made"], dict)
        or header["encoding"] not in ("uint8", "float32")
    ):
        raise FileError("its header is incomplete")
    return header
