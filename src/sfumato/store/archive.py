# SPDX-License-Identifier: Apache-2.0
"""Archives of concealed features, read one image at a time.

Trusts no file: headers and arrays are checked before they are believed, and what is returned passed its checksums, is
canonical, and is concealed. Never imports the clear types.
"""

import os
import stat
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import ArchiveError, InputError
from sfumato.files.atomic import explain_errors
from sfumato.store import hdf5
from sfumato.store.hdf5_reader import (
    LARGEST_HEADER,
    Dataset,
    FileBytes,
    Value,
    read_dataset,
    read_group,
    read_superblock,
)
from sfumato.store.layout import (
    BITS,
    DTYPES,
    FORMAT,
    TOLERANCES,
    VERSIONS,
    ImageHeader,
    decode_name,
    digest_arrays,
    digest_names,
    pack,
    packed_width,
    parse_extractor,
    parse_recipe,
    unpack,
)
from sfumato.types.arrays import checked_focal
from sfumato.types.concealed import PAYLOADS, ConcealedFeatures, Subspaces, is_canonical

# --- one image at an address of a file, finished or not; the caller adds the file's name to errors


TEXTS = ("name", "payload", "recipe", "extractor", "data", "checksum")
ARRAYS = ("keypoints", "origin", "basis")
VALUES = "values"
"""A further array where origins are bits: what 0 and 1 stand for."""
Arrays = Sequence[NDArray[np.generic]]


def prepare_image(name: str, features: ConcealedFeatures, dtype: str) -> tuple[ImageHeader, Arrays]:
    """Return header and arrays of an image in the type of the file, or as bits if it is a seal's.

    Raises InputError for values that float16 cannot hold, and for what is not bits where ``dtype`` asks for them.
    """
    bits = _as_bits(features)
    if bits is None and dtype == BITS:
        raise InputError(f"image {name!r:.80} is more than the bits of a seal; use dtype='float32'")
    arrays = _as_floats(name, features, dtype) if bits is None else bits
    header = ImageHeader(
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
        focal_px=features.focal_px,
    )
    return header, arrays


def read_header(source: FileBytes, address: int, name: str | None = None) -> tuple[ImageHeader, list[Dataset]]:
    """Return the header and the places of the arrays of the image at ``address``; ``name`` is what it
    should be called.

    No array is read. The header's own checksum is verified.
    """
    group = read_group(source, address, "its group")
    members = (*ARRAYS, VALUES) if VALUES in group.links else ARRAYS
    _expect(set(group.links), set(members), "members")
    _expect(set(group.attributes) - {"image_size", "focal_px"}, set(TEXTS), "attributes")
    datasets = [read_dataset(source, group.links[member], member) for member in members]
    text = {key: _text(group.attributes[key], key) for key in TEXTS}
    count, dim, ambient_dim, dtype = _dimensions(datasets)
    header = ImageHeader(
        name=decode_name(text["name"]),
        recipe=parse_recipe(text["recipe"]),
        extractor=parse_extractor(text["extractor"]),
        image_size=_image_size(group.attributes.get("image_size")),
        data=text["data"],
        payload=text["payload"],
        focal_px=_focal(group.attributes.get("focal_px")),
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


def read_arrays(source: FileBytes, header: ImageHeader, datasets: list[Dataset]) -> Arrays:
    """Return keypoints, origin, basis, and values of bits, as they are stored, read-only; their digest is verified."""
    arrays = [
        np.frombuffer(source.read(d.address, d.size, member) if d.size else b"", d.kind).reshape(d.shape)
        for (member, _, _), d in zip(header.arrays, datasets, strict=True)
    ]
    if digest_arrays(arrays) != header.data:
        raise InputError("the checksum of its arrays is wrong: they were damaged or changed")
    return arrays


def read_image(source: FileBytes, address: int, name: str) -> ConcealedFeatures:
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
        header.focal_px,
    )


def read_block(source: FileBytes, address: int) -> tuple[ImageHeader, int]:
    """Return header and end of a block of a ``.part``, if it is exactly what a writer writes."""
    header, datasets = read_header(source, address)
    head, _, end = hdf5.block_head(header, address)
    if source.read(address, len(head), "its headers") != head:
        raise InputError("its HDF5 headers are damaged")
    read_arrays(source, header, datasets)
    return header, end


def _as_bits(features: ConcealedFeatures) -> Arrays | None:
    """Return the arrays of sealed features; None for others, and for what a seal does not make."""
    if not features.recipe.is_sealed or features.subspaces.dim:
        return None
    packed = pack(features.subspaces.origin)
    if packed is None:
        return None
    bits, values = packed
    return features.keypoints, bits, features.subspaces.basis, values


def _as_floats(name: str, features: ConcealedFeatures, dtype: str) -> Arrays:
    """Return the arrays of features in the type of the file."""
    stored = (features.keypoints, features.subspaces.origin, features.subspaces.basis)
    arrays: list[Any] = []
    for array, kind in zip(stored, ("<f4", DTYPES[dtype], DTYPES[dtype]), strict=True):
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
        expected = "(N, 4), (N, n / 8 rounded up), (N, 0, n), (2,)" if values else "(N, 4), (N, n), (N, m, n)"
        raise InputError(f"shapes {', '.join(map(str, shapes))}: expected {expected}")
    kinds = [keypoints.kind, basis.kind, *(dataset.kind for dataset in values)]
    if kinds != (["<f4", "<f4", "<f4"] if values else ["<f4", origin.kind]):
        raise InputError("expected keypoints in float32, and origin and basis in one type, or float32 beside bits")
    return count, dim, ambient_dim, dtype


