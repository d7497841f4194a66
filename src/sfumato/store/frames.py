# SPDX-License-Identifier: Apache-2.0
"""Frames: concealed features of one image as bytes on the wire, for uploads and queries; see docs/reference/wire.md.

A frame of sealed features has no positions, unless all of them were released on purpose: those that a map needs follow
one by one, as ``encode_release`` writes them. Opens no file and knows no network. A frame may come from anyone: what it
declares is compared with limits and with its length before an array is touched, and all that is wrong is a FrameError.
The rules about codes are those of archives, in ``store.layout``. Never imports the clear types.
"""

import hashlib
import json
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FrameError, InputError
from sfumato.store.layout import (
    BITS,
    DTYPES,
    Blob,
    check_form,
    check_release,
    code_arrays,
    code_of,
    code_shapes,
    nowhere,
    parse_extractor,
    parse_recipe,
    refuse_clear,
    stored_dtype,
    texts_of,
    without_frames,
)
from sfumato.types.arrays import checked_size
from sfumato.types.concealed import PHOTO_BYTES, TAG_BYTES, ConcealedFeatures, RowTags
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe

MEDIA_TYPE = "application/vnd.sfumato.features.v1"
RELEASE_TYPE = "application/vnd.sfumato.positions.v1"
RELEASED = np.dtype([("row", "<u4"), ("x", "<f4"), ("y", "<f4")])
"""A released position: 12 bytes, the number of its row, and where it is in pixels."""
MAGIC = b"sfumato-features"
VERSION = 1
PREFIX = struct.Struct("<16sIIQ32s")
"""The first 64 bytes: magic, version, lengths of header and payload, digest."""
ALIGNMENT = 64
LARGEST_HEADER = 65_536
LONGEST_CAUSE = 1000
"""Letters of what is wrong with a frame: names of encoders, which come from whoever made it, may be long."""
PERSON = b"sfumato-wire"
KEYS: dict[str, type | tuple[type, ...]] = {
    "arrays": list,
    "count": int,
    "extractor": str,
    "image_size": (list, type(None)),
    "recipe": str,
}
"""Keys of a header, and the types of their values."""
MOST_DIGITS = 10
FLOATS = {DTYPES[name]: name for name in ("float32", "float16")}
FEWER = "conceal fewer features (--max-features)"
CONCEAL = "on the device run: sfumato conceal photos/ -o private.sfm, and send frames of what it wrote"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """Limits of one frame: bytes of its header, features, and bytes of all."""

    header_bytes: int = LARGEST_HEADER
    features: int = 100_000
    frame_bytes: int = 64 * 2**20

    def __post_init__(self) -> None:
        if self.header_bytes > LARGEST_HEADER:
            raise InputError(f"header_bytes: the format allows {LARGEST_HEADER} at most, got {self.header_bytes}")


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Everything about a frame but its arrays: N features, subspaces of dimension m in n dimensions, or n bits.

    ``dtype`` is float32, float16 or bits; ``digest`` the one that a frame declares, which names it everywhere.
    ``has_positions``: of all rows; ``has_tags``: of rows without positions. A query needs neither.

    Raises FrameError for what is clear, protects nobody, or is not what the recipe makes.
    """

    count: int
    dim: int
    ambient_dim: int
    dtype: str
    recipe: Recipe
    extractor: Extractor
    image_size: tuple[int, int] | None = None
    digest: str = ""
    has_positions: bool = True
    has_tags: bool = False

    def __post_init__(self) -> None:
        with _explain("clear_features"):
            refuse_clear(self.recipe, self.dim)
            if self.recipe.evaluation_seed is not None:
                raise InputError(
                    f"recipe {self.recipe} was drawn from an evaluation seed, which anyone can repeat, and protects "
                    f"nobody; conceal the photos on the device again without --evaluation-seed"
                )
        with _explain():
            check_form(self)

    @property
    def arrays(self) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
        """Name, type and shape of each array, in their order."""
        names = ("bits",) if self.dtype == BITS else ("origin", "basis")
        codes = [(name, DTYPES[self.dtype], shape) for name, shape in zip(names, code_shapes(self), strict=False)]
        positions = [("positions", "<f4", (self.count, 2))] if self.has_positions else []
        tags = [("photo", "|u1", (PHOTO_BYTES,)), ("tags", "|u1", (self.count, TAG_BYTES))] if self.has_tags else []
        return *positions, *codes, *tags

    @property
    def text(self) -> bytes:
        """The header as it is sent: its one text form, and spaces."""
        recipe, extractor = texts_of(self)
        values = self.arrays, self.count, extractor, self.image_size, recipe
        text = json.dumps(dict(zip(KEYS, values, strict=True)), sort_keys=True, separators=(",", ":")).encode("ascii")
        return text.ljust(_aligned(len(text)))

    @property
    def payload_bytes(self) -> int:
        """Bytes of all arrays with their padding."""
        return sum(_aligned(np.dtype(kind).itemsize * math.prod(shape)) for _, kind, shape in self.arrays)

    @property
    def frame_bytes(self) -> int:
        """Bytes of the frame from its first to its last."""
        return PREFIX.size + len(self.text) + self.payload_bytes


def encode_frame(features: ConcealedFeatures, *, dtype: str = "float32", limits: FrameLimits | None = None) -> bytes:
    """Return concealed features as a frame; the same features give the same bytes.

    Sizes and angles of keypoints and the focal length are left out, and so are all positions of an image of which some
    stay home: before and after a release its frame is the same. Rows keep their order. ``dtype`` float16 halves the
    size at a loss given in docs/reference/file_formats.md; bits are sent as they are.

    Raises FrameError for what is clear, protects nobody, or is beyond the limits.

    >>> from sfumato.types.concealed import Bits
    >>> rows = ConcealedFeatures(np.zeros((3, 4)), Bits(np.zeros((3, 64), np.uint8)), "sealed-512@0123456789ab")
    >>> decode_frame(encode_frame(rows))
    ConcealedFeatures(Bits(3 of 512 bits), 'sealed-512@0123456789ab', unknown)
    """
    if not isinstance(features, ConcealedFeatures):
        raise FrameError(
            f"a frame holds ConcealedFeatures only, got {type(features).__name__}; {CONCEAL}", "clear_features"
        )
    code = features.code
    with _explain():
        kind = stored_dtype(code, dtype)
    is_home = features.tags is not None or not features.is_shown.all()
    header = FrameHeader(
        len(features), code.dim, code.ambient_dim, kind, features.recipe, features.extractor, features.image_size,
        has_positions=not is_home, has_tags=features.tags is not None,
    )  # fmt: skip
    with _explain():
        text = header.text
        _refuse_large(header.count, len(text), header.payload_bytes, limits or FrameLimits())
        positions = [] if is_home else [np.ascontiguousarray(features.keypoints[:, :2], "<f4")]
        arrays = [*positions, *code_arrays(code, kind)]
        if features.tags is not None:
            arrays += [np.frombuffer(bytes.fromhex(features.tags.photo), np.uint8), features.tags.rows]
    payload = b"".join(array.tobytes().ljust(_aligned(array.nbytes), b"\0") for array in arrays)
    return PREFIX.pack(MAGIC, VERSION, len(text), len(payload), _digest(text, payload).digest()) + text + payload


def decode_frame(data: Blob, *, limits: FrameLimits | None = None) -> ConcealedFeatures:
    """Return the features of a frame; every rule of docs/reference/wire.md is checked.

    Keypoints have positions alone, or are NaN where these stay home. Takes no more memory than a small multiple of the
    bytes that are there.

    Raises FrameError.
    """
    view = _view(data)
    _read_prefix(view, limits or FrameLimits())  # before anything is copied
    body = data if isinstance(data, bytes) else bytes(view)  # nobody can change what was checked
    header = read_header(body, limits=limits)
    with _explain():
        if len(body) != header.frame_bytes:
            raise InputError(f"it has {len(body)} bytes and declares {header.frame_bytes}; send it again")
        if frame_digest(body) != header.digest:
            raise InputError("its digest is wrong: it was damaged on the way; send it again")
        arrays = list(_arrays_of(header, body))
        keypoints = without_frames(arrays.pop(0)) if header.has_positions else nowhere(header.count)
        tags = RowTags(arrays[-2].tobytes().hex(), arrays[-1]) if header.has_tags else None
        codes = arrays[: len(code_shapes(header))]
        return ConcealedFeatures(
            keypoints, code_of(header, codes), header.recipe, header.extractor, header.image_size, tags=tags
        )


def read_header(data: Blob, *, limits: FrameLimits | None = None) -> FrameHeader:
    """Return the header of a frame of which the first 64 bytes and the header are there, and more or not.

    What it says is compared with limits and rules, and no array is looked at.

    Raises FrameError.
    """
    limits, view = limits or FrameLimits(), _view(data)
    header_bytes, payload_bytes, digest = _read_prefix(view, limits)
    text = bytes(view[PREFIX.size : PREFIX.size + header_bytes])
    with _explain():
        if len(text) != header_bytes:
            raise InputError("it ends in the middle of its header; send it again")
        header = _parse_header(text, digest, limits)
        if header.text != text:
            raise InputError("its header is not in its one text form, or not filled up with spaces to a multiple of 64")
        if header.payload_bytes != payload_bytes:
            raise InputError(f"its arrays take {header.payload_bytes} bytes, and it declares {payload_bytes}")
    return header


def frame_digest(data: Blob) -> str:
    """Return the digest of a frame, of all that follows its first 64 bytes, as 64 hexadecimal digits."""
    return _digest(_view(data)[PREFIX.size :]).hexdigest()


# --- bytes and their lengths


def _view(data: Blob) -> memoryview:
    try:
        return memoryview(data).cast("B")
    except TypeError as cause:
        raise FrameError(f"a frame is bytes, got {type(data).__name__}", "not_a_frame") from cause


def _digest(*parts: Blob) -> hashlib.blake2b:
    state = hashlib.blake2b(digest_size=32, person=PERSON)
    for part in parts:
        state.update(part)
    return state


def _aligned(size: int) -> int:
    """Return the next multiple of 64."""
    return size + -size % ALIGNMENT


def _read_prefix(view: memoryview, limits: FrameLimits) -> tuple[int, int, str]:
    """Return the lengths of header and payload, and the digest, that the first 64 bytes declare."""
    if len(view) > limits.frame_bytes:
        raise FrameError(
            f"a frame of {len(view)} bytes, and at most {limits.frame_bytes} are taken: {FEWER}", "too_large"
        )
    if view[: len(MAGIC)] != MAGIC:
        raise FrameError(
            f"this is no frame of concealed features: pictures, archives and clear features are not taken; {CONCEAL}",
            "not_a_frame",
        )
    with _explain():
        if len(view) < PREFIX.size:
            raise InputError(f"it ends within its first {PREFIX.size} bytes; send it again")
        _, version, header_bytes, payload_bytes, digest = PREFIX.unpack_from(view)
        if version != VERSION:
            raise FrameError(
                f"a frame of version {version}, and this program takes {VERSION}: update the older of the two programs",
                "other_version",
            )
        if not header_bytes or header_bytes % ALIGNMENT or payload_bytes % ALIGNMENT:
            raise InputError(
                f"the lengths of its header and payload, {header_bytes} and {payload_bytes}, are not multiples of "
                f"{ALIGNMENT}, or there is no header"
            )
        _refuse_large(0, header_bytes, payload_bytes, limits)
    return header_bytes, payload_bytes, digest.hex()


def _refuse_large(count: int, header_bytes: int, payload_bytes: int, limits: FrameLimits) -> None:
    sizes = (
        ("features", count, limits.features, FEWER),
        ("bytes of header", header_bytes, limits.header_bytes, "shorten the settings of the extractor"),
        ("bytes", PREFIX.size + header_bytes + payload_bytes, limits.frame_bytes, FEWER),
    )
    for name, size, most, advice in sizes:
        if size > most:
            raise FrameError(f"a frame of {size} {name}, and at most {most} are taken: {advice}", "too_large")


# --- header and arrays


def _parse_header(text: bytes, digest: str, limits: FrameLimits) -> FrameHeader:
    """Return the header in a text, which may be in another form than its one."""
    try:
        values = json.loads(text.decode("ascii"), parse_int=_parse_number)
    except (ValueError, RecursionError) as cause:
        raise InputError(f"its header is not JSON in ASCII with numbers of up to {MOST_DIGITS} digits") from cause
    if not isinstance(values, dict) or set(values) != set(KEYS):
        raise InputError(f"its header must have exactly the keys {', '.join(KEYS)}")
    wrong = [key for key, kind in KEYS.items() if not isinstance(values[key], kind)]
    if wrong:
        raise InputError(f"its header has values of other types: {', '.join(wrong)}")
    count, arrays = int(values["count"]), values["arrays"]  # of true 1, which is another text
    _refuse_large(count, 0, 0, limits)
    dim, ambient_dim, dtype, has_positions, has_tags = _form_of(arrays)
    header = FrameHeader(
        count,
        dim,
        ambient_dim,
        dtype,
        parse_recipe(values["recipe"]),
        parse_extractor(values["extractor"]),
        checked_size(values["image_size"]),
        digest,
        has_positions,
        has_tags,
    )
    expected = [[name, kind, list(shape)] for name, kind, shape in header.arrays]
    if arrays != expected:
        raise InputError(f"the arrays of these {count} features must be {json.dumps(expected)}")
    return header


def _parse_number(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError("a number of too many digits")
    return int(digits)


def _form_of(arrays: list[Any]) -> tuple[int, int, str, bool, bool]:
    """Return dimension, ambient dimension and dtype of the code that a list declares; and has positions, has tags."""
    match arrays:
        case [["positions", *_], *codes]:
            has_positions = True
        case codes:
            has_positions = False
    match codes:
        case [["bits", "|u1", [_, int(width)]]]:
            return 0, 8 * width, BITS, has_positions, False
        case [["bits", "|u1", [_, int(width)]], ["photo", _, _], ["tags", _, _]] if not has_positions:
            return 0, 8 * width, BITS, False, True
        case [["origin", str(kind), [_, int(width)]]] if kind in FLOATS:
            return 0, int(width), FLOATS[kind], has_positions, False
        case [["origin", str(kind), [_, int(width)]], ["basis", _, [_, int(dim), _]]] if kind in FLOATS:
            return int(dim), int(width), FLOATS[kind], has_positions, False
    raise InputError(
        "its arrays are not bits, origin, or origin and basis, of known types: alone, behind positions, or bits in "
        "front of the name of their photo and tags"
    )


def _arrays_of(header: FrameHeader, body: bytes) -> Iterator[NDArray[Any]]:
    """Yield the arrays of a frame of the right length, which share its memory."""
    start = PREFIX.size + len(header.text)
    for name, kind, shape in header.arrays:
        array = np.frombuffer(body, kind, math.prod(shape), start).reshape(shape)
        end = start + array.nbytes
        start = _aligned(end)
        if any(body[end:start]):
            raise InputError(f"the bytes behind its {name} are not zero")
        yield array


@contextmanager
def _explain(code: str = "bad_frame", what: str = "this frame is") -> Iterator[None]:
    """Turn what is wrong with a code or a header into a FrameError."""
    try:
        yield
    except FrameError:
        raise
    except InputError as cause:
        raise FrameError(f"{what} refused: {cause!s:.{LONGEST_CAUSE}}", code) from cause


# --- positions that are released later


def encode_release(rows: NDArray[np.integer], positions: NDArray[np.floating]) -> bytes:
    """Return released positions (K, 2) of rows (K,) as they are sent: 12 bytes each, ascending by row.

    >>> encode_release(np.array([5]), np.array([[1.5, 2.0]])).hex()
    '050000000000c03f00000040'
    """
    table = np.zeros(len(rows), RELEASED)
    table["row"], table["x"], table["y"] = rows, positions[:, 0], positions[:, 1]
    return np.sort(table, order="row").tobytes()


def decode_release(data: Blob, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return rows (K,), ascending, of an image of ``count``, and their positions (K, 2); raises FrameError."""
    view = _view(data)
    with _explain("bad_release", "these positions are"):
        if len(view) % RELEASED.itemsize:
            raise InputError(f"released positions take {RELEASED.itemsize} bytes each, and {len(view)} came")
        table = np.frombuffer(view, RELEASED)
        rows, positions = table["row"].astype(np.int64), np.stack([table["x"], table["y"]], axis=1)
        check_release(rows, positions, count)
    return rows, positions
