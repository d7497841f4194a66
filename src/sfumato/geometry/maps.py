# SPDX-License-Identifier: Apache-2.0
"""Maps to localize against: a COLMAP model, and what stands for the descriptors of its points.

That is ``landmarks.sfm`` beside the model, an ordinary archive that holds the rows of every registered image that
see a mapped point; or, only where it is named, a file of public points. Never imports the clear types.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from sfumato.errors import ArchiveError, FileError, InputError
from sfumato.files.atomic import write_file
from sfumato.files.tensors import map_tensors, save_tensors
from sfumato.geometry.cameras import name_list, nearest_rotation
from sfumato.geometry.colmap import load_pycolmap
from sfumato.geometry.model import Model, read_model, refuse_other_keypoints, same_places
from sfumato.geometry.model_folder import CODES, LANDMARKS
from sfumato.geometry.statistics import poses_of
from sfumato.matching.bit_votes import BitVotes, collect
from sfumato.matching.mutual import Prepared, Side, prepare_side, side_of
from sfumato.store.archive import Archive, load
from sfumato.store.public_points import PublicPointsFile, load_public
from sfumato.store.writer import ArchiveWriter
from sfumato.subspace.subspace_set import Frame, SubspaceSet
from sfumato.types.concealed import Bits, ConcealedFeatures, PublicPoints
from sfumato.types.extractor import Extractor
from sfumato.types.progress import Progress

LandmarkSource = Mapping[str, ConcealedFeatures] | Mapping[str, PublicPoints]

PICTURES, PICTURE_MAKER = ("png", "svg", "pdf"), "sfumato map"
"""Kinds of pictures, and the maker that each names: by it a picture of ours is known."""
CACHE_BYTES = 512 * 2**20
PREPARED_SHARE = 4
"""How many times its arrays an image takes once it is prepared, about."""

log = logging.getLogger(__name__)


@dataclass(slots=True, repr=False, eq=False)
class View:
    """One image of a map, ready to be matched: ``landmarks`` (N,) int64, rows of the positions, and their side."""

    landmarks: NDArray[np.int64]
    side: Side
    prepared: Prepared

    @property
    def nbytes(self) -> int:
        """About what it takes in memory."""
        if isinstance(self.prepared, SubspaceSet):
            return PREPARED_SHARE * (self.prepared.origin.nbytes + self.prepared.basis.nbytes)
        return self.prepared.nbytes


class Map:
    """Mapped points that a query can be matched with, image by image.

    ``source`` gives for each image the concealed features of the rows that see a mapped point, in their order, or
    public points, as ``is_public`` says. ``names`` are the images that can be matched, sorted; ``positions`` (P, 3)
    float64 the points; ``damaged`` gives the reason for each image that cannot be read. Images are read when first
    needed, and the last ones stay in memory.
    """

    def __init__(
        self, model: Model, source: LandmarkSource, *, is_public: bool, folder: str | os.PathLike[str] | None = None
    ) -> None:
        self.model = model
        self.is_public = is_public
        self.folder = folder
        self.names: tuple[str, ...] = tuple(name for name in model.names if name in source)
        self.damaged: dict[str, str] = {}
        self.frame: Frame | None = None
        self._source = source
        self._votes: BitVotes | None = None
        self._views: LRUCache[str, View] = LRUCache(CACHE_BYTES, getsizeof=lambda view: min(view.nbytes, CACHE_BYTES))

    @property
    def positions(self) -> NDArray[np.float64]:
        """Positions of the points in the world, (P, 3)."""
        return self.model.landmarks.positions

    def __contains__(self, name: object) -> bool:
        return name in self.model and name in self._source

    def __len__(self) -> int:
        return len(self.names)

    def view(self, name: str) -> View:
        """Return one image; raises FileError naming one that is damaged or belongs to another model."""
        view = self._views.get(name)
        if view is None:
            landmarks, side = self._read(name)
            view = View(landmarks, side, prepare_side(side))
            if isinstance(view.prepared, SubspaceSet):
                view.prepared.frame = self.frame
            self._views[name] = view
        return view

    @property
    def extractor(self) -> Extractor | None:
        """Of what descriptor the public points are; None for concealed landmarks, which say it image by image."""
        return self._source.extractor if isinstance(self._source, PublicPointsFile) else None

    def landmarks(self) -> Mapping[str, Any]:
        """Return what stands for the descriptors of each image: concealed features, or points (N, n)."""
        return _PublicArrays(self._source, self.names) if self.is_public else self._source

    def votes(self, *, progress: Progress = iter) -> BitVotes:
        """Return the bits of all landmarks of a sealed map, mapped from its file, or else read image by image."""
        if self._votes is None:
            self._votes = self._mapped_codes() or collect(self._source, progress=progress)
            self.damaged.update(self._votes.unreadable)
        return self._votes

    def _mapped_codes(self) -> BitVotes | None:
        """Return the codes in the file beside the landmarks, if it was made of these."""
        path = Path(self.folder or "") / CODES
        if not isinstance(self._source, Archive) or self.folder is None or not path.is_file():
            return None
        try:
            arrays, texts = map_tensors(path)
        except FileError as problem:
            log.warning("%s; the codes are read from the landmarks instead, which takes longer", problem)
            return None
        if texts.get("of") != _digest_of(self._source, self.names) or set(arrays) != {"packed", "starts"}:
            return None
        packed, starts = arrays["packed"], arrays["starts"]
        headers = [self._source.header(name) for name in self.names]
        header, counts = headers[0], [one.count for one in headers]
        empty = Bits(np.zeros((0, header.ambient_dim // 8), np.uint8))
        if packed.dtype != np.uint8 or packed.shape != (sum(counts), header.ambient_dim // 8):
            return None
        if starts.dtype != np.int64 or starts.tolist() != [0, *np.cumsum(counts).tolist()]:
            return None
        return BitVotes(self.names, packed, starts, Side(empty, header.extractor, header.recipe))

    def close(self) -> None:
        """Close the files of the map."""
        if isinstance(self._source, Archive | PublicPointsFile):
            self._source.close()

    def __enter__(self) -> "Map":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        kind = "public points" if self.is_public else "concealed"
        return f"Map({len(self.positions)} points, {len(self)} images, {kind})"

    def _read(self, name: str) -> tuple[NDArray[np.int64], Side]:
        sight, features = self.model.sight(name), self._source[name]
        if isinstance(features, PublicPoints):
            landmarks = self.model.rows_of(features.points)
            if not np.isin(landmarks, sight.landmarks).all():
                raise FileError(f"{self._where(name)} holds points that it does not see in the model: of another map")
            return landmarks, replace(side_of(features.descriptors, name), extractor=features.extractor)
        if len(features) != len(sight) or not same_places(features.keypoints, sight.places):
            raise FileError(f"{self._where(name)} has other keypoints than in the model: landmarks of another map")
        return sight.landmarks, side_of(features, name)

    def _where(self, name: str) -> str:
        return f"{getattr(self._source, 'path', 'the map')}: image {name!r:.80}"


class _PublicArrays(Mapping[str, NDArray[np.float32]]):
    """Public points of images, as arrays, read on access."""

    def __init__(self, source: Any, names: tuple[str, ...]) -> None:
        self._source, self._names = source, names

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        points: PublicPoints = self._source[name]
        return points.descriptors

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def load_map(folder: str | os.PathLike[str], *, public: str | os.PathLike[str] | None = None) -> Map:
    """Open a map: the COLMAP model in ``folder`` with its concealed landmarks, or with the public points named.

    Public points are used only where they are named, even if such a file lies beside the model.

    Raises FileError if the model or the landmarks are missing or damaged, or do not belong together.
    """
    model = read_model(folder)
    if public is not None:
        points = load_public(public)
        strangers = [name for name in points if name not in model]
        if strangers or not len(points):
            points.close()
            if not strangers:
                raise FileError(f"{public} holds no image: ask its owner for another copy")
            raise FileError(
                f"{public}: {name_list(strangers)} are not in the map {folder}: these points belong to another"
            )
        return Map(model, points, is_public=True, folder=folder)
    path = Path(folder) / LANDMARKS
    if not path.is_file():
        raise FileError(
            f"{folder} is a map without {LANDMARKS}: make it with sfumato map, or name a file of public points with "
            f"--public"
        )
    archive = load(path)
    try:
        wrong = [name for name in model.names if name not in archive or not _fits(archive, model, name)]
        if wrong or len(archive) != len(model.names):
            raise FileError(
                f"{path} does not belong to the model beside it: {name_list(wrong) or 'it has more images'}; make the "
                f"landmarks again"
            )
    except BaseException:
        archive.close()
        raise
    return Map(model, archive, is_public=False, folder=folder)


NEAR_SHARE = 0.02
"""Points beyond this share at each end of an axis are few and far: the picture ends there, or at the last camera."""


def draw_map(folder: str | os.PathLike[str], path: str | os.PathLike[str], title: str = "") -> None:
    """Draw the map in a folder, points and cameras, from above and from where most cameras look; .png, .svg or .pdf.

    Raises FileError if the folder holds no map, or the picture cannot be written.
    """
    from matplotlib.figure import Figure

    kind = picture_kind(path)
    read_model(folder)  # says what is damaged, where COLMAP would end the process
    reconstruction = load_pycolmap().Reconstruction(str(folder))
    poses = list(poses_of(reconstruction).values())
    points = np.array([point.xyz for point in reconstruction.points3D.values()]).reshape(-1, 3)
    centers = np.array([pose.center for pose in poses]).reshape(-1, 3)
    right, down, ahead = nearest_rotation(np.mean([pose.rotation for pose in poses], axis=0))
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    for axes, name, up in zip(figure.subplots(1, 2), ("from above", "from the cameras"), (ahead, -down), strict=True):
        plane = np.stack([right, up], axis=1)
        seen, cameras, looks = points @ plane, centers @ plane, np.array([pose.rotation[2] for pose in poses]) @ plane
        axes.plot(*seen.T, ".", markersize=1, color="#555555", alpha=0.5)
        axes.quiver(*cameras.T, *looks.T, color="#c0392b", width=0.004, headwidth=4, angles="xy")
        axes.plot(*cameras.T, "o", markersize=3, color="#c0392b")
        near = np.concatenate([np.quantile(seen, [NEAR_SHARE, 1 - NEAR_SHARE], axis=0), cameras])
        margin = 0.05 * float(np.ptp(near, axis=0).max())
        axes.set_xlim(near[:, 0].min() - margin, near[:, 0].max() + margin)
        axes.set_ylim(near[:, 1].min() - margin, near[:, 1].max() + margin)
        axes.set_aspect("equal")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_title(name, fontsize=10)
    figure.suptitle(title or f"{len(poses)} cameras, {len(points)} points", fontsize=11)
    maker = {"Software" if kind == "png" else "Creator": PICTURE_MAKER}
    write_file(path, lambda file: figure.savefig(file, format=kind, dpi=150, metadata=maker), with_folder=True)


def picture_kind(path: str | os.PathLike[str]) -> str:
    """Return what kind of picture a file is by its name; raises FileError for one that cannot be drawn."""
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in PICTURES:
        raise FileError(f"cannot draw {path}: its name must end in {', '.join(f'.{name}' for name in PICTURES)}")
    return kind


def save_landmarks(
    folder: str | os.PathLike[str],
    archive: Archive,
    *,
    progress: Progress = iter,
) -> int:
    """Write ``landmarks.sfm`` beside a COLMAP model that was made from an archive; return the number of landmarks.

    Of every registered image it holds the rows that see a mapped point, in their order: the same subspaces again, so
    nothing is released that was not. It takes the place of an older one at once.

    Raises FileError for a model that was made from other features, ArchiveError if the file cannot be written.
    """
    model, path, total = read_model(folder), Path(folder) / LANDMARKS, 0
    missing = [name for name in model.names if name not in archive]
    if missing:
        raise FileError(f"{folder} was not mapped from {archive.path}, which lacks {name_list(missing)}")
    kinds = {archive.header(name).dtype for name in model.names}
    with ArchiveWriter(path, dtype=kinds.pop() if len(kinds) == 1 else "float32") as writer:
        for name in progress(model.names):
            features, rows = archive[name], model.sight(name).keypoints
            features = features if features.is_shown.all() else features.take(features.is_shown)
            try:
                refuse_other_keypoints(name, model, features.keypoints)
            except InputError as cause:
                raise FileError(f"{folder} was not mapped from {archive.path}: {cause}") from cause
            writer.add(name, features.take(rows))
            total += len(rows)
    _save_codes(Path(folder), model.names)
    return total


def rename_landmarks(folder: str | os.PathLike[str], names: Mapping[str, str]) -> None:
    """Give the landmarks of a map other names, those that its model has already; the others keep theirs.

    Raises ArchiveError if a file cannot be read or written.
    """
    path = Path(folder) / LANDMARKS
    with Archive(path) as old:
        kinds = {old.header(name).dtype for name in old}
        with ArchiveWriter(path, dtype=kinds.pop() if len(kinds) == 1 else "float32") as writer:
            for name in old:
                writer.add(names.get(name, name), old[name])
    _save_codes(Path(folder), read_model(folder).names)


def _save_codes(folder: Path, names: Sequence[str]) -> None:
    """Write the bits of the landmarks of a sealed map beside them; of another map there are none."""
    with Archive(folder / LANDMARKS) as landmarks:
        codes = [landmarks[name].code for name in names if name in landmarks]
        packed = [code.packed for code in codes if isinstance(code, Bits)]
        (folder / CODES).unlink(missing_ok=True)
        if not packed or len(packed) < len(codes) or len({part.shape[1] for part in packed}) > 1:
            return
        starts = np.concatenate([[0], np.cumsum([len(part) for part in packed])]).astype(np.int64)
        texts = {"of": _digest_of(landmarks, [name for name in names if name in landmarks])}
    save_tensors(folder / CODES, {"packed": np.concatenate(packed), "starts": starts}, texts)


def _digest_of(landmarks: Archive, names: Sequence[str]) -> str:
    """Return a digest of the headers of all landmarks: codes beside them are of these."""
    state = hashlib.blake2b(digest_size=32, person=b"sfumato-codes")
    for name in names:
        state.update(json.dumps([name, landmarks.header(name).checksum]).encode("ascii"))
    return state.hexdigest()


def _fits(archive: Archive, model: Model, name: str) -> bool:
    try:
        return archive.header(name).count == len(model.sight(name))
    except ArchiveError:
        return True  # damaged: told when it is read, and the other images can be used
