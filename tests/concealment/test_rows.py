# SPDX-License-Identifier: Apache-2.0
"""Rows of photos whose positions stay home: their order says nothing, and their tags cannot be made without the key."""

import secrets
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sfumato
from sfumato.concealment import conceal, order_rows
from sfumato.concealment.keys import EVALUATION_KEY, key_for_place, key_for_rows
from sfumato.concealment.rows import GRID, are_real, make_tags, photo_name, row_order, tag_rows, to_grid
from sfumato.errors import InputError
from sfumato.types.concealed import Bits, ConcealedFeatures, RowTags

KEY, OTHER = secrets.token_bytes(32), secrets.token_bytes(32)


def make_features(count: int = 2000, seed: int = 0) -> sfumato.Features:
    """Features in order of position, as devices bring them before anything is concealed."""
    rng = np.random.default_rng(seed)
    rows = np.abs(rng.standard_normal((count, 128)))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    places = rng.uniform(0, 1, (count, 2)) * (640, 480)
    places = places[np.lexsort((places[:, 0], places[:, 1]))]
    keypoints = np.column_stack([places, np.full(count, 2.0), np.ones(count)])
    return sfumato.Features(
        keypoints.astype(np.float32), rows.astype(np.float32), sfumato.Extractor("sift"), (640, 480)
    )


@pytest.fixture(scope="module")
def features() -> sfumato.Features:
    return make_features()


@pytest.fixture(scope="module")
def hidden(features: sfumato.Features) -> ConcealedFeatures:
    return conceal(features, secret=KEY)


# ---------------------------------------------------------------- the order of rows


def test_the_default_releases_no_position(features: sfumato.Features, hidden: ConcealedFeatures):
    assert str(hidden.recipe).startswith("sealed-512@")
    assert np.isnan(hidden.keypoints).all()
    assert not hidden.is_shown.any()
    assert hidden.tags is not None
    assert len(hidden.tags) == len(features)
    assert "0 positions" in repr(hidden)


def test_the_order_of_rows_does_not_follow_positions(features: sfumato.Features, hidden: ConcealedFeatures):
    rows = order_rows(features, secret=KEY)
    assert sorted(rows.tolist()) == list(range(len(features)))
    numbers = np.arange(len(rows))
    for what in (*features.keypoints[rows][:, :2].T, rows):  # x, y, and the order in which the features came
        assert abs(np.corrcoef(numbers, what)[0, 1]) < 0.1
    near = np.abs(np.diff(rows)) <= 1  # neighbours that stay together
    assert near.mean() < 0.01


def test_rows_of_the_order_are_those_of_the_bits(features: sfumato.Features, hidden: ConcealedFeatures):
    rows = order_rows(features, secret=KEY)
    bits = conceal(features.descriptors, secret=KEY)
    assert isinstance(hidden.code, Bits)
    assert isinstance(bits, Bits)
    assert hidden.code.packed.tobytes() == bits.packed[rows].tobytes()


def test_the_same_key_gives_the_same_rows_and_another_key_others(features: sfumato.Features, hidden: ConcealedFeatures):
    again = conceal(features, secret=KEY)
    assert again.tags is not None
    assert hidden.tags is not None
    assert again.code.packed.tobytes() == hidden.code.packed.tobytes()
    assert (again.tags.photo, again.tags.rows.tobytes()) == (hidden.tags.photo, hidden.tags.rows.tobytes())
    rows = order_rows(features, secret=KEY)
    np.testing.assert_array_equal(rows, order_rows(features, secret=KEY))
    for other in ({"secret": OTHER}, {"secret": KEY, "place": "hall"}, {"evaluation_seed": 1}):
        assert (rows == order_rows(features, **other)).mean() < 0.01
        assert photo_name(KEY, features) != conceal_quietly(features, **other).tags.photo


@pytest.mark.filterwarnings("ignore::sfumato.errors.EvaluationOnlyWarning")
def conceal_quietly(features: sfumato.Features, **given: Any) -> Any:
    import warnings

    with warnings.catch_warnings(action="ignore"):
        return conceal(features, **given)


