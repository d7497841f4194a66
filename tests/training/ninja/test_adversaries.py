# SPDX-License-Identifier: Apache-2.0
"""The inverters: what their losses mean, that they learn where there is something to learn."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.features.local import LocalParams
from sfumato.images.samples import sample_image
from sfumato.training.ninja.adversaries import (
    WORTH,
    Adversary,
    DecoderAdversary,
    ImageAdversary,
    PatchAdversary,
    as_tensor,
    held_out_loss,
)
from sfumato.training.ninja.network import whiten
from sfumato.training.ninja.params import AdversaryParams
from sfumato.training.photos import PatchSamples, gather_pairs, read_photos
from sfumato.types.clear import Image

torch: Any = pytest.importorskip("torch")

FEW = AdversaryParams(rows=64, hidden=32, patch_hidden=32, width=0.0625, side=32, perceptual_side=32)


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def rows(count: int = 600, n: int = 16, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    found = np.abs(rng.normal(size=(count, 4)) @ np.random.default_rng(1).normal(size=(4, n)))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> PatchSamples:
    folder: Path = tmp_path_factory.mktemp("photos")
    for name in ("chelsea", "astronaut"):
        assert cv2.imwrite(str(folder / f"{name}.png"), sample_image(name).pixels[:200, :200, ::-1])
    return gather_pairs(sorted(folder.iterdir()), LocalParams(max_features=200))


def train(adversary: Adversary, encode: Any, steps: int, rate: float = 3e-3) -> float:
    learned = [one for one in adversary.modules.parameters() if one.requires_grad]
    optimizer, rng = torch.optim.Adam(learned, lr=rate), np.random.default_rng(0)
    adversary.modules.train()
    for _ in range(steps):
        clear, truth = adversary.draw(rng)
        loss = adversary.loss(encode(clear), truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return held_out_loss(adversary, encode, 0)


def of_batch(adversary: Adversary, rng: np.random.Generator) -> tuple[Any, Any]:
    clear, truth = adversary.draw(rng)
    return shown(clear), truth


def shown(clear: np.ndarray) -> Any:
    return torch.from_numpy(np.array(clear))


def hidden(clear: np.ndarray) -> Any:
    return torch.ones(clear.shape) / clear.shape[1] ** 0.5


def test_a_decoder_wins_where_all_is_shown_and_loses_where_nothing_is():
    clear, held = rows(), rows(200, seed=5)
    adversary = DecoderAdversary(clear, held, 16, FEW)
    whiten(adversary.modules["white"], shown(clear))
    assert train(adversary, shown, 150) < 0.4 * WORTH
    control = DecoderAdversary(clear, held, 16, FEW)
    assert train(control, hidden, 60) == pytest.approx(WORTH, rel=0.1)  # what the constant guess gets
    assert (adversary.limit, adversary.name) == (WORTH, "decoder")


def test_a_patch_inverter_wins_where_all_is_shown_and_loses_where_nothing_is(pairs: PatchSamples):
    held = np.arange(len(pairs)) % 5 == 0
    adversary = PatchAdversary(pairs, held, 128, FEW)
    whiten(adversary.modules["white"], shown(pairs.descriptors))
    seen = train(adversary, shown, 120)
    control = train(PatchAdversary(pairs, held, 128, FEW), hidden, 120)
    assert seen < 0.9 * WORTH
    assert control == pytest.approx(WORTH, rel=0.16)
    with pytest.raises(InputError, match="two photos"):
        PatchAdversary(pairs, np.zeros(len(pairs), bool), 128, FEW)


def test_an_image_inverter_knows_what_one_colour_gets():
    pixels = [sample_image(name).pixels[100:160, 100:160] for name in ("chelsea", "coffee", "astronaut")]
    images = [Image(np.ascontiguousarray(part), str(number)) for number, part in enumerate(pixels)]
    photos = read_photos(images, LocalParams(max_features=60), 32)
    adversary = ImageAdversary(photos[1:], photos[:1], 128, FEW, 2)
    assert 0.05 < adversary.limit < 0.6
    clear, (windows, _) = adversary.draw(np.random.default_rng(0))
    assert len(clear) == sum(len(one.placed) for one in windows)
    rng = np.random.default_rng
    before = adversary.loss(*of_batch(adversary, rng(1))).item()
    train(adversary, shown, 20)
    adversary.modules.train()
    assert adversary.loss(*of_batch(adversary, rng(1))).item() < before
    assert held_out_loss(adversary, shown, 0) == held_out_loss(adversary, shown, 0)


@pytest.mark.parametrize("name", ["decoder", "patch", "unet"])
def test_the_gradient_reaches_what_was_encoded(name: str, pairs: PatchSamples):
    if name == "decoder":
        adversary: Any = DecoderAdversary(rows(n=128), rows(50, n=128), 128, FEW)
    elif name == "patch":
        adversary = PatchAdversary(pairs, np.arange(len(pairs)) % 5 == 0, 128, FEW)
    else:
        image = Image(np.ascontiguousarray(sample_image("astronaut").pixels[100:160, 100:160]), "a")
        photos = read_photos([image, image], LocalParams(max_features=60), 32)
        adversary = ImageAdversary(photos, photos, 128, FEW, 2)
    clear, truth = adversary.draw(np.random.default_rng(0))
    encoded = shown(clear).requires_grad_(True)
    adversary.loss(encoded, truth).backward()
    assert torch.isfinite(encoded.grad).all()
    assert encoded.grad.abs().max() > 0
    assert all(part.grad is None for part in adversary.modules["white"].parameters())


def test_read_only_rows_are_copied():
    clear = rows(4)
    clear.setflags(write=False)
    assert as_tensor(clear, torch.ones(1)).dtype == torch.float32
