# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from sfumato.errors import FileError
from sfumato.files import hdf5
from sfumato.publish import _write_public
from sfumato.store import public_points
from sfumato.store.public_points import ImageRows, digest_rows, header_text, load_public
from sfumato.types.concealed import PublicPoints
from sfumato.types.extractor import Extractor

SIFT = Extractor("sift", {"max_features": 100})


def some_points(seed, count, dim=16):
    rng = np.random.default_rng(seed)
    return PublicPoints(rng.integers(0, 10**12, count), rng.standard_normal((count, dim)), SIFT)


@pytest.fixture
def images():
    return {"b/é 1.jpg": some_points(1, 5), "a.jpg": some_points(2, 7), "none.jpg": some_points(3, 0)}


@pytest.fixture
def path(images, tmp_path):
    _write_public(tmp_path / "public-points.h5", list(images.items()))
    return tmp_path / "public-points.h5"


def arrays_of(path):
    with h5py.File(path) as file:
        return {key: file[key][()] for key in file}


def write(path, arrays, **options):
    with h5py.File(path, "w", libver="latest") as file:
        for key, value in arrays.items():
            file.create_dataset(key, data=value, **options)


def test_what_was_published_comes_back(path, images):
    with load_public(path) as file:
        assert list(file) == sorted(images)
        assert len(file) == 3
        assert file.extractor == SIFT
        for name, points in images.items():
            assert np.array_equal(file[name].points, points.points)
            assert np.array_equal(file[name].descriptors, points.descriptors)
            assert file[name].extractor.name == "sift"
        assert "c.jpg" not in file
        with pytest.raises(KeyError):
            file["c.jpg"]
        assert repr(file) == f"PublicPointsFile({str(path)!r}, 3 images)"
    with pytest.raises(FileError, match="closed"):
        file["a.jpg"]


def test_the_layout_is_the_documented_one(path, images):
    arrays = arrays_of(path)
    assert {key: (value.dtype.str, value.shape) for key, value in arrays.items()} == {
        "header": ("|u1", arrays["header"].shape),
        "points": ("<i8", (12,)),
        "descriptors": ("<f4", (12, 16)),
    }
    header = json.loads(arrays["header"].tobytes())
    assert (header["format"], header["version"]) == ("sfumato-public-points", 1)
    assert [(name, count) for name, count, _ in header["images"]] == [("a.jpg", 7), ("b/é 1.jpg", 5), ("none.jpg", 0)]
    assert np.array_equal(arrays["points"][7:], images["b/é 1.jpg"].points)


def test_the_reader_writes_nothing():
    """No function here opens a file for writing; only publish, on the device, does."""
    source = Path(public_points.__file__).read_text(encoding="utf-8")
    assert "h5py" not in source
    assert 'h5py.File(path, "r"' in Path(hdf5.__file__).read_text(encoding="utf-8")
    assert "write" not in {name for name in dir(public_points) if not name.startswith("__")}


@pytest.mark.parametrize("where", [0.05, 0.3, 0.6, 0.9])
def test_damage_is_told_by_the_image_it_hit_or_at_once(path, where):
    content = bytearray(path.read_bytes())
    with h5py.File(path) as file:
        start = file["descriptors"].id.get_offset()
        size = file["descriptors"].id.get_storage_size()
    content[start + int(where * size)] ^= 1
    path.write_bytes(content)
    with load_public(path) as file:
        lost = []
        for name in file:
            try:
                file[name]
            except FileError as problem:
                lost.append(str(problem))
    assert len(lost) == 1
    assert "checksum" in lost[0]


def test_a_changed_header_is_told(path):
    arrays = arrays_of(path)
    raw = arrays["header"].tobytes().replace(b"none.jpg", b"nine.jpg")
    write(path, {**arrays, "header": np.frombuffer(raw, np.uint8)})
    with pytest.raises(FileError, match="header"):
        load_public(path)


