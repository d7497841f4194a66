# SPDX-License-Identifier: Apache-2.0
"""Files of trained networks: named arrays and facts about them, in the safetensors format.

Written atomically. Read with numpy alone, so that networks run where neither torch nor the safetensors library is
installed. The sizes that a file declares are checked against its bytes before anything is allocated; nothing in it is
executed.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError
from sfumato.files.atomic import write_file

KINDS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1"}
"""The types of numbers that are written and read: the format's name and numpy's."""
LARGEST_HEADER = 2**24
LARGEST_FILE = 2**33
FACTS = "sfumato"

Arrays = dict[str, NDArray[Any]]


def save_checkpoint(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
    """Write named arrays and facts (plain JSON values), atomically.

    Raises FileError if the file cannot be written; an old file is then as it was.
    """
    save_tensors(path, arrays, {FACTS: json.dumps(dict(facts), sort_keys=True, allow_nan=False)})


def save_tensors(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], texts: Mapping[str, str]) -> None:
    """Write named arrays and texts about them as a plain safetensors file, atomically; raise FileError on failure.

    The same arrays and texts give the same bytes.
    """
    header: dict[str, Any] = {"__metadata__": dict(texts)}
    parts, at = [], 0
    names = {np.dtype(numpy_name): name for name, numpy_name in KINDS.items()}
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        array = array.astype(array.dtype.newbyteorder("<"))
        header[name] = {
            "dtype": names[array.dtype],
            "shape": list(arrays[name].shape),
            "data_offsets": [at, at + array.nbytes],
        }
        parts.append(array.tobytes())
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    write_file(path, lambda file: file.writelines([len(text).to_bytes(8, "little"), text, *parts]))


def load_checkpoint(path: str | os.PathLike[str], kind: str | None = None) -> tuple[Arrays, dict[str, Any]]:
    """Read the named arrays and the facts of a file; its fact ``kind`` must be ``kind``, unless that is None.

    A safetensors file of another program has no facts.

    Raises FileError if it is missing, damaged, hostile, or of another kind.
    """
    arrays, texts = load_tensors(path)
    source = Path(path)
    try:
        facts = json.loads(texts.get(FACTS, "{}"))
        if not isinstance(facts, dict):
            raise ValueError("its facts are not a mapping")
    except (ValueError, RecursionError) as cause:
        raise FileError(f"{source}: not a usable safetensors file: it is damaged or cut off ({cause})") from cause
    if kind is not None and facts.get("kind") != kind:
        actual = facts.get("kind", "another program's network")
        raise FileError(f"{source}: expected {kind}, it holds {actual!s:.80}: give another file, or train one")
    return arrays, facts


def load_tensors(path: str | os.PathLike[str]) -> tuple[Arrays, dict[str, str]]:
    """Read the named arrays of a safetensors file and the texts about them.

    Raises FileError if it is missing, damaged or hostile.
    """
    source = Path(path)
    try:
        if not source.is_file():
            raise FileError(f"{source}: no such file; check the path")
        if source.stat().st_size > LARGEST_FILE:
            raise FileError(f"{source}: more than {LARGEST_FILE // 2**30} GB, not a network of ours")
        return _parse(source.read_bytes())
    except OSError as cause:
        if isinstance(cause, FileError):
            raise
        raise FileError(f"{source}: cannot be read: {cause.strerror or cause}") from cause
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as cause:
        raise FileError(f"{source}: not a usable safetensors file: it is damaged or cut off ({cause})") from cause


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


def _parse(data: bytes) -> tuple[Arrays, dict[str, str]]:
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(LARGEST_HEADER, len(data) - 8):
        raise ValueError("no header")
    header = json.loads(data[8 : 8 + size])
    texts = header.pop("__metadata__", {})
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ValueError("its metadata is not a mapping of texts")
    arrays, content = {}, memoryview(data)[8 + size :]
    spans = []
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        if any(type(number) is not int for number in (start, end, *shape)):
            raise ValueError(f"{name!r:.80} has a size that is not a whole number")
        dtype = np.dtype(KINDS[entry["dtype"]])
        count = int(np.prod(shape, dtype=object)) if shape else 1
        if min(shape, default=0) < 0 or not 0 <= start <= end <= len(content) or count * dtype.itemsize != end - start:
            raise ValueError(f"{name!r:.80} declares another size than it has")
        spans.append((start, end))
        arrays[name] = np.frombuffer(content[start:end], dtype).reshape(shape)
    ends = [0, *(end for _, end in sorted(spans))]
    if [start for start, _ in sorted(spans)] != ends[:-1] or ends[-1] != len(content):
        raise ValueError("its arrays overlap, or leave bytes that belong to none")
    return arrays, texts
