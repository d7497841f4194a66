# SPDX-License-Identifier: Apache-2.0
"""HDF5 bytes as values: a strict reader of the part of HDF5 that an archive uses.

Knows bytes, not archives. Files may be damaged or hostile: every address and size is checked against the file
before it is used, nothing is followed twice, and whatever is not expected is an InputError that says what it
is. The caller adds which file and which image. docs/format.md lists what is accepted.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from sfumato.errors import InputError
from sfumato.files.hdf5 import SIGNATURE
from sfumato.store import hdf5
from sfumato.store.layout import LONGEST_TEXT

NIL, EXTERNAL, FILTERS, MODIFIED, CONTINUATION, ATTRIBUTE_INFO = 0x00, 0x07, 0x0B, 0x12, 0x10, 0x15
REFERENCE_COUNT = 0x16
SHARED = 2
ANYWHERE = {NIL, MODIFIED, CONTINUATION, ATTRIBUTE_INFO, REFERENCE_COUNT}
IN_GROUP = ANYWHERE | {hdf5.LINK_INFO, hdf5.GROUP_INFO, hdf5.LINK, hdf5.ATTRIBUTE}
IN_DATASET = ANYWHERE | {hdf5.DATASPACE, hdf5.DATATYPE, hdf5.FILL_VALUE, hdf5.LAYOUT}
REFUSED = {
    EXTERNAL: "external storage",
    FILTERS: "a filter",
    0x11: "an old-style group",
    hdf5.ATTRIBUTE: "an attribute",
}
LAYOUTS = {0: "compact", 2: "chunked", 3: "virtual"}
LINKS = {1: "a soft link", 64: "an external link"}

SMALL_HEADER = 2**18
LARGEST_HEADER = 2**26
"""Bytes of the header of an image, and of the table of all images (about a million)."""

Value = str | int | float | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FileBytes:
    """An open file of a known size. Reading outside of it is an error, never a short answer."""

    fd: int
    size: int

    @classmethod
    def of(cls, fd: int) -> "FileBytes":
        """Return the source of an open file as long as it is now."""
        return cls(fd, os.fstat(fd).st_size)

    def read(self, address: int, size: int, what: str) -> bytes:
        """Return ``size`` bytes at ``address``."""
        if not 0 <= address <= address + size <= self.size:
            raise InputError(f"{what} lies outside of the file, which is truncated or damaged")
        parts = []
        while size > 0:
            part = os.pread(self.fd, min(size, 2**30), address)
            if not part:
                raise InputError(f"{what} could not be read: the file became shorter while it was open")
            parts.append(part)
            address, size = address + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(frozen=True, slots=True)
class GroupHeader:
    """A group: its members' addresses and its attributes."""

    links: dict[str, int] = field(default_factory=dict)
    attributes: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dataset:
    """A contiguous array: type, shape, and where its bytes are."""

    kind: str
    shape: tuple[int, ...]
    address: int
    size: int


def read_superblock(source: FileBytes) -> int:
    """Return the address of the root group."""
    block = source.read(0, hdf5.SUPERBLOCK_SIZE, "the HDF5 superblock")
    if not block.startswith(SIGNATURE):
        raise InputError("this is not an HDF5 file")
    version, offsets, lengths, _, base, extension, end, root = struct.unpack("<4B4Q", block[8:44])
    if (version, offsets, lengths, base, extension) != (2, 8, 8, 0, hdf5.UNDEFINED):
        raise InputError("this is an HDF5 file, but not a Sfumato archive")
    if struct.unpack("<I", block[44:])[0] != hdf5.lookup3(block[:44]):
        raise InputError("the HDF5 superblock is damaged")
    if end != source.size:
        raise InputError(f"the file has {source.size} bytes and should have {end}: it is truncated or was changed")
    return int(root)


def read_group(source: FileBytes, address: int, what: str, limit: int = SMALL_HEADER) -> GroupHeader:
    """Return the group whose object header is at ``address``."""
    group = GroupHeader()
    for kind, data in _messages(source, address, what, IN_GROUP, limit):
        if kind == hdf5.LINK:
            name, place = _link(data, what)
            if name in group.links:
                raise InputError(f"{what} has two members {name!r:.80}")
            group.links[name] = place
        elif kind == hdf5.ATTRIBUTE:
            name, value = _attribute(data, what)
            if name in group.attributes:
                raise InputError(f"{what} has two attributes {name!r:.80}")
            group.attributes[name] = value
    return group


