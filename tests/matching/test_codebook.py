# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sfumato
from sfumato.errors import FileError, InputError
from sfumato.matching import codebook as module
from sfumato.matching.codebook import BUNDLED, Codebook, load_codebook, make_codebook, read_codebook, save_codebook

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "codebook.py"
KIND = sfumato.Extractor("sift")


def clustered(seed=0, count=400, groups=10):
    """Unit rows around a few directions, none negative, as SIFT."""
    rng = np.random.default_rng(seed)
    centres = np.abs(rng.standard_normal((groups, 16)))
    rows = np.abs(centres[np.arange(count) % groups] + 0.05 * rng.standard_normal((count, 16)))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), np.arange(count) % groups


@pytest.mark.parametrize("kind", sorted(BUNDLED))
def test_the_bundled_ones(kind):
    codebook = load_codebook(kind)
    assert codebook.words.shape == (1024, 128)
    assert codebook.extractor.name == kind
    assert np.allclose(np.linalg.norm(codebook.words, axis=1), 1, atol=1e-5)
    assert codebook.background.shape == (48, 1024)  # 16 parts, three reaches
    assert np.abs(codebook.background).mean() > 0.05
    assert np.abs(codebook.background.reshape(3, 16, -1).sum(axis=1)).max() < 0.05  # differences from the mean
    assert len(np.unique(codebook.words, axis=0)) == 1024


def test_the_bundled_one_is_made_of_the_bundled_decoys():
    decoys = sfumato.load_decoys()
    codebook = load_codebook("sift")
    assert codebook.made["decoys"] == decoys.checksum
    sample = decoys.descriptors[::97]
    nearest = (sample @ codebook.words.T).max(axis=1)
    assert np.median(nearest) > 0.8  # decoys are near to words


def test_other_kinds_need_their_own():
    with pytest.raises(InputError, match="'superpoint'"):
        load_codebook("superpoint")


def test_words_are_near_to_the_descriptors():
    rows, _ = clustered()
    codebook = make_codebook(rows, KIND, size=10)
    assert len(codebook) == 10
    assert codebook.background.shape == (0, 10)
    assert (rows @ codebook.words.T).max(axis=1).mean() > 0.97
    assert (rows @ rows[:10].T).mean() < 0.9  # which is not so of any
    again = make_codebook(rows, KIND, size=10)
    assert np.array_equal(codebook.words, again.words)
    assert not np.array_equal(codebook.words, make_codebook(rows, KIND, size=10, seed=5).words)


def test_the_background_is_what_parts_vote_for():
    rows, groups = clustered()
    words = rows[:10]  # one of each group
    background = module._background(rows, (groups >= 5).astype(np.int64), words)  # part 0 holds the first five groups
    assert background.shape == (6, 10)
    assert np.allclose(background[0, :5], 1)  # twice the mean share: one more
    assert np.allclose(background[0, 5:], -1)
    assert np.allclose(background[0::2], -background[1::2])
    assert np.allclose(background[4:], 0)  # all ten words are within reach of everybody


def test_few_descriptors_make_few_words():
    rows, _ = clustered(count=50)
    assert len(make_codebook(rows, KIND)) == 6
    assert len(make_codebook(rows[:3], KIND)) == 1


def test_descriptors_off_the_sphere():
    rows = np.random.default_rng(0).standard_normal((200, 8)) * 3
    codebook = make_codebook(rows, sfumato.Extractor("other"), size=4)
    assert codebook.made["spherical"] is False
    assert np.abs(np.linalg.norm(codebook.words, axis=1) - 1).max() > 0.1


@pytest.mark.parametrize("negative", [False, True])
def test_written_and_read_again(tmp_path, monkeypatch, negative):
    rows, groups = clustered()
    codebook = make_codebook(-rows if negative else rows, KIND, groups % 3, size=10)
    save_codebook(tmp_path / "codebook.safetensors", codebook)
    monkeypatch.setattr(module.resources, "files", lambda _: _Folder(tmp_path))
    monkeypatch.setitem(BUNDLED, "sift", "codebook.safetensors")
    read = load_codebook("sift")
    assert np.array_equal(read.words, codebook.words)
    assert np.allclose(read.background, codebook.background, atol=2e-3)
    assert read.made == codebook.made
    assert read.extractor == codebook.extractor
    assert [path.name for path in tmp_path.iterdir()] == ["codebook.safetensors"]


class _Folder:
    """What ``resources.files`` gives, with the folder data in the test's own."""

    def __init__(self, path):
        self.path = path

    def __truediv__(self, name):
        return self if name == "data" else self.path / name


def test_a_damaged_bundle_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(module.resources, "files", lambda _: _Folder(tmp_path))
    with pytest.raises(FileError, match="install"):
        load_codebook("sift")
    whole = (Path(module.__file__).parent / "data" / BUNDLED["sift"]).read_bytes()
    for content in (b"", b"nothing", whole[: len(whole) // 2]):
        (tmp_path / BUNDLED["sift"]).write_bytes(content)
        with pytest.raises(FileError, match="install"):
            load_codebook("sift")


def test_a_place_that_can_not_be_written(tmp_path):
    codebook = make_codebook(clustered()[0], KIND, size=4)
    with pytest.raises(FileError, match="written"):
        save_codebook(tmp_path / "none" / "codebook.safetensors", codebook)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"descriptors": np.zeros((0, 4))}, "descriptors"),
        ({"descriptors": np.full((9, 4), np.nan)}, "not finite"),
        ({"size": 0}, "size"),
        ({"seed": -1}, "seed"),
        ({"size": 2.5}, "size"),
        ({"parts": np.zeros(3, int)}, "parts"),
    ],
)
def test_wrong_input(arguments, message):
    with pytest.raises(InputError, match=message):
        make_codebook(**{"descriptors": clustered()[0], "extractor": KIND, **arguments})


def test_wrong_codebooks():
    with pytest.raises(InputError, match="words"):
        Codebook(np.zeros((0, 4)))
    with pytest.raises(InputError, match="background"):
        Codebook(np.ones((3, 4)), KIND, np.ones((2, 4)))
    assert repr(Codebook(np.ones((3, 4)))) == "Codebook(3 words of unknown, 4 dimensions)"


def test_the_script_makes_them_anew(tmp_path):
    rows, _ = clustered(count=800)
    sfumato.save_decoys(tmp_path / "decoys.safetensors", sfumato.Decoys(rows, KIND, parts=2))
    command = [
        sys.executable,
        SCRIPT,
        "--decoys",
        tmp_path / "decoys.safetensors",
        "--output",
        tmp_path,
        "--words",
        "20",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "Codebook(20 words of rootsift, 16 dimensions)" in done.stdout
    written = read_codebook(tmp_path / "codebook-sift-20.safetensors")
    expected = make_codebook(rows, KIND, np.arange(800) // 400, size=20)
    assert np.array_equal(written.words, expected.words)
    assert np.allclose(written.background, expected.background, atol=2e-3)
    assert (tmp_path / "codebook-rootsift-20.safetensors").exists()


def test_the_space_of_the_words_is_kept(tmp_path):
    made = Codebook(np.eye(4, dtype=np.float32), sfumato.Extractor("toy"), space="ninja@0123456789ab")
    save_codebook(tmp_path / "c", made)
    assert read_codebook(tmp_path / "c").space == "ninja@0123456789ab"
    assert load_codebook("sift").space == "clear"
