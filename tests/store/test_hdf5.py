# SPDX-License-Identifier: Apache-2.0
"""The bytes of an archive are HDF5: libhdf5 reads them, and agrees on every checksum."""

import struct
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.store import hdf5
from sfumato.store.layout import ImageHeader
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe

HEADER = ImageHeader("a b.jpg", 3, 2, 16, "float32", Recipe.of("random-2"), Extractor("sift"), (640, 480), "0" * 64)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0xDEADBEEF),
        (b"Four score and seven years ago", 0x17770551),
        (b"Four score and seven years ago" * 7, None),
    ],
)
def test_lookup3(data: bytes, expected: int | None):
    """The two values are those in the comments of Bob Jenkins' lookup3.c."""
    if expected is not None:
        assert hdf5.lookup3(data) == expected
    assert 0 <= hdf5.lookup3(data) < 2**32


def test_lookup3_agrees_with_libhdf5(tmp_path: Path):
    with h5py.File(tmp_path / "a.h5", "w", libver=("v108", "v108")) as file:
        file.create_group("a").attrs["x"] = np.arange(9)
        file.attrs["text"] = np.bytes_(b"q" * 77)
    raw = (tmp_path / "a.h5").read_bytes()
    assert raw[8] == 2
    assert hdf5.lookup3(raw[:44]) == struct.unpack("<I", raw[44:48])[0]
    root = struct.unpack("<Q", raw[36:44])[0]
    assert raw[root : root + 6] == b"OHDR\x02\x00"  # one byte for the size
    end = root + 7 + raw[root + 6]
    assert hdf5.lookup3(raw[root:end]) == struct.unpack("<I", raw[end : end + 4])[0]


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("size", [(640, 480), None])
def test_libhdf5_reads_what_is_encoded(tmp_path: Path, count: int, dtype: str, size: tuple[int, int] | None):
    header = replace(HEADER, count=count, dtype=dtype, image_size=size)
    start = hdf5.SUPERBLOCK_SIZE
    head, places, end = hdf5.block_head(header, start)
    table, root, stop = hdf5.tail({"a%20b.jpg": start}, end)
    raw = bytearray(stop)
    raw[start : start + len(head)] = head
    arrays = [np.arange(np.prod(shape), dtype=kind).reshape(shape) for _, kind, shape in header.arrays]
    for array, place in zip(arrays, places, strict=True):
        assert place % 8 == 0
        raw[place : place + array.nbytes] = array.tobytes()
    raw[end:] = table
    raw[:start] = hdf5.superblock(stop, root)
    (tmp_path / "a.h5").write_bytes(raw)
    with h5py.File(tmp_path / "a.h5") as file:
        assert dict(file.attrs) | {"names": b""} == {
            "format": b"sfumato-archive", "version": 1, "payload": b"subspaces", "images": 1, "names": b"",
        }  # fmt: skip
        assert list(file) == ["images"]
        group = file["images"]["a%20b.jpg"]
        assert sorted(group) == ["basis", "keypoints", "origin"]
        for (name, kind, shape), array in zip(header.arrays, arrays, strict=True):
            assert (group[name].dtype, group[name].shape) == (np.dtype(kind), shape)
            assert group[name][()].tobytes() == array.tobytes()
        assert group.attrs["checksum"] == header.checksum.encode()
        assert group.attrs["extractor"] == header.extractor.to_json().encode()
        assert tuple(group.attrs.get("image_size", ())) == (size or ())


@pytest.mark.parametrize("count", [0, 8, 9, 300])
def test_any_number_of_links_stays_in_one_header(tmp_path: Path, count: int):
    addresses = {f"image{i}": 48 for i in range(count)}
    table, root, stop = hdf5.tail(addresses, 48)
    (tmp_path / "a.h5").write_bytes(hdf5.superblock(stop, root) + table)
    with h5py.File(tmp_path / "a.h5") as file:
        assert list(file["images"]) == sorted(addresses)
        assert file.attrs["images"] == count
    links = sum(hdf5.LINK_SIZE + len(name) for name in addresses)
    assert len(table) == links + len(hdf5.tail({}, 48)[0])
    assert b"FRHP" not in table
    assert b"BTHD" not in table


def test_the_same_values_give_the_same_bytes():
    assert hdf5.block_head(HEADER, 48) == hdf5.block_head(replace(HEADER), 48)
    links = {"b": 1, "a": 2}
    assert hdf5.tail(links, 48) == hdf5.tail(dict(sorted(links.items())), 48)


def test_an_empty_image_takes_no_space_for_arrays():
    head, places, end = hdf5.block_head(replace(HEADER, count=0), 48)
    assert set(places) == {end}
    assert end == 48 + len(head)


def test_a_text_that_is_too_long_is_refused():
    settings = {f"setting{i}": "x" * 4000 for i in range(9)}
    with pytest.raises(InputError, match=r"extractor.*32768"):
        hdf5.block_head(replace(HEADER, extractor=Extractor("sift", settings)), 48)
