# SPDX-License-Identifier: Apache-2.0
"""Sheets of pictures side by side with their names, leakage drawn as dots with intervals, and runs of many tasks.

For each recipe a sheet has photos, in rows, beside what every attack painted of them. For several recipes there is one
more sheet, with the strongest attack on each (Figure 7 of NinjaDesc). The pictures are those the evaluation kept.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.registry import POINTS, AttackId
from sfumato.auditing.attack_task import AttackTask, decode_picture
from sfumato.auditing.leakage import LeakagePlan
from sfumato.auditing.runner import Results
from sfumato.auditing.tables import COLOURS, MARKERS, save_figure
from sfumato.errors import FileError, ImageError, InputError
from sfumato.files.atomic import write_file
from sfumato.images.read import read_image
from sfumato.types.record import Record

WIDTH = 240
"""Pixels of each picture of a sheet."""
TITLE = 20
GAP = 4


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Column:
    """A column of a sheet: its title, and for each row a picture (H, W) or (H, W, 3) uint8, or None."""

    title: str
    pictures: Sequence[NDArray[np.uint8] | None]


def draw_sheet(path: str | Path, columns: Sequence[Column]) -> Path:
    """Write pictures in rows, a column for each way they came about, as PNG or JPEG by the name of the file.

    Raises InputError for no pictures or columns of different length, FileError if the file cannot be written.
    """
    import cv2

    rows = {len(column.pictures) for column in columns}
    if len(rows) != 1 or rows == {0}:
        raise InputError(f"sheet: expected columns of one length, got {sorted(rows) or 'none'}")
    heights = [_row_height([column.pictures[row] for column in columns]) for row in range(rows.pop())]
    sheet = np.full((TITLE + sum(h + GAP for h in heights), len(columns) * (WIDTH + GAP) - GAP, 3), 255, np.uint8)
    for number, column in enumerate(columns):
        left, top = number * (WIDTH + GAP), TITLE
        cv2.putText(sheet, column.title[:34], (left + 2, TITLE - 6), cv2.FONT_HERSHEY_SIMPLEX, 0.42, 0, 1, cv2.LINE_AA)
        for picture, height in zip(column.pictures, heights, strict=True):
            if picture is not None:
                small = _fit(picture)[:height]
                sheet[top : top + len(small), left : left + WIDTH] = small
            top += height + GAP
    target = Path(path)
    if target.suffix not in (".png", ".jpg"):
        raise InputError(f"{target}: a sheet is written as .png or .jpg")
    encoded = cv2.imencode(target.suffix, sheet[:, :, ::-1])[1]
    write_file(target, encoded.tobytes(), with_folder=True)
    return target


def draw_leakage(records: Iterable[Record], stem: str | Path, title: str = "") -> tuple[Path, Path]:
    """Draw the leakage of every attack with its interval, one line each, one colour and marker per recipe.

    0 is what a mean descriptor at each keypoint shows, 1 what clear ones do. Returns the two files, PNG and SVG.

    Raises InputError where no record has a leakage.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rows = [
        (str(one.params["recipe"]), AttackId.of(one.params).title, *values)
        for one in records
        if (values := _leakage(one))
    ]
    if not rows:
        raise InputError("figure: no record has a leakage")
    recipes = list(dict.fromkeys(row[0] for row in rows))
    with mpl.rc_context({"svg.hashsalt": "sfumato", "font.size": 9}):
        figure = Figure(figsize=(6.4, 1.0 + 0.24 * len(rows)), layout="constrained")
        axes: Any = figure.subplots()
        for place, (recipe, _, value, low, high) in enumerate(rows):
            number = recipes.index(recipe)
            axes.plot([low, high], [place, place], color=COLOURS[number % len(COLOURS)], linewidth=1.2)
            axes.plot([value], [place], marker=MARKERS[number % len(MARKERS)], color=COLOURS[number % len(COLOURS)])
        axes.set_yticks(range(len(rows)), [f"{recipe}: {name}" for recipe, name, *_ in rows])
        axes.invert_yaxis()
        axes.axvline(0, color="#999999", linewidth=0.8)
        axes.axvline(1, color="#999999", linewidth=0.8)
        axes.set_xlabel("leakage (0 = keypoints with a mean descriptor, 1 = clear descriptors)")
        axes.grid(axis="x", color="#e8e8e8")
        axes.set_axisbelow(True)
        if title:
            axes.set_title(title, fontsize=10)
        return save_figure(figure, stem)


