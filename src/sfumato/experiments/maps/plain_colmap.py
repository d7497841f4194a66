# SPDX-License-Identifier: Apache-2.0
"""Plain COLMAP on the same photos: the reference where nothing else is known about them, and a row of every table.

COLMAP's own SIFT, exhaustive matching and incremental mapper, all as they come, one camera per photo. Three seeds are
mapped; the map with most images, then points, is the reference. Kept are figures, times, and the poses and cameras of
that map, in a world of its own.
"""

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.auditing.task import Figures, Prediction, Sample, Task, short_digest
from sfumato.errors import InputError
from sfumato.experiments.maps.scene import stored_predictions
from sfumato.geometry.colmap import load_pycolmap, silence
from sfumato.geometry.statistics import MapStatistics, compare_poses, poses_of, statistics_of
from sfumato.types.scene import Camera, Pose

VERSION = 2
"""Of what is kept: raise it with every change."""

SEEDS = (0, 1, 2)
SAME_DEG = 1.0
"""Maps of two seeds agree if they have the same images and no rotation between two of them differs by more."""
MODEL = "SIMPLE_RADIAL"
JPEG_QUALITY = 95
STEPS = ("extraction", "matching", "mapping")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PlainMap:
    """What plain COLMAP made of some photos; without poses if it made no map.

    ``seconds`` of its steps for all photos: extraction, matching with verification, and mapping with one seed.
    ``seed_counts``: images that the map of each seed has. ``seed_degrees``: by how much rotations of the maps of two
    seeds differ at most. ``agreeing``: whether all seeds made the same map.
    """

    statistics: MapStatistics
    poses: Mapping[str, Pose]
    cameras: Mapping[str, Camera]
    seconds: Mapping[str, float]
    seed_counts: tuple[int, ...]
    seed_degrees: float
    agreeing: bool

    @property
    def size(self) -> float:
        """Size of the scene in the unit of its map: the median distance between two cameras; 0 without a map."""
        return scene_size(self.poses)

    def __repr__(self) -> str:
        return f"PlainMap({self.statistics.registered} of {self.statistics.images} images)"


def scene_size(poses: Mapping[str, Pose]) -> float:
    """Return the median distance between two cameras; 0 for fewer than two."""
    distances = [float(np.linalg.norm(a.center - b.center)) for a, b in combinations(poses.values(), 2)]
    return float(np.median(distances)) if distances else 0.0


def map_plainly(paths: Mapping[str, Path], digests: Mapping[str, str], folder: str | Path) -> PlainMap:
    """Map photos with plain COLMAP, or read what it made of the same photos before from below ``folder``.

    Raises InputError where COLMAP cannot read or map them at all.
    """
    task = Task(
        name="plain-colmap",
        samples=[Sample("photos", short_digest(sorted(digests.items())))],
        predict=lambda _: _predict(paths),
        score=_score,
        summarise=lambda figures: [],
        params={"colmap": load_pycolmap().__version__, "camera": MODEL, "seeds": len(SEEDS)},
        version=VERSION,
    )
    return _read(stored_predictions(task, folder)[0])


def _score(_sample: Sample, prediction: Prediction) -> Figures:
    return {"registered images": float(prediction["registered"])}


def _predict(paths: Mapping[str, Path]) -> Prediction:
    pycolmap = load_pycolmap()
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="sfumato-colmap-") as place:
        photos, database = Path(place) / "photos", str(Path(place) / "database.db")
        _lay_out(paths, photos)
        verification = pycolmap.TwoViewGeometryOptions()
        verification.ransac.random_seed = 0
        try:
            with silence():
                started = time.perf_counter()
                pycolmap.extract_features(
                    database,
                    str(photos),
                    image_names=list(paths),
                    camera_mode=pycolmap.CameraMode.PER_IMAGE,
                    reader_options=pycolmap.ImageReaderOptions(camera_model=MODEL),
                    device=pycolmap.Device.cpu,
                )
                seconds["extraction"], started = time.perf_counter() - started, time.perf_counter()
                pycolmap.match_exhaustive(database, verification_options=verification, device=pycolmap.Device.cpu)
                seconds["matching"], started = time.perf_counter() - started, time.perf_counter()
                models = [_map_once(database, photos, Path(place) / f"seed-{seed}", seed) for seed in SEEDS]
                seconds["mapping"] = (time.perf_counter() - started) / len(SEEDS)
        except (RuntimeError, ValueError) as cause:
            raise InputError(f"plain COLMAP cannot map these photos: {str(cause).strip():.200}") from cause
        return _arrays(models, len(paths), seconds)


