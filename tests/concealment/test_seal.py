# SPDX-License-Identifier: Apache-2.0
import warnings
from hashlib import sha256

import numpy as np
import pytest

from sfumato.auditing.subjects import settled
from sfumato.concealment.encoder import save_encoder
from sfumato.concealment.faces import conceal_embeddings
from sfumato.concealment.keys import key_for_place, sealing_key
from sfumato.concealment.lifting import conceal
from sfumato.concealment.resolve import find_encoders, resolve, resolve_ahead
from sfumato.concealment.seal import (
    BANDWIDTH,
    BANDWIDTHS,
    FEWEST_ROWS,
    estimate_bandwidth,
    fingerprint,
    is_made_under,
    make_seal,
    warn_if_wide,
)
from sfumato.errors import (
    BandwidthWarning,
    EvaluationOnlyWarning,
    InputError,
    RecipeError,
    WideSealWarning,
)
from sfumato.matching.mutual import match
from sfumato.types.clear import Embeddings, Features
from sfumato.types.concealed import Bits
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import DEFAULT_RECIPE, Recipe

KEY, OTHER = sha256(b"1").digest(), sha256(b"2").digest()


def rows(count, n, rng):
    drawn = rng.standard_normal((count, n))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def different_bits(first, second):
    return np.unpackbits(first.packed ^ second.packed, axis=1).mean(axis=1)


def test_bits_tell_near_distances_and_no_far_ones():
    rng = np.random.default_rng(0)
    x = rows(400, 64, rng)
    towards = rows(400, 64, rng)
    seal = make_seal(KEY, 64, 4096)
    shares = [different_bits(seal(x), seal(x + step * towards)).mean() for step in (0, 0.1, 0.3, 0.6)]
    # The odd harmonics of a square wave, for a phase that is Gaussian with standard deviation s = step / bandwidth.
    for step, share in zip((0, 0.1, 0.3, 0.6), shares, strict=True):
        odd = np.arange(1, 400, 2)
        expected = 0.5 - 4 / np.pi**2 * (np.exp(-0.5 * (odd * step / BANDWIDTH) ** 2) / odd**2).sum()
        assert share == pytest.approx(expected, abs=0.004)
    far = different_bits(seal(x), seal(towards))  # distances of about 1.4: nearly five bandwidths
    assert far.mean() == pytest.approx(0.5, abs=0.002)
    assert far.std() == pytest.approx(0.5 / np.sqrt(4096), rel=0.1)  # as of unrelated bits


def test_bits_are_the_signs_of_cosines_by_the_definition():
    x, seal = rows(50, 16, np.random.default_rng(1)), make_seal(KEY, 16, 64)
    sealed = seal(x)
    assert sealed.packed.shape == (50, 8)
    angles = x.astype(float) @ seal.directions.astype(float).T + seal.phases
    assert np.array_equal(np.unpackbits(sealed.packed, axis=1), np.cos(angles) >= 0)
    with pytest.raises(InputError, match="16 dimensions"):
        seal(x[:, :8])


def test_an_array_is_sealed_to_bits():
    x = rows(5, 128, np.random.default_rng(1))
    assert isinstance(conceal(x, "sealed-512", secret=KEY), Bits)


def test_what_no_key_tells_is_the_same_after_a_turn_and_a_shift():
    """Over keys, bits of turned and shifted rows are distributed as those of the rows: only distances matter."""
    rng = np.random.default_rng(2)
    x = rows(3, 8, rng) * 0.4
    turn = np.linalg.qr(rng.standard_normal((8, 8)))[0]
    moved = (x @ turn + 0.7).astype(np.float32)
    agree = np.zeros((2, 3))
    for number in range(150):
        for place, points in enumerate((x, moved)):
            bits = np.unpackbits(make_seal(b"key %d %d" % (number, place), 8, 64)(points).packed, axis=1)
            agree[place] += [(bits[i] == bits[j]).mean() / 150 for i, j in ((0, 1), (0, 2), (1, 2))]
    assert np.abs(agree[0] - agree[1]).max() < 0.025


def test_a_key_gives_one_seal_and_another_key_an_unrelated_one():
    x = rows(200, 32, np.random.default_rng(3))
    one, again, other = (make_seal(key, 32, 1024) for key in (KEY, bytearray(KEY), OTHER))
    assert one.checksum == again.checksum != other.checksum
    assert np.array_equal(one(x).packed, again(x).packed)
    assert different_bits(one(x), other(x)).mean() == pytest.approx(0.5, abs=0.01)
    others = make_seal(KEY, 16, 1024), make_seal(KEY, 32, 512), make_seal(KEY, 32, 1024, 0.4)
    assert len({seal.checksum for seal in (one, *others)}) == 4  # equal checksums seal equally


