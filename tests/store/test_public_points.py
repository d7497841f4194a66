# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import h5py
import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.publish import INSERT, _write_public
from sfumato.store import public_points
from sfumato.store.layout import digest, digest_lines
from sfumato.store.public_points import load_public, row_of
from sfumato.types.concealed import PublicPoints
from sfumato.types.extractor import Extractor

SIFT = Extractor("sift", {"max_features": 100})
COLUMNS = ("name", "count", "dim", "extractor", "data", "checksum", "points", "descriptors")


def some_points(seed, count, dim=16):
    rng = np.random.default_rng(seed)
    return PublicPoints(rng.integers(0, 10**12, count), rng.standard_normal((count, dim)), SIFT)


@pytest.fixture
def images():
    return {"b/é 1.jpg": some_points(1, 5), "a.jpg": some_points(2, 7), "none.jpg": some_points(3, 0)}


@pytest.fixture
def path(images, tmp_path):
    _write_public(tmp_path / "public-points.sqlite", list(images.items()))
    return tmp_path / "public-points.sqlite"


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
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_layout_is_the_documented_one(images):
    text = (Path(__file__).parents[2] / "docs" / "reference" / "file_formats.md").read_text(encoding="utf-8")
    assert public_points.TABLE in text
    row = dict(zip(COLUMNS, row_of("a.jpg", images["a.jpg"]), strict=True))
    assert (row["count"], row["dim"], row["extractor"]) == (7, 16, SIFT.to_json())
    assert row["points"] == images["a.jpg"].points.astype("<i8").tobytes()
    assert row["data"] == digest((row["points"], images["a.jpg"].descriptors.tobytes()))
    assert row["checksum"] == digest([f"a.jpg\n7\n16\n{SIFT.to_json()}\n{row['data']}\n".encode()])


def test_the_reader_writes_nothing():
    """No function here opens a file for writing; only publish, on the device, does."""
    source = Path(public_points.__file__).read_text(encoding="utf-8")
    for word in ("INSERT", "UPDATE", "open_writer", "replacement", "sqlite3", "write_"):
        assert word not in source


def test_damage_is_told_by_the_image_it_hit(path, images, sql):
    sql(path, "UPDATE image SET descriptors = zeroblob(length(descriptors)) WHERE name = 'a.jpg'")
    with load_public(path) as file:
        with pytest.raises(FileError, match=r"a\.jpg.*checksum"):
            file["a.jpg"]
        assert np.array_equal(file["b/é 1.jpg"].points, images["b/é 1.jpg"].points)


@pytest.mark.parametrize(
    "change",
    [
        "PRAGMA user_version = 2",
        "PRAGMA application_id = 2",
        "CREATE VIEW other AS SELECT * FROM image",
        "UPDATE image SET name = 'nine.jpg' WHERE name = 'none.jpg'",
        "UPDATE image SET count = count + 1 WHERE name = 'none.jpg'",
        "UPDATE image SET dim = 8",
        "UPDATE image SET points = X'00' WHERE name = 'a.jpg'",
        "UPDATE image SET descriptors = zeroblob(2000000) WHERE name = 'a.jpg'",
        "DELETE FROM image WHERE name = 'a.jpg'",
        "DELETE FROM image",
    ],
)
def test_a_changed_file_is_refused(path, sql, change):
    sql(path, change)
    with pytest.raises(FileError) as caught:
        load_public(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"count": -1}, "rows"),
        ({"count": 2**62}, "rows"),
        ({"dim": 0}, "rows"),
        ({"extractor": "{}"}, "several"),
        ({"name": "a\nb"}, "name"),
        ({"descriptors": np.full((7, 16), np.nan, "<f4").tobytes()}, "finite"),
        ({"points": np.full(7, -1, "<i8").tobytes()}, "points"),
    ],
)
def test_forged_rows_with_right_digests_are_refused(path, images, sql, changes, word):
    row = dict(zip(COLUMNS, row_of("a.jpg", images["a.jpg"]), strict=True)) | changes
    row["data"] = digest((row["points"], row["descriptors"]))
    row["checksum"] = digest_lines([row[key] for key in COLUMNS[:5]])
    sql(path, "DELETE FROM image WHERE name = 'none.jpg'")
    sql(path, "DELETE FROM image WHERE name = 'a.jpg'", (INSERT, tuple(row.values())))
    with pytest.raises(FileError, match=word):
        dict(load_public(path))


def test_names_that_no_file_takes_are_refused(tmp_path):
    with pytest.raises(InputError, match="name"):
        _write_public(tmp_path / "p", [("a\nb", some_points(1, 2))])
    assert not list(tmp_path.iterdir())


def test_files_that_are_none(tmp_path, path):
    with pytest.raises(FileError, match="no such"):
        load_public(tmp_path / "none")
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file["points"] = np.zeros(3)
    with pytest.raises(FileError, match="HDF5"):
        load_public(tmp_path / "old.h5")
    content = path.read_bytes()
    for cut in (0, 10, 100, len(content) // 2):
        path.write_bytes(content[:cut])
        with pytest.raises(FileError):
            load_public(path)