def _map_once(database: str, photos: Path, output: Path, seed: int) -> Any:
    """Return the largest map of one seed, or None; one thread, so that it can be repeated."""
    pycolmap = load_pycolmap()
    output.mkdir()
    options = pycolmap.IncrementalPipelineOptions()
    options.random_seed, options.num_threads = seed, 1
    models = pycolmap.incremental_mapping(database, str(photos), str(output), options)
    return max(models.values(), key=_extent, default=None)


def _extent(model: Any) -> tuple[int, int]:
    return (0, 0) if model is None else (int(model.num_reg_images()), int(model.num_points3D()))


def _lay_out(paths: Mapping[str, Path], folder: Path) -> None:
    """Link photos below a folder under their names; one that lies on its side, which COLMAP overlooks, is turned.

    A turned one keeps the rest of its EXIF: COLMAP takes the focal length from there.
    """
    from PIL import Image as Pillow
    from PIL import ImageOps

    for name, path in paths.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        with Pillow.open(path) as picture:
            if picture.getexif().get(0x112, 1) in (0, 1):
                os.symlink(path.resolve(), place)
            else:
                upright = ImageOps.exif_transpose(picture)
                upright.save(place, format=picture.format, exif=upright.getexif(), quality=JPEG_QUALITY)


def _arrays(models: Sequence[Any], images: int, seconds: Mapping[str, float]) -> Prediction:
    """Return what is kept: figures and cameras of the best map, and how far the maps of the seeds agree."""
    poses = [{} if model is None else poses_of(model) for model in models]
    best = max(range(len(models)), key=lambda number: _extent(models[number]))
    pairs = list(combinations(poses, 2))
    turns = [compare_poses(a, b).relative_rotation for a, b in pairs]
    degrees = max((float(turn.max()) for turn in turns if len(turn)), default=0.0)
    same = bool(poses[best]) and all(a.keys() == b.keys() for a, b in pairs) and degrees <= SAME_DEG
    names = list(poses[best])
    registered = [] if models[best] is None else [models[best].image(number) for number in models[best].reg_image_ids()]
    cameras = {str(image.name): image.camera for image in registered}
    return {
        **{name: np.array(value) for name, value in asdict(statistics_of(models[best], images)).items()},
        "names": np.array(names, np.str_),
        "rotations": np.array([poses[best][name].rotation for name in names]).reshape(-1, 3, 3),
        "translations": np.array([poses[best][name].translation for name in names]).reshape(-1, 3),
        "camera_sizes": np.array([(cameras[n].width, cameras[n].height) for n in names], np.int64).reshape(-1, 2),
        "camera_params": np.array([cameras[name].params for name in names], np.float64).reshape(-1, 4),
        "step_seconds": np.array([seconds[step] for step in STEPS]),
        "seed_counts": np.array([len(one) for one in poses], np.int64),
        "seed_degrees": np.array(degrees),
        "agreeing": np.array(same),
    }


def _read(arrays: Prediction) -> PlainMap:
    names = [str(name) for name in arrays["names"]]
    figures = {entry.name: arrays[entry.name].item() for entry in fields(MapStatistics)}

    def camera(size: NDArray[np.int64], params: NDArray[np.float64]) -> Camera:
        return Camera(MODEL, int(size[0]), int(size[1]), tuple(params.tolist()))

    sizes, params = arrays["camera_sizes"], arrays["camera_params"]
    return PlainMap(
        statistics=MapStatistics(**figures),
        poses={
            name: Pose(*pose) for name, *pose in zip(names, arrays["rotations"], arrays["translations"], strict=True)
        },
        cameras={name: camera(*both) for name, *both in zip(names, sizes, params, strict=True)},
        seconds=dict(zip(STEPS, arrays["step_seconds"].tolist(), strict=True)),
        seed_counts=tuple(arrays["seed_counts"].tolist()),
        seed_degrees=float(arrays["seed_degrees"]),
        agreeing=bool(arrays["agreeing"]),
    )
