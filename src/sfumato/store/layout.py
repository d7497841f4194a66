# SPDX-License-Identifier: Apache-2.0
"""Headers of archived images: names, limits, digests, sealed bits, and the rule that nothing clear goes in.

Knows no file and no HDF5. The other modules of the store turn a ``Header`` into bytes and back;
docs/format.md is the text both follow.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar
from urllib.parse import quote, unquote_to_bytes

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.types.concealed import CANONICAL, PAYLOADS
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import LARGEST_DIM, Recipe

# --- points whose coordinates take two values, as bits: what is unpacked may come from a hostile file


Floats = NDArray[np.float32]
Packed = NDArray[np.uint8]


def packed_width(ambient_dim: int) -> int:
    """Return how many bytes the bits of one point of ``ambient_dim`` coordinates take."""
    return -(-ambient_dim // 8)


def pack(origin: Floats) -> tuple[Packed, Floats] | None:
    """Return points (N, n) as bytes (N, n / 8 rounded up) and the two values (2,) that 0 and 1 stand for.

    Coordinate i is in byte i // 8, the first of eight in its highest bit; bits behind the last coordinate are 0. The
    smaller value comes first. None if there are more than two values, where the two zeros of float32 count as two.

    >>> packed, values = pack(np.array([[0.5, -0.5, 0.5]], np.float32))
    >>> packed.tolist(), values.tolist()
    ([[160]], [-0.5, 0.5])
    """
    if origin.size == 0:
        return np.zeros((len(origin), packed_width(origin.shape[1])), np.uint8), np.zeros(2, np.float32)
    values = np.array([origin.min(), origin.max()], np.float32)
    patterns = np.ascontiguousarray(origin, np.float32).view(np.uint32)
    low, high = values.view(np.uint32)
    is_high = patterns == high
    if not (is_high | (patterns == low)).all():
        return None
    return np.packbits(is_high, axis=1), values


def unpack(packed: Packed, values: Floats, ambient_dim: int) -> Floats:
    """Return the points (N, n) float32 that ``pack`` was given; ``ambient_dim`` is n.

    Raises InputError for bytes and values that ``pack`` does not give.
    """
    if not np.isfinite(values).all() or values[0] > values[1]:
        raise InputError("the values of its bits are not two finite numbers, the smaller one first")
    behind = 8 * packed_width(ambient_dim) - ambient_dim
    if behind and (packed[:, -1] & (2**behind - 1)).any():
        raise InputError("some of its bits are set behind the last coordinate")
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
    table = values.astype(np.float32)[bits]  # (256, 8): a byte as eight coordinates
    rows = np.take(table, packed, axis=0).reshape(len(packed), 8 * packed.shape[1])
    return np.ascontiguousarray(rows[:, :ambient_dim])


Described = TypeVar("Described", Recipe, Extractor)

FORMAT = "sfumato-archive"
VERSION, BITS_VERSION, FOCAL_VERSION = 1, 2, 3
"""Versions of archives: the first, with bits, with focal lengths. A reader that knows neither refuses before it reads
an image."""
VERSIONS = (VERSION, BITS_VERSION, FOCAL_VERSION)
PAYLOAD = "subspaces"
BITS = "bits"
DTYPES = {"float32": "<f4", "float16": "<f2", BITS: "|u1"}
"""What an origin is stored as. Bits are for the points of a seal, and come back as the float32 they were."""
TOLERANCES = {"float32": 1.5 * CANONICAL, "float16": 2e-3, BITS: 1.5 * CANONICAL}
"""How far from canonical an array may be: float16 rounds each value by up to 2^-11 of it, a product by up to
2^-10."""

LONGEST_NAME = 1024
LONGEST_TEXT = 32_768
LARGEST_COUNT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Everything about one archived image but its arrays.

    ``count`` features (N), subspaces of dimension ``dim`` (m) in ``ambient_dim`` (n) dimensions, stored as
    ``dtype`` (float32, float16 or bits). ``data`` is the digest of the arrays. ``focal_px`` is None unless the owner
    released it.
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
    payload: str = PAYLOAD
    focal_px: float | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"dtype: expected one of {', '.join(DTYPES)}, got {self.dtype!r:.80}")
        if not (0 <= self.count <= LARGEST_COUNT and 1 <= self.ambient_dim <= LARGEST_DIM):
            raise InputError(
                f"{self.count} features of {self.ambient_dim} dimensions are outside what an archive holds"
            )
        if not 0 <= self.dim <= self.ambient_dim:
            raise InputError(f"{self.dim} directions cannot be independent in {self.ambient_dim} dimensions")
        if self.payload not in PAYLOADS:
            raise InputError(f"unknown payload {self.payload!r:.80}: this version knows {', '.join(PAYLOADS)}")
        _refuse_clear(self.recipe, self.dim)
        if self.dtype == BITS and not self.recipe.is_sealed:
            raise InputError(f"recipe {self.recipe} makes no bits, only a seal does")
        widths = [link.dim for link in self.recipe.links if link.kind == "compress"]
        if (
            widths
            and widths[-1] != self.ambient_dim
            and self.recipe.links[-1 if self.dim == 0 else -2].kind == "compress"
        ):
            raise InputError(
                f"recipe {self.recipe} makes points of {widths[-1]} dimensions, these have {self.ambient_dim}"
            )

    @property
    def arrays(self) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
        """Name, type and shape of each array, in the order of the file."""
        kind, is_packed = DTYPES[self.dtype], self.dtype == BITS
        width = packed_width(self.ambient_dim) if is_packed else self.ambient_dim
        return (
            ("keypoints", "<f4", (self.count, 4)),
            ("origin", kind, (self.count, width)),
            ("basis", "<f4" if is_packed else kind, (self.count, self.dim, self.ambient_dim)),
            *((("values", "<f4", (2,)),) if is_packed else ()),
        )

    @property
    def nbytes(self) -> int:
        """Size of the arrays in the file."""
        return sum(np.dtype(kind).itemsize * math.prod(shape) for _, kind, shape in self.arrays)

    @property
    def version(self) -> int:
        """The first version of the format that has such images."""
        if self.focal_px is not None:
            return FOCAL_VERSION
        return BITS_VERSION if self.dtype == BITS else VERSION

    @property
    def checksum(self) -> str:
        """The digest of everything here, the digest of the arrays included."""
        texts = [encode_name(self.name), self.payload, self.recipe.to_json(), self.extractor.to_json()]
        focal = () if self.focal_px is None else (self.focal_px,)
        parts = [*texts, self.image_size, *focal, self.arrays, self.data]
        return digest("sfumato-header", [json.dumps(parts, separators=(",", ":")).encode("ascii")])


def _refuse_clear(recipe: Recipe, dim: int) -> None:
    """Raise InputError for what would be, or would count as, a clear descriptor."""
    if recipe.is_clear or (dim == 0 and not recipe.has_encoder):
        raise InputError(
            f"recipe {recipe} with subspaces of dimension {dim} leaves descriptors in the clear, and an "
            "archive holds none; conceal them with a lifting, for example 'sub-hybrid-2'"
        )
    if recipe.dim != dim:
        raise InputError(f"recipe {recipe} makes subspaces of dimension {recipe.dim}, these have {dim}")


def encode_name(name: str) -> str:
    """Return the link name of an image: one path element, ASCII, percent-encoded.

    >>> encode_name("photos/desk 1.jpg")
    'photos%2Fdesk%201.jpg'
    """
    if not isinstance(name, str) or not name:
        raise InputError(f"image name: expected a text that is not empty, got {name!r:.80}")
    try:
        raw = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as cause:
        raise InputError(f"image name {name!r:.80} is not valid Unicode; rename the image") from cause
    if len(raw) > LONGEST_NAME:
        raise InputError(f"image name {name!r:.40}... has {len(raw)} bytes, at most {LONGEST_NAME} are allowed")
    encoded = quote(raw, safe="")
    encoded = f"%2E{encoded[1:]}" if encoded.startswith(".") else encoded
    if unquote_to_bytes(encoded).decode("utf-8", "surrogateescape") != name:
        raise InputError(f"image name {name!r:.80} is not valid Unicode; rename the image")
    return encoded


def decode_name(encoded: str) -> str:
    """Return the image name of a link name, which must be what ``encode_name`` gives for it."""
    name = unquote_to_bytes(encoded).decode("utf-8", "surrogateescape")
    if encode_name(name) != encoded:
        raise InputError(f"link name {encoded!r:.80} is not the encoded form of an image name")
    return name


def digest(person: str, parts: Iterable[bytes | memoryview]) -> str:
    """Return the BLAKE2b-256 digest of the parts, as 64 hexadecimal digits."""
    state = hashlib.blake2b(digest_size=32, person=person.encode("ascii"))
    for part in parts:
        state.update(part)
    return state.hexdigest()


def digest_arrays(arrays: Iterable[NDArray[np.generic]]) -> str:
    """Return the digest of C-contiguous arrays, without copying them."""
    return digest("sfumato-data", (array.reshape(-1).view(np.uint8).data for array in arrays))


def digest_names(encoded: Iterable[str]) -> str:
    """Return the digest of a set of link names."""
    return digest("sfumato-names", (f"{name}\n".encode("ascii") for name in sorted(encoded)))


@lru_cache(maxsize=64)
def parse_recipe(text: str) -> Recipe:
    """Return the recipe of a stored text, which must be the one form ``to_json`` gives."""
    return _parse(Recipe, text, "recipe")


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
