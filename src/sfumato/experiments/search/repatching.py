# SPDX-License-Identifier: Apache-2.0
"""Re-patching: photos made again from the patches of another, by nearest-subspace search.

Section 5.1, Figures 1 and 2 of the hashing paper (after Basri et al.): 16 overlapping 5 x 5 patches around each of
1,000 random pixels of one photo span a subspace of 4 dimensions; other photos are cut into patches that do not overlap,
and each patch is projected on the nearest subspace. Measured are structural similarity and the entries looked at and
compared. A sample is a photo; a record is a method with a number of candidates. Predictions hold figures, no pictures.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.auditing.runner import Results, run_tasks
from sfumato.auditing.tables import PlotFrame, PlotLine, PlotPanel, Table, draw_lines, group_by_seed, make_table
from sfumato.auditing.task import Figures, Prediction, Sample, Task, digest_data
from sfumato.errors import ImageError, InputError
from sfumato.experiments.frontier.sheets import Column, draw_sheet
from sfumato.experiments.search.methods import LINEAR, Method, choose_methods
from sfumato.images.read import list_images, read_image, to_grey
from sfumato.inversion.metrics import picture_scores
from sfumato.search.index import Index, SearchStats
from sfumato.types.concealed import Subspaces
from sfumato.types.record import Record, Score, Value

Floats = NDArray[np.float32]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchDictionary:
    """Settings: ``pixels`` of a photo, ``shifts`` ** 2 patches of ``side`` around each, ``dim`` axes."""

    pixels: int = 1000
    side: int = 5
    shifts: int = 4
    dim: int = 4

    def __post_init__(self) -> None:
        if not (1 <= self.dim <= min(self.shifts**2, self.side**2 - 1) and self.pixels >= 1 and self.shifts >= 1):
            raise InputError("patches: expected more patches around a pixel than dimensions, and fewer than pixels")


def patch_subspaces(grey: NDArray[np.uint8], cut: PatchDictionary, rng: np.random.Generator) -> Subspaces:
    """Return the subspaces of random pixels of a photo (H, W): the greatest singular vectors of the patches around.

    The patches are those whose middle is -2 to 1 pixels from the pixel in each direction (for 16 of 5 x 5). They are
    not centred: the subspaces pass through 0. Pixels are drawn again where patches are alike and span too little.

    Raises InputError for a photo too small or too flat.
    """
    margin = cut.side // 2 + cut.shifts
    if min(grey.shape) < 2 * margin + 1:
        raise InputError(f"a photo of {grey.shape[1]} x {grey.shape[0]} pixels is too small to cut patches from")
    bases: list[NDArray[np.float64]] = []
    for _ in range(20 * cut.pixels):
        at = [int(rng.integers(margin, length - margin)) for length in grey.shape]
        _, sizes, axes = np.linalg.svd(_patches_around(grey, at, cut), full_matrices=False)
        if sizes[cut.dim - 1] > 1e-3 * max(sizes[0], 1e-9):
            bases.append(axes[: cut.dim])
        if len(bases) == cut.pixels:
            return Subspaces(np.zeros((cut.pixels, cut.side**2), np.float32), np.stack(bases).astype(np.float32))
    raise InputError("the photo is too flat: its patches span too few dimensions; choose another one")


def _patches_around(grey: NDArray[np.uint8], at: list[int], cut: PatchDictionary) -> NDArray[np.float64]:
    half, first = cut.side // 2, -(cut.shifts // 2)
    steps = range(first, first + cut.shifts)
    rows = [
        grey[at[0] + y - half : at[0] + y - half + cut.side, at[1] + x - half : at[1] + x - half + cut.side].ravel()
        for y in steps
        for x in steps
    ]
    return np.array(rows, np.float64) / 255


def cut_patches(grey: NDArray[np.uint8], side: int) -> Floats:
    """Return the patches (N, side ** 2) of a photo that do not overlap, row by row; what is left over is left out."""
    rows, columns = grey.shape[0] // side, grey.shape[1] // side
    if not rows or not columns:
        raise InputError(f"a photo of {grey.shape[1]} x {grey.shape[0]} pixels has no patch of {side} x {side}")
    trimmed = grey[: rows * side, : columns * side].reshape(rows, side, columns, side)
    return (trimmed.transpose(0, 2, 1, 3).reshape(-1, side * side) / 255).astype(np.float32)


def join_patches(patches: NDArray[np.float32], shape: tuple[int, int], side: int) -> Floats:
    """Put patches together again, as ``cut_patches`` cut a photo of this shape."""
    rows, columns = shape[0] // side, shape[1] // side
    joined = patches.reshape(rows, columns, side, side).transpose(0, 2, 1, 3)
    return np.clip(joined.reshape(rows * side, columns * side), 0, 1).astype(np.float32)


def repatch(
    grey: NDArray[np.uint8], entries: Subspaces, index: Index, side: int
) -> tuple[Floats, Floats, SearchStats, float]:
    """Return the photo made again, the same part of the photo, the work of the search, and the mean angle.

    Black patches lie in every subspace and are not searched for; a patch without an answer stays black.
    """
    patches = cut_patches(grey, side)
    lit = np.flatnonzero(np.linalg.norm(patches, axis=1) > 1e-6)
    projected = np.zeros_like(patches)
    angles, ids, stats = index.search_counted(patches[lit], k=1)
    answered = ids[:, 0] >= 0
    axes = entries.basis[ids[answered, 0]]
    own = patches[lit[answered]]
    projected[lit[answered]] = np.einsum("nk,nki->ni", np.einsum("nki,ni->nk", axes, own), axes)
    mean_angle = float(angles[answered, 0].mean()) if answered.any() else 0.0
    return join_patches(projected, grey.shape, side), join_patches(patches, grey.shape, side), stats, mean_angle


# --- the evaluation


METHODS = tuple(name for name in LINEAR if name not in ("grassmann printed pi/6", "projector kd-tree eps 0"))
SHEET_PHOTOS = 3
"""Photos on the sheet of Figure 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepatchProtocol:
    """``methods`` by name with every number of ``candidates``; the photo to cut from is drawn from ``seed``.

    A method that answers without comparing, the published kd-tree, has one number of candidates: 1.
    """

    methods: tuple[str, ...] = METHODS
    candidates: tuple[int, ...] = (20, 100)
    photos: int | None = None
    seed: int = 0
    cut: PatchDictionary = PatchDictionary()

    def __post_init__(self) -> None:
        choose_methods(self.methods, LINEAR)
        if not self.candidates or min(self.candidates) < 1 or (self.photos is not None and self.photos < 1):
            raise InputError("candidates, photos: expected 1 or more")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Repatcher:
    """One method; its index is built when it is first needed, and kept."""

    method: Method
    photos: Mapping[str, Path]
    entries: Subspaces
    source: str
    protocol: RepatchProtocol
    cache: dict[str, Index] = field(default_factory=dict)

    def make(self, path: Path) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float64]]:
        """Return a photo made again, the photo, and entries looked at and compared, empty answers, and mean angle."""
        if not self.cache:
            self.cache["index"] = self.method.build(self.entries, "angle", seed=self.protocol.seed)
        grey = to_grey(read_image(path))
        made, truth, stats, angle = repatch(grey, self.entries, self.cache["index"], self.protocol.cut.side)
        return made, truth, np.array([stats.looked_at, stats.evaluated, stats.empty, stats.queries, angle])

    def predict(self, sample: Sample) -> Prediction:
        """Make one photo again and score it."""
        made, truth, counts = self.make(self.photos[sample.key])
        return {"ssim": np.array(picture_scores(made, truth)["ssim"]), "counts": counts}

    def score(self, sample: Sample, prediction: Prediction) -> Figures:
        """Return structural similarity, and the work: in total as in Figure 1, and the share of empty answers."""
        looked, compared, empty, queries, angle = prediction["counts"].tolist()
        figures = {"ssim": float(prediction["ssim"]), "looked at": looked, "compared": compared, "angle": angle}
        each = max(queries, 1)
        return {
            **figures,
            "looked at a patch": looked / each,
            "compared a patch": compared / each,
            "empty": empty / each,
        }

    def summarise(self, figures: Mapping[str, Figures]) -> list[Score]:
        """Return means over photos, and deviations of similarity and of the work."""
        rows = list(figures.values())
        if not rows:
            return []
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        means = [Score(name, float(values.mean()), samples=len(rows)) for name, values in columns.items()]
        spread = [
            Score(f"{name} deviation", float(columns[name].std(ddof=min(1, len(rows) - 1))), samples=len(rows))
            for name in ("ssim", "looked at", "compared")
        ]
        return [*means, *spread]

    def task(self) -> Task:
        """Return the task of this method."""
        cut = self.protocol.cut
        params: dict[str, Value] = {
            "pixels": cut.pixels,
            "side": cut.side,
            "shifts": cut.shifts,
            "dim": cut.dim,
            "source": self.source,
        }
        digest = digest_data(self.entries.basis)
        return Task(
            name="search-repatch",
            samples=[Sample(name, digest_data(path, digest.encode())) for name, path in self.photos.items()],
            predict=self.predict,
            score=self.score,
            summarise=self.summarise,
            params={**self.method.described, **params},
            seed=self.protocol.seed,
        )


