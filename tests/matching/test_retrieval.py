# SPDX-License-Identifier: Apache-2.0
import warnings

import numpy as np
import pytest

import sfumato
from sfumato.errors import EvaluationOnlyWarning, FileError, InputError
from sfumato.images.homography import make_pair
from sfumato.images.samples import sample_image
from sfumato.matching.codebook import Codebook, load_codebook
from sfumato.matching.retrieval import (
    RetrievalParams,
    Signatures,
    candidates,
    choose_pairs,
    nearest_images,
    shortlist,
    sign,
)

WORDS = np.eye(8, dtype=np.float32)
PLAIN = Codebook(WORDS, sfumato.Extractor("toy"), space="compress-8")
ONE = RetrievalParams(votes=1)


def voters(*counts, dim=0, seed=0, encoder="compress-8+"):
    """Points near to the words of a toy codebook, so many near to each; or subspaces through them, off the words."""
    rng = np.random.default_rng(seed)
    points = np.repeat(WORDS, counts, axis=0) + 0.01 * rng.standard_normal((sum(counts), 8))
    directions = rng.standard_normal((len(points), dim, 8)) if dim else np.zeros((len(points), 0, 8))
    recipe = f"{encoder}random-{dim}" if dim else "compress-8"
    subspaces = sfumato.Subspaces(points, directions)
    return sfumato.ConcealedFeatures(np.zeros((len(points), 4)), subspaces, recipe, sfumato.Extractor("toy"))


def crowd():
    """Three scenes of three images each, and one image like no other."""
    images = {}
    for scene in range(3):
        for number in range(3):
            counts = [2] * 8
            counts[2 * scene] += 30
            counts[2 * scene + 1] += 20 + number
            images[f"{scene}-{number}"] = voters(*counts, seed=10 * scene + number)
    images["other"] = voters(2, 2, 2, 2, 2, 2, 40, 40)
    return images


def test_votes_are_counted():
    found = sign({"a": voters(1, 0, 0, 3, 0, 0, 0, 0), "b": voters(0, 0, 0, 0, 5, 0, 0, 0)}, PLAIN, ONE)
    assert found.names == ("a", "b")
    assert np.allclose(found.shares, [[0.25, 0, 0, 0.75, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0]])
    assert repr(found) == "Signatures(2 images, 8 words)"
    two = sign({"a": voters(4, 0, 0, 0, 0, 0, 0, 0)}, PLAIN, RetrievalParams(votes=2))
    assert two.shares[0, 0] == 0.5
    all_words = sign({"a": voters(4, 0, 0, 0, 0, 0, 0, 0)}, PLAIN, RetrievalParams(votes=99))
    assert np.allclose(all_words.shares, 1 / 8)


def test_subspaces_vote_for_the_words_they_pass():
    lines = sfumato.Subspaces(np.zeros((3, 8)), np.eye(8)[[1, 5, 5]][:, None])
    hidden = sfumato.ConcealedFeatures(np.zeros((3, 4)), lines, "compress-8+random-1", sfumato.Extractor("toy"))
    assert np.allclose(sign({"a": hidden}, PLAIN, ONE).shares[0], [0, 1 / 3, 0, 0, 0, 2 / 3, 0, 0])


def test_a_shortlist_holds_the_scenes():
    found = shortlist(crowd(), 2, PLAIN, ONE)
    pairs = {frozenset(pair) for pair in found.pairs}
    for scene in range(3):
        for a, b in ((0, 1), (0, 2), (1, 2)):
            assert frozenset((f"{scene}-{a}", f"{scene}-{b}")) in pairs
    assert len(pairs) == len(found.pairs) == 9 + 2  # and two of "other", which must name somebody
    assert not found.featureless
    assert found.pairs.duplicates == 0  # to be named by both is no repeat
    assert repr(found) == f"PairChoice({found.pairs!r})"


