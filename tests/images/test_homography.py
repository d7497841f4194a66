# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InputError
from sfumato.features.local import extract
from sfumato.images import homography
from sfumato.images.homography import HomographyParams, draw_homography, make_pair, warp_points
from sfumato.images.samples import sample_image
from sfumato.types.clear import Image

GEOMETRY = {"brightness": 0, "contrast": 0, "blur": 0, "noise": 0}
STILL = {"rotation": 0, "scale": 1, "perspective": 0, "translation": 0}


def waves(x, y):
    """A smooth picture known everywhere, changing by up to 20 grey levels a pixel in either direction."""
    return 127.5 + 50 * np.sin(0.3 * x + 0.4) + 50 * np.cos(0.28 * y) + 20 * np.sin(0.11 * (x + y))


@pytest.fixture(scope="module")
def smooth():
    down, across = np.mgrid[0:150, 0:210]
    return Image(np.rint(waves(across, down)).astype(np.uint8), "waves")


def errors_against(pair, matrix):
    """Compare the second picture with the smooth one seen through a homography, well inside the first."""
    down, across = np.mgrid[0:150, 0:210]
    origin = warp_points(np.linalg.inv(matrix), np.stack([across.ravel(), down.ravel()], 1))
    x, y = origin.T
    inside = (x > 8) & (x < 201) & (y > 8) & (y < 141)
    assert inside.sum() > 3000
    return np.abs(pair.second.pixels.ravel()[inside] - waves(x, y)[inside])


@pytest.mark.parametrize("seed", range(5))
def test_every_pixel_comes_from_where_the_homography_says(smooth, seed):
    pair = make_pair(smooth, np.random.default_rng(seed), scale=1, **GEOMETRY)
    assert np.percentile(errors_against(pair, pair.homography), 99) < 1.5  # rounded twice to whole grey levels
    half = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
    for wrong in (half @ pair.homography, np.linalg.inv(half) @ pair.homography):
        assert np.median(errors_against(pair, wrong)) > 5 * np.median(errors_against(pair, pair.homography))


def test_half_a_pixel_of_convention_is_seen(smooth):
    pair = make_pair(smooth, np.random.default_rng(2), scale=1, rotation=180, perspective=0, **GEOMETRY)
    assert abs(pair.homography[0, 0]) < 0.8, "turned enough for this test"
    half = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
    other = half @ pair.homography @ np.linalg.inv(half)  # as if the first pixel's centre were at (0.5, 0.5)
    assert np.median(errors_against(pair, other)) > 4 * np.median(errors_against(pair, pair.homography))


def test_no_change_is_no_change():
    image = sample_image("coffee")
    pair = make_pair(image, np.random.default_rng(0), **STILL, **GEOMETRY)
    assert (pair.second.pixels == image.pixels).all()
    assert np.abs(pair.homography - np.eye(3)).max() < 1e-12
    assert pair.first is image
    assert not pair.homography.flags.writeable


def test_the_same_generator_gives_the_same_pair():
    image = sample_image("coffee")
    one, two, other = (make_pair(image, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert (one.second.pixels == two.second.pixels).all()
    assert (one.homography == two.homography).all()
    assert (one.homography != other.homography).any()


def nearest(features0, features1):
    """Mutual nearest neighbours by descriptor."""
    likeness = features0.descriptors @ features1.descriptors.T
    best0, best1 = likeness.argmax(1), likeness.argmax(0)
    rows = np.flatnonzero(best1[best0] == np.arange(len(best0)))
    return rows, best0[rows]


@pytest.mark.parametrize("name", ["astronaut", "gravel"])
def test_keypoints_agree_with_the_homography_to_a_fraction_of_a_pixel(name):
    pair = make_pair(sample_image(name), np.random.default_rng(5), rotation=90, scale=1.1)
    features0, features1 = extract(pair.first, max_features=1500), extract(pair.second, max_features=1500)
    rows0, rows1 = nearest(features0, features1)

    def offsets(matrix):
        found = features1.keypoints[rows1, :2] - warp_points(matrix, features0.keypoints[rows0, :2])
        return found[np.linalg.norm(found, axis=1) < 4]

    right = offsets(pair.homography)
    assert len(right) > 200
    assert np.median(np.linalg.norm(right, axis=1)) < 0.5
    assert np.linalg.norm(np.median(right, axis=0)) < 0.1
    half = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
    wrong = offsets(half @ pair.homography @ np.linalg.inv(half))  # as if the first pixel's centre were at 0.5
    assert np.linalg.norm(np.median(wrong, axis=0)) > 0.2


def test_light_changes_but_not_the_place():
    image = sample_image("camera")
    brighter = make_pair(image, np.random.default_rng(1), **STILL, contrast=0, blur=0, noise=0, brightness=60)
    change = brighter.second.pixels.astype(int) - image.pixels
    assert len(np.unique(change[(brighter.second.pixels > 0) & (brighter.second.pixels < 255)])) == 1
    noisy = make_pair(image, np.random.default_rng(1), **STILL, contrast=0, blur=0, noise=10, brightness=0)
    assert 0.5 < (noisy.second.pixels.astype(int) - image.pixels).std() < 10
    soft = make_pair(image, np.random.default_rng(1), **STILL, contrast=0, blur=6, noise=0, brightness=0)
    assert np.abs(np.diff(soft.second.pixels.astype(int))).mean() < np.abs(np.diff(image.pixels.astype(int))).mean()
    flat = make_pair(image, np.random.default_rng(8), **STILL, contrast=1, blur=0, noise=0, brightness=0)
    assert abs(flat.second.pixels.std() / image.pixels.std() - 1) > 0.05


SIDES = st.integers(1, 400)


@given(SIDES, SIDES, st.integers(0, 2**32), st.floats(0, 0.5), st.floats(1, 8))
def test_a_drawn_homography_can_be_undone_everywhere(width, height, seed, perspective, scale):
    params = HomographyParams(perspective=perspective, rotation=180, scale=scale)
    drawn = draw_homography((width, height), np.random.default_rng(seed), params)
    corners = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]], float)
    depth = corners @ drawn[2, :2] + drawn[2, 2]
    assert (depth > 0).all(), "no corner lies behind the camera"
    back = warp_points(np.linalg.inv(drawn), warp_points(drawn, corners))
    assert np.abs(back - corners).max() < 1e-6 * max(width, height)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1, 3), (2, 2)])
