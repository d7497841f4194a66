# SPDX-License-Identifier: Apache-2.0
"""Paintings from positions alone, of rows that are real, of all, and of those taken for real."""

from importlib import resources
from typing import Any

import numpy as np
from common import note

from chaffs.figures import Row, row
from chaffs.sources import PER_REAL
from chaffs.telling import Answers
from sfumato.auditing.toolbox import bundled_inverter
from sfumato.inversion.images import invert_image, load_image_inverter
from sfumato.inversion.metrics import leakage, picture_scores

INVERTERS = {"learned without chaff": "positions-sift.safetensors",
             f"learned with chaff-{PER_REAL}": f"positions-sift-chaff-{PER_REAL}.safetensors"}  # fmt: skip


def paint(answers: Answers, args: Any) -> list[Row]:
    """Paint from positions alone: of real rows, all, those taken for real, and as many at random."""
    place = args.inverters or resources.files("sfumato.inversion") / "data"
    inverters = {}
    for name, file in INVERTERS.items():
        with resources.as_file(place / file) as path:
            if not path.is_file():
                note(f"{file} is not there: nothing is painted by it")
                continue
            inverters[name] = load_image_inverter(path)
    similar, rng = dict[tuple[str, str], list[float]](), np.random.default_rng(args.seed)
    for mixture, scores in list(zip(answers.mixtures, answers.scores, strict=True))[: args.painted]:
        pixels, size, features = mixture.photo.read(), mixture.size, mixture.photo.features
        patch = bundled_inverter()
        for name, inputs in (("clear", features.descriptors), ("floor", np.tile(patch.floor, (len(features), 1)))):
            picture = patch.paint(features.keypoints, np.ascontiguousarray(inputs), size)
            similar.setdefault(("scale", name), []).append(picture_scores(picture, pixels)["ssim"])
        flat = np.full(pixels.shape, pixels.mean() / 255)
        similar.setdefault(("scale", "flat picture"), []).append(picture_scores(flat, pixels)["ssim"])
        count, places = len(features), mixture.places
        parts = {
            "real rows: no chaff, or an oracle": places[mixture.is_real],
            "all rows": places,
            "the third taken for real": places[np.argsort(-scores, kind="stable")[:count]],
            "a third at random": places[rng.permutation(len(scores))[:count]],
            "control: places at random": rng.uniform(0, 1, (count, 2)) * size - 0.5,
            "control: a single feature": places[:1],
        }
        for case, some in parts.items():
            keypoints = np.pad(some, ((0, 0), (0, 2))).astype(np.float32)
            for name, inverter in inverters.items():
                picture = invert_image(inverter, keypoints, np.tile(inverter.mean, (len(some), 1)), size)
                similar.setdefault((case, name), []).append(picture_scores(picture, pixels)["ssim"])
    clear, floor = (float(np.mean(similar[("scale", name)])) for name in ("clear", "floor"))
    found = [
        row("painted", case, f"ssim, {name}", values) for (case, name), values in similar.items() if case == "scale"
    ]
    for (case, name), values in similar.items():
        if case != "scale":
            found.append(row("painted", case, f"ssim, {name}", values))
            found.append(row("painted", case, f"leakage, {name}", leakage(float(np.mean(values)), floor, clear)))
    return found