def rewritten(arrays, **changes):
    return {**arrays, **changes}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: rewritten(a, points=a["points"][:-1]), "another number of rows"),
        (lambda a: rewritten(a, points=a["points"].astype(np.int32)), "points is not an array of type"),
        (lambda a: rewritten(a, descriptors=a["descriptors"].astype(np.float64)), "descriptors is not"),
        (lambda a: rewritten(a, descriptors=a["descriptors"].ravel()), "descriptors is not"),
        (lambda a: rewritten(a, header=np.frombuffer(b"{", np.uint8)), "header cannot be read"),
        (lambda a: rewritten(a, header=np.frombuffer(b"[" * 100_000, np.uint8)), "header cannot be read"),
        (lambda a: rewritten(a, header=np.frombuffer(b"[]", np.uint8)), "another kind of file"),
        (lambda a: rewritten(a, header=np.zeros(0, np.uint8)), "header cannot be read"),
        (lambda a: rewritten(a, more=np.zeros(1)), "another kind of file"),
        (lambda a: {"points": a["points"]}, "another kind of file"),
    ],
)
def test_other_arrays_are_refused(path, change, message):
    write(path, change(arrays_of(path)))
    with pytest.raises(FileError, match=message):
        load_public(path)


def headed(path, entries=None, **changes):
    """Write the file again with another header, its checksum made anew."""
    arrays = arrays_of(path)
    if entries is not None:
        raw = header_text(SIFT, entries)
    else:
        content = {**json.loads(arrays["header"].tobytes()), **changes}
        content.pop("checksum")
        content["checksum"] = public_points._digest_content(content)
        raw = json.dumps(content, sort_keys=True).encode()
    write(path, {**arrays, "header": np.frombuffer(raw, np.uint8)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "has version 2"),
        ({"format": "other"}, "another kind"),
        ({"images": [["a", "x", ""]]}, "list of images"),
        ({"images": 5}, "list of images"),
        ({"images": [["a", -1, ""], ["b", 13, ""]]}, "list of images"),
        ({"images": [["a", 10**30, ""]]}, "damaged|rows"),
        ({"images": [["a", 6, ""], ["a", 6, ""]]}, "named twice"),
        ({"extractor": "{}"}, "extractor"),
    ],
)
def test_hostile_headers_with_a_right_checksum(path, changes, message):
    headed(path, **changes)
    with pytest.raises(FileError, match=message):
        load_public(path)


def test_values_that_are_not_finite_are_refused(path):
    arrays = arrays_of(path)
    arrays["descriptors"][3, 3] = np.nan
    points, descriptors = arrays["points"], arrays["descriptors"]
    entries = [ImageRows("a.jpg", 12, digest_rows(points, descriptors))]
    write(path, {**arrays, "header": np.frombuffer(header_text(SIFT, entries), np.uint8)})
    with load_public(path) as file, pytest.raises(FileError, match="not finite"):
        file["a.jpg"]


def test_links_chunks_and_other_files_are_refused(path, tmp_path):
    arrays = arrays_of(path)
    write(path, arrays, chunks=True)
    with pytest.raises(FileError, match="piece"):
        load_public(path)
    rest = {key: value for key, value in arrays.items() if key != "points"}
    for link in (h5py.SoftLink("/descriptors"), h5py.ExternalLink("other.h5", "/points")):
        write(path, rest)
        with h5py.File(path, "a") as file:
            file["points"] = link
        with pytest.raises(FileError, match="refused"):
            load_public(path)
    write(path, rest)
    with h5py.File(path, "a") as file:
        file.create_dataset("points", (12,), "<i8", external=[(str(tmp_path / "raw"), 0, 96)])
    with pytest.raises(FileError, match="refused"):
        load_public(path)


def test_files_that_are_none(tmp_path, path):
    with pytest.raises(FileError, match="no such"):
        load_public(tmp_path / "none.h5")
    content = path.read_bytes()
    for cut in (0, 10, 100, len(content) // 2):
        path.write_bytes(content[:cut])
        with pytest.raises(FileError):
            load_public(path)
