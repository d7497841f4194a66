# SPDX-License-Identifier: Apache-2.0
import errno
import os

import h5py
import numpy as np
import pytest

from sfumato.matching.sink import Sink


def write(path, count, keep=False):
    with Sink(path, keep=keep) as sink, h5py.File(sink, "r+" if keep else "w", libver="latest") as file:
        for number in range(count):
            file.create_dataset(f"{keep}/{number}", data=np.full(500, number))


def test_what_is_written_is_an_ordinary_file(tmp_path):
    path = tmp_path / "a.h5"
    path.write_bytes(b"x" * 10_000_000)
    write(path, 50)
    write(path, 30, keep=True)
    with h5py.File(path) as file:
        assert [int(file[f"False/{i}"][3]) for i in range(50)] == list(range(50))
        assert [int(file[f"True/{i}"][3]) for i in range(30)] == list(range(30))
    assert path.stat().st_size < 1_000_000


@pytest.mark.parametrize("room", [0, 100, 5_000, 50_000, 150_000])
@pytest.mark.parametrize("call", ["pwrite", "ftruncate"])
def test_a_full_disk_is_told_at_the_end_and_nothing_crashes(tmp_path, monkeypatch, room, call):
    real = getattr(os, call)

    def limited(fd, what, *place):
        end = place[0] + len(what) if place else what
        if end > room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, what, *place)

    monkeypatch.setattr(os, call, limited)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "a.h5", 50)


def test_it_reads_like_a_file(tmp_path):
    path = tmp_path / "a"
    with Sink(path, keep=False) as sink:
        assert sink.write(b"hello there") == 11
        assert sink.seek(6) == sink.tell() == 6
        assert sink.read(3) == b"the"
        assert sink.read() == b"re"
        assert sink.seek(-2, os.SEEK_CUR) == 9
        assert sink.seek(-1, os.SEEK_END) == 10
        buffer = bytearray(b"????")
        assert sink.readinto(buffer) == 4
        assert buffer == b"e\0\0\0"
        assert sink.truncate(5) == 5
    assert path.read_bytes() == b"hello"
