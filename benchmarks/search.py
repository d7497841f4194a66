# SPDX-License-Identifier: Apache-2.0
"""Search benchmark: speed and recall of the kinds inverted and sketch against the exact scans, and faiss.

    python benchmarks/search.py --entries 100000 200000 1000000 --keep scratch/ --json out.json --plot out.png
    python benchmarks/search.py --entries 1000000 --bits-only --codes 1000000 3000000 10000000 --keep scratch/

Needs SFUMATO_DATA. Entries are SIFT of photos, sub-hybrid-2, concealed as images of 1,000 with every second of the
bundled decoys. Point queries are the same points in other views: generated homographies with noise of held-out photos
(bsds500/val), and real pairs (homography). Subspace queries are those views, concealed with the other decoys: with
shared ones the exact answer is a subspace through the same decoy, at distance 0. Cells are made of descriptors of other
photos (bsds500/train). Recall: the answer is as near as the exact one; "true": where the exact answer is the right
point. The default efforts were chosen on the even queries; figures are of the odd ones. faiss searches the clear
descriptors, which nobody would publish: the price of concealment. Times are of one core, by the clock of the process,
one query at a time and in one batch. "inverted" with an effort is the kind alone; "inverted" without one may leave a
batch to the exact scan, and is shown for batches of several sizes. Bits are the same descriptors, sealed, and random
ones up to ``--codes``; of their queries, the same views, those count whose nearest is within the limit of chance.
Draws are replayed from the seed. ``--keep`` keeps descriptors and indexes.
"""

import copy
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, data_folder, finish, load_average, note, photo_descriptors, pinned_threads, sift_like

import sfumato
from sfumato.auditing.matching import pairs_of
from sfumato.errors import EvaluationOnlyWarning
from sfumato.experiments.data.folders import read_homography_folder
from sfumato.matching.mutual import chance_limit
from sfumato.search.exact import ExactIndex, ExactParams
from sfumato.training.pairs import LocalParams, PairParams, pairs_from_photos
from sfumato.training.views import same_keypoints

SINGLE = 40
EFFORTS = {"points": (0.0, 0.08, 0.12, 0.15), "real points": (0.12, 0.15), "sub-hybrid-2": (0.38, 0.42, 0.45, 0.48)}
SUBSPACE_ENTRIES, PUBLIC, IMAGE = 200_000, 131_072, 1000
BATCHES, SKETCH_EFFORTS = (4, 16, 64, 256), (0.4, 0.5, 0.6)
RECIPE, KEY, SEALED_AT_ONCE = "sealed-512", np.random.default_rng(20).bytes(32), 50_000
Search = Callable[[Any, int], tuple[np.ndarray, np.ndarray]]
Data = dict[str, np.ndarray]


def real_data(entries: int, seed: int) -> Data:
    """Return SIFT of photos, those that have another view first, the other views, and public points."""
    folder = data_folder()
    if folder is None:
        sys.exit("real data is missing: set SFUMATO_DATA, or try --small")
    photos, local = folder / "photos", LocalParams(max_features=1000)
    paired = sorted((photos / "bsds500/val").glob("*.jpg"))
    pairs = pairs_from_photos(paired, PairParams(local=local, views=1, seed=seed, most=20_000))
    order = np.random.default_rng(seed).permutation(len(pairs.first))
    first, real = real_pairs(folder / "homography")
    note(f"{len(order)} generated pairs, {len(first)} real pairs; the rest from photos")
    wanted = max(0, entries - len(order) - len(first))
    rest = photo_descriptors(sorted((photos / "imagenet-samples").glob("*.jpg")), wanted)
    public = photo_descriptors(sorted((photos / "bsds500/train").glob("*.jpg")), PUBLIC, each=700)
    clear = np.concatenate([pairs.first[order], first, rest])
    return {"clear": clear[:entries], "views": pairs.second[order], "real": real, "public": public}


