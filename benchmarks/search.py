# SPDX-License-Identifier: Apache-2.0
"""How fast the nearest subspace is found, and how often: the kind inverted against the exact pruned scan, and faiss.

    python benchmarks/search.py --entries 100000 1000000 --json out.json        # needs SFUMATO_DATA

Entries are SIFT of photos, sub-hybrid-2, concealed as images of 1,000 with the bundled decoys; point queries are the
same points in other views (generated homographies with noise), subspace queries those views, concealed with other
decoys than the entries: with shared ones the exact answer is a subspace through the same decoy, at distance 0. Cells
are made of the bundled decoys. Recall: the answer is as near as the exact one. "true": where the exact answer is the
right point. faiss searches the clear descriptors, which nobody would publish: the price of concealment. Exact is timed
as it is called, one query at a time and in one batch. One thread each. Draws are replayed from the seed.
"""

import sys
import time
import warnings
from collections.abc import Callable
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
    sift_like,
)

import sfumato
from sfumato.errors import EvaluationOnlyWarning
from sfumato.learn.pairs import LocalParams, PairParams, pairs_from_photos

BATCH, SINGLE = 1000, 20
EFFORTS = (0.05, 0.1, 0.15, 0.2)
SUBSPACE_EFFORTS = (0.2, 0.3, 0.4)
SUBSPACE_ENTRIES = 200_000
IMAGE = 1000
Search = Callable[[Any, int], tuple[np.ndarray, np.ndarray]]


