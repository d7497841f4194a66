# SPDX-License-Identifier: Apache-2.0
"""Clear features written as hloc keeps them come back as they were."""

import numpy as np
import pytest

import sfumato
from sfumato.errors import FileError, InputError
from sfumato.features.hloc import KIND, WARNING, extractor_in_hloc, read_hloc, write_hloc
from sfumato.images.samples import sample_image


@pytest.fixture(scope="module")
def features():
    return sfumato.extract(sample_image("coffee"), max_features=40)


def test_what_is_written_is_read_back(features, tmp_path):
    none = sfumato.Features(np.zeros((0, 4)), np.zeros((0, 128)), features.extractor)
    path = tmp_path / "clear.h5"
    assert write_hloc(path, [("deep/a.jpg", features), ("b.jpg", none)]) == 2
    back = dict(read_hloc(path, extractor="sift"))
    assert list(back) == ["b.jpg", "deep/a.jpg"]
    assert np.abs(back["deep/a.jpg"].descriptors - features.descriptors).max() < 1e-7
    assert np.array_equal(back["deep/a.jpg"].keypoints, features.keypoints)
    assert back["deep/a.jpg"].image_size == features.image_size
    assert len(back["b.jpg"]) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["clear.h5"]


def test_the_file_says_that_it_is_clear(features, tmp_path):
    import h5py

    write_hloc(tmp_path / "clear.h5", [("a", features)])
    with h5py.File(tmp_path / "clear.h5") as file:
        assert file.attrs["warning"].decode() == WARNING


def test_the_file_says_what_its_descriptors_are(features, tmp_path, caplog):
    path = tmp_path / "clear.h5"
    write_hloc(path, [("a", features), ("b", features)])
    assert extractor_in_hloc(path) == "sift"
    assert dict(read_hloc(path))["b"].extractor.name == "sift"
    assert not caplog.text


@pytest.mark.parametrize("kinds", [("sift", "rootsift"), ("sift", "unknown"), ("unknown",), ("hloc",)])
def test_kinds_that_differ_or_say_nothing_are_not_written(features, tmp_path, kinds):
    path = tmp_path / "clear.h5"
    some = [sfumato.Features(features.keypoints, features.descriptors, sfumato.Extractor(kind)) for kind in kinds]
    write_hloc(path, [(str(at), one) for at, one in enumerate(some)])
    assert extractor_in_hloc(path) is None


@pytest.mark.parametrize("told", [3, "", "a\x1b[2J", "x" * 300, np.arange(4), "hloc"])
def test_an_attribute_that_is_no_name_is_passed_over(features, tmp_path, told):
    import h5py

    path = tmp_path / "feats-disk.h5"
    write_hloc(path, [("a", features)])
    with h5py.File(path, "r+") as file:
        file.attrs[KIND] = told
    assert extractor_in_hloc(path) is None
    assert dict(read_hloc(path))["a"].extractor.name == "disk"


@pytest.mark.parametrize("names", [("../a",), ("",), ("a", "a"), ("a", "a/keypoints")])
def test_names_that_are_no_groups_are_refused(features, tmp_path, names):
    path = tmp_path / "clear.h5"
    path.write_text("before")
    with pytest.raises(InputError, match="image name"):
        write_hloc(path, [(name, features) for name in names])
    assert path.read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 1


def test_nothing_is_left_when_interrupted_or_not_allowed(features, tmp_path):
    def stopped():
        yield "a", features
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_hloc(tmp_path / "clear.h5", stopped())
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileError, match="written"):
        write_hloc(tmp_path / "nowhere" / "clear.h5", [("a", features)])
