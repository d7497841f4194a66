# SPDX-License-Identifier: Apache-2.0
"""No bound is above the distance it bounds, whatever is projected away, rounded or singular."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from sfumato.subspace import fast, reference
from sfumato.subspace.kernels.bounds import LARGEST, bracket
from sfumato.subspace.kernels.simd import LANES, pair_dots
from sfumato.subspace.plan import Plan
from sfumato.subspace.subspace_set import Frame

pytestmark = pytest.mark.filterwarnings("ignore::sfumato.errors.VoidDistanceWarning")

COUNTS = (23, 29)
DIMENSIONS = [(0, 0), (2, 0), (2, 2), (4, 4)]
MORE_DIMENSIONS = [*DIMENSIONS, (3, 1), (1, 1), (3, 3)]


class Flat(NamedTuple):
    origin: np.ndarray
    basis: np.ndarray


def through(points: np.ndarray, directions: np.ndarray) -> Flat:
    arrays = [np.array(part, np.float32, order="C") for part in reference.canonicalise(points, directions)]
    for array in arrays:
        array.flags.writeable = False
    return Flat(*arrays)


def begun(side0: Flat, side1: Flat, head: int, step: float, duals=(False, False), mean=None) -> fast.TiledSearch:
    """A search that looks for nothing: it only fills in the bounds."""
    nothing = [(np.empty((count, 0)), np.empty((count, 0), np.int64)) for count in map(len, (side0[0], side1[0]))]
    frame = Frame.of(side0.origin, side1.origin)
    frame.mean = frame.mean if mean is None else mean
    return fast.TiledSearch(fast.prepare(*side0), fast.prepare(*side1), frame, Plan(head, step, duals), np.inf, nothing)


def bytes_of(search: fast.TiledSearch) -> np.ndarray:
    search.run()
    rows, columns = search.counts
    return search.bounds[: rows * search.stride].reshape(rows, -1)[:, :columns].copy()


def check_bytes(side0: Flat, side1: Flat, head: int, duals=(False, False), mean=None) -> np.ndarray:
    """Return the bounds, and hold them against the distances with fine and coarse steps."""
    matrix, squared_bounds = reference.squared_distances(side0, side1), []
    scale = max(float(np.square(side.origin, dtype=float).sum(axis=1).max(initial=0)) for side in (side0, side1))
    for part in (0.01, 0.3, 2.0):
        step = max(float(np.quantile(matrix, 0.5)) * part / LARGEST, 1e-9 * scale, 1e-30)
        found = bytes_of(begun(side0, side1, head, step, duals, mean))
        assert found.max() <= LARGEST
        assert (found * step <= matrix * (1 + 1e-6) + 1e-13 * scale).all()
        squared_bounds.append(found * step)
    return np.max(squared_bounds, axis=0)


@given(st.data())
@settings(max_examples=40)
def test_bounds_never_exceed_the_distance(data):
    check_drawn(data.draw, DIMENSIONS)


@pytest.mark.slow
@given(st.data())
def test_bounds_of_other_dimensions_never_exceed_the_distance(data):
    check_drawn(data.draw, MORE_DIMENSIONS)


def check_drawn(draw, dimensions):
    rng = np.random.default_rng(draw(st.integers(0, 2**32), "seed"))
    m, n = draw(st.sampled_from(dimensions), "m"), draw(st.sampled_from([5, 8, 17, 40, 128, 130]), "n")
    spread = draw(st.sampled_from([0.0, 1e-7, 1e-3, 0.03, 0.1, 0.3, 3.0]), "spread of the directions")
    varied = draw(st.sampled_from([1, 3, n]), "coordinates that vary")
    scale = draw(st.sampled_from([1e-6, 1.0, 1e6]), "scale")
    away = draw(st.sampled_from([0.0, 1.0, 1e3]), "from 0")
    outlier = draw(st.sampled_from([1.0, 1e4]), "outlier")
    common, sides = rng.normal(size=(4, n)), []
    for count, k in zip(COUNTS, m, strict=True):
        directions = common[:k] + spread * rng.normal(size=(count, k, n))
        directions[:, : k // 2] *= np.where(np.arange(n) < varied, 0.02, 1.0)  # nearly lost in the projection
        points = away + rng.normal(size=(count, n)) * (np.arange(n) < varied)
        points[3] *= outlier
        try:
            sides.append(through(scale * points, directions + 1e-5 * rng.normal(size=directions.shape)))
        except reference.RankError:
            sides.append(through(scale * points, rng.normal(size=(count, k, n))))
    check_bytes(*sides, draw(st.integers(1, n), "head"), mean=draw(st.sampled_from([None, np.zeros(n)])))


@pytest.mark.parametrize("m", [*DIMENSIONS, pytest.param((3, 1), marks=pytest.mark.slow)])
def test_full_bounds_are_tight(m):
    """So that the tests above do not pass by bounds of 0."""
    for n in (40, 128):
        check_tight(m, n)


def check_tight(m, n):
    rng = np.random.default_rng(n)
    sides = [
        through(rng.normal(size=(count, n)) / np.sqrt(n), rng.normal(size=(count, k, n)))
        for count, k in zip(COUNTS, m, strict=True)
    ]
    matrix = reference.squared_distances(*sides)
    found = bytes_of(begun(*sides, n, 1.001 * float(matrix.max()) / LARGEST)) * matrix.max() / LARGEST
    missing = (matrix - found) / matrix.max()
    assert np.median(missing) < 0.02
    assert check_bytes(*sides, n // 2).max() > 0.1 * matrix.max()


def test_directions_that_the_projection_nearly_merges():
    """Each is long on the axes, but they are nearly dependent there; the other side meets them."""
    for chain in (0.025, 0.05, 0.2):
        check_merged(chain)


def check_merged(chain):
    rng, n, k, m = np.random.default_rng(1), 64, 24, 4
    turned = np.linalg.qr(rng.normal(size=(n, n))).Q
    seen = chain * np.eye(m) + 0.9 * np.eye(m, k=-1)
    seen /= max(1.0, 1.0001 * np.linalg.norm(seen, 2))
    values, vectors = np.linalg.eigh(np.eye(m) - seen @ seen.T)
    unseen = vectors @ np.diag(np.sqrt(np.maximum(values, 0))) @ vectors.T
    basis = np.zeros((30, m, n))
    for row in basis:
        row[:, :k] = seen @ np.linalg.qr(rng.normal(size=(k, k))).Q[:m]
        row[:, k:] = unseen @ np.linalg.qr(rng.normal(size=(n - k, n - k))).Q[:m]
    near = 1e-3 * rng.normal(size=(30, n))
    on = near + np.einsum("nm,nmi->ni", rng.normal(size=(30, m)), basis)
    side0, side1 = through(near @ turned.T, basis @ turned.T), through(on @ turned.T, rng.normal(size=(30, m, n)))
    frame = Frame(np.zeros(n), np.zeros((0, n), np.float32), all_axes=turned.astype(np.float32))
    matrix = reference.squared_distances(side0, side1)
    for step in (1e-5, 1e-3):
        search = fast.TiledSearch(
            *(fast.prepare(*side) for side in (side0, side1)),
            frame, Plan(k, step), np.inf, [(np.empty((30, 0)), np.empty((30, 0), np.int64))] * 2,
        )  # fmt: skip
        found = bytes_of(search)
        assert (found * step <= matrix + 1e-9).all()


@pytest.mark.parametrize("swapped", [False, True])
def test_the_dual_form_bounds_too(swapped):
    """Distances of points to subspaces of 126 dimensions, from the two that are left."""
    rng = np.random.default_rng(2)
    large = through(rng.normal(size=(10, 128)) / 11, rng.normal(size=(10, 126, 128)))
    points = through(rng.normal(size=(13, 128)) / 11, np.zeros((13, 0, 128)))
    sides, duals = ((points, large), (False, True)) if swapped else ((large, points), (True, False))
    found = check_bytes(*sides, 128, duals)
    assert found.max() > 0.5 * np.median(reference.squared_distances(*sides))


@njit
def brackets(sides, scales, i, sums, offsets, low, high, lows, highs):
    side0, side1 = sides
    stride0, stride1 = len(side0.fine) // len(side0.norms), len(side1.fine) // len(side1.norms)
    steps = stride0 // ((len(side0.ones) + 1) * 16)
    for first in range(0, len(side1.norms), 8):
        for lane in range(min(8, len(side1.norms) - first)):
            j = first + lane
            pair_dots(side0.fine, i * stride0, side1.fine, j * stride1, steps, side0.ones, side1.ones, sums, lane)
            offsets[lane] = side0.norms[i] + side1.norms[j]
        bracket(sums, offsets, scales, side0.ones, side1.ones, low, high)
        for lane in range(min(8, len(side1.norms) - first)):
            lows[first + lane], highs[first + lane] = low[lane], high[lane]


@pytest.mark.parametrize("m", [(2, 0), (2, 2), (4, 4), pytest.param((3, 1), marks=pytest.mark.slow)])
def test_brackets_hold_the_distance(m):
    for spread in (3.0, 0.5, 0.2, 0.05, 1e-3, 1e-7):
        check_brackets(m, spread)


def check_brackets(m, spread):
    rng = np.random.default_rng(3)
    common = rng.normal(size=(4, 50))
    sides = [
        through(rng.normal(size=(count, 50)) / 7, common[:k] + spread * rng.normal(size=(count, k, 50)))
        for count, k in zip(COUNTS, m, strict=True)
    ]
    matrix, search = reference.squared_distances(*sides), begun(*sides, 0, 1.0)
    sums = np.zeros((m[0] + 1) * (m[1] + 1) * LANES, np.int32)
    room = [np.zeros(LANES, np.float32) for _ in range(3)]
    low, high = np.zeros((2, *matrix.shape), np.float32)
    for i in range(len(matrix)):
        brackets(search.sides, search.rules.scales, i, sums, *room, low[i], high[i])
    assert (low <= matrix + 1e-12).all()
    assert (matrix <= high).all()
    if spread > 1:
        assert (high - low).max() < 0.02
