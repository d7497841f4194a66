# SPDX-License-Identifier: Apache-2.0
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from sfumato.auditing.task import digest_data
from sfumato.experiments.data.folders import read_scene_folder
from sfumato.experiments.maps.plain_colmap import map_plainly


@pytest.fixture(scope="session")
def mapped_room(small_room: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results that holds what plain COLMAP makes of the pictures of a room."""
    folder, paths = tmp_path_factory.mktemp("plain") / "results", read_scene_folder(small_room / "images").paths
    map_plainly(paths, {name: digest_data(path) for name, path in paths.items()}, folder)
    return folder


@pytest.fixture(scope="session")
def with_plain_map(mapped_room: Path):
    """Copy these results to a new folder, so that plain COLMAP need not run again."""
    return lambda folder: Path(shutil.copytree(mapped_room, folder))


@pytest.fixture
def blank_photos(tmp_path: Path) -> Path:
    """A folder of photos on which there is nothing."""
    folder = tmp_path / "blank"
    folder.mkdir()
    for name in ("a.png", "b.png", "c.png"):
        Pillow.fromarray(np.full((48, 64, 3), 90, np.uint8)).save(folder / name)
    return folder
