# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.cli.options import printable, progress_bar, read_labels
from sfumato.errors import FileError


def test_labels_of_a_table(tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text('a.png, person\n\n"b, c.png",cup\n')
    assert read_labels(table) == {"a.png": "person", "b, c.png": "cup"}


@pytest.mark.parametrize("content", [b"a.png\n", b"a.png,x,y\n", b"\xff\xfe,x\n"])
def test_tables_that_are_none(tmp_path, content):
    table = tmp_path / "labels.csv"
    table.write_bytes(content)
    with pytest.raises(FileError, match=r"labels\.csv"):
        read_labels(table)


def test_missing_files_say_what_to_do(tmp_path):
    with pytest.raises(FileError, match="no such"):
        read_labels(tmp_path / "none")


def test_progress_passes_everything_on_and_stays_off_a_pipe(capsys):
    assert list(progress_bar("working", None)([1, 2, 3])) == [1, 2, 3]
    assert list(progress_bar("working", 2)(iter("ab"))) == ["a", "b"]
    assert capsys.readouterr().out == ""


def test_what_is_shown_does_not_act():
    assert printable("a\x1b[2J\nb é") == r"a\x1b[2J\nb é"


def test_a_bar_tells_how_many_a_second(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "150")
    assert list(progress_bar("matching", 3, unit="pairs")("abc")) == ["a", "b", "c"]
    assert "pairs/s" in capsys.readouterr().err
    assert list(progress_bar("matching", 3)("abc")) == ["a", "b", "c"]
    assert "/s" not in capsys.readouterr().err
