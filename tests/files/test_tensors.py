# SPDX-License-Identifier: Apache-2.0
"""Networks as files: what is written is read, and what is damaged is told."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import numpy as library
from safetensors import safe_open

import sfumato
from sfumato.errors import FileError
from sfumato.files import tensors
from sfumato.files.tensors import (
    checked_arrays,
    load_checkpoint,
    load_tensors,
    map_tensors,
    save_checkpoint,
    save_tensors,
)
from sfumato.inversion.patches import network_folder

ARRAYS = {
    "weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "half": np.linspace(0, 1, 5).astype(np.float16),
    "state": np.arange(7, dtype=np.uint8),
    "steps": np.array(41, np.int64),
    "empty": np.zeros((0, 3), np.float32),
}
FACTS = {"kind": "a test", "rate": 0.5, "losses": [1.0, 0.5], "note": None}


def test_what_is_written_is_read(tmp_path: Path):
    save_checkpoint(tmp_path / "n.safetensors", ARRAYS, FACTS)
    arrays, facts = load_checkpoint(tmp_path / "n.safetensors", "a test")
    assert facts == FACTS
    assert set(arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert np.array_equal(arrays[name], array)
    assert [path.name for path in tmp_path.iterdir()] == ["n.safetensors"]


def test_the_safetensors_library_reads_it_and_is_read(tmp_path: Path):
    save_checkpoint(tmp_path / "ours.safetensors", ARRAYS, FACTS)
    theirs = library.load_file(tmp_path / "ours.safetensors")
    assert all(np.array_equal(theirs[name], array) for name, array in ARRAYS.items())
    library.save_file(ARRAYS, tmp_path / "theirs.safetensors")
    arrays, facts = load_checkpoint(tmp_path / "theirs.safetensors")
    assert facts == {}
    assert all(np.array_equal(arrays[name], array) for name, array in ARRAYS.items())


def test_another_kind_is_told(tmp_path: Path):
    save_checkpoint(tmp_path / "n.safetensors", ARRAYS, FACTS)
    with pytest.raises(FileError, match="test"):
        load_checkpoint(tmp_path / "n.safetensors", "a decoder")
    with pytest.raises(FileError, match="no such"):
        load_checkpoint(tmp_path / "gone.safetensors")


def test_no_cut_is_read(tmp_path: Path):
    save_checkpoint(tmp_path / "n.safetensors", ARRAYS, FACTS)
    whole = (tmp_path / "n.safetensors").read_bytes()
    for length in range(0, len(whole), 7):
        (tmp_path / "cut.safetensors").write_bytes(whole[:length])
        with pytest.raises(FileError, match="damaged"):
            load_checkpoint(tmp_path / "cut.safetensors")


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 2**40]},
        {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]},
        {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [2**32, 2**32], "data_offsets": [0, 0]},
        {"dtype": "object", "shape": [4], "data_offsets": [0, 16]},
        {"shape": [4]},
        [],
        None,
    ],
)
def test_hostile_headers_are_told(tmp_path: Path, entry: object):
    text = json.dumps({"x": entry}).encode()
    (tmp_path / "h.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    with pytest.raises(FileError, match="damaged"):
        load_checkpoint(tmp_path / "h.safetensors")


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    target = tmp_path / "n.safetensors"
    save_checkpoint(target, ARRAYS, FACTS)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensors.os, "fsync", full)
    with pytest.raises(FileError, match="space left"):
        save_checkpoint(target, {}, {})
    assert load_checkpoint(target)[1] == FACTS
    assert len(list(tmp_path.iterdir())) == 1


def test_arrays_of_another_network_are_told():
    shapes = {"a": (2, 3), "b": (2,)}
    good = {"a": np.zeros((2, 3), np.float16), "b": np.zeros(2, np.float32)}
    assert checked_arrays(good, shapes, "n")["a"].dtype == np.float32
    for changed, said in (
        ({"a": np.zeros((3, 2))}, "has shape"),
        ({"b": np.full(2, np.nan)}, "not finite"),
        ({"c": np.zeros(1)}, "does not belong"),
    ):
        with pytest.raises(FileError, match=said):
            checked_arrays({**good, **changed}, shapes, "n")
    with pytest.raises(FileError, match="is missing"):
        checked_arrays({"a": good["a"]}, shapes, "n")


def test_plain_tensors_and_texts_come_back(tmp_path):
    path, arrays = tmp_path / "a.safetensors", {"b": np.arange(3, dtype=np.float16), "a": np.eye(2, dtype=np.float32)}
    save_tensors(path, arrays, {"format": "mine"})
    found, texts = load_tensors(path)
    assert texts == {"format": "mine"}
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())
    assert load_checkpoint(path)[1] == {}


def test_texts_must_be_texts(tmp_path):
    header = b'{"__metadata__":{"format":3}}'
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(FileError, match="damaged"):
        load_tensors(tmp_path / "a.safetensors")


@pytest.mark.parametrize("second", [[0, 8], [4, 12], [12, 20], [8.0, 16], [8, 1e999], [8, 16]])
def test_arrays_that_share_or_leave_bytes_are_refused(second, tmp_path):
    entries = {f"a{n}": {"dtype": "F32", "shape": [2], "data_offsets": two} for n, two in enumerate(([0, 8], second))}
    text = json.dumps(entries).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(20))
    with pytest.raises(FileError, match="damaged"):
        load_tensors(path)
    exact = json.dumps({"a": {"dtype": "F32", "shape": [5], "data_offsets": [0, 20]}}).encode()
    path.write_bytes(len(exact).to_bytes(8, "little") + exact + bytes(20))
    assert load_tensors(path)[0]["a"].shape == (5,)


def test_any_change_is_found_by_the_digest(tmp_path):
    path = tmp_path / "n.safetensors"
    save_checkpoint(path, ARRAYS, FACTS)
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    for at in [content.index(b"0.5"), content.index(b"a test"), *range(8 + size, len(content), 9)]:
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(FileError, match="digest"):
            load_checkpoint(path)


def test_the_same_arrays_and_texts_give_the_same_bytes(tmp_path):
    texts = {name: name * 3 for name in "abcdefgh"}
    save_tensors(tmp_path / "a", ARRAYS, texts)
    save_tensors(tmp_path / "b", dict(reversed(ARRAYS.items())), dict(reversed(texts.items())))
    content = (tmp_path / "a").read_bytes()
    assert content == (tmp_path / "b").read_bytes()
    assert content.index(b'"a":"aaa"') < content.index(b'"h":"hhh"')


def test_mapped_arrays_are_those_that_are_read(tmp_path):
    save_tensors(tmp_path / "a", ARRAYS, {"some": "text", "ä": '"\n\\'})
    mapped, texts = map_tensors(tmp_path / "a")
    assert (texts, set(mapped)) == (load_tensors(tmp_path / "a")[1], set(ARRAYS))
    for name, array in ARRAYS.items():
        assert np.array_equal(mapped[name], array)
        assert mapped[name].dtype == array.dtype
        assert not mapped[name].flags.writeable or not array.size
    content = bytearray((tmp_path / "a").read_bytes())
    content[-1] ^= 1
    (tmp_path / "a").write_bytes(content)
    map_tensors(tmp_path / "a", verify=False)
    with pytest.raises(FileError, match="digest"):
        map_tensors(tmp_path / "a")


def test_what_comes_with_the_package_has_a_digest():
    files = [*Path(sfumato.__file__).parent.rglob("*.safetensors"), *network_folder().glob("*.safetensors")]
    assert len(files) >= 15
    for path in files:
        with safe_open(path, "np") as file:
            assert len(file.metadata()["digest"]) == 64
        load_tensors(path)


def test_other_types_of_numbers_are_refused(tmp_path):
    text = json.dumps({"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "a").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    for load in (load_tensors, map_tensors):
        with pytest.raises(FileError, match="BF16"):
            load(tmp_path / "a")
