# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import pytest

from sfumato.errors import COLMAP_ERRORS_ONLY, MissingDependency, load_pycolmap
from sfumato.geometry.colmap import silence


def test_it_is_pycolmap_with_a_quiet_log():
    pycolmap = load_pycolmap()
    assert pycolmap.__name__ == "pycolmap"
    assert pycolmap.logging.minloglevel >= COLMAP_ERRORS_ONLY


def test_somebody_who_wants_less_log_keeps_it():
    pycolmap = load_pycolmap()
    before = pycolmap.logging.minloglevel
    try:
        pycolmap.logging.minloglevel = 3
        assert load_pycolmap().logging.minloglevel == 3
    finally:
        pycolmap.logging.minloglevel = before


def test_nothing_is_logged_while_silenced(capfd):
    log = load_pycolmap().logging
    before = log.minloglevel
    with silence():
        log.error("told in another way")
    assert log.minloglevel == before
    assert capfd.readouterr() == ("", "")
    log.error("seen")
    assert "seen" in capfd.readouterr().err


def test_without_pycolmap_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    with pytest.raises(MissingDependency, match="install"):
        load_pycolmap()


def test_opencv_reads_pictures_beside_it():
    """Each carries a zlib; loaded the other way round, OpenCV could not read a PNG."""
    program = """
import numpy as np
from sfumato.geometry.colmap import load_pycolmap
load_pycolmap()
import cv2
done, data = cv2.imencode(".png", np.full((9, 9), 7, np.uint8))
assert done and (cv2.imdecode(data, cv2.IMREAD_UNCHANGED) == 7).all()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
