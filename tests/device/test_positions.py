# SPDX-License-Identifier: Apache-2.0
"""Positions that stay home: a private file beside the archive, which no kill makes incomplete."""

import os
import shutil
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest

import sfumato
from sfumato.concealment import order_rows
from sfumato.concealment.rows import to_grid
from sfumato.device import conceal_photos, own_keypoints, positions_path, release_positions
from sfumato.device.positions import PositionsWriter, open_positions
from sfumato.errors import ArchiveError, FileError, InputError

PHOTO = "0123456789abcdef" * 2


def test_the_file_is_beside_the_archive_and_for_its_owner_alone(device):
    assert positions_path(device.archive) == device.positions
    assert stat.S_IMODE(device.positions.stat().st_mode) == 0o600
    assert stat.S_IMODE(device.archive.stat().st_mode) != 0o600, "what others may read"


def test_it_is_private_in_an_open_folder_and_while_it_is_written(tmp_path, scene, make_device):
    previous = os.umask(0)
    try:
        with PositionsWriter(tmp_path / "b.sfm") as kept:
            kept.keep("a.jpg", PHOTO, np.zeros((3, 2), np.float32))
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        assert set(modes) >= {"b.sfm.positions", "b.sfm.positions-wal"}
        assert set(modes.values()) == {0o600}
    finally:
        os.umask(previous)


def test_it_holds_the_positions_of_the_rows_of_the_archive_on_the_grid(device):
    with sfumato.load(device.archive) as images, open_positions(device.archive) as kept:
        for name, clear in device.scene.features.items():
            places = kept.read(name, images[name].tags.photo)
            np.testing.assert_array_equal(places, to_grid(clear.keypoints)[order_rows(clear, secret=device.key)])
            assert kept.read(name, PHOTO) is None
            assert kept.read("none.jpg", images[name].tags.photo) is None


def test_an_archive_holds_no_position_before_a_release(device):
    """Not one pair of numbers of the grid is in its bytes."""
    content = device.archive.read_bytes()
    with sfumato.load(device.archive) as images, open_positions(device.archive) as kept:
        for name in images:
            for place in kept.read(name, images[name].tags.photo)[:200]:
                assert place.tobytes() not in content


def test_an_archive_with_all_positions_has_no_such_file(tmp_path, scene, make_device):
    made = make_device(tmp_path, scene, positions=True)
    assert not made.positions.exists()
    with pytest.raises(FileError, match="--photos"):
        open_positions(made.archive)


@pytest.mark.parametrize("damage", ["positions = zeroblob(length(positions))", "photo = 'x'", "checksum = ''"])
def test_damage_is_noticed(device, damage):
    import sqlite3
    from contextlib import closing

    with sfumato.load(device.archive) as images:
        photo = images["0.jpg"].tags.photo
    with closing(sqlite3.connect(device.positions, isolation_level=None)) as database:
        database.execute(f"UPDATE photo SET {damage} WHERE name = '0.jpg'")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with open_positions(device.archive) as kept:
        if "photo" in damage:
            assert kept.read("0.jpg", photo) is None
        with pytest.raises(FileError, match=r"0\.jpg"):
            kept.read("0.jpg", "x" if "photo" in damage else photo)
    if "photo" not in damage:
        before = device.archive.read_bytes()
        with pytest.raises(FileError, match=r"0\.jpg"):
            release_positions(device.archive, device.matches, secret=device.key)
        assert device.archive.read_bytes() == before


def test_other_files_in_its_place_are_refused(device, tmp_path):
    for content in (b"", b"x" * 500, device.archive.read_bytes()):
        device.positions.write_bytes(content)
        with pytest.raises(FileError):
            release_positions(device.archive, device.matches, secret=device.key)
    assert not any(map(len, device.shown().values()))


def test_keypoints_of_a_query_are_those_of_its_device(device):
    keypoints = own_keypoints(device.archive)
    with sfumato.load(device.archive) as images:
        image = images["1.jpg"]
        assert keypoints("1.jpg", image).shape == (len(image), 2)
        device.positions.unlink()
        with pytest.raises(InputError, match="positions"):
            keypoints("1.jpg", image)


# --- nothing is lost


def test_photos_that_come_later_are_kept_too(tmp_path, scene, make_scene, make_device):
    made = make_device(tmp_path, make_scene(photos=2))
    with sfumato.load(made.archive) as images:
        before = {name: images[name].code.packed.tobytes() for name in images}
    sfumato.features.write_hloc(tmp_path / "more.h5", scene.features.items())
    outcome = conceal_photos(tmp_path / "more.h5", made.archive, secret=made.key)
    assert (outcome.images, outcome.skipped) == (2, 2)
    with sfumato.load(made.archive) as images, open_positions(made.archive) as kept:
        assert {name: images[name].code.packed.tobytes() for name in before} == before
        assert all(kept.read(name, images[name].tags.photo) is not None for name in images)


def test_an_archive_that_is_made_anew_and_fails_leaves_the_positions_of_the_old_one(device, monkeypatch):
    """Positions of the new one are beside them by then."""

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("sfumato.store.writer.ArchiveWriter.add", fail)
    with pytest.raises(KeyboardInterrupt):
        conceal_photos(device.photos, device.archive, secret=device.key, place="hall", overwrite=True)
    monkeypatch.undo()
    assert release_positions(device.archive, device.matches, secret=device.key).share > 0.5


