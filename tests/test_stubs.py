# SPDX-License-Identifier: Apache-2.0
"""Type checkers see the public names of packages, which are loaded when first used, through generated stubs."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def stubs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stubs", ROOT / "scripts" / "stubs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stubs_are_fresh(stubs: ModuleType):
    assert stubs.main("--check") == 0, "write them anew: python scripts/stubs.py"


def test_a_stale_stub_is_seen(stubs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = tmp_path / "sfumato"
    (source / "images").mkdir(parents=True)
    shutil.copy(ROOT / "src" / "sfumato" / "__init__.py", source)
    shutil.copy(ROOT / "src" / "sfumato" / "images" / "__init__.py", source / "images")
    monkeypatch.setattr(stubs, "SOURCE", source)
    assert stubs.main("--check") == 1
    assert stubs.main() == 0
    assert stubs.main("--check") == 0
    assert "from sfumato import search as search" in (source / "__init__.pyi").read_text(encoding="utf-8")
    text = (source / "images" / "__init__.py").read_text(encoding="utf-8")
    (source / "images" / "__init__.py").write_text(text.replace('"read_image"', '"read_picture"'), encoding="utf-8")
    assert stubs.main("--check") == 1


@pytest.mark.slow
def test_a_program_is_checked_through_them(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text("import sfumato\n\nnumber: int = sfumato.new_key()\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", str(program)]
    done = subprocess.run(command, cwd=ROOT / "src", capture_output=True, text=True, timeout=600, check=False)
    assert '"bytes"' in done.stdout
    assert '"int"' in done.stdout
