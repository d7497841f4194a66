# SPDX-License-Identifier: Apache-2.0
import errno
import os

import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.matching.journal import MARK, Journal, PairRecord
from sfumato.types.scene import Matches


def entry(number=0, count=3, names=("a.jpg", "b.jpg")):
    rows = np.stack([np.arange(count), np.arange(count)[::-1]], axis=1)
    distances = np.arange(count, dtype=np.float32) + number
    return PairRecord(names, (10, 20), ("0" * 64, "f" * 64), Matches(rows, distances))


def same(left, right):
    return left.pack() == right.pack()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.h5.part"


def reopened(path):
    journal = Journal(path)
    try:
        return journal.purpose, [found for _, found in journal.salvage()], journal.end
    finally:
        journal.close()


@pytest.mark.parametrize("names", [("a", "b"), ("db/\udcff é.jpg", "x" * 1024)])
@pytest.mark.parametrize("count", [0, 1, 500])
def test_an_entry_survives_the_trip(names, count):
    original = entry(1, count, names)
    again = PairRecord.unpack(original.pack())
    assert again.names == names
    assert again.counts == (10, 20)
    assert again.checksums == original.checksums
    assert np.array_equal(again.matches.indices, original.matches.indices)
    assert np.array_equal(again.matches.distances, original.matches.distances)


@pytest.mark.parametrize("payload", [b"", b"x" * 20, entry().pack()[:-1], entry().pack() + b"x"])
def test_what_is_no_entry(payload):
    with pytest.raises(InputError):
        PairRecord.unpack(payload)


def test_what_was_added_is_found_again(path):
    journal = Journal(path)
    assert journal.purpose == ""
    journal.begin("why")
    places = [journal.append(entry(number)) for number in range(5)]
    assert same(journal.read(places[3]), entry(3))
    journal.close()
    purpose, found, _ = reopened(path)
    assert purpose == "why"
    assert len(found) == 5
    assert all(same(one, entry(number)) for number, one in enumerate(found))


def test_a_torn_end_is_cut_off_wherever_it_is_torn(path):
    journal = Journal(path)
    journal.begin("why")
    ends = [journal.end]
    for number in range(3):
        journal.append(entry(number, count=number))
        ends.append(journal.end)
    journal.close()
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        purpose, found, end = reopened(path)
        kept = sum(cut >= place for place in ends[1:])
        assert (purpose, len(found)) == ("why" if cut >= ends[0] else "", kept)
        if cut >= ends[0]:
            assert end == ends[kept] == path.stat().st_size


def test_damage_and_zeros_end_what_is_believed(path):
    journal = Journal(path)
    journal.begin("why")
    journal.append(entry(0))
    middle = journal.end
    journal.append(entry(1))
    journal.close()
    whole = path.read_bytes()
    for content in (
        whole[: middle + 20] + b"?" + whole[middle + 21 :],
        whole[:middle] + bytes(4096),
        whole[:middle] + b"\xff" * 4096,
    ):
        path.write_bytes(content)
        _, found, end = reopened(path)
        assert len(found) == 1
        assert end == middle == path.stat().st_size
        again = Journal(path)
        list(again.salvage())
        again.append(entry(2))
        again.close()
        assert [same(one, entry(number)) for number, one in zip((0, 2), reopened(path)[1], strict=True)] == [True, True]


def test_beginning_anew_forgets(path):
    for purpose in ("a long purpose", "short"):
        journal = Journal(path)
        journal.begin(purpose)
        journal.append(entry())
        journal.close()
    purpose, found, _ = reopened(path)
    assert (purpose, len(found)) == ("short", 1)


def test_one_writer_at_a_time(path):
    journal = Journal(path)
    with pytest.raises(FileError, match="another writer"):
        Journal(path)
    journal.close()
    Journal(path).close()


def test_another_file_is_in_the_way(path):
    path.write_text("my diary")
    with pytest.raises(FileError, match="in the"):
        Journal(path)
    assert path.read_text() == "my diary"
    path.unlink()
    path.mkdir()
    with pytest.raises(FileError, match="cannot write"):
        Journal(path)
    with pytest.raises(FileError, match="cannot write"):
        Journal(path.parent / "none" / "x.part")


def test_a_full_disk_loses_nothing(path, monkeypatch):
    journal = Journal(path)
    journal.begin("why")
    journal.append(entry(0))
    real, calls = os.pwrite, []

    def full(fd, data, place):
        calls.append(place)
        if len(calls) == 1:
            return real(fd, data[:7], place)  # a part of it still fits
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(FileError, match="free"):
        journal.append(entry(1))
    monkeypatch.undo()
    assert path.stat().st_size == journal.end
    journal.append(entry(2))
    journal.close()
    assert [same(one, entry(number)) for number, one in zip((0, 2), reopened(path)[1], strict=True)] == [True, True]


def test_it_is_on_the_disk_now_and_then(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(fd))
    monkeypatch.setattr("sfumato.files.atomic.SYNC_BYTES", 2 * len(entry().pack()))
    monkeypatch.setattr("sfumato.files.atomic.SYNC_SECONDS", 1e9)
    journal = Journal(path)
    journal.begin("why")
    for number in range(10):
        journal.append(entry(number))
    journal.close()
    assert len(synced) == 5
    assert path.read_bytes().startswith(MARK)