def read_dataset(source: FileBytes, address: int, what: str) -> Dataset:
    """Return the dataset whose object header is at ``address``; its bytes are inside the file."""
    messages: dict[int, bytes] = {}
    for kind, data in _messages(source, address, what, IN_DATASET, SMALL_HEADER):
        if kind in ANYWHERE:
            continue
        if kind in messages:
            raise InputError(f"{what} is described twice")
        messages[kind] = data
    if not {hdf5.DATASPACE, hdf5.DATATYPE, hdf5.LAYOUT} <= set(messages):
        raise InputError(f"{what} is not a dataset")
    kinds = [name for name, message in hdf5.ARRAY_TYPES.items() if _same_type(messages[hdf5.DATATYPE], message)]
    if not kinds:
        raise InputError(f"{what}: its type is neither little-endian float32, float16 nor bytes")
    shape, used = _shape(messages[hdf5.DATASPACE], what)
    layout = messages[hdf5.LAYOUT]
    if used != len(messages[hdf5.DATASPACE]) or len(layout) < 2 or layout[0] not in (3, 4):
        raise InputError(f"{what}: its description is not one this version reads")
    if layout[1] != 1 or len(layout) != 18:
        raise InputError(f"{what}: its storage is {LAYOUTS.get(layout[1], 'unknown')}, expected contiguous")
    place, size = struct.unpack("<2Q", layout[2:])
    expected = int(kinds[0][-1])
    for length in shape:
        expected *= length
    if size != expected:
        raise InputError(f"{what}: {size} bytes are stored, its shape {shape} needs {expected}")
    if size and place + size > source.size:
        raise InputError(f"{what} lies outside of the file, which is truncated or damaged")
    return Dataset(kinds[0], shape, place, size)


def _messages(source: FileBytes, address: int, what: str, allowed: set[int], limit: int) -> Iterator[tuple[int, bytes]]:
    """Yield type and bytes of the messages of a version 2 object header and its continuations."""
    first, extra = _first_chunk(source, address, what)
    todo, addresses = [first], set()
    while todo:
        begin, size = todo.pop()
        limit -= size
        if begin in addresses or limit < 0:
            raise InputError(f"{what}: its object header is too large or runs in a circle")
        addresses.add(begin)
        chunk = source.read(begin, size, what)
        at = 0
        while at + 4 + extra <= size:
            kind, length, note = chunk[at], chunk[at + 1] | chunk[at + 2] << 8, chunk[at + 3]
            at += 4 + extra
            if kind not in allowed or note & SHARED:
                shown = "a shared message" if note & SHARED else REFUSED.get(kind, f"HDF5 message {kind:#x}")
                raise InputError(f"{what} has {shown}, which archives do not use")
            if at + length > size:
                raise InputError(f"{what}: its object header is damaged")
            data = chunk[at : at + length]
            at += length
            if kind == CONTINUATION:
                todo.append(_continuation(source, data, what))
            elif kind in (hdf5.LINK_INFO, ATTRIBUTE_INFO):
                _refuse_heap(data, 8 if kind == hdf5.LINK_INFO else 2, what)
            else:
                yield kind, data


def _first_chunk(source: FileBytes, address: int, what: str) -> tuple[tuple[int, int], int]:
    """Return start and size of the messages of an object header, and what each adds to its 4-byte head."""
    start = source.read(address, max(0, min(38, source.size - address)), what)
    if start[:5] != b"OHDR\x02":
        raise InputError(f"{what}: there is no version 2 object header where one should be")
    flags = start[5] if len(start) > 5 else 0xFF
    place = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)  # times, attribute phase change
    width = 1 << (flags & 3)
    if flags & 0xC0 or len(start) < place + width:
        raise InputError(f"{what}: its object header is damaged")
    size = int.from_bytes(start[place : place + width], "little")
    return (address + place + width, size), 2 if flags & 4 else 0  # the order of creation


def _continuation(source: FileBytes, data: bytes, what: str) -> tuple[int, int]:
    """Return start and size of the messages of a continuation block."""
    place, size = struct.unpack("<2Q", data) if len(data) == 16 else (0, 0)
    if size < 8 or source.read(place, 4, what) != b"OCHK":
        raise InputError(f"{what}: the continuation of its object header is damaged")
    return place + 4, size - 8


