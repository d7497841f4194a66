# SPDX-License-Identifier: Apache-2.0
"""Files of a server: its folder, its database, frames, what kills leave; limits; and the address it may listen at."""

import asyncio
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

for library in ("fastapi", "sqlalchemy", "uvicorn"):
    pytest.importorskip(library)

import sqlalchemy as sql  # noqa: E402

from sfumato.errors import FileError, InputError  # noqa: E402
from sfumato.server import blobs, database, places  # noqa: E402
from sfumato.server.database import Store  # noqa: E402
from sfumato.server.limits import Limits, read_limits  # noqa: E402

PLACE = "0123456789abcdef"
OLD = 2 * blobs.OLD_SECONDS


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- folder and database


def test_a_folder_and_its_files_are_their_owners_alone(tmp_path: Path):
    before = os.umask(0o022)
    try:
        store = Store(tmp_path / "new" / "data")
        places.make_place(store, PLACE, 10)
        assert mode_of(store.folder) == 0o700
        assert {mode_of(path) for path in store.folder.iterdir()} == {0o600}
        store.folder.chmod(0o755)
        Store(store.folder)
        assert mode_of(store.folder) == 0o700
    finally:
        os.umask(before)


def test_a_folder_that_others_can_change_is_refused(tmp_path: Path):
    tmp_path.chmod(0o777)
    with pytest.raises(FileError):
        Store(tmp_path)


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path):
    tmp_path.chmod(0o755)
    (tmp_path / "letter.txt").touch()
    with pytest.raises(FileError):
        Store(tmp_path)
    assert mode_of(tmp_path) == 0o755  # it is not ours to close
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    (tmp_path / "letter.txt").unlink()
    for name in ("lost+found", "cache", ".cache"):
        (tmp_path / name).mkdir()
    Store(tmp_path).close()
    assert mode_of(tmp_path) == 0o700
    (tmp_path / "letter.txt").touch()  # beside a database it is no matter
    Store(tmp_path).close()


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(database.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(FileError):
        Store(tmp_path)


def test_a_database_of_another_version_or_none_is_refused(tmp_path: Path):
    store = Store(tmp_path / "data")
    with store.write() as connection:
        connection.execute(database.facts.update().values(value="2"))
    store.close()
    with pytest.raises(FileError):
        Store(tmp_path / "data")
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    (other / database.FILE).write_bytes(b"no database" * 100)
    with pytest.raises(FileError):
        Store(other)


def test_what_was_removed_is_not_in_the_files(store: Store):
    places.make_place(store, PLACE, 10)
    with store.write() as connection:
        connection.execute(places.images.insert().values(
            place=PLACE, name="abad1dea" * 4, digest="c0ffee11" * 8, layout="", count=0, bytes=0, recipe="",
            extractor="", made=0.0))  # fmt: skip
    places.delete_place(store, PLACE)
    stored = b"".join(path.read_bytes() for path in store.folder.iterdir())
    assert b"abad1dea" not in stored
    assert b"c0ffee11" not in stored


def test_writers_wait_for_each_other(store: Store):
    places.make_place(store, PLACE, 10**6)

    async def write() -> None:
        names = [f"{number:016x}" for number in range(40)]
        await asyncio.gather(*(asyncio.to_thread(places.make_place, store, name, 10**6) for name in names))

    asyncio.run(write())
    assert len(places.list_places(store)) == 41


# --- frames


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def broken() -> AsyncIterator[bytes]:
    yield b"begin"
    raise ConnectionError


def test_bodies_are_written_as_they_come(tmp_path: Path):
    path = blobs.upload_path(tmp_path, PLACE)
    assert asyncio.run(blobs.receive(chunks(b"ab", b"", b"cd"), path, 4)) == 4
    assert path.read_bytes() == b"abcd"
    assert mode_of(path) == 0o600


def test_a_body_that_is_too_large_or_breaks_off_leaves_nothing(tmp_path: Path):
    path = blobs.upload_path(tmp_path, PLACE)
    with pytest.raises(blobs.TooLarge):
        asyncio.run(blobs.receive(chunks(b"abc", b"de"), path, 4))
    with pytest.raises(ConnectionError):
        asyncio.run(blobs.receive(broken(), path, 4000))
    assert not list(path.parent.iterdir())


def test_frames_of_places_are_apart(tmp_path: Path):
    for place in (PLACE, "feedfeed"):
        upload = blobs.upload_path(tmp_path, place)
        upload.write_bytes(b"frame")
        blobs.keep_frame(tmp_path, place, "0" * 64, upload)
    assert blobs.read_frame(tmp_path, PLACE, "0" * 64) == b"frame"
    blobs.drop_place(tmp_path, PLACE)
    assert blobs.read_frame(tmp_path, "feedfeed", "0" * 64) == b"frame"
    with pytest.raises(FileError):
        blobs.read_frame(tmp_path, PLACE, "0" * 64)


def test_a_sweep_takes_what_is_old_and_nobodys(tmp_path: Path):
    kept = [blobs.frame_path(tmp_path, PLACE, "aa" * 32), blobs.map_path(tmp_path, PLACE, "job-1", "points.bin"),
            tmp_path / "work" / "open" / "images.sfm", blobs.matches_path(tmp_path, PLACE)]  # fmt: skip
    lost = [
        blobs.frame_path(tmp_path, PLACE, "bb" * 32),
        blobs.frame_path(tmp_path, "feedfeed", "aa" * 32),
        blobs.map_path(tmp_path, PLACE, "job-2", "points.bin"),
        blobs.map_path(tmp_path, PLACE, "job-1.part", "points.bin"),
        tmp_path / "work" / "ended" / "images.sfm",
        tmp_path / "uploads" / "x.part",
        blobs.matches_path(tmp_path, "feedfeed"),
        blobs.evidence_path(tmp_path, PLACE, "ended"),
    ]
    for path in (*kept, *lost):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    rows = {(PLACE, "aa" * 32)}, {(PLACE, "job-1")}, {"open"}
    assert blobs.sweep(tmp_path, *rows) == 0  # all is young
    assert blobs.sweep(tmp_path, *rows, now=time.time() + OLD) == len(lost)
    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in lost)
    blobs.sweep(tmp_path, *rows, now=time.time() + OLD)
    assert not (tmp_path / "frames" / "feedfeed").exists()
    assert not (tmp_path / "evidence" / PLACE).exists()


