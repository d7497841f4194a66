# SPDX-License-Identifier: Apache-2.0
"""The settings of UNet and UResNet trainings."""

import pytest

from sfumato.errors import InputError
from sfumato.features.local import LocalParams
from sfumato.training.image import ImageTrainParams


def test_wrong_settings_are_all_told():
    with pytest.raises(InputError, match=r"batch.*architecture"):
        ImageTrainParams(batch=0, architecture="vnet")
    with pytest.raises(InputError, match="32"):
        ImageTrainParams(architecture="uresnet", side=48)
    with pytest.raises(InputError, match="encoder"):
        ImageTrainParams(encoder="r.pth")
    with pytest.raises(InputError, match="'batch'"):
        ImageTrainParams(bath=3)


def test_facts_name_no_files_and_nothing_that_does_not_matter():
    facts = ImageTrainParams(perceptual="/home/somebody/vgg16.pth", minutes=3, device="cuda").facts()
    assert facts["perceptual"] is True
    assert not {"minutes", "steps", "device", "save_minutes"} & set(facts)
    assert "somebody" not in str(facts)
    assert facts["local"]["max_features"] == LocalParams(max_features=1000).max_features