# --- odd waves, for faces


def odd_share(cosine, bandwidth):
    """The share of different bits of two unit vectors: of square waves of two Gaussian angles, harmonic by harmonic."""
    k = np.arange(1, 200, 2, dtype=float)
    one, other, var = k[:, None], k[None], bandwidth**-2
    same, opposite = (np.exp(-0.5 * var * (one**2 + other**2 - 2 * sign * one * other * cosine)) for sign in (1, -1))
    return 0.5 - 4 / np.pi**2 * ((same - opposite) / (one * other)).sum()


@pytest.mark.parametrize("bandwidth", [0.34, 0.7, 1.0, 1.4])
def test_odd_waves_are_signs_of_sines_and_differ_as_often_as_the_law_says(bandwidth):
    x = rows(2, 64, np.random.default_rng(3)).astype(float)
    x[1] -= (x[1] @ x[0]) * x[0]
    x[1] /= np.linalg.norm(x[1])
    seal = make_seal(KEY, 64, 8192, bandwidth, odd=True)
    angles = x @ seal.directions.astype(float).T
    assert np.array_equal(np.unpackbits(seal(x).packed, axis=1), np.sin(angles) >= 0)
    for cosine in (1.0, 0.9, 0.5, 0.2, 0.0, -0.5):
        pair = seal(np.array([x[0], cosine * x[0] + np.sqrt(1 - cosine**2) * x[1]]))
        share = np.unpackbits(pair.packed[0] ^ pair.packed[1]).mean()
        assert share == pytest.approx(odd_share(cosine, bandwidth), abs=0.03)  # five deviations
    assert odd_share(0.0, bandwidth) == 0.5


def test_zero_is_near_everybody_under_random_phases_and_near_nobody_under_odd_waves():
    """Why faces have odd waves: whoever has the key can send the bits of zero, which need no face."""
    x = rows(300, 64, np.random.default_rng(4))
    shares = {}
    for odd in (False, True):
        seal = make_seal(KEY, 64, 2048, 1.0, odd=odd)
        zero = Bits(np.repeat(seal(np.zeros((1, 64))).packed, 300, axis=0))
        shares[odd] = different_bits(seal(x), zero), different_bits(seal(x[:150]), seal(x[150:]))
    assert shares[False][0].max() < np.quantile(shares[False][1], 0.05)  # nearer than nearly all strangers
    assert shares[True][0].min() > 0.4
    assert shares[True][0].mean() == pytest.approx(0.5, abs=0.01)


def test_a_key_seals_faces_and_local_features_with_nothing_in_common():
    x, recipe = rows(50, 64, np.random.default_rng(5)), Recipe.of("sealed-512:0.2")
    waves, faces = (make_seal(KEY, 64, 512, 0.2, odd=odd) for odd in (False, True))
    assert waves.checksum != faces.checksum
    assert [fingerprint(recipe, KEY, 64, odd=odd) for odd in (False, True)] == [
        seal.checksum[:12] for seal in (waves, faces)
    ]
    both = np.corrcoef(waves.directions.ravel(), faces.directions.ravel())
    assert abs(both[0, 1]) < 5 / np.sqrt(64 * 512)
    assert different_bits(waves(x), faces(x)).mean() == pytest.approx(0.5, abs=0.03)
    features = conceal(Features(np.ones((50, 4), np.float32), x), recipe, secret=KEY)
    templates = conceal_embeddings(Embeddings(x), recipe, secret=KEY)
    assert features.recipe.links[-1].checksum != templates.recipe.links[-1].checksum
    with pytest.raises(RecipeError, match="another"):
        conceal_embeddings(Embeddings(x), features.recipe, secret=KEY)


