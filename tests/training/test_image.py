# SPDX-License-Identifier: Apache-2.0
"""The training of UNet and UResNet: a few steps of it, interrupted and not, and what it refuses."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.auditing.toolbox import OUTLINES, load_models
from sfumato.concealment.lifting import conceal
from sfumato.errors import EvaluationOnlyWarning, FileError, InputError, MissingDependency
from sfumato.features.local import LocalParams
from sfumato.files.tensors import load_checkpoint
from sfumato.images.samples import sample_image
from sfumato.inversion.images import load_image_inverter
from sfumato.inversion.load import Concealer, empty_rows, without_descriptors
from sfumato.training import image
from sfumato.training.image import ImageTrainParams, train_image_inverter
from sfumato.training.loop import part_of
from sfumato.types.clear import Features, Image
from sfumato.types.concealed import ConcealedFeatures

pytest.importorskip("torch")

SMALL: dict[str, Any] = {"width": 0.0625, "side": 32, "batch": 2, "steps": 20}


@pytest.fixture(scope="module")
def photos() -> list[Image]:
    pixels = [sample_image(name).pixels[100:180, 100:200] for name in ("chelsea", "coffee", "astronaut")]
    return [Image(np.ascontiguousarray(part), str(number)) for number, part in enumerate(pixels)]


def seeded(recipe: str) -> Concealer:
    """A concealer that repeats itself, so that trainings can be compared."""

    def concealed(features: Features) -> ConcealedFeatures:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EvaluationOnlyWarning)
            return conceal(features, recipe, evaluation_seed=1)

    return concealed


def stopping_after(count: int) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A progress that is interrupted after so many parts, as by Ctrl-C."""

    def wrapped(items: Iterable[Any]) -> Iterator[Any]:
        for number, item in enumerate(items):
            if number == count and isinstance(items, range):
                raise KeyboardInterrupt
            yield item

    return wrapped


@pytest.mark.parametrize("architecture", ["unet", "uresnet"])
def test_twenty_steps(architecture: str, photos: list[Image], tmp_path: Path):
    output = tmp_path / "n.safetensors"
    params = ImageTrainParams(architecture=architecture, **SMALL)
    result = train_image_inverter(params, photos, output, concealer=seeded("random-2"))
    assert result.steps == 20
    assert 0 < result.last_loss < 1
    assert not result.perceptual
    inverter = load_image_inverter(output)
    assert (inverter.architecture, inverter.recipe, inverter.extractor_name) == (architecture, "random-2", "sift")
    assert inverter.input_dim == 384
    assert inverter.facts["loss"] == "mean absolute error"
    assert inverter.facts["result"]["steps"] == 20
    assert [path.name for path in tmp_path.iterdir()] == ["n.safetensors"]


def test_cells_go_on_from_an_inverter_and_are_painted_without_torch(photos: list[Image], tmp_path: Path):
    first, second, small = tmp_path / "a.safetensors", tmp_path / "b.safetensors", {**SMALL, "side": 64, "steps": 2}
    train_image_inverter(ImageTrainParams(architecture="cells", **small), photos, first)
    train_image_inverter(ImageTrainParams(architecture="cells", start=first, **{**small, "rate": 1e-7}), photos, second)
    a, b = (load_image_inverter(path) for path in (first, second))
    assert (a.facts["start"], b.facts["start"]) == ("scratch", "an inverter")
    np.testing.assert_allclose(b.modules["entry.2.weight"], a.modules["entry.2.weight"], atol=1e-4)
    wide = ImageTrainParams(architecture="cells", start=first, **{**small, "width": 0.5})
    with pytest.raises(FileError, match=first.name):
        train_image_inverter(wide, photos, second)


def test_outlines_are_learned_from_positions_alone(photos: list[Image], tmp_path: Path):
    settings = {**SMALL, "side": 64, "steps": 2, "scale": 0.5, "target": "outlines", "bfloat16": True}
    path = tmp_path / "outlines.safetensors"
    train_image_inverter(
        ImageTrainParams(architecture="cells", **settings), photos, path, concealer=without_descriptors
    )
    inverter = load_image_inverter(path)
    assert (inverter.target, inverter.scale, inverter.is_blind) == ("outlines", 0.5, True)
    (known,) = load_models(tmp_path)[0]
    assert (known.architecture, known.paints_outlines) == (OUTLINES, True)
    keypoints = np.array([[3, 4, 1, 0], [50, 40, 1, 0]], np.float32)
    assert known.paint(keypoints, empty_rows(2), (90, 70)).shape == (70, 90, 3)


