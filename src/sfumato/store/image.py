# SPDX-License-Identifier: Apache-2.0
"""One image at an address of a file: its header and its arrays, checked before they are believed.

Knows what an image of an archive must look like, in a finished archive and in a ``.part`` alike. Raises
InputError; the caller adds the file's name.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.store import encode
from sfumato.store.decode import Dataset, Source, Value, read_dataset, read_group
from sfumato.store.layout import (
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
Arrays = Sequence[NDArray[np.generic]]


def read_header(source: Source, address: int, name: str | None = None) -> tuple[Header, list[Dataset]]:
    """Return the header and the places of the arrays of the image at ``address``; ``name`` is who it should
    be.

    No array is read. The header's own checksum is verified.
    """
    group = read_group(source, address, "its group")
    _expect(set(group.links), set(ARRAYS), "members")
    _expect(set(group.attributes) - {"image_size"}, set(TEXTS), "attributes")
    datasets = [read_dataset(source, group.links[member], member) for member in ARRAYS]
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
    """Return keypoints, origin and basis as they are stored, read-only; their digest is verified."""
    arrays = [
        np.frombuffer(source.read(d.address, d.size, member) if d.size else b"", d.kind).reshape(d.shape)
        for member, d in zip(ARRAYS, datasets, strict=True)
    ]
    if digest_arrays(arrays) != header.data:
        raise InputError("the checksum of its arrays is wrong: they were damaged or changed")
    return arrays


def read_image(source: Source, address: int, name: str) -> ConcealedFeatures:
    """Return the concealed features of the image at ``address``.

    float32 comes back bit for bit; float16 is converted and made canonical again.
    """
    header, datasets = read_header(source, address, name)
    keypoints, origin, basis = (array.astype(np.float32, copy=False) for array in read_arrays(source, header, datasets))
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


def _dimensions(datasets: list[Dataset]) -> tuple[int, int, int, str]:
    """Return count, dim, ambient_dim and dtype after checking that the three arrays agree."""
    keypoints, origin, basis = datasets
    if len(keypoints.shape) != 2 or len(origin.shape) != 2 or len(basis.shape) != 3:
        raise InputError(f"shapes {keypoints.shape}, {origin.shape}, {basis.shape}: expected (N, 4), (N, n), (N, m, n)")
    count, ambient_dim = origin.shape
    if keypoints.shape != (count, 4) or basis.shape != (count, basis.shape[1], ambient_dim):
        raise InputError(f"shapes {keypoints.shape}, {origin.shape}, {basis.shape}: expected (N, 4), (N, n), (N, m, n)")
    if keypoints.kind != "<f4" or origin.kind != basis.kind:
        raise InputError("expected keypoints in float32, and origin and basis in one type")
    dtype = next(name for name, kind in DTYPES.items() if kind == origin.kind)
    return count, basis.shape[1], ambient_dim, dtype


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