def test_tiny_pictures_work(shape):
    image = Image(np.full(shape, 77, np.uint8))
    pair = make_pair(image, np.random.default_rng(0), perspective=0.5, scale=8)
    assert pair.second.pixels.shape == shape


def test_nothing_is_seen_beyond_the_horizon():
    """From pixel 30 on to the right this homography looks backwards, where the picture would appear once more."""
    back = np.array([[1, 0, -80], [0, 1, -80], [-1 / 30, 0, 1]])
    pixels = np.random.default_rng(0).integers(0, 256, (100, 100), dtype=np.uint8)
    behind = np.array([[60.0, 60.0]])
    assert (warp_points(back, behind) == 20).all(), "inside the picture, if one could look through the horizon"
    seen = homography._warp(pixels, np.linalg.inv(back))
    assert np.ptp(seen[:, 31:]) == 0
    assert abs(seen[60, 60] - pixels.mean()) < 1


def test_points():
    assert warp_points(np.eye(3), np.empty((0, 2))).shape == (0, 2)
    moved = warp_points([[2, 0, 1], [0, 3, -1], [0, 0, 2]], [[1, 1], [3, 5]])
    assert moved.tolist() == [[1.5, 1.0], [3.5, 7.0]]
    assert np.isinf(warp_points([[1, 0, 0], [0, 1, 0], [1, 0, 0]], [[0, 1]])).any()
    with pytest.raises(InputError, match=r"\(any, 2\)"):
        warp_points(np.eye(3), [[1, 2, 3]])
    with pytest.raises(InputError, match="homography"):
        warp_points(np.eye(2), [[1, 2]])


def test_settings_are_checked():
    with pytest.raises(InputError, match="'rotation'"):
        HomographyParams(rotatoin=3)
    with pytest.raises(InputError, match="'noise'"):
        make_pair(sample_image("coins"), np.random.default_rng(0), niose=3)
    with pytest.raises(InputError, match="scale"):
        HomographyParams(perspective=0.6, scale=0.5)


def test_the_repr_shows_no_pixels(smooth):
    assert repr(make_pair(smooth, np.random.default_rng(0))) == (
        "HomographyPair(Image('waves', 210 x 150), Image('waves warped', 210 x 150))"
    )


def test_real_ground_truth_has_the_same_convention(shared_data):
    """The Oxford homographies speak of pixels as we do: graf 1 to 2, by our keypoints."""
    folder = shared_data / "homography" / "v_graf"
    features0, features1 = extract(folder / "1.png", max_features=3000), extract(folder / "2.png", max_features=3000)
    rows0, rows1 = nearest(features0, features1)
    found = features1.keypoints[rows1, :2] - warp_points(np.loadtxt(folder / "H_1_2"), features0.keypoints[rows0, :2])
    close = found[np.linalg.norm(found, axis=1) < 3]
    assert len(close) > 300
    assert np.median(np.linalg.norm(close, axis=1)) < 1
