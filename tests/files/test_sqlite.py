# SPDX-License-Identifier: Apache-2.0
"""SQLite files: made whole, replaced at once, added to in turns, and never trusted."""

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from sfumato.errors import FileError
from sfumato.files import sqlite
from sfumato.files.sqlite import (
    BESIDE,
    IN_USE,
    PAGE_BYTES,
    Database,
    FileKind,
    create,
    open_reader,
    open_writer,
    remove_stale,
    replacement,
)

TABLE = "CREATE TABLE entry (name TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL) STRICT"
NOTES = FileKind("a file of notes", 0x4E4F5445, 1, (TABLE,), "write it again", earlier=(b"OLD!", "this one is old"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with open_writer(tmp_path / "notes", NOTES) as database:
        database.rows("INSERT INTO entry VALUES ('a', X'01')")
    return tmp_path / "notes"


def names(path: Path) -> list[str]:
    with open_reader(path, NOTES) as database:
        return [name for (name,) in database.rows("SELECT name FROM entry ORDER BY name")]


def files(path: Path) -> list[str]:
    return sorted(os.listdir(path.parent))


def test_a_file_appears_whole_and_is_added_to(path: Path):
    with open_writer(path, NOTES) as database:
        with database.transaction():
            database.rows("INSERT INTO entry VALUES ('b', X'02')")
        with pytest.raises(RuntimeError), database.transaction():  # noqa: PT012
            database.rows("INSERT INTO entry VALUES ('c', X'03')")
            raise RuntimeError
        with pytest.raises(FileError, match="UNIQUE"):
            database.rows("INSERT INTO entry VALUES ('a', X'03')")
    assert names(path) == ["a", "b"]
    assert files(path) == ["notes"]


def test_a_pinned_reader_sees_what_it_saw(path: Path):
    with open_reader(path, NOTES) as reader, open_writer(path, NOTES) as writer:
        reader.pin()
        size = reader.size_bytes
        writer.rows("INSERT INTO entry VALUES ('b', zeroblob(100000))")
        assert reader.rows("SELECT count(*) FROM entry") == [(1,)]
        assert (reader.size_bytes, writer.size_bytes > size + 90_000) == (size, True)
        with pytest.raises(FileError):
            reader.rows("DELETE FROM entry")


def test_the_locks_of_an_open_file_survive_others_that_open_it(path: Path):
    """Closing any other handle on a file drops the locks of its process: another one would then remove its -wal."""
    script = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM entry').fetchall(); c.close()"
    )
    with open_writer(path, NOTES) as writer:
        writer.rows("INSERT INTO entry VALUES ('b', X'02')")
        open_reader(path, NOTES).close()
        subprocess.run([sys.executable, "-c", script, str(path)], check=True)
        assert f"{path.name}-wal" in files(path)
        writer.rows("INSERT INTO entry VALUES ('c', X'03')")
        assert names(path) == ["a", "b", "c"]


# ---------------------------------------------------------------- replaced


def test_a_replacement_takes_the_place_at_the_end(path: Path):
    path.chmod(0o640)
    reader, writer = open_reader(path, NOTES), open_writer(path, NOTES)
    reader.pin()
    writer.rows("INSERT INTO entry VALUES ('late', X'02')")
    with replacement(path, NOTES) as new:
        new.rows("INSERT INTO entry VALUES ('new', X'02')")
        assert names(path) == ["a", "late"]
        assert not writer.is_replaced
    assert names(path) == ["new"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert writer.is_replaced
    assert reader.rows("SELECT name FROM entry") == [("a",)]
    with open_writer(path, NOTES) as other:  # the -wal of the old file is not applied to the new one, nor removed by it
        other.rows("INSERT INTO entry VALUES ('more', X'02')")
        reader.close()
        writer.close()
        assert names(path) == ["more", "new"]
    assert names(path) == ["more", "new"]
    assert files(path) == ["notes"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file(path: Path, error: type[BaseException]):
    with pytest.raises(error), replacement(path, NOTES) as new:  # noqa: PT012
        new.rows("INSERT INTO entry VALUES ('new', X'02')")
        raise error
    assert names(path) == ["a"]
    assert files(path) == ["notes"]


def test_anything_may_be_replaced(tmp_path: Path):
    for content in (b"", b"text", b"x" * 20_000):
        (tmp_path / "notes").write_bytes(content)
        (tmp_path / "notes-wal").write_bytes(b"left behind")
        with replacement(tmp_path / "notes", NOTES) as new:
            new.rows("INSERT INTO entry VALUES ('new', X'02')")
        assert names(tmp_path / "notes") == ["new"]
        assert os.listdir(tmp_path) == ["notes"]


def test_what_is_left_behind_is_removed_unless_someone_makes_it(path: Path):
    stale = path.with_name(f".notes.{'0' * 16}.part-wal")
    stale.write_bytes(b"x")
    with replacement(path, NOTES):
        assert not stale.exists()
        stale.write_bytes(b"x")
        remove_stale(path)  # a replacement is at work
        assert stale.exists()
    remove_stale(path)
    assert files(path) == ["notes"]


# ---------------------------------------------------------------- not trusted


def test_files_of_others_are_recognised(tmp_path: Path, path: Path):
    other = FileKind("a file of accounts", 7, 1, (TABLE,), "ask again")
    newer = FileKind("a file of notes", NOTES.mark, 2, (TABLE,), "ask again")
    wider = FileKind("a file of notes", NOTES.mark, 1, (TABLE.replace("value", "other"),), "ask again")
    for kind, word in ((other, "accounts"), (newer, "version 1"), (wider, "tables")):
        with pytest.raises(FileError, match=word):
            open_reader(path, kind)
    old = tmp_path / "old"
    for content, word in ((b"OLD!" * 100, "old"), (b"x" * 400, "notes"), (b"OLD!", "notes")):
        old.write_bytes(content)
        for open_file in (open_reader, open_writer):
            with pytest.raises(FileError, match=word):
                open_file(old, NOTES)
        assert old.read_bytes() == content


def test_a_journal_beside_a_file_is_refused(path: Path):
    """SQLite would roll it back, and could be made to delete another file by it."""
    journal = path.with_name("notes-journal")
    journal.write_bytes(b"x" * 1000)
    for open_file in (open_reader, open_writer):
        with pytest.raises(FileError, match="notes-journal"):
            open_file(path, NOTES)
    assert journal.exists()


@pytest.mark.parametrize("end", BESIDE)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/nowhere", path)])
def test_only_files_stand_beside_a_file(path: Path, end: str, make: Callable[[Path], None]):
    """A pipe would stop SQLite for ever, a link lead it elsewhere."""
    make(path.with_name(f"notes{end}"))
    for open_file in (open_reader, open_writer, replacement):
        with pytest.raises(FileError, match=f"notes{end}"), open_file(path, NOTES):
            pass
    assert files(path) == ["notes", f"notes{end}"]


@pytest.mark.parametrize("write", [open_writer, replacement])
def test_a_link_is_followed_if_this_user_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., AbstractContextManager[Database]]
):
    (tmp_path / "link").symlink_to("notes")
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: os.getuid() + 1)
        for make in (write, create):
            with pytest.raises(FileError, match="link"), make(tmp_path / "link", NOTES):
                pass
    assert os.listdir(tmp_path) == ["link"]
    with write(tmp_path / "link", NOTES):
        pass
    assert names(tmp_path / "notes") == []
    assert sorted(os.listdir(tmp_path)) == ["link", "notes"]