def _refuse_heap(data: bytes, index_size: int, what: str) -> None:
    """Accept a link info or attribute info message only if it says that everything stands in the header.

    ``index_size`` is the size of the largest creation index, which comes before the heap's address if it is
    there.
    """
    at = 2 + (index_size if len(data) > 1 and data[1] & 1 else 0)
    if len(data) < at + 16 or data[0] != 0 or data[1] > 3:
        raise InputError(f"{what}: its object header is damaged")
    if data[at : at + 8] != b"\xff" * 8:
        raise InputError(f"{what} keeps members or attributes in an HDF5 heap, which archives do not use")


def _link(data: bytes, what: str) -> tuple[str, int]:
    """Return name and address of a hard link."""
    if len(data) < 2 or data[0] != 1 or data[1] & 0xE0:
        raise InputError(f"{what}: a link in it is damaged")
    flags, at = data[1], 2
    kind = data[at] if flags & 8 and len(data) > at else 0
    at += (1 if flags & 8 else 0) + (8 if flags & 4 else 0) + (1 if flags & 16 else 0)
    if kind != 0:
        raise InputError(f"{what} has {LINKS.get(kind, 'an unknown kind of link')}, only hard links are allowed")
    width = 1 << (flags & 3)
    length = int.from_bytes(data[at : at + width], "little")
    at += width
    if len(data) != at + length + 8:
        raise InputError(f"{what}: a link in it is damaged")
    return _ascii(data[at : at + length], what), int.from_bytes(data[-8:], "little")


def _attribute(data: bytes, what: str) -> tuple[str, Value]:
    """Return name and value of an attribute: a text, an integer, some integers, or a number."""
    if len(data) < 9 or data[0] != 3 or data[1] != 0:
        raise InputError(f"{what}: an attribute of it is not one this version reads")
    name_size, type_size, space_size = struct.unpack("<3H", data[2:8])
    at = 9 + name_size
    name = _ascii(data[9:at].rstrip(b"\0"), what)
    kind, space = data[at : at + type_size], data[at + type_size : at + type_size + space_size]
    value = data[at + type_size + space_size :]
    shape, used = _shape(space, what)
    if len(kind) < 8 or used != len(space):
        raise InputError(f"{what}: its attribute {name!r:.80} is damaged")
    if kind[0] & 15 == 3 and shape == ():
        if struct.unpack("<I", kind[4:8])[0] != len(value) or len(value) > LONGEST_TEXT:
            raise InputError(f"{what}: its attribute {name!r:.80} is too long or damaged")
        return name, _ascii(value.rstrip(b"\0"), what)
    if _same_type(kind, hdf5.INT64) and len(shape) < 2 and len(value) == 8 * (shape[0] if shape else 1) <= 64:
        numbers = struct.unpack(f"<{len(value) // 8}q", value)
        return name, numbers if shape else numbers[0]
    if _same_type(kind, hdf5.FLOAT64) and shape == () and len(value) == 8:
        return name, float(struct.unpack("<d", value)[0])
    raise InputError(f"{what}: its attribute {name!r:.80} is neither a text of fixed length nor a 64-bit number")


def _shape(data: bytes, what: str) -> tuple[tuple[int, ...], int]:
    """Return the shape a dataspace message gives, and the length of the message."""
    if len(data) < 4 or data[0] != 2 or data[1] > 3 or data[2] > 1 or data[3] != (1 if data[1] else 0):
        raise InputError(f"{what}: its shape is not one this version reads")
    rank, copies = data[1], 1 + data[2]
    used = 4 + 8 * rank * copies
    numbers = struct.unpack(f"<{rank * copies}Q", data[4:used].ljust(used - 4, b"\0"))
    if copies == 2 and numbers[:rank] != numbers[rank:]:
        raise InputError(f"{what}: its shape may grow, expected a fixed one")
    return numbers[:rank], used


def _same_type(kind: bytes, expected: bytes) -> bool:
    """Compare two datatype messages, whatever version of the message was written."""
    return bool(kind) and kind[0] & 15 == expected[0] & 15 and kind[1:] == expected[1:]


def _ascii(raw: bytes, what: str) -> str:
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError as cause:
        raise InputError(f"{what}: a name or text in it is not ASCII") from cause
