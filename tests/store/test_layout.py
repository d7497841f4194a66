# SPDX-License-Identifier: Apache-2.0
"""Names, digests, and the rule that nothing clear goes in."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InputError, RecipeError
from sfumato.store import layout
from sfumato.store.layout import ImageHeader, decode_name, encode_name
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe

HEADER = ImageHeader("a b.jpg", 3, 2, 16, "float32", Recipe.of("random-2"), Extractor("sift"), (640, 480), "0" * 64)


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("desk.jpg", "desk.jpg"),
        ("photos/desk 1.jpg", "photos%2Fdesk%201.jpg"),
        (".", "%2E"),
        ("..", "%2E."),
        (".hidden", "%2Ehidden"),
        ("/", "%2F"),
        ("100%", "100%25"),
        ("%41", "%2541"),
        ("é", "%C3%A9"),
        ("\udcff.jpg", "%FF.jpg"),
        ("a\0b\n", "a%00b%0A"),
        ("n" * 1024, "n" * 1024),
    ],
)
def test_names_have_one_encoded_form(name: str, encoded: str):
    assert encode_name(name) == encoded
    assert decode_name(encoded) == name


@given(st.text(min_size=1, max_size=200))
def test_any_text_comes_back(name: str):
    encoded = encode_name(name)
    assert decode_name(encoded) == name
    assert encoded.isascii()
    assert "/" not in encoded
    assert not encoded.startswith(".")


@given(st.text(alphabet="ab%./2EeF c3A9", min_size=1, max_size=12))
def test_a_link_name_is_accepted_only_in_its_one_form(encoded: str):
    try:
        name = decode_name(encoded)
    except InputError:
        return
    assert encode_name(name) == encoded


@pytest.mark.parametrize("name", ["", "n" * 1025, "é" * 513, "\ud800", "\udcc3\udca9", None, 3, b"desk.jpg"])
def test_other_names_are_refused(name: object):
    with pytest.raises(InputError, match="name"):
        encode_name(name)


@pytest.mark.parametrize("encoded", ["", ".", "..", "a/b", "a b", "%2f", "%41", "%", "%G1", "%E9%2"])
def test_other_link_names_are_refused(encoded: str):
    with pytest.raises(InputError, match="name"):
        decode_name(encoded)


@pytest.mark.parametrize(
    ("recipe", "dim"),
    [("random-2", 2), ("sub-hybrid-4", 4), ("compress-48", 0), ("ninja-sift-1.0", 0), ("compress-48+random-2", 2)],
)
def test_concealed_recipes_are_accepted(recipe: str, dim: int):
    layout._refuse_clear(Recipe.of(recipe), dim)


@pytest.mark.parametrize(("recipe", "dim"), [("raw", 0), ("random-2", 0), ("raw", 2)])
def test_clear_recipes_are_refused(recipe: str, dim: int):
    with pytest.raises(InputError, match="conceal"):
        layout._refuse_clear(Recipe.of(recipe), dim)


@pytest.mark.parametrize(("recipe", "dim"), [("random-2", 3), ("compress-48", 2), ("compress-48+random-2", 0)])
def test_another_dimension_than_the_recipe_makes_is_refused(recipe: str, dim: int):
    with pytest.raises(InputError, match="dimension"):
        layout._refuse_clear(Recipe.of(recipe), dim)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float64"},
        {"count": -1},
        {"count": 2**31},
        {"ambient_dim": 0},
        {"ambient_dim": 65_537},
        {"ambient_dim": 1},
        {"payload": "points"},
        {"recipe": Recipe.of("raw")},
        {"dim": 0},
    ],
)
def test_headers_are_checked(change: dict[str, object]):
    with pytest.raises(InputError):
        replace(HEADER, **change)


def test_sizes_of_the_arrays():
    assert [shape for _, _, shape in HEADER.arrays] == [(3, 4), (3, 16), (3, 2, 16)]
    assert HEADER.nbytes == sum(np.zeros(shape, kind).nbytes for _, kind, shape in HEADER.arrays)
    half = replace(HEADER, dtype="float16")
    assert half.nbytes == sum(np.zeros(shape, kind).nbytes for _, kind, shape in half.arrays)
    assert [kind for _, kind, _ in half.arrays] == ["<f4", "<f2", "<f2"]


def test_the_checksum_is_the_documented_one():
    text = json.dumps(
        [
            "a%20b.jpg", "subspaces", HEADER.recipe.to_json(), '{"name":"sift","settings":{}}', [640, 480],
            [["keypoints", "<f4", [3, 4]], ["origin", "<f4", [3, 16]], ["basis", "<f4", [3, 2, 16]]], "0" * 64,
        ],
        separators=(",", ":"),
    )  # fmt: skip
    expected = hashlib.blake2b(text.encode(), digest_size=32, person=b"sfumato-header").hexdigest()
    assert HEADER.checksum == expected


@pytest.mark.parametrize(
    "change",
    [
        {"name": "b"},
        {"count": 4},
        {"ambient_dim": 17},
        {"dtype": "float16"},
        {"recipe": Recipe.of("hybrid-2")},
        {"recipe": Recipe("random", 2, keyed=True)},
        {"extractor": Extractor("sift", {"a": 1})},
        {"image_size": None},
        {"image_size": (480, 640)},
        {"data": "1" * 64},
    ],
)
def test_the_checksum_covers_everything(change: dict[str, object]):
    assert replace(HEADER, **change).checksum != HEADER.checksum


def test_digests_of_arrays_and_names():
    arrays = [np.arange(4, dtype="<f4"), np.zeros((0, 3), "<f4"), np.ones((2, 2), "<f2")]
    raw = b"".join(array.tobytes() for array in arrays)
    expected = hashlib.blake2b(raw, digest_size=32, person=b"sfumato-data").hexdigest()
    assert layout.digest_arrays(arrays) == expected
    names = hashlib.blake2b(b"a\nb\n", digest_size=32, person=b"sfumato-names").hexdigest()
    assert layout.digest_names(["b", "a"]) == layout.digest_names({"a": 1, "b": 2}) == names
    assert layout.digest_names(["ab"]) != names


def test_texts_come_back():
    recipe = Recipe("sub-hybrid", 4, evaluation_seed=3, decoys="ab" * 16)
    assert layout.parse_recipe(recipe.to_json()).to_json() == recipe.to_json()
    extractor = Extractor("sift", {"a": 0.04, "b": None, "c": True, "d": "é", "e": 2**53})
    assert layout.parse_extractor(extractor.to_json()) == extractor


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "null", "[]", "{}", "[" * 10_000, '{"name":"x","settings":{"a":[]}}', '{"name":[],"settings":{}}',
        '{"name":"x","settings":{"a":1%s}}' % ("0" * 400), '{"name":"x","settings":{"a":NaN}}',
        '{"name":"x","settings":{"a":1e999}}', '{"settings":{},"name":"x"}', '{"name":"x", "settings":{}}',
        '{"name":"x","name":"x","settings":{}}', '{"name":"x","settings":{"b":1,"a":1}}',
    ],
)  # fmt: skip
def test_other_texts_of_an_extractor_are_refused(text: str):
    with pytest.raises(InputError):
        layout.parse_extractor(text)


LINK = '{"dim":%s,"forced":%s,"kind":%s,"variant":%s}'
WHOLE = '{"decoys":%s,"evaluation_seed":%s,"keyed":%s,"links":[%s]}'


@pytest.mark.parametrize(
    "text",
    [
        "", "3", "[]", "{}", WHOLE % ("null", "null", "false", ""), WHOLE % ("null", "null", "false", "{}"),
        WHOLE % ("null", "null", "false", LINK % ("2", "false", "[]", '""')),
        WHOLE % ("null", "null", "false", LINK % ("2", "false", "{}", '""')),
        WHOLE % ("null", "null", "false", LINK % ("2.0", "false", '"random"', '""')),
        WHOLE % ("null", "null", "false", LINK % ("2", "0", '"random"', '""')),
        WHOLE % ("null", "null", "false", LINK % ("2", "false", '"random"', "null")),
        WHOLE % ("null", "-1", "false", LINK % ("2", "false", '"random"', '""')),
        WHOLE % ("null", "[]", "false", LINK % ("2", "false", '"random"', '""')),
        WHOLE % ("[]", "null", "false", LINK % ("2", "false", '"random"', '""')),
        WHOLE % ("null", "null", "{}", LINK % ("2", "false", '"random"', '""')),
        WHOLE % ("null", "null", "false", LINK % (" 2", "false", '"random"', '""')),
    ],
)  # fmt: skip
def test_other_texts_of_a_recipe_are_refused(text: str):
    with pytest.raises(InputError):
        layout.parse_recipe(text)


def test_a_recipe_in_its_one_form_is_accepted():
    text = WHOLE % ("null", "null", "false", LINK % ("2", "false", '"random"', '""'))
    assert str(layout.parse_recipe(text)) == "random-2"
    with pytest.raises(RecipeError):
        layout.parse_recipe(text.replace("random", "rendom"))


@pytest.mark.parametrize(("dim", "recipe"), [(0, "compress-48"), (2, "compress-48+random-2")])
def test_compressed_points_have_as_many_dimensions_as_they_say(dim: int, recipe: str):
    good = replace(HEADER, dim=dim, ambient_dim=48, recipe=Recipe.of(recipe))
    with pytest.raises(InputError, match="48 dimensions"):
        replace(good, ambient_dim=128)
