# SPDX-License-Identifier: Apache-2.0
"""Decoder: a trained map from the released form of a descriptor back to the clear one, in numpy, without torch.

Two forms. ``direct`` is a perceptron from the canonical input to the descriptor; it takes any released form, also
points in another space. ``search`` is for subspaces that hold the clear descriptor and descriptors of unit norm: the
subspace cuts the sphere in a circle (m = 2) or a smaller sphere; a perceptron takes points of it, says where the clear
descriptor rather lies and how likely the point is one; points move along, and the likeliest is taken. Trained by
``training.decoder``.
"""

import os
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import FileError, InputError
from sfumato.files.tensors import checked_arrays, load_checkpoint
from sfumato.inversion.canonical import as_subspaces, canonical_input
from sfumato.types.concealed import Subspaces

Floats = NDArray[np.float32]

KIND = "decoder"
FORMS = ("direct", "search")
ROUNDS = 5
NARROW_AT = 1
"""The round after which only the likeliest points go on,"""
SURVIVORS = 3
"""this many of them."""
NUMBERS_AT_ONCE = 2**21


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Form and sizes of a decoder.

    Released in R^``n_in`` as subspaces of dimension ``m`` (0: points), clear in R^``n_out``. ``positive``: the clear
    descriptor has no negative number; ``unit``: it has unit norm. ``project``: a direct guess is moved to the nearest
    point of the subspace.
    """

    form: str
    n_in: int
    m: int
    n_out: int
    hidden: int
    depth: int
    positive: bool
    unit: bool
    project: bool = False

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the arrays of a decoder; the last layer gives the descriptor and a confidence."""
        entry = self.n_in if self.form == "search" else (self.m + 1) * self.n_in
        ends = [entry, *[self.hidden] * self.depth, self.n_out + 1]
        arrays: dict[str, tuple[int, ...]] = {"frame": (self.n_in, self.n_in), "mean": (entry,), "deviation": (entry,)}
        for number, (into, out) in enumerate(pairwise(ends)):
            arrays |= {f"{number}.weight": (out, into), f"{number}.bias": (out,)}
        return arrays


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Decoder:
    """A trained decoder: called with released Subspaces or points (N, n) it returns descriptors (N, n)."""

    layout: Layout
    arrays: dict[str, Floats]
    facts: dict[str, Any]

    def __call__(self, released: Subspaces | ArrayLike) -> Floats:
        return self.decode(released)[0]

    def decode(self, released: Subspaces | ArrayLike) -> tuple[Floats, Floats]:
        """Return guesses at the clear descriptors (N, n), and their confidences (N,), 0 to 1.

        Raises InputError if the decoder was trained for another released form.
        """
        inputs = canonical_input(released, self.arrays["frame"])
        length = (self.layout.m + 1) * self.layout.n_in
        m = released.dim if isinstance(released, Subspaces) else 0
        if inputs.shape[1] != length or m != self.layout.m:
            raise InputError(
                f"this decoder takes subspaces of dimension {self.layout.m} in R^{self.layout.n_in} "
                f"({self.facts.get('recipe')}), these have dimension {m} and {inputs.shape[1]} numbers each"
            )
        guesses = np.empty((len(inputs), self.layout.n_out), np.float32)
        confidences = np.empty(len(inputs), np.float32)
        decode = _search if self.layout.form == "search" else _direct
        block = max(1, NUMBERS_AT_ONCE // (self.layout.hidden * (starts(m).shape[0] if m else 1)))
        for start in range(0, len(inputs), block):
            rows = slice(start, start + block)
            guesses[rows], confidences[rows] = decode(self, inputs[rows])
        return guesses, confidences

    def __repr__(self) -> str:
        layout = self.layout
        return f"Decoder({layout.form}, {self.facts.get('recipe')}, dimension {layout.m} in R^{layout.n_in})"


def read_decoder(path: str | os.PathLike[str]) -> Decoder:
    """Read a decoder written by ``train_decoder``.

    Raises FileError if it is missing, damaged or something else.
    """
    arrays, facts = load_checkpoint(path, KIND)
    try:
        layout = Layout(**facts["layout"])
        sizes = (layout.n_in, layout.n_out, layout.hidden, layout.depth)
        if layout.form not in FORMS or not all(isinstance(size, int) and 0 < size < 2**16 for size in sizes):
            raise ValueError("sizes that no decoder has")
        if not isinstance(layout.m, int) or not 0 <= layout.m < layout.n_in + (layout.m == 0):
            raise ValueError("a dimension that no subspace has")
        if layout.form == "search" and (layout.m == 0 or layout.n_in != layout.n_out):
            raise ValueError("a search in another space")
    except (KeyError, TypeError, ValueError) as cause:
        raise FileError(f"{path}: not a usable decoder: its facts are damaged ({cause})") from cause
    return Decoder(layout, checked_arrays(arrays, layout.shapes(), path), facts)


def starts(m: int) -> Floats:
    """Return the directions (K, m) in which a search begins: all around, and the same every time."""
    if m == 1:
        return np.array([[1.0], [-1.0]], np.float32)
    if m == 2:
        angles = np.arange(16) * np.pi / 8
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    drawn = np.random.default_rng(m).normal(size=(8 * min(m, 8), m))
    directions: Floats = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    return directions


def run_layers(arrays: dict[str, Floats], depth: int, x: Floats) -> Floats:
    """Return the outputs (..., n_out + 1) of the perceptron for (..., entry) numbers."""
    lead = x.shape[:-1]
    x = ((x - arrays["mean"]) / arrays["deviation"]).reshape(-1, x.shape[-1])  # one large product, not many small ones
    for number in range(depth + 1):
        x = x @ arrays[f"{number}.weight"].T
        x += arrays[f"{number}.bias"]
        if number < depth:
            np.maximum(x, 0, out=x)
    return x.reshape(*lead, -1) if x.size else np.empty((*lead, x.shape[-1]), np.float32)


def on_sphere(origin: Floats, basis: Floats, directions: Floats) -> Floats:
    """Return the points (N, K, n) of unit norm that lie in subspaces in the directions (N, K, m) from their origins.

    A subspace that does not reach the sphere gives its origin.
    """
    radius = np.sqrt(np.maximum(0, 1 - np.einsum("ni,ni->n", origin, origin)))
    lengths = np.linalg.norm(directions, axis=2, keepdims=True)
    unit = directions / np.maximum(lengths, 1e-9)
    points: Floats = origin[:, None] + np.matmul(radius[:, None, None] * unit, basis)
    return points


def nearest_in(origin: Floats, basis: Floats, guesses: Floats, *, unit: bool) -> Floats:
    """Return the points (N, n) of subspaces nearest to guesses (N, n); of unit norm if ``unit``."""
    along = np.einsum("ni,nmi->nm", guesses - origin, basis)
    if unit:
        return on_sphere(origin, basis, along[:, None])[:, 0]
    nearest: Floats = origin + np.einsum("nm,nmi->ni", along, basis)
    return nearest


def _shaped(layout: Layout, raw: Floats) -> Floats:
    """Return raw numbers of the last layer as descriptors."""
    rows = np.maximum(raw, 0) + np.log1p(np.exp(-np.abs(raw))) if layout.positive else raw  # softplus
    if layout.unit:
        rows = rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-9)
    shaped: Floats = rows.astype(np.float32)
    return shaped


