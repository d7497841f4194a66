# SPDX-License-Identifier: Apache-2.0
"""The strict reader: libhdf5 writes, it reads what is allowed and names what is not."""

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.store import hdf5, hdf5_reader
from sfumato.store.hdf5_reader import FileBytes

Write = Callable[[Callable[[h5py.File], Any]], FileBytes]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """Let libhdf5 write a file and open it as a source."""
    opened = []

    def run(fill: Callable[[h5py.File], Any]) -> FileBytes:
        with h5py.File(tmp_path / "a.h5", "w", libver=("v108", "latest")) as file:
            fill(file)
        opened.append(os.open(tmp_path / "a.h5", os.O_RDONLY))
        return FileBytes.of(opened[-1])

    yield run
    for fd in opened:
        os.close(fd)


def group_of(source: FileBytes) -> hdf5_reader.GroupHeader:
    return hdf5_reader.read_group(source, hdf5_reader.read_superblock(source), "the group")


def dataset_of(source: FileBytes) -> hdf5_reader.Dataset:
    return hdf5_reader.read_dataset(source, group_of(source).links["d"], "the dataset")


def test_a_source_never_reads_outside(write: Write):
    source = write(lambda file: None)
    assert len(source.read(0, source.size, "x")) == source.size
    assert source.read(source.size, 0, "x") == b""
    for address, size in ((0, source.size + 1), (source.size, 1), (-1, 2), (2**64, 1), (0, -1), (5, 2**80)):
        with pytest.raises(InputError, match="outside"):
            source.read(address, size, "x")


def test_a_file_that_shrinks_is_noticed(tmp_path: Path):
    path = tmp_path / "a"
    path.write_bytes(bytes(100))
    fd = os.open(path, os.O_RDWR)
    try:
        source = FileBytes.of(fd)
        os.ftruncate(fd, 50)
        with pytest.raises(InputError, match="shorter"):
            source.read(0, 100, "x")
    finally:
        os.close(fd)


def test_attributes_and_links(write: Write):
    def fill(file: h5py.File) -> None:
        file.attrs["text"] = np.bytes_(b"some text")
        file.attrs["number"] = 3
        file.attrs["numbers"] = np.array([640, 480])
        for name in "abc":
            file.create_group(name)

    group = group_of(write(fill))
    assert group.attributes == {"text": "some text", "number": 3, "numbers": (640, 480)}
    assert set(group.links) == {"a", "b", "c"}
    assert len(set(group.links.values())) == 3


def test_a_header_with_continuations(write: Write):
    def fill(file: h5py.File) -> None:
        for i in range(8):
            file.attrs[f"attribute{i}"] = np.bytes_(b"x" * 500)
            file.create_group(f"a rather long name of a group {i}")

    source = write(fill)
    assert b"OCHK" in source.read(0, source.size, "x")
    group = group_of(source)
    assert len(group.links) == len(group.attributes) == 8


@pytest.mark.parametrize("kind", ["<f4", "<f2"])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (0, 4), (5,), ()])
def test_contiguous_arrays(write: Write, kind: str, shape: tuple[int, ...]):
    values = np.arange(np.prod(shape, dtype=int), dtype=kind).reshape(shape)
    source = write(lambda file: file.create_dataset("d", data=values))
    dataset = dataset_of(source)
    assert (dataset.kind, dataset.shape, dataset.size) == (kind, shape, values.nbytes)
    if values.size:
        assert source.read(dataset.address, dataset.size, "x") == values.tobytes()


def external(file: h5py.File) -> None:
    file.create_dataset("d", (2, 3), "<f4", external=[("other.bin", 0, h5py.h5f.UNLIMITED)])


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((2, 3), "<f4")
    layout[:] = h5py.VirtualSource("other.h5", "x", (2, 3))
    file.create_virtual_dataset("d", layout)


def compact(file: h5py.File) -> None:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.COMPACT)
    h5py.h5d.create(file.id, b"d", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((2, 3)), plist)


def committed(file: h5py.File) -> None:
    file["t"] = np.dtype("<f4")
    file.create_dataset("d", (2, 3), file["t"])


def with_attribute(file: h5py.File) -> None:
    file.create_dataset("d", data=np.zeros((2, 3), "<f4")).attrs["x"] = 1


