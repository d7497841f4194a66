# SPDX-License-Identifier: Apache-2.0
"""Curves of oracles: how near the best of K neighbours comes to the clear descriptor, over K, up to all.

Figures 2 and 5 of the embedding paper, Figure 1 of its supplement, Figure 11 of NinjaDesc. A row at a time only what
changes the answer is kept: a public descriptor counts if no other one is both nearer to the subspace and to the clear
descriptor. Distances of a few rows to all public descriptors are held, never of all rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.knowledge import Knowledge
from sfumato.attacks.liftings.neighbours import encode_public, row_blocks
from sfumato.errors import InputError
from sfumato.files.atomic import write_file
from sfumato.types.arrays import frozen_array
from sfumato.types.concealed import ConcealedFeatures, Subspaces

Floats = NDArray[np.float32]
GRID_STEPS = 4
"""Values of K for each doubling by ten, in round numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleCurve:
    """Mean distances to the clear descriptor over K; ``projected`` is None where there is nothing to project on."""

    neighbours: tuple[int, ...]
    plain: tuple[float, ...]
    projected: tuple[float, ...] | None
    count: int


def grid_up_to(size: int) -> tuple[int, ...]:
    """Return values of K from 1 to ``size``, evenly spread over a logarithmic axis, ``size`` among them.

    >>> grid_up_to(1000)
    (1, 2, 3, 6, 10, 18, 32, 56, 100, 178, 316, 562, 1000)
    """
    if size < 1:
        raise InputError("public: there are no public descriptors to choose from")
    exponents = np.arange(0, np.log10(size), 1 / GRID_STEPS)
    return tuple(sorted({*np.rint(10.0**exponents).astype(int).tolist(), size}))


def oracle_curve(
    queries: Subspaces | Floats,
    clear: Floats,
    searched: Floats,
    returned: Floats | None = None,
    grid: tuple[int, ...] | None = None,
) -> OracleCurve:
    """Return the mean distance of the oracle's best answer to ``clear`` (N, n), over K.

    The K rows of ``searched`` (V, q) nearest to each of the N queries, subspaces or points in R^q, are looked up in
    ``returned`` (V, n), by default ``searched`` itself, and the one nearest to the clear descriptor is the answer. For
    subspaces that answer is also projected on the subspace.
    """
    hidden = queries if isinstance(queries, Subspaces) else _as_subspaces(queries)
    answers = searched if returned is None else frozen_array(returned, "returned", (len(searched), None))
    truth = frozen_array(clear, "clear", (len(hidden), answers.shape[1]))
    grid = grid or grid_up_to(len(searched))
    projects = hidden.dim > 0 and returned is None
    plain, projected = np.zeros(len(grid)), np.zeros(len(grid))
    for row, scores, squared in _rows_of_distances(hidden, truth, searched, answers):
        ranks, best = _best_by_rank(scores, squared)
        at = np.searchsorted(ranks, grid, side="right") - 1
        plain += np.sqrt(np.maximum(squared[best], 0))[at]
        if projects:  # the clear descriptor is in the subspace: what is left is the part along the basis
            offset = (answers[best] - truth[row]) @ hidden.basis[row].T
            projected += np.linalg.norm(offset, axis=1)[at]
    count = max(1, len(hidden))
    means = tuple((projected / count).tolist()) if projects else None
    return OracleCurve(neighbours=grid, plain=tuple((plain / count).tolist()), projected=means, count=len(hidden))