def real_descriptors(entries: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return SIFT of photos, those that have another view first, and the other views."""
    folder = data_folder()
    if folder is None:
        sys.exit("real data is missing: set SFUMATO_DATA, or try --small")
    paired = sorted((folder / "photos/bsds500/val").glob("*.jpg"))
    local = LocalParams(max_features=1000)
    pairs = pairs_from_photos(paired, PairParams(local=local, views=1, seed=seed, most=20_000))
    rest = sorted((folder / "photos").glob("imagenet-samples/*.jpg")) + sorted(
        (folder / "photos").glob("*/train/*.jpg")
    )
    order = np.random.default_rng(seed).permutation(len(pairs.first))
    others = photo_descriptors(rest, max(0, entries - len(order)))
    return np.concatenate([pairs.first[order], others])[:entries], pairs.second[order]


def generated_descriptors(entries: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return made-up descriptors and other views of them."""
    rng = np.random.default_rng(seed)
    first = sift_like(entries, rng)
    second = np.maximum(first + rng.normal(0, 0.02, first.shape), 0)
    return first, (second / np.linalg.norm(second, axis=1, keepdims=True)).astype(np.float32)


def concealed(rows: np.ndarray, decoys: Any, seed: int) -> sfumato.Subspaces:
    """Conceal descriptors as images of a thousand."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        parts = [
            sfumato.conceal(rows[first : first + IMAGE], "sub-hybrid-2", decoys, evaluation_seed=seed + first)
            for first in range(0, len(rows), IMAGE)
        ]
    return sfumato.Subspaces(
        np.concatenate([part.origin for part in parts]), np.concatenate([part.basis for part in parts])
    )


def milliseconds(searches: dict[str, Search], queries: Any, repeats: int) -> dict[str, tuple[float, float]]:
    """Return the least milliseconds a query of each search: one at a time, and in one batch, in turn."""

    def one_by_one(search: Search) -> Callable[[], Any]:
        return lambda: [search(queries[i : i + 1], 1) for i in range(SINGLE)]

    singles = interleaved({name: one_by_one(search) for name, search in searches.items()}, repeats)
    batches = interleaved({name: lambda s=search: s(queries, 1) for name, search in searches.items()}, repeats)
    return {name: (1e3 * singles[name] / SINGLE, 1e3 * batches[name] / len(queries)) for name in searches}


def clear_searches(clear: np.ndarray) -> dict[str, tuple[Search, float]]:
    """Return faiss HNSW and IVF of clear descriptors, with the seconds they took to build."""
    import faiss

    made = {}
    for name in ("HNSW32", f"IVF{max(1, int(4 * len(clear) ** 0.5))},Flat"):
        start = time.perf_counter()
        index = faiss.index_factory(clear.shape[1], name)
        index.train(clear)
        index.add(clear)
        faiss.ParameterSpace().set_index_parameter(index, "efSearch" if "HNSW" in name else "nprobe", 32)
        made[f"faiss {name} clear"] = index.search, time.perf_counter() - start
    return made


def compare(
    what: str, entries: sfumato.Subspaces, queries: Any, searches: dict[str, tuple[Search, float, float]], repeats: int
) -> list[dict[str, Any]]:
    """Return the figures of several searches of the same entries; the first of them is exact."""
    exact = next(iter(searches.values()))[0](queries, 10)
    right = exact[1][:, 0] == np.arange(len(queries))
    times = milliseconds({name: search for name, (search, _, _) in searches.items()}, queries, repeats)
    line, rows = times[next(iter(searches))], []
    for name, (search, seconds, overhead) in searches.items():
        distances, ids = search(queries, 10)
        found = ids[:, 0] == np.arange(len(queries)) if "clear" in name else distances[:, 0] <= exact[0][:, 0] + 1e-6
        ten = float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(ids, exact[1], strict=True)]))
        rows.append({
            "queries": what, "entries": len(entries), "search": name, "recall_1": float(found.mean()),
            "recall_1_true": float(found[right].mean()) if right.any() else None,
            "recall_10": None if "clear" in name else ten, "ms_single": times[name][0], "ms_batch": times[name][1],
            "faster_single": line[0] / times[name][0], "faster_batch": line[1] / times[name][1],
            "build_seconds": seconds, "overhead": overhead,
        })  # fmt: skip
        note(
            f"{what} {len(entries)} {name}: recall {found.mean():.3f}, {times[name][0]:.2f} and {times[name][1]:.3f} ms"
        )
    return rows


def measure(clear: np.ndarray, views: np.ndarray, args: Any) -> list[dict[str, Any]]:
    """Measure all searches of so many entries."""
    decoys, rows = sfumato.load_decoys(), []
    halves = decoys.descriptors[::2], decoys.descriptors[1::2]
    entries = concealed(clear, sfumato.Decoys(halves[0], decoys.extractor), 10**6 * (args.seed + 1))
    params = {"threads": 1}
    exact = sfumato.search.build(entries, "exact", params=params)
    start = time.perf_counter()
    inverted = sfumato.search.build(entries, params={**params, "points": decoys.descriptors, "seed": args.seed})
    taken = time.perf_counter() - start

    def at(effort: float) -> Search:
        return lambda queries, k: inverted.search(queries, k, effort)

    def kinds(efforts: tuple[float, ...]) -> dict[str, tuple[Search, float, float]]:
        share = inverted.nbytes / inverted.entries.nbytes
        made: dict[str, tuple[Search, float, float]] = {"exact": (exact.search, 0.0, 0.0)}
        return made | {f"inverted {effort}": (at(effort), taken, share) for effort in efforts}

    points = views[: min(BATCH, len(views))]
    clear_ones = {name: (search, seconds, 0.0) for name, (search, seconds) in clear_searches(clear).items()}
    rows += compare("points", entries, points, kinds(EFFORTS) | clear_ones, args.repeats)
    if len(entries) <= SUBSPACE_ENTRIES:
        queries = concealed(points, sfumato.Decoys(halves[1], decoys.extractor), 10**9 * (args.seed + 1))
        rows += compare("sub-hybrid-2", entries, queries, kinds(SUBSPACE_EFFORTS), args.repeats)
    return rows


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--entries", type=int, nargs="+", default=[100_000, 200_000, 1_000_000])
    args = parser.parse_args()
    sizes = [3000] if args.small else sorted(args.entries)
    load = load_average()
    made = generated_descriptors if args.small else real_descriptors
    clear, views = made(sizes[-1], args.seed)
    views = views[:60] if args.small else views
    rows = []
    with pinned_threads(1):
        for size in sizes:
            rows += measure(np.ascontiguousarray(clear[:size]), views, args)
    finish("search", args, {"entries": sizes, "queries": min(BATCH, len(views)), "load": load}, rows)


if __name__ == "__main__":
    main()
