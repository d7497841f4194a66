# SPDX-License-Identifier: Apache-2.0
"""Pairs of clear descriptors of one point: training data that keeps an encoder useful for matching.

Pairs come from photos and warped views of them through known homographies, or from labelled patches (``patch_sets``).
The first way is the distribution the product works on: a detector found both keypoints. A file of pairs is an
uncompressed npz of ``header`` (JSON as bytes), ``first``, ``second``, ``points`` and ``groups``, written atomically and
read without unpickling; nothing is allocated that the file does not hold. It is clear: keep it where the photos are.
"""

import json
import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, ImageError, InputError, SfumatoError, suggest
from sfumato.features.cut_patches import describe_cut_patches
from sfumato.features.local import DESCRIPTORS, DETECTORS, Descriptors, Detection, LocalParams, extractor_of
from sfumato.features.networks import kind_of
from sfumato.files.atomic import write_file
from sfumato.files.npz import read_npz
from sfumato.images.homography import HomographyParams, make_pair
from sfumato.images.read import list_images, read_image, to_grey
from sfumato.matching.executors import local_processes
from sfumato.training.patch_sets import (
    LEVELS,
    PatchSet,
    is_ubc_folder,
    join_patch_sets,
    list_hpatches,
    number_apart,
    read_hpatches,
    read_points,
    read_ubc,
)
from sfumato.training.views import Tolerance, ViewParams, make_patch_sets, same_keypoints
from sfumato.types.arrays import Range, frozen_array, refuse_unknown, settle_numbers
from sfumato.types.clear import Image
from sfumato.types.extractor import Extractor
from sfumato.types.progress import Progress, SizedItems, identity

Floats = NDArray[np.float32]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class DescriptorPairs:
    """P pairs of clear descriptors: row i of ``first`` and of ``second`` describe one point.

    ``first`` and ``second`` (P, n) float32; ``points`` (P,) int64, the same number for the same point, also in several
    pairs; ``groups`` (P,) int32, the photo or sequence of origin; ``extractor`` what described them.
    """

    first: Floats
    second: Floats
    points: NDArray[np.int64]
    groups: NDArray[np.int32]
    extractor: Extractor = Extractor()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        first = frozen_array(self.first, "first", (None, None))
        if first.shape[1] == 0:
            raise InputError("first: need at least one dimension")
        for name, value in (
            ("first", first),
            ("second", frozen_array(self.second, "second", first.shape)),
            ("points", frozen_array(self.points, "points", (len(first),), np.int64)),
            ("groups", frozen_array(self.groups, "groups", (len(first),), np.int32)),
        ):
            object.__setattr__(self, name, value)
        if not isinstance(self.extractor, Extractor):
            raise InputError(f"extractor: expected an Extractor, got {type(self.extractor).__name__}")

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, rows: Any) -> "DescriptorPairs":
        """Select pairs by a slice, a mask or a list of indices."""
        index = np.atleast_1d(np.arange(len(self))[rows])
        return DescriptorPairs(
            self.first[index], self.second[index], self.points[index], self.groups[index], self.extractor
        )

    def __repr__(self) -> str:
        points, groups = len(np.unique(self.points)), len(np.unique(self.groups))
        return (
            f"DescriptorPairs({len(self)} of {self.first.shape[1]} numbers, {self.extractor.name}, {points} points, "
            f"{groups} groups, clear)"
        )