def test_the_loss_goes_down(photos: list[Image], tmp_path: Path):
    dark = [Image(photo.pixels // 4, photo.name) for photo in photos]  # a network begins with grey
    params = ImageTrainParams(**{**SMALL, "steps": 40}, rate=0.01, local=LocalParams(contrast_threshold=0.01))
    result = train_image_inverter(params, dark, tmp_path / "n.safetensors")
    assert result.last_loss < 0.75 * result.first_loss
    assert load_image_inverter(tmp_path / "n.safetensors").recipe == "raw"


@pytest.mark.slow
def test_an_interrupted_training_goes_on_as_if_nothing_had_happened(photos: list[Image], tmp_path: Path):
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    settings = ImageTrainParams(**SMALL, save_minutes=0)
    first = train_image_inverter(settings, photos, whole, concealer=seeded("random-2"))
    with pytest.raises(KeyboardInterrupt):
        train_image_inverter(
            settings, photos, parts, concealer=seeded("random-2"), progress=stopping_after(350)
        )  # in step 7
    assert part_of(parts).exists()
    assert load_checkpoint(part_of(parts))[1]["steps"] == 7
    again = train_image_inverter(settings, photos, parts, concealer=seeded("random-2"), resume=True)
    assert (again.steps, again.last_loss, again.scores) == (first.steps, first.last_loss, first.scores)
    arrays, others = load_checkpoint(whole)[0], load_checkpoint(parts)[0]
    assert all(np.array_equal(arrays[name], others[name]) for name in arrays)
    assert not part_of(parts).exists()


def test_only_the_same_training_goes_on(photos: list[Image], tmp_path: Path):
    output = tmp_path / "n.safetensors"
    settings = {**SMALL, "save_minutes": 0}
    with pytest.raises(KeyboardInterrupt):  # there is nothing to go on from: it begins
        train_image_inverter(ImageTrainParams(**settings), photos, output, progress=stopping_after(100), resume=True)
    with pytest.raises(FileError, match="other settings"):
        train_image_inverter(ImageTrainParams(**settings), photos, output, concealer=seeded("random-2"), resume=True)
    never = [tmp_path / "never read.jpg"]
    with pytest.raises(FileError, match="other settings"):
        train_image_inverter(ImageTrainParams(**settings, rate=0.1), never, output, resume=True)
    data = part_of(output).read_bytes()
    part_of(output).write_bytes(data[: len(data) // 2])
    with pytest.raises(FileError, match="damaged"):
        train_image_inverter(ImageTrainParams(**settings), never, output, resume=True)


def test_a_seed_decides(photos: list[Image], tmp_path: Path):
    results = [
        train_image_inverter(ImageTrainParams(**{**SMALL, "steps": 3}, seed=seed), photos, tmp_path / f"{number}")
        for number, seed in enumerate((0, 0, 1))
    ]
    assert results[0].last_loss == results[1].last_loss
    assert results[0].last_loss != results[2].last_loss


def test_too_few_photos_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    flat = Image(np.zeros((64, 64, 3), np.uint8), "flat")
    with pytest.raises(InputError, match="0 of 2 photos"):
        train_image_inverter(ImageTrainParams(**SMALL), [flat, tmp_path / "gone.jpg"], tmp_path / "n")
    assert "no features: flat" in caplog.text
    assert "gone.jpg" in caplog.text


def test_without_torch_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def missing(module: str, *, extra: str) -> Any:
        raise MissingDependency(f"this needs {module}: pip install 'sfumato[{extra}]'")

    monkeypatch.setattr(image, "need", missing)
    with pytest.raises(MissingDependency, match=r"sfumato\[learn\]"):
        train_image_inverter(ImageTrainParams(**SMALL), [], tmp_path / "n")