def _leakage(record: Record) -> tuple[float, float, float] | None:
    scores = {score.name: score.value for score in record.scores}
    names = ("leakage", "leakage low", "leakage high")
    return tuple(scores[name] for name in names) if all(name in scores for name in names) else None  # type: ignore[return-value]


def _row_height(pictures: Sequence[NDArray[np.uint8] | None]) -> int:
    sizes = [picture.shape for picture in pictures if picture is not None]
    return max((round(shape[0] * WIDTH / shape[1]) for shape in sizes), default=1)


def _fit(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a picture as red-green-blue of the width of a column."""
    import cv2

    height = max(1, round(picture.shape[0] * WIDTH / picture.shape[1]))
    smaller = picture.shape[1] > WIDTH
    kind = cv2.INTER_AREA if smaller else cv2.INTER_CUBIC
    fitted = cv2.resize(np.ascontiguousarray(picture), (WIDTH, height), interpolation=kind)
    coloured: NDArray[np.uint8] = np.repeat(fitted[:, :, None], 3, axis=2) if fitted.ndim == 2 else fitted
    return coloured


# --- sheets of attacks


PHOTOS = 6
TITLES = {"clear": "from clear descriptors", "floor": "from a mean descriptor"}


def draw_sheets(plan: LeakagePlan, folder: str | Path, descriptor: str, photos: int = PHOTOS) -> list[Path]:
    """Write ``leakage-<descriptor>-<recipe>.jpg`` for every recipe, with the first photos; return the files.

    For several recipes ``leakage-<descriptor>-strongest.jpg`` comes last.
    """
    samples = plan.samples[:photos]
    scale = [task for task in plan.tasks if task.is_scale]
    recipes = dict.fromkeys(str(task.subject.recipe) for task in plan.tasks)
    originals = [_original(plan.tasks[0].data.photos[sample.key]) for sample in samples]
    shared = [Column("photo", originals), *(_column(task, folder, len(samples)) for task in scale)]
    files, strongest = [], []
    for recipe in [name for name in recipes if name != "raw"] or ["raw"]:
        own = [one for one in plan.tasks if str(one.subject.recipe) == recipe and one not in scale]
        attacks = [one for one in own if one.attack.then != POINTS]  # those paint nothing
        columns = [_column(task, folder, len(samples)) for task in attacks]
        name = f"leakage-{descriptor}-{recipe.replace(':', '-')}.jpg"
        files.append(draw_sheet(Path(folder) / name, [*shared, *columns]))
        best = max(range(len(attacks)), key=lambda one: _similarity(attacks[one], folder), default=None)
        if best is not None:
            title = f"{re.sub('@[0-9a-f]+', '', recipe)}, {columns[best].title}"
            strongest.append(Column(title, columns[best].pictures))
    if len(strongest) > 1:
        name = f"leakage-{descriptor}-strongest.jpg"
        files.append(draw_sheet(Path(folder) / name, [*shared, *strongest]))
    return files


def _similarity(task: AttackTask, folder: str | Path) -> float:
    """Return the mean similarity of what an attack painted; minus infinity for one that does not count."""
    if not task.attack.counts:
        return -np.inf
    scores = Results(folder, task.task()).scores()
    values = [scores[sample][0]["ssim"] for sample in task.data.samples if sample in scores]
    return float(np.mean(values)) if values else -np.inf


def _original(path: Path) -> NDArray[np.uint8] | None:
    try:
        return read_image(path).pixels
    except ImageError:  # the photo was left out, and the records say so
        return None


def _column(task: AttackTask, folder: str | Path, count: int) -> Column:
    return Column(TITLES.get(task.attack.title, task.attack.title), list(_pictures(task, folder, count)))


def _pictures(task: AttackTask, folder: str | Path, count: int) -> Iterable[NDArray[np.uint8] | None]:
    results = Results(folder, task.task())
    for sample in task.data.samples[:count]:
        try:
            yield decode_picture(results.load_prediction(sample)[0]["picture"])
        except FileError:  # the photo was left out, and the record says so
            yield None


# --- many tasks of one sample each