TRAINING_VIEWS = HomographyParams(
    rotation=45, scale=1.5, perspective=0.25, translation=0.05, brightness=30, contrast=0.3, blur=1.0, noise=4
)
"""Largest differences of a view from its photo: more than in the pairs that ``evaluate homography`` generates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairParams:
    """Settings of pairs from photos: ``views`` of each, changed up to ``change``, drawn from ``seed``.

    Features are found and described by ``local`` in the photo and in each view. At most ``most`` pairs are kept (0: no
    limit), an equal share of each photo, points drawn evenly from all that were found again.
    """

    views: int = 3
    seed: int = 0
    most: int = 0
    local: LocalParams = field(default_factory=lambda: LocalParams(max_features=1000))
    change: HomographyParams = TRAINING_VIEWS
    tolerance: Tolerance = Tolerance()  # noqa: RUF009 (frozen)

    def __new__(cls, **settings: object) -> "PairParams":
        """Refuse misspelt settings before anything is made."""
        refuse_unknown(cls, settings)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        ranges = {
            "views": Range(1, 1000, whole=True),
            "seed": Range(0, 2**62, whole=True),
            "most": Range(0, 2**40, whole=True),
        }
        problems = settle_numbers(self, ranges)
        if problems:
            raise InputError("; ".join(problems))


def pairs_from_photos(
    photos: Sequence[str | os.PathLike[str]],
    params: PairParams | None = None,
    *,
    workers: int = 1,
    progress: Progress = identity,
) -> DescriptorPairs:
    """Extract features in photos and in warped views of them, and pair those that the homography says are the same.

    The same photos and params give the same pairs, with any number of ``workers``, processes of this machine. Groups
    are the places of the photos in the list; a photo without features or pairs gives none, nor does an unreadable one,
    which the log names.

    Raises InputError if no photo gives a pair.
    """
    params = params or PairParams()
    share = -(-params.most // max(1, len(photos))) if params.most else 0
    jobs = [(Path(path), number, params, share) for number, path in enumerate(photos)]
    with ExitStack() as stack:
        run = map if workers == 1 else stack.enter_context(local_processes(workers)).map
        results = list(progress(SizedItems(iter(run(pairs_of_photo, jobs)), len(jobs))))
    first, second, own_points, counts = zip(*results, strict=True) if results else ((), (), (), ())
    starts = np.cumsum([0, *counts])
    points = [own + start for own, start in zip(own_points, starts, strict=False)]
    groups = [np.full(len(rows), number, np.int32) for number, rows in enumerate(first)]
    if not sum(map(len, first)):
        raise InputError("no point of these photos is found again in their views: give more, or sharper photos")
    return DescriptorPairs(
        np.concatenate([rows for rows in first if len(rows)]),
        np.concatenate([rows for rows in second if len(rows)]),
        np.concatenate(points),
        np.concatenate(groups),
        extractor_of(params.local),
    )


def pairs_of_photo(job: tuple[Path, int, PairParams, int]) -> tuple[Floats, Floats, NDArray[np.int64], int]:
    """Return the two sides (P, n), the points (P,) of one photo, and how many points it may have named.

    A job is a path, its place in the list, the params, and how many pairs to keep at most (0: all). What is drawn
    depends on seed and place alone.
    """
    path, number, params, share = job
    rng = np.random.default_rng([params.seed, number])
    try:
        photo = Image(to_grey(read_image(path)), path.name)
    except ImageError as cause:
        log.warning("%s is left out: %s", path.name, cause)
        return np.zeros((0, 0), np.float32), np.zeros((0, 0), np.float32), np.zeros(0, np.int64), 0
    detect = DETECTORS[params.local.extractor]
    reference = detect(photo.pixels, params.local)
    views: list[tuple[Detection, NDArray[np.int64]]] = []
    for _ in range(params.views if len(reference.keypoints) else 0):
        pair = make_pair(photo, rng, params.change)
        view = detect(pair.second.pixels, params.local)
        same = same_keypoints(reference.keypoints, view.keypoints, pair.homography, params.tolerance)
        views.append((view, same))
    points = np.concatenate([np.zeros(0, np.int64), *(same[:, 0] for _, same in views)])
    first, second, points = _describe(reference, views, draw_points(points, share, rng), params.local)
    return first, second, points, len(reference.keypoints)


def _describe(
    reference: Detection, views: list[tuple[Detection, NDArray[np.int64]]], rows: NDArray[np.int64], local: LocalParams
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Describe the pairs ``rows`` alone, because networks are slow; a pair with an empty descriptor is left out.

    ``views`` come with their pairs of keypoints (M, 2); ``rows`` are of all these pairs, view after view.
    """
    pairs = np.concatenate([np.zeros((0, 2), np.int64), *(same for _, same in views)])
    starts = np.cumsum([0, *(len(same) for _, same in views)])
    keypoints, inverse = np.unique(pairs[rows, 0], return_inverse=True)
    descriptors, norms = _described(reference, keypoints, local)
    sides = [
        _described(view, pairs[rows[(rows >= start) & (rows < start + len(same))], 1], local)
        for (view, same), start in zip(views, starts, strict=False)
    ]
    second = np.concatenate([descriptors[:0], *(side for side, _ in sides)])
    good = (norms[inverse] > 0) & (np.concatenate([norms[:0], *(lengths for _, lengths in sides)]) > 0)
    return descriptors[inverse[good]], second[good], pairs[rows[good], 0]


def _described(detected: Detection, rows: NDArray[np.int64], local: LocalParams) -> Descriptors:
    """Return the descriptors of some keypoints, of unit norm, and their norms before."""
    histograms = None if detected.histograms is None else detected.histograms[rows]
    return DESCRIPTORS[local.descriptor](Detection(detected.grey, detected.keypoints[rows], histograms), local)


