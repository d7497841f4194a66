# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import cv2
import numpy as np
import pytest


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    """A folder with two photos, one without features, one that is no image, and a text."""
    from sfumato.images.samples import sample_image

    folder = tmp_path_factory.mktemp("photos")
    (folder / "deep").mkdir()
    for place, name in (("a.png", "astronaut"), ("deep/b.jpg", "coffee")):
        pixels = sample_image(name).pixels[:300, :300, ::-1]
        assert cv2.imwrite(str(folder / place), pixels)
    assert cv2.imwrite(str(folder / "grey.png"), np.full((80, 80), 128, np.uint8))
    (folder / "broken.jpg").write_text("this is no picture")
    (folder / "notes.txt").write_text("nor is this")
    return folder


@pytest.fixture(scope="session")
def untrained(tmp_path_factory) -> Path:
    """The weights of a hardtfeat network that was never trained."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("kornia.feature")
    save_file = pytest.importorskip("safetensors.torch").save_file
    shapes = {
        "features.0.weight": (32, 1, 7, 7), "features.0.bias": (32,), "features.3.weight": (64, 32, 6, 6),
        "features.3.bias": (64,), "classifier.1.weight": (128, 64, 8, 8), "classifier.1.bias": (128,),
    }  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "untrained.safetensors"
    save_file({name: 0.05 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}, path)
    return path
