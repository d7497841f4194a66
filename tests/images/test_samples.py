# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys

import pytest

from sfumato.errors import ImageError, InputError
from sfumato.images import samples
from sfumato.images.read import read_image
from sfumato.images.samples import FILES, sample_image, sample_names, sample_paths


def test_every_sample_is_there_and_is_a_photo():
    assert sample_names() == sorted(FILES)
    for name in sample_names():
        image = sample_image(name)
        assert image.name == name
        assert min(image.size) > 150
        assert image.pixels.std() > 5


def test_reading_samples_says_nothing(capfd):
    for name in sample_names():
        sample_image(name)
    assert capfd.readouterr() == ("", "")


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(InputError, match="'astronaut'"):
        sample_image("astronut")
    with pytest.raises(InputError, match="astronaut"):
        sample_image("../../etc/passwd")


def test_a_sample_that_is_not_carried_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "_folder", lambda: tmp_path)
    assert sample_names() == []
    with pytest.raises(ImageError, match="carry"):
        sample_image("coffee")


def test_neither_network_nor_cache_nor_skimage_itself_is_needed(tmp_path):
    program = """
import socket, sys
def refuse(*_, **__):
    raise AssertionError("the network was asked")
socket.socket = socket.create_connection = socket.getaddrinfo = refuse
from sfumato.images.samples import sample_image, sample_names
for name in sample_names():
    sample_image(name)
assert "skimage" not in sys.modules, "reading a file needs no skimage"
"""
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "SKIMAGE_DATADIR": str(tmp_path / "data")}
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **home}, check=True, timeout=60)
    assert list(tmp_path.iterdir()) == []


def test_samples_are_files_that_can_be_read():
    paths = sample_paths()
    assert list(paths) == sample_names()
    assert read_image(paths["coffee"]).size == (600, 400)
