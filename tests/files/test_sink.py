# SPDX-License-Identifier: Apache-2.0
import errno
import os
import signal

import h5py
import numpy as np
import pytest

from sfumato.files.atomic import Sink


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
    with pytest.raises(OSError, match="space left"):
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


@pytest.mark.parametrize(
    ("call", "which"), [("pwrite", 1), ("pwrite", 9), ("ftruncate", 1), ("pread", 1), ("pread", 2)]
)
@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, MemoryError])
def test_whatever_ends_a_call_from_the_library_comes_out_as_itself(tmp_path, monkeypatch, call, which, raised):
    write(tmp_path / "a.h5", 50)
    real, calls = getattr(os, call), []

    def interrupted(*arguments):
        calls.append(call)
        if len(calls) == which:
            raise raised
        return real(*arguments)

    monkeypatch.setattr(os, call, interrupted)
    with pytest.raises(raised):
        write(tmp_path / "a.h5", 50, keep=True)


def test_a_signal_waits_until_the_file_is_closed(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    done = []

    def interrupted():
        with Sink(tmp_path / "a.h5", keep=False) as sink, h5py.File(sink, "w", libver="latest") as file:
            file.create_dataset("a", data=np.zeros(500))
            signal.raise_signal(signal.SIGINT)
            assert isinstance(sink.error, KeyboardInterrupt)
            signal.raise_signal(signal.SIGINT)
            file.create_dataset("b", data=np.zeros(500))
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done
    assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_that_raises_nothing_stops_nothing(tmp_path):
    told = []
    before = signal.signal(signal.SIGINT, lambda number, frame: told.append(number))
    try:
        with Sink(tmp_path / "a", keep=False) as sink:
            signal.raise_signal(signal.SIGINT)
            sink.write(b"hello")
    finally:
        signal.signal(signal.SIGINT, before)
    assert told == [signal.SIGINT]
    assert (tmp_path / "a").read_bytes() == b"hello"
