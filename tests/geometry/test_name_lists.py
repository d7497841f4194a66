# SPDX-License-Identifier: Apache-2.0
import os

import pytest

from sfumato.errors import FileError, InputError
from sfumato.geometry.cameras import _read_list, _write_list, numbers


def two_numbers(words):
    if len(words) != 2:
        raise InputError(f"expected two numbers, got {len(words)}")
    return numbers(words, "test")


def test_what_is_written_comes_back_in_its_order(tmp_path):
    path = tmp_path / "list.txt"
    _write_list(path, {"b/2.jpg": ["1", "2"], "a.jpg": ["3", "4.5"]}, "name x y")
    assert path.read_text() == "# name x y\nb/2.jpg 1 2\na.jpg 3 4.5\n"
    assert _read_list(path, "things", two_numbers) == {"b/2.jpg": (1.0, 2.0), "a.jpg": (3.0, 4.5)}
    assert [*tmp_path.iterdir()] == [path]


def test_comments_empty_lines_marks_and_carriage_returns(tmp_path):
    path = tmp_path / "list.txt"
    path.write_bytes(b"\xef\xbb\xbf# name\r\n\r\n  a.jpg 1 2  \r\n#b 1 2\nc.jpg 1e3 -2")
    assert _read_list(path, "things", two_numbers) == {"a.jpg": (1.0, 2.0), "c.jpg": (1000.0, -2.0)}


def test_every_wrong_line_is_named_at_once(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("a 1 2\na 1 2\nb 1\nc x 2\nd 1 2\n")
    with pytest.raises(FileError) as caught:
        _read_list(path, "things", two_numbers)
    for told in (
        "line 2: 'a' was named before, in line 1",
        "line 3: expected two",
        "line 4: test: 'x' is not a number",
    ):
        assert told in str(caught.value)
    assert "line 5" not in str(caught.value)


def test_many_wrong_lines_are_counted(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("".join(f"image{i}\n" for i in range(20)))
    with pytest.raises(FileError, match="12"):
        _read_list(path, "things", two_numbers)


@pytest.mark.parametrize(("content", "message"), [(b"\xff\xfe\x00", "not a text"), (None, "check the path")])
def test_what_is_no_text_or_not_there(tmp_path, content, message):
    path = tmp_path / "list.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FileError, match=message):
        _read_list(path, "things", two_numbers)


@pytest.mark.parametrize("name", ["a b.jpg", "#a.jpg", "", " a.jpg", "a\n.jpg", "a\u2003b"])
def test_names_that_no_list_can_hold(tmp_path, name):
    with pytest.raises(InputError, match="listed"):
        _write_list(tmp_path / "list.txt", {name: ["1"]}, "x")
    assert not [*tmp_path.iterdir()]


def test_a_list_that_can_not_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "list.txt"
    path.write_text("old\n")

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="space left"):
        _write_list(path, {"a": ["1"]}, "x")
    assert path.read_text() == "old\n"
    assert [*tmp_path.iterdir()] == [path]
