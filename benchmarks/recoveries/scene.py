# SPDX-License-Identifier: Apache-2.0
"""Maps of concealed images, for the track attack: a made-up room, or a folder of posed images."""

import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import sfumato
from sfumato.attacks.knowledge import Knowledge
from sfumato.attacks.liftings.releases import recover_reveal, recover_tracks
from sfumato.attacks.run import companions_from_matches, companions_from_model
from sfumato.errors import EvaluationOnlyWarning
from sfumato.experiments.data.folders import read_posed_folder
from sfumato.experiments.data.room import make_room
from sfumato.geometry.mappers import MapParams
from sfumato.geometry.mapping import map_keypoints
from sfumato.geometry.model import Model, read_model
from sfumato.matching.pairs import exhaustive


@dataclass
class Scene:
    """Clear features, cameras and poses by image name."""

    clear: dict[str, sfumato.Features]
    cameras: dict[str, sfumato.Camera]
    poses: dict[str, sfumato.Pose]


def room_scene(rng: np.random.Generator, views: int, width: int, features: int) -> Scene:
    """Look around in a made-up room."""
    room = make_room(None, rng, views=views, width=width, height=width * 3 // 4)
    names = [view.image.name for view in room.views]
    clear = {view.image.name: sfumato.extract(view.image, max_features=features) for view in room.views}
    return Scene(
        clear,
        dict(zip(names, (view.camera for view in room.views), strict=True)),
        dict(zip(names, (view.pose for view in room.views), strict=True)),
    )


def posed_scene(folder: Path, features: int) -> Scene:
    """Read a folder of posed images."""
    images = read_posed_folder(folder)
    clear = {name: sfumato.extract(path, max_features=features) for name, path in images.paths.items()}
    return Scene(clear, dict(images.cameras), dict(images.poses))


@dataclass
class Mapped:
    """What a server has of a scene: concealed features by image name, matches between them, and the map."""

    hidden: dict[str, sfumato.ConcealedFeatures]
    matches: dict[tuple[str, str], sfumato.Matches]
    model: Model


def map_scene(scene: Scene, recipe: str, decoys: sfumato.Decoys, seed: int) -> Mapped:
    """Conceal every image, match them, and map them with known poses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        hidden = {
            name: sfumato.conceal(clear, recipe, decoys, evaluation_seed=seed + number)
            for number, (name, clear) in enumerate(sorted(scene.clear.items()))
        }
    matches = {(a, b): sfumato.match(hidden[a], hidden[b]) for a, b in exhaustive(sorted(hidden))}
    keypoints = {name: features.keypoints for name, features in hidden.items()}
    with tempfile.TemporaryDirectory(prefix="sfumato-recovery-") as place:
        outcome = map_keypoints(
            keypoints, scene.cameras, matches, Path(place) / "model", MapParams(threads=1, seed=seed), poses=scene.poses
        )
        if outcome.folder is None:
            raise SystemExit(f"no map: {outcome.reason}")
        return Mapped(hidden, matches, read_model(outcome.folder))


def attack_scene(scene: Scene, recipe: str, decoys: sfumato.Decoys, seed: int) -> dict[str, np.ndarray]:
    """Map the concealed images with known poses, then attack every image with its tracks.

    Returns for each feature ``length`` (observations of its track, 1 outside any), the distance to its clear
    descriptor by the ``tracks`` attack and by the closest ``partner`` (NaN without one), and its ``confidence``.
    """
    mapped = map_scene(scene, recipe, decoys, seed)
    hidden, matches, model = mapped.hidden, mapped.matches, mapped.model
    found: dict[str, list[np.ndarray]] = {"length": [], "tracks": [], "partner": [], "confidence": []}
    for name in model.names:
        tracks = companions_from_model(name, model, hidden)
        partners = companions_from_matches(name, matches, hidden, nearest_only=True)
        clear = scene.clear[name].descriptors
        recovered = recover_tracks(hidden[name], Knowledge(tracks=tracks))
        closest = recover_reveal(hidden[name], Knowledge(partners=partners))
        distances = np.full(len(clear), np.nan)
        distances[partners.rows] = np.linalg.norm(closest.descriptors - clear, axis=1)[partners.rows]
        found["length"].append(1 + np.bincount(tracks.rows, minlength=len(clear)))
        found["tracks"].append(np.linalg.norm(recovered.descriptors - clear, axis=1))
        found["partner"].append(distances)
        found["confidence"].append(recovered.confidence)
    return {key: np.concatenate(values) for key, values in found.items()}
