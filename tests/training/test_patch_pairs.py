# SPDX-License-Identifier: Apache-2.0
import cv2
import numpy as np
import pytest

from sfumato.images.samples import sample_image
from sfumato.training.pairs import pair_rows, pairs_from_patches, patches_of_photos
from sfumato.training.patch_sets import PatchSet
from sfumato.training.views import ViewParams


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    cv2.imwrite(str(folder / "a.png"), np.full((60, 60), 128, np.uint8))
    for name in ("coffee", "chelsea"):
        cv2.imwrite(str(folder / f"{name}.png"), cv2.resize(sample_image(name).pixels[:, :, ::-1], (300, 220)))
    return patches_of_photos(sorted(folder.iterdir()), 3, ViewParams(views=2))


def test_patches_come_from_every_photo_at_every_level(made):
    assert set(made) == {"easy", "hard", "tough"}
    easy = made["easy"]
    assert len(np.unique(easy.groups)) == 2  # the first photo shows nothing
    assert np.array_equal(easy.points, made["tough"].points)
    assert len(easy) == 3 * len(np.unique(easy.points))
    assert len(easy) > 60


def test_pairs_are_the_reference_with_each_view(made):
    pairs = pairs_from_patches(made["easy"])
    assert len(pairs) == 2 * len(np.unique(made["easy"].points))
    own = np.linalg.norm(pairs.first - pairs.second, axis=1)
    other = np.linalg.norm(pairs.first - np.roll(pairs.second, 7, axis=0), axis=1)
    assert np.median(own) < 0.5 < np.median(other)
    hard = pairs_from_patches(made["tough"])
    assert np.median(np.linalg.norm(hard.first - hard.second, axis=1)) > np.median(own)


def test_a_patch_without_contrast_is_in_no_pair():
    patches = np.random.default_rng(0).integers(0, 256, (4, 32, 32), np.uint8)
    patches[1] = 9
    pairs = pairs_from_patches(PatchSet(patches, [0, 0, 0, 1], [0] * 4, [0, 1, 2, 0]))
    assert pairs.points.tolist() == [0]
    assert repr(pairs).startswith("DescriptorPairs(1 of 128 numbers, sift, 1 points")


def test_points_seen_once_or_not_at_all_give_no_pair():
    assert [len(rows) for rows in pair_rows(np.array([1, 2, 3]), np.zeros(3, np.int32))] == [0, 0]
    empty = PatchSet(np.zeros((0, 65, 65), np.uint8), [], [], [])
    assert len(pairs_from_patches(empty)) == 0
