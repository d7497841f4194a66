# SPDX-License-Identifier: Apache-2.0
import warnings

import cv2
import numpy as np
import pytest

import sfumato
from sfumato.errors import EvaluationOnlyWarning, FileError, InputError
from sfumato.features.local import LocalParams, extract
from sfumato.images.read import read_image
from sfumato.images.samples import sample_image
from sfumato.inversion.images import load_image_inverter
from sfumato.inversion.patches import invert_rows, load_inverter, load_weights
from sfumato.training.image import ImageTrainParams, train_image_inverter
from sfumato.training.inverter import InverterTrainParams, _budget, gather_material, paint_photos, train_patch_inverter
from sfumato.training.loop import Pace

pytest.importorskip("torch")

SMALL = {
    "patch_steps": 20, "refine_steps": 4, "hidden": 16, "channels": (4, 4),
    "local": LocalParams(max_features=100),
}  # fmt: skip


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for name in ("coffee", "chelsea", "astronaut", "camera"):
        pixels = sample_image(name).pixels[:170, :180]
        assert cv2.imwrite(str(folder / f"{name}.png"), pixels[:, :, ::-1] if pixels.ndim == 3 else pixels)
    return sorted(folder.iterdir())


def conceal(features):
    with pytest.warns(EvaluationOnlyWarning):
        return sfumato.conceal(features, "random-2", evaluation_seed=1)


def test_a_training_from_photos_to_a_file(photos, tmp_path):
    told, params = [], InverterTrainParams(**SMALL)
    inverter = train_patch_inverter(
        params, photos, tmp_path / "a.safetensors", report=lambda stage: told.append(stage.name)
    )
    assert set(told) == {"patch network", "refinement"}
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]
    assert (inverter.extractor_name, inverter.recipe, inverter.input_dim) == ("sift", "raw", 128)
    made = inverter.made
    assert (made["photos"], made["checked on"], made["seed"]) == (4, 1, 0)
    assert made["patch network"]["steps"] == 20
    assert made["patch network"]["last_loss"] < made["patch network"]["first_loss"]
    train_patch_inverter(params, photos, tmp_path / "b.safetensors")
    again = load_weights(tmp_path / "b.safetensors")[1]
    for name, value in inverter.tensors.items():
        np.testing.assert_array_equal(again[name], value)
    start = InverterTrainParams(**{**SMALL, "refine_steps": 1}, start=tmp_path / "a.safetensors")
    onwards = train_patch_inverter(start, photos, tmp_path / "c.safetensors")
    assert onwards.made["refinement"]["first_loss"] < made["refinement"]["first_loss"]


def test_an_interrupted_training_goes_on(photos, tmp_path):
    params, output = InverterTrainParams(**SMALL), tmp_path / "a.safetensors"

    def stop(stage):
        if stage.name == "refinement" and stage.pace.steps == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # there is nothing to go on from: it begins
        train_patch_inverter(params, photos, output, report=stop, resume=True)
    assert {path.name for path in tmp_path.iterdir()} == {"a.safetensors.patch.part", "a.safetensors.refine.part"}
    with pytest.raises(FileError, match="other settings"):
        train_patch_inverter(InverterTrainParams(**SMALL, seed=1), ["never read.jpg"], output, resume=True)
    steps = []
    resumed = train_patch_inverter(
        params, photos, output, resume=True, report=lambda stage: steps.append(stage.pace.steps)
    )
    assert min(steps) >= 2
    whole = train_patch_inverter(params, photos, tmp_path / "b.safetensors")
    for name, value in whole.tensors.items():
        np.testing.assert_array_equal(resumed.tensors[name], value)


def test_direct_inversion_of_a_recipe(photos, tmp_path):
    params = InverterTrainParams(**{**SMALL, "patch_steps": 2, "refine_steps": 2})
    inverter = train_patch_inverter(params, photos, tmp_path / "a.safetensors", concealer=conceal)
    assert (inverter.recipe, inverter.input_dim, inverter.frame.shape) == ("random-2", 384, (128, 128))
    loaded = load_inverter(tmp_path / "a.safetensors")
    features = extract(photos[0], max_features=50)
    inputs = sfumato.inversion.canonical.canonical_input(conceal(features).code, loaded.frame)
    assert np.isfinite(invert_rows(loaded, features.keypoints, inputs, (180, 170))).all()


def test_paintings_are_of_the_strongest_features(photos):
    params = InverterTrainParams(**SMALL)
    material = gather_material(params, photos, None)
    assert len(material.photos) == 4
    assert sorted(material.photos) == photos
    inverter = load_inverter()
    scenes = list(paint_photos(material, 2, inverter))
    assert len(scenes) == 2
    assert scenes[0].channels.shape == (6, 170, 180)
    assert scenes[0].colours.shape == (170, 180, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"minutes": 0}, "minutes"),
        ({"patch_steps": 10}, "belong together"),
        ({"patch_steps": 0, "refine_steps": 1}, "patch_steps"),
        ({"hidden": 1}, "hidden"),
        ({"stpes": 1}, "stpes"),
    ],
)
def test_settings_that_can_not_be(settings, message):
    with pytest.raises(InputError, match=message):
        InverterTrainParams(**settings)


def test_one_photo_is_not_enough(photos, tmp_path):
    with pytest.raises(InputError, match="two photos"):
        train_patch_inverter(InverterTrainParams(**SMALL), photos[:1], tmp_path / "a.safetensors")


def test_reading_photos_does_not_eat_the_time_to_learn():
    late = Pace(12, seconds_before=60.0 * 60, clock=lambda: 0.0)
    assert _budget(None, late, 0.5).minutes == pytest.approx(2)
    assert _budget(None, Pace(12, clock=lambda: 0.0), 0.5).minutes == pytest.approx(6)
    assert _budget(7, late, 0.5).steps == 7


@pytest.mark.parametrize("architecture", ["patch", "unet"])
def test_a_lifting_after_an_encoder_is_inverted_in_its_own_space(photos, tmp_path, architecture):
    def conceal_compressed(features):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return sfumato.conceal(features, "compress-32+random-2", evaluation_seed=0)

    output = tmp_path / "a.safetensors"
    if architecture == "patch":
        params = InverterTrainParams(**{**SMALL, "patch_steps": 2, "refine_steps": 2})
        inverter = train_patch_inverter(params, photos, output, concealer=conceal_compressed)
    else:
        settings = {"steps": 2, "batch": 2, "side": 64, "width": 0.05, "local": LocalParams(max_features=100)}
        pixels = [read_image(path) for path in photos]
        train_image_inverter(ImageTrainParams(**settings), pixels, output, concealer=conceal_compressed)
        inverter = load_image_inverter(output)
    assert (inverter.input_dim, inverter.frame.shape) == (96, (32, 32))
