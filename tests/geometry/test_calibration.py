# SPDX-License-Identifier: Apache-2.0
import pycolmap
import pytest

from sfumato.geometry import mappers
from sfumato.geometry.mappers import MapParams, doubt_cameras
from sfumato.geometry.mapping import map_keypoints
from sfumato.types.scene import Camera


@pytest.fixture(scope="module")
def mapped(make_scene, tmp_path_factory):
    """Outcomes of mapping one scene, by the focal length that was given."""
    scene, folder = make_scene(5, 150), tmp_path_factory.mktemp("maps")

    def make(focal, **options):
        cameras = dict.fromkeys(scene.cameras, Camera("PINHOLE", 640, 480, (focal, focal - 10, 322.5, 238.5)))
        name = f"{focal:.0f}-{len(list(folder.iterdir()))}"
        return map_keypoints(scene.keypoints, cameras, scene.matches, folder / name, MapParams(**options))

    return make


def test_right_cameras_are_not_doubted(mapped):
    outcome = mapped(800.0)
    assert outcome.doubt == ()
    assert doubt_cameras(pycolmap.Reconstruction(str(outcome.folder)), lambda name: True) == ""


@pytest.mark.parametrize("focal", [400.0, 640.0, 1100.0])
def test_wrong_cameras_are_doubted_and_the_map_is_as_it_was(mapped, focal):
    outcome = mapped(focal)
    assert "of 5 images do not fit" in outcome.doubt[-1]
    assert "reprojection error falls from" in outcome.doubt[-1]
    made = pycolmap.Reconstruction(str(outcome.folder))
    assert all(camera.params[0] == focal for camera in made.cameras.values())
    assert doubt_cameras(made, lambda name: True) == outcome.doubt[-1]
    assert all(camera.params[0] == focal for camera in made.cameras.values())
    assert doubt_cameras(made, lambda name: False) == ""


def test_guessed_cameras_are_adjusted_and_nobody_is_bothered(mapped):
    assert mapped(640.0, guessed=[f"{i:02}.jpg" for i in range(5)]).doubt == ()
    assert mapped(640.0, refine_intrinsics=True).doubt == ()


def test_a_check_that_fails_costs_no_map(mapped, monkeypatch):
    def fail(reconstruction, threads):
        raise RuntimeError("ceres gave up")

    monkeypatch.setattr(mappers, "_adjusted", fail)
    outcome = mapped(800.0)
    assert outcome.folder is not None
    assert "could not be checked: ceres gave up" in outcome.doubt[-1]


def test_an_empty_reconstruction():
    assert doubt_cameras(pycolmap.Reconstruction(), lambda name: True) == ""
