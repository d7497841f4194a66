# SPDX-License-Identifier: Apache-2.0
"""Files of named arrays and texts about them, in the safetensors format: networks, decoys, codebooks and indexes.

Written atomically, with a digest of all that is in them; a file whose digest does not fit is refused. Files of other
programs have none and are read without. The safetensors library reads and writes; it compares the sizes that a file
declares with its bytes before anything is allocated, and executes nothing.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError
from sfumato.files.atomic import ANY_SIZE, open_file, write_file

KINDS = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1",
}  # fmt: skip
"""The types of numbers that are written and read: the format's name and numpy's."""
LARGEST_HEADER = 2**24
LARGEST_FILE = 2**33
FACTS, DIGEST, TEXTS = "sfumato", "digest", "__metadata__"

Arrays = dict[str, NDArray[Any]]


def save_checkpoint(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
    """Write named arrays and facts (plain JSON values), atomically.

    Raises FileError if the file cannot be written; an old file is then as it was.
    """
    save_tensors(path, arrays, {FACTS: json.dumps(dict(facts), sort_keys=True, allow_nan=False)})


def save_tensors(
    path: str | os.PathLike[str],
    arrays: Mapping[str, NDArray[Any]],
    texts: Mapping[str, str],
    *,
    with_folder: bool = False,
    private: bool = False,
) -> None:
    """Write named arrays and texts about them as a plain safetensors file, atomically; raise FileError on failure.

    The same arrays and texts give the same bytes, whatever their order. ``with_folder`` and ``private`` are those of
    ``write_file``.
    """
    from safetensors.numpy import save

    little = {name: np.require(array, array.dtype.newbyteorder("<"), "C") for name, array in arrays.items()}
    content = memoryview(save(little, {**texts, DIGEST: _digest(little, texts)}))
    header = _sorted_header(bytes(content[8 : 8 + _header_size(content[:8])]))

    def write(file: BinaryIO) -> None:
        file.writelines([content[:8], header, content[8 + len(header) :]])

    write_file(path, write, with_folder=with_folder, private=private)


def _sorted_header(text: bytes) -> bytes:
    """Return a header of the same length with its texts sorted: the library has them in another order each time."""
    header = json.loads(text)
    header = {TEXTS: dict(sorted(header.pop(TEXTS).items())), **header}
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(len(text))


def _digest(arrays: Mapping[str, NDArray[Any]], texts: Mapping[str, str]) -> str:
    """Return a digest of texts and arrays, with their names, types and shapes."""
    table = [[name, arrays[name].dtype.str, list(arrays[name].shape)] for name in sorted(arrays)]
    digest = hashlib.blake2b(json.dumps([dict(texts), table], sort_keys=True).encode(), digest_size=32)
    for name in sorted(arrays):
        digest.update(arrays[name].reshape(-1).view(np.uint8).data if arrays[name].size else b"")
    return digest.hexdigest()


def load_checkpoint(path: str | os.PathLike[str], kind: str | None = None) -> tuple[Arrays, dict[str, Any]]:
    """Read the named arrays and the facts of a file; its fact ``kind`` must be ``kind``, unless that is None.

    A safetensors file of another program has no facts.

    Raises FileError if it is missing, damaged, hostile, or of another kind.
    """
    arrays, texts = load_tensors(path)
    with _explain_damage(path):
        facts = json.loads(texts.get(FACTS, "{}"))
        if not isinstance(facts, dict):
            raise ValueError("its facts are not a mapping")
    if kind is not None and facts.get("kind") != kind:
        actual = facts.get("kind", "another program's network")
        raise FileError(f"{path}: expected {kind}, it holds {actual!s:.80}: give another file, or train one")
    return arrays, facts


def load_tensors(path: str | os.PathLike[str], *, need_digest: bool = False) -> tuple[Arrays, dict[str, str]]:
    """Read the named arrays of a safetensors file and the texts about them.

    Raises FileError if it is missing, damaged or hostile, or lacks a digest that it needs.
    """
    from safetensors import safe_open

    with _explain_damage(path), open_file(path, LARGEST_FILE) as file:
        _header_size(file.read(8))
        with safe_open(path, framework="np", backend="pread") as content:
            kinds = {name: content.get_slice(name).get_dtype() for name in content.keys()}  # noqa: SIM118
            _check_kinds(kinds)
            arrays = {name: content.get_tensor(name) for name in kinds}
            texts = dict(content.metadata() or {})
        for array in arrays.values():
            array.flags.writeable = False
        return arrays, _check_digest(arrays, texts, need_digest)


def map_tensors(path: str | os.PathLike[str], *, verify: bool = True) -> tuple[Arrays, dict[str, str]]:
    """Return what ``load_tensors`` does of a file of any size with a digest, its arrays mapped into memory.

    ``verify`` reads every array once and compares the digest; sizes are always checked.
    """
    from safetensors import safe_open

    with _explain_damage(path), open_file(path, ANY_SIZE) as file:
        at = 8 + _header_size(file.read(8))
        arrays: Arrays = {}
        with safe_open(path, framework="np", backend="pread") as content:
            texts = dict(content.metadata() or {})
            for name in content.offset_keys():
                entry = content.get_slice(name)
                _check_kinds({name: entry.get_dtype()})
                dtype, shape = np.dtype(KINDS[entry.get_dtype()]), tuple(entry.get_shape())
                count = int(np.prod(shape, dtype=object))
                mapped = np.memmap(file, dtype, "r", at, shape) if count else np.zeros(shape, dtype)
                arrays[name] = np.asarray(mapped)
                at += count * dtype.itemsize
        if verify:
            return arrays, _check_digest(arrays, texts, need=True)
        return arrays, {name: text for name, text in texts.items() if name != DIGEST}


def format_of(path: str | os.PathLike[str]) -> str:
    """Return the text ``format`` of a safetensors file, by its header alone; an empty one for any other file."""
    try:
        with open_file(path, ANY_SIZE) as file:
            header = json.loads(file.read(_header_size(file.read(8))))
        return str(header[TEXTS]["format"])
    except (FileError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def _check_digest(arrays: Mapping[str, NDArray[Any]], texts: Mapping[str, str], need: bool) -> dict[str, str]:
    """Return texts without their digest; raise ValueError unless it is that of the arrays and the other texts."""
    others = {name: text for name, text in texts.items() if name != DIGEST}
    if DIGEST not in texts and need:
        raise ValueError("it has no digest")
    if DIGEST in texts and texts[DIGEST] != _digest(arrays, others):
        raise ValueError("its digest is that of other contents")
    return others


def _header_size(start: bytes | memoryview) -> int:
    """Return the size of the header that the first bytes of a file declare."""
    size = int.from_bytes(start, "little")
    if bytes(start[:2]) == b"PK":
        raise ValueError("it is an npz file, as older versions wrote them: make it again")
    if len(start) < 8 or size > LARGEST_HEADER:
        raise ValueError("no header")
    return size


def _check_kinds(kinds: Mapping[str, str]) -> None:
    for name, kind in kinds.items():
        if kind not in KINDS:
            raise ValueError(f"{name!r:.80} holds {kind!s:.20}, and not numbers of a type that is read here")


@contextmanager
def _explain_damage(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what the library, numpy and JSON raise for a damaged file into a FileError that names it."""
    from safetensors import SafetensorError

    try:
        yield
    except FileError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, OverflowError, RecursionError, MemoryError) as cause:
        raise FileError(f"{path}: it is not a safetensors file, or damaged ({cause})") from cause


def checked_arrays(arrays: Arrays, shapes: Mapping[str, tuple[int, ...]], path: str | os.PathLike[str]) -> Arrays:
    """Return the arrays as float32; raise FileError unless they are exactly those of ``shapes``, and finite."""
    problems = [f"{name} is missing" for name in shapes if name not in arrays]
    problems += [f"{name!r:.80} does not belong there" for name in arrays if name not in shapes]
    for name, shape in shapes.items():
        if name in arrays and arrays[name].shape != shape:
            problems.append(f"{name} has shape {arrays[name].shape}, expected {shape}")
        elif name in arrays and not np.isfinite(arrays[name]).all():
            problems.append(f"{name} holds numbers that are not finite")
    if problems:
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise FileError(f"{path}: not the network it claims to be: {'; '.join(problems[:5])}{more}")
    return {name: arrays[name].astype(np.float32) for name in shapes}
