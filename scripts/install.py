# SPDX-License-Identifier: Apache-2.0
"""Install sfumato into the environment of this interpreter; every file that comes from an index is checked.

    python scripts/install.py            what the package needs
    python scripts/install.py dev        with an extra of pyproject.toml

pip chooses the packages under constraints.txt without installing anything; then exactly these are installed, with the
checksums of hashes.txt, and sfumato itself last, with its attack networks. The build backend is pinned and checked too.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BACKEND = ("editables", "hatchling", "packaging", "pathspec", "pluggy", "setuptools", "tomlkit", "trove-classifiers")
"""What ``build-system.requires`` of pyproject.toml leads to, and what builds the models of faces, which are source."""


def read_hashes(text: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return version and checksums by name, of lines as pip has them: ``name==version --hash=sha256:...``."""
    hashes = {}
    for line in text.replace("\\\n", " ").splitlines():
        requirement, *options = line.split() or ["#"]
        if not requirement.startswith("#"):
            name, version = requirement.split("==")
            hashes[name] = version, tuple(option for option in options if option.startswith("--hash=sha256:"))
    return hashes


def read_plan(report: Mapping[str, object]) -> dict[str, str]:
    """Return name and version of all that pip would install, but for what is in this folder."""
    items = [item for item in report["install"] if "dir_info" not in item["download_info"]]  # type: ignore[attr-defined]
    return {re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower(): item["metadata"]["version"] for item in items}


def pinned_lines(plan: Mapping[str, str], hashes: Mapping[str, tuple[str, tuple[str, ...]]]) -> list[str]:
    """Return a line for pip for each package of a plan; ends the program for packages without checksums.

    A build of the same version for one kind of machine, such as 2.13.0+cpu, is one of its files.
    """
    unknown = [f"{name}=={version}" for name, version in plan.items() if _checksums(name, version, hashes) is None]
    if unknown:
        raise SystemExit(
            f"hashes.txt has no checksums for {', '.join(unknown)}: nothing was installed. Add them, or install "
            f"unchecked with: pip install -c constraints.txt -e ."
        )
    return [f"{n}=={version} {' '.join(_checksums(n, version, hashes) or ())}" for n, version in sorted(plan.items())]


def _checksums(name: str, version: str, hashes: Mapping[str, tuple[str, tuple[str, ...]]]) -> tuple[str, ...] | None:
    known, checksums = hashes.get(name, ("", ()))
    return checksums if known == version.partition("+")[0] else None


def run_pip(*arguments: str) -> None:
    """Run ``pip install``; ends the program if it fails."""
    done = subprocess.run([sys.executable, "-m", "pip", "install", "-qq", *arguments], cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def install_checked(lines: Iterable[str], work: Path) -> None:
    """Install exactly these files, if there are any."""
    (work / "pinned.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if (work / "pinned.txt").read_text(encoding="utf-8").strip():
        run_pip("--require-hashes", "--no-deps", "-r", str(work / "pinned.txt"))


def main(extra: str = "") -> None:
    """Install sfumato, with an extra."""
    hashes = read_hashes((ROOT / "hashes.txt").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        install_checked(pinned_lines({name: hashes[name][0] for name in BACKEND}, hashes), work)
        here = f".[{extra}]" if extra else "."
        report = ("--dry-run", "--report", str(work / "plan.json"), "--no-build-isolation", "-c", "constraints.txt")
        run_pip(*report, "-e", here)
        plan = read_plan(json.loads((work / "plan.json").read_text(encoding="utf-8")))
        install_checked(pinned_lines(plan, hashes), work)
    run_pip("--no-deps", "--no-build-isolation", "-e", ".", "-e", "./networks")


if __name__ == "__main__":
    main(*sys.argv[1:2])
