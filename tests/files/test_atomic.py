# SPDX-License-Identifier: Apache-2.0
"""Files and folders appear whole or not at all."""

import os
import time

import pytest

from sfumato.errors import FileError
from sfumato.files import atomic
from sfumato.files.atomic import (
    new_file,
    new_folder,
    open_text,
    read_bytes,
    read_text,
    write_file,
    write_text,
)


def test_what_can_not_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_text(path, "old")

    def fail(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(FileError, match="space left"):
        write_file(path, fail)
    with pytest.raises(KeyboardInterrupt):
        write_file(path, lambda file: (_ for _ in ()).throw(KeyboardInterrupt))
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_folders_are_made_and_links_followed(tmp_path):
    with pytest.raises(FileError, match="written"):
        write_file(tmp_path / "deep" / "file", b"new")
    write_file(tmp_path / "deep" / "file", b"new", with_folder=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "file")
    write_text(tmp_path / "link", "newer")
    assert (tmp_path / "deep" / "file").read_bytes() == b"newer"
    assert (tmp_path / "link").is_symlink()


def test_who_may_read_a_file_may_read_the_next_one_and_nobody_else(tmp_path):
    path = tmp_path / "file"
    write_text(path, "first")
    path.chmod(0o600)
    write_text(path, "second")
    assert path.read_text() == "second"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("trouble", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_folder_appears_whole_or_not_at_all(tmp_path, trouble):
    def stopped():
        with new_folder(tmp_path / "made") as temporary:
            (temporary / "half").write_text("half")
            raise trouble

    with pytest.raises((KeyboardInterrupt, FileError)):
        stopped()
    assert not list(tmp_path.iterdir())
    with new_folder(tmp_path / "made") as temporary:
        (temporary / "all").write_text("all")
    assert (tmp_path / "made" / "all").read_text() == "all"
    assert os.listdir(tmp_path) == ["made"]


def test_what_is_in_the_way_is_left_alone(tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "mine").write_text("mine")
    with pytest.raises(FileError, match="already there"), new_folder(tmp_path / "made"):
        pass
    assert (tmp_path / "made" / "mine").read_text() == "mine"
    with pytest.raises(FileError, match="written"), new_folder(tmp_path / "made" / "mine" / "deep"):
        pass


def mode(path):
    return path.stat().st_mode & 0o777


@pytest.fixture
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize(("old", "private", "expected"), [
    (None, False, 0o644), (None, True, 0o600), (0o600, False, 0o600), (0o640, True, 0o640), (0o644, True, 0o644),
])  # fmt: skip
def test_a_file_is_its_owners_until_it_is_finished(tmp_path, usual_umask, old, private, expected):
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(b"old")
        path.chmod(old)
    with new_file(path, private=private) as (file, part):
        assert mode(part) == 0o600
        assert part.name not in (".file.part", "file.part")
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert mode(path) == expected
    assert os.listdir(tmp_path) == ["file"]


def test_unfinished_files_are_never_written_through_a_link(tmp_path, monkeypatch):
    (tmp_path / "precious").write_text("mine")
    monkeypatch.setattr(atomic.secrets, "token_hex", lambda size: "0" * 16)  # as if somebody had foreseen it
    (tmp_path / f".file.{'0' * 16}.part").symlink_to(tmp_path / "precious")
    with pytest.raises(FileError):
        write_file(tmp_path / "file", b"new")
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_link_that_another_user_made_is_refused(tmp_path, monkeypatch):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "file").symlink_to(tmp_path / "precious")
    monkeypatch.setattr(os, "geteuid", lambda: (tmp_path / "precious").stat().st_uid + 1)
    with pytest.raises(FileError, match="link"):
        write_file(tmp_path / "file", b"new")
    assert (tmp_path / "precious").read_text() == "mine"


def test_only_files_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(FileError, match="not a"):
            write_file(tmp_path / name, b"new")
    assert sorted(os.listdir(tmp_path)) == ["folder", "pipe"]


def test_what_killed_processes_left_is_removed_and_what_is_being_made_is_not(tmp_path):
    path = tmp_path / "x.index"
    leftover, young, others = (tmp_path / f".{name}.{digit * 16}.part" for name, digit in zip(
        ("x.index", "x.index", "y.index"), "abc", strict=True
    ))  # fmt: skip
    for part in (leftover, young, others):
        part.write_bytes(b"half")
    for part in (leftover, others):
        os.utime(part, (0, time.time() - 3600))
    with new_file(path) as (_, part):
        os.utime(part, (0, time.time() - 3600))
        write_file(path, b"new")
        assert sorted(os.listdir(tmp_path)) == sorted((path.name, young.name, others.name, part.name))


def test_long_names_have_unfinished_files_of_their_own(tmp_path):
    """Two names that begin alike: what is left of one is not removed for the other."""
    paths = [tmp_path / ("n" * 254 + digit) for digit in "01"]
    starts = {atomic.part_start(path) for path in paths}
    assert len(starts) == 2
    assert max(map(len, starts)) < 210
    for path in paths:
        write_file(path, b"new")
    assert sorted(os.listdir(tmp_path)) == sorted(path.name for path in paths)


@pytest.mark.parametrize("read", [lambda path: read_bytes(path, 10), lambda path: read_text(path, largest=10)])
def test_only_files_of_a_reasonable_size_are_read(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(bytes(11))
    for place in ("/dev/zero", tmp_path / "pipe", tmp_path, tmp_path / "large", tmp_path / "none", "a\0b"):
        with pytest.raises(FileError, match=r"read|no such"):
            read(place)
    (tmp_path / "small").write_bytes(b"small")
    assert len(read(tmp_path / "small")) == 5


def test_texts_have_one_encoding_and_any_ends_of_lines(tmp_path):
    (tmp_path / "text").write_bytes("\ufeffä\r\nb\n".encode())
    assert read_text(tmp_path / "text") == "ä\nb\n"
    (tmp_path / "text").write_bytes(b"\xff\n")
    with pytest.raises(FileError, match="UTF-8"):
        read_text(tmp_path / "text")
    with open_text(tmp_path / "text", errors="surrogateescape") as lines:
        assert list(lines) == ["\udcff\n"]
