# SPDX-License-Identifier: Apache-2.0
"""Compiled code is deleted when a file is newer whose functions or constants it contains, and only then."""

import ast
import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("stale_kernels", ROOT / "scripts" / "stale_kernels.py")
assert spec is not None
assert spec.loader is not None
stale_kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(stale_kernels)

FILES = {
    "caller": "from numba import njit\nfrom sfumato.search.callee import inner\n",
    "callee": "from numba import njit\nfrom sfumato.search.constants import WIDTH\n",
    "constants": "from sfumato.search import words\nWIDTH = 8\n",
    "words": "TEXT = 'no number of a kernel'\n",
    "other": "import numba\n",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    package = tmp_path / "sfumato" / "search"
    (package / "__pycache__").mkdir(parents=True)
    for name, text in FILES.items():
        (package / f"{name}.py").write_text(text)
        os.utime(package / f"{name}.py", (1000, 1000))
    for name in ("caller.outer-3.py311.nbi", "caller.outer-3.py311.1.nbc", "callee.inner-4.py311.nbi", "other.f-2.nbi"):
        (package / "__pycache__" / name).touch()
        os.utime(package / "__pycache__" / name, (2000, 2000))
    stale_kernels.imported.cache_clear()
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "modules"),
    [
        ("caller", {"caller"}),
        ("callee", {"caller", "callee"}),
        ("constants", {"caller", "callee"}),
        ("other", {"other"}),
        ("words", set()),
    ],
)
def test_what_contains_a_newer_file_is_deleted(source: Path, changed: str, modules: set[str]):
    os.utime(source / "sfumato" / "search" / f"{changed}.py", (3000, 3000))
    assert {path.name.split(".")[0] for path in stale_kernels.stale(source)} == modules


def test_compiled_code_without_a_source_is_deleted(source: Path):
    assert not stale_kernels.stale(source)
    (source / "sfumato" / "search" / "other.py").unlink()
    assert [path.name for path in stale_kernels.stale(source)] == ["other.f-2.nbi"]


def test_kernels_read_only_plain_constants_of_other_modules():
    """A constant computed from a third module would change without its own file being newer."""
    source = ROOT / "src"
    kernels = [path for path in source.rglob("*.py") if stale_kernels.is_kernel(path)]
    assert len(kernels) > 10
    for kernel in kernels:
        for node in ast.parse(kernel.read_bytes()).body:
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("sfumato."):
                continue
            home = source / f"{node.module.replace('.', '/')}.py"
            if home.is_file() and not stale_kernels.is_kernel(home):
                plain = plain_constants(home)
                assert {alias.name for alias in node.names} <= plain, f"{kernel.name}: from {node.module}"


def plain_constants(path: Path) -> set[str]:
    names = set()
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.Assign) and all(isinstance(part, PLAIN) for part in ast.walk(node.value)):
            names |= {target.id for target in ast.walk(node.targets[0]) if isinstance(target, ast.Name)}
    return names


PLAIN = ast.Constant | ast.Tuple | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop | ast.Load