DATASETS: dict[str, tuple[Callable[[h5py.File], Any], str]] = {
    "filter": (lambda f: f.create_dataset("d", (2, 3), "<f4", compression="gzip"), "a filter|chunked"),
    "shuffle": (lambda f: f.create_dataset("d", (2, 3), "<f4", shuffle=True), "a filter|chunked"),
    "chunked": (lambda f: f.create_dataset("d", (2, 3), "<f4", chunks=(1, 3)), "chunked"),
    "growing": (lambda f: f.create_dataset("d", (2, 3), "<f4", maxshape=(None, 3)), "may grow"),
    "compact": (compact, "compact"),
    "virtual": (virtual, "virtual"),
    "external": (external, "external storage"),
    "committed": (committed, "a shared message"),
    "big endian": (lambda f: f.create_dataset("d", (2, 3), ">f4"), "type"),
    "float64": (lambda f: f.create_dataset("d", (2, 3), "<f8"), "type"),
    "integers": (lambda f: f.create_dataset("d", (2, 3), "<i4"), "type"),
    "texts": (lambda f: f.create_dataset("d", (2, 3), h5py.string_dtype()), "type"),
    "ragged": (lambda f: f.create_dataset("d", (2, 3), h5py.vlen_dtype("<f4")), "type"),
    "references": (lambda f: f.create_dataset("d", (2, 3), h5py.ref_dtype), "type"),
    "compound": (lambda f: f.create_dataset("d", (2, 3), [("x", "<f4")]), "type"),
    "subarray": (lambda f: f.create_dataset("d", (2,), np.dtype(("<f4", (3,)))), "type"),
    "four dimensions": (lambda f: f.create_dataset("d", (2, 3, 1, 1), "<f4"), "shape"),
    "null": (lambda f: f.create_dataset("d", data=h5py.Empty("<f4")), "shape"),
    "never written": (lambda f: f.create_dataset("d", (2, 3), "<f4"), "outside"),
    "attribute": (with_attribute, "an attribute"),
    "group": (lambda f: f.create_group("d"), "message 0x2|not a dataset"),
}


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_other_datasets_are_refused(write: Write, name: str):
    fill, words = DATASETS[name]
    with pytest.raises(InputError, match=words):
        dataset_of(write(fill))


def many(file: h5py.File) -> None:
    for i in range(2000):
        file.create_group(f"g{i}")


def many_attributes(file: h5py.File) -> None:
    for i in range(20):
        file.attrs[f"a{i}"] = i


GROUPS: dict[str, tuple[Callable[[h5py.File], Any], str]] = {
    "soft link": (lambda f: f.__setitem__("x", h5py.SoftLink("/x")), "a soft link"),
    "external link": (lambda f: f.__setitem__("x", h5py.ExternalLink("a.h5", "/x")), "an external link"),
    "many members": (many, "heap"),
    "many attributes": (many_attributes, "heap"),
    "huge attribute": (lambda f: f.attrs.__setitem__("a", np.zeros(2**18)), "heap"),
    "long text": (lambda f: f.attrs.__setitem__("a", np.bytes_(b"x" * 40_000)), "too long"),
    "ragged text": (lambda f: f.attrs.__setitem__("a", "text"), "neither"),
    "float": (lambda f: f.attrs.__setitem__("a", np.float32(1)), "neither"),
    "texts": (lambda f: f.attrs.__setitem__("a", np.array([b"x", b"y"])), "neither"),
    "too many numbers": (lambda f: f.attrs.__setitem__("a", np.arange(9)), "neither"),
    "small number": (lambda f: f.attrs.__setitem__("a", np.int32(1)), "neither"),
    "null": (lambda f: f.attrs.__setitem__("a", h5py.Empty("<i8")), "shape"),
    "not ASCII": (lambda f: f.attrs.__setitem__("a", np.bytes_("é".encode())), "ASCII"),
    "name not ASCII": (lambda f: f.create_group("é"), "ASCII"),
}


@pytest.mark.parametrize("name", sorted(GROUPS))
def test_other_groups_are_refused(write: Write, name: str):
    fill, words = GROUPS[name]
    with pytest.raises(InputError, match=words):
        group_of(write(fill))


