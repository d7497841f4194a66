# SPDX-License-Identifier: Apache-2.0
import hashlib
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sfumato
from sfumato.concealment.keys import (
    PersonKey,
    device_key,
    device_key_path,
    key_for_gallery,
    new_key,
    person_key,
    read_key,
)
from sfumato.errors import FileError, NewKeyWarning, WeakSecretWarning


def test_a_missing_file_says_what_to_do(tmp_path):
    with pytest.raises(FileError, match="32"):
        read_key(tmp_path / "none")


def test_a_guessable_key_is_refused(tmp_path):
    for key in (b"password", b"0123456789abcdef0123456789abcdef", b"correct horse battery staple and a donkey\n", b""):
        (tmp_path / "key").write_bytes(key)
        with pytest.raises(FileError, match="077"):
            read_key(tmp_path / "key")


def test_a_key_that_others_may_read_warns(tmp_path, recwarn):
    key = tmp_path / "key"
    key.write_bytes(os.urandom(32))
    for mode in (0o600, 0o400):
        key.chmod(mode)
        assert len(read_key(key)) == 32
    assert not recwarn
    for mode in (0o644, 0o640):
        key.chmod(mode)
        with pytest.warns(WeakSecretWarning, match=rf"mode {mode:04o}\): chmod 600 {key}"):
            assert len(read_key(key)) == 32


def test_what_is_no_file_or_too_large_is_no_key(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place in ("/dev/zero", tmp_path / "pipe", tmp_path):
        with pytest.raises(FileError, match="not a"):
            read_key(Path(place))
    (tmp_path / "large").write_bytes(os.urandom(2**20 + 1))
    with pytest.raises(FileError, match=str(2**20)):
        read_key(tmp_path / "large")


def test_a_new_key_is_for_its_owner_and_never_written_over(tmp_path, monkeypatch):
    monkeypatch.delenv("SFUMATO_KEY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = device_key_path()
    assert path == tmp_path / "sfumato" / "device.key"
    with pytest.warns(NewKeyWarning, match=r"device\.key"):
        key = sfumato.device_key()
    assert path.stat().st_mode & 0o777 == 0o600
    assert key == path.read_bytes() == device_key() == device_key(path)
    assert len({new_key(), new_key(), key}) == 3
    with pytest.raises(FileError, match="--secret-file"):
        device_key(path / "below")


def test_an_empty_file_is_no_key_and_is_replaced_by_one(tmp_path):
    path = tmp_path / "device.key"
    path.touch(0o644)
    with pytest.warns(NewKeyWarning):
        key = device_key(path)
    assert len(key) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert device_key(path) == key


def test_who_needs_a_key_at_the_same_time_gets_the_same(tmp_path):
    path = tmp_path / "settings" / "device.key"
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(device_key, [path] * 8))
    assert keys == {path.read_bytes()}
    assert os.listdir(path.parent) == ["device.key"]


# --- keys of people


def test_every_name_has_a_file_of_its_own_in_the_folder_of_the_gallery(tmp_path, monkeypatch):
    monkeypatch.setenv("SFUMATO_FACE_KEYS", str(tmp_path))
    long = "\u00fc" * 200
    digest = hashlib.blake2b(long.encode(), digest_size=16).hexdigest()
    names = ["alice", "alice.key", "alice.key.next", "..", ".", "../alice", "a/b", "a\\b", "%2E%2E", "a b", "Zo\u00eb",
             "\u5f20\u4f1f", "x" * 200, "x" * 300, long, digest, f"%long-{digest}", "-rf", "~"]  # fmt: skip
    places = [person_key(bytes(16), name) for name in names]
    paths = [path for place in places for path in (place.path, place.next_path)]
    assert len(set(paths)) == 2 * len(names)
    for path in paths:
        assert path.resolve().parent == tmp_path / bytes(16).hex()
        assert len(os.fsencode(path.name)) < 255
        assert not path.name.startswith(".")
    for place in places:
        key = place.begin()
        assert len(key) == 32
        place.finish(key)
    assert len({place.path.read_bytes() for place in places}) == len(names)


def test_keys_of_people_are_below_the_settings(tmp_path, monkeypatch):
    monkeypatch.delenv("SFUMATO_FACE_KEYS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    place = person_key(b"\x01\x02", "alice")
    assert place.path == tmp_path / "sfumato" / "faces" / "0102" / "alice.key"
    assert place.is_free
    assert place.read_all() == []
    key = place.begin()
    abandoned = place.begin()  # an attempt that does not end
    assert abandoned != key
    assert place.next_path.stat().st_mode & 0o777 == 0o600
    assert place.read_all() == [abandoned, key]
    place.finish(key)
    place.finish(key)
    assert place.read_all() == [key, abandoned]
    assert place.path.stat().st_mode & 0o777 == 0o600
    later = place.begin()
    assert place.read_all() == [key, later, abandoned]
    place.remove()
    place.remove()
    assert place.is_free


def test_capitals_have_files_of_their_own_where_they_are_small_letters(tmp_path, monkeypatch):
    monkeypatch.setenv("SFUMATO_FACE_KEYS", str(tmp_path))
    names = ["alice", "Alice", "ALICE", "\u00e9", "\u00c9", "%41lice"]
    paths = [str(person_key(bytes(16), name).path) for name in names]
    assert len({path.lower() for path in paths}) == len(names)


@pytest.mark.parametrize("keeps_old", [False, True])
def test_a_key_in_a_file_that_was_open_to_others_is_its_owners(tmp_path, keeps_old):
    place = PersonKey(tmp_path / "k.key", keeps_old)
    for path in (place.path, place.next_path, place.old_path):
        path.touch()
        path.chmod(0o666)
    first, second = place.begin(), place.begin()
    assert place.next_path.stat().st_mode & 0o777 == 0o600
    for key in (first, second):
        place.path.chmod(0o644)
        place.finish(key)
        assert place.path.read_bytes() == key
        assert place.path.stat().st_mode & 0o777 == 0o600
    if keeps_old:
        assert place.old_path.read_bytes() == first
        assert place.old_path.stat().st_mode & 0o777 == 0o600


def test_a_key_that_can_not_be_written_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SFUMATO_FACE_KEYS", str(tmp_path / "file"))
    with pytest.raises(FileError, match="--key-file"):
        person_key(bytes(16), "alice").begin()


def test_a_key_is_another_one_in_every_gallery():
    keys = {key_for_gallery(key, gallery) for key in (new_key(), new_key()) for gallery in (b"1", b"2")}
    assert len(keys) == 4