def _likely(raw: Floats) -> Floats:
    likely: Floats = (0.5 + 0.5 * np.tanh(raw / 2)).astype(np.float32)
    return likely


def _direct(decoder: Decoder, inputs: Floats) -> tuple[Floats, Floats]:
    layout = decoder.layout
    raw = run_layers(decoder.arrays, layout.depth, inputs)
    guesses = _shaped(layout, raw[:, :-1])
    if layout.project:
        guesses = nearest_in(*as_subspaces(inputs, layout.n_in), guesses, unit=layout.unit)
    return guesses, _likely(raw[:, -1])


def _search(decoder: Decoder, inputs: Floats) -> tuple[Floats, Floats]:
    layout, every = decoder.layout, np.arange(len(inputs))
    origin, basis = as_subspaces(inputs, layout.n_in)
    directions = np.broadcast_to(starts(layout.m), (len(inputs), *starts(layout.m).shape))
    for number in range(ROUNDS + 1):
        points = on_sphere(origin, basis, directions)  # (N, K, n)
        raw = run_layers(decoder.arrays, layout.depth, points)
        if number == NARROW_AT and points.shape[1] > SURVIVORS:
            best = np.argsort(-raw[..., -1], axis=1)[:, :SURVIVORS]
            raw, points = np.take_along_axis(raw, best[..., None], 1), np.take_along_axis(points, best[..., None], 1)
        if number < ROUNDS:
            guesses = _shaped(layout, raw[..., :-1])
            directions = np.matmul(guesses - origin[:, None], basis.transpose(0, 2, 1))  # (N, K, m)
    likeliest = raw[..., -1].argmax(axis=1)
    return points[every, likeliest], _likely(raw[every, likeliest, -1])
