# SPDX-License-Identifier: Apache-2.0
"""Positions that stay home, in archives: tags are kept, releases add up, and what was damaged or forged is refused."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.errors import ArchiveError, FrameError, InputError
from sfumato.store import ArchiveWriter, layout, load, save
from sfumato.store.frames import decode_frame, decode_release, encode_frame, encode_release
from sfumato.store.writer import RELEASE_MORE

ROWS = np.array([3, 7, 8])
PLACES = np.array([[1.5, 2], [3, 4.0625], [5, 6]], np.float32)


@pytest.fixture
def path(tmp_path: Path, home: Any, sealed: Any) -> Path:
    """An archive of an image whose positions stay home, one of which some were released, and one with all."""
    save(tmp_path / "a.sfm", {"a.jpg": home(1, 20), "b.jpg": home(2, 20, shown=6), "all.jpg": sealed(3)})
    return tmp_path / "a.sfm"


def release(path: Path, name: str = "a.jpg", rows: np.ndarray = ROWS, places: np.ndarray = PLACES) -> int:
    with ArchiveWriter(path, append=True) as writer:
        return writer.release(name, rows, places)


def test_tags_and_released_positions_come_back(path: Path, home: Any, same: Any):
    with load(path) as archive:
        same(archive["a.jpg"], home(1, 20))
        same(archive["b.jpg"], home(2, 20, shown=6))
        assert [header.is_home for header in archive.summary().images] == [True, False, True]
        assert archive["a.jpg"].tags is not None
        assert not archive["a.jpg"].is_shown.any()


def test_a_copy_of_an_archive_keeps_tags_and_releases(path: Path, tmp_path: Path, home: Any, same: Any):
    release(path)
    save(tmp_path / "copy.sfm", load(path))
    with load(path) as first, load(tmp_path / "copy.sfm") as second:
        for name in first:
            same(second[name], first[name])
        assert second["a.jpg"].is_shown.sum() == len(ROWS)


def test_released_positions_are_in_the_archive_and_nothing_else_changes(path: Path, home: Any, same: Any):
    assert release(path) == 3
    with load(path) as archive:
        image = archive["a.jpg"]
        assert np.flatnonzero(image.is_shown).tolist() == ROWS.tolist()
        np.testing.assert_array_equal(image.keypoints[ROWS], [[*place, 1, 0] for place in PLACES.tolist()])
        same(image, home(1, 20).with_positions(ROWS, PLACES))
        same(archive["b.jpg"], home(2, 20, shown=6))


def test_releases_add_up_and_the_same_again_is_nothing_new(path: Path):
    assert release(path) == 3
    assert release(path) == 0
    assert release(path, rows=np.array([0, 7]), places=np.array([[9, 9], PLACES[1]], np.float32)) == 1
    with load(path) as archive:
        assert np.flatnonzero(archive["a.jpg"].is_shown).tolist() == [0, 3, 7, 8]
        np.testing.assert_array_equal(archive["a.jpg"].keypoints[[0, 3, 7, 8], 0], [9, 1.5, 3, 5])


def test_another_position_of_a_released_row_is_refused_and_nothing_is_written(path: Path):
    release(path)
    before = path.read_bytes()
    moved = PLACES + np.float32([[0, 0], [0, 0.0625], [0, 0]])
    with pytest.raises(InputError, match=r"a\.jpg"):
        release(path, rows=np.array([1, 7, 9]), places=moved)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("rows", "places"),
    [
        ([7, 3, 8], PLACES),
        ([3, 3, 8], PLACES),
        ([-1, 3, 8], PLACES),
        ([3, 7, 20], PLACES),
        ([3, 7], PLACES),
        ([3, 7, 8], PLACES[:, :1]),
        ([3, 7, 8], PLACES * np.float32([1, np.nan])),
        ([3, 7, 8], PLACES * np.float32([1, np.inf])),
    ],
)
def test_rows_and_positions_that_do_not_fit_are_refused(path: Path, rows: list[int], places: np.ndarray):
    before = path.read_bytes()
    with pytest.raises(InputError, match="released positions"):
        release(path, rows=np.array(rows), places=places)
    assert path.read_bytes() == before


def test_what_has_its_positions_or_is_not_there_is_not_released(path: Path):
    for name in ("all.jpg", "none.jpg", ""):
        with pytest.raises(InputError, match="release"):
            release(path, name)


def test_a_release_into_a_replaced_archive_is_refused(path: Path, home: Any):
    with ArchiveWriter(path, append=True) as writer:
        save(path, {"a.jpg": home(9, 20)})
        with pytest.raises(ArchiveError, match="replaced"):
            writer.release("a.jpg", ROWS, PLACES)
    with load(path) as archive:
        assert not archive["a.jpg"].is_shown.any()


def test_no_positions_can_be_released(path: Path, home: Any, same: Any):
    assert release(path, rows=ROWS[:0], places=PLACES[:0]) == 0
    with load(path) as archive:
        same(archive["a.jpg"], home(1, 20))


# ---------------------------------------------------------------- damage and forgery

DAMAGE = {
    "another photo": "UPDATE tags SET photo = replace(photo, substr(photo, 1, 1), 'x')",
    "other tags": "UPDATE tags SET tags = zeroblob(length(tags))",
    "fewer tags": "UPDATE tags SET tags = substr(tags, 9)",
    "other checksum of tags": "UPDATE tags SET checksum = 'x' || checksum",
    "tags of another image": "UPDATE tags SET tags = (SELECT tags FROM tags WHERE name = 'a.jpg') WHERE name = 'b.jpg'",
    "other positions": "UPDATE release SET positions = zeroblob(length(positions))",
    "other rows": "UPDATE release SET numbers = zeroblob(length(numbers))",
    "fewer positions": "UPDATE release SET positions = substr(positions, 9)",
    "another count": "UPDATE release SET count = count + 1",
    "a huge count": "UPDATE release SET count = 9223372036854775807",
    "a negative count": "UPDATE release SET count = -1",
    "other checksum of positions": "UPDATE release SET checksum = ''",
}


@pytest.mark.parametrize("change", sorted(DAMAGE))
def test_damage_is_noticed_and_stays_with_its_image(path: Path, sealed: Any, sql: Any, same: Any, change: str):
    sql(path, DAMAGE[change])
    with load(path) as archive:
        with pytest.raises(ArchiveError, match=r"'b\.jpg'"):
            archive["b.jpg"]
        same(archive["all.jpg"], sealed(3))
        assert archive.header("b.jpg").is_home


def forged_release(
    name: str, numbers: list[int], places: list[Any], count: Any = None, kind: str = "<u4"
) -> tuple[Any, ...]:
    """A row of released positions with right digests."""
    blobs = np.array(numbers, kind).tobytes(), np.array(places, "<f4").tobytes()
    count = len(numbers) if count is None else count
    return name, count, layout.digest_lines((name, count, layout.digest(blobs))), *blobs


@pytest.mark.parametrize(
    "row",
    [
        forged_release("b.jpg", [5, 4], [[1, 1], [2, 2]]),
        forged_release("b.jpg", [5, 5], [[1, 1], [2, 2]]),
        forged_release("b.jpg", [20], [[1, 1]]),
        forged_release("b.jpg", [2**32 - 1], [[1, 1]]),
        forged_release("b.jpg", [5], [[np.nan, 1]]),
        forged_release("b.jpg", [5], [[1, np.inf]]),
        forged_release("b.jpg", [5], [[1, 1]], count=2),
        forged_release("b.jpg", [5], [[1, 1]], kind="<u8"),
        forged_release("b.jpg", [5], [1]),
        ("b.jpg", *forged_release("a.jpg", [5], [[1, 1]])[1:]),
    ],
)
def test_forged_releases_with_right_digests_are_refused(path: Path, sql: Any, row: tuple[Any, ...]):
    sql(path, (RELEASE_MORE, row))
    with load(path) as archive, pytest.raises(ArchiveError, match=r"'b\.jpg'"):
        archive["b.jpg"]
    with ArchiveWriter(path, append=True) as writer, pytest.raises(ArchiveError, match=r"'b\.jpg'"):
        writer.release("b.jpg", ROWS, PLACES)


@pytest.mark.parametrize("photo", ["", "0" * 31, "0" * 33, "G" * 32, "A" * 32, "0" * 31 + "\n"])
def test_forged_names_of_photos_with_right_digests_are_refused(path: Path, sql: Any, photo: str):
    blob = bytes(20 * 8)
    row = "b.jpg", photo, layout.digest_lines(("b.jpg", photo, layout.digest([blob]))), blob
    sql(path, ("UPDATE tags SET photo = ?, checksum = ?, tags = ? WHERE name = ?", (*row[1:], row[0])))
    with load(path) as archive, pytest.raises(ArchiveError, match=r"'b\.jpg'"):
        archive["b.jpg"]


@pytest.mark.parametrize("count", [None, "1", 1.5, b"1"])
def test_a_count_of_another_type_is_refused(path: Path, sql: Any, count: Any):
    """A forger can make SQLite forget for a while what a column may hold."""
    loose = layout.RELEASE.replace(" NOT NULL", "").replace(") STRICT", ")").replace("count INTEGER", "count")
    form = "UPDATE sqlite_schema SET sql = ? WHERE name = 'release'"
    row = forged_release("b.jpg", [5], [[1, 1]])
    checksum = layout.digest_lines(("b.jpg", count, layout.digest(row[3:])))
    sql(path, "PRAGMA writable_schema = ON", (form, (loose,)))
    sql(path, ("UPDATE release SET count = ?, checksum = ?, numbers = ?, positions = ?", (count, checksum, *row[3:])))
    sql(path, "PRAGMA writable_schema = ON", (form, (layout.RELEASE,)))
    with load(path) as archive, pytest.raises(ArchiveError, match=r"b\.jpg"):
        archive["b.jpg"]


LOST = {
    "tags of an image": "DELETE FROM tags WHERE name = 'a.jpg'",
    "release of an image": "DELETE FROM release WHERE name = 'b.jpg'",
    "row far away": "UPDATE release SET rowid = 7 WHERE name = 'a.jpg'",
    "no name": "UPDATE tags SET name = '' WHERE name = 'a.jpg'",
}


@pytest.mark.parametrize("change", sorted(LOST))
def test_a_lost_row_of_tags_or_releases_is_noticed(path: Path, sql: Any, change: str):
    """Else a device would believe that positions are at home which left it."""
    release(path)
    release(path, "b.jpg", np.array([9]), PLACES[:1])
    sql(path, LOST[change])
    with pytest.raises(ArchiveError, match=r"list of|name"):
        load(path)


def test_rows_of_images_that_are_not_there_change_nothing(path: Path, sql: Any, home: Any, same: Any):
    sql(path, ("INSERT INTO release VALUES (?, ?, ?, ?, ?)", forged_release("none.jpg", [5], [[1, 1]])))
    with load(path) as archive:
        assert set(archive) == {"a.jpg", "b.jpg", "all.jpg"}
        same(archive["a.jpg"], home(1, 20))


def test_positions_that_are_not_numbers_are_refused_as_positions(tmp_path: Path, sealed: Any, forge: Any):
    """In memory a NaN says that a position stays home: stored as one, it is damage."""
    image = sealed()
    for width in (2, 4):
        forge(tmp_path / "a.sfm", image, keypoints=np.full((5, width), np.nan, "<f4").tobytes())
        with load(tmp_path / "a.sfm") as archive, pytest.raises(ArchiveError, match="finite"):
            archive["a.jpg"]


# ---------------------------------------------------------------- version 1


@pytest.fixture
def old(tmp_path: Path, sealed: Any, features: Any) -> Path:
    """An archive as versions before this one made it: without the tables of tags and releases."""
    path = tmp_path / "old.sfm"
    save(path, {"a.jpg": sealed(1), "b.jpg": features(seed=2), "empty.jpg": sealed(3, count=0)})
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for statement in ("DROP TABLE tags", "DROP TABLE release", "PRAGMA user_version = 1", "VACUUM"):
            database.execute(statement)
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        ((version,),) = database.execute("PRAGMA user_version")
        return int(version)


def test_an_archive_of_version_1_is_read_and_stays_as_it_is(old: Path, sealed: Any, features: Any, same: Any):
    before = old.read_bytes()
    with load(old) as archive:
        same(archive["a.jpg"], sealed(1))
        same(archive["b.jpg"], features(seed=2))
        same(archive["empty.jpg"], sealed(3, count=0))
        assert not any(header.is_home for header in archive.summary().images)
    assert old.read_bytes() == before
    assert version_of(old) == 1


def test_an_archive_of_version_1_is_upgraded_when_something_is_added(
    old: Path, sealed: Any, features: Any, home: Any, same: Any
):
    with load(old) as reader:
        save(old, {"home.jpg": home(4, 20)}, append=True)
        assert set(reader) == {"a.jpg", "b.jpg", "empty.jpg"}
        same(reader["a.jpg"], sealed(1))
    assert version_of(old) == 2
    assert release(old, "home.jpg") == 3
    with load(old) as archive:
        same(archive["home.jpg"], home(4, 20).with_positions(ROWS, PLACES))
        same(archive["a.jpg"], sealed(1))
        same(archive["b.jpg"], features(seed=2))


def test_two_writers_upgrade_an_archive_once(old: Path, home: Any):
    with ArchiveWriter(old, append=True) as one, ArchiveWriter(old, append=True) as two:
        one.add("one.jpg", home(1, 20))
        two.add("two.jpg", home(2, 20))
        two.release("one.jpg", ROWS, PLACES)
        one.release("two.jpg", ROWS, PLACES)
    with load(old) as archive:
        assert [int(archive[name].is_shown.sum()) for name in ("one.jpg", "two.jpg")] == [3, 3]


def test_a_damaged_archive_of_version_1_is_not_upgraded(old: Path, sql: Any, home: Any):
    sql(old, "CREATE TABLE other (x)")
    before = old.read_bytes()
    for read in (load, lambda path: save(path, {"h.jpg": home()}, append=True)):
        with pytest.raises(ArchiveError):
            read(old)
    assert old.read_bytes() == before


def test_a_new_archive_of_version_1_tables_only_is_refused(path: Path, tmp_path: Path, sql: Any):
    shutil.copy(path, tmp_path / "b.sfm")
    sql(tmp_path / "b.sfm", "PRAGMA user_version = 1")
    with pytest.raises(ArchiveError, match="tables"):
        load(tmp_path / "b.sfm")


# ---------------------------------------------------------------- on the wire


def test_a_frame_is_the_same_before_and_after_a_release(path: Path, home: Any, same: Any):
    """What is sent names a frame by its digest, and holds no positions."""
    before = encode_frame(load(path)["a.jpg"])
    release(path)
    after = encode_frame(load(path)["a.jpg"])
    assert after == before
    same(decode_frame(after), home(1, 20, focal_px=None))
    for place in PLACES:
        assert place.tobytes() not in after


def test_a_query_is_a_frame_of_codes_alone(home: Any, features: Any, same: Any):
    for image in (home(1, 20, shown=6), features(count=7), features(count=7, dim=0, recipe="compress-16")):
        query = image.without_positions()
        back = decode_frame(encode_frame(query))
        same(back, query)
        assert back.tags is None
        assert not back.is_shown.any()


def test_released_positions_take_12_bytes_each_and_come_back():
    data = encode_release(ROWS[::-1], PLACES[::-1])
    assert len(data) == 12 * len(ROWS)
    rows, places = decode_release(data, 20)
    np.testing.assert_array_equal(rows, ROWS)
    np.testing.assert_array_equal(places, PLACES)
    assert [len(part) for part in decode_release(b"", 20)] == [0, 0]


@pytest.mark.parametrize(
    "data",
    [
        encode_release(ROWS, PLACES)[:-1],
        encode_release(ROWS, PLACES) + b"\0",
        encode_release(np.array([3, 3, 8]), PLACES),
        encode_release(np.array([3, 7, 20]), PLACES),
        encode_release(np.array([3, 7, 2**32 - 1]), PLACES),
        encode_release(ROWS, PLACES * np.float32([1, np.nan])),
        encode_release(ROWS, PLACES * np.float32([-np.inf, 1])),
        encode_release(ROWS, PLACES)[12:] + encode_release(ROWS, PLACES)[:12],
    ],
)
def test_hostile_releases_are_refused(data: bytes):
    with pytest.raises(FrameError) as caught:
        decode_release(data, 20)
    assert caught.value.code == "bad_release"
