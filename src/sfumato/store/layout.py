# SPDX-License-Identifier: Apache-2.0
"""Rows of archived images: names, headers, digests, blobs, and the rule that nothing clear goes in.

Opens no file. A row may come from a hostile one: every type and size is checked before a blob is believed, and problems
are an InputError that the caller completes with file and image. docs/format.md is the text that rows follow.
"""

import hashlib
import struct
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import ArchiveError, InputError
from sfumato.files.hdf5 import SIGNATURE
from sfumato.files.sqlite import LARGEST_VALUE, FileKind
from sfumato.types.arrays import checked_focal, checked_size
from sfumato.types.concealed import CANONICAL, Bits, Code, ConcealedFeatures, Points, Subspaces, is_canonical
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import LARGEST_DIM, Recipe

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

ARCHIVE = FileKind(
    name="a Sfumato archive",
    mark=0x53666D41,
    version=1,
    tables=(TABLE,),
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
NO_FRAME = np.array([1, 0], "<f4").view("<u4")
"""Size and angle of a keypoint of which only the position was released, to the bit."""

Described = TypeVar("Described", Recipe, Extractor)
Blob = bytes | memoryview


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Everything about one archived image but its blobs.

    ``count`` features (N), subspaces of dimension ``dim`` (m) in ``ambient_dim`` (n) dimensions, or so many bits, as
    ``dtype`` (float32, float16 or bits). ``data`` is the digest of the blobs. ``focal_px`` is None unless the owner
    released it. ``frames``: sizes and angles of keypoints are stored, and not only positions.
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

    def __post_init__(self) -> None:
        checked_name(self.name)
        if self.dtype not in DTYPES:
            raise InputError(f"dtype: expected one of {', '.join(DTYPES)}, got {self.dtype!r:.80}")
        if not (0 <= self.count <= LARGEST_COUNT and 1 <= self.ambient_dim <= LARGEST_DIM):
            raise InputError(
                f"{self.count} features of {self.ambient_dim} dimensions are outside what an archive holds"
            )
        if not 0 <= self.dim <= self.ambient_dim:
            raise InputError(f"{self.dim} directions cannot be independent in {self.ambient_dim} dimensions")
        _refuse_clear(self.recipe, self.dim)
        _refuse_other_form(self)
        if self.nbytes > LARGEST_VALUE - 2**18:
            raise InputError(f"{self.count} features are more than an archive holds for one image: divide them")

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of keypoints and code."""
        if self.dtype == BITS:
            code = self.count * (self.ambient_dim // 8)
        else:
            code = np.dtype(DTYPES[self.dtype]).itemsize * self.count * self.ambient_dim * (1 + self.dim)
        return 4 * self.count * (4 if self.frames else 2), code

    @property
    def nbytes(self) -> int:
        """Size of the blobs in the file."""
        return sum(self.sizes)

    @property
    def values(self) -> tuple[Any, ...]:
        """The columns of the row in front of the checksum."""
        size = self.image_size or (None, None)
        texts = self.recipe.to_json(), self.extractor.to_json()
        for text, what in zip(texts, ("recipe", "extractor"), strict=True):
            if len(text) > LONGEST_TEXT:
                raise InputError(f"{what}: {len(text)} bytes, an archive holds {LONGEST_TEXT}; shorten its settings")
        numbers = self.count, self.dim, self.ambient_dim, self.dtype
        return self.name, *numbers, *texts, *size, self.focal_px, self.data

    @property
    def checksum(self) -> str:
        """The digest of everything here, the digest of the blobs included."""
        return digest_lines(self.values)


def _refuse_clear(recipe: Recipe, dim: int) -> None:
    """Raise InputError for what would be, or would count as, a clear descriptor."""
    if recipe.is_clear or (dim == 0 and not recipe.has_encoder):
        raise InputError(
            f"recipe {recipe} with subspaces of dimension {dim} leaves descriptors in the clear, and an "
            "archive holds none; conceal them with a lifting, for example 'sub-hybrid-2'"
        )
    if recipe.dim != dim:
        raise InputError(f"recipe {recipe} makes subspaces of dimension {recipe.dim}, these have {dim}")


def _refuse_other_form(header: ImageHeader) -> None:
    """Raise InputError for bits of what is no seal, a seal that is no bits, and numbers that a recipe does not make."""
    recipe = header.recipe
    if (header.dtype == BITS) != recipe.is_sealed:
        raise InputError(f"recipe {recipe} makes {'bits' if recipe.is_sealed else 'no bits'}, this is {header.dtype}")
    if recipe.is_sealed and (recipe.links[-1].dim != header.ambient_dim or header.ambient_dim % 8):
        raise InputError(f"recipe {recipe} does not make {header.ambient_dim} bits, eight to a byte")
    last = recipe.links[-1 if header.dim == 0 else -2] if len(recipe.links) > (header.dim > 0) else None
    if last is not None and last.kind == "compress" and last.dim != header.ambient_dim:
        raise InputError(f"recipe {recipe} makes points of {last.dim} dimensions, these have {header.ambient_dim}")


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


@lru_cache(maxsize=64)
def parse_recipe(text: str) -> Recipe:
    """Return the recipe of a stored text, which must be the one form ``to_json`` gives."""
    return _parse(Recipe, text, "recipe")


@lru_cache(maxsize=64)
def parse_extractor(text: str) -> Extractor:
    """Return the extractor of a stored text, which must be the one form ``to_json`` gives."""
    return _parse(Extractor, text, "extractor")


def _parse(kind: type[Described], text: str, what: str) -> Described:
    try:
        value = kind.from_json(text)
        same = value.to_json() == text
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
        frames=row[13] != 8 * count,
    )
    if header.checksum != row[11]:
        raise InputError("the checksum of its header is wrong: it was damaged or changed")
    if header.name != name:
        raise InputError(f"its row belongs to another image, {header.name!r:.80}")
    if header.sizes != (row[13], row[15]):
        raise InputError(
            f"its blobs have {row[13]} and {row[15]} bytes, expected {' and '.join(map(str, header.sizes))}"
        )
    return header


def image_of(header: ImageHeader, keypoints: bytes, code: bytes) -> ConcealedFeatures:
    """Return the features in the blobs of an image; their digest is verified.

    float32 and bits come back bit for bit; float16 is converted and made canonical again.
    """
    if digest((keypoints, code)) != header.data:
        raise InputError("the checksum of its blobs is wrong: they were damaged or changed")
    rows: NDArray[np.float32] = np.frombuffer(keypoints, "<f4").reshape(header.count, 4 if header.frames else 2)
    if not header.frames:
        rows = np.concatenate((rows, np.tile(NO_FRAME.view("<f4"), (header.count, 1))), axis=1)
    elif _has_no_frames(rows):
        raise InputError("it stores sizes and angles that say nothing")
    return ConcealedFeatures(
        rows, _code_of(header, code), header.recipe, header.extractor, header.image_size, header.focal_px
    )


def _code_of(header: ImageHeader, blob: bytes) -> Code:
    count, dim, ambient_dim = header.count, header.dim, header.ambient_dim
    if header.dtype == BITS:
        return Bits(np.frombuffer(blob, np.uint8).reshape(count, ambient_dim // 8))
    numbers: NDArray[Any] = np.frombuffer(blob, DTYPES[header.dtype])
    if not np.isfinite(numbers).all():
        raise InputError("some of its values are not finite")
    numbers = numbers.astype(np.float32, copy=False)
    numbers.setflags(write=False)
    origin = numbers[: count * ambient_dim].reshape(count, ambient_dim)
    if dim == 0:
        return Points(origin)
    basis = numbers[count * ambient_dim :].reshape(count, dim, ambient_dim)
    if not is_canonical(origin, basis, TOLERANCES[header.dtype]):
        raise InputError("some of its bases are not orthonormal, or origins not orthogonal to them")
    return Subspaces(origin, basis)


def encode_image(name: str, features: ConcealedFeatures, dtype: str) -> tuple[ImageHeader, Blob, Blob]:
    """Return header, keypoints and code of an image as they are stored; bits whatever ``dtype`` is.

    Raises InputError for values that float16 cannot hold, and for what is not bits where ``dtype`` asks for them.
    """
    kind = BITS if isinstance(features.code, Bits) else dtype
    if kind == BITS and not isinstance(features.code, Bits):
        raise InputError(f"image {name!r:.80} is not the bits of a seal; use dtype='float32'")
    frames = not _has_no_frames(features.keypoints)
    keypoints = np.ascontiguousarray(features.keypoints if frames else features.keypoints[:, :2], "<f4").tobytes()
    code = _blob_of(name, features.code, kind)
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
    )
    return header, keypoints, code


def _blob_of(name: str, code: Code, dtype: str) -> bytes:
    if isinstance(code, Bits):
        return code.packed.tobytes()
    arrays = []
    for array in (code.origin, code.basis):
        with np.errstate(over="ignore"):
            arrays.append(np.ascontiguousarray(array, DTYPES[dtype]))
        if not np.isfinite(arrays[-1]).all():
            raise InputError(f"image {name!r:.80} has values too large for float16; use dtype='float32'")
    return b"".join(array.data for array in arrays)


def _has_no_frames(keypoints: NDArray[np.float32]) -> bool:
    """Tell whether every size is 1 and every angle 0, to the bit."""
    return bool((np.ascontiguousarray(keypoints[:, 2:], "<f4").view("<u4") == NO_FRAME).all())