def test_recipes(tmp_path):
    features = Features(np.ones((4, 4), np.float32), rows(4, 128, np.random.default_rng(4)))
    hidden = conceal(features, "sealed-256", secret=KEY)
    assert hidden.recipe.keyed
    assert hidden.recipe.evaluation_seed is None
    assert str(hidden.recipe).startswith("sealed-256@")
    assert hidden.code.dim == 0
    again = conceal(features, hidden.recipe, secret=KEY)
    assert np.array_equal(again.code.packed, hidden.code.packed)
    given = make_seal(OTHER, 128, 256).checksum[:12]
    with pytest.raises(RecipeError, match=given):
        conceal(features, hidden.recipe, secret=OTHER)
    with pytest.raises(RecipeError, match="device key"):
        conceal(features, "sealed-256")
    with pytest.warns(EvaluationOnlyWarning, match="seal"):
        assert conceal(features, "sealed-256", evaluation_seed=3).recipe.evaluation_seed == 3
    chain = conceal(features, "ninja-sift-2.5+sealed-64:0.2", secret=KEY)
    assert chain.recipe.space.startswith("ninja@")
    assert chain.code.packed.shape == (4, 8)


def test_what_is_wrong_is_told():
    for recipe, message in (
        ("sealed-256+random-2", "sealed is the last link"),
        ("sealed-256+compress-48", "sealed is the last link"),
        ("sealed-8", "32 bits or more"),
        ("sealed-256:0", "above 0"),
        ("sealed-100", "whole bytes"),
        ("sealed-256:wide", "a bandwidth"),
    ):
        with pytest.raises(RecipeError, match=message):
            resolve(recipe, KEY)
    with pytest.raises(InputError, match="unguessable"):
        make_seal(b"", 8, 64)


def test_nothing_tells_the_key():
    seal = make_seal(KEY, 8, 64)
    assert KEY.hex() not in repr(seal)
    assert repr(seal).startswith("Seal(8 numbers to 64 bits")


def test_the_key_of_a_seed_is_for_who_has_no_other():
    assert sealing_key(None, 3) == b"evaluation seed 3"
    assert sealing_key(KEY, None) == KEY
    assert sealing_key(None, None) is None
    named = Recipe.of("sealed-64@0123456789ab")
    assert named.is_sealed
    assert not named.encoders_are_public


def some(width=128, seed=5):
    return Features(np.ones((4, 4), np.float32), rows(4, width, np.random.default_rng(seed)))


def test_a_seal_of_this_process_is_of_no_use_without_its_key():
    hidden = conceal(some(), "sealed-64", secret=KEY)
    seal = make_seal(KEY, 128, 64)
    with pytest.raises(RecipeError, match="device key"):
        conceal(some(), str(hidden.recipe))
    with pytest.raises(RecipeError, match="device key"):
        resolve(hidden.recipe)
    with pytest.raises(RecipeError, match="device key"):
        conceal(some(), hidden.recipe, evaluation_seed=3)
    assert find_encoders(hidden.recipe) is None
    assert resolve(hidden.recipe, KEY).seal.checksum == seal.checksum


@pytest.mark.filterwarnings("ignore::sfumato.errors.EvaluationOnlyWarning")
def test_what_protects_nobody_is_sealed_for_anyone_who_says_that_it_is_an_evaluation():
    seeded = conceal(some(), "sealed-64", evaluation_seed=3)
    again = conceal(some(), seeded.recipe, evaluation_seed=3)
    assert np.array_equal(seeded.code.packed, again.code.packed)
    of_all = settled("sealed-64")
    assert resolve(of_all).recipe == of_all
    assert conceal(some(), of_all, evaluation_seed=0).recipe.space == of_all.space
    with pytest.raises(RecipeError, match="device key"):
        conceal(some(), of_all)


def test_keys_that_can_be_tried_out():
    for key in (b"a", b"fifteen bytes..", b"passwordpassword1", b"0123456789abcdef" * 2, bytes(range(32))):
        with pytest.raises(RecipeError, match="guess"):
            conceal(some(), "sealed-64", secret=key)


@pytest.mark.parametrize("recipe", ["sealed-520", "sealed-512:0.271", "sealed-64:9.9"])
def test_seals_that_show_more_warn(recipe):
    with pytest.warns(WideSealWarning, match="grow") as caught:
        conceal(some(), recipe, secret=KEY)
    assert caught[0].filename == __file__


def test_seals_that_we_defend_do_not_warn():
    for recipe in (DEFAULT_RECIPE.split("+")[0], "sealed-384", "sealed-512:0.27"):
        conceal(some(), recipe, secret=KEY)


def test_the_usual_bandwidth_is_one_seal_however_it_is_written():
    written = {str(resolve(f"sealed-64{form}", KEY).recipe) for form in ("", f":{BANDWIDTH}", f":{BANDWIDTH:.3f}")}
    assert len(written) == 1
    assert written.pop().startswith("sealed-64@")
    assert str(resolve("sealed-64:0.40", KEY).recipe).startswith("sealed-64:0.4@")


