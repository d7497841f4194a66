# SPDX-License-Identifier: Apache-2.0
"""Archives are read lazily, and a damaged or hostile one gives an error, never a crash, a hang or wrong data."""

import hashlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import sfumato
from sfumato.cli.inspect import describe_archive
from sfumato.errors import ArchiveError
from sfumato.store import Archive, ArchiveWriter, layout, load, save
from sfumato.types.recipe import Recipe

NAMES = ("b.jpg", "a/ü.jpg", "..", "empty.jpg", "sealed.jpg", "home.jpg", "released.jpg")


@pytest.fixture
def images(features: Callable[..., Any], sealed: Callable[..., Any], home: Callable[..., Any]) -> dict[str, Any]:
    return {
        "b.jpg": features(seed=1),
        "a/ü.jpg": features(seed=2, dim=4, image_size=None, focal_px=512.3),
        "..": features(seed=3, dim=0, recipe="compress-16"),
        "empty.jpg": features(seed=4, count=0),
        "sealed.jpg": sealed(seed=5, count=300, bits=512),
        "home.jpg": home(seed=6, count=200, bits=512),
        "released.jpg": home(seed=7, count=200, shown=90, bits=512),
    }


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("original") / "a.sfm"


@pytest.fixture
def path(tmp_path: Path, original: Path, images: dict[str, Any]) -> Path:
    if not original.exists():
        save(original, images)
    return Path(shutil.copy(original, tmp_path))


def test_an_archive_is_a_read_only_mapping(path: Path, images: dict[str, Any], same: Any):
    archive = load(path)
    assert isinstance(archive, Mapping)
    assert list(archive) == sorted(NAMES)
    assert len(archive) == 7
    for name, image in archive.items():
        same(image, images[name])
    assert "b.jpg" in archive
    assert "c.jpg" not in archive
    assert 3 not in archive
    assert archive.get("c.jpg") is None
    with pytest.raises(KeyError):
        archive["c.jpg"]
    with pytest.raises(KeyError):
        archive.header("c.jpg")
    assert not hasattr(archive, "__setitem__")


def test_repr_shows_path_and_count_only(path: Path):
    assert repr(load(path)) == f"Archive({str(path)!r}, 7 images)"


def test_comparing_and_hashing_read_nothing(path: Path):
    archive = load(path)
    assert archive == archive
    assert archive != load(path)
    assert len({archive}) == 1


def test_images_are_read_when_asked_for(path: Path, monkeypatch: pytest.MonkeyPatch):
    """A header is read without its blobs, and an image without the others."""
    asked: list[str] = []
    rows = sfumato.files.sqlite.Database.rows
    monkeypatch.setattr(
        "sfumato.files.sqlite.Database.rows", lambda self, *query: asked.append(query[0]) or rows(self, *query)
    )
    archive = load(path)
    archive.summary()
    assert not [query for query in asked if "code" in query.replace("typeof(code), length(code)", "")]
    archive["b.jpg"]
    assert len([query for query in asked if "SELECT keypoints, code" in query]) == 1


def test_headers_and_summary(path: Path, images: dict[str, Any]):
    with load(path) as archive:
        header = archive.header("a/ü.jpg")
        assert (header.name, header.count, header.dim, header.ambient_dim) == ("a/ü.jpg", 5, 4, 16)
        assert (header.dtype, header.image_size, header.focal_px) == ("float32", None, 512.3)
        assert (header.recipe, header.extractor) == (Recipe.of("random-4"), images["b.jpg"].extractor)
        bits = archive.header("sealed.jpg")
        assert (bits.dtype, bits.dim, bits.ambient_dim, bits.nbytes) == ("bits", 0, 512, 300 * 72)
        summary = archive.summary()
    assert summary.path == path
    assert summary.size_bytes == path.stat().st_size
    assert [image.name for image in summary.images] == sorted(NAMES)
    assert not summary.damaged