def test_a_file_of_another_length_is_refused(path: Path):
    """SQLite reads zeros where the last page ends early."""
    raw = path.read_bytes()
    for content in (raw[:-5000], raw[:-PAGE_BYTES], raw + bytes(PAGE_BYTES)):
        path.write_bytes(content)
        for open_file in (open_reader, open_writer):
            with pytest.raises(FileError, match="damaged"):
                open_file(path, NOTES)
        assert path.read_bytes() == content
        assert files(path) == ["notes"]


def test_a_file_whose_end_is_in_its_wal_is_read(path: Path):
    """A process that was killed while it copied pages: the first page, with the new length, is copied first."""
    before, wal = path.stat().st_size, path.with_name("notes-wal")
    with open_writer(path, NOTES) as writer:
        writer.rows("INSERT INTO entry VALUES ('b', zeroblob(100000))")
        shutil.copy(wal, path.with_name("copy"))
    raw = path.read_bytes()
    for size in (before, before + PAGE_BYTES):
        path.write_bytes(raw[:size])
        shutil.copy(path.with_name("copy"), wal)
        assert names(path) == ["a", "b"]
        assert path.read_bytes() == raw


@pytest.mark.parametrize("write", [open_writer, replacement])
def test_a_long_name_is_written_or_refused_at_once(
    tmp_path: Path, write: Callable[..., AbstractContextManager[Database]]
):
    path = tmp_path / ("n" * 229)
    with write(path, NOTES):
        pass
    assert names(path) == []
    for length in (248, 255, 256):
        with pytest.raises(FileError, match="long"), write(tmp_path / ("n" * length), NOTES):
            pass
    assert files(path) == [path.name]


# ---------------------------------------------------------------- without the right to write

