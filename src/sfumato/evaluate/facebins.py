# SPDX-License-Identifier: Apache-2.0
"""The benchmark files of face recognition (lfw.bin, cfp_ff.bin, cfp_fp.bin, agedb_30.bin): pickles, read as data.

Such a file is a pickled pair: pictures, as they lie in image files, and whether the pictures 2 i and 2 i + 1 show one
person. Loading a pickle runs whatever it names. Here its instructions are read by a machine of our own that knows
numbers, bytes, lists and tuples, and has no way to name, import or call anything: any other instruction ends it.
"""

import io
import os
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError
from sfumato.evaluate.facedata import FacePairs
from sfumato.features.face import Network
from sfumato.features.facealignment import PLACES, SIDE
from sfumato.features.facefinder import Found
from sfumato.images.read import image_format
from sfumato.types.embeddings import Embeddings

LARGEST = 2**31
"""No benchmark is larger; they are read whole."""

FOLDS = 10

VALUES = {
    "INT", "BININT", "BININT1", "BININT2", "LONG1", "STRING", "BINSTRING", "SHORT_BINSTRING",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
}  # fmt: skip
"""Instructions that put their argument on the stack, and do nothing else."""

NOTHING = {"PROTO", "FRAME"}


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class FaceBenchmark:
    """``pictures`` (2 P) as bytes of image files; ``same`` (P,), whether pictures 2 i and 2 i + 1 are one face."""

    pictures: tuple[bytes, ...]
    same: NDArray[np.bool_]

    @property
    def fold(self) -> NDArray[np.int64]:
        """The ten folds (P,) that everybody uses with these files: equal runs of pairs, in order."""
        return np.arange(len(self.same), dtype=np.int64) * FOLDS // max(1, len(self.same))

    def __repr__(self) -> str:
        return f"FaceBenchmark({len(self.same)} pairs)"


def read_benchmark(path: str | os.PathLike[str]) -> FaceBenchmark:
    """Read a benchmark file without running anything in it.

    Raises FileError for a file that can not be read, or holds anything but pictures and truth values.
    """
    try:
        if Path(path).stat().st_size > LARGEST:
            raise FileError(f"{path}: larger than {LARGEST} bytes: no face benchmark")
        data = Path(path).read_bytes()
    except OSError as cause:
        if isinstance(cause, FileError):
            raise
        raise FileError(f"{path}: can not be read: {cause.strerror or cause}") from cause
    try:
        pictures, same = _checked(_interpret(data))
    except FileError as cause:
        raise FileError(f"{path}: {cause}; a face benchmark holds pictures and truth values only") from cause
    return FaceBenchmark(pictures, same)


def embed_benchmark(
    benchmark: FaceBenchmark, network: Network, progress: Callable[[Any], Any] = iter
) -> tuple[FacePairs, list[str]]:
    """Describe all pictures, which these files hold aligned; return the pairs, and which pictures can not be read.

    Pairs with such a picture are left out.
    """
    rows: list[NDArray[np.float32]] = []
    place, lost = np.full(len(benchmark.pictures), -1, np.int64), list[str]()
    for number, picture in enumerate(progress(benchmark.pictures)):
        pixels = _decode(picture)
        if pixels is None:
            lost.append(f"picture {number}: not an aligned face of {SIDE} x {SIDE} pixels")
            continue
        place[number] = len(rows)
        rows.append(network.describe(pixels, Found(SIDE, PLACES, None)))
    kept = np.flatnonzero((place[0::2] >= 0) & (place[1::2] >= 0))
    if not kept.size:
        raise FileError("the benchmark has no pair of pictures that can be read")
    faces = Embeddings(np.array(rows), (), network.extractor)
    return FacePairs(faces, place[0::2][kept], place[1::2][kept], benchmark.same[kept], benchmark.fold[kept]), lost