def test_the_last_evidence_of_a_place_is_kept(tmp_path: Path):
    for number in range(blobs.EVIDENCE_KEPT + 3):
        for place in (PLACE, "feedfeed"):
            path = tmp_path / "evidence.new"
            path.touch()
            os.utime(path, (number, number))
            blobs.keep_evidence(tmp_path, place, f"{number:02}", path)
    kept = [f"{number:02}" for number in range(3, blobs.EVIDENCE_KEPT + 3)]
    for place in (PLACE, "feedfeed"):
        assert sorted(path.name for path in (tmp_path / "evidence" / place).iterdir()) == kept


def test_a_full_disk_is_seen_through_other_errors():
    full = OSError(28, "No space left on device")
    other = FileError("cannot be written")
    other.__cause__ = full
    assert blobs.is_disk_full(other)
    assert blobs.is_disk_full(sql.exc.OperationalError("x", {}, Exception("database or disk is full")))
    assert not blobs.is_disk_full(OSError(2, "No such file"))
    assert not blobs.is_disk_full(None)


# --- limits


def test_limits_are_read_and_checked(tmp_path: Path):
    path = tmp_path / "limits.toml"
    path.write_text("[limits]\nimages = 7\nquery_seconds = 2\n")
    assert read_limits(path) == Limits(images=7, query_seconds=2)
    assert read_limits(None).facts()["images"] == 10_000
    for text in ("[limits]\nimagess = 7\n", "[limit]\nimages = 7\n", "[limits]\nimages = 'x'\n",
                 "[limits]\nimages = 1.5\n", "[limits]\nimages = -1\n", "[limits]\nimages = true\n"):  # fmt: skip
        path.write_text(text)
        with pytest.raises(InputError):
            read_limits(path)
    path.write_text("[limits")
    with pytest.raises(FileError):
        read_limits(path)
    with pytest.raises(FileError):
        read_limits(tmp_path / "gone.toml")


# --- the entry point, in a process of its own: its imports put a guard in place


ADDRESSES = """
import sys
from sfumato.errors import InputError
from sfumato.server.__main__ import check_address
for line in sys.stdin:
    host, tls, proxy = line.split()
    try:
        check_address(host, has_tls=tls == "1", behind_proxy=proxy == "1")
    except InputError:
        print("refused")
    else:
        print("taken")
"""
STARTS = """
import sys
from sfumato.server.__main__ import main
for line in sys.stdin:
    sys.argv = ["serve", *line.split()]
    print(main(), flush=True)
"""


def test_a_server_listens_to_this_machine_alone_without_tls():
    cases = {
        "127.0.0.1 0 0": "taken", "127.9.9.9 0 0": "taken", "::1 0 0": "taken", "localhost 0 0": "taken",
        "0.0.0.0 0 0": "refused", ":: 0 0": "refused", "192.168.1.2 0 0": "refused", "maps.example 0 0": "refused",
        "localhost.example 0 0": "refused", "0.0.0.0 1 0": "taken", "0.0.0.0 0 1": "taken",
    }  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-c", ADDRESSES], input="\n".join(cases), capture_output=True, text=True, check=True
    )
    assert dict(zip(cases, ended.stdout.split(), strict=True)) == cases


def test_a_server_that_cannot_start_says_so_in_a_line(tmp_path: Path):
    (tmp_path / "bad.pem").write_text("no certificate")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.jpg").touch()
    options = ["--host 0.0.0.0", "--tls-cert cert.pem", "--tls-cert gone.pem --tls-key gone.pem", "--engines 0",
               "--tls-cert bad.pem --tls-key bad.pem", "--data photos", "--config gone.toml",
               "--host 203.0.113.7 --behind-proxy"]  # fmt: skip
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        lines = [f"--data {tmp_path / 'data'} {words}" for words in [*options, f"--port {taken.getsockname()[1]}"]]
        ended = subprocess.run(
            [sys.executable, "-c", STARTS], input="\n".join(lines), capture_output=True, text=True, check=False,
            cwd=tmp_path, timeout=60,
        )  # fmt: skip
    assert ended.stdout.split() == ["2"] * len(lines)
    assert len(ended.stderr.splitlines()) == len(lines)
