# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.concealment.encoders import resolve
from sfumato.concealment.lift import conceal
from sfumato.concealment.seal import BANDWIDTH, make_seal, sealing_key
from sfumato.errors import EvaluationOnlyWarning, InputError, RecipeError
from sfumato.learn.encoder import encode, save_encoder
from sfumato.types.clear import Features
from sfumato.types.recipe import Recipe

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


def rows(count, n, rng):
    drawn = rng.standard_normal((count, n))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def different_bits(first, second):
    return np.mean(first != second, axis=1)


def test_bits_tell_near_distances_and_no_far_ones():
    rng = np.random.default_rng(0)
    x = rows(400, 64, rng)
    towards = rows(400, 64, rng)
    seal = make_seal(KEY, 64, 4096)
    shares = [different_bits(encode(seal, x), encode(seal, x + step * towards)).mean() for step in (0, 0.1, 0.3, 0.6)]
    # The odd harmonics of a square wave, for a phase that is Gaussian with standard deviation s = step / bandwidth.
    for step, share in zip((0, 0.1, 0.3, 0.6), shares, strict=True):
        odd = np.arange(1, 400, 2)
        expected = 0.5 - 4 / np.pi**2 * (np.exp(-0.5 * (odd * step / BANDWIDTH) ** 2) / odd**2).sum()
        assert share == pytest.approx(expected, abs=0.004)
    far = different_bits(encode(seal, x), encode(seal, towards))  # distances of about 1.4: nearly five bandwidths
    assert far.mean() == pytest.approx(0.5, abs=0.002)
    assert far.std() == pytest.approx(0.5 / np.sqrt(4096), rel=0.1)  # as of unrelated bits


def test_sealed_rows_have_unit_norm_and_two_values():
    sealed = encode(make_seal(KEY, 16, 64), rows(5, 16, np.random.default_rng(1)))
    assert sealed.shape == (5, 64)
    assert set(np.unique(sealed)) == {np.float32(-0.125), np.float32(0.125)}


def test_what_no_key_tells_is_the_same_after_a_turn_and_a_shift():
    """Over keys, bits of turned and shifted rows are distributed as those of the rows: only distances matter."""
    rng = np.random.default_rng(2)
    x = rows(3, 8, rng) * 0.4
    turn = np.linalg.qr(rng.standard_normal((8, 8)))[0]
    moved = (x @ turn + 0.7).astype(np.float32)
    agree = np.zeros((2, 3))
    for number in range(150):
        for place, points in enumerate((x, moved)):
            bits = encode(make_seal(b"key %d %d" % (number, place), 8, 64), points) > 0
            agree[place] += [(bits[i] == bits[j]).mean() / 150 for i, j in ((0, 1), (0, 2), (1, 2))]
    assert np.abs(agree[0] - agree[1]).max() < 0.025


def test_a_key_gives_one_seal_and_another_key_an_unrelated_one():
    x = rows(200, 32, np.random.default_rng(3))
    one, again, other = (make_seal(key, 32, 1024) for key in (KEY, bytearray(KEY), OTHER))
    assert one.checksum == again.checksum != other.checksum
    assert np.array_equal(encode(one, x), encode(again, x))
    assert different_bits(encode(one, x), encode(other, x)).mean() == pytest.approx(0.5, abs=0.01)
    others = make_seal(KEY, 16, 1024), make_seal(KEY, 32, 512), make_seal(KEY, 32, 1024, 0.4)
    assert len({seal.checksum for seal in (one, *others)}) == 4  # equal checksums seal equally


def test_recipes(tmp_path):
    features = Features(np.ones((4, 4), np.float32), rows(4, 128, np.random.default_rng(4)))
    hidden = conceal(features, "sealed-256", secret=KEY)
    assert hidden.recipe.keyed
    assert hidden.recipe.evaluation_seed is None
    assert str(hidden.recipe).startswith("sealed-256@")
    assert hidden.subspaces.dim == 0
    again = conceal(features, hidden.recipe, secret=KEY)
    assert np.array_equal(again.subspaces.origin, hidden.subspaces.origin)
    with pytest.raises(RecipeError, match="another device key"):
        conceal(features, hidden.recipe, secret=OTHER)
    with pytest.raises(RecipeError, match="needs the device key"):
        conceal(features, "sealed-256")
    with pytest.warns(EvaluationOnlyWarning, match="seal"):
        assert conceal(features, "sealed-256", evaluation_seed=3).recipe.evaluation_seed == 3
    chain = conceal(features, "ninja-sift-2.5+sealed-64:0.5", secret=KEY)
    assert chain.recipe.space.startswith("ninja@")
    assert chain.subspaces.origin.shape == (4, 64)


def test_what_is_wrong_is_told(tmp_path):
    for recipe, message in (
        ("sealed-256+random-2", "sealed is the last link"),
        ("sealed-256+compress-48", "sealed is the last link"),
        ("sealed-8", "32 bits or more"),
        ("sealed-256:0", "above 0"),
        ("sealed-256:wide", "a bandwidth"),
    ):
        with pytest.raises(RecipeError, match=message):
            resolve(recipe, KEY)
    with pytest.raises(InputError, match="unguessable"):
        make_seal(b"", 8, 64)
    with pytest.raises(InputError, match="as secret as its key"):
        save_encoder(tmp_path / "seal.safetensors", make_seal(KEY, 8, 64))


def test_nothing_tells_the_key():
    seal = make_seal(KEY, 8, 64)
    assert KEY.hex() not in repr(seal)
    assert "sealed" in repr(seal)


def test_the_key_of_a_seed_is_for_recipes_without_one():
    assert sealing_key("sealed-64", None, 3) == b"evaluation seed 3"
    assert sealing_key("sealed-64", KEY, None) == KEY
    assert sealing_key("sealed-64", None, None) is None
    named = Recipe.of("sealed-64@0123456789ab")
    assert named.is_sealed
    assert not named.encoders_are_public
    assert sealing_key(named, None, 3) is None