def draw_points(points: NDArray[np.int64], most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return rows (K,) of pairs of points drawn evenly, all pairs of a point or none, at most ``most``; 0 is all."""
    if not most or len(points) <= most:
        return np.arange(len(points))
    names, counts = np.unique(points, return_counts=True)
    order = rng.permutation(len(names))
    sample = names[order[np.cumsum(counts[order]) <= most]]
    return np.flatnonzero(np.isin(points, sample))


# --- files of pairs


FORMAT, VERSION = "sfumato-pairs", 1
TYPES = {"header": "|u1", "first": "<f4", "second": "<f4", "points": "<i8", "groups": "<i4"}


def save_pairs(path: str | os.PathLike[str], pairs: DescriptorPairs) -> None:
    """Write pairs, atomically. What is written is clear: it must not leave the device.

    Raises FileError if the file cannot be written.
    """
    header = {"format": FORMAT, "version": VERSION, "extractor": pairs.extractor.to_json()}
    members: dict[str, NDArray[Any]] = {
        "header": np.frombuffer(json.dumps(header, sort_keys=True).encode(), np.uint8),
        **{name: np.asarray(getattr(pairs, name), TYPES[name]) for name in TYPES if name != "header"},
    }
    write_file(path, lambda file: np.savez(file, allow_pickle=False, **members), private=True)


def load_pairs(path: str | os.PathLike[str]) -> DescriptorPairs:
    """Read what ``save_pairs`` wrote; the descriptors in it are clear.

    Raises FileError for a missing, damaged or hostile file, or one of another version.
    """
    source = Path(path)
    try:
        members = read_npz(source, {name: (kind,) for name, kind in TYPES.items()})
        header = json.loads(members.pop("header").tobytes())
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise FileError("it holds no pairs")
        if header.get("version") != VERSION:
            version = f"{header.get('version')!r:.20}"
            raise FileError(f"it has version {version}, this program reads version {VERSION}: update it")
        return DescriptorPairs(**members, extractor=Extractor.from_json(header["extractor"]))
    except (SfumatoError, ValueError, KeyError, TypeError, RecursionError) as cause:
        reason = str(cause).removeprefix(f"{source}: ")
        raise FileError(f"{source}: not a usable file of pairs: {reason}") from cause


# --- pairs from labelled patches, and labelled patches from photos


def pairs_from_patches(patch_set: PatchSet, params: LocalParams | None = None) -> DescriptorPairs:
    """Describe the patches of a set, and pair the first of each point with each other one of it.

    Patches without any contrast describe nothing and are in no pair. No pair at all gives empty arrays.
    """
    local = params or LocalParams()
    rows = describe_cut_patches(patch_set.patches, local)
    described = np.flatnonzero(rows.any(axis=1))
    first, second = pair_rows(patch_set.points[described], patch_set.views[described])
    return DescriptorPairs(
        rows[described[first]],
        rows[described[second]],
        patch_set.points[described[first]],
        patch_set.groups[described[first]],
        extractor_of(local),
    )


def pair_rows(points: NDArray[np.int64], views: NDArray[np.int32]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows (P,) and (P,) of all pairs of a point's first patch, by its view, with each other of its patches.

    >>> pair_rows(np.array([7, 8, 7, 7]), np.array([1, 0, 0, 2]))
    (array([2, 2]), array([0, 3]))
    """
    order = np.lexsort((views, points))
    ordered = points[order]
    starts = np.searchsorted(ordered, ordered, side="left")
    later = np.flatnonzero(starts != np.arange(len(ordered)))
    return order[starts[later]], order[later]


def patches_of_photos(
    photos: Sequence[str | os.PathLike[str]],
    seed: int,
    params: ViewParams | None = None,
    local: LocalParams | None = None,
    *,
    progress: Progress = identity,
) -> dict[str, PatchSet]:
    """Generate labelled patches from photos at every level; a group is a photo, by its place in the list.

    Keypoints are those ``local`` detects, by default 600 of a photo; what is drawn depends on ``seed`` and
    place alone. Photos without points are groups without patches.

    Raises ImageError for a file that cannot be read.
    """
    detection = replace(local or LocalParams(max_features=600), descriptor="sift", weights=None)
    by_level: dict[str, list[PatchSet]] = {level: [] for level in LEVELS}
    for number, path in enumerate(progress(photos)):
        image = read_image(Path(path))
        keypoints = DETECTORS[detection.extractor](to_grey(image), detection).keypoints
        sets = make_patch_sets(image, keypoints, np.random.default_rng([seed, number]), params)
        for level, patch_set in sets.items():
            by_level[level].append(patch_set)
    return {level: join_patch_sets(patch_sets) for level, patch_sets in by_level.items()}


# --- pairs of any source: a file of pairs, a folder of UBC or HPatches patches, photos


def read_pairs(
    place: str | os.PathLike[str], params: PairParams | None = None, *, progress: Progress = identity
) -> DescriptorPairs:
    """Return the pairs of a place: a file that ``save_pairs`` wrote, a folder of UBC or HPatches, or photos.

    Photos give pairs as ``pairs_from_photos``. Of patches the first of each point is paired with each other one,
    described as ``params.local`` says; ``params.most`` limits how many patches are read, points drawn evenly from
    ``params.seed``. HPatches gives all three levels.

    Raises FileError or ImageError for what cannot be read, InputError for a file of another descriptor than the params
    ask for, or no pair at all.
    """
    settings, folder = params or PairParams(), Path(place)
    if is_pair_file(folder):
        pairs = load_pairs(folder)
        check_descriptor(pairs, extractor_of(settings.local).name, folder)
        return pairs
    rng = np.random.default_rng([settings.seed, 0])
    if is_ubc_folder(folder):
        parts = [(0, read_ubc(folder, draw_points(read_points(folder), settings.most, rng)))]
    elif sequences := list_hpatches(folder):
        most = -(-settings.most // (len(sequences) * len(LEVELS) * 6)) or None
        names = [(number, sequence, level) for number, sequence in enumerate(sequences) for level in LEVELS]
        parts = [(number, read_hpatches(sequence, level, most=most)) for number, sequence, level in progress(names)]
    else:
        return pairs_from_photos([path for _, path in list_images(folder)], settings, progress=progress)
    numbers = [number for number, _ in parts]
    sets = [pairs_from_patches(part, settings.local) for _, part in parts]
    if not sum(map(len, sets)):
        raise InputError(f"{folder}: no point in it has two patches with contrast")
    groups = np.concatenate(
        [np.full(len(pairs), number, np.int32) for number, pairs in zip(numbers, sets, strict=True)]
    )
    points = np.concatenate([pairs.points for pairs in sets])
    return DescriptorPairs(
        np.concatenate([pairs.first for pairs in sets]),
        np.concatenate([pairs.second for pairs in sets]),
        number_apart([points[groups == number] for number in range(int(groups.max()) + 1)]),  # levels share points
        groups,
        extractor_of(settings.local),
    )


def is_pair_file(place: str | os.PathLike[str]) -> bool:
    """Tell whether this is a file of pairs, whose descriptors are made already."""
    path = Path(place)
    return path.is_file() and path.suffix == ".npz"


def check_descriptor(pairs: DescriptorPairs, extractor_name: str, place: str | os.PathLike[str]) -> None:
    """Raise InputError for pairs of another descriptor than that of ``extractor_name``.

    The name of a network without the checksum of weights stands for any weights.
    """
    name = pairs.extractor.name
    if extractor_name not in (name, kind_of(name)) and "unknown" not in (name, extractor_name):
        is_same_kind = kind_of(extractor_name) == kind_of(name)
        advice = "give the weights they were made with" if is_same_kind else "choose the one they hold"
        raise InputError(f"{place}: these pairs are {name}, not {extractor_name}: {advice}, or make others from photos")


def open_pairs(place: Path, descriptor: str | None) -> tuple[DescriptorPairs | None, str]:
    """Return the pairs of a file (None for a folder), and the descriptor to train for.

    That is ``descriptor``, else the one the file holds, else SIFT.

    Raises InputError for an unknown descriptor, or one that contradicts the file.
    """
    if descriptor is not None and descriptor not in DESCRIPTORS:
        hint = suggest(descriptor, DESCRIPTORS)
        raise InputError(f"no descriptor is called {descriptor!r:.80}{hint}; there are {', '.join(DESCRIPTORS)}")
    if not is_pair_file(place):
        return None, descriptor or LocalParams().descriptor
    pairs = load_pairs(place)
    check_descriptor(pairs, descriptor or pairs.extractor.name, place)
    is_named = pairs.extractor.name != Extractor().name
    return pairs, descriptor or (kind_of(pairs.extractor.name) if is_named else LocalParams().descriptor)


def photo_folders(place: Path) -> list[Path]:
    """Return a source of pairs as a folder of photos; none if it is something else."""
    return [place] if place.is_dir() and not is_ubc_folder(place) and not list_hpatches(place) else []


def pick_evenly(paths: list[Path], count: int | None) -> list[Path]:
    """Return ``count`` of the paths, evenly spaced, the first and the last among them; all if None or fewer."""
    if count is None or count >= len(paths):
        return paths
    return [paths[row] for row in np.linspace(0, len(paths) - 1, count).astype(int)]
