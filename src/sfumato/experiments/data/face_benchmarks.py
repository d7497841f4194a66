# SPDX-License-Identifier: Apache-2.0
"""Faces to measure on: pairs to verify and labels to guess, as files of embeddings or benchmark files.

    pairs      npz with embedding (N, n), left, right (P,) rows, same (P,), fold (P,), and perhaps name (N,)
    pairs.txt  the list of Labeled Faces in the Wild, with embeddings that have names such as Aaron_Sorkin_0002
    labels     npz with embedding (N, n) and lists of N integers or texts; or any file of embeddings with a csv table of
               labels, whose first line names its columns and whose first column names the faces, as FairFace's do
    .bin       benchmarks of face recognition (lfw.bin, cfp_ff.bin, cfp_fp.bin, agedb_30.bin), which are pickles

A .bin file is a pickled pair: encoded pictures, and whether the pictures 2 i and 2 i + 1 show one person. Loading a
pickle runs whatever it names. Here its instructions are read by a machine of our own that has numbers, bytes, lists and
tuples, and no way to name, import or call anything: any other instruction ends it. Clear embeddings stay in memory.
"""

import csv
import io
import os
import pickletools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError
from sfumato.features.embeddings import read_column, read_embeddings
from sfumato.features.faces import PLACES, SIDE, FaceDetection, FaceParams, Network, OnnxNetwork
from sfumato.files.atomic import open_text, read_bytes, read_text
from sfumato.images.read import image_format
from sfumato.types.arrays import frozen_array
from sfumato.types.clear import Embeddings
from sfumato.types.progress import Progress, identity

PAIR_ARRAYS = ("left", "right", "same", "fold")
PAIR_ADVICE = (
    "pairs are an npz file with the lists left, right (row numbers), same (0 or 1) and fold beside embedding; or give "
    "LFW's pairs.txt with --embeddings FILE"
)
LABEL_ADVICE = (
    "give the labels as a list of that name in the npz file, one integer or text for each face, or as a csv table with "
    "--labels TABLE; --attribute says which are guessed"
)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class FacePairs:
    """Pairs: rows ``left`` and ``right`` (P,) of ``faces``, whether they are the ``same`` face, and their ``fold``."""

    faces: Embeddings
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    same: NDArray[np.bool_]
    fold: NDArray[np.int64]

    def __post_init__(self) -> None:
        count = len(np.asarray(self.left))
        for name in ("left", "right", "fold"):
            object.__setattr__(self, name, frozen_array(getattr(self, name), name, (count,), np.int64))
        rows = np.concatenate([self.left, self.right])
        if rows.size and (rows.min() < 0 or rows.max() >= len(self.faces)):
            raise InputError(f"pairs: a row is out of range, there are {len(self.faces)} faces")
        if (self.left == self.right).any():
            raise InputError("pairs: a face is paired with itself, which says nothing")
        same = np.asarray(self.same)
        if same.shape != (count,) or not np.isin(same, (0, 1)).all():
            raise InputError(f"same: expected {count} truth values, got {same.dtype} {same.shape}")
        object.__setattr__(self, "same", same.astype(bool))

    def __len__(self) -> int:
        return len(self.left)

    def __repr__(self) -> str:
        return f"FacePairs({len(self)} pairs of {self.faces!r}, {np.unique(self.fold).size} folds)"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class LabelledFaces:
    """Faces with what is known of them: ``labels`` maps an attribute to integers (N,)."""

    faces: Embeddings
    labels: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"LabelledFaces({self.faces!r}, {', '.join(self.labels)})"


def read_face_pairs(path: str | os.PathLike[str], embeddings: str | os.PathLike[str] | None = None) -> FacePairs:
    """Read pairs from an npz file, or from a pairs.txt whose names are looked up in a file of ``embeddings``.

    Raises FileError for a file that is missing, damaged, or lacks something.
    """
    path = Path(path)
    if path.suffix == ".txt":
        if embeddings is None:
            raise FileError(f"{path}: a list of names needs the embeddings of these faces: --embeddings FILE")
        return _join(path, read_pair_list(path), read_embeddings(Path(embeddings)))
    faces = read_embeddings(path)
    try:
        return FacePairs(faces, *(_column(path, name, PAIR_ADVICE) for name in PAIR_ARRAYS))
    except InputError as cause:
        raise FileError(f"{path}: {cause}") from cause


def read_labelled_faces(
    path: str | os.PathLike[str], attributes: Sequence[str], table: str | os.PathLike[str] | None = None
) -> LabelledFaces:
    """Read embeddings with some labels, of the same npz file or of a csv ``table``; texts become numbers, by alphabet.

    Raises FileError for a file that is missing, damaged, or lacks something.
    """
    faces = read_embeddings(Path(path))
    known = {} if table is None else read_label_table(table)
    labels = {}
    for name in dict.fromkeys(attributes):
        given = _column(path, name, LABEL_ADVICE) if table is None else _looked_up(table, known, name, faces.names)
        if given.shape != (len(faces),) or given.dtype.kind not in "iubU":
            raise FileError(f"{path}: {name!r:.80} is not one integer or text for each of {len(faces)} faces")
        labels[name] = np.unique(given, return_inverse=True)[1].astype(np.int64)
    return LabelledFaces(faces, labels)


