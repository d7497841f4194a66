# SPDX-License-Identifier: Apache-2.0
"""What a server could paint: for each recipe a sheet of photos, in rows, beside what every attack made of them.

Of several recipes there is one more sheet, with the strongest attack on each (Figure 7 of NinjaDesc).

Reads the pictures that the evaluation kept; paints none itself.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, ImageError
from sfumato.evaluate.leakage import SCALE, Work, Works, counts
from sfumato.evaluate.results import Results
from sfumato.evaluate.seen import decode_picture
from sfumato.evaluate.sheets import Column, draw_sheet
from sfumato.evaluate.staged import POINTS
from sfumato.images.read import read_image

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
