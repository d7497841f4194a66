# SPDX-License-Identifier: Apache-2.0
"""Pictures of recovered descriptors: painted by the inverter that fits, written where they should be."""

from functools import partial

import numpy as np
import pytest

import sfumato
from sfumato.attacks.knowledge import Recovery
from sfumato.auditing.pictures import as_sift, paint_recovery, save_picture
from sfumato.errors import FileError, InputError
from sfumato.images.read import read_image
from sfumato.inversion.patches import load_inverter

pytestmark = pytest.mark.filterwarnings("ignore::sfumato.errors.EvaluationOnlyWarning")
conceal = partial(sfumato.conceal, evaluation_seed=1)


@pytest.fixture(scope="module")
def inverter():
    return load_inverter()


def test_clear_descriptors_paint_the_picture(sift, rootsift, inverter):
    seen = [
        paint_recovery(inverter, conceal(clear, "random-2"), Recovery(clear.descriptors, np.ones(len(clear))))
        for clear in (sift, rootsift)
    ]
    assert seen[0].shape == (400, 600, 3)
    assert np.abs(seen[0] - seen[1]).max() < 0.02  # the same features, in two forms
    assert seen[0].std() > 0.02


def test_rootsift_is_turned_back(sift, rootsift):
    assert np.abs(as_sift(rootsift.descriptors) - sift.descriptors).max() < 0.01  # COLMAP rounds both to bytes


def test_what_does_not_fit_is_refused(sift, gaussian, inverter):
    with pytest.raises(InputError, match="the image"):
        paint_recovery(inverter, conceal(gaussian, "random-2"), Recovery(gaussian.descriptors, np.ones(60)))
    other = sfumato.Features(sift.keypoints, sift.descriptors, sfumato.Extractor("hardnet"), sift.image_size)
    with pytest.raises(InputError, match="sift"):
        paint_recovery(inverter, conceal(other, "random-2"), Recovery(sift.descriptors, np.ones(len(sift))))


def test_no_name_leads_out_of_the_folder(tmp_path):
    path = save_picture(tmp_path / "out", "../../evil/a.jpg", "vertex", np.full((5, 7, 3), 0.5, np.float32))
    assert path.parent == tmp_path / "out"
    assert read_image(path).size == (7, 5)
    assert len(list(path.parent.iterdir())) == 1
    with pytest.raises(FileError, match="written"):
        save_picture(path, "a", "vertex", np.zeros((2, 2, 3), np.float32))
