# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from sfumato.errors import InputError
from sfumato.inversion.metrics import as_grey, leakage, outline_score, outlines, picture_scores, summary


@pytest.fixture
def pictures():
    rng = np.random.default_rng(0)
    truth = rng.random((40, 50, 3))
    return np.clip(truth + rng.normal(0, 0.1, truth.shape), 0, 1), truth


def test_scores_are_those_of_scikit_image(pictures):
    seen, truth = pictures
    scores = picture_scores(seen, truth)
    window = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 1.0}
    grey = as_grey(seen), as_grey(truth)
    assert scores["ssim"] == pytest.approx(structural_similarity(*grey, **window))
    assert scores["psnr"] == pytest.approx(peak_signal_noise_ratio(*grey, data_range=1.0))
    assert scores["mae"] == pytest.approx(np.abs(grey[0] - grey[1]).mean())
    assert scores["ssim_rgb"] == pytest.approx(structural_similarity(seen, truth, channel_axis=2, **window))
    assert scores["psnr_rgb"] == pytest.approx(peak_signal_noise_ratio(seen, truth, data_range=1.0))


def test_equal_pictures_and_bytes(pictures):
    truth = np.rint(255 * pictures[1]).astype(np.uint8)
    same = picture_scores(truth, truth / 255)
    assert (same["mae"], same["ssim"], same["psnr"]) == pytest.approx((0, 1, np.inf))
    assert set(picture_scores(truth[:, :, 0], truth)) == {"mae", "ssim", "psnr"}  # colour needs both


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (np.zeros((20, 21)), "one size"),
        (np.zeros((20, 20, 4)), "expected a picture"),
        (np.zeros((8, 8)), "11 x 11"),
        (np.full((20, 20), 1.5), "from 0 to 1"),
        (np.full((20, 20), np.nan), "from 0 to 1"),
    ],
)
def test_what_can_not_be_compared(seen, message):
    with pytest.raises(InputError, match=message):
        picture_scores(seen, np.zeros((20, 20)))


def test_summary_and_leakage():
    found = summary([{"ssim": 0.2}, {"ssim": 0.4}])
    assert found == pytest.approx({"photos": 2, "ssim": 0.3, "ssim_deviation": np.std([0.2, 0.4], ddof=1)})
    assert summary([{"ssim": 0.2}])["ssim_deviation"] == 0
    assert summary([]) == {"photos": 0}
    assert leakage(0.5, 0.4, 0.6) == pytest.approx(0.5)
    assert np.isnan(leakage(0.5, 0.4, 0.4))


def test_outlines_do_not_depend_on_what_is_bright():
    photo = np.zeros((60, 80))
    photo[20:40, 30:60] = 0.8
    assert np.allclose(outlines(photo), outlines(1 - photo), atol=1e-6)
    assert outlines(photo)[5, 5] > 0.95
    assert outlines(photo)[20, 45] < 0.1
    assert outline_score(outlines(photo), 1 - photo) == pytest.approx(1)
    assert abs(outline_score(np.random.default_rng(0).random((60, 80)), photo)) < 0.1


def test_outlines_of_other_sizes_are_refused():
    with pytest.raises(InputError, match="size"):
        outline_score(np.zeros((40, 40)), np.zeros((60, 40)))
