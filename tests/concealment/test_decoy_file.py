# SPDX-License-Identifier: Apache-2.0
import json
import os

import numpy as np
import pytest

import sfumato
from sfumato.concealment.decoys import (
    Decoys,
    as_rootsift,
    bundled_decoys,
    decode_bytes,
    encode_bytes,
    load_decoys,
    round_to_bytes,
    save_decoys,
)
from sfumato.errors import FileError
from sfumato.files.tensors import load_tensors, save_tensors
from sfumato.types.extractor import Extractor


@pytest.fixture
def bytes_like() -> Decoys:
    codes = np.random.default_rng(0).integers(0, 90, (200, 128)).astype(np.uint8)
    entries = decode_bytes(codes)
    for _ in range(4):
        entries = decode_bytes(round_to_bytes(entries))
    return Decoys(entries, Extractor("sift", {"max_features": 8000}), parts=4, made={"seed": 0})


def header_of(path) -> dict:
    return json.loads(load_tensors(path)[1]["header"])


@pytest.mark.parametrize("labels", [None, np.arange(200) % 3, np.where(np.arange(200) % 2, "yes", "no")])
def test_bytes_round_trip_losslessly(tmp_path, bytes_like, labels):
    decoys = Decoys(bytes_like.descriptors, bytes_like.extractor, parts=4, labels=labels, made={"seed": 7})
    save_decoys(tmp_path / "d", decoys)
    back = load_decoys(tmp_path / "d")
    assert back.checksum == decoys.checksum
    assert np.array_equal(back.descriptors, decoys.descriptors)
    assert np.array_equal(back.permutation, decoys.permutation)
    assert (back.labels is None) if labels is None else np.array_equal(back.labels, labels)
    assert (back.extractor, back.parts, back.made) == (decoys.extractor, 4, {"seed": 7})
    assert header_of(tmp_path / "d")["encoding"] == "uint8"


def test_signed_descriptors_are_kept_in_full(tmp_path, decoys):
    signed = Decoys(decoys.descriptors - 0.1)
    save_decoys(tmp_path / "d", signed)
    assert np.array_equal(load_decoys(tmp_path / "d").descriptors, signed.descriptors)
    assert header_of(tmp_path / "d")["encoding"] == "float32"


def test_rounding_handles_a_single_large_value():
    spike = np.zeros((1, 128), np.float32)
    spike[0, 3] = 1
    assert np.array_equal(encode_bytes(spike), np.where(spike > 0, 255, 0))
    assert np.array_equal(decode_bytes(np.zeros((1, 4), np.uint8)), np.zeros((1, 4)))


def test_missing_directory_and_text_files(tmp_path, bytes_like):
    with pytest.raises(FileError, match="decoys build"):
        load_decoys(tmp_path / "none")
    (tmp_path / "text").write_text("not a database")
    with pytest.raises(FileError, match="usable"):
        load_decoys(tmp_path / "text")
    with pytest.raises(FileError):
        load_decoys(tmp_path)
    with pytest.raises(FileError, match="written"):
        save_decoys(tmp_path / "nowhere" / "d", bytes_like)


def test_failed_write_leaves_nothing_behind(tmp_path, bytes_like, monkeypatch):
    save_decoys(tmp_path / "d", bytes_like)
    before = (tmp_path / "d").read_bytes()

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="space left"):
        save_decoys(tmp_path / "d", bytes_like)
    assert [file.name for file in tmp_path.iterdir()] == ["d"]
    assert (tmp_path / "d").read_bytes() == before


@pytest.mark.parametrize("change", [
    {"encoding": "float64"}, {"encoding": "float32"}, {"parts": 0}, {"parts": "x"}, {"made": []}, {"extractor": "{}"},
    {"checksum": "0" * 32}, {"more": 1}, {"labels": 3},
])  # fmt: skip
def test_wrong_headers(tmp_path, bytes_like, change):
    path = tmp_path / "d"
    save_decoys(path, Decoys(bytes_like.descriptors, bytes_like.extractor, labels=np.arange(200) % 3))
    arrays, texts = load_tensors(path)
    save_tensors(path, arrays, {**texts, "header": json.dumps(json.loads(texts["header"]) | change)})
    with pytest.raises(FileError):
        load_decoys(path)