def _image_size(value: Value | None) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, tuple) or len(value) != 2 or not all(0 < length < 2**31 for length in value):
        raise InputError("image_size: expected a width and a height")
    return value[0], value[1]


def _focal(value: Value | None) -> float | None:
    if value is not None and not isinstance(value, float):
        raise InputError("focal_px: expected a number of pixels")
    return checked_focal(value)


def _text(value: Value, key: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"attribute {key!r}: expected a text")
    return value


def _expect(names: set[str], expected: set[str], what: str) -> None:
    if names != expected:
        missing, extra = sorted(expected - names), sorted(names - expected)[:3]
        raise InputError(f"{what} are missing: {missing}, or too many: {extra}"[:300])


# --- the archive


@dataclass(frozen=True, slots=True)
class ArchiveSummary:
    """Headers of the images of an archive, and what is wrong with the images that have none."""

    path: Path
    size_bytes: int
    images: tuple[ImageHeader, ...]
    damaged: Mapping[str, str]


def archive_errors(what: str, advice: str) -> AbstractContextManager[None]:
    """Turn every problem of a file into an ArchiveError that says what happened, where, and what to do."""
    return explain_errors(what, advice, ArchiveError)


def load(path: str | os.PathLike[str]) -> "Archive":
    """Open an archive that ``sfumato.save`` wrote; images are read on access.

    Raises ArchiveError for a file that is missing, damaged, hostile, or of another kind or version.
    """
    return Archive(path)


@contextmanager
def open_archive(archive: "str | os.PathLike[str] | Archive") -> Iterator["Archive"]:
    """Give the archive at a path, open for the block; one that is open already stays open."""
    if isinstance(archive, Archive):
        yield archive
    else:
        with Archive(archive) as opened:
            yield opened


class Archive(Mapping[str, ConcealedFeatures]):
    """A read-only mapping of image names, in sorted order, to ConcealedFeatures.

    Only names are kept in memory; each access reads and checks one image. An image that is damaged raises
    ArchiveError when it is read, and the others stay readable. The archive sees the file as it was when
    opened, even after another one took its place.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with archive_errors(f"cannot open the archive {self.path}", "check the path, or make the archive again"):
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            self._close = weakref.finalize(self, os.close, fd)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise InputError("this is not a file")
                self._source = FileBytes.of(fd)
                self.version, self._table, self._addresses = _read_table(self._source)
            except BaseException:
                self._close()
                raise

    def __getitem__(self, name: str) -> ConcealedFeatures:
        address = self._addresses[name]
        with self._explain_errors(name):
            return read_image(self._source, address, name)

    def header(self, name: str) -> ImageHeader:
        """Return everything about an image but its arrays, which are not read."""
        address = self._addresses[name]
        with self._explain_errors(name):
            return read_header(self._source, address, name)[0]

    def summary(self) -> ArchiveSummary:
        """Return the headers of all images, and what is wrong with those that have none."""
        images, damaged = [], {}
        for name in self:
            try:
                images.append(self.header(name))
            except ArchiveError as problem:
                damaged[name] = str(problem)
        return ArchiveSummary(self.path, self._source.size, tuple(images), damaged)

    def __iter__(self) -> Iterator[str]:
        return iter(self._addresses)

    def __len__(self) -> int:
        return len(self._addresses)

    def __contains__(self, name: object) -> bool:
        return name in self._addresses

    __eq__ = object.__eq__  # a comparison by content would read everything
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Archive({str(self.path)!r}, {len(self)} images)"

    @property
    def places(self) -> tuple[FileBytes, int, Mapping[str, int]]:
        """The open file, and the addresses of the table of links and of the images: for a writer."""
        return self._source, self._table, self._addresses

    def close(self) -> None:
        """Close the file; images can no longer be read."""
        self._close()

    def __enter__(self) -> "Archive":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _explain_errors(self, name: str) -> Iterator[None]:
        if not self._close.alive:
            raise ArchiveError(f"the archive {self.path} is closed; load it again")
        where = f"cannot read image {name!r:.80} of the archive {self.path}"
        advice = "the other images can still be read; restore the archive from a copy, or make it again"
        with archive_errors(where, advice):
            yield


def _read_table(source: FileBytes) -> tuple[int, int, dict[str, int]]:
    """Return the version, the address of the table of links, and the images in the order of their names."""
    root = read_group(source, read_superblock(source), "the root group")
    attributes = root.attributes
    if attributes.get("format") != FORMAT:
        raise InputError("this is an HDF5 file, but not a Sfumato archive")
    version = attributes.get("version")
    if version not in VERSIONS or not isinstance(version, int):
        known = f"{VERSIONS[0]} to {VERSIONS[-1]}"
        raise InputError(f"it has version {version!r:.80} of the format, this Sfumato reads {known}: use another")
    if attributes.get("payload") not in PAYLOADS:
        raise InputError(f"unknown payload {attributes.get('payload')!r:.80}: this version knows {', '.join(PAYLOADS)}")
    if set(root.links) != {"images"} or set(attributes) != {"format", "version", "payload", "images", "names"}:
        raise InputError("the root group has other members or attributes than an archive")
    images = read_group(source, root.links["images"], "the group of images", LARGEST_HEADER)
    if images.attributes:
        raise InputError("the group of images has attributes, which archives do not use")
    if len(images.links) != attributes["images"] or digest_names(images.links) != attributes["names"]:
        raise InputError("the list of images is damaged: some were lost, added or renamed")
    names = {decode_name(encoded): address for encoded, address in images.links.items()}
    return version, root.links["images"], dict(sorted(names.items()))
