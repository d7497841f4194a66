# SPDX-License-Identifier: Apache-2.0
"""The codebook of --retrieval is made in the space where the images live."""

from hashlib import sha256

import numpy as np
import pytest
from cachetools import LRUCache

import sfumato
from sfumato.codebooks import build_index, codebook_for, codebook_of, first_header
from sfumato.concealment.encoder import encode, load_encoder, save_encoder
from sfumato.errors import FileError, InputError
from sfumato.matching.retrieval import choose_pairs


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


@pytest.fixture
def folder(tmp_path, make_encoder):
    """Decoys, an encoder, another one, and archives of two scenes of two images: encoded, and lifted."""
    rng = np.random.default_rng(0)
    rows = unit(np.abs(rng.normal(size=(400, 16))))
    sfumato.save_decoys(tmp_path / "decoys.npz", sfumato.Decoys(rows, sfumato.Extractor("sift"), parts=4))
    for name, seed in (("n", 0), ("other", 1)):
        save_encoder(tmp_path / f"{name}.safetensors", make_encoder(seed, dims=(16, 32, 16)))
    clear = {}
    for scene in range(2):
        for view in range(2):
            near = unit(rows[50 * scene : 50 * scene + 40] + 0.01 * rng.normal(size=(40, 16)))
            clear[f"{scene}-{view}"] = sfumato.Features(np.zeros((40, 4)), near, sfumato.Extractor("sift"))
    for name, recipe in (("e", f"ninja:{tmp_path / 'n.safetensors'}"), ("l", "random-2")):
        sfumato.save(tmp_path / f"{name}.sfm", {n: sfumato.conceal(f, recipe) for n, f in clear.items()})
    return tmp_path


def test_encoded_images_get_words_of_their_space(folder):
    with sfumato.load(folder / "e.sfm") as archive:
        words = codebook_for(archive, folder / "decoys.npz", folder / "n.safetensors", size=20)
        encoder = load_encoder(folder / "n.safetensors")
        assert words.space == f"ninja@{encoder.checksum[:12]}" == first_header(archive).recipe.space
        encoded = encode(encoder, sfumato.load_decoys(folder / "decoys.npz").descriptors)
        nearest = np.square(words.words[:, None] - encoded[None]).sum(axis=2).min(axis=1)
        assert nearest.max() < 0.2
        codebook = codebook_for(archive, folder / "decoys.npz", folder / "n.safetensors")
        pairs = {frozenset(pair) for pair in choose_pairs(archive, "votes:1", codebook).pairs}
        assert pairs == {frozenset({"0-0", "0-1"}), frozenset({"1-0", "1-1"})}


def test_others_are_as_before(folder):
    with sfumato.load(folder / "l.sfm") as archive:
        assert codebook_for(archive, None, None) is None
        words = codebook_for(archive, folder / "decoys.npz", None, size=20)
        plain = codebook_of(sfumato.load_decoys(folder / "decoys.npz"), size=20)
        assert np.array_equal(words.words, plain.words)
        assert words.space == "clear"
        with pytest.raises(InputError, match="these"):
            codebook_for(archive, None, folder / "n.safetensors")
    assert codebook_for({}, None, None) is None


def test_the_encoder_must_be_the_one_that_was_used(folder, monkeypatch):
    from sfumato.concealment import resolve

    monkeypatch.setattr(resolve, "_by_digits", LRUCache(32))
    with sfumato.load(folder / "e.sfm") as archive:
        with pytest.raises(InputError, match="another encoder"):
            codebook_for(archive, folder / "decoys.npz", folder / "other.safetensors")
        assert codebook_for(archive, folder / "decoys.npz") is None
        with pytest.raises(InputError, match="--encoder"):
            choose_pairs(archive, "votes:1")


def test_sealed_images_have_no_public_words(folder):
    features = sfumato.Features(np.zeros((4, 4)), unit(np.ones((4, 16))), sfumato.Extractor("sift"))
    hidden = sfumato.conceal(features, "sealed-64", secret=sha256(b"1").digest())
    sfumato.save(folder / "s.sfm", dict.fromkeys("abc", hidden))
    assert codebook_for(folder / "s.sfm") is None
    with pytest.raises(InputError, match="codebook"):
        codebook_for(folder / "s.sfm", folder / "decoys.npz")
    with sfumato.load(folder / "s.sfm") as archive:
        assert len(choose_pairs(archive, "votes:1").pairs) >= 2


def test_an_index_of_an_archive_is_written_and_returned(folder):
    path = folder / "x.index"
    for kind, settings in (("inverted", {"decoys": folder / "decoys.npz"}), ("exact", {}), ("inverted", {})):
        index = build_index(folder / "l.sfm", path, kind, overwrite=path.exists(), **settings)
        assert (index.kind, len(index)) == (kind, 160)
        again = sfumato.search.load(path)
        assert again.entries.names == ["0-0", "0-1", "1-0", "1-1"]
    before = path.read_bytes()
    with pytest.raises(FileError, match="--overwrite"):
        build_index(folder / "l.sfm", path)
    for output in (folder / "l.sfm", folder / "decoys.npz"):
        with pytest.raises(FileError, match=output.name):
            build_index(folder / "l.sfm", output, decoys=folder / "decoys.npz", overwrite=True)
    with pytest.raises(InputError, match="--points"):
        build_index(folder / "l.sfm", path, "exact", decoys=folder / "decoys.npz", overwrite=True)
    assert path.read_bytes() == before
