# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import cv2
import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.features.local import LocalParams, extract
from sfumato.images.samples import sample_image
from sfumato.inversion.canonical import canonical_input
from sfumato.inversion.images import ImageInverter
from sfumato.inversion.load import inputs_of, invert, open_inverter, run_inverter, score_inverter
from sfumato.inversion.patches import Inverter, InverterHeader, save_weights
from sfumato.types.clear import Image
from sfumato.types.concealed import ConcealedFeatures, Subspaces


def write(path, recipe="raw", extractor="sift"):
    rng = np.random.default_rng(0)
    concealed = recipe != "raw"
    header = InverterHeader(
        extractor=extractor, recipe=recipe, input_dim=256 if concealed else 128, hidden=8, refine=(4,),
        frame=128 if concealed else 0,
    )  # fmt: skip
    tensors = {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in header.shapes().items()}
    if concealed:
        tensors["frame"] = np.eye(128, dtype=np.float32)
    save_weights(path, header, tensors)
    return path


def lift(features):
    """A lifting without secrets, for tests: each descriptor in a line along the first direction."""
    basis = np.zeros((len(features), 1, 128))
    basis[:, 0, 0] = 1
    return ConcealedFeatures(features.keypoints, Subspaces(features.descriptors, basis), "random-1", features.extractor)


PHOTO = Image(sample_image("coffee").pixels[:120, :160], "coffee")
PARAMS = LocalParams(max_features=60)


def test_clear_and_concealed_inputs(tmp_path):
    features = extract(PHOTO, PARAMS)
    clear = open_inverter(write(tmp_path / "clear.safetensors"))
    assert inputs_of(clear, features) is features.descriptors
    hidden = open_inverter(write(tmp_path / "hidden.safetensors", "random-1"))
    wanted = canonical_input(lift(features).code, np.eye(128))
    np.testing.assert_array_equal(inputs_of(hidden, features, lift), wanted)
    with pytest.raises(InputError, match="random-1"):
        inputs_of(hidden, features)
    with pytest.raises(InputError, match="hardnet"):
        inputs_of(open_inverter(write(tmp_path / "other.safetensors", extractor="hardnet")), features)


def test_a_photo_is_seen_through_its_features(tmp_path):
    inverter = open_inverter(write(tmp_path / "a.safetensors"))
    features = extract(PHOTO, PARAMS)
    seen = invert(features, inverter)
    np.testing.assert_array_equal(seen, run_inverter(inverter, features.keypoints, features.descriptors, PHOTO.size))


def test_concealed_features_need_an_inverter_of_their_recipe(tmp_path):
    features = extract(PHOTO, PARAMS)
    path = write(tmp_path / "hidden.safetensors", "random-1")
    hidden, inverter = lift(features), open_inverter(path)
    expected = run_inverter(inverter, hidden.keypoints, canonical_input(hidden.code, np.eye(128)), PHOTO.size)
    np.testing.assert_array_equal(invert(hidden, path, size=PHOTO.size), expected)
    with pytest.raises(InputError, match="raw"):
        invert(hidden, size=PHOTO.size)
    with pytest.raises(InputError, match="size="):
        invert(replace(features, image_size=None))
    assert invert(replace(features, image_size=None), size=PHOTO.size).shape == (*PHOTO.size[::-1], 3)


def test_figures_have_a_floor(tmp_path):
    assert cv2.imwrite(str(tmp_path / "photo.png"), PHOTO.pixels[:, :, ::-1])
    found = score_inverter(open_inverter(), [tmp_path / "photo.png"] * 2, PARAMS)
    assert found["photos"] == 2
    assert found["ssim"] > found["floor_ssim"]
    assert found["ssim_deviation"] == 0
    assert {"ssim_rgb", "psnr", "mae", "floor_mae"} <= set(found)


def test_files_of_every_kind(tmp_path):
    assert isinstance(open_inverter(), Inverter)
    for content in (b"", b"no network"):
        (tmp_path / "a.safetensors").write_bytes(content)
        with pytest.raises(FileError):
            open_inverter(tmp_path / "a.safetensors")


@pytest.mark.slow
def test_a_unet_is_opened_too(tmp_path):
    pytest.importorskip("torch")
    from sfumato.training.image import ImageTrainParams, train_image_inverter

    photos = [PHOTO, Image(sample_image("chelsea").pixels[:120, :160], "chelsea")]
    params = ImageTrainParams(width=0.05, side=32, batch=2, steps=2, local=PARAMS)
    train_image_inverter(params, photos, tmp_path / "unet.safetensors")
    opened = open_inverter(tmp_path / "unet.safetensors")
    assert isinstance(opened, ImageInverter)
    seen = invert(extract(PHOTO, PARAMS), opened)
    assert seen.shape == (120, 160, 3)


def test_a_photo_in_place_of_features_gets_advice():
    for wrong in ("photos/cat.jpg", np.zeros((4, 4, 3))):
        with pytest.raises(InputError, match=r"sfumato\.extract"):
            invert(wrong)
