# SPDX-License-Identifier: Apache-2.0
"""Rows of archived images: names, headers, digests, blobs, and the rule that nothing clear goes in.

Opens no file. A row may come from a hostile one: every type and size is checked before a blob is believed, and problems
are an InputError that the caller completes with file and image. docs/reference/file_formats.md is the text that
rows follow. What does not depend on rows, the form of a code and its arrays, serves ``store.frames`` too.
"""

import hashlib
import math
import struct
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import ArchiveError, InputError
from sfumato.files.hdf5 import SIGNATURE
from sfumato.files.sqlite import LARGEST_VALUE, FileKind
from sfumato.types.arrays import checked_focal, checked_size
from sfumato.types.concealed import (
    CANONICAL,
    TAG_BYTES,
    Bits,
    Code,
    ConcealedFeatures,
    Points,
    RowTags,
    Subspaces,
    is_canonical,
)
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import LARGEST_DIM, OLD_START, Recipe

TABLE = """CREATE TABLE image (
    name TEXT PRIMARY KEY NOT NULL,
    count INTEGER NOT NULL,
    dim INTEGER NOT NULL,
    ambient_dim INTEGER NOT NULL,
    dtype TEXT NOT NULL,
    recipe TEXT NOT NULL,
    extractor TEXT NOT NULL,
    width INTEGER,
    height INTEGER,
    focal_px REAL,
    data TEXT NOT NULL,
    checksum TEXT NOT NULL,
    keypoints BLOB NOT NULL,
    code BLOB NOT NULL
) STRICT"""

TAGS = """CREATE TABLE tags (
    name TEXT PRIMARY KEY NOT NULL,
    photo TEXT NOT NULL,
    checksum TEXT NOT NULL,
    tags BLOB NOT NULL
) STRICT"""
"""Names under the key and tags of the rows of images whose positions stay home."""

RELEASE = """CREATE TABLE release (
    name TEXT PRIMARY KEY NOT NULL,
    count INTEGER NOT NULL,
    checksum TEXT NOT NULL,
    numbers BLOB NOT NULL,
    positions BLOB NOT NULL
) STRICT"""
"""Positions that left the device later: numbers of rows, ascending, and where they are."""

ARCHIVE = FileKind(
    name="a Sfumato archive",
    mark=0x53666D41,
    version=2,
    tables=(TABLE, TAGS, RELEASE),
    older=((1, (TABLE,)),),
    advice="give another file, or make the archive again (sfumato conceal)",
    error=ArchiveError,
    earlier=(SIGNATURE, "this is an HDF5 file, as archives of earlier versions were, which this version does not read"),
)

BITS = "bits"
DTYPES = {"float32": "<f4", "float16": "<f2", BITS: "|u1"}
"""What a code is stored as. Bits are what a seal makes, and only that."""
TOLERANCES = {"float32": 1.5 * CANONICAL, "float16": 2e-3}
"""How far from canonical an array may be: float16 rounds each value by up to 2^-11 of it, a product by up to
2^-10."""

LONGEST_NAME = 1024
LONGEST_TEXT = 32_768
LARGEST_COUNT = 2**31 - 1
NUMBERS_AT_ONCE = 2**16
"""Of subspaces that are checked at once."""
NO_FRAME = np.array([1, 0], "<f4").view("<u4")
"""Size and angle of a keypoint of which only the position was released, to the bit."""

Described = TypeVar("Described", Recipe, Extractor)
Blob = bytes | memoryview


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Everything about one archived image but its blobs.

    ``count`` features (N), subspaces of dimension ``dim`` (m) in ``ambient_dim`` (n) dimensions, or so many bits, as
    ``dtype`` (float32, float16 or bits). ``data`` is the digest of the blobs. ``focal_px`` is None unless the owner
    released it. ``frames``: sizes and angles of keypoints are stored, and not only positions; ``is_home``: not even
    these, which stay on the device but for those that were released later.
    """

    name: str
    count: int
    dim: int
    ambient_dim: int
    dtype: str
    recipe: Recipe
    extractor: Extractor
    image_size: tuple[int, int] | None
    data: str
    focal_px: float | None = None
    frames: bool = True
    is_home: bool = False

    def __post_init__(self) -> None:
        checked_name(self.name)
        check_form(self)
        if self.nbytes > LARGEST_VALUE - 2**18:
            raise InputError(f"{self.count} features are more than an archive holds for one image: divide them")

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of keypoints and code."""
        code = sum(map(math.prod, code_shapes(self))) * np.dtype(DTYPES[self.dtype]).itemsize
        return 4 * self.count * (0 if self.is_home else 4 if self.frames else 2), code

    @property
    def nbytes(self) -> int:
        """Size of the blobs in the file."""
        return sum(self.sizes)

    @property
    def values(self) -> tuple[Any, ...]:
        """The columns of the row in front of the checksum."""
        size = self.image_size or (None, None)
        numbers = self.count, self.dim, self.ambient_dim, self.dtype
        return self.name, *numbers, *texts_of(self), *size, self.focal_px, self.data

    @property
    def checksum(self) -> str:
        """The digest of everything here, the digest of the blobs included."""
        return digest_lines(self.values)