WRITER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
for line in sys.stdin:
    database.execute("INSERT INTO entry VALUES (?, X'00')", (line,))
    print("done", flush=True)
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A file of root in a folder that others may enter and not write to."""
    if os.getuid() != 0:
        pytest.skip("only root may become somebody else")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        create(Path(folder, "notes"), NOTES)
        os.chmod(Path(folder, "notes"), 0o644)
        yield Path(folder, "notes")


def read_as_nobody(path: Path) -> str:
    """Read the names in a file without any rights; return their number, or the error."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            os.write(sender, str(len(names(path))).encode())
        except FileError as problem:
            os.write(sender, str(problem).encode())
        finally:
            os._exit(0)
    os.close(sender)
    os.waitpid(child, 0)
    with open(receiver, encoding="utf-8") as text:
        return text.read()


def test_a_file_in_use_is_read_if_its_owner_is_trusted(shared: Path):
    """SQLite maps -shm into memory: its owner can end the processes of readers."""
    command = [sys.executable, "-c", WRITER, str(shared)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin
        assert writer.stdout
        for count in range(1, 4):
            writer.stdin.write(f"{count}\n")
            writer.stdin.flush()
            writer.stdout.readline()
            outcome = read_as_nobody(shared)  # before the second transaction SQLite has no place for its lock
            assert outcome == str(count) or (count == 1 and IN_USE in outcome)
        for end in ("", "-wal", "-shm"):
            os.chown(f"{shared}{end}", 1234, 1234)
            assert IN_USE in read_as_nobody(shared)
            os.chown(f"{shared}{end}", 0, 0)
        writer.kill()
    assert read_as_nobody(shared) == "3"
    shared.with_name("notes-shm").unlink()
    assert IN_USE in read_as_nobody(shared)
    assert names(shared) == ["1\n", "2\n", "3\n"]  # root finishes the work
    assert read_as_nobody(shared) == "3"
    shared.chmod(0o600)
    assert "rights" in read_as_nobody(shared)
    assert NOTES.advice not in read_as_nobody(shared)


def tie(path: Path, page: int) -> None:
    """Put a tree of ten levels above a page, all of whose branches lead to the next level: 500 ** 10 visits."""
    raw = bytearray(path.read_bytes())
    start = 100 if page == 1 else 0
    place = (page - 1) * PAGE_BYTES
    leaf = bytearray(raw[place : place + PAGE_BYTES])
    kind = {13: 5, 10: 2}[leaf[start]]
    at = int.from_bytes(leaf[start + 8 : start + 10], "big")  # its first cell: length and record of a key
    key = bytes([1]) if kind == 5 else bytes(leaf[at : at + leaf[at] + 1])
    if start:  # the same cells, under a header at the start of the page
        count = int.from_bytes(leaf[103:105], "big")
        leaf[: 8 + 2 * count] = leaf[100 : 108 + 2 * count]
    number = len(raw) // PAGE_BYTES + 1
    raw += leaf

    def branch(child: int, offset: int) -> bytes:
        cell, many = child.to_bytes(4, "big") + key, 500
        content = PAGE_BYTES - many * len(cell)
        head = (
            bytes([kind, 0, 0])
            + many.to_bytes(2, "big")
            + content.to_bytes(2, "big")
            + b"\0"
            + child.to_bytes(4, "big")
        )
        pointers = b"".join((content + i * len(cell)).to_bytes(2, "big") for i in range(many))
        return bytes(offset) + (head + pointers).ljust(content - offset, b"\0") + cell * many

    for _ in range(9):
        raw += branch(number, 0)
        number += 1
    raw[place + start : place + PAGE_BYTES] = branch(number, start)[start:]
    raw[28:32] = (len(raw) // PAGE_BYTES).to_bytes(4, "big")
    path.write_bytes(raw)


def read_everything(path: Path) -> None:
    with open_reader(path, NOTES) as database:
        database.rows("SELECT count(name || name) FROM entry NOT INDEXED")
        database.rows("SELECT name FROM entry ORDER BY name LIMIT 1000000000")


def test_a_tree_without_end_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite, "MOST_STEPS", 2**20)
    with closing(sqlite3.connect(path)) as connection:
        pages = dict(connection.execute("SELECT name, rootpage FROM sqlite_schema"))
    original = path.read_bytes()
    for page in (1, *pages.values()):
        path.write_bytes(original)
        read_everything(path)
        tie(path, page)
        with pytest.raises(FileError, match="end"):
            read_everything(path)


def test_a_hidden_file_never_follows_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("secrets.token_hex", lambda count: "0" * 16)
    (tmp_path / f".{'0' * 16}.part").symlink_to(tmp_path / "planted")
    with pytest.raises(FileError):
        open_writer(tmp_path / "notes", NOTES)
    assert not (tmp_path / "planted").exists()


def test_a_file_that_another_process_made_meanwhile_stays(path: Path):
    create(path, NOTES)
    assert names(path) == ["a"]
