# SPDX-License-Identifier: Apache-2.0
import threading

import numpy as np
import pytest

from sfumato.features import networks as module
from sfumato.features.networks import describe_patches, patch_batches

torch = pytest.importorskip("torch")
pytest.importorskip("kornia.feature")


class Pixels:
    """Stands in for a network: describes a patch by its first 128 pixels, and watches how it is used."""

    def __init__(self):
        self.sizes, self.threads, self.together = [], 0, 0

    def describe(self, patches):
        self.threads += 1
        self.together = max(self.together, self.threads)
        self.sizes.append(len(patches))
        rows = patches.flatten(1)[:, :128].double().numpy()
        self.threads -= 1
        return rows


def picture(height=120, width=160):
    """A smooth picture whose grey level at (x, y) is known: 0.6 x + 1.2 y."""
    across, down = np.meshgrid(np.arange(width), np.arange(height))
    return np.rint(across * 0.6 + down * 1.2).astype(np.uint8)


def cut(grey, *keypoints, scale=6.0):
    found = list(patch_batches(grey, np.array(keypoints, np.float32), scale))
    return np.concatenate([batch.numpy() for batch in found])[:, 0] * 255


def test_a_patch_is_centred_at_its_keypoint_and_as_wide_as_asked():
    """Half side 6 sigma; 32 cells tile the square, the first centre half a cell inside; pixel centres at integers."""
    (patch,) = cut(picture(), (80, 60, 2.0, 0))
    offset = ((np.arange(32) + 0.5) / 16 - 1) * 12
    expected = 0.6 * (80 + offset[None, :]) + 1.2 * (60 + offset[:, None])
    assert np.abs(patch - expected).max() < 1
    assert abs(patch.mean() - (0.6 * 80 + 1.2 * 60)) < 0.05
    (wider,) = cut(picture(), (80, 60, 2.0, 0), scale=12.0)
    assert np.ptp(wider) / np.ptp(patch) == pytest.approx(2, abs=0.1)


def test_a_patch_turns_with_its_angle_as_opencv_counts():
    """OpenCV's angle turns clockwise on screen: at 90 degrees the patch's columns run down the picture."""
    across, down = np.meshgrid(np.arange(160), np.arange(120))
    ramps = {0: across, 90: down, 180: 159 - across, 270: 119 - down}
    for angle, ramp in ramps.items():
        (patch,) = cut(ramp.astype(np.uint8), (80, 60, 2.0, angle))
        slope = np.polyfit(np.arange(32), patch.mean(axis=0), 1)[0]
        assert slope == pytest.approx(24 / 32, abs=0.02), angle
        assert np.abs(np.diff(patch.mean(axis=1))).max() < 0.1


def test_patches_of_rotated_pictures_are_the_same():
    rng = np.random.default_rng(0)
    import cv2

    grey = cv2.GaussianBlur(rng.integers(0, 255, (121, 121), dtype=np.uint8), (0, 0), 2)
    (before,) = cut(grey, (70, 40, 2.0, 30))
    turned = np.rot90(grey, -1)  # clockwise: (x, y) goes to (120 - y, x)
    (after,) = cut(np.ascontiguousarray(turned), (120 - 40, 70, 2.0, 120))
    assert np.abs(before - after).max() < 1.5


def test_large_patches_are_smoothed():
    """From a pyramid: single pixels of noise do not reach a patch ten times as large as its samples."""
    noise = np.random.default_rng(0).integers(0, 255, (800, 800), dtype=np.uint8)
    (large,) = cut(noise, (400, 400, 50.0, 0))
    assert large.std() < 0.5 * noise.std()


def test_batches_are_small_and_in_order(monkeypatch):
    monkeypatch.setattr(module, "PATCHES_AT_ONCE", 4)
    rng = np.random.default_rng(0)
    keypoints = np.column_stack([rng.uniform(20, 100, (11, 2)), rng.uniform(1, 3, 11), rng.uniform(0, 360, 11)])
    keypoints = keypoints.astype(np.float32)
    network = Pixels()
    rows = describe_patches(picture(), keypoints, network, 6.0)
    assert network.sizes == [4, 4, 3]
    assert rows.shape == (11, 128)
    one_by_one = np.concatenate([describe_patches(picture(), keypoints[k : k + 1], network, 6.0) for k in range(11)])
    assert np.abs(rows - one_by_one).max() < 1e-6


def test_no_keypoints_no_patches():
    network = Pixels()
    assert describe_patches(picture(), np.empty((0, 4), np.float32), network, 6.0).shape == (0, 128)
    assert network.sizes == []


@pytest.mark.parametrize("shape", [(1, 1), (3, 200), (40, 5), (33, 33)])
def test_any_picture_gives_patches(shape):
    grey = np.full(shape, 90, np.uint8)
    found = cut(grey, (0, 0, 1.0, 10), (shape[1] - 1, shape[0] - 1, 30.0, 200))
    assert np.abs(found - 90).max() < 0.01


def test_threads_take_turns():
    network = Pixels()
    keypoints = np.tile(np.float32([80, 60, 2, 0]), (50, 1))
    threads = [threading.Thread(target=describe_patches, args=(picture(), keypoints, network, 6.0)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(network.sizes) == 6
    assert network.together == 1


def test_what_was_given_is_not_changed():
    grey, keypoints = picture(), np.float32([[80, 60, 2, 0]])
    grey.setflags(write=False)
    keypoints.setflags(write=False)
    describe_patches(grey, keypoints, Pixels(), 6.0)