def test_what_needs_no_key_is_resolved_ahead():
    assert str(resolve_ahead("sealed-64")) == "sealed-64"
    assert str(resolve_ahead(f"sealed-64:{BANDWIDTH}")) == f"sealed-64:{BANDWIDTH}", "also of another kind"
    assert str(resolve_ahead("ninja-sift-2.5+sealed-64")).startswith("ninja-sift-2.5@")
    assert resolve_ahead("compress-48") == resolve("compress-48").recipe
    with pytest.raises(RecipeError, match="32"):
        resolve_ahead("sealed-8")
    with pytest.raises(RecipeError, match="8192"):
        resolve_ahead("sealed-9000")


def test_a_key_is_told_from_another_by_the_name_of_the_seal_whatever_the_width():
    for width in (3, 128, 256):
        made = conceal(some(width), "sealed-64", secret=KEY).recipe
        assert is_made_under(made, Recipe.of("sealed-64"), KEY)
        assert not is_made_under(made, Recipe.of("sealed-64"), OTHER)
        assert not is_made_under(made, Recipe.of("sealed-32"), KEY)
        assert not is_made_under(made, Recipe.of("sealed-64:0.4"), None)
        assert is_made_under(made, Recipe.of("sealed-64"), None)
    assert not is_made_under(Recipe.of("random-2"), Recipe.of("sealed-64"), KEY)


def test_a_place_has_a_key_of_its_own():
    kitchen = key_for_place(KEY, "kitchen")
    assert kitchen == key_for_place(KEY, " kitchen ")
    assert len({kitchen, key_for_place(KEY, "hall"), key_for_place(KEY[:-1] + b"x", "kitchen"), KEY}) == 4
    assert len(kitchen) == 32
    for wrong in ("", "  ", None):
        with pytest.raises(InputError, match="name"):
            key_for_place(KEY, wrong)


def test_features_are_sealed_for_a_place():
    features = some()
    kitchen = conceal(features, "sealed-64", secret=KEY, place="kitchen")
    other = conceal(features, "sealed-64", secret=key_for_place(KEY, "kitchen"))
    assert kitchen.recipe == other.recipe != conceal(features, "sealed-64", secret=KEY).recipe
    assert np.array_equal(kitchen.code.packed, other.code.packed)
    with pytest.raises(InputError, match="--place"):
        conceal(features, "random-2", secret=KEY, place="kitchen")
    with pytest.raises(InputError, match="--place"):
        conceal(features, "sealed-64", evaluation_seed=1, place="kitchen")
    with pytest.raises(RecipeError, match="guessed"):
        conceal(features, "sealed-64", secret=b"kitchen", place="kitchen")


@pytest.mark.parametrize(("recipe", "kind", "says"), [
    ("sealed-512:0.235", "rootsift", "a bandwidth of 0.19"), ("sealed-512:0.235", "hardtfeat-1f0c9a27", "of 0.18"),
    ("sealed-512:0.2", "superpoint", "superpoint"), ("sealed-512:0.2", "rootsift", None), ("sealed-512", "sift", None),
    ("sealed-1024", "sift", "512 bits"), ("sealed-512", "unknown", None), ("random-2", "superpoint", None),
    ("sealed-512:0.4", "aliked-n16", None), ("sealed-512:0.5", "aliked-n16", "a bandwidth of 0.4"),
])  # fmt: skip
def test_descriptors_that_lie_closer_together_need_narrower_seals(recipe, kind, says):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warn_if_wide(Recipe.of(recipe), kind)
    assert [says in str(one.message) for one in told] == [True] * (says is not None)


def test_a_path_or_text_in_place_of_a_key_gets_advice():
    with pytest.raises(RecipeError, match=r"sfumato\.device_key"):
        conceal(np.eye(128, dtype=np.float32)[:2], "sealed-64", secret="k" * 40)


def named(name, count=200, width=128, seed=6, scale=1.0):
    points = scale * rows(count, width, np.random.default_rng(seed))
    return Features(np.ones((count, 4), np.float32), points, Extractor(name))


def sealed_as(features, recipe="sealed-64"):
    return str(conceal(features, recipe, secret=KEY).recipe)


