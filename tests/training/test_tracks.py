# SPDX-License-Identifier: Apache-2.0
import struct

import cv2
import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.features.local import LocalParams, extract
from sfumato.images.homography import make_pair
from sfumato.images.samples import sample_image
from sfumato.training.tracks import observe, pairs_from_tracks
from sfumato.training.views import same_keypoints
from sfumato.types.clear import Image

LOCAL = LocalParams(max_features=150)


def write_model(folder, keypoints, tracks):
    """Write images.bin and points3D.bin: keypoints (N, 4) ours by image, tracks lists of (image, row) of a point."""
    folder.mkdir()
    seen = {name: np.full(len(rows), -1, np.int64) for name, rows in keypoints.items()}
    for number, track in enumerate(tracks):
        for name, row in track:
            seen[name][row] = 100 + number
    images = struct.pack("<Q", len(keypoints))
    for number, (name, rows) in enumerate(keypoints.items(), 1):
        images += struct.pack("<I7dI", number, 1, 0, 0, 0, 0, 0, 0, 1) + name.encode() + b"\0"
        images += struct.pack("<Q", len(rows))
        for (x, y), point in zip(rows[:, :2] + 0.5, seen[name], strict=True):
            images += struct.pack("<2dq", x, y, point)
    (folder / "images.bin").write_bytes(images)
    points = struct.pack("<Q", len(tracks))
    for number, track in enumerate(tracks):
        points += struct.pack("<Q3d3BdQ", 100 + number, 0, 0, 0, 9, 9, 9, 0.1, len(track)) + bytes(8 * len(track))
    (folder / "points3D.bin").write_bytes(points)


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    """Three photos, of which two are views of the first, and the model that tells their common points."""
    place = tmp_path_factory.mktemp("mapped")
    (place / "images").mkdir()
    photo = Image(cv2.resize(sample_image("coffee").pixels, (300, 200)), "a.png")
    rng = np.random.default_rng(0)
    pairs = [make_pair(photo, rng) for _ in range(2)]
    pictures = {"a.png": photo, "b.png": pairs[0].second, "c.png": pairs[1].second}
    for name, image in pictures.items():
        cv2.imwrite(str(place / "images" / name), image.pixels[:, :, ::-1])
    features = {name: extract(image, LOCAL) for name, image in pictures.items()}
    tracks = {row: [("a.png", row)] for row in range(len(features["a.png"]))}
    for name, pair in zip("bc", pairs, strict=True):
        same = same_keypoints(features["a.png"].keypoints, features[f"{name}.png"].keypoints, pair.homography)
        for first, second in same.tolist():
            tracks[first].append((f"{name}.png", second))
    several = [track for track in tracks.values() if len(track) > 1]
    keypoints = {name: one.keypoints for name, one in features.items()}
    write_model(place / "model", keypoints, several)
    return place, several, features


def test_every_observation_of_a_point_is_found_again(mapped):
    place, tracks, features = mapped
    seen = observe(place / "model", place / "images", LOCAL)
    assert repr(seen) == f"Observations({sum(map(len, tracks))} of {len(tracks)} points, clear)"
    names = ("a.png", "b.png", "c.png")
    for point, image, descriptor in zip(seen.points, seen.images, seen.descriptors, strict=True):
        row = dict(tracks[point])[names[image]]
        assert np.array_equal(descriptor, features[names[image]].descriptors[row])


def test_pairs_are_the_first_observation_with_each_other(mapped):
    place, tracks, _ = mapped
    pairs = pairs_from_tracks(place / "model", place / "images", LOCAL)
    assert len(pairs) == sum(len(track) - 1 for track in tracks)
    assert set(pairs.groups.tolist()) == {0}
    own = np.linalg.norm(pairs.first - pairs.second, axis=1)
    assert np.median(own) < 0.4
    assert pairs.extractor.name == "sift"


def test_a_model_of_other_settings_finds_what_is_near(mapped):
    """More features than the model has: rows mean nothing, places do."""
    place, tracks, _ = mapped
    pairs = pairs_from_tracks(place / "model", place / "images", LocalParams(max_features=400))
    assert len(pairs) > 0.7 * sum(len(track) - 1 for track in tracks)
    assert np.median(np.linalg.norm(pairs.first - pairs.second, axis=1)) < 0.45


def test_what_is_wrong_is_told(mapped, tmp_path):
    place, _, features = mapped
    with pytest.raises(FileError, match="holds no COLMAP model"):
        pairs_from_tracks(tmp_path, place / "images")
    with pytest.raises(FileError, match="not there"):
        pairs_from_tracks(place / "model", tmp_path / "gone")
    with pytest.raises(FileError, match="3 photos"):
        pairs_from_tracks(place / "model", tmp_path)
    keypoints = {"a.png": features["a.png"].keypoints, "b.png": features["b.png"].keypoints}
    write_model(tmp_path / "lonely", keypoints, [[("a.png", 3)], [("b.png", 5)]])
    with pytest.raises(InputError, match="found again"):
        pairs_from_tracks(tmp_path / "lonely", place / "images", LOCAL)
    write_model(tmp_path / "hostile", {"../a.png": features["a.png"].keypoints}, [])
    with pytest.raises(FileError, match="not in"):
        pairs_from_tracks(tmp_path / "hostile", place / "images", LOCAL)
