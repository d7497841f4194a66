# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.features.cut_patches import describe_cut_patches, is_describable, shrink
from sfumato.features.local import LocalParams, extract
from sfumato.images.read import to_grey
from sfumato.images.samples import sample_image
from sfumato.training.views import cut_affine, keypoint_frames


@pytest.fixture(scope="module")
def cut():
    """Features of a photo, and the patches of half side 6 sigma around those that lie inside."""
    image = sample_image("coffee")
    features = extract(image, max_features=300)
    x, y, sigma = features.keypoints[:, :3].T
    reach = 9 * sigma
    inside = (x > reach) & (y > reach) & (x < image.size[0] - reach) & (y < image.size[1] - reach)
    keypoints = features.keypoints[inside].astype(np.float64)
    frames = keypoint_frames(keypoints, 6.0)
    return image, features.descriptors[inside], cut_affine(to_grey(image), keypoints[:, :2], frames, 65), keypoints


def test_sift_of_a_patch_is_nearly_that_of_its_keypoint(cut):
    _, own, patches, _ = cut
    found = describe_cut_patches(patches)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    cosines = np.einsum("ni,ni->n", found, own)
    assert len(cosines) > 100
    assert np.median(cosines) > 0.97
    assert np.quantile(cosines, 0.05) > 0.9


def test_a_wrong_size_would_be_seen(cut):
    image, own, _, keypoints = cut
    frames = keypoint_frames(keypoints, 9.0)  # the cells of SIFT then are half as large again
    found = describe_cut_patches(cut_affine(to_grey(image), keypoints[:, :2], frames, 65))
    assert np.median(np.einsum("ni,ni->n", found, own)) < 0.9


def test_patches_do_not_see_their_neighbours_on_the_sheet(cut):
    patches = cut[2][:40]
    alone = np.concatenate([describe_cut_patches(patch[None]) for patch in patches[:3]])
    among = describe_cut_patches(np.concatenate([patches, 255 - patches]))[:3]
    np.testing.assert_allclose(alone, among, atol=2e-2)


def test_more_patches_than_a_sheet_keep_their_order(cut):
    patches = cut[2][:50]
    many = np.tile(patches, (25, 1, 1))
    found = describe_cut_patches(many)
    np.testing.assert_allclose(found[1200:], found[:50], atol=2e-2)


def test_rootsift_is_the_root_of_sift(cut):
    sift, root = (describe_cut_patches(cut[2][:20], LocalParams(descriptor=name)) for name in ("sift", "rootsift"))
    np.testing.assert_allclose(root, np.sqrt(sift / sift.sum(axis=1, keepdims=True)), atol=1e-5)


def test_a_flat_patch_describes_nothing():
    flat = np.full((2, 40, 40), 77, np.uint8)
    flat[1, 10:30, 20:] = 200
    found = describe_cut_patches(flat)
    assert not found[0].any()
    assert np.linalg.norm(found[1]) == pytest.approx(1, abs=1e-6)


def test_networks_see_the_patch_at_32_pixels(cut, shared_weights):
    from sfumato.features.networks import load_network

    params = LocalParams(descriptor="hardtfeat", weights=shared_weights)
    patches = cut[2]
    found = describe_cut_patches(patches, params)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    import torch

    tensor = torch.from_numpy(shrink(patches[:5]).astype(np.float32) / 255)[:, None]
    wanted = load_network("hardtfeat", shared_weights).describe(tensor)
    np.testing.assert_allclose(found[:5], wanted / np.linalg.norm(wanted, axis=1, keepdims=True), atol=1e-5)


@pytest.fixture
def shared_weights(tmp_path):
    """The weights of a hardtfeat network that was never trained."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("kornia.feature")
    save_file = pytest.importorskip("safetensors.torch").save_file
    shapes = {
        "features.0.weight": (32, 1, 7, 7), "features.0.bias": (32,), "features.3.weight": (64, 32, 6, 6),
        "features.3.bias": (64,), "classifier.1.weight": (128, 64, 8, 8), "classifier.1.bias": (128,),
    }  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    path = tmp_path / "untrained.safetensors"
    save_file({name: 0.05 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}, path)
    return path


def test_nothing_is_a_case_and_no_patch_is_refused():
    assert describe_cut_patches(np.zeros((0, 65, 65), np.uint8)).shape == (0, 128)
    for wrong in (np.zeros((1, 65, 65)), np.zeros((65, 65), np.uint8), np.zeros((1, 65, 64), np.uint8)):
        with pytest.raises(InputError, match="patches"):
            describe_cut_patches(wrong)
    assert is_describable("hardnet")
    assert not is_describable("superpoint")
