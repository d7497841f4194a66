# SPDX-License-Identifier: Apache-2.0
"""What came out, held against what is wanted, and against what the arithmetic costs at least."""

from typing import Any

from matches.pairs import CASES, FAISS

MEMORY_LIMIT, MEMORY_AIM = 200, 64
SPEEDUP_LIMIT = 1.8
BINARY_LIMIT, FEW_LIMIT = 1.2, 8
"""Of sealed features: in times of faiss on the same bits, and milliseconds of 2,000 x 2,000."""
Rows = list[dict[str, Any]]


def targets(rows: Rows, memory: dict[str, dict[str, float | None]]) -> Rows:
    """Hold the worst of the three pairs, memory, growth and threads against what is wanted."""
    table = []
    for case in CASES:
        if case.limit is not None and _of(rows, case.name):
            worst = max(_of(rows, case.name), key=lambda row: row["times_faiss"])
            table.append(_line(f"{case.name}, x faiss", worst["times_faiss"], case.limit, case.aim, worst["pair"]))
    for name in {row["case"] for row in rows if row["times_binary_flat"] is not None}:
        worst = max(_of(rows, name), key=lambda row: row["times_binary_flat"])
        table.append(_line(f"{name}, x IndexBinaryFlat", worst["times_binary_flat"], BINARY_LIMIT, None, worst["pair"]))
        if name.endswith("few"):
            slowest = max(_of(rows, name), key=lambda row: row["seconds"])
            line = _line(f"{name}, milliseconds", 1e3 * slowest["seconds"], FEW_LIMIT, None, slowest["pair"])
            table.append(line)
    grown = [(megabytes, f"{name}, {pair}") for pair, told in memory.items() for name, megabytes in told.items()
             if megabytes is not None and name != FAISS.name]  # fmt: skip
    if grown:
        megabytes, where = max(grown)
        table.append(_line("extra memory, MB", megabytes, MEMORY_LIMIT, MEMORY_AIM, where))
    costs = [(row["ns_per_pair"], row["features"]) for row in _of(rows, "growth")]
    ratio = max(costs)[0] / min(costs)[0]
    table.append(_line("growth, most / least per pair", ratio, None, None, f"{max(costs)[1]} / {min(costs)[1]}"))
    timed = [row for case in CASES for row in _of(rows, case.name)]
    slowest = min(timed, key=lambda row: row["speedup"])
    where = f"{slowest['case']}, {slowest['pair']}"
    table.append(_line("all threads, x one", slowest["speedup"], SPEEDUP_LIMIT, None, where, at_least=True))
    return table


def _of(rows: Rows, case: str) -> Rows:
    return [row for row in rows if row["case"] == case and row["method"] == "ours"]


def _line(
    what: str, value: float, limit: float | None, aim: float | None, worst: str, *, at_least: bool = False
) -> dict[str, Any]:
    def meets(wanted: float | None) -> bool:
        return wanted is not None and (value >= wanted if at_least else value <= wanted)

    word = "" if limit is None else "aim met" if meets(aim) else "pass" if meets(limit) else "short"
    return {"target": what, "measured": value, "limit": limit, "aim": aim, "verdict": word, "worst": worst}


def tell_roofline(rows: Rows, rates: dict[str, float]) -> None:
    """Print what the products of the worst pair of each case cost at least."""
    gemm, kernel = rates["gemm"] / 1e9, rates["kernel"] / 1e9
    print(f"float32 GEMM: {2 * gemm:.0f} GFLOP/s, {gemm:.1f} products a nanosecond; 16-bit bounds: {kernel:.1f}")
    for case in CASES:
        if _of(rows, case.name) and not case.is_sealed:
            row = max(_of(rows, case.name), key=lambda row: row["times_faiss"])
            share = 100 * row["share_bracketed"]
            print(
                f"{case.name}: a bound on {row['head']} axes and {share:.2g} % of the pairs in full: the arithmetic "
                f"needs {row['gemm_seconds']:.3f} s at the rate of the GEMM, {row['kernel_seconds']:.3f} s at that of "
                f"the 16-bit kernel; we took {row['seconds']:.3f} s"
            )
