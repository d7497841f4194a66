# SPDX-License-Identifier: Apache-2.0
"""Parameter calculator of Grassmannian hashing: chances of equal symbols, then key length and number of tables.

``chances`` gives p1, p2 and rho of Definition 2.2 and Theorem 2.3: for two lines, or a line and a subspace, by
integration; for two subspaces by simulation, with the configuration of their principal angles stated. ``advise`` turns
them into K and S, or says that no choice works. The lines are uniform, the rule is printed or quantile. Chances of
*different* symbols are computed: where nearly all bits are equal, 1 - p keeps its digits and p does not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.search.grassmann.family import HashRule, share_of_lines

Floats = NDArray[np.float64]

PANELS, NODES = 6, 32
DRAWS = 400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Chances:
    """``p1`` at distance R, ``p2`` at distance c R, ``rho`` = log p1 / log p2; ``differ1`` = 1 - p1, ``differ2``.

    ``error`` is the larger standard error of the two, 0 for integrals. ``near`` and ``far`` are the principal angles.
    """

    differ1: float
    differ2: float
    near: tuple[float, ...]
    far: tuple[float, ...]
    error: float = 0.0

    @property
    def p1(self) -> float:
        """The chance of equal symbols for subspaces R apart."""
        return 1 - self.differ1

    @property
    def p2(self) -> float:
        """The chance of equal symbols for subspaces c R apart."""
        return 1 - self.differ2

    @property
    def rho(self) -> float:
        """The exponent of Theorem 2.3; 1 if no bit ever differs, because then nothing is gained."""
        if self.differ2 <= 0 or self.differ1 >= 1:
            return 1.0
        return math.log1p(-self.differ1) / math.log1p(-self.differ2) if self.differ2 < 1 else 0.0


def chances(
    rule: HashRule,
    ambient_dim: int,
    dims: tuple[int, int],
    radius: float,
    ratio: float,
    rng: np.random.Generator | None = None,
) -> Chances:
    """Return the chances for queries and entries of dimensions ``dims`` at distances ``radius`` R and ``ratio`` c R.

    Where both dimensions exceed 1 the angles are simulated with ``rng``, in two configurations: all principal angles
    equal, and all of the distance in one. The worse counts: the smaller p1 and the larger p2.

    Raises InputError for distances that no such subspaces have, and for a simulation without ``rng``.

    >>> round(chances(HashRule(), ambient_dim=128, dims=(1, 1), radius=0.2, ratio=4).rho, 2)
    0.22
    """
    small, large = sorted(dims)
    if not 1 <= small <= large < ambient_dim:
        raise InputError(f"dims: expected dimensions from 1 to {ambient_dim - 1}, got {dims}")
    if rule.name == "quantised":
        raise InputError("rule: quantised has no closed form; use printed or quantile")
    farthest = math.sqrt(small) * math.pi / 2
    if not 0 < radius < ratio * radius <= farthest + 1e-12:
        raise InputError(f"distance: expected 0 < R < c R <= {farthest:.4f}, got R = {radius}, c = {ratio}")
    cuts = rule.cuts(small, ambient_dim), rule.cuts(large, ambient_dim)
    if small == 1:
        differ = [_differ(cuts, (1, large), ambient_dim, a) for a in (radius, ratio * radius)]
        return Chances(differ1=differ[0], differ2=differ[1], near=(radius,), far=(ratio * radius,))
    if rng is None:
        raise InputError("rng: two subspaces are simulated; pass a numpy Generator")
    near, far = (configurations(small, distance) for distance in (radius, ratio * radius))
    worst = [max((simulate(cuts, dims, ambient_dim, a, rng), a) for a in near)]
    worst += [min((simulate(cuts, dims, ambient_dim, a, rng), a) for a in far)]
    error = max(math.sqrt(max(differ * (1 - differ), 0.25 / DRAWS) / DRAWS) for differ, _ in worst)
    return Chances(differ1=worst[0][0], differ2=worst[1][0], near=worst[0][1], far=worst[1][1], error=error)


def configurations(dim: int, distance: float) -> list[tuple[float, ...]]:
    """Return principal angles whose root sum of squares (Eq. 2) is the distance: all equal, and as few as can be."""
    equal = (distance / math.sqrt(dim),) * dim
    full = min(dim, int((distance / (math.pi / 2)) ** 2))
    rest = math.sqrt(max(distance**2 - full * (math.pi / 2) ** 2, 0.0))
    concentrated = ((math.pi / 2,) * full + (rest,) + (0.0,) * dim)[:dim]
    return [equal] if concentrated == equal else [equal, concentrated]


def simulate(
    cuts: tuple[Floats, Floats],
    dims: tuple[int, int],
    ambient_dim: int,
    angles: Sequence[float],
    rng: np.random.Generator,
) -> float:
    """Return how often a line gives other symbols to two subspaces at these principal angles, of DRAWS lines."""
    small, large = sorted(dims)
    shared = min(small, ambient_dim - large)  # angles beyond this many are 0 in so small a space
    if any(angle > 0 for angle in sorted(angles, reverse=True)[shared:]):
        raise InputError(f"angles: dimensions {dims} of {ambient_dim} have at most {shared} angles above 0")
    turned = np.sort(np.asarray(angles, float))[::-1]
    inside = rng.normal(size=(DRAWS, small))
    outside = np.zeros((DRAWS, small))
    outside[:, :shared] = rng.normal(size=(DRAWS, shared))
    extra = rng.chisquare(large - small, DRAWS) if large > small else np.zeros(DRAWS)
    rest = ambient_dim - large - shared
    total = (inside**2 + outside**2).sum(axis=1) + extra + (rng.chisquare(rest, DRAWS) if rest else 0.0)
    first = ((np.cos(turned) * inside + np.sin(turned) * outside) ** 2).sum(axis=1) / total
    second = ((inside**2).sum(axis=1) + extra) / total
    return float(np.mean(np.searchsorted(cuts[0], first, "right") != np.searchsorted(cuts[1], second, "right")))


def _differ(cuts: tuple[Floats, Floats], dims: tuple[int, int], n: int, angle: float) -> float:
    """Return the chance that the symbols of a line and a subspace at an angle differ, by integration."""
    above = [1 - share_of_lines(cut, dim, n) for cut, dim in zip(cuts, dims, strict=True)]
    small = [_upper(cut, dim, n) for cut, dim in zip(cuts, dims, strict=True)]
    if len(cuts[0]) == 1:
        both = joint_chance(float(cuts[0][0]), float(cuts[1][0]), angle, dims[1], n)
        return float(max(small[0][0] + small[1][0] - 2 * both, 0.0))
    bins = len(cuts[0]) + 1
    table = np.zeros((bins + 1, bins + 1))  # chances to be at or above a cut of the line, and of the subspace
    table[0, 0] = 1
    table[1:bins, 0], table[0, 1:bins] = above
    for i in range(1, bins):
        for j in range(max(1, i - 1), min(bins, i + 2)):  # of the others only neighbours of the diagonal count
            table[i, j] = joint_chance(float(cuts[0][i - 1]), float(cuts[1][j - 1]), angle, dims[1], n)
    equal = sum(table[i, i] - table[i + 1, i] - table[i, i + 1] + table[i + 1, i + 1] for i in range(bins))
    return float(np.clip(1 - equal, 0, 1))


def _upper(cuts: Floats, dim: int, n: int) -> Floats:
    from scipy.special import betainc

    result: Floats = betainc((n - dim) / 2, dim / 2, 1 - cuts)
    return result


def joint_chance(line_cut: float, entry_cut: float, angle: float, dim: int, n: int) -> float:
    """Return the chance that a uniform line has squared cosines at least these with a line and a subspace.

    The line is at ``angle`` to the subspace of dimension ``dim``. In the plane of the line and its projection the
    uniform line has polar coordinates (r, a): a uniform, r^2 ~ Beta(1, (n - 2) / 2); given r, what it has in the rest
    of the subspace is (1 - r^2) Beta((dim - 1) / 2, (n - dim - 1) / 2).
    """
    half = math.acos(math.sqrt(line_cut))
    edges = {angle - half, angle + half}
    for turn in (-math.pi, 0.0, math.pi):  # where the integrand has a kink
        edge = math.acos(math.sqrt(entry_cut))
        kinks = [turn - edge, turn + edge]
        if math.sin(angle) > 1e-12:
            ratios = [sign * math.sqrt(line_cut / max(entry_cut, 1e-300)) - math.cos(angle) for sign in (-1, 1)]
            kinks += [turn + math.atan(ratio / math.sin(angle)) for ratio in ratios]
        edges |= {kink for kink in kinks if angle - half < kink < angle + half}
    ends = sorted(edges)
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    total = 0.0
    for low, high in pairwise(ends):
        parts = np.linspace(low, high, PANELS + 1)
        middle, span = (parts[1:] + parts[:-1]) / 2, (parts[1:] - parts[:-1]) / 2
        a = (middle[:, None] + span[:, None] * nodes).ravel()
        total += float(np.sum((span[:, None] * weights).ravel() * _radial(a, line_cut, entry_cut, angle, dim, n)))
    return total / math.pi


def _radial(a: Floats, line_cut: float, entry_cut: float, angle: float, dim: int, n: int) -> Floats:
    """Integrate over r for each a, in the variable v = (1 - r^2)^((n - 2) / 2), uniform on (0, 1)."""
    from scipy.special import betaincc

    power = (n - 2) / 2
    with np.errstate(divide="ignore"):
        limit = np.clip(1 - line_cut / np.cos(a - angle) ** 2, 0, 1) ** power
        alone = np.clip(1 - entry_cut / np.cos(a) ** 2, 0, 1) ** power * (np.cos(a) ** 2 > entry_cut)
    if dim == 1:
        return np.minimum(limit, alone)
    sure = np.minimum(limit, alone)  # here r alone is enough
    if power == 0:
        return sure
    with np.errstate(divide="ignore"):
        never = np.clip(1 - (1 - entry_cut) / np.sin(a) ** 2, 0, 1) ** power  # here even all the rest is not
    start = np.where(np.cos(a) ** 2 > entry_cut, sure, np.minimum(never, limit))
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    v = start[:, None] + (limit - start)[:, None] * (nodes + 1) / 2
    rest = np.maximum(v ** (1 / power), 1e-300)  # 1 - r^2
    needed = np.clip((entry_cut - (1 - rest) * np.cos(a)[:, None] ** 2) / rest, 0, 1)
    chance = (needed < 1).astype(float) if n - dim == 1 else betaincc((dim - 1) / 2, (n - dim - 1) / 2, needed)
    result: Floats = sure + (limit - start) / 2 * (chance @ weights)
    return result


# --- key length and number of tables

FAILURE_BOUND = 1 / 3 + 1 / math.e
"""The theorem's procedure looks at 3 S entries at most. It fails if the near entry shares no key (chance at most 1 / e)
or if more than 3 S far ones do (at most 1 / 3)."""

LARGEST_KEY = 100_000
"""The most symbols to a key: hashing one entry costs this many inner products."""
LARGEST_TABLES = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HashAdvice:
    """``verdict``: "possible", "slower than a scan" or "impossible", and the ``reason`` in words.

    ``key_length`` K and ``tables`` S are None where they are impossible; ``cap`` is 3 S. ``failure_bound`` is that of
    the theorem, ``miss`` the exact chance that an entry at distance R shares no key with the query.
    """

    verdict: str
    reason: str
    key_length: int | None = None
    tables: int | None = None
    cap: int | None = None
    miss: float | None = None
    failure_bound: float = FAILURE_BOUND


def advise(collision: Chances, entries: int) -> HashAdvice:
    """Return K = ceil(log n / log(1 / p2)) and S = ceil(1 / p1^K), at most n^rho / p1, for n entries (Theorem 2.3).

    Raises InputError for fewer than 2 entries.

    >>> advise(Chances(differ1=0.05, differ2=0.5, near=(0.1,), far=(1.0,)), 1000).key_length
    10
    """
    if entries < 2:
        raise InputError(f"entries: expected 2 or more, got {entries}")
    if collision.differ2 <= 0:
        drawn = ", in any of the draws" if collision.error else ""
        return HashAdvice(verdict="impossible", reason=f"even far pairs never differ in a bit{drawn}")
    if not collision.differ1 < collision.differ2 or collision.differ1 >= 1:
        return HashAdvice(
            verdict="impossible",
            reason=f"near pairs agree no more often than far ones (p1 = {collision.p1:.6g}, p2 = {collision.p2:.6g})",
        )
    per_symbol = -math.log1p(-collision.differ2) if collision.differ2 < 1 else math.inf
    exact_length = max(1.0, math.log(entries) / per_symbol)
    if exact_length > LARGEST_KEY:
        return HashAdvice(
            verdict="impossible",
            reason=f"far pairs differ in a share of {collision.differ2:.2g} of the bits: a key needs "
            f"{exact_length:.2g} bits, and each costs an inner product",
        )
    length = math.ceil(exact_length - 1e-9)
    log_tables = -length * math.log1p(-collision.differ1)
    if log_tables > math.log(LARGEST_TABLES):
        return HashAdvice(
            verdict="impossible",
            reason=f"a near pair shares one key in {math.exp(min(log_tables, 700)):.2g}: that many tables are needed",
        )
    tables = math.ceil(math.exp(log_tables) - 1e-9)
    miss = math.exp(tables * math.log1p(-math.exp(-log_tables))) if log_tables > 0 else 0.0
    slow = tables * length + 3 * tables >= entries
    return HashAdvice(
        verdict="slower than a scan" if slow else "possible",
        reason=f"{tables * length} hash functions and up to {3 * tables} candidates per query, of {entries} entries "
        f"(rho = {collision.rho:.3f})",
        key_length=length,
        tables=tables,
        cap=3 * tables,
        miss=miss,
    )
