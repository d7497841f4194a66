# SPDX-License-Identifier: Apache-2.0
"""A generated place: points, views with exact poses, clear features, a COLMAP model; the fixture ``places``."""

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import sfumato
from sfumato.errors import EvaluationOnlyWarning
from sfumato.geometry.colmap import load_pycolmap
from sfumato.types.clear import Features
from sfumato.types.scene import Camera, Pose

WIDTH, HEIGHT, FOCAL = 640, 480, 500.0
CLUTTER = 40
VIEWS = ("db/a.jpg", "db/b.jpg", "db/c d.jpg", "db/é.jpg", "deep/er/e.jpg")
QUERIES = ("query/0.jpg", "query/1.jpg")


@dataclass
class Place:
    """``seen`` holds, for each keypoint of an image, the point it sees or -1."""

    points: np.ndarray
    camera: Camera
    poses: dict[str, Pose]
    features: dict[str, Features]
    seen: dict[str, np.ndarray]

    def concealed(self, names, recipe="random-2", seed=7):
        """Concealed features; each image draws for itself."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EvaluationOnlyWarning)
            return {
                name: sfumato.conceal(self.features[name], recipe, evaluation_seed=seed + row)
                for row, name in enumerate(names)
            }

    def archive(self, path, names, recipe="random-2", seed=7):
        sfumato.save(path, self.concealed(names, recipe, seed))
        return path


def make_place(seed=0, count=260, ambient_dim=32, noise_px=0.3) -> Place:
    rng = np.random.default_rng(seed)
    points = rng.uniform([-3, -2, 5], [3, 2, 9], (count, 3))
    words = unit(rng.standard_normal((count, ambient_dim)))
    camera = Camera("PINHOLE", WIDTH, HEIGHT, (FOCAL, FOCAL, WIDTH / 2, HEIGHT / 2))
    poses, features, seen = {}, {}, {}
    for row, name in enumerate((*VIEWS, *QUERIES)):
        poses[name] = look(np.array([-1.5 + 0.45 * row, 0.3 * (-1) ** row, 0.1 * row]), rng)
        places = project(points, poses[name], camera)
        inside = np.flatnonzero(((places > 5) & (places < [WIDTH - 5, HEIGHT - 5])).all(axis=1))
        inside = inside[rng.random(len(inside)) < 0.85]
        order = rng.permutation(len(inside) + CLUTTER)
        sees = np.concatenate([inside, np.full(CLUTTER, -1)])[order]
        pixels = np.concatenate(
            [places[inside] + noise_px * rng.standard_normal((len(inside), 2)) - 0.5,
             rng.uniform(5, [WIDTH - 5, HEIGHT - 5], (CLUTTER, 2))]
        )[order]  # fmt: skip
        described = np.concatenate(
            [words[inside] + 0.05 * rng.standard_normal((len(inside), ambient_dim)) / np.sqrt(ambient_dim),
             rng.standard_normal((CLUTTER, ambient_dim))]
        )[order]  # fmt: skip
        keypoints = np.column_stack([pixels, rng.uniform(1, 9, len(pixels)), rng.uniform(0, 360, len(pixels))])
        features[name] = Features(keypoints, unit(described), sfumato.Extractor("sift"), (WIDTH, HEIGHT))
        seen[name] = sees
    return Place(points, camera, poses, features, seen)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def look(center, rng) -> Pose:
    axis = rng.uniform(-0.1, 0.1, 3)
    angle = np.linalg.norm(axis)
    x, y, z = axis / angle
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    rotation = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
    return Pose(rotation, -rotation @ center)


def project(points, pose, camera):
    """Pixels in COLMAP's convention, by hand: a pinhole and nothing else."""
    local = points @ pose.rotation.T + pose.translation
    fx, fy, cx, cy = camera.params
    return np.column_stack([fx * local[:, 0] / local[:, 2] + cx, fy * local[:, 1] / local[:, 2] + cy])


def write_model(place: Place, folder: Path, views=VIEWS, first_point=11) -> dict[int, int]:
    """Write a COLMAP model of the views; return the point of each of COLMAP's numbers."""
    pycolmap = load_pycolmap()
    made = pycolmap.Reconstruction()
    camera = pycolmap.Camera(model="PINHOLE", width=WIDTH, height=HEIGHT, params=list(place.camera.params))
    camera.camera_id = 1
    made.add_camera_with_trivial_rig(camera)
    tracks: dict[int, list] = {}
    for number, name in enumerate(views, 5):
        pixels = place.features[name].keypoints[:, :2].astype(np.float64) + 0.5
        pose = place.poses[name]
        image = pycolmap.Image(name=name, keypoints=pixels, camera_id=1, image_id=number)
        rigid = pycolmap.Rigid3d(pycolmap.Rotation3d(np.array(pose.rotation)), np.array(pose.translation))
        made.add_image_with_trivial_frame(image, rigid)
        for row, point in enumerate(place.seen[name]):
            if point >= 0:
                tracks.setdefault(int(point), []).append(pycolmap.TrackElement(number, row))
    numbers = {}
    for row, (point, elements) in enumerate(tracks.items()):
        if len(elements) > 1:
            numbers[first_point + 3 * row] = point
            mapped = pycolmap.Point3D(xyz=place.points[point], track=pycolmap.Track(elements))
            made.add_point3D_with_id(first_point + 3 * row, mapped)
    folder.mkdir(parents=True, exist_ok=True)
    made.write(str(folder))
    return numbers
