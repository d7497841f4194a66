# SPDX-License-Identifier: Apache-2.0
"""Bundles from anyone: nothing but the files of a map is ever written."""

import contextlib
import hashlib
import io
import tarfile

import numpy as np
import pytest

pytest.importorskip("httpx2")

from sfumato.client import Client
from sfumato.client.bundle import unpack
from sfumato.errors import FileError, ServerError

PARTS = ("cameras.bin", "images.bin", "points3D.bin")


def member(name, content=b"x", kind=tarfile.REGTYPE, **facts):
    info = tarfile.TarInfo(name)
    info.size, info.type = len(content), kind
    for key, value in facts.items():
        setattr(info, key, value)
    return info, content


def bundle(*members, format=tarfile.USTAR_FORMAT):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


WHOLE = [member(name, name.encode() * 100) for name in PARTS]


def test_the_files_of_a_map_come_out_as_they_are(tmp_path):
    data = bundle(*WHOLE, member("landmarks.sfm", b"y" * 5000), member("others/1/images.bin"))
    assert unpack(io.BytesIO(data), tmp_path) == [*PARTS, "landmarks.sfm", "others/1/images.bin"]
    assert (tmp_path / "landmarks.sfm").read_bytes() == b"y" * 5000
    assert (tmp_path / "others" / "1" / "images.bin").read_bytes() == b"x"
    assert (tmp_path / "cameras.bin").read_bytes() == b"cameras.bin" * 100


HOSTILE = {
    "above": [member("../images.bin")],
    "absolute": [member("/tmp/images.bin")],
    "deep": [member("others/1/../../../images.bin")],
    "dot": [member("./images.bin")],
    "stranger": [member("evil.py")],
    "hidden": [member(".bashrc")],
    "twice": [member("images.bin")],
    "link": [member("landmarks.sfm", b"", tarfile.SYMTYPE, linkname="/etc/passwd")],
    "hard link": [member("landmarks.sfm", b"", tarfile.LNKTYPE, linkname="images.bin")],
    "device": [member("landmarks.sfm", b"", tarfile.CHRTYPE)],
    "pipe": [member("landmarks.sfm", b"", tarfile.FIFOTYPE)],
    "folder": [member("others", b"", tarfile.DIRTYPE)],
    "sparse": [member("landmarks.sfm", b"", tarfile.GNUTYPE_SPARSE)],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_anything_else_is_refused(tmp_path, name):
    (tmp_path / "in").mkdir()
    with pytest.raises(FileError):
        unpack(io.BytesIO(bundle(*WHOLE, *HOSTILE[name])), tmp_path / "in")
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= set(PARTS)


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names_and_their_headers_are_refused(tmp_path, format):
    with pytest.raises(FileError):
        unpack(io.BytesIO(bundle(member("others/" + "1/" * 200 + "images.bin"), format=format)), tmp_path)


def test_sizes_are_limited_before_anything_is_written(tmp_path):
    with pytest.raises(FileError):
        unpack(io.BytesIO(bundle(*WHOLE)), tmp_path, most=500)
    assert not (tmp_path / "cameras.bin").exists()
    info, _ = member("images.bin")
    info.size = 2**40
    with pytest.raises(FileError):
        unpack(io.BytesIO(info.tobuf(tarfile.GNU_FORMAT)), tmp_path)


@pytest.mark.parametrize("cut", [0, 100, 513, 2000])
def test_a_bundle_that_ends_early_is_refused(tmp_path, cut):
    with pytest.raises(FileError):
        unpack(io.BytesIO(bundle(*WHOLE)[:cut]), tmp_path)


def test_noise_is_refused(tmp_path, flipped):
    rng, data = np.random.default_rng(0), bundle(*WHOLE)
    for number in range(200):
        folder = tmp_path / str(number)
        folder.mkdir()
        with contextlib.suppress(FileError):
            unpack(io.BytesIO(flipped(data, rng)), folder)
        assert {path.name for path in folder.rglob("*") if path.is_file()} <= set(PARTS)


def test_a_hostile_bundle_leaves_nothing(scripted, tmp_path):
    for data, digest in ((bundle(*WHOLE, *HOSTILE["above"]), None), (bundle(*WHOLE), "0" * 64)):
        made = {"number": 1, "facts": {}, "digest": digest or hashlib.sha256(data).hexdigest(), "is_current": True}
        scripted.answers = [(200, {"items": [made]}, {}), (200, data, {})]
        with Client(scripted.url, scripted.key) as client, pytest.raises(FileError):
            client.place("kitchen").pull(tmp_path / "model")
        assert not list(tmp_path.iterdir())


def test_an_endless_bundle_is_cut(scripted, tmp_path):
    made = {"number": 1, "facts": {}, "digest": "0" * 64, "is_current": True}
    scripted.answers = [(200, {"items": [made]}, {}), (200, b"x" * 5000, {})]
    with Client(scripted.url, scripted.key) as client, pytest.raises(ServerError):
        client.place("kitchen").pull(tmp_path / "model", most_bytes=1000)
    assert not list(tmp_path.iterdir())
