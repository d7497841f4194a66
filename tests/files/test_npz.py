# SPDX-License-Identifier: Apache-2.0
import io
import os
from pathlib import Path

import numpy as np
import pytest

from sfumato.errors import FileError
from sfumato.files.npz import parse_array, read_member, read_npz

TYPES = {"numbers": ("<f4", "<f8"), "names": None}


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=array.dtype.hasobject)
    return file.getvalue()


def test_known_arrays_are_read(tmp_path: Path):
    path = tmp_path / "a.npz"
    numbers, names = np.arange(6, dtype=np.float32).reshape(2, 3), np.array(["a", "b"])
    np.savez(path, numbers=numbers, names=names)
    found = read_npz(path, TYPES)
    assert np.array_equal(found["numbers"], numbers)
    assert list(found["names"]) == ["a", "b"]
    assert not found["numbers"].flags.writeable
    np.savez(path, numbers=numbers)
    assert set(read_npz(path, TYPES, optional=("names",))) == {"numbers"}


@pytest.mark.parametrize("arrays", [{"numbers": np.zeros(2)}, {"numbers": np.zeros(2), "names": [], "more": []}])
def test_other_arrays_are_refused(arrays: dict[str, np.ndarray], tmp_path: Path):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(FileError, match="exactly"):
        read_npz(tmp_path / "a.npz", TYPES)


def test_compressed_files_are_refused(tmp_path: Path):
    np.savez_compressed(tmp_path / "a.npz", numbers=np.zeros(1000), names=np.array(["a"]))
    with pytest.raises(FileError, match="compressed"):
        read_npz(tmp_path / "a.npz", TYPES)


def test_what_is_no_archive_or_a_damaged_one_is_told(tmp_path: Path):
    path = tmp_path / "a.npz"
    path.write_bytes(b"no archive")
    with pytest.raises(FileError, match="damaged"):
        read_npz(path, TYPES)
    np.savez_compressed(path, rows=np.arange(4000) % 7)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 20] = bytes(20)  # zlib finds it before the checksum does
    path.write_bytes(content)
    with pytest.raises(FileError, match="damaged"):
        read_member(path, ("rows",), None)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FileError, match="not a"):
        read_npz(path, TYPES)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"\x93NUMPY", "not an npy array"),
        (npy(np.zeros(3, np.float32))[:-1], "another size"),
        (npy(np.zeros(3, np.int64)), "wrong type"),
        (npy(np.array([{}])), "wrong type"),
        (npy(np.asfortranarray(np.zeros((2, 3), np.float32))), "column by column"),
        (npy(np.zeros(3, np.float32)).replace(b"(3,)", b"(-3,"), "not an npy array|another size"),
        (npy(np.zeros(3, np.float32)).replace(b"(3,), ", b"(9**9,"), "not an npy array|another size"),
        (b"\x93NUMPY\x02\x00" + npy(np.zeros(3, np.float32))[8:], "version 1.0|not an npy array"),
    ],
)
def test_hostile_arrays_are_refused(data: bytes, told: str):
    with pytest.raises(FileError, match=told):
        parse_array(data, "numbers", ("<f4",))


def test_one_array_of_a_file_of_others(tmp_path):
    path = tmp_path / "f.npz"
    np.savez_compressed(path, rows=np.eye(3), labels=np.arange(3))
    assert np.array_equal(read_member(path, ("row", "rows"), ("<f8",)), np.eye(3))
    assert read_member(path, ("faces",), None) is None
    with pytest.raises(FileError, match="labels"):
        read_member(path, ("rows", "labels"), None)
    with pytest.raises(FileError, match="wrong type"):
        read_member(path, ("labels",), ("<f4",))
