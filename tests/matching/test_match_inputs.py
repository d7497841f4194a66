# SPDX-License-Identifier: Apache-2.0
"""What may be matched with what, and what is refused in words that help."""

import numpy as np
import pytest

import sfumato
from sfumato.errors import InputError
from sfumato.matching.mutual import check_pair, side_of


def concealed(name: str = "sift", n: int = 8) -> sfumato.ConcealedFeatures:
    rng = np.random.default_rng(0)
    subspaces = sfumato.Subspaces(rng.normal(size=(5, n)), rng.normal(size=(5, 2, n)))
    return sfumato.ConcealedFeatures(np.zeros((5, 4)), subspaces, "random-2", sfumato.Extractor(name))


def test_each_kind():
    features, points = concealed(), np.ones((3, 8))
    side = side_of(features, "a")
    assert side.code is side.subspaces is features.code
    assert side.extractor == features.extractor
    assert side.recipe == features.recipe
    side = side_of(features.code, "a")
    assert side.code is features.code
    assert side.extractor is None
    for value in (points, points.astype(np.float32), points.astype(np.uint8), points.tolist()):
        side = side_of(value, "a")
        assert side.subspaces.origin.dtype == np.float32
        assert (len(side), side.dim, side.ambient_dim) == (3, 0, 8)
    assert (len(side_of(np.zeros((0, 8)), "a")), side_of(np.zeros((0, 8)), "a").ambient_dim) == (0, 8)
    bits = sfumato.Bits(np.zeros((3, 8), np.uint8))
    assert side_of(bits, "a").code is bits
    with pytest.raises(InputError, match="seal"):
        side_of(bits, "a").subspaces  # noqa: B018
    with pytest.raises(InputError, match="seal"):
        sfumato.match(bits, np.zeros((3, 64)))
    with pytest.raises(InputError, match="processor"):
        sfumato.match(bits, bits, device="cpu")
    assert "1." not in repr(side)


def test_clear_features_are_told_to_give_their_descriptors():
    clear = sfumato.Features(np.zeros((3, 4)), np.eye(3, 8), sfumato.Extractor("sift"), None)
    with pytest.raises(InputError, match="Features"):
        side_of(clear, "queries")
    assert side_of(clear.descriptors, "a").ambient_dim == 8


@pytest.mark.parametrize("value", [None, 3, "private.sfm", {"descriptors": 1}, object()])
def test_anything_else(value):
    with pytest.raises(InputError, match="ConcealedFeatures"):
        side_of(value, "a")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros(8), r"a: expected shape"),
        (np.zeros((2, 3, 4)), r"a: expected shape"),
        (np.zeros((2, 0)), r"a: points need at least one dimension"),
        ([[1.0], [1.0, 2.0]], r"a: .*different lengths"),
        (np.array([["x"]]), r"a: expected numbers"),
        (np.array([[1.0], [np.nan]]), r"a: 1 of 2 rows are not finite.*row 1"),
    ],
)
def test_points_that_are_none(value, words):
    with pytest.raises(InputError, match=words):
        side_of(value, "a")


def test_pairs():
    plain, unknown = side_of(np.ones((3, 8)), "a"), side_of(concealed("sift").code, "a")
    for a, b in ((plain, plain), (plain, unknown), (side_of(concealed(), "a"), plain)):
        check_pair(a, b)
        check_pair(b, a)
    check_pair(side_of(concealed(), "a"), side_of(concealed(), "b"))
    with pytest.raises(InputError, match="spaces"):
        check_pair(plain, side_of(np.ones((3, 9)), "b"))
    with pytest.raises(InputError, match="rootsift"):
        check_pair(side_of(concealed(), "a"), side_of(concealed("rootsift"), "b"))


def encoded(recipe: str) -> sfumato.ConcealedFeatures:
    rng, dim = np.random.default_rng(0), sfumato.Recipe.of(recipe).dim
    subspaces = sfumato.Subspaces(rng.normal(size=(5, 8)), rng.normal(size=(5, dim, 8)))
    return sfumato.ConcealedFeatures(np.zeros((5, 4)), subspaces, recipe, sfumato.Extractor("sift"))


def test_encoders_must_be_the_same():
    ninja, renamed = "ninja:x@0123456789ab", "ninja-y@0123456789ab"
    for a, b in ((ninja, ninja), (ninja, renamed), (ninja, f"{ninja}+random-2"), ("random-2", "sub-hybrid-2")):
        check_pair(side_of(encoded(a), "a"), side_of(encoded(b), "b"))
    check_pair(side_of(encoded(ninja), "a"), side_of(np.ones((3, 8)), "b"))  # whoever gives arrays must know
    for a, b in ((ninja, "ninja:x@ba9876543210"), (ninja, "random-2"), (f"{ninja}+random-2", "random-2")):
        with pytest.raises(InputError, match="live"):
            check_pair(side_of(encoded(a), "a"), side_of(encoded(b), "b"))
    with pytest.raises(InputError, match="no encoder"):
        sfumato.match(encoded(ninja), encoded("random-2"))


def test_recipes_of_other_widths_are_named_before_the_widths():
    wide = sfumato.Subspaces(np.ones((5, 9)), np.zeros((5, 0, 9)))
    other = sfumato.ConcealedFeatures(np.zeros((5, 4)), wide, "ninja:y@ba9876543210", sfumato.Extractor("sift"))
    with pytest.raises(InputError, match="ba9876543210"):
        check_pair(side_of(encoded("ninja:x@0123456789ab"), "a"), side_of(other, "b"))


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ("sealed-16@0123456789ab", "sealed-16@ba9876543210", ("device keys", "0123456789ab and ba9876543210")),
        ("sealed-16@0123456789ab", "sealed-32@ba9876543210", ("16 and 32 bits",)),
        ("sealed-16@0123456789ab", "sealed-16:0.4@ba9876543210", ("bandwidths", "0.4")),
        ("sealed-16@0123456789ab", "ninja:x@ba9876543210", ("is sealed",)),
        ("ninja:x@0123456789ab", "ninja:x@ba9876543210", ("encoders differ",)),
        ("compress-16@0123456789ab+sealed-16@0123456789ab", "sealed-16@0123456789ab", ("encoders differ",)),
        ("compress-16@0123456789ab+random-2", "random-2", ("the other did not",)),
    ],
)  # fmt: skip
def test_different_spaces_say_what_differs(ours, theirs, words):
    sides = []
    for recipe in (ours, theirs):
        made = sfumato.Recipe.of(recipe)
        code = sfumato.Subspaces(np.eye(16)[:3], np.tile(np.eye(16)[5 : 5 + made.dim], (3, 1, 1)))
        if made.is_sealed:
            code = sfumato.Bits(np.zeros((3, made.links[-1].dim // 8), np.uint8))
        sides.append(side_of(sfumato.ConcealedFeatures(np.zeros((3, 4)), code, recipe), "a"))
    for a, b in (sides, sides[::-1]):
        with pytest.raises(InputError) as caught:
            check_pair(a, b)
        for word in words if a is sides[0] else words[:1]:
            assert word in str(caught.value) or "32 and 16" in str(caught.value)
