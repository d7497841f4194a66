# SPDX-License-Identifier: Apache-2.0
"""What an attacker is given: tools found in a folder, each with its digest."""

import shutil

import numpy as np
import pytest

import sfumato
from sfumato.auditing.toolbox import Toolbox, Tools, bundled_inverter, load_models
from sfumato.concealment.decoys import Decoys
from sfumato.concealment.encoder import save_encoder
from sfumato.concealment.resolve import resolve
from sfumato.errors import FileError, InputError
from sfumato.images.samples import sample_image
from sfumato.inversion.patches import network_folder
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe


@pytest.fixture
def bundled_file():
    return network_folder() / "inverter-sift.safetensors"


def test_the_bundled_inverter_paints(bundled_file):
    painter = bundled_inverter()
    assert (painter.architecture, painter.extractor_name, painter.recipe) == ("patch", "sift", "raw")
    keypoints = np.array([[20, 20, 3, 0]], np.float32)
    assert painter.paint(keypoints, painter.floor[None], (48, 32)).shape == (32, 48, 3)
    assert "0." not in repr(painter)


@pytest.mark.parametrize("name", ["ninja-sift-1.0", "ninja-sift-2.5"])
def test_bundled_inverters_fit_the_bundled_encoders(name):
    recipe = resolve(name).recipe
    painter = Toolbox().open().inverter("sift", str(recipe))
    assert painter is not None, "trained on another encoder than the one that is shipped"
    assert painter.floor.shape == (resolve(name).encoders[-1].output_dim,)


def test_an_own_model_takes_the_place_of_the_bundled_one(bundled_file, tmp_path):
    shutil.copy(bundled_file, tmp_path / "mine.safetensors")
    painters = Toolbox(models=tmp_path).open().inverters
    assert [(one.recipe, one.architecture) for one in painters].count(("raw", "patch")) == 1
    assert len(painters) == len(Toolbox().open().inverters)


def test_models_are_found_by_what_they_are_for(bundled_file, tmp_path):
    shutil.copy(bundled_file, tmp_path / "mine.safetensors")
    painters, decoders = load_models(tmp_path)
    tools = Tools(inverters=painters, decoders=decoders)
    assert tools.inverter("sift", "raw") is painters[0]
    assert tools.inverter("sift", "sub-hybrid-2") is None
    assert tools.inverter("sift", "raw", "unet") is None
    assert painters[0].digest == bundled_inverter().digest
    assert decoders == {}


def test_two_for_one_purpose_and_strangers_are_refused(bundled_file, tmp_path):
    with pytest.raises(FileError, match="no such"):
        load_models(tmp_path / "gone")
    shutil.copy(bundled_file, tmp_path / "a.safetensors")
    shutil.copy(bundled_file, tmp_path / "b.safetensors")
    with pytest.raises(InputError, match=r"b\.safetensors"):
        load_models(tmp_path)
    (tmp_path / "b.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(FileError, match="inverter"):
        load_models(tmp_path)


def test_without_public_descriptors_the_decoys_serve():
    decoys = Decoys(np.eye(8, 16, dtype=np.float32), Extractor("sift"), parts=1)
    public = Decoys(np.eye(6, 16, dtype=np.float32), Extractor("sift"), parts=1)
    assert Tools().public_digest is None
    assert Tools(decoys=decoys).public_digest == decoys.checksum
    assert Tools(decoys=decoys, public=public).public_descriptors is public.descriptors


def test_what_the_tools_tell_about_a_recipe():
    decoys = Decoys(np.eye(8, 16, dtype=np.float32), Extractor("sift"), parts=1)
    tools = Tools(decoys=decoys, decoders={("sift", "random-2"): ("digest", lambda subspaces: subspaces.origin)})
    assert tools.known_fields("sift", "random-2") == {"clear", "releases", "public", "decoder"}
    assert tools.known_fields("sift", "hybrid-2") == {"clear", "releases", "public", "decoys"}
    assert Tools().known_fields("sift", "hybrid-2") == {"clear", "releases"}


def test_a_decoder_of_unknown_descriptors_fits_all():
    tools = Tools(decoders={("unknown", "random-2"): ("any", None), ("sift", "random-2"): ("own", None)})
    assert tools.decoder("sift", "random-2") == ("own", None)
    assert tools.decoder("hardtfeat", "random-2") == ("any", None)
    assert tools.decoder("sift", "random-4") is None


def test_encoders_in_the_folder_are_passed_over_and_their_names_do_not_matter(
    bundled_file, tmp_path, make_encoder, make_painter
):
    shutil.copy(bundled_file, tmp_path / "mine.safetensors")
    save_encoder(tmp_path / "n.safetensors", make_encoder())
    assert len(load_models(tmp_path)[0]) == 1
    painter = make_painter("ninja:mine@0123456789ab")
    tools = Tools(inverters=[painter], decoders={("sift", "ninja@0123456789ab"): ("digest", None)})
    assert tools.inverter("sift", "ninja-sift-2.5@0123456789ab") is painter
    assert tools.inverter("sift", "ninja:mine@ba9876543210") is None
    assert tools.decoder("sift", "ninja:other@0123456789ab") == ("digest", None)
    assert tools.known_fields("sift", "ninja:x@0123456789ab") == {"clear", "releases", "encoder", "decoder"}


def test_a_toolbox_is_opened(tmp_path):
    tools = Toolbox().open()
    assert tools.inverter("sift", "raw") is not None
    assert (tools.decoys, tools.public, tools.size_bytes) == (None, None, 0)
    with pytest.raises(FileError, match="no such"):
        Toolbox(public=tmp_path / "gone.npz").open()


def test_a_photo_is_concealed_once_for_all_attacks():
    features, other = (sfumato.extract(sample_image(name), max_features=5) for name in ("coffee", "chelsea"))
    tools, recipe = Tools(), Recipe.of("random-2")
    first = tools.concealed.conceal(features, recipe, None, 0)
    assert tools.concealed.conceal(features, recipe, None, 0) is first
    second = tools.concealed.conceal(features, recipe, None, 1)
    assert not np.array_equal(second.code.origin, first.code.origin)
    assert tools.concealed.conceal(other, recipe, None, 0) is not first
    again = tools.concealed.conceal(features, recipe, None, 0)
    assert again is not first
    np.testing.assert_array_equal(again.code.origin, first.code.origin)


def test_inverters_of_readings_are_found_for_a_seal_of_any_key(make_painter):
    reader, of_patches = make_painter("sealed-64:0.3", "cells"), make_painter("sealed-64:0.3")
    tools = Tools(inverters=[make_painter(), reader, of_patches])
    assert tools.inverters_of_readings("sift", "sealed-64:0.3@0123456789ab") == [reader]
    for other in ("sealed-64:0.31@0123456789ab", "sealed-64@0123456789ab", "ninja-x@0123456789ab", "raw"):
        assert not tools.inverters_of_readings("sift", other)
    assert not tools.inverters_for("sift", "sealed-64:0.3@0123456789ab"), "no network sees through bits"
    assert (reader.title, make_painter().title) == ("inverter trained on it", "patch")
