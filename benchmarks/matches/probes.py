# SPDX-License-Identifier: Apache-2.0
"""What only a fresh process can tell: how much memory grows, and how long the first call takes."""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common import pinned_threads

from matches.methods import faiss_search, ours
from matches.pairs import CASES, FAISS, Case, read_side

PROGRAM = Path(__file__).resolve().parents[1] / "matching.py"
MEGABYTE = 1 << 20
FEW = 400
"""Features of the calls that only compile: enough of them that a bound is used."""


def memory_growth(folder: Path, cases: Sequence[Case], threads: int) -> dict[str, float | None]:
    """Return the megabytes that each case needs beyond its inputs, each in a process of its own."""
    return {case.name: _in_process("memory", folder, [case], threads, {})[case.name] for case in cases}


def first_calls(folder: Path, cases: Sequence[Case], threads: int, *, cold: bool) -> list[dict[str, Any]]:
    """Return the seconds of each case's first call, compiled anew and then from the cache, and of its second.

    Cases follow each other in one process: the first pays for what they share. Without ``cold`` nothing is compiled
    anew.
    """
    with tempfile.TemporaryDirectory() as cache:
        place = {"NUMBA_CACHE_DIR": cache} if cold else {}
        anew = _in_process("calls", folder, cases, threads, place) if cold else {}
        again = _in_process("calls", folder, cases, threads, place)
    return [
        {"case": name, "compiled": anew.get(name, [None])[0], "cached": first, "second": second}
        for name, (first, second) in again.items()
    ]


def _in_process(what: str, folder: Path, cases: Sequence[Case], threads: int, environment: dict[str, str]) -> Any:
    command = [sys.executable, str(PROGRAM), "--threads", str(threads), "--probe", what, str(folder)]
    command += [case.name for case in cases]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"measuring {what} in a process of its own failed:\n{done.stderr}")
    return json.loads(done.stdout)


def probe(what: str, folder: Path, names: Sequence[str], threads: int) -> None:
    """Measure in this process and print as JSON: for each case named the growth of memory, or two calls."""
    told: dict[str, Any] = {}
    for case in [case for case in (*CASES, FAISS) if case.name in names]:
        a, b = (read_side(folder, dim, number) for number, dim in enumerate(case.dims))
        with pinned_threads(threads):
            calls = [_seconds(_work(case, a[:FEW], b[:FEW], threads)) for _ in range(2)]
            told[case.name] = calls if what == "calls" else peak_growth(_work(case, a, b, threads))
    print(json.dumps(told))


def _work(case: Case, a: Any, b: Any, threads: int) -> Callable[[], Any]:
    return lambda: faiss_search(a, b, case.task) if case is FAISS else ours(a, b, case.task, threads)


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_growth(work: Callable[[], Any]) -> float | None:
    """Return by how many megabytes the memory of this process grew at most while working; None off Linux."""
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what was freed before must not hide what is needed now
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = _resident("VmRSS")
        work()
        return (_resident("VmHWM") - before) / MEGABYTE
    except (OSError, AttributeError):
        return None


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))
