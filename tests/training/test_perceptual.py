# SPDX-License-Identifier: Apache-2.0
"""The perceptual loss: the right taps, means instead of sums, and files that fit."""

from pathlib import Path

import pytest

from sfumato.errors import FileError
from sfumato.training import image
from sfumato.training.image import DEVIATION, MEAN, load_perceptual, perceptual_loss

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with torchvision's names and random numbers."""
    torch.manual_seed(0)
    state = {}
    for place, (channels, out) in image.CONVOLUTIONS.items():
        state[f"features.{place}.weight"] = torch.randn(out, channels, 3, 3).half() / (3 * channels**0.5)
        state[f"features.{place}.bias"] = torch.randn(out).half() / 10
    state["features.17.weight"] = torch.zeros(1)  # deeper layers are not used
    path = tmp_path_factory.mktemp("weights") / "vgg16.pth"
    torch.save(state, path)
    return path


def test_the_loss_is_that_of_the_paper_by_hand(weights: Path):
    state = {name: value.float() for name, value in torch.load(weights, weights_only=True).items()}
    seen, truth = torch.rand(2, 3, 16, 16), torch.rand(2, 3, 16, 16)

    def taps(x):
        x = (x - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(DEVIATION).view(1, 3, 1, 1)
        found, conv = [], torch.nn.functional.conv2d
        for place in (0, 2, "pool", 5, 7, "pool", 10, 12, 14):
            if place == "pool":
                x = torch.nn.functional.max_pool2d(x, 2)
                continue
            x = conv(x, state[f"features.{place}.weight"], state[f"features.{place}.bias"], padding=1).relu()
            if place in (0, 7, 14):  # ReLU 1_1, 2_2 and 3_3
                found.append(x)
        return found

    wanted = sum(((a - b) ** 2).mean() for a, b in zip(taps(seen), taps(truth), strict=True)) / 3
    assert float(perceptual_loss(load_perceptual(weights), seen, truth)) == pytest.approx(float(wanted), rel=1e-4)


def test_it_is_a_mean_and_only_the_seen_picture_learns(weights: Path):
    network = load_perceptual(weights)
    seen, truth = torch.rand(1, 3, 32, 32, requires_grad=True), torch.rand(1, 3, 32, 32)
    assert float(perceptual_loss(network, truth, truth)) == 0
    one = perceptual_loss(network, seen, truth)
    twice = perceptual_loss(network, seen.repeat(2, 1, 1, 1), truth.repeat(2, 1, 1, 1))
    assert float(one.detach()) == pytest.approx(float(twice.detach()), rel=1e-5)
    one.backward()
    assert seen.grad.abs().sum() > 0
    assert all(not parameter.requires_grad for parameter in network.parameters())


def test_the_real_weights_tell_a_blur_from_a_photo(shared_data: Path):
    path = shared_data.parent / "weights" / "vgg16_features_to_conv3_3.safetensors"
    if not path.is_file():
        pytest.skip(f"needs {path}")
    torch.manual_seed(1)
    network, truth = load_perceptual(path), torch.rand(1, 3, 32, 32)
    blurred = torch.nn.functional.avg_pool2d(truth, 3, stride=1, padding=1)
    near = (truth + 0.01 * torch.randn_like(truth)).clamp(0, 1)
    assert perceptual_loss(network, blurred, truth) > 10 * perceptual_loss(network, near, truth)


def test_other_files_are_told(tmp_path: Path, weights: Path):
    (tmp_path / "junk.pth").write_bytes(b"junk")
    with pytest.raises(FileError, match="junk"):
        load_perceptual(tmp_path / "junk.pth")
    with pytest.raises(FileError, match="cannot read"):
        load_perceptual(tmp_path / "gone.safetensors")
    torch.save({"features.0.weight": torch.zeros(64, 3, 3, 3)}, tmp_path / "other.pth")
    with pytest.raises(FileError, match=r"features\.0\.bias"):
        load_perceptual(tmp_path / "other.pth")
