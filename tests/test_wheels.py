# SPDX-License-Identifier: Apache-2.0
"""What is installed: a small wheel with documents and types, the attack networks beside it, and no file missing."""

import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from sfumato.errors import MissingDependency
from sfumato.inversion import load_inverter, patches

ROOT = Path(__file__).resolve().parent.parent
MOST_BYTES = 12e6
"""Of the wheel without networks; the bundled decoys are most of it."""


def test_without_the_networks_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    assert find_spec("sfumato_networks") is not None
    monkeypatch.setattr(patches, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"sfumato\[audit\]"):
        load_inverter()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(ROOT), str(ROOT / "networks")], check=True, timeout=600)
    return {path.name.split("-")[0]: path for path in folder.glob("*.whl")}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_is_small_and_complete(wheels: dict[str, Path]):
    assert set(wheels) == {"sfumato", "sfumato_networks"}
    assert wheels["sfumato"].stat().st_size < MOST_BYTES
    names = set(zipfile.ZipFile(wheels["sfumato"]).namelist())
    assert {"sfumato/py.typed", "sfumato/__init__.pyi"} <= names
    for folder in ("tutorials", "how_to", "explanation", "reference"):
        for page in (ROOT / "docs" / folder).glob("*.md"):
            assert f"sfumato/documents/{folder}/{page.name}" in names
    metadata = zipfile.ZipFile(wheels["sfumato"]).read("sfumato-0.1.0.dist-info/METADATA").decode()
    assert "Classifier: Typing :: Typed" in metadata
    networks = {
        name for name in zipfile.ZipFile(wheels["sfumato_networks"]).namelist() if name.endswith(".safetensors")
    }
    assert "sfumato_networks/inverter-sift.safetensors" in networks


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_installed_wheel_audits_photos(wheels: dict[str, Path], tmp_path: Path):
    """In an empty environment, in a folder without the repository."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=300)
    command = tmp_path / "venv" / "bin" / "sfumato"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    pip = [str(command.with_name("pip")), "install", "-qq", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *map(str, wheels.values())], check=True, timeout=900, env=clean)
    topics = subprocess.run([command, "help"], capture_output=True, text=True, check=True, timeout=120, env=clean)
    assert "threat_model" in topics.stdout
    few = ["--max-features", "150", "--recipes", "default,raw", "--quiet", "-o", "page.html"]
    done = subprocess.run(
        [command, "audit", *few], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=900, env=clean
    )
    assert "Open it in a browser" in done.stdout
    assert (tmp_path / "page.html").stat().st_size > 100_000