def test_an_old_file_is_refused(tmp_path: Path):
    with h5py.File(tmp_path / "a.h5", "w", libver="earliest") as file:
        file["x"] = np.zeros(3)
    fd = os.open(tmp_path / "a.h5", os.O_RDONLY)
    try:
        with pytest.raises(InputError, match="HDF5"):
            hdf5_reader.read_superblock(FileBytes.of(fd))
    finally:
        os.close(fd)


# ---------------------------------------------------------------- bytes no library writes


def source_of(folder: Path, raw: bytes) -> FileBytes:
    (folder / "raw").write_bytes(raw)
    return FileBytes.of(os.open(folder / "raw", os.O_RDONLY))


def header(*messages: tuple[int, bytes], flags: int = 0) -> bytes:
    body = b"".join(struct.pack("<BHB", kind, len(data), flags) + data for kind, data in messages)
    return b"OHDR\x02\x02" + struct.pack("<I", len(body)) + body + bytes(4)


def continuation(address: int, size: int) -> tuple[int, bytes]:
    return hdf5_reader.CONTINUATION, struct.pack("<2Q", address, size)


LINK = struct.pack("<2BH", 1, 1, 1) + b"a" + struct.pack("<Q", 0)
ATTRIBUTE = struct.pack("<2B3HB", 3, 0, 2, 12, 4, 0) + b"a\0" + hdf5.INT64 + hdf5.dataspace(()) + bytes(8)
RAW: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "no version 2 object header"),
    "cut": (b"OHDR\x02", "damaged"),
    "old": (b"\x01\x00\x01\x00" + bytes(40), "no version 2 object header"),
    "unknown flags": (b"OHDR\x02\xc2" + bytes(40), "damaged"),
    "larger than the file": (b"OHDR\x02\x02\xff\xff\x00\x00" + bytes(40), "outside"),
    "larger than the limit": (b"OHDR\x02\x03" + b"\xff" * 8 + bytes(40), "too large"),
    "message larger than the header": (b"OHDR\x02\x02\x08\0\0\0" + b"\0\xff\xff\0" + bytes(12), "damaged"),
    "shared message": (header((hdf5.LINK, LINK), flags=2), "a shared message"),
    "symbol table": (header((0x11, bytes(16))), "an old-style group"),
    "unknown message": (header((0x7F, b"")), "message 0x7f"),
    "circle": (header(continuation(48, 28)) + bytes(14) + b"OCHK" + header(continuation(48, 28))[10:], "circle"),
    "continuation nowhere": (header(continuation(2**63, 40)), "outside"),
    "continuation to something else": (header(continuation(0, 40)), "continuation"),
    "short continuation": (header((hdf5_reader.CONTINUATION, bytes(8))), "continuation"),
    "short link info": (header((hdf5.LINK_INFO, bytes(3))), "damaged"),
    "empty link info": (header((hdf5.LINK_INFO, b"")), "damaged"),
    "heap": (header((hdf5.LINK_INFO, bytes(18))), "heap"),
    "heap of attributes": (header((hdf5_reader.ATTRIBUTE_INFO, b"\0\1" + bytes(18))), "heap"),
    "two links of one name": (header((hdf5.LINK, LINK), (hdf5.LINK, LINK)), "two members"),
    "two attributes of one name": (header(*[(hdf5.ATTRIBUTE, ATTRIBUTE)] * 2), "two attributes"),
    "empty link": (header((hdf5.LINK, b"")), "damaged"),
    "short link": (header((hdf5.LINK, b"\x01\x1f")), "damaged"),
    "link with a long name": (header((hdf5.LINK, LINK.replace(b"\x01\0a", b"\x09\0a"))), "damaged"),
    "unknown kind of link": (header((hdf5.LINK, b"\x01\x08\x63" + bytes(12))), "unknown kind of link"),
    "empty attribute": (header((hdf5.ATTRIBUTE, b"")), "not one this version reads"),
    "attribute without value": (header((hdf5.ATTRIBUTE, ATTRIBUTE[:-8])), "neither"),
    "attribute without shape": (header((hdf5.ATTRIBUTE, ATTRIBUTE[:20])), "shape"),
    "attribute with sizes too large": (header((hdf5.ATTRIBUTE, b"\3\0" + b"\xff" * 40)), "shape|ASCII"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(RAW))
