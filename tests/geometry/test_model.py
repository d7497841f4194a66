# SPDX-License-Identifier: Apache-2.0
import shutil

import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.geometry.colmap import load_pycolmap
from sfumato.geometry.model import read_model, refuse_other_keypoints


@pytest.fixture(scope="module")
def place(places):
    return places.make_place()


@pytest.fixture(scope="module")
def model_folder(places, place, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    places.write_model(place, folder)
    return folder


def test_points_and_who_sees_them(places, place, tmp_path):
    numbers = places.write_model(place, tmp_path)
    model = read_model(tmp_path)
    assert model.names == tuple(sorted(places.VIEWS))
    assert model.numbers.tolist() == sorted(numbers)
    known = np.array([numbers[number] for number in model.numbers.tolist()])
    assert np.allclose(model.landmarks.positions, place.points[known], atol=1e-12)
    for name in model.names:
        sight = model.sight(name)
        assert (np.diff(sight.keypoints) > 0).all()
        assert (place.seen[name][sight.keypoints] == known[sight.landmarks]).all()
        assert np.abs(place.features[name].keypoints[sight.keypoints, :2] - sight.places).max() < 1e-4
        assert model.count(name) == len(place.features[name])
        refuse_other_keypoints(name, model, place.features[name].keypoints)
    assert "nowhere.jpg" not in model
    assert model.rows_of(np.array([model.numbers[3], 10**9, -1])).tolist() == [3, -1, -1]


def test_places_are_half_a_pixel_less_than_colmaps(model_folder):
    """A point's projection, computed by COLMAP from pose and camera, is where our keypoint is, plus 0.5."""
    made, model = load_pycolmap().Reconstruction(str(model_folder)), read_model(model_folder)
    image = next(image for image in made.images.values() if image.name == "db/a.jpg")
    sight = model.sight("db/a.jpg")
    projected = np.array([image.project_point(made.point3D(n).xyz) for n in model.numbers[sight.landmarks].tolist()])
    assert np.abs(np.median(sight.places + 0.5 - projected, axis=0)).max() < 0.1
    assert np.abs(sight.places + 0.5 - projected).max() < 2


def test_the_files_say_what_colmap_reads_in_them(model_folder):
    ours, theirs = read_model(model_folder), load_pycolmap().Reconstruction(str(model_folder))
    assert list(ours.names) == sorted(theirs.image(number).name for number in theirs.reg_image_ids())
    assert ours.numbers.tolist() == sorted(theirs.points3D)
    positions = [theirs.point3D(number).xyz for number in ours.numbers.tolist()]
    assert np.array_equal(ours.landmarks.positions, positions)
    for number in theirs.reg_image_ids():
        image = theirs.image(number)
        sight = ours.sight(image.name)
        assert ours.count(image.name) == image.num_points2D()
        assert sight.keypoints.tolist() == list(image.get_observation_point2D_idxs())
        points = image.get_observation_points2D()
        assert ours.numbers[sight.landmarks].tolist() == [point.point3D_id for point in points]
        assert np.array_equal(sight.places, [point.xy - 0.5 for point in points])


def test_text_models_are_to_be_converted(places, place, model_folder, tmp_path):
    load_pycolmap().Reconstruction(str(model_folder)).write_text(str(tmp_path))
    with pytest.raises(FileError, match="model_converter"):
        read_model(tmp_path)


def test_an_empty_model_is_one(tmp_path):
    load_pycolmap().Reconstruction().write(str(tmp_path))
    model = read_model(tmp_path)
    assert (len(model.landmarks), model.names) == (0, ())
    assert model.rows_of(np.array([1])).tolist() == [-1]


def test_text_forms_show_no_positions(model_folder):
    model = read_model(model_folder)
    assert repr(model) == f"Model({len(model.landmarks)} points, 5 images)"


def test_what_is_no_model_is_told(tmp_path):
    with pytest.raises(FileError, match="holds no COLMAP model"):
        read_model(tmp_path)
    with pytest.raises(FileError, match="holds no COLMAP model"):
        read_model(tmp_path / "none")


@pytest.mark.parametrize("name", ["images.bin", "points3D.bin"])
@pytest.mark.parametrize("change", ["cut", "empty", "noise", "longer", "huge"])
def test_damaged_models_are_told(model_folder, tmp_path, name, change):
    shutil.copytree(model_folder, tmp_path / "copy")
    path = tmp_path / "copy" / name
    content = path.read_bytes()
    noise = np.random.default_rng(0).integers(0, 256, len(content) - 8, np.uint8).tobytes()
    changed = {
        "cut": content[: len(content) // 2],
        "empty": b"",
        "noise": content[:8] + noise,
        "longer": content + b"x",
        "huge": b"\xff" * 8 + content[8:],
    }
    path.write_bytes(changed[change])
    with pytest.raises(FileError, match="make"):
        read_model(tmp_path / "copy")


def test_other_keypoints_are_refused(place, model_folder):
    model, keypoints = read_model(model_folder), place.features["db/a.jpg"].keypoints
    with pytest.raises(InputError, match="features"):
        refuse_other_keypoints("db/a.jpg", model, keypoints[:-1])
    with pytest.raises(InputError, match="other keypoints"):
        refuse_other_keypoints("db/a.jpg", model, keypoints[::-1])
    with pytest.raises(InputError, match="other keypoints"):
        refuse_other_keypoints("db/a.jpg", model, keypoints + np.float32(0.5))


@pytest.mark.parametrize("seed", range(40))
def test_a_few_wrong_bytes_are_told_or_harmless(model_folder, tmp_path, seed):
    rng = np.random.default_rng(seed)
    shutil.copytree(model_folder, tmp_path / "copy")
    path = tmp_path / "copy" / ("images.bin", "points3D.bin")[seed % 2]
    content = bytearray(path.read_bytes())
    for place in rng.integers(0, min(len(content), 2000 if seed % 4 < 2 else len(content)), 3):
        content[place] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)
    try:
        model = read_model(tmp_path / "copy")
    except FileError:
        return
    assert len(model.landmarks.observations) == len(model.places)
