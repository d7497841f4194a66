# SPDX-License-Identifier: Apache-2.0
"""Files and folders appear whole or not at all."""

import os

import pytest

from sfumato.errors import FileError
from sfumato.files.atomic import new_folder, write_file, write_text


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
