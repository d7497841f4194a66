# SPDX-License-Identifier: Apache-2.0
"""Names, digests, forms of a code, and the rule that nothing clear goes in."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from sfumato.errors import InputError, RecipeError
from sfumato.store import layout
from sfumato.store.layout import ImageHeader, checked_name, encode_image, image_of
from sfumato.types.concealed import ConcealedFeatures, Subspaces
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe

HEADER = ImageHeader("a b.jpg", 3, 2, 16, "float32", Recipe.of("random-2"), Extractor("sift"), (640, 480), "0" * 64)
SEALED = replace(HEADER, dim=0, ambient_dim=64, dtype="bits", recipe=Recipe.of("sealed-64@0123456789ab"), frames=False)


@pytest.mark.parametrize("name", ["desk.jpg", "photos/desk 1.jpg", ".", "..", "/", "é", "日本", "%2F", " ", "n" * 1024])
def test_names_are_texts(name: str):
    assert checked_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "n" * 1025, "é" * 513, "\ud800", "\udcff.jpg", "a\nb", "a\0b", "\x7f", "\x85", None, 3, b"desk.jpg"]
)
def test_other_names_are_refused(name: object):
    with pytest.raises(InputError, match="name"):
        checked_name(name)
    assert not layout.is_name(name)


@pytest.mark.parametrize(
    ("recipe", "dim"),
    [("random-2", 2), ("sub-hybrid-4", 4), ("compress-48", 0), ("ninja-sift-1.0", 0), ("compress-48+random-2", 2)],
)
def test_concealed_recipes_are_accepted(recipe: str, dim: int):
    assert replace(HEADER, recipe=Recipe.of(recipe), dim=dim, ambient_dim=48).dim == dim


@pytest.mark.parametrize(("recipe", "dim"), [("raw", 0), ("random-2", 0), ("raw", 2)])
def test_clear_recipes_are_refused(recipe: str, dim: int):
    with pytest.raises(InputError, match="conceal"):
        replace(HEADER, recipe=Recipe.of(recipe), dim=dim)


@pytest.mark.parametrize(("recipe", "dim"), [("random-2", 3), ("compress-16", 2), ("compress-16+random-2", 0)])
def test_another_dimension_than_the_recipe_makes_is_refused(recipe: str, dim: int):
    with pytest.raises(InputError, match="dimension"):
        replace(HEADER, recipe=Recipe.of(recipe), dim=dim)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float64"},
        {"dtype": "bits"},
        {"count": -1},
        {"count": 2**31},
        {"count": 10**7},
        {"ambient_dim": 0},
        {"ambient_dim": 65_537},
        {"ambient_dim": 1},
        {"name": "a\n.jpg"},
        {"recipe": Recipe.of("raw")},
        {"recipe": SEALED.recipe},
        {"dim": 0},
    ],
)
def test_headers_are_checked(change: dict[str, object]):
    with pytest.raises(InputError):
        replace(HEADER, **change)


@pytest.mark.parametrize(
    "change",
    [
        *({"dtype": "float32"}, {"ambient_dim": 72}, {"dim": 1}, {"recipe": Recipe.of("compress-64")}),
        {"ambient_dim": 100, "recipe": Recipe.of("sealed-100@0123456789ab")},
    ],
)
def test_bits_are_what_a_seal_makes(change: dict[str, object]):
    with pytest.raises(InputError):
        replace(SEALED, **change)


def test_sizes_of_the_blobs():
    assert HEADER.sizes == (3 * 4 * 4, 3 * 16 * 4 + 3 * 2 * 16 * 4)
    assert replace(HEADER, dtype="float16", frames=False).sizes == (3 * 2 * 4, 3 * 16 * 2 + 3 * 2 * 16 * 2)
    assert SEALED.sizes == (3 * 2 * 4, 3 * 8)
    assert SEALED.nbytes == 48


def test_the_checksum_is_the_documented_one():
    text = f'a b.jpg\n3\n2\n16\nfloat32\n{HEADER.recipe.to_json()}\n{{"name":"sift","settings":{{}}}}\n640\n480\n'
    focal = "407f400000000000"  # 500
    for header, line in ((HEADER, ""), (replace(HEADER, focal_px=500.0), focal)):
        assert header.checksum == hashlib.sha256(f"{text}{line}\n{'0' * 64}\n".encode()).hexdigest()


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
        {"focal_px": 500.0},
        {"data": "1" * 64},
    ],
)
def test_the_checksum_covers_everything(change: dict[str, object]):
    assert replace(HEADER, **change).checksum != HEADER.checksum


def test_the_bytes_of_blobs_are_the_documented_ones(features, sealed):
    lifted = features(count=3)
    header, keypoints, code = encode_image("a.jpg", lifted, "float32")
    assert keypoints == lifted.keypoints.tobytes()
    assert code == lifted.code.origin.tobytes() + lifted.code.basis.tobytes()
    assert header.data == hashlib.sha256(keypoints + code).hexdigest()
    bits = sealed(count=3)
    header, keypoints, code = encode_image("a.jpg", bits, "float16")
    assert keypoints == bits.keypoints[:, :2].tobytes()
    assert (code, header.dtype, header.frames) == (bits.code.packed.tobytes(), "bits", False)


@pytest.mark.parametrize(
    ("frame", "stored"),
    [((1, 0), False), ((1, -0.0), True), ((1, 1e-45), True), ((2, 0), True), ((1 + 2**-23, 0), True)],
)
def test_sizes_and_angles_are_left_out_only_if_they_say_nothing(features, same, frame, stored):
    keypoints = np.concatenate((np.ones((5, 2)), np.tile([1, 0], (5, 1))), axis=1)
    keypoints[3, 2:] = frame
    image = features(count=5)
    image = ConcealedFeatures(keypoints, image.code, image.recipe)
    header, *blobs = encode_image("a.jpg", image, "float32")
    assert header.frames is stored
    same(image_of(header, *blobs), image)


def test_half_numbers_are_half_as_large_and_near(features):
    image = features(count=300, ambient_dim=128)
    header, *blobs = encode_image("a.jpg", image, "float16")
    assert len(blobs[1]) == 300 * 128 * 3 * 2
    back = image_of(header, *blobs).code
    assert np.abs(back.basis - image.code.basis).max() < 1e-3
    assert 0 < np.abs(back.origin - image.code.origin).max() < 1e-3 * np.linalg.norm(image.code.origin, axis=1).max()
    large = Subspaces(image.code.origin * 1e6, image.code.basis)
    with pytest.raises(InputError, match="'float32'"):
        encode_image("a.jpg", replace(image, code=large), "float16")
    with pytest.raises(InputError, match="'float32'"):
        encode_image("a.jpg", image, "bits")


def test_texts_come_back():
    recipe = Recipe("sub-hybrid", 4, evaluation_seed=3, decoys="ab" * 16)
    assert layout.parse_recipe(recipe.to_json()).to_json() == recipe.to_json()
    extractor = Extractor("sift", {"a": 0.04, "b": None, "c": True, "d": "é", "e": 2**53})
    assert layout.parse_extractor(extractor.to_json()) == extractor


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "null", "[]", "{}", "[" * 10_000, '{"name":"x","settings":{"a":[]}}', '{"name":[],"settings":{}}',
        '{"name":"x","settings":{"a":1%s}}' % ("0" * 400), '{"name":"x","settings":{"a":1%s}}' % ("0" * 5000),
        '{"name":"x","settings":{"a":NaN}}', '{"name":"x","settings":{"a":1e999}}', '{"settings":{},"name":"x"}',
        '{"name":"x", "settings":{}}', '{"name":"x","name":"x","settings":{}}', '{"name":"x","settings":{"b":1,"a":1}}',
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
        *(
            (WHOLE % ("null", "null", "false", LINK % ("2", "false", '"random"', '""'))).replace("{", start, 1)
            for start in (
                *(f'{{"chaff":{chaff},' for chaff in ("-1", "2", "0.0", "false", "true", "null", "[]")),
                '{"chaff": 0,', '{"chaff":0,"chaff":0,',
            )
        ),
        WHOLE % ("null", "null", "false", LINK % (" 2", "false", '"random"', '""')),
    ],
)  # fmt: skip
def test_other_texts_of_a_recipe_are_refused(text: str):
    with pytest.raises(InputError):
        layout.parse_recipe(text)


def test_a_recipe_in_its_one_form_is_accepted():
    text = WHOLE % ("null", "null", "false", LINK % ("2", "false", '"random"', '""'))
    assert str(layout.parse_recipe(text)) == "random-2"
    assert layout.parse_recipe(text.replace("{", '{"chaff":0,', 1)) == layout.parse_recipe(text)
    with pytest.raises(RecipeError):
        layout.parse_recipe(text.replace("random", "rendom"))


@pytest.mark.parametrize(("dim", "recipe"), [(0, "compress-48"), (2, "compress-48+random-2")])
def test_compressed_points_have_as_many_dimensions_as_they_say(dim: int, recipe: str):
    good = replace(HEADER, dim=dim, ambient_dim=48, recipe=Recipe.of(recipe))
    with pytest.raises(InputError, match="48"):
        replace(good, ambient_dim=128)


def test_a_long_description_is_refused(features):
    extractor = Extractor("sift", {f"setting{i}": "x" * 4000 for i in range(9)})
    with pytest.raises(InputError, match=r"extractor.*shorten"):
        _ = encode_image("a.jpg", features(extractor=extractor), "float32")[0].values
