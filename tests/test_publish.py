# SPDX-License-Identifier: Apache-2.0
import shutil

import h5py
import numpy as np
import pytest

import sfumato
from sfumato.errors import FileError, InputError
from sfumato.features.sources import open_source
from sfumato.geometry.model import read_model
from sfumato.geometry.model_folder import LANDMARKS
from sfumato.publish import _select_points, _write_public, export_clear, publish_points
from sfumato.store.public_points import load_public
from sfumato.types.concealed import PublicPoints
from sfumato.types.extractor import Extractor


@pytest.fixture(scope="module")
def place(places):
    return places.make_place()


@pytest.fixture(scope="module")
def model_folder(places, place, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    places.write_model(place, folder)
    return folder


@pytest.fixture(scope="module")
def clear(places, place, tmp_path_factory):
    """The clear features as hloc would have them, in a file."""
    path = tmp_path_factory.mktemp("clear") / "feats-sift.h5"
    with h5py.File(path, "w") as file:
        for name, features in place.features.items():
            group = file.create_group(name)
            group["keypoints"], group["descriptors"] = features.keypoints[:, :2], features.descriptors.T
            group["scales"], group["oris"] = features.keypoints[:, 2], features.keypoints[:, 3]
            group["image_size"] = np.array(features.image_size)
    return path


def test_only_mapped_points_of_the_map_are_published(clear, model_folder, place, places, tmp_path):
    done = publish_points(open_source(clear), model_folder, tmp_path / "p.sqlite")
    model = read_model(model_folder)
    assert (done.images, done.missing, done.unreadable) == (5, [], {})
    assert done.descriptors == len(model.landmarks.observations)
    assert done.points == len(model.landmarks)
    with load_public(tmp_path / "p.sqlite") as file:
        assert set(file) == set(places.VIEWS)
        assert file.extractor.name == "rootsift"
        for name in file:
            sight = model.sight(name)
            assert np.array_equal(file[name].points, model.numbers[sight.landmarks])
            mapped = place.features[name].descriptors[sight.keypoints]
            assert np.abs(file[name].descriptors - mapped).max() < 1e-6
            others = np.setdiff1d(np.arange(len(place.features[name])), sight.keypoints)
            assert len(others) >= places.CLUTTER
    assert [path.name for path in tmp_path.iterdir()] == ["p.sqlite"]


def test_a_file_that_is_there_stays_unless_told(clear, model_folder, tmp_path):
    (tmp_path / "p.sqlite").write_text("mine")
    with pytest.raises(FileError, match="exists"):
        publish_points(open_source(clear), model_folder, tmp_path / "p.sqlite")
    with pytest.raises(FileError, match="public points"):
        publish_points(open_source(clear), model_folder, tmp_path / "p.sqlite", overwrite=True)
    assert (tmp_path / "p.sqlite").read_text() == "mine"
    (tmp_path / "p.sqlite").unlink()
    for _ in range(2):
        publish_points(open_source(clear), model_folder, tmp_path / "p.sqlite", overwrite=True)
    assert len(load_public(tmp_path / "p.sqlite")) == 5


def test_a_map_of_sealed_features_is_not_published(clear, model_folder, place, tmp_path):
    """Their descriptors beside their seals are known pairs, and the key follows from those."""
    shutil.copytree(model_folder, tmp_path / "model")
    key = sfumato.new_key()
    sealed = {name: sfumato.conceal(one, "sealed-512", secret=key) for name, one in place.features.items()}
    sfumato.save(tmp_path / "model" / LANDMARKS, sealed)
    with pytest.raises(InputError, match="sealed"):
        publish_points(open_source(clear), tmp_path / "model", tmp_path / "p.sqlite")
    assert not (tmp_path / "p.sqlite").exists()


def test_images_that_are_missing_or_broken_are_named(clear, model_folder, tmp_path):
    copy = tmp_path / "feats-sift.h5"
    shutil.copy(clear, copy)
    with h5py.File(copy, "a") as file:
        del file["db/a.jpg"], file["db/b.jpg/descriptors"]
    done = publish_points(open_source(copy), model_folder, tmp_path / "p.sqlite")
    assert (done.images, done.missing, list(done.unreadable)) == (3, ["db/a.jpg"], ["db/b.jpg"])


def test_features_that_were_not_mapped_are_not_published(clear, model_folder, tmp_path):
    copy = tmp_path / "feats-sift.h5"
    shutil.copy(clear, copy)
    with h5py.File(copy, "a") as file:
        file["db/a.jpg/keypoints"][...] += 0.5
    with pytest.raises(FileError, match=r"'db/a\.jpg'"):
        publish_points(open_source(copy), model_folder, tmp_path / "p.sqlite")
    assert not (tmp_path / "p.sqlite").exists()


def test_nothing_in_common_is_told(clear, model_folder, tmp_path):
    copy = tmp_path / "feats-sift.h5"
    with h5py.File(clear) as file, h5py.File(copy, "w") as other:
        file.copy("query", other)
    with pytest.raises(FileError, match="publish"):
        publish_points(open_source(copy), model_folder, tmp_path / "p.sqlite")


def test_rows_are_selected_by_what_sees_a_point(place, model_folder):
    model = read_model(model_folder)
    points = _select_points("db/a.jpg", place.features["db/a.jpg"], model)
    assert len(points) == len(model.sight("db/a.jpg"))
    assert repr(points) == f"PublicPoints({len(points)} x 32 sift, published)"


def test_one_kind_of_descriptor_a_file(tmp_path):
    sift, other = (PublicPoints([1], np.ones((1, 4)), Extractor(name)) for name in ("sift", "superpoint"))
    with pytest.raises(InputError, match="superpoint"):
        _write_public(tmp_path / "p.sqlite", [("a", sift), ("b", other)])
    with pytest.raises(InputError, match="none"):
        _write_public(tmp_path / "p.sqlite", [])


def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(FileError, match="space left"):
        _write_public(tmp_path / "p.sqlite", [("a", PublicPoints([1], np.ones((1, 4))))])
    assert not list(tmp_path.iterdir())


def test_clear_features_for_ones_own_hloc(clear, place, tmp_path):
    outcome, unreadable = export_clear(open_source(clear), tmp_path / "hloc")
    assert (outcome.images, unreadable) == (7, {})
    with h5py.File(tmp_path / "hloc" / "features.h5") as file:
        for name, features in place.features.items():
            group = file[name]
            assert group["descriptors"].shape == (32, len(features))
            assert np.abs(group["descriptors"][()].T - features.descriptors).max() < 1e-6
            assert np.array_equal(group["keypoints"][()], features.keypoints[:, :2])
    again = dict(open_source(tmp_path / "hloc" / "features.h5", extractor="sift").features())
    assert np.array_equal(again["db/a.jpg"].keypoints, place.features["db/a.jpg"].keypoints)


def test_a_source_of_which_nothing_can_be_read(clear, tmp_path):
    copy = tmp_path / "feats-sift.h5"
    with h5py.File(copy, "w") as file:
        file.create_group("a.jpg")["keypoints"] = np.zeros((3, 2))
    with pytest.raises(FileError, match=r"read\. a\.jpg"):
        export_clear(open_source(copy), tmp_path / "hloc")
    assert not list((tmp_path / "hloc").iterdir())
