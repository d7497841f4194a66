# SPDX-License-Identifier: Apache-2.0
"""tests/ mirrors the packages: src/sfumato/a/b/ is tested in tests/a/b/, and folders of tests have their package."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

OTHER_FOLDERS = {"benchmarks", "examples"}
"""Folders of tests for what is not in the package."""


def packages(root: Path) -> set[str]:
    """Packages that have modules of their own, as paths below src/sfumato."""
    top = root / "src" / "sfumato"
    modules = (path for path in top.rglob("*.py") if not path.stem.startswith("__"))
    return {path.parent.relative_to(top).as_posix() for path in modules}


def folders_of_tests(root: Path) -> set[str]:
    """Folders that have tests, as paths below tests."""
    return {path.parent.relative_to(root / "tests").as_posix() for path in (root / "tests").rglob("test_*.py")}


def missing(root: Path) -> list[str]:
    return sorted(packages(root) - folders_of_tests(root))


def orphans(root: Path) -> list[str]:
    return sorted(folders_of_tests(root) - packages(root) - OTHER_FOLDERS)


def test_every_package_has_its_tests():
    assert "types" in packages(ROOT)
    assert not missing(ROOT)


def test_every_folder_of_tests_has_its_package():
    assert not orphans(ROOT)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("src/sfumato/__init__", "src/sfumato/store", "src/sfumato/types/clear", "tests/test_store"):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "tests" / "types").mkdir()
    return tmp_path


def test_a_package_without_tests_is_seen(tree: Path):
    assert missing(tree) == ["types"]
    (tree / "tests" / "types" / "test_clear.py").touch()
    assert not missing(tree)
    assert not orphans(tree)


def test_tests_without_a_package_are_seen(tree: Path):
    (tree / "tests" / "gone").mkdir()
    (tree / "tests" / "gone" / "test_gone.py").touch()
    assert orphans(tree) == ["gone"]