def test_inspect_says_bits(tmp_path: Path, sealed: Any):
    save(tmp_path / "a.sfm", {"a.jpg": sealed(), "none.jpg": sealed(count=0)})
    facts = describe_archive(tmp_path / "a.sfm", images=False, check=True)
    assert (facts["numbers"], facts["features"]) == ("bits", 5)
    assert facts["checked"] == "every checksum is right"


def test_bits_are_read_as_bits(tmp_path: Path, sealed: Any):
    """Nothing is widened: what an image takes in memory is what it takes in the file, and its keypoints."""
    save(tmp_path / "a.sfm", {"a.jpg": sealed(count=1000, bits=512)})
    code = load(tmp_path / "a.sfm")["a.jpg"].code
    assert (type(code), code.packed.nbytes, code.packed.flags.writeable) == (sfumato.Bits, 64_000, False)


def test_a_closed_archive_says_so(path: Path):
    with load(path) as archive:
        pass
    archive.close()
    with pytest.raises(ArchiveError, match="closed"):
        archive["b.jpg"]
    with pytest.raises(ArchiveError, match="closed"):
        archive.header("b.jpg")
    assert len(archive) == 7


def test_files_are_closed(path: Path, tmp_path: Path):
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else pytest.skip("needs /proc")
    for _ in range(5):
        load(path)
    (tmp_path / "bad").write_bytes(b"x" * 100)
    for _ in range(5):
        with pytest.raises(ArchiveError):
            load(tmp_path / "bad")
    assert len(os.listdir("/proc/self/fd")) == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.sfm", "bad"]


def test_an_open_archive_sees_what_it_saw(path: Path, images: dict[str, Any], features: Any, same: Any):
    archive = load(path)
    save(path, {"more.jpg": features(seed=8)}, append=True)
    assert list(archive) == sorted(NAMES)
    assert list(load(path)) == sorted([*NAMES, "more.jpg"])
    save(path, {"new.jpg": features(seed=9)})
    for name in NAMES:
        same(archive[name], images[name])
    assert list(load(path)) == ["new.jpg"]
    archive.close()
    with load(path) as archive:
        same(archive["new.jpg"], features(seed=9))
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_threads_share_an_archive(path: Path, images: dict[str, Any], same: Any):
    archive = load(path)
    with ThreadPoolExecutor(4) as pool:
        for name, image in zip(NAMES * 20, pool.map(archive.__getitem__, NAMES * 20), strict=True):
            same(image, images[name])


def test_an_empty_archive(tmp_path: Path):
    save(tmp_path / "a.sfm", {})
    archive = load(tmp_path / "a.sfm")
    assert len(archive) == 0
    assert archive.summary().images == ()


def test_an_archive_where_nothing_can_be_written(images: dict[str, Any], same: Any):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.sfm")
        save(path, images)
        path.chmod(0o444)
        os.chmod(folder, 0o555)
        child = os.fork()
        if child == 0:
            try:
                if os.getuid() == 0:
                    os.setuid(65534)  # nobody: root may write anywhere
                with load(path) as archive:
                    same(archive["b.jpg"], images["b.jpg"])
                    os._exit(0 if os.listdir(folder) == [path.name] else 2)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        os.chmod(folder, 0o755)


def test_public_names():
    assert sfumato.load is load
    assert sfumato.save is save
    assert issubclass(Archive, Mapping)


