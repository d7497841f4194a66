# SPDX-License-Identifier: Apache-2.0
"""Time of exact matching of two images beside the best matchers of clear descriptors, and its lower limit.

    python benchmarks/matching.py --json out.json            # real photos where SFUMATO_DATA has them

The yardstick is faiss flat L2 on the clear descriptors, both directions, index included, timed in turn with every case;
the two-nearest cases are held against faiss with two nearest. Subspaces come from an archive and are prepared again in
every timed run. Three image pairs, of which the worst counts: one that matches, one unrelated, one that matches and is
lifted from the same part of the decoys.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    arguments,
    data_folder,
    finish,
    interleaved,
    load_average,
    note,
    photo_descriptors,
    pinned_threads,
    print_table,
)
from matches.methods import binary_search, faiss_search, ours, peers, search_pair
from matches.pairs import CASES, FAISS, Case, Pair, clear_pairs, clustered, lifted, make_pairs, single_part
from matches.plot import draw
from matches.probes import first_calls, memory_growth, probe
from matches.verdicts import targets, tell_roofline

import sfumato
from sfumato.subspace.fast import Neighbours, TiledSearch, prepare
from sfumato.subspace.plan import Plan
from sfumato.subspace.subspace_set import Frame

GROWTH = (1000, 2000, 5000, 10_000, 20_000, 50_000)
FEW = 2000
"""Features of each image in the second timing of sealed ones."""
ONCE_BEYOND = 20_000
"""More features are timed with all threads only; from half as many on, once."""

ROW = dict.fromkeys((
    "case", "pair", "method", "features", "seconds", "faiss_seconds", "times_faiss", "one_thread_seconds", "speedup",
    "head", "share_bracketed", "share_decided", "ns_per_pair", "gemm_seconds", "kernel_seconds", "times_binary_flat",
))  # fmt: skip
"""The fields of every row of the figures; None where one does not apply."""


def torch_ready(threads: int) -> bool:
    """Return whether the torch path can be timed, and pin its threads."""
    try:
        import torch
    except ImportError:
        note("torch is not installed: its rows are left out")
        return False
    torch.set_num_threads(threads)
    return True


def time_case(case: Case, pair: Pair, args: argparse.Namespace, rates: dict[str, float]) -> list[dict[str, Any]]:
    """Time a case on a pair of images: ours, ours without pruning, and the torch path."""
    if case.is_sealed:
        return [row for count in (None, FEW) for row in time_bits(case, pair, args, count)]
    a, b, n = pair.side(case, 0), pair.side(case, 1), pair.clear[0].shape[1]
    searches = {
        "ours": search_pair(a, b, case.task, args.threads),
        "ours unpruned": search_pair(a, b, case.task, args.threads, n),
    }
    refuse_difference(searches["ours"], searches["ours unpruned"], f"{case.name}, {pair.name}")
    works: dict[str, Callable[[], Any]] = {
        "faiss": lambda: faiss_search(*pair.clear, case.task),
        "ours": lambda: ours(a, b, case.task, args.threads),
        "one thread": lambda: ours(a, b, case.task, 1),
        "ours unpruned": lambda: search_pair(a, b, case.task, args.threads, n),
    }
    taken = interleaved(works, args.repeats)
    if args.torch and case.task == "mutual":
        work = {"ours by torch": lambda: ours(a, b, case.task, args.threads, "cpu")}
        taken |= interleaved(work, min(2, args.repeats))  # the slowest by far
    rows = []
    for method in [name for name in taken if name.startswith("ours")]:
        row = timing(case.name, pair.name, method, (len(a), len(b)), taken[method], taken["faiss"])
        if method in searches:
            row |= arithmetic(case, searches[method], len(a) * len(b), n, rates)
        if method == "ours":
            row |= {"one_thread_seconds": taken["one thread"], "speedup": taken["one thread"] / taken["ours"]}
        rows.append(row)
    return rows


def time_bits(case: Case, pair: Pair, args: argparse.Namespace, count: int | None) -> list[dict[str, Any]]:
    """Time sealed features beside faiss on the same bits, and on the clear descriptors, of all or the first rows."""
    a, b = (pair.side(case, number)[:count] for number in (0, 1))
    clear0, clear1 = (side[:count] for side in pair.clear)
    works: dict[str, Callable[[], Any]] = {
        "faiss": lambda: faiss_search(clear0, clear1, case.task),
        "faiss.IndexBinaryFlat": lambda: binary_search(a.packed, b.packed),
        "ours": lambda: ours(a, b, case.task, args.threads),
        "one thread": lambda: ours(a, b, case.task, 1),
    }
    taken = interleaved(works, max(args.repeats, 7))
    name, rows = case.name if count is None else f"{case.name}, few", []
    for method in ("faiss.IndexBinaryFlat", "ours"):
        row = timing(name, pair.name, method, (len(a), len(b)), taken[method], taken["faiss"])
        if method == "ours":
            row |= {
                "one_thread_seconds": taken["one thread"], "speedup": taken["one thread"] / taken["ours"],
                "times_binary_flat": taken["ours"] / taken["faiss.IndexBinaryFlat"],
            }  # fmt: skip
        rows.append(row)
    return rows


def timing(
    case: str, pair: str, method: str, counts: tuple[int, int], spent: float, yardstick: float
) -> dict[str, Any]:
    """Return a row with the fields of every timing."""
    return ROW | {
        "case": case, "pair": pair, "method": method, "features": counts[0], "seconds": spent,
        "faiss_seconds": yardstick, "times_faiss": spent / yardstick,
        "ns_per_pair": spent / (counts[0] * counts[1]) * 1e9,
    }  # fmt: skip


def arithmetic(case: Case, result: Neighbours, pairs: int, n: int, rates: dict[str, float]) -> dict[str, Any]:
    """Return how much had to be computed, and what that costs at least: bounds of all pairs, some pairs in full."""
    products = case.stack * (pairs * result.head + result.bracketed * n)
    return {
        "head": result.head, "share_bracketed": result.bracketed / pairs, "share_decided": result.decided / pairs,
        "gemm_seconds": products / rates["gemm"], "kernel_seconds": products / rates["kernel"],
    }  # fmt: skip


def refuse_difference(one: Neighbours, other: Neighbours, where: str) -> None:
    """End the run if pruning changed the result."""
    for name in ("rows0", "rows1", "squared0", "squared1"):
        if not np.array_equal(getattr(one, name), getattr(other, name)):
            raise SystemExit(f"{where}: {name} differs without pruning; a figure for a wrong result means nothing")


def time_peers(pair: Pair, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Time the matchers of clear descriptors on a pair of images."""
    taken, counts = interleaved(peers(*pair.clear), args.repeats), (len(pair.clear[0]), len(pair.clear[1]))
    return [timing("clear", pair.name, name, counts, spent, taken["faiss"]) for name, spent in taken.items()]


