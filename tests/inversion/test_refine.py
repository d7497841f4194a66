# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.inversion import refine
from sfumato.inversion.paint import USUAL_BRIGHTNESS

CHANNELS = (6, 8, 10)


@pytest.fixture
def tensors():
    rng = np.random.default_rng(0)
    return {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in refine.shapes(CHANNELS).items()}


def painting(height, width, seed=1):
    return np.random.default_rng(seed).normal(0.4, 0.2, (6, height, width)).astype(np.float32)


@pytest.mark.parametrize(("height", "width"), [(32, 40), (33, 41), (5, 90)])
def test_numpy_and_torch_agree(tensors, height, width):
    torch = pytest.importorskip("torch")
    from sfumato.training.patch import InTorch

    channels = painting(height, width)
    padded = np.pad(channels, ((0, 0), (0, -height % 8), (0, -width % 8)), mode="edge")
    network = InTorch(torch, {name: torch.from_numpy(value) for name, value in tensors.items()})
    with torch.inference_mode():
        wanted = network.picture(torch.from_numpy(refine.fold(padded))[None], 3)[0].permute(1, 2, 0).numpy()
    found = refine.refine(tensors, channels, 3)
    assert found.shape == (height, width, 3)
    np.testing.assert_allclose(found, wanted[:height, :width], atol=1e-4)


def test_strips_of_rows_make_no_difference(tensors, monkeypatch):
    channels = painting(64, 48)
    whole = refine.refine(tensors, channels, 3)
    monkeypatch.setattr(refine, "COLUMN_BYTES", 1)
    np.testing.assert_allclose(refine.refine(tensors, channels, 3), whole, atol=1e-5)


def test_without_weights_the_painting_stays(tensors):
    channels = painting(16, 24)
    found = refine.refine({name: np.zeros_like(value) for name, value in tensors.items()}, channels, 3)
    np.testing.assert_allclose(found, np.repeat(channels[0][:, :, None], 3, axis=2), atol=1e-6)


def test_folding():
    channels = painting(4, 6)
    folded = refine.fold(channels)
    assert folded.shape == (refine.INPUTS, 2, 3)
    assert folded[0, 1, 2] == pytest.approx(4 * (channels[0, 2, 4] - USUAL_BRIGHTNESS), abs=1e-5)
    assert folded[3, 1, 2] == pytest.approx(4 * (channels[0, 3, 5] - USUAL_BRIGHTNESS), abs=1e-5)
    values = np.arange(12 * 6, dtype=np.float32).reshape(12, 2, 3)
    assert refine.unfold(values)[1, 3, 4] == values[4 + 2 + 0, 1, 2]  # colour 1, second row, first column
