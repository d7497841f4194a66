# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.types.scene import CAMERA_MODELS


def test_camera_models_are_colmaps():
    """Names, numbers and parameters, asked of COLMAP itself."""
    pytest.importorskip("cv2")
    pycolmap = pytest.importorskip("pycolmap")
    for number, (name, parameters) in enumerate(CAMERA_MODELS.items()):
        model = getattr(pycolmap.CameraModelId, name)
        assert int(model) == number
        camera = pycolmap.Camera.create_from_model_id(1, model, 100.0, 64, 48)
        assert [word.strip() for word in camera.params_info.split(",")] == list(parameters)
        assert len(camera.params) == len(parameters)
    theirs = set(pycolmap.CameraModelId.__members__) - {"INVALID"}
    assert theirs == set(CAMERA_MODELS)
