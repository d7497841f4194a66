# SPDX-License-Identifier: Apache-2.0
"""Headers as HDF5 bytes: the few structures an archive is made of, and where each of them goes.

Knows the HDF5 file format (version 2 superblock, version 2 object headers, compact links, contiguous data)
and no file. Every function is pure: values in, bytes out, the same bytes each time. Numbers are
little-endian.
"""

import struct
from collections.abc import Mapping

from sfumato.errors import InputError
from sfumato.files.hdf5 import SIGNATURE
from sfumato.store.layout import FORMAT, LONGEST_TEXT, PAYLOAD, VERSION, ImageHeader, digest_names, encode_name

SUPERBLOCK_SIZE = 48
ALIGNMENT = 8
UNDEFINED = 2**64 - 1
LINK_SIZE = 16
"""Bytes a link takes in a group beside its name."""

DATASPACE, LINK_INFO, DATATYPE, FILL_VALUE, LINK, LAYOUT = 0x01, 0x02, 0x03, 0x05, 0x06, 0x08
GROUP_INFO, ATTRIBUTE = 0x0A, 0x0C

FLOATS = {
    "<f4": struct.pack("<B3BI2H4BI", 0x11, 0x20, 31, 0, 4, 0, 32, 23, 8, 0, 23, 127),
    "<f2": struct.pack("<B3BI2H4BI", 0x11, 0x20, 15, 0, 2, 0, 16, 10, 5, 0, 10, 15),
}
"""Datatype messages: class and version, sign position, size, offset, precision, exponent, mantissa, bias."""
ARRAY_TYPES = {**FLOATS, "|u1": struct.pack("<B3BI2H", 0x10, 0, 0, 0, 1, 0, 8)}
FLOAT64 = struct.pack("<B3BI2H4BI", 0x11, 0x20, 63, 0, 8, 0, 64, 52, 11, 0, 52, 1023)
INT64 = struct.pack("<B3BI2H", 0x10, 0x08, 0, 0, 8, 0, 64)


def text_type(size: int) -> bytes:
    """Return the datatype message of an ASCII text of fixed size, padded with NUL."""
    return struct.pack("<B3BI", 0x13, 0x01, 0, 0, size)


def dataspace(shape: tuple[int, ...]) -> bytes:
    """Return the dataspace message of a shape; the empty shape is a single value."""
    return struct.pack(f"<4B{len(shape)}Q", 2, len(shape), 0, 1 if shape else 0, *shape)


def superblock(end: int, root: int) -> bytes:
    """Return the first 48 bytes of a file that ends at ``end`` and whose root group is at ``root``."""
    block = SIGNATURE + struct.pack("<4B4Q", 2, 8, 8, 0, 0, UNDEFINED, end, root)
    return block + struct.pack("<I", lookup3(block))


def block_head(header: ImageHeader, address: int) -> tuple[bytes, list[int], int]:
    """Lay an image out at ``address``.

    Returns its object headers as bytes, the addresses of its arrays, and the address behind them.
    """
    sizes = [_nbytes(kind, shape) for _, kind, shape in header.arrays]
    lengths = [
        _length(_group(header, [0] * len(sizes))),
        *(_length(_dataset(k, shape, 0, 0)) for _, k, shape in header.arrays),
    ]
    starts = [address + sum(lengths[:i]) for i in range(len(lengths) + 1)]
    places = [aligned(starts[-1])]
    for size in sizes:
        places.append(aligned(places[-1] + size))
    headers = [_object_header(_group(header, starts[1:-1]))]
    for (_, kind, shape), place, size in zip(header.arrays, places, sizes, strict=False):
        headers.append(_object_header(_dataset(kind, shape, place if size else UNDEFINED, size)))
    return b"".join(headers).ljust(places[0] - address, b"\0"), places[:-1], places[-1]


def tail(addresses: Mapping[str, int], address: int, version: int = VERSION) -> tuple[bytes, int, int]:
    """Return the table of links and the root group at ``address``, the address of the root, and the end.

    ``addresses`` maps link names to the group headers of the images; ``version`` is that of the format.
    """
    images = _object_header([*_GROUP, *(_link(name, addresses[name]) for name in sorted(addresses))])
    root = _object_header(
        [
            *_GROUP,
            _link("images", address),
            _attribute("format", *_text(FORMAT)),
            _attribute("version", INT64, (), struct.pack("<q", version)),
            _attribute("payload", *_text(PAYLOAD)),
            _attribute("images", INT64, (), struct.pack("<q", len(addresses))),
            _attribute("names", *_text(digest_names(addresses))),
        ]
    )
    return images + root, address + len(images), address + len(images) + len(root)


