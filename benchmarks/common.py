# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the benchmarks: arguments, timing with warm-up, pinned threads, and results with machine and seed."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import sfumato
from sfumato.types.record import describe_machine

ROOT = Path(__file__).resolve().parent.parent


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with what every benchmark takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each case, after one that does not count")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="a smoke test: tiny sizes, figures without meaning")
    return parser


@contextmanager
def pinned_threads(count: int) -> Iterator[None]:
    """Limit BLAS, OpenMP, OpenCV and faiss to ``count`` threads."""
    import cv2
    import faiss
    from threadpoolctl import threadpool_limits

    before = cv2.getNumThreads(), faiss.omp_get_max_threads()
    with threadpool_limits(count):
        cv2.setNumThreads(count)
        faiss.omp_set_num_threads(count)
        try:
            yield
        finally:
            cv2.setNumThreads(before[0])
            faiss.omp_set_num_threads(before[1])


def seconds(work: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Time ``work`` after one warm-up run: least, median and interquartile range, in seconds."""
    work()
    runs = []
    for _ in range(max(2, repeats)):
        start = time.perf_counter()
        work()
        runs.append(time.perf_counter() - start)
    quartiles = statistics.quantiles(runs, n=4)
    return {"least": min(runs), "median": statistics.median(runs), "spread": quartiles[2] - quartiles[0]}


def interleaved(works: Mapping[str, Callable[[], Any]], repeats: int, *, warm_up: bool = True) -> dict[str, float]:
    """Time several pieces of work in turn, by default after one run of each that does not count: the least seconds.

    What disturbs the machine for a while then disturbs all of them, and their ratios less.
    """
    runs: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(not warm_up, max(1, repeats) + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if turn:
                runs[name].append(time.perf_counter() - start)
    return {name: min(taken) for name, taken in runs.items()}


def note(words: str) -> None:
    """Say on the error stream what is being done."""
    print(words, file=sys.stderr, flush=True)


def load_average() -> float | None:
    """Return how many processes the last minute kept busy; where there are some, the figures say little."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    if load is not None and load > 0.5:
        note(f"the machine is busy (load {load:.1f}): the figures will be too high, and their ratios uncertain")
    return load


def photo_descriptors(paths: Iterable[Path], wanted: int, each: int = 8000) -> np.ndarray:
    """Return up to ``wanted`` SIFT descriptors (N, 128), the strongest ``each`` of every photo, contrast from 0.01."""
    found: list[np.ndarray] = []
    for path in paths:
        if sum(map(len, found)) >= wanted:
            break
        found.append(sfumato.extract(path, contrast_threshold=0.01, max_features=each).descriptors)
    rows: np.ndarray = np.ascontiguousarray(np.concatenate(found)[:wanted])
    return rows


def sift_like(count: int, rng: np.random.Generator) -> np.ndarray:
    """Non-negative unit-norm rows (count, 128) with about a quarter zeros, for timing without photos."""
    rows = np.maximum(rng.normal(0.3, 0.5, (count, 128)), 0)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def finish(suite: str, args: argparse.Namespace, sizes: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Print the figures as a table and write them, with machine, seed, sizes and commit, where asked.

    What some rows lack is None, so that all have the same columns.
    """
    columns = dict.fromkeys(name for row in rows for name in row)
    rows = [{name: row.get(name) for name in columns} for row in rows]
    print_table(rows)
    if args.json:
        result = {
            "suite": suite, "version": sfumato.__version__, "commit": _commit(), "machine": describe_machine(),
            "seed": args.seed, "repeats": args.repeats, "small": args.small, "sizes": sizes, "rows": rows,
        }  # fmt: skip
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(result, indent=2) + "\n")
        print(f"written to {args.json}", file=sys.stderr)


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print rows, one line each; a row may lack what others have."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = [names, *([_show(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(names))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _show(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _commit() -> str:
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return found.stdout.strip()


def data_folder() -> Path | None:
    """Return the folder of real data named by SFUMATO_DATA (default ../shared/data), or None."""
    folder = Path(os.environ.get("SFUMATO_DATA", ROOT / ".." / "shared" / "data"))
    return folder.resolve() if folder.is_dir() else None
