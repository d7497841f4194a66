# SPDX-License-Identifier: Apache-2.0
import io
import json
import os
import zipfile

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
from sfumato.types.extractor import Extractor


@pytest.fixture
def bytes_like() -> Decoys:
    codes = np.random.default_rng(0).integers(0, 90, (200, 128)).astype(np.uint8)
    entries = decode_bytes(codes)
    for _ in range(4):
        entries = decode_bytes(round_to_bytes(entries))
    return Decoys(entries, Extractor("sift", {"max_features": 8000}), parts=4, made={"seed": 0})


def members(path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path, parts: dict[str, bytes], compression=zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)


def npy(array) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(array), version=(1, 0), allow_pickle=True)
    return stream.getvalue()


def header_of(path) -> dict:
    return json.loads(np.load(io.BytesIO(members(path)["header.npy"])).tobytes())


@pytest.mark.parametrize("labels", [None, np.arange(200) % 3, np.where(np.arange(200) % 2, "yes", "no")])
def test_bytes_round_trip_losslessly(tmp_path, bytes_like, labels):
    decoys = Decoys(bytes_like.descriptors, bytes_like.extractor, parts=4, labels=labels, made={"seed": 7})
    save_decoys(tmp_path / "d.npz", decoys)
    back = load_decoys(tmp_path / "d.npz")
    assert back.checksum == decoys.checksum
    assert np.array_equal(back.descriptors, decoys.descriptors)
    assert np.array_equal(back.permutation, decoys.permutation)
    assert (back.labels is None) if labels is None else np.array_equal(back.labels, labels)
    assert (back.extractor, back.parts, back.made) == (decoys.extractor, 4, {"seed": 7})
    assert header_of(tmp_path / "d.npz")["encoding"] == "uint8"


def test_signed_descriptors_are_kept_in_full(tmp_path, decoys):
    signed = Decoys(decoys.descriptors - 0.1)
    save_decoys(tmp_path / "d.npz", signed)
    assert np.array_equal(load_decoys(tmp_path / "d.npz").descriptors, signed.descriptors)
    assert header_of(tmp_path / "d.npz")["encoding"] == "float32"


def test_rounding_handles_a_single_large_value():
    spike = np.zeros((1, 128), np.float32)
    spike[0, 3] = 1
    assert np.array_equal(encode_bytes(spike), np.where(spike > 0, 255, 0))
    assert np.array_equal(decode_bytes(np.zeros((1, 4), np.uint8)), np.zeros((1, 4)))


def test_other_tools_can_read_it(tmp_path, bytes_like):
    save_decoys(tmp_path / "d.npz", bytes_like)
    with np.load(tmp_path / "d.npz", allow_pickle=False) as arrays:
        assert arrays["entries"].shape == (200, 128)


def test_missing_directory_and_text_files(tmp_path, bytes_like):
    with pytest.raises(FileError, match="decoys build"):
        load_decoys(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("not a database")
    with pytest.raises(FileError, match="usable"):
        load_decoys(tmp_path / "text.npz")
    with pytest.raises(FileError):
        load_decoys(tmp_path)
    with pytest.raises(FileError, match="written"):
        save_decoys(tmp_path / "nowhere" / "d.npz", bytes_like)


def test_failed_write_leaves_nothing_behind(tmp_path, bytes_like, monkeypatch):
    save_decoys(tmp_path / "d.npz", bytes_like)
    before = (tmp_path / "d.npz").read_bytes()

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="space left"):
        save_decoys(tmp_path / "d.npz", bytes_like)
    assert [file.name for file in tmp_path.iterdir()] == ["d.npz"]
    assert (tmp_path / "d.npz").read_bytes() == before


@pytest.mark.parametrize("change", [
    {"version": 2}, {"version": True}, {"format": "other"}, {"encoding": "float64"}, {"parts": 0}, {"parts": "x"},
    {"made": []},
    {"extractor": "{}"}, {"checksum": "0" * 32}, {"more": 1},
])  # fmt: skip
def test_wrong_headers(tmp_path, bytes_like, change):
    path = tmp_path / "d.npz"
    save_decoys(path, bytes_like)
    header = json.dumps(header_of(path) | change).encode()
    write(path, members(path) | {"header.npy": npy(np.frombuffer(header, np.uint8))})
    with pytest.raises(FileError):
        load_decoys(path)


def test_hostile_members(tmp_path, bytes_like):
    path, bad = tmp_path / "d.npz", tmp_path / "bad.npz"
    save_decoys(path, bytes_like)
    good = members(path)
    plain = npy(np.zeros((2, 128), np.uint8))
    huge = plain.replace(b"(2, 128), }" + b" " * 12, b"(9999999999999, 128), }")
    assert huge != plain
    assert len(huge) == len(plain)
    cases = [
        good | {"entries.npy": npy(np.array([{"a": 1}], object))},
        good | {"entries.npy": huge},
        good | {"entries.npy": plain.replace(b"(2, 128)", b"(2, 128 ")},
        good | {"entries.npy": good["entries.npy"][:-9]},
        good | {"entries.npy": npy(np.zeros((200, 128), np.float64))},
        good | {"permutation.npy": npy(np.zeros(200, np.int32))},
        good | {"labels.npy": npy(np.array([b"x"] * 200, object))},
        good | {"extra.npy": npy(np.zeros(1))},
        {name: data for name, data in good.items() if name != "permutation.npy"},
    ]
    for parts in cases:
        write(bad, parts)
        with pytest.raises(FileError):
            load_decoys(bad)
    write(bad, good, zipfile.ZIP_DEFLATED)
    with pytest.raises(FileError, match="compressed"):
        load_decoys(bad)


def test_mutations_are_never_accepted_silently(tmp_path, bytes_like):
    path, bad = tmp_path / "d.npz", tmp_path / "bad.npz"
    save_decoys(path, bytes_like)
    data = np.frombuffer(path.read_bytes(), np.uint8)
    rng = np.random.default_rng(1)
    refused = 0
    for trial in range(800):
        mutated = data.copy()
        if trial % 4 == 0:
            mutated = mutated[: rng.integers(len(data))]
        else:
            # every second one goes to the headers and the directory of the zip file, where the structure is
            near = rng.choice([rng.integers(400), len(data) - 1 - rng.integers(400), rng.integers(len(data))])
            mutated[near] ^= np.uint8(1 << rng.integers(8))
        bad.write_bytes(mutated.tobytes())
        try:
            assert load_decoys(bad).checksum == bytes_like.checksum
        except FileError:
            refused += 1
    assert refused > 400


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


def test_permissions_follow_the_umask(tmp_path, bytes_like):
    before = os.umask(0o077)
    try:
        save_decoys(tmp_path / "d.npz", bytes_like)
    finally:
        os.umask(before)
    assert (tmp_path / "d.npz").stat().st_mode & 0o777 == 0o600
