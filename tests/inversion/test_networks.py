# SPDX-License-Identifier: Apache-2.0
"""UNet: the shapes, channels and skips that the paper describes."""

import pytest

from sfumato.inversion.networks import UNET_MULTIPLE, build_unet, run_unet

torch = pytest.importorskip("torch")


def test_pictures_have_the_size_of_their_maps():
    modules = build_unet(6, 0.125).eval()
    with torch.inference_mode():
        seen = run_unet(modules, torch.rand(2, 6, 2 * UNET_MULTIPLE, 3 * UNET_MULTIPLE))
    assert seen.shape == (2, 3, 2 * UNET_MULTIPLE, 3 * UNET_MULTIPLE)
    assert 0 <= seen.min() <= seen.max() <= 1


def test_its_channels_are_those_of_the_paper():
    modules = build_unet(128, 1.0)
    assert [pair[0].out_channels for pair in modules["down"]] == [64, 128, 256, 512, 1024]
    assert [pair[0].in_channels for pair in modules["up"]] == [1024, 512, 256, 128]  # skips are concatenated
    assert 30e6 < sum(weights.numel() for weights in modules.parameters()) < 33e6  # 31.0 million, as published


def test_every_weight_takes_part():
    modules = build_unet(4, 0.0625)
    run_unet(modules, torch.rand(2, 4, 32, 32)).mean().backward()
    assert all(weights.grad is not None for weights in modules.parameters())