def real_pairs(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return descriptors of image 1 of real sequences, each once, and of the same keypoint in one of the others."""
    first, second = [], []
    for sequence in read_homography_folder(folder):
        pairs = pairs_of(sequence)
        one, taken = sfumato.extract(pairs[0].first, max_features=2000), set()
        for pair in pairs:
            other = sfumato.extract(pair.second, max_features=2000)
            for i, j in same_keypoints(one.keypoints, other.keypoints, pair.homography).tolist():
                if i not in taken:
                    taken.add(i)
                    first.append(one.descriptors[i])
                    second.append(other.descriptors[j])
    return np.stack(first), np.stack(second)


def generated_data(entries: int, seed: int) -> Data:
    """Return made-up descriptors, other views of them, and public points."""
    rng = np.random.default_rng(seed)
    first = sift_like(entries, rng)
    second = np.maximum(first + rng.normal(0, 0.02, first.shape), 0)
    second = (second / np.linalg.norm(second, axis=1, keepdims=True)).astype(np.float32)
    return {"clear": first, "views": second[:120], "real": second[:0], "public": sift_like(4000, rng)}


def kept_data(args: Any, entries: int) -> Data:
    """Return the data, from ``--keep`` where it is there."""
    if args.small:
        return generated_data(entries, args.seed)
    path = args.keep and args.keep / f"descriptors-{entries}-{args.seed}.npz"
    if path and path.exists():
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    data = real_data(entries, args.seed)
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **data)
    return data


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


def kept_index(args: Any, clear: np.ndarray, decoys: Any, public: np.ndarray) -> tuple[Any, float]:
    """Return the inverted index and the processor seconds it took to build, from ``--keep`` where it is there."""
    cells = args.cells if len(clear) >= args.cells_from else None
    path = args.keep and args.keep / f"inverted-{len(clear)}-{cells or 'default'}-{args.seed}.index"
    if path and path.exists():
        index = sfumato.search.load(path, verify=False)
        index.uses_exact = False
        return index, json.loads(path.with_suffix(".json").read_text())
    entries, start = concealed(clear, decoys, 10**6 * (args.seed + 1)), time.process_time()
    params = {"threads": 1, "points": public, "seed": args.seed, "cells": cells}
    index = sfumato.search.build(entries, params=params)
    taken = time.process_time() - start
    index.uses_exact = False
    if path:
        index.save(path)
        path.with_suffix(".json").write_text(json.dumps(taken))
    return index, taken


def milliseconds(searches: dict[str, Search], queries: Any, repeats: int) -> dict[str, tuple[float, float]]:
    """Return the milliseconds a query of each search: the median of one at a time, and the least of one batch."""
    singles: dict[str, list[float]] = {name: [] for name in searches}
    batches: dict[str, list[float]] = {name: [] for name in searches}
    alone = [queries[i : i + 1] for i in range(SINGLE)]
    for turn in range(repeats + 1):
        for name, search in searches.items():
            for query in alone:
                start = time.process_time()
                search(query, 1)
                singles[name] += [time.process_time() - start] * (turn > 0)
            start = time.process_time()
            search(queries, 1)
            batches[name] += [time.process_time() - start] * (turn > 0)
    return {name: (1e3 * float(np.median(singles[name])), 1e3 * min(batches[name]) / len(queries)) for name in searches}


def by_batch(what: str, queries: Any, searches: dict[str, Search], repeats: int) -> list[dict[str, Any]]:
    """Return the milliseconds a query of each search in batches of several sizes; the first of them is exact."""
    rows = []
    for size in BATCHES:
        if size > len(queries):
            continue
        taken: dict[str, list[float]] = {name: [] for name in searches}
        for turn in range(repeats + 1):
            for name, search in searches.items():
                batch = queries[turn * size % (len(queries) - size + 1) :][:size]
                start = time.process_time()
                search(batch, 1)
                taken[name] += [1e3 * (time.process_time() - start) / size] * (turn > 0)
        line = min(next(iter(taken.values())))
        for name, runs in taken.items():
            rows.append({
                "queries": f"{what}, {size} at once", "search": name, "recall_1": None, "recall_1_true": None,
                "true": None, "recall_10": None, "ms_single": None, "ms_batch": min(runs), "faster_single": None,
                "faster_batch": line / min(runs), "build_seconds": None, "overhead": None,
            })  # fmt: skip
    return rows


def sealed(descriptors: np.ndarray) -> np.ndarray:
    """Seal descriptors (N, 128) with one key; return packed codes (N, 64)."""
    parts = [
        sfumato.conceal(descriptors[first : first + SEALED_AT_ONCE], RECIPE, secret=KEY).packed
        for first in range(0, len(descriptors), SEALED_AT_ONCE)
    ]
    return np.concatenate(parts)


def measure_bits(data: Data, size: int, args: Any) -> list[dict[str, Any]]:
    """Measure all searches of this many codes: those of the data, and random ones."""
    import faiss

    codes = sealed(data["clear"][:size])
    extra = np.random.default_rng((args.seed, size)).integers(0, 256, (size - len(codes), codes.shape[1]), np.uint8)
    entries = sfumato.Bits(np.concatenate([codes, extra]))
    del codes, extra
    exact, sketch = (sfumato.search.build(entries, kind, params={"threads": 1}) for kind in ("exact", "sketch"))
    flat = faiss.IndexBinaryFlat(entries.ambient_dim)
    flat.add(entries.packed)
    searches: dict[str, tuple[Search, float, float]] = {"exact": (exact.search, 0.0, 0.0)}
    for effort in SKETCH_EFFORTS:
        searches[f"sketch {effort}"] = lambda q, k, effort=effort: sketch.search(q, k, effort), 0.0, 0.25
    searches["faiss IndexBinaryFlat"] = lambda q, k: flat.search(q.packed, k), 0.0, 1.0
    rows, limit = [], chance_limit(sfumato.Recipe.of(RECIPE), size)
    for what, views, first in (("bits", data["views"], 0), ("real bits", data["real"], len(data["views"]))):
        asked = np.arange(1, min(len(views), len(data["clear"]) - first), 2)[: args.queries]
        if not len(asked):
            continue
        queries = sfumato.Bits(sealed(views[asked]))
        near = exact.search(queries, 1)[0][:, 0] <= limit
        note(f"{what}: the nearest of {near.sum()} of {len(near)} queries is within {limit:g} bits")
        rows += compare(what, queries[near], asked[near] + first, searches, args)
        rows += by_batch(what, queries[near], {name: search for name, (search, _, _) in searches.items()}, args.repeats)
    return [{"entries": size, "cells": 0, **row} for row in rows]


def clear_searches(clear: np.ndarray) -> dict[str, tuple[Search, float, float]]:
    """Return faiss HNSW and IVF of clear descriptors, with the processor seconds they took to build."""
    import faiss

    made = {}
    for name in ("HNSW32", f"IVF{max(1, int(4 * len(clear) ** 0.5))},Flat"):
        start = time.process_time()
        index = faiss.index_factory(clear.shape[1], name)
        index.train(clear)
        index.add(clear)
        faiss.ParameterSpace().set_index_parameter(index, "efSearch" if "HNSW" in name else "nprobe", 32)
        made[f"faiss {name} clear"] = index.search, time.process_time() - start, 0.0
    return made


def compare(
    what: str, queries: Any, truth: np.ndarray, searches: dict[str, tuple[Search, float, float]], args: Any
) -> list[dict[str, Any]]:
    """Return the figures of several searches of the same entries; the first of them is exact."""
    for search, _, _ in searches.values():
        search(queries[:2], 1)  # what is compiled or planned at the first search of few is not timed
    exact = next(iter(searches.values()))[0](queries, 10)
    right = exact[1][:, 0] == truth
    times = milliseconds({name: search for name, (search, _, _) in searches.items()}, queries, args.repeats)
    line, rows = times[next(iter(searches))], []
    for name, (search, seconds, overhead) in searches.items():
        distances, ids = search(queries, 10)
        found = ids[:, 0] == truth if "clear" in name else distances[:, 0] <= exact[0][:, 0] + 1e-6
        ten = float(np.mean(distances <= exact[0][:, -1:] + 1e-6))
        rows.append({
            "queries": what, "search": name, "recall_1": float(found.mean()),
            "recall_1_true": float(found[right].mean()) if right.any() else None, "true": int(right.sum()),
            "recall_10": None if "clear" in name else ten, "ms_single": times[name][0], "ms_batch": times[name][1],
            "faster_single": line[0] / times[name][0], "faster_batch": line[1] / times[name][1],
            "build_seconds": seconds, "overhead": overhead,
        })  # fmt: skip
        note(f"{what}, {name}: recall {found.mean():.3f}, {times[name][0]:.2f} and {times[name][1]:.3f} ms")
    return rows


def measure(data: Data, size: int, args: Any) -> list[dict[str, Any]]:
    """Measure all searches of this many entries."""
    decoys, clear = sfumato.load_decoys(), np.ascontiguousarray(data["clear"][:size])
    halves = [sfumato.Decoys(decoys.descriptors[i::2], decoys.extractor) for i in (0, 1)]
    inverted, taken = kept_index(args, clear, halves[0], data["public"])
    exact = ExactIndex(inverted.entries, "distance", ExactParams(threads=1))
    share = inverted.nbytes / inverted.entries.nbytes
    chosen = copy.copy(inverted)
    chosen.uses_exact = True

    def kinds(what: str) -> dict[str, tuple[Search, float, float]]:
        made: dict[str, tuple[Search, float, float]] = {"exact": (exact.search, 0.0, 0.0)}
        made["inverted"] = chosen.search, taken, share
        for effort in EFFORTS[what]:
            made[f"inverted {effort}"] = lambda q, k, effort=effort: inverted.search(q, k, effort), taken, share
        return made

    asked = np.arange(1, len(data["views"]), 2)[: args.queries]
    points, faiss_ones = data["views"][asked], clear_searches(clear) if size <= args.clear else {}
    rows = compare("points", points, asked, kinds("points") | faiss_ones, args)
    alone = {"exact": exact.search, "inverted": chosen.search, "inverted alone": inverted.search}
    rows += by_batch("points", points, alone, args.repeats)
    real = np.arange(1, len(data["real"]), 2)[: args.queries]
    if len(real):
        rows += compare("real points", data["real"][real], real + len(data["views"]), kinds("real points"), args)
    if size <= SUBSPACE_ENTRIES:
        queries = concealed(points, halves[1], 10**9 * (args.seed + 1))
        rows += compare("sub-hybrid-2", queries, asked, kinds("sub-hybrid-2"), args)
        rows += by_batch("sub-hybrid-2", queries, alone, args.repeats)
    return [{"entries": size, "cells": len(inverted.centres), **row} for row in rows]


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw recall@1 over queries a second of one core, a panel for each kind of queries and of calls."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kinds = [kind for kind in ("points", "sub-hybrid-2") if any(row["queries"] == kind for row in rows)]
    figure = Figure(figsize=(9, 4 * len(kinds)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(kinds), 2, squeeze=False)
    for line, kind in zip(axes, kinds, strict=True):
        for panel, (time_of, title) in zip(line, (("ms_single", "one at a time"), ("ms_batch", "batch")), strict=True):
            for size in sorted({row["entries"] for row in rows}):
                mine = [row for row in rows if (row["queries"], row["entries"]) == (kind, size)]
                own = [row for row in mine if row["search"].startswith("inverted ")]
                if not own:
                    continue
                speeds = [1e3 / row[time_of] for row in own]
                (curve,) = panel.plot([row["recall_1"] for row in own], speeds, "o-", label=f"inverted, {size:,}")
                for row in mine:
                    if row not in own and row["search"] != "inverted":
                        marker = {"exact": "s", "HNSW": "^"}.get(row["search"][:5].replace("faiss", "HNSW"), "v")
                        marker = "v" if "IVF" in row["search"] else marker
                        colour = curve.get_color()
                        label = f"{row['search'].split(',')[0]}, {size:,}"
                        panel.plot([row["recall_1"]], [1e3 / row[time_of]], marker, color=colour, label=label)
            panel.set(yscale="log", xlabel="recall@1", ylabel="queries a second, one core", title=f"{kind}, {title}")
            panel.grid(alpha=0.3)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--entries", type=int, nargs="+", default=[100_000, 200_000, 1_000_000])
    parser.add_argument("--queries", type=int, default=1000, help="of each kind, in one batch")
    parser.add_argument("--keep", type=Path, help="a folder for descriptors and indexes, to be used again")
    parser.add_argument("--plot", type=Path, help="draw recall against speed into this PNG")
    parser.add_argument("--clear", type=int, default=10**9, help="run faiss on the clear up to this many entries")
    parser.add_argument("--cells", type=int, help="cells of large indexes, instead of the default")
    parser.add_argument("--codes", type=int, nargs="+", default=[1_000_000], help="how many bits to search")
    parser.add_argument("--bits-only", action="store_true", help="search bits, and no subspaces")
    parser.add_argument("--cells-from", type=int, default=0, help="an index is large from this many entries on")
    args = parser.parse_args()
    sizes = [3000] if args.small else sorted(args.entries)
    load, data, rows = load_average(), kept_data(args, sizes[-1]), []
    with pinned_threads(1):
        for size in [] if args.bits_only else sizes:
            rows += measure(data, size, args)
            if args.plot:
                draw(rows, args.plot)
        for size in sizes if args.small else sorted(args.codes):
            rows += measure_bits(data, size, args)
    facts = {
        "entries": sizes,
        "codes": args.codes,
        "queries": args.queries,
        "real entries": len(data["clear"]),
        "load": load,
    }
    finish("search", args, facts, rows)


if __name__ == "__main__":
    main()