def _best_by_rank(scores: Floats, squared: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ranks and rows of the answers that are better than all of lower rank, by ascending rank.

    ``scores`` (V,) order the rows, the least first; ``squared`` (V,) tell how good they are, the least the best. The
    first rank is 1.
    """
    ranks, rows = [], []
    left = np.arange(len(scores))
    while left.size:
        best = left[np.argmin(squared[left])]
        ranks.append(1 + int(np.count_nonzero(scores < scores[best])))
        rows.append(int(best))
        left = left[scores[left] < scores[best]]
    return np.array(ranks[::-1], np.int64), np.array(rows[::-1], np.int64)


def paired_curves(
    queries: Floats, clear: Floats, encoded: Floats, pairs: Floats, grid: tuple[int, ...] | None = None
) -> dict[str, OracleCurve]:
    """Return NinjaDesc's three oracles (section D.2) for encoded queries (N, q) of clear descriptors (N, n).

    The attacker has the same public descriptors encoded (V, q) and clear, ``pairs`` (V, n). "clear database" takes
    queries for clear descriptors, "encoded database" answers with encoded ones, both only where q = n; "paired" finds
    neighbours among the encoded and answers with their clear pairs.
    """
    curves = {"paired": oracle_curve(queries, clear, encoded, pairs, grid)}
    if queries.shape[1] == clear.shape[1]:
        curves["clear database"] = oracle_curve(queries, clear, pairs, None, grid)
        curves["encoded database"] = oracle_curve(queries, clear, encoded, None, grid)
    return curves


def encoder_curves(
    features: ConcealedFeatures, knowledge: Knowledge, grid: tuple[int, ...] | None = None
) -> dict[str, OracleCurve]:
    """Return the oracles of Figure 11 of NinjaDesc for encoded features of one image; of lifted ones "paired" alone.

    Raises InputError without public descriptors, the clear ones and the encoder, or for features of no encoder.
    """
    if not features.recipe.has_encoder:
        raise InputError(f"{features.recipe} has no encoder: oracle_curve draws its curve")
    if knowledge.public is None or knowledge.clear is None:
        raise InputError("the curves of an oracle need public and clear descriptors")
    knowledge.check(features)
    encoded, hidden = encode_public(knowledge), features.subspaces
    if hidden.dim:
        return {"paired": oracle_curve(hidden, knowledge.clear, encoded, knowledge.public, grid)}
    return paired_curves(hidden.origin, knowledge.clear, encoded, knowledge.public, grid)


def mean_curve(curves: Sequence[OracleCurve]) -> OracleCurve:
    """Return the curve over all rows of several images that were asked about the same public descriptors."""
    if not curves or len({curve.neighbours for curve in curves}) != 1:
        raise InputError("curves: expected one or more, over the same numbers of neighbours")
    weights = np.array([curve.count for curve in curves], float)
    weights /= max(1.0, weights.sum())
    own = [curve.projected for curve in curves if curve.projected is not None]
    means = tuple((weights @ np.array(own)).tolist()) if len(own) == len(curves) else None
    plain = tuple((weights @ np.array([curve.plain for curve in curves])).tolist())
    count = sum(curve.count for curve in curves)
    return OracleCurve(neighbours=curves[0].neighbours, plain=plain, projected=means, count=count)


def draw_curves(path: str | PathLike[str], curves: Mapping[str, OracleCurve], title: str) -> None:
    """Draw curves over K, projected ones dashed, and dotted where each ends: the whole public set."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.6), layout="constrained")
    axes = figure.subplots()
    for number, (name, curve) in enumerate(curves.items()):
        for values, style, more in ((curve.plain, "-", ""), (curve.projected, "--", ", projected")):
            if values is not None:
                axes.plot(curve.neighbours, values, style, color=f"C{number}", label=name + more)
                axes.axhline(values[-1], color=f"C{number}", ls=":", lw=0.8)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("neighbours K the oracle chooses from")
    axes.set_ylabel("mean distance to the clear descriptor")
    axes.grid(color="#eeeeee")
    axes.legend(fontsize=8, frameon=False)
    axes.set_title(title, fontsize=10)
    kind = Path(path).suffix.removeprefix(".") or "png"
    write_file(Path(path), lambda file: figure.savefig(file, format=kind, dpi=130), with_folder=True)


def _rows_of_distances(
    hidden: Subspaces, truth: Floats, searched: Floats, answers: Floats
) -> Iterator[tuple[int, Floats, Floats]]:
    """Yield each row with its scores (V,) and the squared distances (V,) of the answers to its clear descriptor.

    A score is the squared distance to the subspace less a constant of the row: ||v||^2 - 2 v.p - ||B v||^2.
    """
    lengths, answer_lengths = np.einsum("vi,vi->v", searched, searched), np.einsum("vi,vi->v", answers, answers)
    for block in row_blocks(len(hidden), len(searched) * (hidden.dim + 2)):
        rows = range(*block.indices(len(hidden)))
        products = searched @ hidden.origin[block].T  # (V, rows)
        along = searched @ hidden.basis[block].reshape(-1, hidden.ambient_dim).T
        toward = answers @ truth[block].T
        for number, row in enumerate(rows):
            own = along[:, number * hidden.dim : (number + 1) * hidden.dim]
            scores = lengths - 2 * products[:, number] - np.einsum("vk,vk->v", own, own)
            yield row, scores, answer_lengths - 2 * toward[:, number] + truth[row] @ truth[row]


def _as_subspaces(points: Floats) -> Subspaces:
    rows = frozen_array(points, "queries", (None, None))
    return Subspaces(rows, np.zeros((len(rows), 0, rows.shape[1]), np.float32))