def prepare_repatch(place: str | Path, protocol: RepatchProtocol) -> list[Repatcher]:
    """Choose the photo to cut from and the photos to make again, and return a Repatcher for each method.

    Where the chosen one cannot be read, or is too small or too flat, another is drawn, and the log says so.

    Raises ImageError where there are no photos, InputError where none can be cut.
    """
    photos = dict(list_images(place))
    rng = np.random.default_rng(protocol.seed)
    source, entries = _draw_source(photos, protocol.cut, rng)
    subset = dict(list(photos.items())[: protocol.photos])
    methods = []
    for method in choose_methods(protocol.methods, LINEAR):
        fixed = method.is_exact or getattr(method.params, "method", "") == "kdtree"
        methods += [method] if fixed else [method.limited(count) for count in protocol.candidates]
    return [Repatcher(method, subset, entries, source, protocol) for method in methods]


def _draw_source(photos: Mapping[str, Path], cut: PatchDictionary, rng: np.random.Generator) -> tuple[str, Subspaces]:
    """Return a photo drawn from those that can be cut, and the subspaces of its patches."""
    names, problem = sorted(photos), ""
    while names:
        source = names.pop(int(rng.integers(len(names))))
        try:
            return source, patch_subspaces(to_grey(read_image(photos[source])), cut, rng)
        except (ImageError, InputError) as cause:
            problem = f"{source}: {cause}"
            log.warning("not cut into patches: %s", problem)
    raise InputError(f"no photo can be cut into patches; the last tried: {problem}")