def test_the_best_comes_first_and_nobody_is_his_own():
    images = crowd()
    signed = sign(images, PLAIN, ONE)
    rows = nearest_images(signed, signed, 9)
    assert rows.shape == (10, 9)
    for mine, row in enumerate(rows):
        assert sorted({*row.tolist(), mine}) == list(range(10))
    assert {signed.names[j][0] for j in rows[4, :2]} == {"1"}
    assert nearest_images(signed, signed, 50).shape == (10, 10)
    assert (nearest_images(signed, signed, 50)[:, 9] == -1).all()
    assert np.array_equal(nearest_images(signed, signed, 3), rows[:, :3])


def test_many_images_are_asked_in_blocks(monkeypatch):
    shares = np.random.default_rng(0).dirichlet(np.ones(8), 20).astype(np.float32)
    signed = Signatures(tuple(map(str, range(20))), shares, PLAIN)
    whole = nearest_images(signed, signed, 4)
    monkeypatch.setattr("sfumato.matching.retrieval.ROWS_AT_ONCE", 3)
    assert np.array_equal(nearest_images(signed, signed, 4), whole)


def test_what_decoys_explain_does_not_count():
    """Two kinds of images share a strange lot of decoys; what they show is in the other words."""
    rng = np.random.default_rng(0)
    background = np.zeros((2, 40), np.float32)
    background[0, :20] = rng.permutation(np.repeat([-1.0, 1.0], 10))
    background[1] = -background[0]
    rows, scenes = [], []
    for number in range(12):
        shares = np.full(40, 1.0)
        shares[:20] += 0.9 * background[number % 2, :20]
        shares[20 + number // 3 * 4 : 24 + number // 3 * 4] += 1.0
        rows.append(shares / shares.sum() + 1e-4 * rng.random(40))
        scenes.append(number // 3)
    shares = np.array(rows, np.float32)
    words = rng.standard_normal((40, 4))

    def correct(codebook):
        signed = Signatures(tuple(map(str, range(12))), shares, codebook)
        return sum(scenes[i] == scenes[j] for i, row in enumerate(nearest_images(signed, signed, 2)) for j in row)

    assert correct(Codebook(words, PLAIN.extractor, background)) == 24
    assert correct(Codebook(words, PLAIN.extractor)) < 20


def test_what_all_images_have_in_common_does_not_count():
    """Images that show a bit of everything resemble all; those of the same scene are still nearer."""
    rng = np.random.default_rng(0)
    scenes, bland = rng.uniform(-0.4, 0.4, (6, 300)), np.ones((3, 300))
    rows = 1 + np.repeat(scenes, 2, axis=0) + rng.uniform(-0.55, 0.55, (12, 300))
    shares = np.concatenate([rows, bland + 0.01 * rng.random((3, 300))])
    shares /= shares.sum(axis=1, keepdims=True)
    signed = Signatures(tuple(map(str, range(15))), shares.astype(np.float32), Codebook(rng.random((300, 4))))
    assert nearest_images(signed, signed, 1)[:12, 0].tolist() == [i ^ 1 for i in range(12)]
    roots = np.sqrt(shares)
    assert (np.argsort(-(roots @ roots.T))[:12, 1] >= 12).all()  # otherwise the bland ones would win


def test_queries_and_references():
    images = crowd()
    references = sign({name: images[name] for name in images if not name.endswith("-0")}, PLAIN, ONE)
    queries = sign({"q0": images["0-0"], "q2": images["2-0"], "none": voters(*[0] * 8)}, PLAIN, ONE)
    found = candidates(queries, references, 2)
    assert {name[0] for name in found["q0"]} == {"0"}
    assert {name[0] for name in found["q2"]} == {"2"}
    assert found["none"] == ()
    assert len(candidates(queries, references, 99)["q0"]) == 7
    alone = sign({"q0": images["0-0"]}, PLAIN, ONE)
    assert candidates(alone, references, 2)["q0"] == found["q0"]
    assert candidates(queries, sign({}, PLAIN), 5) == {"q0": (), "q2": (), "none": ()}
    with pytest.raises(InputError, match="different codebooks"):
        candidates(queries, sign({}, Codebook(np.eye(4))), 5)


def test_images_without_features_are_named_and_left_out():
    images = {**crowd(), "empty": voters(*[0] * 8)}
    found = shortlist(images, 2, PLAIN, ONE)
    assert found.featureless == ("empty",)
    assert "empty" not in found.pairs.names
    assert {frozenset(pair) for pair in found.pairs} == {frozenset(p) for p in shortlist(crowd(), 2, PLAIN, ONE).pairs}
    nothing = {str(i): voters(*[0] * 8) for i in range(5)}
    with pytest.raises(InputError, match="shortlist"):
        shortlist(nothing, 2, PLAIN)


def test_images_that_look_all_the_same():
    images = {str(i): voters(3, 3, 3, 3, 3, 3, 3, 3) for i in range(6)}
    found = shortlist(images, 2, PLAIN, ONE)
    assert set(found.pairs.names) == set(images)


def test_where_there_is_nothing_to_choose_every_pair_is_returned_unread():
    class Unreadable(dict):
        def __getitem__(self, name):
            raise AssertionError("it was read")

    images = Unreadable.fromkeys("cab")
    for count in (2, 20):
        assert sorted(shortlist(images, count).pairs) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert len(shortlist(Unreadable.fromkeys("a"), 5).pairs) == 0
    assert len(shortlist({}, 5).pairs) == 0


def test_a_damaged_image_does_not_stop_the_others(archive_at, tmp_path, spoil):
    path = archive_at(tmp_path / "a.sfm", count=7)
    spoil(path, "db/1.jpg")
    codebook = Codebook(np.random.default_rng(0).standard_normal((12, 16)), sfumato.Extractor("sift"))
    with sfumato.load(path) as archive:
        found = shortlist(archive, 2, codebook, progress=lambda names: iter(names))
    assert list(found.unreadable) == ["db/1.jpg"]
    assert found.featureless == ("db/6.jpg",)
    assert set(found.pairs.names) == {f"db/{i}.jpg" for i in (0, 2, 3, 4, 5)}


@pytest.mark.parametrize(
    ("image", "codebook", "message"),
    [
        (voters(1, 1, 1, 1, 1, 1, 1, 1), Codebook(np.eye(4)), "'1' has 8 dimensions, the codebook 4"),
        (voters(1, 1, 1, 1, 1, 1, 1, 1), Codebook(WORDS, sfumato.Extractor("sift")), "holds toy, .* words of sift"),
        (voters(1, 1, 1, 1, 1, 1, 1, 1, dim=2, encoder=""), None, "not for 'toy'.*--codebook"),
        (voters(1, 1, 1, 1, 1, 1, 1, 1), None, "compress-8.*--encoder"),
        (np.ones((3, 8)), None, "plain points: give a codebook"),
    ],
)
def test_codebooks_of_another_kind(image, codebook, message):
    with pytest.raises(InputError, match=message):
        shortlist({str(i): image for i in range(1, 6)}, 2, codebook)


def test_wrong_counts():
    for count in (0, -1, 1.5, True):
        with pytest.raises(InputError, match="votes"):
            shortlist(crowd(), count, PLAIN)
    with pytest.raises(InputError, match="votes"):
        RetrievalParams(votes=0)
    with pytest.raises(InputError, match="threads"):
        RetrievalParams(threads=0)


def conceal_all(pictures, recipe, **more):
    decoys = sfumato.load_decoys()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        return {
            name: sfumato.conceal(
                sfumato.extract(picture, **{"max_features": 800, **more}), recipe, decoys, evaluation_seed=i
            )
            for i, (name, picture) in enumerate(pictures.items())
        }


@pytest.mark.slow
def test_photos_find_what_shows_the_same():
    pictures = {}
    for name in ("astronaut", "camera", "chelsea", "coffee", "coins", "motorcycle-left", "retina", "rocket"):
        pair = make_pair(sample_image(name), np.random.default_rng(0), rotation=15, scale=1.1)
        pictures |= {f"{name} 0": pair.first, f"{name} 1": pair.second}
    signed = sign(conceal_all(pictures, "sub-hybrid-2", extractor="opencv"))
    assert signed.codebook.extractor.name == "sift"
    found = [name[:-1] in {signed.names[j][:-1] for j in row}
             for name, row in zip(signed.names, nearest_images(signed, signed, 3), strict=True)]  # fmt: skip
    assert sum(found) >= 14  # of 16; by chance 3


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["sub-hybrid-2", "sub-hybrid-4"])
def test_the_fountain_is_found_among_other_photos(shared_data, recipe):
    places = sorted((shared_data / "posed" / "fountain-P11" / "images").glob("*.jpg"))[::3]
    places += sorted((shared_data / "photos" / "bsds500" / "val").glob("*.jpg"))[:14]
    hidden = conceal_all({str(path): path for path in places}, recipe, max_features=2000)
    signed = sign(hidden, load_codebook("sift"))
    rows = nearest_images(signed, signed, 5)
    found = [np.isin(row, range(4)).sum() for row in rows[:4]]
    assert sum(found) >= 11  # of 12


def test_a_codebook_of_another_space_is_refused():
    images = {"a.jpg": voters(3, 3, 0, 0, 0, 0, 0, 0)}
    with pytest.raises(InputError, match="compress-8"):
        sign(images, Codebook(WORDS, sfumato.Extractor("toy")), ONE)
    with pytest.raises(InputError, match="compress-8"):
        sign(images, Codebook(WORDS, sfumato.Extractor("toy"), space="ninja@0123456789ab"), ONE)
    with pytest.raises(InputError, match="compress-8"):
        sign(images)


def test_pairs_are_chosen_by_a_rule_a_file_or_a_list(tmp_path):
    images = crowd()
    names = sorted(images)
    assert len(choose_pairs(images).pairs) == len(names) * (len(names) - 1) // 2
    assert len(choose_pairs(images, "sequential:1").pairs) == len(names) - 1
    assert sorted(choose_pairs(images, "votes:2", PLAIN).pairs) == sorted(shortlist(images, 2, PLAIN).pairs)
    (tmp_path / "pairs.txt").write_text(f"{names[0]} {names[1]}\n{names[1]} {names[0]}\n")
    for pairs in (tmp_path / "pairs.txt", str(tmp_path / "pairs.txt"), [(names[0], names[1])] * 2):
        choice = choose_pairs(images, pairs)
        assert list(choice.pairs) == [(names[0], names[1])]
        assert choice.pairs.duplicates == 1
    with pytest.raises(InputError, match="nobody"):
        choose_pairs(images, [("nobody", names[0])])
    with pytest.raises(FileError, match=r"none\.txt"):
        choose_pairs(images, tmp_path / "none.txt")


def test_sealed_images_vote_by_their_bits():
    rng = np.random.default_rng(0)
    images = {}
    for place in "ab":
        shared = rng.integers(0, 256, (40, 64), np.uint8)
        for number in range(3):
            seen = shared ^ np.packbits(rng.random((40, 512)) < 0.15, axis=1)
            images[f"{place}{number}"] = sealed(np.concatenate([seen, rng.integers(0, 256, (60, 64), np.uint8)]))
    images["empty"] = sealed(np.zeros((0, 64), np.uint8))
    choice = shortlist(images, 2)
    assert set(choice.pairs) >= {(f"{p}{i}", f"{p}{j}") for p in "ab" for i, j in ((0, 1), (0, 2), (1, 2))}
    assert len(choice.pairs) <= 8
    assert choice.featureless == ("empty",)
    assert len(shortlist(images, 6).pairs) == 21  # every pair: nothing to choose
    with pytest.raises(InputError, match="codebook"):
        shortlist(images, 2, load_codebook("sift"))
    images["c"] = sealed(images["a0"].code.packed, "sealed-512@ba9876543210")
    with pytest.raises(InputError, match="device keys"):
        shortlist(images, 2)


def test_sealed_images_without_features_make_no_pair():
    images = {str(number): sealed(np.zeros((0, 64), np.uint8)) for number in range(5)}
    with pytest.raises(InputError, match="5"):
        shortlist(images, 2)


def sealed(packed, recipe="sealed-512@0123456789ab"):
    return sfumato.ConcealedFeatures(np.zeros((len(packed), 4)), sfumato.Bits(packed), recipe)


def test_rules_that_are_misspelt_and_pairs_that_are_none():
    images = dict.fromkeys("abc")
    with pytest.raises(FileError, match="'exhaustive'"):
        choose_pairs(images, "exhausive")
    with pytest.raises(InputError, match="NoneType"):
        choose_pairs(images, None)
