# SPDX-License-Identifier: Apache-2.0
"""One image at an address of a file: its header and its arrays, checked before they are believed.

Knows what an image of an archive must look like, in a finished archive and in a ``.part`` alike. Raises
InputError; the caller adds the file's name.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.store import encode
from sfumato.store.bits import pack, packed_width, unpack
from sfumato.store.decode import Dataset, Source, Value, read_dataset, read_group
from sfumato.store.layout import (
    BITS,
    DTYPES,
    TOLERANCES,
    Header,
    decode_name,
    digest_arrays,
    parse_extractor,
    parse_recipe,
)
from sfumato.types.concealed import ConcealedFeatures, Subspaces, is_canonical

TEXTS = ("name", "payload", "recipe", "extractor", "data", "checksum")
ARRAYS = ("keypoints", "origin", "basis")
VALUES = "values"
"""A further array where origins are bits: what 0 and 1 stand for."""
Arrays = Sequence[NDArray[np.generic]]


def prepare_image(name: str, features: ConcealedFeatures, dtype: str) -> tuple[Header, Arrays]:
    """Return header and arrays of an image in the type of the file, or as bits if it is a seal's.

    Raises InputError for values that float16 can not hold, and for what is not bits where ``dtype`` asks for them.
    """
    bits = _as_bits(features)
    if bits is None and dtype == BITS:
        raise InputError(f"image {name!r:.80} is more than the bits of a seal; use dtype='float32'")
    arrays = _as_floats(name, features, dtype) if bits is None else bits
    header = Header(
        name=name,
        count=len(features),
        dim=features.subspaces.dim,
        ambient_dim=features.subspaces.ambient_dim,
        dtype=dtype if bits is None else BITS,
        recipe=features.recipe,
        extractor=features.extractor,
        image_size=features.image_size,
        data=digest_arrays(arrays),
        payload=features.payload,
    )
    return header, arrays


def read_header(source: Source, address: int, name: str | None = None) -> tuple[Header, list[Dataset]]:
    """Return the header and the places of the arrays of the image at ``address``; ``name`` is who it should
    be.

    No array is read. The header's own checksum is verified.
    """
    group = read_group(source, address, "its group")
    members = (*ARRAYS, VALUES) if VALUES in group.links else ARRAYS
    _expect(set(group.links), set(members), "members")
    _expect(set(group.attributes) - {"image_size"}, set(TEXTS), "attributes")
    datasets = [read_dataset(source, group.links[member], member) for member in members]
    text = {key: _text(group.attributes[key], key) for key in TEXTS}
    count, dim, ambient_dim, dtype = _dimensions(datasets)
    header = Header(
        name=decode_name(text["name"]),
        recipe=parse_recipe(text["recipe"]),
        extractor=parse_extractor(text["extractor"]),
        image_size=_image_size(group.attributes.get("image_size")),
        data=text["data"],
        payload=text["payload"],
        count=count,
        dim=dim,
        ambient_dim=ambient_dim,
        dtype=dtype,
    )
    if header.checksum != text["checksum"]:
        raise InputError("the checksum of its header is wrong: it was damaged or changed")
    if name is not None and header.name != name:
        raise InputError(f"its group belongs to another image, {header.name!r:.80}")
    return header, datasets


def read_arrays(source: Source, header: Header, datasets: list[Dataset]) -> Arrays:
    """Return keypoints, origin, basis, and values of bits, as they are stored, read-only; their digest is verified."""
    arrays = [
        np.frombuffer(source.read(d.address, d.size, member) if d.size else b"", d.kind).reshape(d.shape)
        for (member, _, _), d in zip(header.arrays, datasets, strict=True)
    ]
    if digest_arrays(arrays) != header.data:
        raise InputError("the checksum of its arrays is wrong: they were damaged or changed")
    return arrays


def read_image(source: Source, address: int, name: str) -> ConcealedFeatures:
    """Return the concealed features of the image at ``address``.

    float32 comes back bit for bit, and so does what was packed as bits; float16 is converted and made canonical again.
    """
    header, datasets = read_header(source, address, name)
    stored: list[Any] = list(read_arrays(source, header, datasets))
    if header.dtype == BITS:
        stored[1] = unpack(stored[1], stored.pop(), header.ambient_dim)
    keypoints, origin, basis = (array.astype(np.float32, copy=False) for array in stored)
    for array in (keypoints, origin, basis):
        array.setflags(write=False)
        if not np.isfinite(array).all():
            raise InputError("some of its values are not finite")
    if not is_canonical(origin, basis, TOLERANCES[header.dtype]):
        raise InputError("some of its bases are not orthonormal, or origins not orthogonal to them")
    return ConcealedFeatures(
        keypoints,
        Subspaces(origin, basis),
        header.recipe,
        header.extractor,
        header.image_size,
        header.payload,
    )


def read_block(source: Source, address: int) -> tuple[Header, int]:
    """Return header and end of a block of a ``.part``, if it is exactly what a writer writes."""
    header, datasets = read_header(source, address)
    head, _, end = encode.block_head(header, address)
    if source.read(address, len(head), "its headers") != head:
        raise InputError("its HDF5 headers are damaged")
    read_arrays(source, header, datasets)
    return header, end


def _as_bits(features: ConcealedFeatures) -> Arrays | None:
    """Return the arrays of sealed features; None for others, and for what a seal does not make."""
    if not features.recipe.is_sealed or features.subspaces.dim:
        return None
    packed = pack(features.subspaces.origin)
    return packed and (features.keypoints, packed[0], features.subspaces.basis, packed[1])


def _as_floats(name: str, features: ConcealedFeatures, dtype: str) -> Arrays:
    """Return the arrays of features in the type of the file."""
    given = (features.keypoints, features.subspaces.origin, features.subspaces.basis)
    arrays: list[Any] = []
    for array, kind in zip(given, ("<f4", DTYPES[dtype], DTYPES[dtype]), strict=True):
        with np.errstate(over="ignore"):
            arrays.append(np.ascontiguousarray(array, dtype=kind))
        if not np.isfinite(arrays[-1]).all():
            raise InputError(f"image {name!r:.80} has values too large for float16; use dtype='float32'")
    return arrays


def _dimensions(datasets: list[Dataset]) -> tuple[int, int, int, str]:
    """Return count, dim, ambient_dim and dtype after checking that the arrays agree."""
    keypoints, origin, basis, *values = datasets
    dtype = next(name for name, kind in DTYPES.items() if kind == origin.kind)
    if (dtype == BITS) != bool(values):
        raise InputError("expected the values that bits stand for, and none without bits")
    count, dim, ambient_dim = basis.shape if len(basis.shape) == 3 else (0, 0, 0)
    width = packed_width(ambient_dim) if values else ambient_dim
    shapes = [dataset.shape for dataset in datasets]
    if shapes != [(count, 4), (count, width), (count, dim, ambient_dim), (2,)][: len(shapes)]:
        wanted = "(N, 4), (N, n / 8 rounded up), (N, 0, n), (2,)" if values else "(N, 4), (N, n), (N, m, n)"
        raise InputError(f"shapes {', '.join(map(str, shapes))}: expected {wanted}")
    kinds = [keypoints.kind, basis.kind, *(one.kind for one in values)]
    if kinds != (["<f4", "<f4", "<f4"] if values else ["<f4", origin.kind]):
        raise InputError("expected keypoints in float32, and origin and basis in one type, or float32 beside bits")
    return count, dim, ambient_dim, dtype


def _image_size(value: Value | None) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, tuple) or len(value) != 2 or not all(0 < length < 2**31 for length in value):
        raise InputError("image_size: expected a width and a height")
    return value[0], value[1]


def _text(value: Value, key: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"attribute {key!r}: expected a text")
    return value


def _expect(found: set[str], wanted: set[str], what: str) -> None:
    if found != wanted:
        missing, extra = sorted(wanted - found), sorted(found - wanted)[:3]
        raise InputError(f"{what} are missing: {missing}, or too many: {extra}"[:300])