@pytest.mark.parametrize("name", ["sift", "rootsift", "hardtfeat-1f0c9a27", "aliked-n16"])
def test_the_bandwidth_follows_the_name_of_the_extractor_and_is_recorded(name):
    features, bandwidth = named(name), BANDWIDTHS[name.split("-")[0]]
    made = conceal(features, "sealed-64", secret=KEY, positions=True)
    assert str(made.recipe).startswith("sealed-64@" if name == "sift" else f"sealed-64:{bandwidth:g}@")
    assert made.recipe.links[-1].bandwidth == bandwidth
    assert np.array_equal(made.code.packed, make_seal(KEY, 128, 64, bandwidth)(features.descriptors).packed)
    assert sealed_as(features, made.recipe) == str(made.recipe)
    assert sealed_as(features, "sealed-64:0.1").startswith("sealed-64:0.1@")


def test_sift_seals_as_it_always_did():
    assert (
        str(conceal(named("sift"), "sealed-64", secret=KEY).recipe)
        == "sealed-64@" + make_seal(KEY, 128, 64, 0.235).checksum[:12]
    )
    assert sealed_as(named("sift"), "sealed-64:0.235") == sealed_as(named("sift"))
    assert sealed_as(named("sift"), "ninja-sift-2.5+sealed-64").split("+")[1].startswith("sealed-64@")


def test_a_recorded_seal_without_a_bandwidth_is_of_sift_whatever_it_sealed():
    """Archives of RootSIFT were sealed so before each kind had its own."""
    with pytest.warns(WideSealWarning, match=r"0\.19"):
        old = sealed_as(named("rootsift"), "sealed-64:0.235")
    assert old.startswith("sealed-64@")
    with pytest.warns(WideSealWarning, match=r"0\.19"):
        assert sealed_as(named("rootsift"), old) == old


def test_the_bandwidth_of_an_unknown_kind_is_estimated_and_named():
    features = named("superpoint", width=256)
    with pytest.warns(BandwidthWarning, match="--recipe sealed-64:") as caught:
        made = conceal(features, "sealed-64", secret=KEY)
    bandwidth = made.recipe.links[-1].bandwidth
    assert bandwidth == estimate_bandwidth(features.descriptors)
    assert f"sealed-64:{bandwidth:g}@" in str(made.recipe)
    assert f"--recipe sealed-64:{bandwidth:g}" in str(caught[0].message)
    assert caught[0].filename == __file__
    other = named("superpoint", width=256, seed=7)
    again = conceal(other, f"sealed-64:{bandwidth:g}", secret=KEY)  # as it was told, without a word
    assert again.recipe.space == made.recipe.space
    with pytest.warns(WideSealWarning, match="superpoint"):
        wide = conceal(other, "sealed-64:0.9", secret=KEY)
    with pytest.raises(InputError, match=f"sealed-64:{bandwidth:g}"):
        match(made, wide)


def test_an_estimate_follows_the_distances_of_the_features():
    points = named("x", count=1500).descriptors
    one = estimate_bandwidth(points)
    assert one == pytest.approx(0.294 * np.sqrt(2), rel=0.15)  # unrelated directions are at right angles
    assert estimate_bandwidth(2 * points) == pytest.approx(2 * one, rel=0.02)
    assert len(f"{one:g}") <= 4
    assert estimate_bandwidth(points[: FEWEST_ROWS - 1]) is None


def test_too_few_features_to_estimate_from_are_told():
    with pytest.warns(BandwidthWarning, match=f"fewer than {FEWEST_ROWS}"):
        assert sealed_as(named("superpoint", count=3)).startswith("sealed-64@")


@pytest.mark.parametrize(("name", "scale"), [("sift", 512), ("rootsift", 0.5), ("superpoint", 512), ("superpoint", 0)])
def test_descriptors_of_another_norm_than_the_bandwidth_is_for_are_refused(name, scale):
    with pytest.raises(InputError, match="norm"):
        conceal(named(name, scale=scale), "sealed-64", secret=KEY)


def test_what_an_encoder_makes_of_other_descriptors_is_estimated(tmp_path, make_encoder):
    save_encoder(tmp_path / "n.safetensors", make_encoder(dims=(128, 32), name="rootsift"))
    with pytest.warns(BandwidthWarning, match="rootsift"):
        sealed_as(named("rootsift"), f"ninja:{tmp_path / 'n.safetensors'}+sealed-64")


def test_evaluations_seal_with_the_bandwidth_of_the_kind():
    assert settled("sealed-64", "rootsift-of-mine").links[-1].bandwidth == BANDWIDTHS["rootsift"]
    assert settled("sealed-64", "never-measured") == settled("sealed-64")
