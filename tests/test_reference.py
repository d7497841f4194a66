# SPDX-License-Identifier: Apache-2.0
"""The generated pages of the reference are those of today's commands and names."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import sfumato
from sfumato.cli.app import COMMANDS

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_fresh(reference: ModuleType):
    assert reference.main("--check") == 0, "write them anew: python scripts/reference.py"


def test_a_stale_page_is_seen_and_written_anew(reference: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reference, "REFERENCE", tmp_path / "reference")
    assert reference.main("--check") == 1
    assert not (tmp_path / "reference").exists()
    assert reference.main() == 0
    assert reference.main("--check") == 0
    page = tmp_path / "reference" / "cli.md"
    page.write_text(page.read_text(encoding="utf-8").replace("--recipe", "--recipes"), encoding="utf-8")
    assert reference.main("--check") == 1


def test_every_command_and_option_is_there(reference: ModuleType):
    page = reference.cli_page()
    for command in COMMANDS:
        assert f"\n## sfumato {command.words}\n" in page
    assert "| `--max-features` number | `16384` |" in page


def test_every_public_name_is_there(reference: ModuleType):
    page = reference.api_page()
    for name in sfumato.__all__:
        assert name == "search" or f"\n### {name}\n" in page
