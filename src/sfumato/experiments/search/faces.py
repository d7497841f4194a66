# SPDX-License-Identifier: Apache-2.0
"""Search of faces under changing light as linear subspaces: hashing against projectors, at equal candidate numbers.

Section 5.2 and Figure 4 of the hashing paper. Each person has one subspace, and queries come from other images. Data is
a file such as Extended Yale B (npz with ``image`` (N, H, W) and ``subject`` (N,)), or a folder with one folder of
pictures per person, cropped and shrunk. A sample is a split of the images; a record is a method with a number of
candidates. Exact search, and the projector's own nearest without comparing anything, are shown beside them.
"""

import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.auditing.runner import run_tasks
from sfumato.auditing.tables import PlotFrame, PlotLine, PlotPanel, Table, draw_lines, group_by_seed, make_table
from sfumato.auditing.task import Figures, Prediction, Sample, Task, digest_data
from sfumato.errors import FileError, InputError
from sfumato.experiments.search.methods import LINEAR, Method, choose_methods
from sfumato.images.read import list_images, read_image, to_grey
from sfumato.search.index import Index
from sfumato.types.concealed import Subspaces
from sfumato.types.record import Record, Score, Value

# --- pictures of faces, and their subspaces


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class FacePictures:
    """Grey pictures as rows: ``pixels`` (N, height * width) float32 from 0 to 1, ``subject`` (N,) from 0."""

    pixels: NDArray[np.float32]
    subject: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.pixels.ndim != 2 or self.subject.shape != (len(self.pixels),) or not len(self.subject):
            raise InputError("faces: expected pictures of one size, and a subject for each")

    @property
    def people(self) -> int:
        """Number of people."""
        return int(self.subject.max()) + 1

    def __repr__(self) -> str:
        return f"FacePictures({len(self.pixels)} pictures of {self.people} people)"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaceSubspaceParams:
    """Settings of subspaces: ``images`` of each person drawn to span ``dim`` dimensions, queries of ``query_dims``."""

    images: int = 36
    dim: int = 5
    query_dims: tuple[int, ...] = tuple(range(1, 11))

    def __post_init__(self) -> None:
        if not 1 <= self.dim <= self.images:
            raise InputError(f"images: {self.images} cannot span {self.dim} dimensions")
        if not self.query_dims or min(self.query_dims) < 1:
            raise InputError(f"query_dims: expected dimensions of 1 or more, got {self.query_dims}")


def read_face_pictures(place: str | Path, crop: tuple[int, int] | None = None) -> FacePictures:
    """Read faces from an npz file, or from a folder of folders; pictures shrink to ``crop`` (width, height).

    Raises FileError for a file that holds no faces, InputError for pictures of different sizes and no crop.
    """
    path = Path(place)
    return _from_file(path) if path.is_file() else _from_folder(path, crop)


def split_faces(
    faces: FacePictures, protocol: FaceSubspaceParams, rng: np.random.Generator
) -> tuple[Subspaces, list[Subspaces]]:
    """Return one subspace for each person, and for each query dimension one query for each person, from other images.

    The subspace is that of the greatest singular values of the pictures, not centred: it passes through 0 (total least
    squares, as the paper has it). Raises InputError for a person with too few images.
    """
    few = np.flatnonzero(np.bincount(faces.subject) < protocol.images + max(protocol.query_dims))
    if few.size:
        needed = protocol.images + max(protocol.query_dims)
        raise InputError(f"faces: person {few[0]} and {few.size - 1} others have fewer than {needed} pictures")
    spans, rest = [], []
    for person in range(faces.people):
        rows = rng.permutation(np.flatnonzero(faces.subject == person))
        pictures = faces.pixels[rows[: protocol.images]].astype(np.float64)
        spans.append(np.linalg.svd(pictures, full_matrices=False)[2][: protocol.dim])
        rest.append(rows[protocol.images :])
    zero = np.zeros((faces.people, faces.pixels.shape[1]), np.float32)
    queries = [
        Subspaces(zero, np.stack([faces.pixels[rng.choice(rows, dim, replace=False)] for rows in rest]))
        for dim in protocol.query_dims
    ]
    return Subspaces(zero, np.stack(spans).astype(np.float32)), queries