def product_rates(pair: Pair, case: Case, args: argparse.Namespace) -> dict[str, float]:
    """Return products a second: of the BLAS in float32, and of the 16-bit kernel with all that makes bounds of them."""
    clear0, clear1 = pair.clear
    out, n = np.empty((len(clear0), len(clear1)), np.float32), clear0.shape[1]
    a, b = (prepare(side.origin, side.basis) for side in (pair.side(case, 0), pair.side(case, 1)))
    none = [(np.empty((len(side), 0)), np.empty((len(side), 0), np.int64)) for side in (a, b)]
    fill = TiledSearch(a, b, Frame.of(a.origin, b.origin), Plan(n, 1.0), np.inf, none)  # no neighbours: only the bounds
    with ThreadPoolExecutor(args.threads) as pool:
        works = {
            "gemm": lambda: np.matmul(clear0, clear1.T, out=out),
            "kernel": lambda: fill.run(pool, args.threads),
        }
        taken = interleaved(works, args.repeats)
    products = len(clear0) * len(clear1) * n
    return {"gemm": products / taken["gemm"], "kernel": products * case.stack / taken["kernel"]}


def growth_data(most: int, rng: np.random.Generator, *, real: bool) -> tuple[tuple[np.ndarray, np.ndarray], str]:
    """Return up to ``most`` descriptors of many photos for either side, and what they are."""
    data = data_folder() if real else None
    if data is None:
        clear, kind = clustered(2 * most, rng), "generated"
    else:
        photos = sorted(data.glob("photos/bsds500/*/*.jpg"))
        clear, kind = photo_descriptors([photos[i] for i in rng.permutation(len(photos))], 2 * most), "SIFT of photos"
    clear = clear[rng.permutation(len(clear))]
    return (clear[: len(clear) // 2], clear[len(clear) // 2 :]), kind


def growth(counts: list[int], rng: np.random.Generator, args: argparse.Namespace) -> tuple[list[dict[str, Any]], str]:
    """Time more and more features, subspace-to-subspace, m=2."""
    halves, kind = growth_data(max(counts), rng, real=not args.small)
    decoys = sfumato.load_decoys()
    sides = [lifted(half, 2, single_part(decoys, part), args.seed + part) for part, half in enumerate(halves)]
    rows = []
    for count in [count for count in counts if count <= len(halves[0])]:
        note(f"growth: {count} features")
        (a, b), (clear0, clear1) = (side[:count] for side in sides), (half[:count] for half in halves)
        works: dict[str, Callable[[], Any]] = {
            "ours": partial(ours, a, b, "mutual", args.threads),
            "faiss": partial(faiss_search, clear0, clear1, "mutual"),
            "one thread": partial(ours, a, b, "mutual", 1),
        }
        if count > ONCE_BEYOND:
            del works["one thread"]
        long = count > ONCE_BEYOND // 2
        taken = interleaved(works, 1 if long else args.repeats, warm_up=not long)
        row = timing("growth", kind, "ours", (count, count), taken["ours"], taken["faiss"])
        if "one thread" in taken:
            row |= {"one_thread_seconds": taken["one thread"], "speedup": taken["one thread"] / taken["ours"]}
        rows.append(row)
    return rows, kind


def measure(args: argparse.Namespace, cases: tuple[Case, ...], folder: Path) -> tuple[dict[str, Any], Any]:
    """Measure everything in one run; return what is said once, and the rows."""
    rng, count, load = np.random.default_rng(args.seed), 500 if args.small else args.features, load_average()
    clear, kind = clear_pairs(count, rng, None if args.small else data_folder())
    pairs = make_pairs(cases, clear, folder, args.seed)
    rates = product_rates(pairs[0], next(case for case in cases if not case.is_sealed), args)
    rows = []
    for pair in pairs:
        note(f"{pair.name}: clear descriptors")
        rows += time_peers(pair, args)
        for case in cases:
            note(f"{pair.name}: {case.name}")
            rows += time_case(case, pair, args, rates)
    grown, grown_kind = growth([250, 500] if args.small else list(GROWTH), rng, args)
    note("memory and first calls, in fresh processes")
    wanted = [case for case in cases if case.limit is not None]
    some = pairs[:1] if args.small else pairs
    memory = {pair.name: memory_growth(pair.folder, [*wanted, FAISS], args.threads) for pair in some}
    calls = first_calls(pairs[0].folder, wanted, args.threads, cold=not args.small)
    said = {
        "features": count, "n": 128, "threads": args.threads, "data": kind, "growth_data": grown_kind,
        "load_before": load, "recipe": "sub-hybrid", "decoys": "bundled, one part for each image",
        "products_per_second": rates, "extra_megabytes": memory, "first_call_seconds": calls,
    }  # fmt: skip
    return said, rows + grown


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="threads of every method")
    parser.add_argument("--features", type=int, default=8000, help="features of each image")
    parser.add_argument("--skip-torch", action="store_true", help="leave out the torch path, slow on busy cores")
    parser.add_argument("--plot", type=Path, help="draw the figures to this file; by default beside --json")
    parser.add_argument("--probe", nargs="+", help=argparse.SUPPRESS)  # what this program asks of a fresh process
    args = parser.parse_args(argv)
    if args.probe:
        return probe(args.probe[0], Path(args.probe[1]), args.probe[2:], args.threads)
    quick = tuple(case for case in CASES if case.dims == (2, 2) or case.is_sealed)  # compiling others takes long
    cases = quick if args.small else CASES
    args.torch = not args.skip_torch and torch_ready(args.threads)
    with tempfile.TemporaryDirectory() as folder, pinned_threads(args.threads):
        said, rows = measure(args, cases, Path(folder))
    said["targets"] = targets(rows, said["extra_megabytes"])
    finish("matching", args, said, rows)
    print()
    print_table(said["targets"])
    tell_roofline(rows, said["products_per_second"])
    print("\nseconds of the first call of each case in a process")
    print_table(said["first_call_seconds"])
    print("\nmegabytes beyond the inputs")
    print_table([{"pair": pair, **grown} for pair, grown in said["extra_megabytes"].items()])
    plot = args.plot or (args.json and args.json.with_suffix(".png"))
    if plot:
        draw(plot, rows, title_of(said))
        note(f"drawn to {plot}")
    return None


def title_of(said: dict[str, Any]) -> str:
    """Say what was measured."""
    count = f"{said['features']:,}"
    return f"Exact matching of {count} x {count} features, {said['data']}, n={said['n']}, {said['threads']} threads"


if __name__ == "__main__":
    main(sys.argv[1:])
