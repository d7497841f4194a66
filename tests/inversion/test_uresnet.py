# SPDX-License-Identifier: Apache-2.0
"""UResNet: five halvings, ResNet50's own weights fit, and skips are added."""

from pathlib import Path

import pytest

from sfumato.errors import FileError, InputError
from sfumato.inversion.networks import URESNET_MULTIPLE, build_uresnet, load_encoder, run_uresnet

torch = pytest.importorskip("torch")


def test_pictures_have_the_size_of_their_maps():
    modules = build_uresnet(6, 0.0625).eval()
    with torch.inference_mode():
        seen = run_uresnet(modules, torch.rand(1, 6, URESNET_MULTIPLE, 2 * URESNET_MULTIPLE))
    assert seen.shape == (1, 3, URESNET_MULTIPLE, 2 * URESNET_MULTIPLE)
    assert 0 <= seen.min() <= seen.max() <= 1


def test_every_weight_takes_part():
    modules = build_uresnet(4, 0.0625)
    run_uresnet(modules, torch.rand(2, 4, 64, 64)).mean().backward()
    assert all(weights.grad is not None for weights in modules.parameters())


def test_its_encoder_is_resnet50():
    encoder = build_uresnet(128, 1.0)["encoder"].state_dict()
    assert encoder["conv1.weight"].shape == (64, 3, 7, 7)
    assert encoder["layer1.0.downsample.0.weight"].shape == (256, 64, 1, 1)
    assert encoder["layer3.5.conv2.weight"].shape == (256, 256, 3, 3)
    assert encoder["layer4.2.bn3.weight"].shape == (2048,)
    weights = sum(value.numel() for name, value in encoder.items() if name.endswith(("weight", "bias")))
    assert weights == 25_557_032 - 2_049_000  # torchvision's resnet50 without its classifier


def test_weights_of_a_file_are_taken(tmp_path: Path):
    source, target = build_uresnet(4, 0.0625), build_uresnet(4, 0.0625)
    torch.save(dict(source["encoder"].state_dict()), tmp_path / "r.pth")
    load_encoder(target, tmp_path / "r.pth")
    assert torch.equal(target["encoder"]["conv1"].weight, source["encoder"]["conv1"].weight)
    with pytest.raises(InputError, match="width 1"):
        load_encoder(build_uresnet(4, 0.125), tmp_path / "r.pth")
    torch.save({"conv1.weight": torch.zeros(1)}, tmp_path / "other.pth")
    with pytest.raises(FileError, match="bn1"):
        load_encoder(target, tmp_path / "other.pth")
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    with pytest.raises(FileError, match="junk"):
        load_encoder(target, tmp_path / "junk.safetensors")