def test_orders_of_two_photos_have_nothing_in_common(features: sfumato.Features):
    one, other = (photo_name(KEY, photo) for photo in (features, make_features(seed=1)))
    assert one != other
    assert (row_order(KEY, one, 2000) == row_order(KEY, other, 2000)).mean() < 0.01


def test_a_photo_is_another_where_a_position_or_a_descriptor_is(features: sfumato.Features):
    moved, changed = features.keypoints.copy(), features.descriptors.copy()
    moved[0, 0] += 0.25
    changed[0, 0] += 0.25
    names = {
        photo_name(KEY, photo)
        for photo in (features, replace(features, keypoints=moved), replace(features, descriptors=changed))
    }
    assert len(names) == 3


def test_an_order_needs_a_key(features: sfumato.Features):
    with pytest.raises(InputError, match="secret"):
        order_rows(features)


def test_no_features_have_an_order_and_tags():
    nothing = make_features(0)
    assert order_rows(nothing, secret=KEY).shape == (0,)
    hidden = conceal(nothing, secret=KEY)
    assert len(hidden) == 0
    assert are_real(KEY, "0" * 32, np.zeros(0, int), Bits(np.zeros((0, 64), np.uint8)), np.zeros((0, 8), np.uint8))


def test_positions_are_released_on_an_explicit_word_in_the_order_of_the_features(features: sfumato.Features):
    shown = conceal(features, secret=KEY, positions=True)
    np.testing.assert_array_equal(shown.keypoints[:, :2], features.keypoints[:, :2])
    assert (shown.keypoints[:, 2:] == (1, 0)).all()
    assert shown.tags is None
    framed = conceal(features, secret=KEY, positions=True, frames=True)
    np.testing.assert_array_equal(framed.keypoints, features.keypoints)


def test_what_contradicts_itself_is_refused(features: sfumato.Features):
    with pytest.raises(InputError, match="positions"):
        conceal(features, "random-2", positions=False)
    with pytest.raises(InputError, match="frames"):
        conceal(features, secret=KEY, frames=True)
    with pytest.raises(InputError, match="frames"):
        conceal(features, secret=KEY, frames=True, positions=False)


# ---------------------------------------------------------------- tags


@pytest.fixture
def tagged(hidden: ConcealedFeatures) -> tuple[str, np.ndarray, Bits, np.ndarray]:
    """Photo, numbers, bits and tags of thirty rows."""
    assert hidden.tags is not None
    assert isinstance(hidden.code, Bits)
    numbers = np.arange(100, 130)
    return hidden.tags.photo, numbers, hidden.code[numbers], hidden.tags.rows[numbers].copy()


def test_the_tags_of_a_photo_are_real_for_who_has_the_key(hidden: ConcealedFeatures, tagged: Any):
    photo, numbers, bits, tags = tagged
    assert are_real(KEY, photo, numbers, bits, tags)
    assert hidden.tags is not None
    assert isinstance(hidden.code, Bits)
    whole = make_tags(KEY, photo, hidden.code)
    assert whole.rows.tobytes() == hidden.tags.rows.tobytes()
    assert len(np.unique(whole.rows, axis=0)) == len(whole)


def test_what_is_forged_is_not_real(tagged: Any):
    photo, numbers, bits, tags = tagged
    flipped = bits.packed.copy()
    flipped[7, 13] ^= 1
    swapped = bits.packed.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    forged = tags.copy()
    forged[29, 7] ^= 1
    for other in (
        (KEY, photo, numbers, Bits(flipped), tags),
        (KEY, photo, numbers, Bits(swapped), tags),
        (KEY, photo, numbers + 1, bits, tags),
        (KEY, photo, numbers[::-1], bits, tags),
        (KEY, photo, numbers, bits, forged),
        (KEY, photo, numbers, bits, np.zeros_like(tags)),
        (KEY, photo, numbers, bits, np.random.default_rng(0).integers(0, 256, tags.shape, np.uint8)),
        (KEY, photo[::-1], numbers, bits, tags),
        (OTHER, photo, numbers, bits, tags),
        (key_for_place(KEY, "hall"), photo, numbers, bits, tags),
        (EVALUATION_KEY, photo, numbers, bits, tags),
        (KEY, photo, numbers, bits, tags[:-1]),
        (KEY, photo, numbers[:-1], bits[:-1], tags),
    ):
        assert not are_real(*other)