KILLED = """
import os, signal, sys
from sfumato.device import conceal_photos
from sfumato.store import ArchiveWriter

add, added = ArchiveWriter.add, []

def killed(writer, name, features):
    if len(added) == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
    added.append(name)
    add(writer, name, features)

ArchiveWriter.add = killed
conceal_photos(sys.argv[1], sys.argv[2], secret=bytes.fromhex(sys.argv[3]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_kill_between_the_two_files_loses_no_position(device, tmp_path, count):
    """Positions are written first: what the archive has, the device has positions of."""
    place = tmp_path / "killed"
    place.mkdir()
    archive = place / "private.sfm"
    words = [sys.executable, "-c", KILLED, str(device.photos), str(archive), device.key.hex(), str(count)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    if archive.exists():
        with sfumato.load(archive) as images, open_positions(archive) as kept:
            assert len(images) == count
            assert all(kept.read(name, images[name].tags.photo) is not None for name in images)
    outcome = conceal_photos(device.photos, archive, secret=device.key)
    assert (outcome.images, outcome.skipped) == (4 - count, count)
    released = release_positions(archive, device.matches, secret=device.key)
    assert released.shown == release_positions(device.archive, device.matches, secret=device.key).shown


KILLED_RELEASE = """
import os, signal, sys
from sfumato.device import release_positions
from sfumato.store import ArchiveWriter

release, done = ArchiveWriter.release, []

def killed(writer, *rows):
    if len(done) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    done.append(rows)
    return release(writer, *rows)

ArchiveWriter.release = killed
release_positions(sys.argv[1], sys.argv[2], secret=bytes.fromhex(sys.argv[3]))
"""


@pytest.mark.slow
def test_a_release_that_was_killed_is_done_by_the_next(device, tmp_path):
    shutil.copy(device.archive, tmp_path / "whole.sfm")
    shutil.copy(device.positions, tmp_path / "whole.sfm.positions")
    whole = release_positions(tmp_path / "whole.sfm", device.matches, secret=device.key)
    words = [sys.executable, "-c", KILLED_RELEASE, str(device.archive), str(device.matches), device.key.hex()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert sum(len(rows) > 0 for rows in device.shown().values()) == 2
    again = release_positions(device.archive, device.matches, secret=device.key)
    assert again.shown == whole.shown
    assert sum(again.new.values()) < sum(whole.new.values())


# --- lost, and made again from the photos


def test_a_lost_file_comes_again_from_the_photos(device, tmp_path):
    before = device.positions.read_bytes()
    with sfumato.load(device.archive) as images:
        photos = {name: images[name].tags.photo for name in images}
    with open_positions(device.archive) as kept:
        known = {name: kept.read(name, photo) for name, photo in photos.items()}
    device.positions.unlink()
    with pytest.raises(FileError, match="--photos"):
        release_positions(device.archive, device.matches, secret=device.key)
    outcome = release_positions(device.archive, device.matches, secret=device.key, photos=device.photos)
    assert outcome.share > 0.5
    assert stat.S_IMODE(device.positions.stat().st_mode) == 0o600
    with open_positions(device.archive) as kept:
        for name, photo in photos.items():
            np.testing.assert_array_equal(kept.read(name, photo), known[name])
    assert len(device.positions.read_bytes()) <= 2 * len(before)


def test_other_photos_are_refused_and_give_no_positions(device, make_scene, tmp_path):
    """Other descriptors, other positions, and photos under another key: none of them is the photo of the archive."""
    device.positions.unlink()
    sfumato.features.write_hloc(tmp_path / "other.h5", make_scene(seed=7).features.items())
    with pytest.raises(FileError, match=r"other\.h5"):
        release_positions(device.archive, device.matches, secret=device.key, photos=tmp_path / "other.h5")
    shaken = {
        name: sfumato.Features(one.keypoints + np.float32([0.5, 0, 0, 0]), one.descriptors, one.extractor, (640, 480))
        for name, one in device.scene.features.items()
    }
    sfumato.features.write_hloc(tmp_path / "shaken.h5", shaken.items())
    with pytest.raises(FileError, match=r"shaken\.h5"):
        release_positions(device.archive, device.matches, secret=device.key, photos=tmp_path / "shaken.h5")
    assert not device.positions.exists()
    assert not any(map(len, device.shown().values()))


def test_some_photos_are_enough_for_their_own_positions(device, tmp_path):
    device.positions.unlink()
    some = [(name, one) for name, one in device.scene.features.items() if name != "3.jpg"]
    sfumato.features.write_hloc(tmp_path / "some.h5", some)
    outcome = release_positions(device.archive, device.matches, secret=device.key, photos=tmp_path / "some.h5")
    assert set(outcome.rows) == {"0.jpg", "1.jpg", "2.jpg"}
    assert all(outcome.shown[name] > 100 for name in outcome.rows)
    assert len(device.shown()["3.jpg"]) == 0


def test_photos_that_are_not_there_are_refused(device, tmp_path):
    with pytest.raises((FileError, ArchiveError)):
        release_positions(device.archive, device.matches, secret=device.key, photos=tmp_path / "none")
