# SPDX-License-Identifier: Apache-2.0
"""Pictures side by side with their names, and leakage as dots with intervals, for people who would rather look.

Knows arrays, names and records; not how a picture came about.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.auditing.attack_task import decode_picture
from sfumato.auditing.leakage import SCALE, Work, Works, counts
from sfumato.auditing.runner import Results, predict, run
from sfumato.auditing.tables import COLOURS, MARKERS, save_figure
from sfumato.auditing.task import Figures, Task
from sfumato.auditing.two_stage import POINTS
from sfumato.errors import FileError, ImageError, InputError
from sfumato.files.atomic import write_file
from sfumato.images.read import read_image
from sfumato.types.record import Record, Score

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
    """Draw the leakage of every attack with its interval, one line each, recipes told by colour and marker.

    0 is what a mean descriptor at each keypoint shows, 1 what clear ones do. Returns the two files, PNG and SVG.

    Raises InputError where no record has a leakage.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    found = [(str(one.params["recipe"]), _name(one), *values) for one in records if (values := _leakage(one))]
    if not found:
        raise InputError("figure: no record tells a leakage")
    recipes = list(dict.fromkeys(row[0] for row in found))
    with mpl.rc_context({"svg.hashsalt": "sfumato", "font.size": 9}):
        figure = Figure(figsize=(6.4, 1.0 + 0.24 * len(found)), layout="constrained")
        axes: Any = figure.subplots()
        for place, (recipe, _, value, low, high) in enumerate(found):
            number = recipes.index(recipe)
            axes.plot([low, high], [place, place], color=COLOURS[number % len(COLOURS)], linewidth=1.2)
            axes.plot([value], [place], marker=MARKERS[number % len(MARKERS)], color=COLOURS[number % len(COLOURS)])
        axes.set_yticks(range(len(found)), [f"{recipe}: {name}" for recipe, name, *_ in found])
        axes.invert_yaxis()
        axes.axvline(0, color="#999999", linewidth=0.8)
        axes.axvline(1, color="#999999", linewidth=0.8)
        axes.set_xlabel("leakage: 0 a mean descriptor, 1 clear descriptors")
        axes.grid(axis="x", color="#e8e8e8")
        axes.set_axisbelow(True)
        if title:
            axes.set_title(title, fontsize=10)
        return save_figure(figure, stem)


def _leakage(record: Record) -> tuple[float, float, float] | None:
    scores = {score.name: score.value for score in record.scores}
    names = ("leakage", "leakage low", "leakage high")
    return tuple(scores[name] for name in names) if all(name in scores for name in names) else None  # type: ignore[return-value]


def _name(record: Record) -> str:
    attack, inverter = record.params.get("attack"), record.params.get("inverter")
    return str(attack) if inverter in (None, "patch") else f"{attack}, {inverter}"


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


# ----------------------------------------------------------------
# What a server could paint: for each recipe a sheet of photos, in rows, beside what every attack made of them
# Of several recipes there is one more sheet, with the strongest attack on each (Figure 7 of NinjaDesc).
#
# Reads the pictures that the evaluation kept; paints none itself.


PHOTOS = 6
TITLES = {"clear": "from clear descriptors", "floor": "from a mean descriptor"}


def draw_sheets(works: Works, folder: str | Path, descriptor: str, photos: int = PHOTOS) -> list[Path]:
    """Write ``leakage-<descriptor>-<recipe>.jpg`` for every recipe, with the first photos; return the files.

    For several recipes ``leakage-<descriptor>-strongest.jpg`` comes last.
    """
    samples = works.samples[:photos]
    of_scale = [work for work in works.made if work.intruder.case.attack in SCALE and _is_raw(work)]
    recipes = dict.fromkeys(str(work.intruder.case.subject.recipe) for work in works.made)
    originals = [_original(works.made[0].intruder.photos[sample.key]) for sample in samples]
    of_all = [Column("photo", originals), *(_column(work, folder, len(samples)) for work in of_scale)]
    files, strongest = [], []
    for recipe in [name for name in recipes if name != "raw"] or ["raw"]:
        own = [one for one in works.made if str(one.intruder.case.subject.recipe) == recipe and one not in of_scale]
        attacks = [one for one in own if not one.intruder.case.attack.endswith(f"then {POINTS}")]  # they paint nothing
        columns = [_column(work, folder, len(samples)) for work in attacks]
        name = f"leakage-{descriptor}-{recipe.replace(':', '-')}.jpg"
        files.append(draw_sheet(Path(folder) / name, [*of_all, *columns]))
        best = max(range(len(attacks)), key=lambda one: _similarity(attacks[one], folder), default=None)
        if best is not None:
            title = f"{re.sub('@[0-9a-f]+', '', recipe)}, {columns[best].title}"
            strongest.append(Column(title, columns[best].pictures))
    if len(strongest) > 1:
        name = f"leakage-{descriptor}-strongest.jpg"
        files.append(draw_sheet(Path(folder) / name, [*of_all, *strongest]))
    return files


def _similarity(work: Work, folder: str | Path) -> float:
    """Return the mean similarity of what an attack painted; that of an oracle, which knows the answer, is none."""
    attack = work.intruder.case.attack
    if not counts(attack):
        return -np.inf
    kept = Results(folder, work.task()).scores()
    values = [kept[sample][0]["ssim"] for sample in work.samples if sample in kept]
    return float(np.mean(values)) if values else -np.inf


def _original(path: Path) -> NDArray[np.uint8] | None:
    try:
        return read_image(path).pixels
    except ImageError:  # the photo was left out, which the records tell
        return None


def _is_raw(work: Work) -> bool:
    return work.intruder.case.painter.recipe == "raw"


def _column(work: Work, folder: str | Path, count: int) -> Column:
    case = work.intruder.case
    title = TITLES.get(case.attack, case.attack)
    if case.painter.architecture != "patch":
        title = f"{title}, {case.painter.architecture}"
    return Column(title, list(_pictures(work, folder, count)))


def _pictures(work: Work, folder: str | Path, count: int) -> Iterable[NDArray[np.uint8] | None]:
    results = Results(folder, work.task())
    for sample in work.samples[:count]:
        try:
            yield decode_picture(results.load_prediction(sample)[0]["picture"])
        except FileError:  # the photo was left out, which the record tells
            yield None


# ----------------------------------------------------------------
# What evaluations share that run many tasks of one sample each: in turn, found again, summed up figure by figure
# Knows tasks; not what they measure.


def run_together(
    tasks: Sequence[Task],
    folder: str | Path,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    overwrite: bool = False,
) -> list[Record]:
    """Run tasks one after the other; return their records, which are also kept below ``folder``.

    What was measured before is not measured again, unless ``overwrite`` forgets it. Raises FileError if the folder can
    not be written.
    """
    if overwrite:
        for task in tasks:
            Results(folder, task).forget(task.samples)
    for task in progress(tasks):
        predict(task, folder)
    return [run(task, folder) for task in tasks]


def figure_by_figure(counted: str) -> Callable[[Mapping[str, Figures]], list[Score]]:
    """Return a summary that makes every figure a score, but ``counted``, which says of how many samples they are."""

    def summarise(figures: Mapping[str, Figures]) -> list[Score]:
        return [
            Score(name, value, samples=int(row[counted]))
            for row in figures.values()
            for name, value in row.items()
            if name != counted
        ]

    return summarise