def aligned(address: int) -> int:
    """Return the next multiple of 8."""
    return -(-address // ALIGNMENT) * ALIGNMENT


def lookup3(data: bytes) -> int:
    """Return HDF5's metadata checksum: Bob Jenkins' lookup3 (hashlittle) with initial value 0."""
    mask = 0xFFFFFFFF
    a: int
    b: int
    a = b = c = (0xDEADBEEF + len(data)) & mask
    if not data:
        return c
    whole = (len(data) - 1) // 12 * 12
    for x, y, z in struct.iter_unpack("<3I", data[:whole]):
        a, b, c = a + x & mask, b + y & mask, c + z & mask
        a = (a - c & mask) ^ (c << 4 & mask | c >> 28)
        c = c + b & mask
        b = (b - a & mask) ^ (a << 6 & mask | a >> 26)
        a = a + c & mask
        c = (c - b & mask) ^ (b << 8 & mask | b >> 24)
        b = b + a & mask
        a = (a - c & mask) ^ (c << 16 & mask | c >> 16)
        c = c + b & mask
        b = (b - a & mask) ^ (a << 19 & mask | a >> 13)
        a = a + c & mask
        c = (c - b & mask) ^ (b << 4 & mask | b >> 28)
        b = b + a & mask
    x, y, z = struct.unpack("<3I", data[whole:].ljust(12, b"\0"))
    a, b, c = a + x & mask, b + y & mask, c + z & mask
    for turn in (14, 11, 25, 16, 4, 14, 24):
        c = (c ^ b) - (b << turn & mask | b >> 32 - turn) & mask
        a, b, c = b, c, a
    return b


_GROUP = [
    (
        LINK_INFO,
        struct.pack("<2B2Q", 0, 0, UNDEFINED, UNDEFINED),
    ),  # links in the header itself: no heap, no B-tree
    (GROUP_INFO, struct.pack("<2B", 0, 0)),
]


def _group(header: ImageHeader, datasets: list[int]) -> list[tuple[int, bytes]]:
    """Return the messages of the group of an image whose arrays' headers are at ``datasets``."""
    size = header.image_size
    texts = {
        "name": encode_name(header.name),
        "payload": header.payload,
        "recipe": header.recipe.to_json(),
        "extractor": header.extractor.to_json(),
        "data": header.data,
        "checksum": header.checksum,
    }
    return [
        *_GROUP,
        *(_link(name, place) for (name, _, _), place in zip(header.arrays, datasets, strict=True)),
        *(_attribute(name, *_text(text, name)) for name, text in texts.items()),
        *([_attribute("image_size", INT64, (2,), struct.pack("<2q", *size))] if size else []),
        *([] if header.focal_px is None else [_attribute("focal_px", FLOAT64, (), struct.pack("<d", header.focal_px))]),
    ]


def _dataset(kind: str, shape: tuple[int, ...], address: int, size: int) -> list[tuple[int, bytes]]:
    """Return the messages of the dataset of an array of ``size`` bytes at ``address``."""
    return [
        (DATASPACE, dataspace(shape)),
        (DATATYPE, ARRAY_TYPES[kind]),
        (FILL_VALUE, b"\x03\x05"),  # space is taken early, nothing is filled in
        (LAYOUT, struct.pack("<2B2Q", 3, 1, address, size)),
    ]


def _object_header(messages: list[tuple[int, bytes]]) -> bytes:
    body = b"".join(struct.pack("<BHB", kind, len(data), 0) + data for kind, data in messages)
    header = b"OHDR\x02\x02" + struct.pack("<I", len(body)) + body
    return header + struct.pack("<I", lookup3(header))


def _length(messages: list[tuple[int, bytes]]) -> int:
    """Return the length of the object header of these messages."""
    return 14 + sum(4 + len(data) for _, data in messages)


def _link(name: str, address: int) -> tuple[int, bytes]:
    raw = name.encode("ascii")
    return LINK, struct.pack("<2BH", 1, 1, len(raw)) + raw + struct.pack("<Q", address)


def _attribute(name: str, kind: bytes, shape: tuple[int, ...], value: bytes) -> tuple[int, bytes]:
    raw, space = name.encode("ascii") + b"\0", dataspace(shape)
    sizes = struct.pack("<2B3HB", 3, 0, len(raw), len(kind), len(space), 0)
    return ATTRIBUTE, sizes + raw + kind + space + value


def _text(text: str, what: str = "text") -> tuple[bytes, tuple[int, ...], bytes]:
    raw = text.encode("ascii")
    if not 0 < len(raw) <= LONGEST_TEXT:
        raise InputError(f"{what}: {len(raw)} bytes, an archive holds 1 to {LONGEST_TEXT}; shorten its settings")
    return text_type(len(raw)), (), raw


def _nbytes(kind: str, shape: tuple[int, ...]) -> int:
    size = int(kind[-1])
    for length in shape:
        size *= length
    return size