def sha256(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def test_an_archive_made_by_the_document_alone_is_read(tmp_path: Path, images: dict[str, Any], same: Any):
    """docs/reference/file_formats.md, followed by hand."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "file_formats.md").read_text(encoding="utf-8")
    page = text.split("\n## Archive\n", 1)[1].split("\n## ", 1)[0]
    tables = re.findall(r"CREATE TABLE .*?\) STRICT", page, re.DOTALL)
    assert len(tables) == 3, "the page shows the tables image, tags and release"
    with closing(sqlite3.connect(tmp_path / "foreign.sfm")) as database:
        database.execute("PRAGMA page_size = 4096")
        for table in tables:
            database.execute(table)
        database.execute(f"PRAGMA application_id = {0x53666D41}")
        database.execute("PRAGMA user_version = 2")
        for name, image in images.items():
            insert_by_hand(database, name, image)
        database.commit()
    with load(tmp_path / "foreign.sfm") as archive:
        assert list(archive) == sorted(images)
        for name in archive:
            same(archive[name], images[name])
    save(tmp_path / "foreign.sfm", {"more.jpg": images["b.jpg"]}, append=True)
    assert len(load(tmp_path / "foreign.sfm")) == len(NAMES) + 1


def insert_by_hand(database: sqlite3.Connection, name: str, image: Any) -> None:
    size, shown = image.image_size or (None, None), np.flatnonzero(image.is_shown)
    if image.recipe.is_sealed:
        kind, keypoints, code = "bits", image.keypoints[:, :2].tobytes(), image.code.packed.tobytes()
    else:
        kind, keypoints = "float32", image.keypoints.tobytes()
        code = image.code.origin.tobytes() + image.code.basis.tobytes()
    keypoints = keypoints if image.tags is None else b""
    data = sha256(keypoints, code)
    texts = image.recipe.to_json(), image.extractor.to_json()
    values = name, len(image), image.code.dim, image.code.ambient_dim, kind, *texts, *size, image.focal_px, data
    lines = ["" if value is None else value for value in values]
    lines[9] = np.array(image.focal_px, ">f8").tobytes().hex() if image.focal_px else ""
    checksum = sha256("".join(f"{line}\n" for line in lines).encode())
    database.execute(f"INSERT INTO image VALUES ({','.join('?' * 14)})", (*values, checksum, keypoints, code))
    if image.tags is None:
        return
    tags = image.tags.rows.tobytes()
    checksum = sha256(f"{name}\n{image.tags.photo}\n{sha256(tags)}\n".encode())
    database.execute("INSERT INTO tags VALUES (?, ?, ?, ?)", (name, image.tags.photo, checksum, tags))
    if len(shown):
        numbers, positions = shown.astype("<u4").tobytes(), image.keypoints[shown, :2].tobytes()
        checksum = sha256(f"{name}\n{len(shown)}\n{sha256(numbers, positions)}\n".encode())
        row = name, len(shown), checksum, numbers, positions
        database.execute("INSERT INTO release VALUES (?, ?, ?, ?, ?)", row)


# ---------------------------------------------------------------- not an archive


@pytest.mark.parametrize("content", [b"", b"x", b"SQLite format 3\0", b"name, x, y\n" * 100, bytes(4096)])
def test_other_files_are_refused(tmp_path: Path, content: bytes):
    (tmp_path / "a.sfm").write_bytes(content)
    for read in (load, lambda path: ArchiveWriter(path, append=True).__enter__()):
        with pytest.raises(ArchiveError, match="archive") as caught:
            read(tmp_path / "a.sfm")
        assert str(tmp_path / "a.sfm") in str(caught.value)
    assert (tmp_path / "a.sfm").read_bytes() == content


def test_missing_files_and_folders_are_refused(tmp_path: Path):
    with pytest.raises(ArchiveError, match="no such"):
        load(tmp_path / "a.sfm")
    with pytest.raises(ArchiveError, match="not a"):
        load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArchiveError, match="not a"):
        load(tmp_path / "pipe")
    with pytest.raises(ArchiveError, match="long"):
        load(tmp_path / ("n" * 300))
    assert os.listdir(tmp_path) == ["pipe"]


def test_an_archive_of_an_earlier_version_is_recognised(tmp_path: Path):
    with h5py.File(tmp_path / "old.sfm.h5", "w") as file:
        file.create_group("images")
    for read in (load, lambda path: ArchiveWriter(path, append=True).__enter__()):
        with pytest.raises(ArchiveError, match=r"HDF5.*sfumato conceal"):
            read(tmp_path / "old.sfm.h5")


@pytest.mark.parametrize("recipe", ["sealed-64@0123456789ab", "random-2"])
def test_rows_of_earlier_versions_are_read_where_they_have_no_chaff(
    tmp_path: Path, features: Any, sealed: Any, same: Any, forge: Any, recipe: str
):
    image = sealed() if "sealed" in recipe else features()
    old = image.recipe.to_json().replace("{", '{"chaff":0,', 1)
    forge(tmp_path / "old.sfm", image, recipe=old)
    with load(tmp_path / "old.sfm") as archive:
        same(archive["a.jpg"], image)
    save(tmp_path / "old.sfm", {"new.jpg": image}, append=True)
    with load(tmp_path / "old.sfm") as archive:
        assert archive.header("new.jpg").recipe == archive.header("a.jpg").recipe == image.recipe
    forge(
        tmp_path / "damaged.sfm", image, recipe=old, checksum=layout.encode_image("a.jpg", image, "float32")[0].checksum
    )
    with load(tmp_path / "damaged.sfm") as archive, pytest.raises(ArchiveError, match="checksum"):
        archive["a.jpg"]


def test_rows_made_with_chaff_are_refused(tmp_path: Path, sealed: Any, forge: Any):
    image = sealed()
    forge(tmp_path / "old.sfm", image, recipe=image.recipe.to_json().replace("{", '{"chaff":2,', 1))
    with load(tmp_path / "old.sfm") as archive, pytest.raises(ArchiveError, match="chaff"):
        archive["a.jpg"]


def test_other_sqlite_files_are_refused(tmp_path: Path, sql: Any):
    sql(tmp_path / "a.db", "CREATE TABLE image (name)")
    with pytest.raises(ArchiveError, match="SQLite"):
        load(tmp_path / "a.db")


# ---------------------------------------------------------------- changed with SQLite

WHOLE = {
    "future version": "PRAGMA user_version = 3",
    "earlier version": "PRAGMA user_version = 1",
    "no tags": "DROP TABLE tags",
    "no releases": "DROP TABLE release",
    "column of releases": "ALTER TABLE release ADD COLUMN x TEXT",
    "other kind": "PRAGMA application_id = 3",
    "view": "CREATE VIEW other AS SELECT * FROM image",
    "trigger": "CREATE TRIGGER t AFTER INSERT ON image BEGIN DELETE FROM image; END",
    "table": "CREATE TABLE other (x)",
    "index": "CREATE INDEX other ON image (count)",
    "column": "ALTER TABLE image ADD COLUMN x TEXT",
    "statistics": "ANALYZE",
    "lost image": "DELETE FROM image WHERE name = 'b.jpg'",
    "row far away": "UPDATE image SET rowid = 77 WHERE name = 'b.jpg'",
    "control characters": "UPDATE image SET name = 'a' || char(10) WHERE name = 'b.jpg'",
    "name that is no text": "UPDATE image SET name = CAST(X'ff' AS TEXT) WHERE name = 'b.jpg'",
    "no name": "UPDATE image SET name = '' WHERE name = 'b.jpg'",
}


@pytest.mark.parametrize("change", sorted(WHOLE))
def test_a_changed_archive_is_refused_when_opened(path: Path, features: Any, sql: Any, change: str):
    sql(path, WHOLE[change])
    with pytest.raises(ArchiveError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    if change in ("view", "trigger", "table"):  # nothing is written either
        with pytest.raises(ArchiveError):
            save(path, {"more.jpg": features()}, append=True)


IMAGE: dict[str, str] = {
    "one value": "code = zeroblob(length(code))",
    "other keypoints": "keypoints = zeroblob(length(keypoints))",
    "shorter code": "code = zeroblob(length(code) - 1)",
    "huge code": "code = zeroblob(2000000)",
    "no code": "code = X''",
    "more features": "count = count + 1",
    "huge count": "count = 2147483647",
    "enormous count": "count = 9223372036854775807",
    "negative count": "count = -1",
    "other dimension": "dim = 3",
    "other type": "dtype = 'float16'",
    "unknown type": "dtype = 'float64'",
    "clear recipe": f"recipe = '{Recipe.of('raw').to_json()}'",
    "other recipe": f"recipe = '{Recipe.of('hybrid-2').to_json()}'",
    "sealed recipe": f"recipe = '{Recipe.of('sealed-16@0123456789ab').to_json()}'",
    "no recipe": "recipe = ''",
    "no extractor": "extractor = '{}'",
    "other size": "width = 641",
    "half a size": "width = NULL",
    "negative size": "width = -1, height = -1",
    "focal length": "focal_px = 500.0",
    "negative focal length": "focal_px = -500.0",
    "infinite focal length": "focal_px = 9e999",
    "other digest": "data = checksum",
    "other name": "name = 'c.jpg'",
    "another image's blobs": "code = (SELECT code FROM image WHERE name = 'a/ü.jpg')",
}


@pytest.mark.parametrize("change", sorted(IMAGE))
def test_a_changed_image_is_refused_and_the_others_are_not(
    path: Path, images: dict[str, Any], same: Any, sql: Any, change: str
):
    sql(path, f"UPDATE image SET {IMAGE[change]} WHERE name = 'b.jpg'")
    name = "c.jpg" if change == "other name" else "b.jpg"
    with load(path) as archive:
        with pytest.raises(ArchiveError) as caught:
            archive[name]
        assert repr(name) in str(caught.value)
        assert str(path) in str(caught.value)
        assert "restore the archive" in str(caught.value)
        for other in set(NAMES) - {"b.jpg"}:
            same(archive[other], images[other])
        assert set(archive.summary().damaged) <= {name}
    with ArchiveWriter(path, append=True) as writer, pytest.raises(ArchiveError):
        writer.read(name)


def loosely(path: Path, sql: Any, statement: str) -> None:
    """Change a row in a way that the table forbids; afterwards the table says that it forbids it."""
    loose = layout.TABLE.replace(" NOT NULL", "").replace(") STRICT", ")")
    form = "UPDATE sqlite_schema SET sql = ? WHERE name = 'image'"
    sql(path, "PRAGMA writable_schema = ON", (form, (loose,)))
    sql(path, statement)
    sql(path, "PRAGMA writable_schema = ON", (form, (layout.TABLE,)))


@pytest.mark.parametrize(
    "change",
    [
        *("count = 'five'", "count = 5.5", "count = NULL", "recipe = NULL", "recipe = X'00'", "focal_px = 'long'"),
        *("code = NULL", "code = 7", "code = CAST(code AS TEXT)", "keypoints = 'x'", "checksum = NULL", "width = 1.5"),
    ],
)
def test_values_of_another_type_are_refused(path: Path, images: dict[str, Any], same: Any, sql: Any, change: str):
    loosely(path, sql, f"UPDATE image SET {change} WHERE name = 'b.jpg'")
    with load(path) as archive:
        with pytest.raises(ArchiveError, match=r"b\.jpg"):
            archive["b.jpg"]
        same(archive["sealed.jpg"], images["sealed.jpg"])


def test_two_images_of_one_name_are_refused(path: Path, sql: Any):
    sql(path, "PRAGMA writable_schema = ON", "DELETE FROM sqlite_schema WHERE type = 'index'")
    with pytest.raises(ArchiveError):  # and without the index nothing keeps names apart
        load(path)
    loose = layout.TABLE.replace("PRIMARY KEY ", "").replace(") STRICT", ")")
    form = "UPDATE sqlite_schema SET sql = ? WHERE name = 'image'"
    sql(path, "PRAGMA writable_schema = ON", (form, (loose,)))
    sql(path, "UPDATE image SET name = 'b.jpg'", "CREATE INDEX i ON image (name)")
    rename = "UPDATE sqlite_schema SET name = 'sqlite_autoindex_image_1', sql = NULL WHERE type = 'index'"
    sql(path, "PRAGMA writable_schema = ON", (form, (layout.TABLE,)), rename)
    with pytest.raises(ArchiveError):
        load(path)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"keypoints": np.full((5, 4), np.nan, "<f4").tobytes()}, "finite"),
        ({"code": np.full(5 * 16 * 3, np.inf, "<f4").tobytes()}, "finite"),
        ({"code": np.ones(5 * 16 * 3, "<f4").tobytes()}, "orthonormal"),
        ({"keypoints": np.tile(np.array([5, 5, 1, 0], "<f4"), 5).tobytes()}, "angles"),
        ({"keypoints": bytes(5 * 12)}, "bytes"),
        ({"recipe": Recipe.of("raw").to_json()}, "clear"),
        ({"recipe": Recipe.of("compress-16").to_json()}, "dimension"),
        ({"recipe": Recipe.of("sealed-16@0123456789ab").to_json()}, "dimension"),
        ({"recipe": Recipe.of("random-2").to_json().replace(":", ": ")}, "form"),
        ({"count": 2**40}, "outside"),
        ({"dim": 0, "ambient_dim": 48, "recipe": Recipe.of("random-2").to_json()}, "clear"),
        ({"width": 2**40}, "image_size"),
        ({"name": "x" * 2000}, "name"),
        ({"checksum": "0" * 64}, "checksum"),
        ({"data": "0" * 64}, "checksum"),
    ],
)
def test_forged_images_with_right_digests_are_refused(
    tmp_path: Path, features: Any, forge: Any, changes: dict[str, Any], word: str
):
    forge(tmp_path / "a.sfm", features(), **changes)
    with pytest.raises(ArchiveError, match=word):
        dict(load(tmp_path / "a.sfm"))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"recipe": Recipe.of("compress-64").to_json()}, "bits"),
        ({"recipe": Recipe.of("raw").to_json()}, "clear"),
        ({"recipe": Recipe.of("sealed-128@0123456789ab").to_json()}, "bits"),
        ({"dtype": "float32", "code": bytes(5 * 64 * 4)}, "bits"),
        ({"ambient_dim": 60}, "bits"),
        ({"dim": 1}, "dimension"),
    ],
)
def test_forged_bits_are_refused(tmp_path: Path, sealed: Any, forge: Any, changes: dict[str, Any], word: str):
    forge(tmp_path / "a.sfm", sealed(), **changes)
    with pytest.raises(ArchiveError, match=word):
        load(tmp_path / "a.sfm")["a.jpg"]


def test_a_forger_can_make_archives(tmp_path: Path, sealed: Any, forge: Any, same: Any):
    """So the tests above fail for the reason they name."""
    forge(tmp_path / "a.sfm", sealed(), focal_px=700.0)
    same(load(tmp_path / "a.sfm")["a.jpg"], sealed(focal_px=700.0))


def test_truncations_are_noticed(path: Path, images: dict[str, Any], same: Any):
    """What is missing belongs to images, which are refused, or to the structure, and then the file is."""
    raw = path.read_bytes()
    for size in range(0, len(raw) - 1, 2999):
        path.write_bytes(raw[:size])
        intact = set()
        with suppress(ArchiveError), load(path) as archive:
            for name in archive:
                with suppress(ArchiveError):
                    same(archive[name], images[name])
                    intact.add(name)
        assert intact < set(NAMES)


# ---------------------------------------------------------------- changed at random


def fuzz(source: Path, folder: Path, first: int, number: int) -> dict[str, int]:
    command = [sys.executable, Path(__file__).with_name("fuzzing.py"), source, folder, str(first), str(number)]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=1000)
    seed = (folder / "seed").read_text() if (folder / "seed").exists() else "none"
    assert done.returncode == 0, f"seed {seed}, exit code {done.returncode}:\n{done.stderr[-4000:]}"
    outcome: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return outcome


@pytest.mark.parametrize("number", [150, pytest.param(10_000, marks=pytest.mark.slow)])
def test_hostile_files_never_crash_hang_or_pass_wrong_data(path: Path, tmp_path: Path, number: int):
    outcome = fuzz(path, tmp_path, 0, number)
    for kind in ("refused", "image intact", "added"):
        assert outcome[kind] > number / 15
    assert outcome["image refused"] > 0


def test_the_fuzzer_sees_wrong_data(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With the digest of blobs switched off, wrong data passes and the fuzzer must say so."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sfumato.store.layout as layout\n"
        "class Any(str):\n    __eq__ = lambda self, other: True\n    __ne__ = lambda self, other: False\n"
        "layout.digest = lambda parts: Any()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(AssertionError, match="came"):
        fuzz(path, tmp_path, 0, 1000)