def test_hostile_group_headers_are_refused(tmp_path: Path, name: str):
    raw, words = RAW[name]
    source = source_of(tmp_path, raw)
    try:
        with pytest.raises(InputError, match=words):
            hdf5_reader.read_group(source, 0, "the group")
    finally:
        os.close(source.fd)


def dataset(*, shape: bytes | None = None, layout: bytes | None = None, kind: bytes | None = None) -> bytes:
    return header(
        (hdf5.DATASPACE, hdf5.dataspace((2, 3)) if shape is None else shape),
        (hdf5.DATATYPE, hdf5.FLOATS["<f4"] if kind is None else kind),
        (hdf5.LAYOUT, struct.pack("<2B2Q", 3, 1, 0, 24) if layout is None else layout),
    )


SPACE = hdf5.dataspace((2, 3))
RAW_DATASETS: dict[str, tuple[bytes, str]] = {
    "huge shape": (dataset(shape=hdf5.dataspace((2**40, 2**40))), "needs"),
    "huge shape and size": (
        dataset(shape=hdf5.dataspace((2**30,)), layout=struct.pack("<2B2Q", 3, 1, 0, 2**32)), "outside"),
    "far away": (dataset(layout=struct.pack("<2B2Q", 3, 1, 2**63, 24)), "outside"),
    "undefined": (dataset(layout=struct.pack("<2B2Q", 3, 1, hdf5.UNDEFINED, 24)), "outside"),
    "smaller than its shape": (dataset(layout=struct.pack("<2B2Q", 3, 1, 0, 20)), "needs 24"),
    "larger than its shape": (dataset(layout=struct.pack("<2B2Q", 3, 1, 0, 28)), "needs 24"),
    "old layout": (dataset(layout=struct.pack("<2B2Q", 2, 1, 0, 24)), "not one this version reads"),
    "no layout": (dataset(layout=b""), "not one this version reads"),
    "cut layout": (dataset(layout=struct.pack("<2BQ", 3, 1, 0)), "contiguous"),
    "unknown layout": (dataset(layout=struct.pack("<2B2Q", 3, 9, 0, 24)), "unknown"),
    "no type": (dataset(kind=b""), "type"),
    "cut shape": (dataset(shape=SPACE[:-1]), "not one this version reads"),
    "long shape": (dataset(shape=SPACE + bytes(8)), "not one this version reads"),
    "old shape": (dataset(shape=b"\1" + SPACE[1:]), "shape"),
    "described twice": (header(*[(hdf5.LAYOUT, bytes(18))] * 2), "described twice"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(RAW_DATASETS))
def test_hostile_dataset_headers_are_refused(tmp_path: Path, name: str):
    raw, words = RAW_DATASETS[name]
    source = source_of(tmp_path, raw)
    try:
        with pytest.raises(InputError, match=words):
            hdf5_reader.read_dataset(source, 0, "the dataset")
    finally:
        os.close(source.fd)


def test_the_raw_dataset_is_read_when_nothing_is_wrong_with_it(tmp_path: Path):
    source = source_of(tmp_path, dataset())
    try:
        assert hdf5_reader.read_dataset(source, 0, "x") == hdf5_reader.Dataset("<f4", (2, 3), 0, 24)
    finally:
        os.close(source.fd)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw[:47], "outside"),
        (lambda raw: b"\0" + raw[1:], "not an HDF5 file"),
        (lambda raw: raw[:8] + b"\3" + raw[9:], "not a Sfumato archive"),
        (lambda raw: raw[:12] + b"\1" + raw[13:], "not a Sfumato archive"),
        (lambda raw: raw[:20] + bytes(8) + raw[28:], "not a Sfumato archive"),
        (lambda raw: raw[:36] + b"\1" + raw[37:], "superblock is damaged"),
        (lambda raw: raw[:-1], "truncated"),
        (lambda raw: raw + b"\0", "should have"),
    ],
)
def test_superblocks_are_checked(tmp_path: Path, change: Callable[[bytes], bytes], words: str):
    table, root, end = hdf5.tail({}, 48)
    raw = hdf5.superblock(end, root) + table
    source = source_of(tmp_path, raw)
    assert hdf5_reader.read_superblock(source) == root
    os.close(source.fd)
    source = source_of(tmp_path, change(raw))
    try:
        with pytest.raises(InputError, match=words):
            hdf5_reader.read_superblock(source)
    finally:
        os.close(source.fd)
