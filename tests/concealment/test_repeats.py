# SPDX-License-Identifier: Apache-2.0
"""Repeats: features that look alike are found, those with many left out, and the others echoed among chaff."""

from dataclasses import replace

import cv2
import numpy as np
import pytest

import sfumato
from sfumato.concealment import repeats
from sfumato.concealment.lifting import with_chaff
from sfumato.concealment.randomness import NoiseStream
from sfumato.concealment.repeats import MOST_REPEATS, drop_repeats, echo_groups, find_repeats, group_rows
from sfumato.types.clear import Features
from sfumato.types.extractor import Extractor

RECIPE, KEY = "sealed-512+chaff-2", np.random.default_rng(3).bytes(32)


def photo_of(descriptors, rng, extractor="sift"):
    """Features with these descriptors, of unit norm, somewhere in a picture."""
    keypoints = np.column_stack([rng.uniform(10, 630, (len(descriptors), 2)), np.ones((len(descriptors), 2))])
    unit = descriptors / np.linalg.norm(descriptors, axis=1, keepdims=True)
    return Features(keypoints.astype(np.float32), unit.astype(np.float32), Extractor(extractor), (640, 640))


def unlike(count, rng):
    """Descriptors of which no two look alike."""
    return np.eye(128)[rng.permutation(128)[:count]] + 0.02 * rng.random((count, 128))


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture
def some(rng):
    """Sixty features: a pair, a chain of three, twenty of one kind, and 35 others."""
    rows = unlike(60, rng)
    rows[1] = rows[0] + 0.01
    rows[3], rows[4] = rows[2] + 0.02 * rng.random(128), rows[2] - 0.01
    rows[5:25] = rows[5] + 0.01 * rng.random((20, 128))
    return photo_of(rows, rng)


def test_pairs_that_look_alike_are_found_by_the_distance_of_the_kind(some):
    counts, pairs = find_repeats(some)
    difference = np.linalg.norm(some.descriptors[:, None] - some.descriptors, axis=2)
    near = (difference < 1.7 * 0.235) & ~np.eye(len(some), dtype=bool)
    assert np.array_equal(counts, near.sum(axis=1))
    assert (counts[5:25] == 19).all()
    assert {tuple(pair) for pair in pairs} == {(i, j) for i, j in zip(*np.nonzero(near), strict=True) if i < 5}
    narrow = find_repeats(replace(some, extractor=Extractor("rootsift"), descriptors=1.15 * some.descriptors))
    assert len(narrow[1]) <= len(pairs)


def test_features_at_one_spot_are_no_repeats(some):
    keypoints = some.keypoints.copy()
    keypoints[1, :2] = keypoints[0, :2] + 1
    assert [0, 1] not in find_repeats(replace(some, keypoints=keypoints))[1].tolist()


def test_blocks_make_no_difference(some, monkeypatch):
    whole = find_repeats(some)
    monkeypatch.setattr(repeats, "ROWS_AT_ONCE", 7)
    monkeypatch.setattr(repeats, "PAIRS_AT_ONCE", 3)
    counts, pairs = find_repeats(some)
    assert np.array_equal(counts, whole[0])
    assert sorted(map(tuple, pairs)) == sorted(map(tuple, whole[1]))


def test_features_with_many_repeats_are_left_out(some):
    assert MOST_REPEATS < 19
    left, pairs = drop_repeats(some)
    assert np.array_equal(left.descriptors, np.delete(some.descriptors, range(5, 25), axis=0))
    assert {tuple(pair) for pair in pairs} >= {(0, 1), (1, 0), (2, 3)}
    assert pairs.max() <= 4


def test_groups_hold_all_rows_at_their_spots(some):
    keypoints = some.keypoints.copy()
    keypoints[40, :2] = keypoints[1, :2]
    groups = group_rows(keypoints, np.array([[0, 1], [1, 0], [2, 3], [3, 4]]))
    assert sorted(map(sorted, groups)) == [[0, 1, 40], [2, 3, 4]]
    assert group_rows(keypoints, np.zeros((0, 2), np.intp)) == []


def test_an_echo_has_the_distances_and_the_layout_of_its_group(some, rng):
    left, pairs = drop_repeats(some)
    noise = photo_of(-unlike(50, rng), rng)
    echoes = echo_groups(left, pairs, noise, 3, NoiseStream(b"seed"))
    assert len(echoes.keypoints) == 3 * 5

    def distances(rows):
        return np.sort(np.linalg.norm(rows[:, None] - rows, axis=2).ravel())

    for number in range(3):
        chain = slice(5 * number, 5 * number + 3)  # the larger group first
        assert np.allclose(distances(echoes.descriptors[chain]), distances(left.descriptors[2:5]), atol=1e-5)
        places = echoes.keypoints[chain, :2]
        assert np.allclose(distances(places), distances(left.keypoints[2:5, :2]), atol=1e-2)
        assert not np.allclose(places.mean(axis=0), left.keypoints[2:5, :2].mean(axis=0), atol=1)
    low, high = noise.keypoints[:, :2].min(axis=0), noise.keypoints[:, :2].max(axis=0)
    assert ((echoes.keypoints[:, :2] >= low) & (echoes.keypoints[:, :2] <= high)).all()
    apart = np.linalg.norm(echoes.descriptors[:, None] - left.descriptors, axis=2)
    assert apart.min() > 0.5


def page_of_text():
    """A page with the same words again and again, whose letters have equal codes."""
    page = np.full((480, 640), 255, np.uint8)
    for line in range(12):
        cv2.putText(page, "the sea and the land and the sea", (20, 40 + 36 * line), 0, 1.0, 0, 2, cv2.LINE_AA)
    return page


def test_codes_that_are_alike_do_not_tell_real_features():
    features = sfumato.extract(page_of_text(), max_features=2000)
    concealed, (_, real) = sfumato.conceal(features, RECIPE, secret=KEY), with_chaff(features, RECIPE, secret=KEY)
    assert 0 < real.sum() < 0.5 * len(features)
    bits = 2.0 * np.unpackbits(concealed.code.packed, axis=1) - 1
    alike = bits @ bits.T / bits.shape[1]
    places = concealed.keypoints[:, :2]
    alike[np.linalg.norm(places[:, None] - places, axis=2) < 3] = -1
    doubled = alike.max(axis=1) > 0.6
    assert doubled[~real].mean() > 0.5 * doubled[real].mean()  # else whatever repeats is real


def test_a_picture_of_nothing_but_repeats_has_chaff_alone():
    board = np.kron(np.indices((12, 16)).sum(axis=0) % 2, np.ones((30, 30))).astype(np.uint8) * 255
    features = sfumato.extract(board, max_features=2000)
    concealed, (_, real) = sfumato.conceal(features, RECIPE, secret=KEY), with_chaff(features, RECIPE, secret=KEY)
    assert len(features) > 50
    assert real.mean() < 0.05
    assert len(concealed) == 3 * (360 * 480 // 150)
