# SPDX-License-Identifier: Apache-2.0
"""Cost of the two forms of a subspace, its basis (primal) or that of its complement (dual), over its dimension m.

    python benchmarks/dual.py --json out.json

Points against subspaces: the time of the exact mutual nearest in either form, with the complements built in every run
and with complements that are kept, and the bytes of both forms. Two subspaces: the time of the linear systems of
section 2 of the supplement, of m0 + m1 and 3 n - m0 - m1 unknowns, a pair at a time, in float64.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, finish, interleaved, load_average, note, pinned_threads, sift_like

import sfumato
from sfumato.subspace import plan, reference
from sfumato.subspace.fast import Neighbours, prepare, search
from sfumato.subspace.subspace_set import complement_basis

DIMENSIONS = (2, 4, 8, 16, 32, 64, 80, 96, 112, 120)
BOTH = (1, 1)


@contextmanager
def forced(dual: bool) -> Iterator[None]:
    """Take subspaces in one form against points, whatever their dimension."""
    before = plan._dual
    plan._dual = lambda side, other: dual and side.dim > 0 and other.dim == 0
    try:
        yield
    finally:
        plan._dual = before


def points_search(points: np.ndarray, hidden: Any, threads: int, *, dual: bool, complement: Any = None) -> Neighbours:
    """Search points against subspaces in one form, prepared anew but for a ``complement`` that is kept."""
    sides = prepare(points, points[:, None][:, :0]), prepare(hidden.origin, hidden.basis)
    if complement is not None:
        sides[1].cache["complement"] = complement
    with forced(dual):
        return search(*sides, BOTH, threads=threads)


def time_points(points: np.ndarray, hidden: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Time both forms of subspaces against points, and make sure that they agree."""
    kept = complement_basis(hidden.basis)
    primal, dual = (points_search(points, hidden, args.threads, dual=form) for form in (False, True))
    if not np.array_equal(primal.rows0, dual.rows0) or not np.array_equal(primal.rows1, dual.rows1):
        raise SystemExit(f"m={hidden.dim}: primal and dual form found different neighbours")
    taken = interleaved(
        {
            "primal": lambda: points_search(points, hidden, args.threads, dual=False),
            "dual": lambda: points_search(points, hidden, args.threads, dual=True),
            "dual kept": lambda: points_search(points, hidden, args.threads, dual=True, complement=kept),
            "complement": lambda: complement_basis(hidden.basis),
        },
        args.repeats,
    )
    n, none = hidden.ambient_dim, points[:, None][:, :0]
    return {
        "m": hidden.dim,
        "primal_seconds": taken["primal"],
        "dual_seconds": taken["dual"],
        "dual_seconds_complement_kept": taken["dual kept"],
        "complement_seconds": taken["complement"],
        "dual_over_primal": taken["dual"] / taken["primal"],
        "dual_kept_over_primal": taken["dual kept"] / taken["primal"],
        "chosen": "dual" if plan._dual(prepare(hidden.origin, hidden.basis), prepare(points, none)) else "primal",
        "primal_bytes": 4 * (hidden.dim + 1) * n,
        "dual_bytes": 4 * (n - hidden.dim + 1) * n,
    }


def time_systems(hidden: Any, pairs: int, repeats: int) -> dict[str, Any]:
    """Time the primal and the dual system of two subspaces for some pairs, complements given."""
    rows, others = slice(0, pairs), slice(pairs, 2 * pairs)
    origin0, origin1 = (hidden.origin[some].astype(np.float64) for some in (rows, others))
    basis0, basis1 = (hidden.basis[some].astype(np.float64) for some in (rows, others))
    complement0, complement1 = reference.complement(basis0), reference.complement(basis1)
    taken = interleaved(
        {
            "primal": lambda: reference.solve_primal(basis0, basis1, origin1 - origin0),
            "dual": lambda: reference.solve_dual(complement0, origin0, complement1, origin1),
        },
        repeats,
    )
    m, n = hidden.dim, hidden.ambient_dim
    return {
        "primal_unknowns": 2 * m,
        "dual_unknowns": 3 * n - 2 * m,
        "primal_system_ms_per_pair": 1e3 * taken["primal"] / pairs,
        "dual_system_ms_per_pair": 1e3 * taken["dual"] / pairs,
        "systems_void": 2 * m >= n,
    }


