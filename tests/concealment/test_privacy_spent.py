# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import sfumato
from sfumato.concealment.subset import archive_privacy, count_releases


def keypoints(count, seed=0):
    return np.random.default_rng(seed).uniform(2, 300, (count, 4)).astype(np.float32)


def test_a_photo_released_with_more_and_fewer_features_is_one(tmp_path):
    places = keypoints(200)
    rows = np.random.default_rng(1).random((200, 128))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)

    def released(kept):
        features = sfumato.Features(places[kept], rows[kept], sfumato.Extractor("sift"))
        return sfumato.conceal(features, "subset-4:eps=15", sfumato.load_decoys())

    chosen = np.random.default_rng(2).permutation(200)[:150]
    images = {"a.jpg": released(slice(None)), "b.jpg": released(slice(None)), "c.jpg": released(chosen)}
    sfumato.save(tmp_path / "a.sfm", images)
    told = archive_privacy(tmp_path / "a.sfm")
    assert told.startswith("eps 15 per release of a descriptor;")
    assert "up to 45 per descriptor" in told
    assert "and 8250 per photo (550 features of 3 images that share keypoints)" in told


def test_photos_that_share_nothing_are_counted_apart():
    one, other = keypoints(30), keypoints(50, 1)
    found = count_releases([one, other, one[:10]], [2.0, 2.0, 2.0])
    assert (found.feature, found.photo, found.images, found.rows) == (4, 100, 1, 50)


def test_a_chain_of_images_is_one_photo_and_every_release_has_its_own_eps():
    rows = keypoints(30)
    found = count_releases([rows[:12], rows[20:], rows[8:24]], [1.0, 2.0, 4.0])
    assert (found.images, found.rows, found.photo) == (3, 38, 12 + 20 + 64)
    assert found.feature == 6
    assert str(found).startswith("eps 1 to 4 per release of a descriptor")


def test_a_row_that_stands_in_an_image_twice_is_released_twice():
    rows = np.repeat(keypoints(5), 2, axis=0)
    found = count_releases([rows], [3.0])
    assert (found.feature, found.photo, found.images) == (6, 30, 1)


def test_a_release_without_sizes_and_angles_is_known_by_its_places():
    rows = keypoints(20)
    bare = rows.copy()
    bare[:, 2:] = 1, 0
    found = count_releases([rows, bare], [1.0, 1.0])
    assert (found.feature, found.photo, found.images) == (2, 40, 2)
    turned = rows.copy()
    turned[:, 3] += 1  # another descriptor at the same place, and both have their angle
    assert count_releases([np.concatenate([rows, turned])], [1.0]).feature == 1


def test_nothing_released_and_nothing_guaranteed():
    none = count_releases([np.empty((0, 4), np.float32)], [5.0])
    assert (none.feature, none.photo) == (0, 0)
    assert str(count_releases([keypoints(3)], [np.inf])) == "no guarantee: the draws can be repeated"


@pytest.mark.parametrize("recipe", ["random-2", "sub-hybrid-2"])
def test_recipes_without_a_guarantee_spend_nothing_that_can_be_told(tmp_path, recipe):
    features = sfumato.Features(np.ones((3, 4)), np.eye(3, 128), sfumato.Extractor("sift"))
    sfumato.save(tmp_path / "a.sfm", {"a.jpg": sfumato.conceal(features, recipe, sfumato.load_decoys())})
    assert archive_privacy(tmp_path / "a.sfm") is None