def test_rows_of_different_widths_are_not_taken_for_one_another():
    """Number and bits stand one behind the other in what is digested: neither may run into the other."""
    narrow, wide = Bits(np.full((1, 8), 7, np.uint8)), Bits(np.full((1, 16), 7, np.uint8))
    assert (
        tag_rows(KEY, "0" * 32, np.array([1]), narrow).tobytes()
        != tag_rows(KEY, "0" * 32, np.array([1]), wide).tobytes()
    )


def test_the_key_of_rows_is_another_than_the_key(features: sfumato.Features):
    """Who recovers a seal, and so its directions, makes no tag: that key is derived apart."""
    keys = {KEY, key_for_rows(KEY), key_for_rows(key_for_place(KEY, "hall")), key_for_rows(OTHER)}
    assert len(keys) == 4
    assert {len(key) for key in keys} == {32}


def test_tags_show_counts_and_no_values(hidden: ConcealedFeatures):
    assert hidden.tags is not None
    assert repr(hidden.tags) == "RowTags(2000 rows)"
    assert hidden.tags.photo not in repr(hidden)


@pytest.mark.parametrize("photo", ["", "0" * 31, "0" * 33, "x" * 32, "A" * 32, "0" * 32 + "\n", 7, None])
def test_a_name_of_a_photo_is_32_digits(photo: Any):
    with pytest.raises(InputError, match="32"):
        RowTags(photo, np.zeros((2, 8), np.uint8))


def test_tags_fit_their_rows(hidden: ConcealedFeatures, features: sfumato.Features):
    assert hidden.tags is not None
    short = RowTags(hidden.tags.photo, hidden.tags.rows[:-1])
    with pytest.raises(InputError, match="tags"):
        replace(hidden, tags=short)
    lifted = conceal(features, "random-2")
    with pytest.raises(InputError, match="tags"):
        replace(lifted, tags=hidden.tags)
    assert hidden.take(np.arange(5)).tags is None, "numbers of rows are others then"


# ---------------------------------------------------------------- positions as they are released


def test_released_positions_lie_on_a_grid(features: sfumato.Features):
    places = to_grid(features.keypoints)
    assert places.dtype == np.float32
    assert (places * GRID == np.rint(places * GRID)).all()
    assert np.abs(places - features.keypoints[:, :2]).max() <= 0.5 / GRID


def test_copies_that_differ_by_less_than_the_grid_release_the_same(features: sfumato.Features):
    places = np.column_stack([to_grid(features.keypoints), features.keypoints[:, 2:]]).astype(np.float32)
    shaken = places.copy()
    shaken[:, :2] += np.random.default_rng(0).uniform(-0.02, 0.02, (len(places), 2)).astype(np.float32)
    np.testing.assert_array_equal(to_grid(shaken), to_grid(places))


def test_positions_of_rows_are_shown_one_by_one(hidden: ConcealedFeatures):
    shown = hidden.with_positions(np.array([3, 7]), np.array([[1, 2], [3, 4]], np.float32))
    assert np.flatnonzero(shown.is_shown).tolist() == [3, 7]
    np.testing.assert_array_equal(shown.keypoints[[3, 7]], [[1, 2, 1, 0], [3, 4, 1, 0]])
    assert "2 positions" in repr(shown)
    assert shown.tags is hidden.tags
    assert not shown.has_frames
    assert not shown.without_positions().is_shown.any()


@pytest.mark.parametrize("row", [[np.nan, 1, 1, 0], [1, 1, np.nan, np.nan], [np.inf, 1, 1, 0], [1, np.nan, 1, 0]])
def test_half_a_position_is_none(hidden: ConcealedFeatures, row: list[float]):
    keypoints = hidden.keypoints.copy()
    keypoints[5] = row
    with pytest.raises(InputError, match="keypoints"):
        replace(hidden, keypoints=keypoints)
