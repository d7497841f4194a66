# SPDX-License-Identifier: Apache-2.0
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def at_server(live_server: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The live server, named by the environment as a person would."""
    monkeypatch.setenv("SFUMATO_SERVER", live_server.url)
    monkeypatch.setenv("SFUMATO_API_KEY", live_server.key)
    return live_server


@pytest.fixture
def archive(scene: Any, tmp_path: Path) -> Path:
    """An archive of the scene's pictures."""
    import sfumato

    sfumato.save(tmp_path / "private.sfm", scene.images)
    return tmp_path / "private.sfm"


@pytest.fixture
def query(scene: Any, tmp_path: Path) -> Path:
    """An archive of the query, and a list of its camera beside it."""
    import sfumato
    from sfumato.geometry.cameras import write_cameras

    sfumato.save(tmp_path / "query.sfm", {"q.jpg": scene.query})
    write_cameras(tmp_path / "cameras.txt", {"q.jpg": scene.camera})
    return tmp_path / "query.sfm"


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    """No server and no key in the environment or in settings."""
    for name in ("SFUMATO_SERVER", "SFUMATO_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    return lambda: None


@pytest.fixture
def data(at_server: Any, mapped_place: str, tmp_path: Path) -> Path:
    """A copy of the live server's data, which a test may damage."""
    shutil.copytree(
        at_server.folder, tmp_path / "data", ignore=shutil.ignore_patterns("cache", "*-wal", "*-shm", "work")
    )
    with sqlite3.connect(at_server.folder / "server.sqlite") as live, sqlite3.connect(tmp_path / "copy") as copy:
        live.backup(copy)
    (tmp_path / "copy").replace(tmp_path / "data" / "server.sqlite")
    return tmp_path / "data"