@pytest.mark.parametrize("change", [{"version": "1"}, {"format": "other"}, {"header": "[" * 100_000}, {"header": "7"}])
def test_wrong_texts(tmp_path, bytes_like, change):
    save_decoys(tmp_path / "d", bytes_like)
    arrays, texts = load_tensors(tmp_path / "d")
    save_tensors(tmp_path / "d", arrays, {**texts, **change})
    with pytest.raises(FileError):
        load_decoys(tmp_path / "d")


def test_hostile_arrays(tmp_path, bytes_like):
    path = tmp_path / "d"
    save_decoys(
        path, Decoys(bytes_like.descriptors, bytes_like.extractor, labels=np.where(np.arange(200) % 2, "a", "b"))
    )
    good, texts = load_tensors(path)
    cases = [
        good | {"entries": np.zeros((200, 128))},
        good | {"entries": good["entries"][:100]},
        good | {"permutation": np.zeros(200, np.int32)},
        good | {"labels": np.full(200, 2)},
        good | {"labels": np.full(200, -1)},
        good | {"labels": np.zeros(200, np.float32)},
        good | {"extra": np.zeros(1)},
        {name: array for name, array in good.items() if name != "permutation"},
    ]
    for arrays in cases:
        save_tensors(path, arrays, texts)
        with pytest.raises(FileError):
            load_decoys(path)


def test_files_of_older_versions_are_told(tmp_path):
    np.savez(tmp_path / "d.npz", header=np.zeros(3, np.uint8))
    with pytest.raises(FileError, match="older"):
        load_decoys(tmp_path / "d.npz")


def test_mutations_are_never_accepted_silently(tmp_path, bytes_like):
    path, bad = tmp_path / "d", tmp_path / "bad"
    save_decoys(path, bytes_like)
    data = np.frombuffer(path.read_bytes(), np.uint8)
    rng = np.random.default_rng(1)
    refused = 0
    for trial in range(800):
        mutated = data.copy()
        if trial % 4 == 0:
            mutated = mutated[: rng.integers(len(data))]
        else:
            # every second one goes to the header, where the structure is
            near = rng.choice([rng.integers(900), rng.integers(len(data))])
            mutated[near] ^= np.uint8(1 << rng.integers(8))
        bad.write_bytes(mutated.tobytes())
        try:
            assert load_decoys(bad).checksum == bytes_like.checksum
        except FileError:
            refused += 1
    assert refused > 700


def test_bundled_database():
    decoys = sfumato.load_decoys()
    assert decoys.descriptors.shape == (65_536, 128)
    assert decoys.parts == 16
    assert decoys.extractor.name == "sift"
    assert np.abs(np.linalg.norm(decoys.descriptors, axis=1) - 1).max() < 1e-6
    assert len(np.unique(decoys.descriptors, axis=0)) == 65_536
    assert decoys.descriptors.min() == 0


def test_bundled_rootsift_is_derived_once_and_exactly():
    sift, rooted = sfumato.load_decoys(), bundled_decoys(Extractor("rootsift"))
    assert rooted is bundled_decoys(Extractor("rootsift"))
    assert rooted.checksum == as_rootsift(sift).checksum != sift.checksum
    assert np.array_equal(rooted.permutation, sift.permutation)
    assert np.abs(np.linalg.norm(rooted.descriptors, axis=1) - 1).max() < 1e-6
    back = rooted.descriptors[:1000].astype(float) ** 2
    back /= np.linalg.norm(back, axis=1, keepdims=True)
    assert np.abs(back - sift.descriptors[:1000]).max() < 1e-6


def test_only_their_owner_can_read_them(tmp_path, bytes_like):
    save_decoys(tmp_path / "d", bytes_like)
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o600