def read_label_table(path: str | os.PathLike[str]) -> dict[str, dict[str, str]]:
    """Read a csv table of labels; return for each column but the first the text of every face, by its name."""
    try:
        with open_text(path, newline="") as lines:
            rows = [row for row in csv.reader(lines) if row]
    except csv.Error as cause:
        raise FileError(f"{path}: cannot read the labels: {cause}") from cause
    wrong = [number for number, row in enumerate(rows, 1) if len(row) != len(rows[0])]
    if len(rows) < 2 or wrong:
        raise FileError(f"{path}: not a table of labels" + (f": line {wrong[0]} has other columns" if wrong else ""))
    return {
        title.strip(): {row[0].strip(): row[at].strip() for row in rows[1:]} for at, title in enumerate(rows[0]) if at
    }


def _column(path: str | os.PathLike[str], name: str, advice: str) -> NDArray[Any]:
    try:
        return read_column(Path(path), name)
    except FileError as cause:
        raise FileError(f"{cause}; {advice}") from cause


def _looked_up(
    path: str | os.PathLike[str], known: Mapping[str, Mapping[str, str]], attribute: str, names: Sequence[str]
) -> NDArray[Any]:
    """Return the labels of some faces; FileError where one has none."""
    if attribute not in known:
        raise FileError(f"{path}: it has no column {attribute!r:.80}, but {', '.join(known)}")
    lost = [name for name in names if name not in known[attribute]]
    if lost:
        raise FileError(f"{path}: {len(lost)} faces have no {attribute}, the first is {lost[0]!r:.80}")
    return np.array([known[attribute][name] for name in names])


Pair = tuple[str, str, bool, int]
"""Two names of photos, whether they are of one person, and the fold."""


def read_pair_list(path: str | os.PathLike[str]) -> list[Pair]:
    """Read a pairs.txt: folds and pairs of each kind, then 'name 1 2' or 'name 1 other 3' in lines, fold by fold."""
    try:
        lines = [line.split() for line in read_text(path).splitlines() if line.strip()]
        head = [int(word) for word in lines[0]]
        folds, each = head if len(head) == 2 else (1, head[0])
        body = lines[1:]
        if folds < 1 or each < 1 or len(body) != 2 * folds * each:
            raise FileError(f"{path}: {2 * folds * each} pairs announced, {len(body)} there")
        return [_pair(words, number // (2 * each)) for number, words in enumerate(body)]
    except FileError:
        raise
    except (OSError, ValueError, IndexError) as cause:
        raise FileError(f"{path}: not a list of pairs such as that of Labeled Faces in the Wild") from cause


def _pair(words: Sequence[str], fold: int) -> Pair:
    if len(words) == 3:
        return _photo(words[0], words[1]), _photo(words[0], words[2]), True, fold
    name0, number0, name1, number1 = words
    return _photo(name0, number0), _photo(name1, number1), False, fold


def _photo(name: str, number: str) -> str:
    return f"{name}_{int(number):04d}"


def _join(path: str | os.PathLike[str], pairs: Sequence[Pair], faces: Embeddings) -> FacePairs:
    """Look up the names of pairs among those of embeddings."""
    row = {name: number for number, name in enumerate(faces.names)}
    lost = [name for one, other, _, _ in pairs for name in (one, other) if name not in row]
    if lost:
        raise FileError(f"{path}: {len(set(lost))} photos have no embedding, the first is {lost[0]!r:.80}")
    left, right = [row[one[0]] for one in pairs], [row[one[1]] for one in pairs]
    return FacePairs(
        faces, np.array(left), np.array(right), np.array([one[2] for one in pairs]), np.array([one[3] for one in pairs])
    )


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

    Raises FileError for a file that cannot be read, or holds anything but pictures and truth values.
    """
    data = read_bytes(path, LARGEST)
    try:
        pictures, same = _checked(_interpret(data))
    except FileError as cause:
        raise FileError(f"{path}: {cause}; a face benchmark holds pictures and truth values only") from cause
    return FaceBenchmark(pictures, same)


def open_face_pairs(
    path: Path, embeddings: Path | None = None, network: Path | None = None, progress: Progress = identity
) -> tuple[FacePairs, list[str]]:
    """Read pairs of embeddings, or of a benchmark file, whose pictures ``network`` describes; return what was lost too.

    Raises InputError for a benchmark file without a network.
    """
    if path.suffix != ".bin":
        return read_face_pairs(path, embeddings), []
    if network is None:
        raise InputError(f"{path}: its pictures need a network: --network arcface.onnx")
    return embed_benchmark(read_benchmark(path), OnnxNetwork(FaceParams(network=network)), progress)


def embed_benchmark(
    benchmark: FaceBenchmark, network: Network, progress: Callable[[Any], Any] = iter
) -> tuple[FacePairs, list[str]]:
    """Describe all pictures, which these files hold aligned; return the pairs, and which pictures cannot be read.

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
        rows.append(network.describe(pixels, FaceDetection(SIDE, PLACES, None)))
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