def _decode(picture: bytes) -> NDArray[np.uint8] | None:
    """Return the pixels (112, 112, 3) of an image file, red first; None if it is none."""
    import cv2

    if image_format(picture) is None:
        return None
    try:
        pixels = cv2.imdecode(np.frombuffer(picture, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:
        return None
    if pixels is None or pixels.shape != (SIDE, SIDE, 3):
        return None
    return np.ascontiguousarray(pixels[:, :, ::-1]).astype(np.uint8, copy=False)


class _Machine:
    """A stack, and a memory of what was remembered; values are plain."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memory: dict[int, Any] = {}

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    def last(self, count: int) -> list[Any]:
        if count > len(self.stack):
            raise IndexError
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise FileError("it appends to what is no list")
        target.extend(items)


Step = Callable[[_Machine, Any], object]

STEPS: dict[str, Step] = {
    "MARK": lambda m, _: m.marks.append(len(m.stack)),
    "EMPTY_LIST": lambda m, _: m.stack.append([]),
    "EMPTY_TUPLE": lambda m, _: m.stack.append(()),
    "LIST": lambda m, _: m.stack.append(m.since_mark()),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.since_mark())),
    "TUPLE1": lambda m, _: m.stack.append(tuple(m.last(1))),
    "TUPLE2": lambda m, _: m.stack.append(tuple(m.last(2))),
    "TUPLE3": lambda m, _: m.stack.append(tuple(m.last(3))),
    "APPEND": lambda m, _: m.extend(m.last(1)),
    "APPENDS": lambda m, _: m.extend(m.since_mark()),
    "NEWTRUE": lambda m, _: m.stack.append(True),
    "NEWFALSE": lambda m, _: m.stack.append(False),
    "MEMOIZE": lambda m, _: m.memory.__setitem__(len(m.memory), m.stack[-1]),
    "PUT": lambda m, at: m.memory.__setitem__(at, m.stack[-1]),
    "BINPUT": lambda m, at: m.memory.__setitem__(at, m.stack[-1]),
    "LONG_BINPUT": lambda m, at: m.memory.__setitem__(at, m.stack[-1]),
    "GET": lambda m, at: m.stack.append(m.memory[at]),
    "BINGET": lambda m, at: m.stack.append(m.memory[at]),
    "LONG_BINGET": lambda m, at: m.stack.append(m.memory[at]),
}
"""All that instructions can do here. None of these can name anything outside the file."""


def _interpret(data: bytes) -> Any:
    """Return the value that a pickle of plain values describes; FileError for any other file."""
    machine = _Machine()
    try:
        for instruction, argument, _ in pickletools.genops(io.BytesIO(data)):
            name = instruction.name
            if name == "STOP":
                return machine.last(1)[0]
            if name in VALUES:
                machine.stack.append(_latin(argument))
            elif name in STEPS:
                STEPS[name](machine, argument)
            elif name not in NOTHING:
                raise FileError(f"it asks for {name}, which is not done here")
    except FileError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, EOFError, OverflowError, UnicodeError) as cause:
        raise FileError("it is damaged, or no pickle") from cause
    raise FileError("it ends too early")


def _latin(argument: Any) -> Any:
    """Return the bytes of a text that Python 2 wrote; the parser reads those as Latin 1."""
    return argument.encode("latin-1") if isinstance(argument, str) else argument


def _checked(value: Any) -> tuple[tuple[bytes, ...], NDArray[np.bool_]]:
    """Return pictures and truths; FileError for other contents."""
    if (
        not isinstance(value, tuple | list)
        or len(value) != 2
        or not all(isinstance(one, list | tuple) for one in value)
    ):
        raise FileError("it does not hold a list of pictures and a list of truth values")
    pictures, same = value
    if not all(isinstance(one, bytes) for one in pictures):
        raise FileError("some pictures are no bytes")
    if not all(isinstance(one, bool | int) and one in (0, 1) for one in same):
        raise FileError("some truth values are neither true nor false")
    if len(pictures) != 2 * len(same):
        raise FileError(f"{len(pictures)} pictures do not make {len(same)} pairs")
    return tuple(pictures), np.array(same, bool)
