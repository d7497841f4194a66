# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.images.homography import HomographyParams
from sfumato.images.samples import sample_image
from sfumato.training.patch_sets import LEVELS
from sfumato.training.views import JITTER, ViewParams, cut_affine, draw_jitter, keypoint_frames, make_patch_sets
from sfumato.training.views import without_overlap as apart
from sfumato.types.clear import Image

STILL = HomographyParams(
    rotation=0, scale=1, perspective=0, translation=0, brightness=0, contrast=0, blur=0, noise=0
)  # fmt: skip


@pytest.fixture(scope="module")
def photo():
    return Image(np.ascontiguousarray(sample_image("coffee").pixels[60:300, 100:420]), "coffee")


@pytest.fixture(scope="module")
def keypoints():
    rng = np.random.default_rng(0)
    return np.column_stack(
        [rng.uniform(40, 280, 30), rng.uniform(40, 200, 30), rng.uniform(1.5, 4, 30), rng.uniform(0, 360, 30)]
    )


def test_the_levels_are_as_far_off_as_they_say():
    """The median intersection over union of the unit disc with its jittered self, counted on a grid."""
    grid = np.stack(np.meshgrid(*[np.linspace(-2, 2, 121)] * 2), axis=-1).reshape(-1, 2)
    disc = (grid**2).sum(axis=1) <= 1
    for level, wanted in zip(LEVELS, (0.85, 0.73, 0.60), strict=True):
        shifts, bends = draw_jitter(300, JITTER[level], np.random.default_rng(1))
        overlaps = []
        for shift, bend in zip(shifts, bends, strict=True):
            other = (((grid - shift) @ np.linalg.inv(bend).T) ** 2).sum(axis=1) <= 1
            overlaps.append((disc & other).sum() / (disc | other).sum())
        assert abs(np.median(overlaps) - wanted) < 0.03, level


def test_patches_are_turned_and_scaled_with_their_keypoint():
    picture = np.zeros((101, 101), np.uint8)
    picture[50:53, 60:90] = 255  # a bar to the right of the centre, that begins 10 away
    places, ends = np.array([[50.0, 51.0]] * 4), np.array([0.0, 90.0, 180.0, 270.0])
    cut = cut_affine(picture, places, keypoint_frames(np.column_stack([places, [5.0] * 4, ends]), 6.0), 31)
    lit = [np.unravel_index(patch.astype(float).argmax(), patch.shape) for patch in cut]
    assert [int(np.sign(c - 15)) for _, c in lit] == [1, 0, -1, 0]
    assert [int(np.sign(r - 15)) for r, _ in lit] == [0, -1, 0, 1]


def test_a_large_patch_does_not_alias():
    stripes = np.zeros((256, 256), np.uint8)
    stripes[:, ::2] = 255
    frame = keypoint_frames(np.array([[128.0, 128.0, 16.0, 0.0]]), 6.0)
    assert cut_affine(stripes, np.array([[128.0, 128.0]]), frame, 32).std() < 6
    assert cut_affine(stripes, np.zeros((0, 2)), np.zeros((0, 2, 2)), 32).shape == (0, 32, 32)


def test_without_any_change_only_the_jitter_differs(photo, keypoints, monkeypatch):
    for level in LEVELS:
        monkeypatch.setitem(JITTER, level, type(JITTER[level])(0, 1, 0))
    made = make_patch_sets(photo, keypoints, np.random.default_rng(0), ViewParams(views=1, change=STILL))
    for level, one in made.items():
        assert one.level == level
        half = len(one) // 2
        assert half > 5
        assert np.abs(one.patches[:half].astype(int) - one.patches[half:]).max() <= 2


def test_the_true_patch_is_nearer_than_another_and_harder_levels_are_farther(photo, keypoints):
    made = make_patch_sets(photo, keypoints, np.random.default_rng(0), ViewParams(views=2))
    alike = {}
    for level, one in made.items():
        flat = one.patches.reshape(len(one), -1).astype(float)
        flat -= flat.mean(axis=1, keepdims=True)
        flat /= np.linalg.norm(flat, axis=1, keepdims=True)
        count = int((one.views == 0).sum())
        cosines = flat[:count] @ flat[count:].T  # against both views
        own = np.concatenate([np.diag(cosines[:, :count]), np.diag(cosines[:, count:])])
        assert one.points[:count].tolist() == one.points[count : 2 * count].tolist()
        alike[level] = np.median(own)
        assert np.median(own) > np.median(cosines) + 0.2
    assert alike["easy"] > alike["hard"] > alike["tough"]


def test_the_same_seed_gives_the_same_patches(photo, keypoints):
    one, two = (make_patch_sets(photo, keypoints, np.random.default_rng(7), ViewParams(views=1)) for _ in range(2))
    assert all(np.array_equal(one[level].patches, two[level].patches) for level in LEVELS)


def test_regions_that_overlap_much_are_left_out():
    keypoints = np.array([[50, 50, 2, 0], [50, 50, 2, 90], [51, 50, 2.2, 0], [50, 50, 6, 0], [90, 50, 2, 0]], float)
    assert apart(keypoints, 6, 0.5).tolist() == [0, 3, 4]
    assert apart(keypoints, 6, 1.0).tolist() == [0, 1, 2, 3, 4]
    assert apart(np.zeros((0, 4)), 6, 0.5).shape == (0,)


def test_no_keypoints_give_empty_sets(photo):
    made = make_patch_sets(photo, np.zeros((0, 4)), np.random.default_rng(0), ViewParams(views=2))
    assert [len(one) for one in made.values()] == [0, 0, 0]
    outside = make_patch_sets(photo, [[1, 1, 5, 0]], np.random.default_rng(0), ViewParams(views=2))
    assert [len(one) for one in outside.values()] == [0, 0, 0]


def test_settings_are_checked():
    with pytest.raises(InputError, match="views"):
        ViewParams(views=0)
    with pytest.raises(InputError, match="'reach'"):
        ViewParams(raech=3)
