# SPDX-License-Identifier: Apache-2.0
import cv2
import numpy as np
import pytest

from sfumato.errors import FileError, ImageError, InputError
from sfumato.experiments.patches.sources import PatchReader, PatchSourceParams, open_patches
from sfumato.features.local import LocalParams
from sfumato.training.patch_sets import LEVELS, read_hpatches
from sfumato.training.views import ViewParams

FEW = PatchSourceParams(views=ViewParams(views=1), points=60)


@pytest.fixture
def ubc(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("liberty", "yosemite"):
        (tmp_path / name).mkdir()
        cv2.imwrite(str(tmp_path / name / "patches0000.bmp"), rng.integers(0, 256, (1024, 1024), np.uint8))
        (tmp_path / name / "info.txt").write_text("".join(f"{row // 2} 0\n" for row in range(100)))
        lines = [f"{row} {row // 2} 0 {row + 1} {(row + 1) // 2} 0\n" for row in range(40, 60)]
        (tmp_path / name / "m50_10_10_0.txt").write_text("".join(lines))
    return tmp_path


@pytest.fixture
def hpatches(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("i_dome", "v_wall"):
        (tmp_path / name).mkdir()
        for stripe in ("ref", *(f"{letter}{number}" for letter in "eht" for number in range(1, 6))):
            cv2.imwrite(str(tmp_path / name / f"{stripe}.png"), rng.integers(0, 256, (65 * 4, 65), np.uint8))
    return tmp_path


def test_ubc_is_told_by_its_files(ubc):
    source = open_patches(ubc)
    assert repr(source) == "PatchSource(ubc, liberty, yosemite)"
    assert [sample.key for sample in open_patches(ubc / "liberty").samples] == ["liberty"]
    described = PatchReader(source, LocalParams())["yosemite"]
    assert repr(described) == "PatchDescriptors(21 patches, clear)"  # those of the list alone
    assert described.pairs.same.sum() == 10
    assert (described.labels.points[described.pairs.rows[:, 0]] == described.labels.points[described.pairs.rows[:, 1]])[
        described.pairs.same
    ].all()


def test_hpatches_is_told_by_its_stripes(hpatches):
    source = open_patches(hpatches)
    assert repr(source) == "PatchSource(hpatches, easy, hard, tough)"
    assert [len(part) for part in source.read("hard")[0]] == [4 * 6] * 2  # a sequence at a time
    labels = PatchReader(source, LocalParams())["hard"].labels
    whole = read_hpatches(hpatches, "hard")
    assert all(np.array_equal(getattr(labels, name), getattr(whole, name)) for name in ("points", "groups", "views"))
    assert [len(part) for part in open_patches(hpatches, PatchSourceParams(limit=1, points=2)).read("hard")[0]] == [
        2 * 6
    ]
    digests = {sample.digest for sample in source.samples}
    cv2.imwrite(str(hpatches / "v_wall" / "h3.png"), np.zeros((65 * 4, 65), np.uint8))
    changed = {sample.digest for sample in open_patches(hpatches).samples}
    assert len(digests & changed) == 2  # only hard is another


def test_photos_give_generated_patches(small_photos):
    folder = next(iter(small_photos.values())).parent
    source = open_patches(folder, FEW)
    assert repr(source) == "PatchSource(photos, easy, hard, tough)"
    (easy,) = source.read("easy")[0]
    assert easy is source.read("easy")[0][0]  # made once
    patches = PatchReader(source, LocalParams())
    assert {len(patches[level].labels) for level in LEVELS} == {len(easy)}
    other = open_patches(folder, PatchSourceParams(views=FEW.views, points=60, seed=1))
    assert other.samples[0].digest != source.samples[0].digest
    assert open_patches(folder, FEW).samples == source.samples


def test_what_is_wrong_is_told(tmp_path, small_photos):
    with pytest.raises(ImageError, match="no images"):
        open_patches(tmp_path)
    with pytest.raises(ImageError, match="not there"):
        open_patches(tmp_path / "gone")
    wall = tmp_path / "wall.png"
    wall.write_bytes(small_photos["wall.png"].read_bytes())
    with pytest.raises(InputError, match="no patch"):
        PatchReader(open_patches(wall, FEW), LocalParams())["easy"]
    (tmp_path / "info.txt").write_text("0 0\n")
    (tmp_path / "patches0000.bmp").write_text("no picture")
    with pytest.raises(FileError, match="pairs"):
        PatchReader(open_patches(tmp_path), LocalParams())[tmp_path.name]
