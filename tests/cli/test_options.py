# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest

from sfumato.cli.options import make_key, own_key_path, read_labels, read_secret
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
    with pytest.raises(FileError, match="labels"):
        read_labels(tmp_path / "none")
    with pytest.raises(FileError, match="32"):
        read_secret(tmp_path / "none")


@pytest.mark.parametrize("key", [b"password", b"passwordpassword1", b"correct horse battery staple and a donkey\n"])
def test_a_guessable_key_is_refused(tmp_path, key):
    (tmp_path / "key").write_bytes(key)
    with pytest.raises(FileError, match="077"):
        read_secret(tmp_path / "key")


def test_a_key_that_others_may_read_is_told(tmp_path, capsys):
    key = tmp_path / "key"
    key.write_bytes(os.urandom(32))
    for mode, told in ((0o600, ""), (0o400, ""), (0o644, f"mode 0644): chmod 600 {key}"), (0o640, "mode 0640")):
        key.chmod(mode)
        assert len(read_secret(key)) == 32
        warned = capsys.readouterr().err
        assert told in warned
        assert bool(warned) == bool(told)


def test_what_is_no_file_or_too_large_is_no_key(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place in ("/dev/zero", tmp_path / "pipe"):
        with pytest.raises(FileError, match="plain"):
            read_secret(Path(place))
    with pytest.raises(FileError, match=r"cannot read the device key|a plain file"):
        read_secret(tmp_path)
    (tmp_path / "large").write_bytes(os.urandom(2**20 + 1))
    with pytest.raises(FileError, match="no device key"):
        read_secret(tmp_path / "large")


def test_a_new_key_is_for_its_owner_and_never_written_over(tmp_path, monkeypatch):
    monkeypatch.delenv("SFUMATO_KEY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    place = own_key_path()
    assert place == tmp_path / "sfumato" / "device.key"
    make_key(place)
    assert place.stat().st_mode & 0o777 == 0o600
    made = read_secret(place)
    with pytest.raises(FileError, match="write"):
        make_key(place)
    assert read_secret(place) == made
