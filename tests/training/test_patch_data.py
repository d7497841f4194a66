# SPDX-License-Identifier: Apache-2.0
import cv2
import numpy as np
import pytest

from sfumato.errors import ImageError, InputError
from sfumato.features.local import LocalParams, extract
from sfumato.images.samples import sample_image
from sfumato.training.photos import cut_patches, gather_pairs, normalise


def slope(angle, size=61):
    """Brightness that climbs along a direction, by a hundredth a pixel."""
    rows, columns = np.mgrid[:size, :size].astype(np.float32)
    return (0.01 * (np.cos(angle) * columns + np.sin(angle) * rows)).astype(np.float32)


@pytest.mark.parametrize("sigma", [1.0, 2.0, 4.5])
@pytest.mark.parametrize("degrees", [0, 30, 250])
def test_patches_lie_in_the_frame_of_their_keypoint(sigma, degrees):
    picture = slope(np.deg2rad(degrees))
    patch = cut_patches(picture, np.array([[30, 30, sigma, degrees]], np.float32))[0]
    inner = patch[6:18, 6:18]
    np.testing.assert_allclose(np.diff(inner, axis=1), 0.01 * sigma / 2, atol=1e-3)  # climbs to the right
    np.testing.assert_allclose(np.diff(inner, axis=0), 0, atol=1e-3)
    assert inner.mean() == pytest.approx(picture[30, 30], abs=2e-3)


def test_outside_of_the_picture_nothing_is_known():
    patch = cut_patches(slope(0), np.array([[0, 30, 1, 0]], np.float32))[0]
    assert np.isnan(patch[:, :12]).all()
    assert np.isfinite(patch[:, 12:]).all()
    flat, contrast = normalise(patch[None])
    known = flat[0, np.isfinite(flat[0])].astype(float)
    assert (known.mean(), known.std()) == pytest.approx((0, 1), abs=0.01)
    assert np.exp(contrast[0]) == pytest.approx(np.nanstd(patch), rel=1e-3)


def test_a_patch_without_contrast_is_not_divided_by_it():
    flat, contrast = normalise(np.full((1, 24, 24), 0.5, np.float32))
    assert (flat == 0).all()
    assert np.isfinite(contrast).all()


@pytest.fixture
def files(tmp_path):
    for name in ("coffee", "chelsea"):
        assert cv2.imwrite(str(tmp_path / f"{name}.png"), sample_image(name).pixels[:200, :200, ::-1])
    assert cv2.imwrite(str(tmp_path / "even.png"), np.full((60, 60), 99, np.uint8))
    return [tmp_path / "coffee.png", tmp_path / "even.png", tmp_path / "chelsea.png"]


def test_pairs_of_photos(files):
    pairs = gather_pairs(files, LocalParams(max_features=50))
    features = [extract(path, max_features=50) for path in files]
    assert len(pairs) == sum(map(len, features))
    assert pairs.patches.shape == (len(pairs), 576)
    rows = pairs.of_photo(2, 10)
    np.testing.assert_array_equal(pairs.descriptors[rows], features[2].descriptors[:10])
    np.testing.assert_array_equal(pairs.keypoints[rows], features[2].keypoints[:10])
    assert pairs.of_photo(1, 10) == slice(len(features[0]), len(features[0]))  # the even one has none
    assert gather_pairs(files, LocalParams(max_features=50)).digest == pairs.digest
    assert gather_pairs(files[:1], LocalParams(max_features=50)).digest != pairs.digest
    assert "sift" in repr(pairs)


def test_photos_without_features(files, tmp_path):
    with pytest.raises(InputError, match="no features"):
        gather_pairs([files[1]], LocalParams())
    with pytest.raises(ImageError):
        gather_pairs([tmp_path / "gone.png"], LocalParams())
