# SPDX-License-Identifier: Apache-2.0
"""tests/ mirrors the package: src/sfumato/a/b.py is tested in tests/a/test_b.py, and nowhere else first."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

UNTESTED = {
    "__main__.py": "python -m sfumato: one call of what test_app.py tests",
    "cli/__main__.py": "python -m sfumato.cli: one call of what test_app.py tests",
}
"""Modules without a test file of their own, and why."""

ABOUT_THE_WHOLE = {
    "test_api.py",
    "test_docs.py",
    "test_import.py",
    "test_layers.py",
    "test_mirror.py",
    "test_scripts.py",
}
"""Tests that stand for no module."""

OTHER_FOLDERS = ("benchmarks/", "examples/")
"""Folders of tests for what is not in the package."""


def sources(root: Path) -> set[str]:
    package = root / "src" / "sfumato"
    return {p.relative_to(package).as_posix() for p in package.rglob("*.py") if p.name != "__init__.py"}


def files_of_tests(root: Path) -> set[str]:
    return {p.relative_to(root / "tests").as_posix() for p in (root / "tests").rglob("test_*.py")}


def mirror(source: str) -> str:
    folder, _, name = source.rpartition("/")
    return f"{folder}/test_{name}" if folder else f"test_{name}"


def missing(root: Path) -> list[str]:
    return sorted(mirror(s) for s in sources(root) - set(UNTESTED) if mirror(s) not in files_of_tests(root))


def orphans(root: Path) -> list[str]:
    packages = {p.parent.relative_to(root / "src" / "sfumato") for p in (root / "src").rglob("__init__.py")}
    of_packages = {mirror(f"{folder.as_posix()}.py") for folder in packages}  # tests/test_store.py for store/
    known = {mirror(source) for source in sources(root)} | ABOUT_THE_WHOLE | of_packages
    return sorted(name for name in files_of_tests(root) - known if not name.startswith(OTHER_FOLDERS))


def test_every_module_has_its_tests():
    assert sources(ROOT)
    assert not missing(ROOT), "write them, or say in UNTESTED why not"


def test_every_test_has_its_module():
    assert not orphans(ROOT), "rename them, or name them in ABOUT_THE_WHOLE"


def test_the_exceptions_are_still_needed():
    assert set(UNTESTED) <= sources(ROOT)
    assert not {mirror(source) for source in UNTESTED} & files_of_tests(ROOT)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "src/sfumato/__init__",
        "src/sfumato/store",
        "src/sfumato/types/__init__",
        "src/sfumato/types/clear",
    ):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "tests" / "types").mkdir(parents=True)
    (tmp_path / "tests" / "test_store.py").touch()
    return tmp_path


def test_a_missing_test_is_seen(tree: Path):
    assert missing(tree) == ["types/test_clear.py"]
    (tree / "tests" / "types" / "test_clear.py").touch()
    assert not missing(tree)
    assert not orphans(tree)


def test_a_test_without_a_module_is_seen(tree: Path):
    (tree / "tests" / "types" / "test_gone.py").touch()
    assert orphans(tree) == ["types/test_gone.py"]
