# SPDX-License-Identifier: Apache-2.0
"""Pickles are written here by hand, byte by byte, so that no test needs the library that reads them."""

import struct
import subprocess
import sys

import cv2
import numpy as np
import pytest

from sfumato.errors import FileError
from sfumato.experiments.data.face_benchmarks import embed_benchmark, read_benchmark
from sfumato.types.extractor import Extractor

TRUE, FALSE = b"\x88", b"\x89"


def short_bytes(data):
    return b"B" + struct.pack("<I", len(data)) + data


def python2_text(data):
    return b"T" + struct.pack("<i", len(data)) + data


def pickled(pictures, truths, value=short_bytes):
    """Protocol 2 or 3, as most of these files are: a tuple of two lists, remembered on the way."""
    return (
        b"\x80\x03"
        + b"]q\x00("
        + b"".join(map(value, pictures))
        + b"e"
        + b"]q\x01("
        + b"".join(truths)
        + b"e\x86q\x02."
    )


def write(path, data):
    path.write_bytes(data)
    return path


def test_pictures_and_truths(tmp_path):
    benchmark = read_benchmark(write(tmp_path / "a.bin", pickled([b"a", b"b", b"c", b"\xff"], [TRUE, FALSE])))
    assert benchmark.pictures == (b"a", b"b", b"c", b"\xff")
    assert benchmark.same.tolist() == [True, False]
    assert repr(benchmark) == "FaceBenchmark(2 pairs)"


def test_files_of_python_2(tmp_path):
    data = pickled([b"a", b"\xff\xd8\x00"], [b"I01\n"], python2_text)
    benchmark = read_benchmark(write(tmp_path / "a.bin", data))
    assert benchmark.pictures == (b"a", b"\xff\xd8\x00")
    assert benchmark.same.tolist() == [True]


MAKER = """
import pickle, sys
jpeg = open(sys.argv[1], "rb").read()
pictures = [jpeg[:-2] + bytes([number // 256, number % 256]) for number in range(2 * 1100)]
same = [number % 2 == 0 for number in range(1100)]
for protocol in (3, 4, 5):
    with open(f"{sys.argv[2]}/agedb_{protocol}.bin", "wb") as file:
        pickle.dump((pictures, same), file, protocol=protocol)
"""
"""As agedb_30.bin, cfp_ff.bin and cfp_fp.bin are made: JPEG pictures of 112 x 112 and truths, dumped at once."""


def test_files_made_as_agedb_and_cfp_were_made(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (112, 112, 3), np.uint8)
    assert cv2.imwrite(str(tmp_path / "face.jpg"), noise)
    subprocess.run([sys.executable, "-c", MAKER, str(tmp_path / "face.jpg"), str(tmp_path)], check=True, timeout=60)
    jpeg = (tmp_path / "face.jpg").read_bytes()
    for protocol in (3, 4, 5):
        benchmark = read_benchmark(tmp_path / f"agedb_{protocol}.bin")
        assert len(benchmark.pictures) == 2200
        assert benchmark.pictures[513] == jpeg[:-2] + bytes([2, 1])
        assert benchmark.same.tolist() == [number % 2 == 0 for number in range(1100)]


def test_what_was_remembered_is_found_again(tmp_path):
    data = b"\x80\x03(" + b"(" + short_bytes(b"a") + b"q\x05h\x05l" + b"(" + TRUE + b"lt."
    assert read_benchmark(write(tmp_path / "a.bin", data)).pictures == (b"a", b"a")


def test_ten_folds_in_order(tmp_path):
    benchmark = read_benchmark(write(tmp_path / "a.bin", pickled([b"x"] * 40, [TRUE, FALSE] * 10)))
    assert np.bincount(benchmark.fold).tolist() == [2] * 10
    assert (np.diff(benchmark.fold) >= 0).all()


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (b"cos\nsystem\n(S'touch RAN'\ntR.", "GLOBAL"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x09touch RAN\x85R.", "SHORT_BINUNICODE"),
        (b"(S'touch RAN'\nios\nsystem\n.", "INST"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"Pname\n.", "PERSID"),
        (b"\x80\x02]]b.", "BUILD"),
        (b"\x80\x02]]R.", "REDUCE"),
        (b"\x80\x02]]\x81.", "NEWOBJ"),
        (b"}.", "EMPTY_DICT"),
        (b"\x80\x05\x97.", "NEXT_BUFFER"),
    ],
)
def test_nothing_is_ever_run(tmp_path, monkeypatch, code, told):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match=told):
        read_benchmark(write(tmp_path / "evil.bin", code))
    assert not (tmp_path / "RAN").exists()


def test_code_after_the_pictures_is_found_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = pickled([b"a", b"b"], [TRUE])[:-1] + b"0cos\nsystem\n(S'touch RAN'\ntR."
    with pytest.raises(FileError, match="here"):
        read_benchmark(write(tmp_path / "evil.bin", data))
    assert not (tmp_path / "RAN").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"", b".", b"\x80\x03", b"hello", b"\x80\x03]q\x00.", b"\x80\x03e.", b"\x80\x03h\x07.",
        b"\x80\x03K\x01K\x02\x86.", b"\x80\x03B\xff\xff\xff\x7fabc.", b"\x80\x03(]t.", b"\x80\x03\x86.",
        b"\x80\x03K\x01K\x02a.", b"\xff" * 50,
        b"\x80\x03]]\x86q\x00h\x00\x86.", pickled([b"a"], [TRUE]), pickled([b"a", b"b"], [b"K\x07"]),
        pickled([b"a", b"b"], [TRUE])[:-4],
    ],
)  # fmt: skip
def test_damaged_files_are_refused(tmp_path, data):
    with pytest.raises(FileError, match=r"a\.bin"):
        read_benchmark(write(tmp_path / "a.bin", data))


def test_every_cut_of_a_good_file_is_refused(tmp_path):
    good = pickled([b"abc", b"d"], [FALSE])
    for length in range(len(good)):
        with pytest.raises(FileError):
            read_benchmark(write(tmp_path / "a.bin", good[:length]))


def test_a_missing_file(tmp_path):
    with pytest.raises(FileError, match="no such"):
        read_benchmark(tmp_path / "none.bin")


class MeanColour:
    """A network of three dimensions."""

    extractor = Extractor("colour")

    def describe(self, pixels, face):
        assert pixels.shape == (112, 112, 3)
        return pixels.mean(axis=(0, 1), dtype=np.float32) + 1


def test_pictures_become_pairs_and_broken_ones_are_told(tmp_path):
    def face(colour, side=112):
        return cv2.imencode(".png", np.full((side, side, 3), colour, np.uint8))[1].tobytes()

    pictures = [
        face((255, 0, 0)),
        face((250, 0, 0)),
        face((0, 0, 255)),
        b"no picture",
        face((9, 9, 9), 50),
        face((1, 1, 1)),
    ]
    benchmark = read_benchmark(write(tmp_path / "a.bin", pickled(pictures, [TRUE, FALSE, FALSE])))
    pairs, lost = embed_benchmark(benchmark, MeanColour())
    assert len(pairs) == 1
    assert [line.split(":")[0] for line in lost] == ["picture 3", "picture 4"]
    assert pairs.faces.values[0].argmax() == 2  # blue comes last