def evaluate_repatch(
    repatchers: Sequence[Repatcher],
    folder: str | Path,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    overwrite: bool = False,
) -> list[Record]:
    """Make every photo again by every method; return a record for each, also kept below ``folder``."""
    tasks = [repatcher.task() for repatcher in repatchers]
    return run_tasks(tasks, folder, progress=progress, overwrite=overwrite, by_sample=True)


def repatching_table(records: Iterable[Record]) -> Table:
    """Return similarity and work of each method, means over photos."""
    names = ("ssim", "ssim deviation", "angle", "looked at a patch", "compared a patch", "empty")
    return make_table(group_by_seed(records), ("method", "candidates"), {name: name for name in names})


def draw_photos(repatchers: Sequence[Repatcher], folder: str | Path, stem: str | Path) -> list[Path]:
    """Draw Figure 1 of the paper from the results below ``folder``: similarity and work, photo by photo.

    Photos are in the order of their similarity when searched by the first method.
    """
    by_method = {}
    for repatcher in repatchers:
        task = repatcher.task()
        scores = Results(folder, task).scores()
        known = {sample.key: scores[sample][0] for sample in task.samples if sample in scores}
        by_method[_title(repatcher.method)] = known
    first = next(iter(by_method.values()), {})
    order = sorted(
        (key for key in first if all(key in known for known in by_method.values())), key=lambda k: first[k]["ssim"]
    )
    drawn: list[Path] = []
    labels = {"ssim": "structural similarity", "looked at": "entries looked at", "compared": "entries compared"}
    for score, label in labels.items():
        lines = [
            PlotLine(series=title, x=range(1, len(order) + 1), y=[known[key][score] for key in order])
            for title, known in by_method.items()
        ]
        limits = (0.0, 1.0) if score == "ssim" else None
        frame = PlotFrame(x_label="photo", y_label=label, y_limits=limits)
        place = Path(stem).with_name(f"{Path(stem).name}-{score.replace(' ', '-')}")
        drawn += draw_lines(place, [PlotPanel(label, tuple(lines))], frame)
    return drawn


def draw_repatched(repatchers: Sequence[Repatcher], path: str | Path) -> Path:
    """Write a sheet like Figure 2 of the paper: photos, as they are and as each method makes them again."""
    paths = _readable(repatchers[0].photos.values(), repatchers[0].protocol.cut.side)
    columns = [Column("photo", [to_grey(read_image(path)) for path in paths])]
    for repatcher in repatchers:
        pictures = [np.round(255 * repatcher.make(path)[0]).astype(np.uint8) for path in paths]
        columns.append(Column(_title(repatcher.method), pictures))
    return draw_sheet(path, columns)


def _readable(photos: Iterable[Path], side: int) -> list[Path]:
    """Return the first photos that can be read and have a patch; the others are named in the records."""
    paths: list[Path] = []
    for path in photos:
        with suppress(ImageError, InputError):
            cut_patches(to_grey(read_image(path)), side)
            paths.append(path)
        if len(paths) == SHEET_PHOTOS:
            break
    return paths


def _title(method: Method) -> str:
    candidates = getattr(method.params, "candidates", None)
    return method.name if candidates in (None, 1) else f"{method.name}, {candidates}"
