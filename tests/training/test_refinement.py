# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.images.samples import sample_image
from sfumato.inversion import refine
from sfumato.inversion.metrics import picture_scores
from sfumato.inversion.paint import USUAL_BRIGHTNESS
from sfumato.training.loop import Budget
from sfumato.training.patch import RefineSample, RefineTraining, crop_of, initial, similarity, train_refinement

torch = pytest.importorskip("torch")

TRAINING = RefineTraining(budget=Budget(steps=20), channels=(8, 12), batch=4, crop=32, rate=5e-3)


def painting(name, size=96):
    """A photo, and a painting with half its contrast."""
    colours = sample_image(name).pixels[:size, :size]
    grey = (colours @ np.array([0.299, 0.587, 0.114]) / 255).astype(np.float32)
    channels = np.zeros((6, size, size), np.float16)
    channels[0] = USUAL_BRIGHTNESS + 0.5 * (grey - grey.mean())
    channels[1, :, :-1] = np.diff(channels[0], axis=1)
    return RefineSample(channels, colours)


@pytest.fixture(scope="module")
def paintings():
    return [painting(name) for name in ("coffee", "chelsea", "astronaut")]


def test_twenty_steps_bring_pictures_nearer(paintings):
    tensors, facts = train_refinement(paintings, paintings, TRAINING)
    assert facts["steps"] == 20
    assert facts["last_loss"] < 0.9 * facts["first_loss"]
    assert {name: value.shape for name, value in tensors.items()} == refine.shapes(TRAINING.channels)
    again, _ = train_refinement(paintings, paintings, TRAINING)
    np.testing.assert_array_equal(again["refine_last_weight"], tensors["refine_last_weight"])
    started = initial(TRAINING, tensors)
    np.testing.assert_array_equal(started["refine_last_weight"], tensors["refine_last_weight"])


def test_similarity_is_that_of_the_figures(paintings):
    first, second = (one.channels[0].astype(np.float32) for one in paintings[:2])
    found = similarity(torch, *(torch.from_numpy(one)[None, None] for one in (first, second)))
    assert float(found) == pytest.approx(picture_scores(first, second)["ssim"], abs=1e-3)


def test_a_mirrored_crop_is_the_crop_of_the_mirrored(paintings):
    class Draw:
        def __init__(self, mirror):
            self.answers = iter([5, 7, mirror])

        def integers(self, _):
            return next(self.answers)

    straight, colours = crop_of(paintings[0], 32, Draw(0))
    mirrored, other = crop_of(paintings[0], 32, Draw(1))
    np.testing.assert_array_equal(other, colours[:, :, ::-1])
    picture = refine.unfold(
        np.repeat(mirrored[:4], 3, axis=0).reshape(4, 3, 16, 16).transpose(1, 0, 2, 3).reshape(12, 16, 16)
    )[0]
    right = refine.unfold(
        np.repeat(mirrored[4:8], 3, axis=0).reshape(4, 3, 16, 16).transpose(1, 0, 2, 3).reshape(12, 16, 16)
    )[0]
    np.testing.assert_allclose(right[:, :-1] / 20, np.diff(picture / 4, axis=1), atol=2e-3)
    assert straight.shape == (refine.INPUTS, 16, 16)


def test_small_photos_can_be_checked_but_not_learned_from(paintings):
    small = painting("coffee", 24)
    assert crop_of(small, 32, None)[1].shape == (3, 32, 32)
    with pytest.raises(InputError, match="32"):
        train_refinement([small], paintings, TRAINING)
    with pytest.raises(InputError, match="to check"):
        train_refinement(paintings, [], TRAINING)
