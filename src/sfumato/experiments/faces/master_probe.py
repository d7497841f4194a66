# SPDX-License-Identifier: Apache-2.0
"""Master probes: one probe that is accepted as many people, from a thief with a key and no face of theirs.

The thief sends any bits he likes, not only those of faces. He knows the key, the recipe and public faces, and tries the
points and the bits that are near most of them: the zero vector, the mean of faces at several lengths and its opposite,
the middle of the faces that are most alike, and each bit as most faces have it. Whoever has the rows of a gallery under
one key does the last without any key. As probes for clear faces they are known as wolves (Une, Otsuka and Imai, "Wolf
attack probability", 2007) and master faces (Nguyen et al., "Generating master faces for use in performing wolf attacks
on face recognition systems", 2020).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.auditing.task import Figures, Prediction
from sfumato.concealment.seal import Seal
from sfumato.experiments.faces.lifting import bit_distances, bit_signs, face_seal
from sfumato.experiments.faces.releases import Albums
from sfumato.faces.calibration import master_points
from sfumato.types.concealed import Bits
from sfumato.types.recipe import Recipe

LENGTHS = (0.1, 0.25, 0.5, 1.0, 2.0)
"""Lengths of the mean of faces, where a face has 1: a wave tells near zero what it does not tell farther out."""

SEALED = 500
"""Public faces that he seals under a key, for what most of them have in each bit."""

MASTER, FROM_ROWS = "master ", "master without the key"
"""Beginning of the names of probes of whoever has the key; the one from rows under one key, without it."""

Distances = NDArray[np.float32]


def probe_points(public: NDArray[np.float32]) -> dict[str, NDArray[np.float64]]:
    """Return points (n,) that are near most public faces (V, n), by name; of (0, n) faces zero alone."""
    points = {"zero": np.zeros(public.shape[1])}
    if not len(public):
        return points
    mean, middle = master_points(public)
    points |= {f"mean of length {length:g}": length * mean for length in LENGTHS}
    return {**points, "opposite of the mean": -mean, "middle of a crowd": middle}


def master_distances(
    templates: Bits, seal: Seal, points: Mapping[str, NDArray[np.float64]], public: NDArray[np.float32]
) -> dict[str, Distances]:
    """Return the distance (N,) of every master probe to templates under a key, by its name.

    Probes are the seals of points (n,), and what most public faces (V, n) have in each bit.
    """
    packed = dict(zip(points, seal(np.array(list(points.values()))).packed, strict=True))
    if len(public):
        packed["most faces, bit by bit"] = majority(bit_signs(seal(public[:SEALED])).sum(axis=0))
    return {name: bit_distances(templates.packed, bits[None]) for name, bits in packed.items()}


def distances_without_key(templates: Bits) -> Distances:
    """Return the distance (N,) of each row of a gallery under one key to what most of the other rows have."""
    signs = bit_signs(templates)
    return bit_distances(templates.packed, majority(signs.sum(axis=0)[None] - signs))


def majority(sums: NDArray[Any]) -> NDArray[np.uint8]:
    """Return packed bits (..., B / 8) that are 1 where a sum of signs (..., B) is not negative."""
    return np.packbits(sums >= 0, axis=-1)


def master_probes(
    albums: Albums, recipe: Recipe, public: NDArray[np.float32], *, one_key: bool, seed: int, odd: bool = True
) -> dict[str, Distances]:
    """Return the distances (P,) of master probes to the templates of first photos, each sealed under its key.

    Without ``odd`` seals have random phases, which no gallery has: zero is near everybody then.
    """
    values, points = albums.faces.values[albums.photos[:, 0]], probe_points(public)
    if one_key:
        seal = face_seal(recipe, values.shape[1], seed=seed, odd=odd)
        templates = seal(values)
        distances = master_distances(templates, seal, points, public)
        return {MASTER + name: one for name, one in distances.items()} | {FROM_ROWS: distances_without_key(templates)}
    parts = []
    for person, row in enumerate(values):
        seal = face_seal(recipe, values.shape[1], seed=seed, owner=f"person {person}", odd=odd)
        parts.append(master_distances(seal(row[None]), seal, points, public))
    return {MASTER + name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def master_figures(prediction: Prediction, threshold: float) -> Figures:
    """Return the shares of people that master probes open, and that of the probe that opens most."""
    rates = {
        name: float((distances <= threshold).mean())
        for name, distances in prediction.items()
        if name.startswith(MASTER)
    }
    with_key = [rate for name, rate in rates.items() if name != FROM_ROWS]
    figures = dict(rates)
    if with_key:
        figures["master probe with the key"] = max(with_key)
    if FROM_ROWS in rates:
        figures["master probe without the key"] = rates[FROM_ROWS]
    return figures