def crossover(rows: list[dict[str, Any]], primal: str, dual: str) -> float | None:
    """Return the dimension from which the dual form is cheaper, between two measured ones by interpolation."""
    gaps = [(row["m"], float(np.log(row[dual] / row[primal]))) for row in rows]
    for (m0, gap0), (m1, gap1) in reversed(list(pairwise(gaps))):
        if gap0 > 0 >= gap1:
            return float(m0 + (m1 - m0) * gap0 / (gap0 - gap1))
    return None


def draw(path: Path, rows: list[dict[str, Any]], said: dict[str, Any]) -> None:
    """Draw time, bytes and systems over m, with the dimension from which the dual form is cheaper."""
    from matplotlib.figure import Figure

    primal, dual, kept = ("#1f5fa8", "o-"), ("#c05a00", "s-"), ("#e0a066", "s--")
    panels = (
        (f"points against subspaces\nseconds, {said['features']:,} x {said['features']:,}", "points",
         (("primal_seconds", "primal", primal), ("dual_seconds", "dual, complements built", dual),
          ("dual_seconds_complement_kept", "dual, complements kept", kept))),
        ("bytes of a subspace\nfloat32, with its origin", "bytes",
         (("primal_bytes", "primal, (m + 1) n", primal), ("dual_bytes", "dual, (n - m + 1) n", dual))),
        ("linear systems of two subspaces\nmilliseconds a pair, float64", "systems",
         (("primal_system_ms_per_pair", "primal, 2 m unknowns", primal),
          ("dual_system_ms_per_pair", "dual, 3 n - 2 m unknowns", dual))),
    )  # fmt: skip
    figure = Figure(figsize=(14, 4.8), layout="constrained")
    for axes, (title, name, lines) in zip(figure.subplots(1, 3), panels, strict=True):
        for key, label, (colour, style) in lines:
            axes.plot([r["m"] for r in rows], [r[key] for r in rows], style, color=colour, label=label, markersize=4)
        where = said["crossovers"][name]
        if where:
            axes.axvline(where, color="#888888", lw=1, ls=":", label=f"equal at m = {where:.0f}")
        axes.set_title(title, fontsize=10)
        if name == "bytes":
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter("{x:,.0f}")
        else:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("dimension m of the subspaces")
        axes.grid(color="#eeeeee")
        axes.legend(fontsize=8, frameon=False)
    figure.suptitle(f"Primal against dual form, n={said['n']}, {said['threads']} threads", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    note(f"drawn to {path}")


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="threads of the search; LAPACK has one")
    parser.add_argument("--plot", type=Path, help="draw the figures to this file; by default beside --json")
    args = parser.parse_args(argv)
    rng, load = np.random.default_rng(args.seed), load_average()
    count, n, dims, pairs = (400, 4, (2,), 4) if args.small else (2000, 128, DIMENSIONS, 8)
    points = sift_like(count, rng)[:, :n].copy()
    rows = []
    with pinned_threads(1):  # the search has threads of its own; small systems on several are slower
        for m in dims:
            note(f"m={m}")
            hidden = sfumato.conceal(sift_like(count, rng)[:, :n], f"random-{m}")
            rows.append(time_points(points, hidden, args) | time_systems(hidden, pairs, min(2, args.repeats)))
    said = {
        "features": count, "n": n, "threads": args.threads, "data": "generated", "pairs_of_systems": pairs,
        "load_before": load,
        "crossovers": {
            "points": crossover(rows, "primal_seconds", "dual_seconds"),
            "points, complements kept": crossover(rows, "primal_seconds", "dual_seconds_complement_kept"),
            "bytes": crossover(rows, "primal_bytes", "dual_bytes"),
            "systems": crossover(rows, "primal_system_ms_per_pair", "dual_system_ms_per_pair"),
        },
    }  # fmt: skip
    finish("dual", args, said, rows)
    for what, where in said["crossovers"].items():
        print(f"{what}: the dual form is cheaper from m = {where:.0f}" if where else f"{what}: no crossover measured")
    plot = args.plot or (args.json and args.json.with_suffix(".png"))
    if plot:
        draw(plot, rows, said)


if __name__ == "__main__":
    main(sys.argv[1:])
