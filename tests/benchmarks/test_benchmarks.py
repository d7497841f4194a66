# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: their committed results have one schema; with --all every one runs at its smallest size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SUITES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("common", "set_matching"))
KEYS = {"suite", "version", "commit", "machine", "seed", "repeats", "small", "sizes", "rows"}


@pytest.mark.slow
@pytest.mark.timeout(600)  # kernels may have to be compiled first
@pytest.mark.parametrize("suite", SUITES)
def test_small_run(suite, tmp_path):
    output = tmp_path / "out.json"
    command = [sys.executable, str(FOLDER / f"{suite}.py"), "--small", "--repeats", "2", "--json", str(output)]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert set(result) == KEYS
    assert result["suite"] == suite
    assert result["small"] is True
    assert result["rows"]
    assert len({frozenset(row) for row in result["rows"]}) == 1


@pytest.mark.parametrize("path", sorted(FOLDER.glob("results/*/*.json")), ids=lambda path: path.name)
def test_committed_results_have_the_schema(path):
    result = json.loads(path.read_text())
    assert set(result) == KEYS
    assert path.name.split("--")[0] == result["suite"]
    assert result["small"] is False
    assert result["machine"]["processor"]
