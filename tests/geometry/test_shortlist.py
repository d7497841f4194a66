# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import ArchiveError, FileError, InputError
from sfumato.geometry.maps import Map
from sfumato.geometry.model import Model
from sfumato.geometry.shortlist import (
    SMALL_MAP,
    _bundled_codebook,
    _by_pairs,
    _by_votes,
    choose_candidates,
    read_shortlists,
)
from sfumato.matching.codebook import Codebook
from sfumato.types.concealed import Bits, ConcealedFeatures, PublicPoints, Subspaces
from sfumato.types.extractor import Extractor
from sfumato.types.scene import Landmarks


@pytest.fixture
def query():
    return ConcealedFeatures(np.zeros((1, 4)), Subspaces(np.ones((1, 8)), np.eye(2, 8)[None]), "random-2")


def sealed_map(count, seed=0):
    """A map of ``count`` sealed images of 30 codes each, and what each holds."""
    rng = np.random.default_rng(seed)
    codes = {f"{i:03}.jpg": rng.integers(0, 256, (30, 64), np.uint8) for i in range(count)}
    source = {name: sealed(packed) for name, packed in codes.items()}
    return Map(model_with(codes), source, is_public=False), codes


def sealed(packed, recipe="sealed-512@0123456789ab"):
    return ConcealedFeatures(np.zeros((len(packed), 4)), Bits(packed), recipe, Extractor("sift"))


def seen_again(packed, rng):
    """Codes of the same points in another photo: a quarter of the bits differ."""
    return packed ^ np.packbits(rng.random((len(packed), 512)) < 0.25, axis=1)


def test_a_small_map_is_tried_whole_and_of_a_large_one_what_votes_choose():
    rng = np.random.default_rng(1)
    small, codes = sealed_map(SMALL_MAP)
    query = sealed(seen_again(codes["007.jpg"], rng))
    assert tuple(choose_candidates(small)("q", query)) == small.names
    large, codes = sealed_map(SMALL_MAP + 1)
    query = sealed(np.concatenate([seen_again(codes[name], rng)[:20] for name in ("003.jpg", "100.jpg")]))
    chosen = list(choose_candidates(large)("q", query))
    assert sorted(chosen[:2]) == ["003.jpg", "100.jpg"]
    assert len(chosen) <= 20


def test_bits_vote_without_a_codebook_and_under_one_key(codebook):
    map_, codes = sealed_map(4)
    with pytest.raises(InputError, match="codebook"):
        choose_candidates(map_, "votes:2", codebook)
    shortlist = choose_candidates(map_, "votes:2")
    with pytest.raises(InputError, match="device keys"):
        shortlist("q", sealed(codes["001.jpg"], "sealed-512@ba9876543210"))
    assert list(shortlist("q", sealed(codes["001.jpg"][:0]))) == []


def test_images_that_cannot_be_read_are_named_and_have_no_vote():
    map_, codes = sealed_map(4)

    class Damaged(dict):
        def __getitem__(self, name):
            if name == "002.jpg":
                raise ArchiveError("damaged")
            return dict.__getitem__(self, name)

    broken = Map(map_.model, Damaged(map_.landmarks()), is_public=False)
    shortlist = choose_candidates(broken, "votes:2")
    assert list(broken.damaged) == ["002.jpg"]
    assert shortlist("q", sealed(codes["003.jpg"]))[0] == "003.jpg"


def test_pairs_have_a_direction_and_keep_their_order(tmp_path, query):
    path = tmp_path / "pairs.txt"
    path.write_text(
        "\ufeff# mine\nq.jpg db/2.jpg\nq.jpg db/1.jpg\n\nq.jpg db/2.jpg\ndb/1.jpg q.jpg\n", encoding="utf-8"
    )
    assert read_shortlists(path) == {"q.jpg": ("db/2.jpg", "db/1.jpg"), "db/1.jpg": ("q.jpg",)}
    shortlist = _by_pairs(path)
    assert shortlist("q.jpg", query) == ("db/2.jpg", "db/1.jpg")
    assert shortlist("other.jpg", query) == ()


def test_wrong_lines_are_named_together(tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_text("a b\na b c\n" + "d\n" * 9)
    with pytest.raises(FileError, match="words"):
        read_shortlists(path)
    with pytest.raises(FileError, match="check"):
        read_shortlists(tmp_path / "none.txt")


def images_of(words, seed, count=6, dim=2):
    """Concealed features that pass near some words, many times each."""
    rng = np.random.default_rng(seed)
    points = np.repeat(words, count, axis=0) + 0.05 * rng.standard_normal((count * len(words), words.shape[1]))
    subspaces = Subspaces(points, rng.standard_normal((len(points), dim, words.shape[1])))
    return ConcealedFeatures(np.zeros((len(points), 4)), subspaces, f"random-{dim}", Extractor("sift"))


@pytest.fixture(scope="module")
def codebook():
    words = np.random.default_rng(0).standard_normal((40, 64))
    return Codebook(words / np.linalg.norm(words, axis=1, keepdims=True), Extractor("sift"))


def model_with(names):
    landmarks = Landmarks(np.zeros((0, 3)), np.zeros((0, 3), np.int64), tuple(names))
    return Model(landmarks, np.zeros(0, np.int64), np.zeros((0, 2)), np.zeros(len(names), np.int64))


def test_votes_find_the_images_that_show_the_same(codebook):
    shown = {f"{kind}{i}.jpg": 20 * kind for kind in (0, 1) for i in range(3)}
    words = codebook.words
    source = {name: images_of(words[start : start + 20], row) for row, (name, start) in enumerate(shown.items())}
    map_ = Map(model_with(shown), source, is_public=False)
    shortlist = _by_votes(map_, 3, codebook)
    assert sorted(shortlist("q", images_of(words[20:], 99))) == ["10.jpg", "11.jpg", "12.jpg"]
    assert sorted(shortlist("q", images_of(words[:20], 98))) == ["00.jpg", "01.jpg", "02.jpg"]
    for wrong in (0, 1.5):
        with pytest.raises(InputError, match="retrieval"):
            _by_votes(map_, wrong, codebook)


def test_votes_against_public_points(codebook):
    words, rng = codebook.words, np.random.default_rng(1)
    source = {
        f"{kind}.jpg": PublicPoints(np.arange(60), np.repeat(words[20 * kind : 20 * kind + 20], 3, axis=0)
                                    + 0.05 * rng.standard_normal((60, 64)), Extractor("sift"))
        for kind in (0, 1)
    }  # fmt: skip
    map_ = Map(model_with(source), source, is_public=True)
    assert _bundled_codebook(map_) is None
    assert list(_by_votes(map_, 1, codebook)("q", images_of(words[20:], 99))) == ["1.jpg"]