# --- the form of a code


class CodeHeader(Protocol):
    """What headers of archived images and of frames have in common."""

    @property
    def count(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def ambient_dim(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def recipe(self) -> Recipe: ...
    @property
    def extractor(self) -> Extractor: ...


def check_form(header: CodeHeader) -> None:
    """Raise InputError for numbers out of range, for what is clear, and for a code that the recipe does not make."""
    count, dim, ambient_dim, recipe = header.count, header.dim, header.ambient_dim, header.recipe
    if header.dtype not in DTYPES:
        raise InputError(f"dtype: expected one of {', '.join(DTYPES)}, got {header.dtype!r:.80}")
    if not (0 <= count <= LARGEST_COUNT and 1 <= ambient_dim <= LARGEST_DIM):
        raise InputError(f"{count} features of {ambient_dim} dimensions are outside what can be stored")
    if not 0 <= dim <= ambient_dim:
        raise InputError(f"{dim} directions cannot be independent in {ambient_dim} dimensions")
    refuse_clear(recipe, dim)
    if recipe.dim != dim:
        raise InputError(f"recipe {recipe} makes subspaces of dimension {recipe.dim}, these have {dim}")
    if (header.dtype == BITS) != recipe.is_sealed:
        raise InputError(f"recipe {recipe} makes {'bits' if recipe.is_sealed else 'no bits'}, this is {header.dtype}")
    if recipe.is_sealed and (recipe.links[-1].dim != ambient_dim or ambient_dim % 8):
        raise InputError(f"recipe {recipe} does not make {ambient_dim} bits, eight to a byte")
    last = recipe.links[-1 if dim == 0 else -2] if len(recipe.links) > (dim > 0) else None
    if last is not None and last.kind == "compress" and last.dim != ambient_dim:
        raise InputError(f"recipe {recipe} makes points of {last.dim} dimensions, these have {ambient_dim}")


def refuse_clear(recipe: Recipe, dim: int) -> None:
    """Raise InputError for what would be, or would count as, a clear descriptor."""
    if recipe.is_clear or (dim == 0 and not recipe.has_encoder):
        raise InputError(
            f"recipe {recipe} with subspaces of dimension {dim} leaves descriptors in the clear, and those stay on the "
            f"device; conceal them there, for example with: sfumato conceal photos/ -o private.sfm"
        )


def stored_dtype(code: Code, dtype: str) -> str:
    """Return what a code is stored as: bits whatever ``dtype`` is; raise InputError for other codes as bits."""
    if dtype == BITS and not isinstance(code, Bits):
        raise InputError("this is not the bits of a seal; use dtype='float32'")
    return BITS if isinstance(code, Bits) else dtype


def code_shapes(header: CodeHeader) -> list[tuple[int, ...]]:
    """Return the shapes of the arrays of a code as they are stored: bits; or origin and, but for points, basis."""
    if header.dtype == BITS:
        return [(header.count, header.ambient_dim // 8)]
    origin, basis = (header.count, header.ambient_dim), (header.count, header.dim, header.ambient_dim)
    return [origin, basis] if header.dim else [origin]


def code_arrays(code: Code, dtype: str) -> list[NDArray[Any]]:
    """Return the arrays of a code as they are stored; raise InputError for values that float16 cannot hold."""
    if isinstance(code, Bits):
        return [code.packed]
    arrays = []
    for array in (code.origin, code.basis) if code.dim else (code.origin,):
        with np.errstate(over="ignore"):
            arrays.append(np.ascontiguousarray(array, DTYPES[dtype]))
        if not np.isfinite(arrays[-1]).all():
            raise InputError("some values are too large for float16; use dtype='float32'")
    return arrays


def code_of(header: CodeHeader, arrays: Sequence[NDArray[Any]]) -> Code:
    """Return the code of the arrays that were stored; raise InputError for values that none has.

    float32 and bits come back bit for bit; float16 is converted and made canonical again.
    """
    if header.dtype == BITS:
        return Bits(arrays[0])
    if not all(np.isfinite(array).all() for array in arrays):
        raise InputError("some of its values are not finite")
    numbers = [array.astype(np.float32, copy=False) for array in arrays]
    if header.dim:
        _settle_canonical(header.dtype, *numbers)
    for array in numbers:
        array.setflags(write=False)
    return Subspaces(*numbers) if header.dim else Points(numbers[0])


def _settle_canonical(dtype: str, origin: NDArray[np.float32], basis: NDArray[np.float32]) -> None:
    """Make subspaces of float16 canonical again, in place; raise InputError for what never was.

    A few rows at a time: float64 of all would take many times the memory of the file.
    """
    step = max(1, NUMBERS_AT_ONCE // (basis.shape[1] * basis.shape[2]))
    for start in range(0, len(basis), step):
        rows = slice(start, start + step)
        if not is_canonical(origin[rows], basis[rows], TOLERANCES[dtype]):
            raise InputError("some of its bases are not orthonormal, or origins not orthogonal to them")
        if dtype == "float16":
            exact = Subspaces(origin[rows], basis[rows])
            origin[rows], basis[rows] = exact.origin, exact.basis


def without_frames(positions: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return keypoints (N, 4) of which only positions (N, 2) were released."""
    return np.concatenate((positions, np.tile(NO_FRAME.view("<f4"), (len(positions), 1))), axis=1)


def nowhere(count: int) -> NDArray[np.float32]:
    """Return keypoints (N, 4) that all stay home."""
    return np.full((count, 4), np.nan, np.float32)


# --- names, digests and texts


def checked_name(name: Any) -> str:
    """Return the name of an image: valid Unicode without control characters, 1 to 1,024 bytes in UTF-8.

    >>> checked_name("photos/desk 1.jpg")
    'photos/desk 1.jpg'
    """
    if not isinstance(name, str) or not name:
        raise InputError(f"image name: expected a text that is not empty, got {name!r:.80}")
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError as cause:
        raise InputError(f"image name {name!r:.80} is not valid Unicode; rename the image") from cause
    if size > LONGEST_NAME:
        raise InputError(f"image name {name!r:.40}... has {size} bytes, at most {LONGEST_NAME} are allowed; rename it")
    if not name.isprintable() and any(unicodedata.category(letter) == "Cc" for letter in name):
        raise InputError(f"image name {name!r:.80} has control characters; rename the image")
    return name


def is_name(name: object) -> bool:
    """Tell whether an archive can have an image of this name."""
    try:
        checked_name(name)
    except InputError:
        return False
    return True


def digest(parts: Iterable[Blob]) -> str:
    """Return the SHA-256 digest of the parts, as 64 hexadecimal digits."""
    state = hashlib.sha256()
    for part in parts:
        state.update(part)
    return state.hexdigest()


def digest_lines(values: Iterable[str | int | float | None]) -> str:
    """Return the digest of the columns of a row: a line each, a missing one empty, numbers with a point as IEEE 754.

    >>> digest_lines(["a.jpg", 3, None, 0.5]) == digest([b"a.jpg\\n3\\n\\n3fe0000000000000\\n"])
    True
    """
    texts = (
        "" if value is None else struct.pack(">d", value).hex() if isinstance(value, float) else str(value)
        for value in values
    )  # fmt: skip
    return digest(f"{text}\n".encode() for text in texts)


def texts_of(header: CodeHeader) -> tuple[str, str]:
    """Return the texts of recipe and extractor; raise InputError if one is too long."""
    texts = header.recipe.to_json(), header.extractor.to_json()
    for text, what in zip(texts, ("recipe", "extractor"), strict=True):
        if len(text) > LONGEST_TEXT:
            raise InputError(f"{what}: {len(text)} bytes, at most {LONGEST_TEXT} are stored; shorten its settings")
    return texts


@lru_cache(maxsize=64)
def parse_recipe(text: str) -> Recipe:
    """Return the recipe of a stored text, which must be the one form ``to_json`` gives, or gave in earlier versions."""
    return _parse(Recipe, text, "recipe")


@lru_cache(maxsize=64)
def parse_extractor(text: str) -> Extractor:
    """Return the extractor of a stored text, which must be the one form ``to_json`` gives."""
    return _parse(Extractor, text, "extractor")


def _parse(kind: type[Described], text: str, what: str) -> Described:
    try:
        value = kind.from_json(text)
        same = value.to_json() == (text if not text.startswith(OLD_START) else "{" + text.removeprefix(OLD_START))
    except InputError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as cause:  # valid JSON of a hostile shape
        raise InputError(f"its {what} is not one") from cause
    if not same:
        raise InputError(f"its {what} is not in its one text form")
    return value


# --- rows

HEADER_COLUMNS = (
    "name, count, dim, ambient_dim, dtype, recipe, extractor, width, height, focal_px, data, checksum, "
    "typeof(keypoints), length(keypoints), typeof(code), length(code)"
)
"""What is read of an image without its blobs; SQLite knows type and length of a blob without reading it."""
TYPES: tuple[tuple[type, ...], ...] = (
    *((str,), (int,), (int,), (int,), (str,), (str,), (str,), (int, type(None)), (int, type(None))),
    *((float, type(None)), (str,), (str,), (str,), (int,), (str,), (int,)),
)


def header_of(row: Sequence[Any], name: str) -> ImageHeader:
    """Return the header in a row of ``HEADER_COLUMNS`` of the image ``name``; its checksum is verified."""
    wrong = [i for i, (value, kinds) in enumerate(zip(row, TYPES, strict=True)) if type(value) not in kinds]
    if wrong or (row[12], row[14]) != ("blob", "blob"):
        raise InputError("some of its columns have another type")
    count, (width, height) = row[1], row[7:9]
    if (width is None) != (height is None):
        raise InputError("its width and height are not both known")
    header = ImageHeader(
        name=row[0],
        count=count,
        dim=row[2],
        ambient_dim=row[3],
        dtype=row[4],
        recipe=parse_recipe(row[5]),
        extractor=parse_extractor(row[6]),
        image_size=None if width is None else checked_size((width, height)),
        focal_px=checked_focal(row[9]),
        data=row[10],
        frames=row[13] == 16 * count and count > 0,
        is_home=row[13] == 0 and count > 0,
    )
    if digest_lines(row[:11]) != row[11]:  # of the texts as they are stored
        raise InputError("the checksum of its header is wrong: it was damaged or changed")
    if header.name != name:
        raise InputError(f"its row belongs to another image, {header.name!r:.80}")
    if header.sizes != (row[13], row[15]):
        raise InputError(
            f"its blobs have {row[13]} and {row[15]} bytes, expected {' and '.join(map(str, header.sizes))}"
        )
    return header


def image_of(header: ImageHeader, keypoints: bytes, code: bytes) -> ConcealedFeatures:
    """Return the features in the blobs of an image; their digest is verified."""
    if digest((keypoints, code)) != header.data:
        raise InputError("the checksum of its blobs is wrong: they were damaged or changed")
    if header.is_home:
        rows = nowhere(header.count)
    else:
        rows = np.frombuffer(keypoints, "<f4").reshape(header.count, 4 if header.frames else 2)
        if not np.isfinite(rows).all():  # in memory NaN means that a position stays home, and is never stored
            raise InputError("some of its keypoints are not finite")
    if not header.frames and not header.is_home:
        rows = without_frames(rows)
    elif header.frames and _has_no_frames(rows):
        raise InputError("it stores sizes and angles that say nothing")
    numbers = np.frombuffer(code, DTYPES[header.dtype])
    shapes = code_shapes(header)
    parts = np.split(numbers, [math.prod(shapes[0])])
    arrays = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=False)]
    return ConcealedFeatures(
        rows, code_of(header, arrays), header.recipe, header.extractor, header.image_size, header.focal_px
    )


def encode_image(name: str, features: ConcealedFeatures, dtype: str) -> tuple[ImageHeader, Blob, Blob]:
    """Return header, keypoints and code of an image as they are stored; bits whatever ``dtype`` is.

    Raises InputError for values that float16 cannot hold, and for what is not bits where ``dtype`` asks for them.
    """
    try:
        kind = stored_dtype(features.code, dtype)
        arrays = code_arrays(features.code, kind)
    except InputError as cause:
        raise InputError(f"image {name!r:.80}: {cause}") from cause
    is_home = not features.is_shown.all()
    frames = not is_home and not _has_no_frames(features.keypoints)
    shown = features.keypoints[:0] if is_home else features.keypoints if frames else features.keypoints[:, :2]
    keypoints = np.ascontiguousarray(shown, "<f4").tobytes()
    code = b"".join(array.data for array in arrays)
    header = ImageHeader(
        name=name,
        count=len(features),
        dim=features.code.dim,
        ambient_dim=features.code.ambient_dim,
        dtype=kind,
        recipe=features.recipe,
        extractor=features.extractor,
        image_size=features.image_size,
        data=digest((keypoints, code)),
        focal_px=features.focal_px,
        frames=frames,
        is_home=is_home,
    )
    return header, keypoints, code


# --- tags and released positions


def tags_row(name: str, tags: RowTags) -> tuple[Any, ...]:
    """Return the row of the tags of an image."""
    blob = tags.rows.tobytes()
    return name, tags.photo, digest_lines((name, tags.photo, digest([blob]))), blob


def tags_of(row: Sequence[Any], header: ImageHeader) -> RowTags:
    """Return the tags in a row, which is checked."""
    name, photo, checksum, blob = row
    if not (isinstance(photo, str) and isinstance(blob, bytes)) or name != header.name:
        raise InputError("its tags are of another image or type")
    if digest_lines((name, photo, digest([blob]))) != checksum or len(blob) != TAG_BYTES * header.count:
        raise InputError("the checksum of its tags is wrong: they were damaged or changed")
    return RowTags(photo, np.frombuffer(blob, np.uint8).reshape(-1, TAG_BYTES))


def release_row(name: str, numbers: NDArray[np.integer], positions: NDArray[np.float32]) -> tuple[Any, ...]:
    """Return the row of the released positions (K, 2) of an image, of the rows with these numbers (K,), ascending."""
    blobs = np.ascontiguousarray(numbers, "<u4").tobytes(), np.ascontiguousarray(positions, "<f4").tobytes()
    return name, len(numbers), digest_lines((name, len(numbers), digest(blobs))), *blobs


def release_of(row: Sequence[Any], header: ImageHeader) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return numbers and positions in a row of released ones, which is checked."""
    name, count, checksum, *blobs = row
    if type(count) is not int or not all(isinstance(blob, bytes) for blob in blobs) or name != header.name:
        raise InputError("its released positions are of another image or type")
    if digest_lines((name, count, digest(blobs))) != checksum or [len(b) for b in blobs] != [4 * count, 8 * count]:
        raise InputError("the checksum of its released positions is wrong: they were damaged or changed")
    numbers = np.frombuffer(blobs[0], "<u4").astype(np.int64)
    positions = np.frombuffer(blobs[1], "<f4").reshape(-1, 2)
    check_release(numbers, positions, header.count)
    return numbers, positions


def check_release(numbers: NDArray[np.int64], positions: NDArray[np.float32], count: int) -> None:
    """Raise InputError for numbers that are not ascending rows of ``count``, and positions that are no numbers."""
    if numbers.ndim != 1 or positions.shape != (len(numbers), 2):
        raise InputError("released positions: expected a position (x, y) for each number of a row")
    if len(numbers) and (numbers[0] < 0 or numbers[-1] >= count or (np.diff(numbers) <= 0).any()):
        raise InputError(f"released positions: numbers of rows must ascend and be below {count}")
    if not np.isfinite(positions).all():
        raise InputError("released positions must be finite numbers")


Release = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Rows (K,), ascending, and their positions (K, 2)."""


def merge_releases(before: Release, now: Release) -> Release:
    """Return two releases of one image as one; raises InputError for a row that is at another position in each."""
    both, old, new = np.intersect1d(before[0], now[0], assume_unique=True, return_indices=True)
    if not np.array_equal(before[1][old], now[1][new]):
        raise InputError(
            f"some of {len(both)} rows were released before, at other positions: two releases would tell more than one"
        )
    added = np.setdiff1d(np.arange(len(now[0])), new, assume_unique=True)
    rows, positions = np.concatenate([before[0], now[0][added]]), np.concatenate([before[1], now[1][added]])
    order = np.argsort(rows)
    return rows[order], positions[order]


def _has_no_frames(keypoints: NDArray[np.float32]) -> bool:
    """Tell whether every size is 1 and every angle 0, to the bit."""
    return bool((np.ascontiguousarray(keypoints[:, 2:], "<f4").view("<u4") == NO_FRAME).all())
