# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    """A folder with two photos, one without features, one that is no image, and a text."""
    from sfumato.images.samples import sample_image

    folder = tmp_path_factory.mktemp("photos")
    (folder / "deep").mkdir()
    for place, name in (("a.png", "astronaut"), ("deep/b.jpg", "coffee")):
        pixels = sample_image(name).pixels[:300, :300, ::-1]
        assert cv2.imwrite(str(folder / place), pixels)
    assert cv2.imwrite(str(folder / "grey.png"), np.full((80, 80), 128, np.uint8))
    (folder / "broken.jpg").write_text("this is no picture")
    (folder / "notes.txt").write_text("nor is this")
    return folder


@pytest.fixture(scope="session")
def run_sfumato():
    """Run the command in a process of its own, as a user does; return code, output and errors."""

    def run(*arguments, cwd=None, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "sfumato.cli", *map(str, arguments)],
            cwd=cwd, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run