def _from_file(path: Path) -> FacePictures:
    try:
        with np.load(path, allow_pickle=False) as members:
            image, subject = members["image"], members["subject"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as cause:
        raise FileError(f"{path}: expected an npz file with the arrays image and subject") from cause
    if image.ndim != 3 or image.dtype != np.uint8 or subject.shape != (len(image),) or subject.dtype.kind not in "iu":
        raise FileError(f"{path}: image must be (N, H, W) of 8 bits, and subject (N,) whole numbers")
    numbers = np.unique(subject, return_inverse=True)[1]
    return FacePictures(image.reshape(len(image), -1).astype(np.float32) / 255, numbers.astype(np.int64))


def _from_folder(folder: Path, crop: tuple[int, int] | None) -> FacePictures:
    import cv2

    if crop is not None and not all(1 <= side <= 10_000 for side in crop):
        raise InputError(f"crop: expected a width and a height in pixels, got {crop}")
    rows, people = [], []
    for name, path in list_images(folder):
        person = name.rpartition("/")[0]
        if not person:
            raise InputError(f"{folder}: {name} is in no folder: put the pictures of each person in one")
        grey = to_grey(read_image(path, name))
        shown = grey if crop is None else cv2.resize(_middle(grey, crop), crop, interpolation=cv2.INTER_AREA)
        rows.append(np.asarray(shown, np.float32).ravel() / 255)
        people.append(person)
    if len({len(row) for row in rows}) != 1:
        raise InputError(f"{folder}: the pictures have different sizes: say what to crop them to")
    return FacePictures(np.stack(rows), np.unique(people, return_inverse=True)[1].astype(np.int64))


def _middle(grey: NDArray[np.uint8], crop: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the largest part in the middle of a picture that has the proportions of the crop."""
    height, width = grey.shape
    scale = min(width / crop[0], height / crop[1])
    kept = max(1, round(crop[0] * scale)), max(1, round(crop[1] * scale))
    left, top = (width - kept[0]) // 2, (height - kept[1]) // 2
    return np.ascontiguousarray(grey[top : top + kept[1], left : left + kept[0]])


# --- the evaluation


METHODS = tuple(name for name in LINEAR if name != "projector kd-tree eps 0")
"""A kd-tree without tolerance finds what the flat search finds, slowly."""

CANDIDATES = (1, 5, 10, 20)
"""Numbers of people that are compared exactly; 1 leaves the choice to the hash or the embedding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaceSearchProtocol:
    """``methods`` by name, each with every number of ``candidates``; ``splits`` drawn from ``seed``."""

    methods: tuple[str, ...] = METHODS
    candidates: tuple[int, ...] = CANDIDATES
    splits: int = 20
    seed: int = 0
    faces: FaceSubspaceParams = FaceSubspaceParams()

    def __post_init__(self) -> None:
        choose_methods(self.methods, LINEAR)
        if self.splits < 1 or not self.candidates or min(self.candidates) < 1:
            raise InputError("splits, candidates: expected 1 or more")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class FaceSearcher:
    """One method with one number of candidates (None for exact search).

    ``cache`` keeps the queries and the index of the last split, for the next number of candidates.
    """

    method: Method
    candidates: int | None
    faces: FacePictures
    protocol: FaceSearchProtocol
    cache: dict[tuple[str, str], tuple[Index, list[Subspaces]]]

    def index(self, sample: Sample) -> tuple[Index, list[Subspaces]]:
        """Return the index of a split and its queries."""
        key = self.method.name, sample.key
        if key not in self.cache:
            number = int(sample.key.removeprefix("split "))
            rng = np.random.default_rng((self.protocol.seed, number))
            entries, queries = split_faces(self.faces, self.protocol.faces, rng)
            self.cache.clear()
            self.cache[key] = self.method.build(entries, "angle", seed=number), queries
        return self.cache[key]

    def predict(self, sample: Sample) -> Prediction:
        """Return the hits of each query dimension and person, and the work of the search."""
        index, queries = self.index(sample)
        effort = None if self.candidates is None else min(1.0, (self.candidates - 0.5) / self.faces.people)
        hits, counts = [], []
        for subspaces in queries:
            _, ids, stats = index.search_counted(subspaces, 1, effort)
            hits.append(ids[:, 0] == np.arange(len(subspaces)))
            counts.append((stats.looked_at, stats.evaluated, stats.empty))
        return {"found": np.array(hits), "counts": np.array(counts) / self.faces.people}

    def score(self, sample: Sample, prediction: Prediction) -> Figures:
        """Return the share of people found for each query dimension, and entries looked at and compared per query."""
        dims = self.protocol.faces.query_dims
        rates = {success_name(dim): float(row.mean()) for dim, row in zip(dims, prediction["found"], strict=True)}
        looked, evaluated, empty = prediction["counts"].mean(axis=0)
        return {**rates, "looked at": looked, "compared": evaluated, "empty": empty}

    def summarise(self, figures: Mapping[str, Figures]) -> list[Score]:
        """Return the means over the splits, and the deviation of the success over all dimensions."""
        if not figures:
            return []
        rows = list(figures.values())
        means = [Score(name, float(np.mean([row[name] for row in rows])), samples=len(rows)) for name in rows[0]]
        names = [success_name(dim) for dim in self.protocol.faces.query_dims]
        overall = [float(np.mean([row[name] for name in names])) for row in rows]
        deviation = float(np.std(overall, ddof=1)) if len(rows) > 1 else 0.0
        return [Score("success", float(np.mean(overall)), samples=len(rows)), Score("deviation", deviation), *means]

    def task(self, samples: Sequence[Sample]) -> Task:
        """Return the task of this method."""
        shape = self.protocol.faces
        params: dict[str, Value] = {
            "images": shape.images,
            "dim": shape.dim,
            "query_dims": ",".join(map(str, shape.query_dims)),
        }
        return Task(
            name="search-faces",
            samples=samples,
            predict=self.predict,
            score=self.score,
            summarise=self.summarise,
            params={**self.method.described, "candidates": self.candidates, **params},
            seed=self.protocol.seed,
        )


def success_name(dim: int) -> str:
    """Return the name of the score for queries of a dimension."""
    return f"success, d = {dim}"


def evaluate_face_search(
    faces: FacePictures,
    folder: str | Path,
    protocol: FaceSearchProtocol | None = None,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    overwrite: bool = False,
) -> list[Record]:
    """Measure every method with every number of candidates; return a record for each, also kept below ``folder``.

    Raises InputError where a person has too few images or a name is unknown, FileError if nothing can be written.
    """
    protocol = protocol or FaceSearchProtocol()
    split_faces(faces, protocol.faces, np.random.default_rng(0))  # refuses too few images before anything is measured
    digest = digest_data(faces.pixels, faces.subject)
    samples = [Sample(f"split {number}", digest) for number in range(protocol.splits)]
    cache: dict[tuple[str, str], tuple[Index, list[Subspaces]]] = {}
    searchers = [
        FaceSearcher(method, count, faces, protocol, cache)
        for method in choose_methods(protocol.methods, LINEAR)
        for count in ((None,) if method.is_exact else protocol.candidates)
    ]
    tasks = [searcher.task(samples) for searcher in searchers]
    return run_tasks(tasks, folder, progress=progress, overwrite=overwrite, by_sample=True)


def face_search_table(records: Iterable[Record]) -> Table:
    """Return the share of people found by each method, overall and for each query dimension."""
    groups = group_by_seed(records)
    names = dict.fromkeys(score.name for group in groups for record in group.records for score in record.scores)
    dims = {name.removeprefix("success, "): name for name in names if name.startswith("success, ")}
    counts = {"compared": "compared", "looked at": "looked at"}
    scores = {"success": "success", "deviation": "deviation", **dims, **counts}
    return make_table(groups, ("method", "candidates"), scores)


def draw_success(records: Iterable[Record], stem: str | Path, title: str = "") -> tuple[Path, Path]:
    """Draw success over the query dimension like Figure 4 of the paper, a panel for each number of candidates."""
    groups = [group for group in group_by_seed(records) if group.values("success")]
    exact = [group for group in groups if group.params["candidates"] is None]
    panels = []
    for count in sorted({int(str(g.params["candidates"])) for g in groups if g.params["candidates"] is not None}):
        lines = []
        for group in [*exact, *(group for group in groups if group.params["candidates"] == count)]:
            dims = [int(dim) for dim in str(group.params["query_dims"]).split(",")]
            values = [group.mean(success_name(dim)) or 0.0 for dim in dims]
            lines.append(PlotLine(series=str(group.params["method"]), x=dims, y=values))
        panels.append(PlotPanel(f"{count} candidates" if count > 1 else "1 candidate", tuple(lines)))
    frame = PlotFrame(title=title, x_label="dimension of the query", y_label="share of people found")
    return draw_lines(stem, panels or [PlotPanel("exact", ())], frame)
