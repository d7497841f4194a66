# SPDX-License-Identifier: Apache-2.0
import cv2
import numpy as np
import pytest

from sfumato.errors import ImageError, InputError
from sfumato.features.local import LocalParams
from sfumato.images.samples import sample_image
from sfumato.training.pairs import DescriptorPairs, PairParams, check_descriptor, is_pair_file, read_pairs, save_pairs
from sfumato.types.extractor import Extractor

RNG = np.random.default_rng(0)


def noise(*shape):
    return RNG.integers(0, 256, shape, np.uint8)


def test_ubc(tmp_path):
    cv2.imwrite(str(tmp_path / "patches0000.bmp"), noise(1024, 1024))
    (tmp_path / "info.txt").write_text("".join(f"{row // 3} 0\n" for row in range(60)))
    pairs = read_pairs(tmp_path)
    assert (len(pairs), len(np.unique(pairs.points)), set(pairs.groups.tolist())) == (40, 20, {0})
    assert len(read_pairs(tmp_path, PairParams(most=15))) == 10  # 5 points of 3 patches


def test_hpatches(tmp_path):
    for name in ("i_dome", "v_wall"):
        (tmp_path / name).mkdir()
        for stripe in ("ref", *(f"{letter}{number}" for letter in "eht" for number in range(1, 6))):
            cv2.imwrite(str(tmp_path / name / f"{stripe}.png"), noise(65 * 3, 65))
    pairs = read_pairs(tmp_path)
    assert (len(pairs), set(pairs.groups.tolist())) == (2 * 3 * 3 * 5, {0, 1})
    assert np.unique(pairs.points, return_counts=True)[1].tolist() == [15] * 6  # a point is the same at every level
    assert set(pairs.points[pairs.groups == 1].tolist()) == {3, 4, 5}
    assert len(read_pairs(tmp_path, PairParams(most=36))) == 2 * 3 * 5


def test_photos_and_their_file(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), cv2.resize(sample_image("coffee").pixels[:, :, ::-1], (260, 200)))
    params = PairParams(views=1, local=LocalParams(max_features=100))
    pairs = read_pairs(tmp_path, params)
    assert len(pairs) > 20
    save_pairs(tmp_path / "pairs.npz", pairs)
    assert np.array_equal(read_pairs(tmp_path / "pairs.npz", params).second, pairs.second)
    with pytest.raises(InputError, match="rootsift"):
        read_pairs(tmp_path / "pairs.npz", PairParams(local=LocalParams(descriptor="rootsift")))


def test_what_is_wrong_is_told(tmp_path):
    with pytest.raises(ImageError, match="no images"):
        read_pairs(tmp_path)
    cv2.imwrite(str(tmp_path / "patches0000.bmp"), noise(1024, 1024))
    (tmp_path / "info.txt").write_text("".join(f"{row} 0\n" for row in range(20)))
    with pytest.raises(InputError, match="no point"):
        read_pairs(tmp_path)


def test_pairs_of_another_descriptor_are_refused(tmp_path):
    def pairs(name):
        return DescriptorPairs(np.ones((1, 2)), np.ones((1, 2)), np.zeros(1, int), np.zeros(1, int), Extractor(name))

    for name, wanted in (
        ("sift", "sift"),
        ("hardnet-0123abcd", "hardnet"),
        ("hardnet-0123abcd", "hardnet-0123abcd"),
        ("unknown", "rootsift"),
        ("super-point", "super-point"),
    ):
        check_descriptor(pairs(name), wanted, "p.npz")
    for name, wanted, advice in (
        ("sift", "rootsift", "choose"),
        ("hardnet-0123abcd", "hardnet-ffffffff", "weights"),
        ("hardnet-0123abcd", "hynet", "choose"),
        ("super-point", "super", "choose"),
    ):
        with pytest.raises(InputError, match=f"p.npz.*{name}.*{wanted}.*{advice}"):
            check_descriptor(pairs(name), wanted, "p.npz")


def test_a_file_of_pairs_is_told_by_its_name(tmp_path):
    (tmp_path / "p.npz").touch()
    (tmp_path / "folder.npz").mkdir()
    assert is_pair_file(tmp_path / "p.npz")
    assert not any(map(is_pair_file, (tmp_path, tmp_path / "folder.npz", tmp_path / "none.npz")))
