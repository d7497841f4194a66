# SPDX-License-Identifier: Apache-2.0
"""Delete compiled code that is older than the source it was made from.

Numba compares a cached function with its own file alone. Compiled code also contains the functions that it calls and
the constants that it reads, so a cache is stale if one of these files is newer:
  - the kernel modules that its module imports, directly or through other kernel modules;
  - every other module of the package that one of these imports a constant from.
A kernel module is one that imports numba when it is imported itself.
"""

import ast
import sys
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"


@cache
def imported(path: Path) -> frozenset[str]:
    """Return the modules that a file imports at module level, as dotted names."""
    names: set[str] = set()
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def is_kernel(path: Path) -> bool:
    return any(name.split(".")[0] == "numba" for name in imported(path))


def origins(path: Path, source: Path) -> set[Path]:
    """Return the files whose code or constants are in the compiled code of a kernel module."""
    files, waiting = {path}, [path]
    while waiting:
        for name in imported(waiting.pop()):
            file = source / f"{name.replace('.', '/')}.py"
            if name.startswith("sfumato.") and file.is_file() and file not in files:
                files.add(file)
                if is_kernel(file):
                    waiting.append(file)
    return files


def stale(source: Path = SOURCE) -> list[Path]:
    """Return the files of numba's caches that are older than their sources, or have none."""
    found = []
    for compiled in sorted(source.rglob("__pycache__/*.nb[ic]")):
        module = compiled.parent.parent / f"{compiled.name.split('.')[0]}.py"
        newest = (
            max((file.stat().st_mtime for file in origins(module, source)), default=0.0) if module.is_file() else None
        )
        if newest is None or compiled.stat().st_mtime <= newest:
            found.append(compiled)
    return found


if __name__ == "__main__":
    for compiled in stale(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE):
        compiled.unlink(missing_ok=True)
