# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "third_party.py"


def test_a_third_process_decides_and_leaves_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 7
    for line in lines[:6]:
        assert ("accepted" in line) == ("of person1" in line), line
    assert lines[6].startswith("shown: the server received 6 decisions")
    assert list(tmp_path.iterdir()) == []
