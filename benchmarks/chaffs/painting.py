# SPDX-License-Identifier: Apache-2.0
"""Outlines painted from positions alone: of rows that are real, of all, and of those taken for real."""

from typing import Any

import numpy as np
from common import note

from chaffs.figures import Row, row
from chaffs.sources import PER_REAL
from chaffs.telling import Answers
from sfumato.auditing.toolbox import bundled_inverter
from sfumato.inversion.images import ImageInverter, invert_image, load_image_inverter
from sfumato.inversion.metrics import outline_score, outlines
from sfumato.inversion.patches import network_folder

INVERTERS = {"learned without chaff": "outlines-sift.safetensors",
             f"learned with chaff-{PER_REAL}": f"outlines-sift-chaff-{PER_REAL}.safetensors"}  # fmt: skip


def paint(answers: Answers, args: Any, part: str = "painted") -> list[Row]:
    """Paint outlines from positions alone: of real rows, all, those taken for real, and as many at random."""
    inverters, rng = open_inverters(args), np.random.default_rng(args.seed)
    similar = dict[tuple[str, str], list[float]]()
    pairs = zip(answers.mixtures, answers.scores, strict=True)
    for number, (mixture, scores) in enumerate(list(pairs)[: args.painted]):
        pixels, size, features = mixture.photo.read(), mixture.size, mixture.photo.features
        clear = bundled_inverter().paint(features.keypoints, features.descriptors, size)
        similar.setdefault(("clear features", "outlines of the picture"), []).append(
            outline_score(outlines(np.clip(clear, 0, 1)), pixels)
        )
        count, places = len(features), mixture.places
        parts = {
            "real rows: no chaff, or an oracle": places[mixture.is_real],
            "all rows": places,
            "the third taken for real": places[np.argsort(-scores, kind="stable")[:count]],
            **{case: places[np.argsort(-s[number], kind="stable")[:count]] for case, s in answers.others.items()},
            "a third at random": places[rng.permutation(len(scores))[:count]],
            "control: places at random": rng.uniform(0, 1, (count, 2)) * size - 0.5,
            "control: a single feature": places[:1],
        }
        for case, rows in parts.items():
            keypoints = np.pad(rows, ((0, 0), (0, 2))).astype(np.float32)
            for name, inverter in inverters.items():
                picture = invert_image(inverter, keypoints, np.tile(inverter.mean, (len(rows), 1)), size)
                similar.setdefault((case, name), []).append(outline_score(picture, pixels))
    return [row(part, case, f"outlines, {name}", values) for (case, name), values in similar.items()]


def open_inverters(args: Any) -> dict[str, ImageInverter]:
    """Return the inverters of outlines, the bundled ones or those in a folder."""
    place, inverters = args.inverters or network_folder(), {}
    for name, file in INVERTERS.items():
        if (place / file).is_file():
            inverters[name] = load_image_inverter(place / file)
        else:
            note(f"{file} is not there: nothing is painted by it")
    return inverters
