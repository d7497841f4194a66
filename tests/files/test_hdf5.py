# SPDX-License-Identifier: Apache-2.0
"""HDF5 in a process of its own: what it writes is read, and what ends it does not end us."""

import os
import resource
import signal
import subprocess
from contextlib import contextmanager

import h5py
import numpy as np
import pytest

from sfumato.errors import FileError, InputError, SourceError
from sfumato.files import hdf5
from sfumato.files.hdf5 import Hdf5Reader, new_hdf5

ARRAYS = {
    "rows": np.arange(6, dtype=np.int32),
    "values": np.arange(6, dtype=np.float16).reshape(2, 3),
    "none": np.zeros((0, 3), np.float32),
    "turned": np.arange(6.0).reshape(2, 3).T,
}


def write(path, count=1, **options):
    with new_hdf5(path, **options) as file:
        for number in range(count):
            file.add(f"outer/{number}", ARRAYS, {"": {"digest": "ü"}, "rows": {"share": 0.5}})
        file.add("", {}, {"": {"format": "x" * 100_000}})
    return path


def test_what_is_written_is_read_here_and_by_h5py(tmp_path):
    path = write(tmp_path / "a.h5", 3)
    with Hdf5Reader(path, "file", "ask") as file:
        assert file.texts() == {"format": "x" * 100_000}
        [[outer]] = file.members([""])
        assert outer[:2] == ("outer", "group")
        [inner] = file.members(["outer"])
        assert [member.name for member in inner] == ["0", "1", "2"]
        [members] = file.members(["outer/0"])
        assert {member.name: member.detail for member in members} == {k: list(a.shape) for k, a in ARRAYS.items()}
        group = file.read("outer/2", [*ARRAYS, "missing"], texts=True)
        assert group.texts == {"digest": "ü"}
        for name, array in ARRAYS.items():
            assert group.array(name).dtype == array.dtype
            assert np.array_equal(group.array(name), array)
        with pytest.raises(InputError, match="missing"):
            group.array("missing")
        assert file.read("outer/9") is None
    with h5py.File(path) as other:
        assert other["outer/0/rows"].attrs["share"] == 0.5
        assert np.array_equal(other["outer/0/turned"], ARRAYS["turned"])
    assert write(tmp_path / "b.h5", 3).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("first", "second"),
    [("a", "a"), ("a", "a/rows"), ("a", "a/b"), ("a/b", "a"), ("a", ""), ("a", "b/../c"), ("a", "/b"), ("a", "b\0")],
)
def test_groups_that_do_not_go_beside_each_other(tmp_path, first, second):
    path = tmp_path / "a.h5"
    path.write_text("before")

    def both():
        with new_hdf5(path) as file:
            file.add(first, ARRAYS)
            file.add(second or ".", ARRAYS)

    with pytest.raises(InputError):
        both()
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["a.h5"]


def test_private_files_and_the_mode_of_what_is_replaced(tmp_path):
    path = write(tmp_path / "a.h5", private=True)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    write(path)
    assert path.stat().st_mode & 0o777 == 0o640


# --- disks that are full, and signals


@contextmanager
def largest_file(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 3_000, 50_000])
def test_a_full_disk_is_told_and_nothing_is_left(tmp_path, room):
    path = tmp_path / "a.h5"
    path.write_text("before")
    with pytest.raises(FileError, match="too large"), largest_file(room):
        write(path, 500)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["a.h5"]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileError, match="nowhere"):
        write(tmp_path / "nowhere" / "a.h5")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_writer_that_dies_is_an_error_of_the_file(tmp_path, number):
    path = tmp_path / "a.h5"

    def stopped():
        with new_hdf5(path) as file:
            file.add("a", ARRAYS)
            file._worker.process.send_signal(number)
            file._worker.process.wait()
            for count in range(100):
                file.add(f"b{count}", ARRAYS)

    with pytest.raises(FileError, match=r"a\.h5.*full"):
        stopped()
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE])
def test_a_reader_that_dies_is_an_error_of_the_file(tmp_path, number):
    with Hdf5Reader(write(tmp_path / "a.h5"), "file", "ask", SourceError) as file:
        file._worker.process.send_signal(number)
        with pytest.raises(SourceError, match=rf"a\.h5.*{signal.Signals(number).name}.*ask"):
            file.texts()
        with pytest.raises(SourceError, match="closed"):
            file.texts()


def test_a_reader_that_takes_too_long(tmp_path, monkeypatch):
    with Hdf5Reader(write(tmp_path / "a.h5"), "file", "ask") as file:
        process = file._worker.process
        process.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(hdf5, "SECONDS", 0.05)
        with pytest.raises(FileError, match="too long"):
            file.texts()
        assert process.returncode == -signal.SIGKILL


def test_an_interrupt_leaves_no_process_behind(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with Hdf5Reader(write(tmp_path / "a.h5"), "file", "ask") as file:
        process = file._worker.process
        monkeypatch.setattr(os, "readv", interrupted)
        with pytest.raises(KeyboardInterrupt):
            file.texts()
        assert process.poll() is not None
    with pytest.raises(KeyboardInterrupt), new_hdf5(tmp_path / "a.h5") as writer:
        raise KeyboardInterrupt
    assert writer._worker.process.poll() is not None
    assert os.listdir(tmp_path) == ["a.h5"]


def test_a_file_that_is_forgotten_ends_its_process(tmp_path):
    file = Hdf5Reader(write(tmp_path / "a.h5"), "file", "ask")
    process = file._worker.process
    del file
    assert process.poll() is not None


# --- files that mean harm


def hostile(path, folder):
    with h5py.File(folder / "other.h5", "w") as other:
        other["a"] = np.zeros(3)
    with h5py.File(path, "w") as file:
        group = file.create_group("g")
        group["plain"] = np.arange(3)
        group.create_dataset("packed", data=np.full(100_000, -1), compression="gzip")
        group["soft"] = h5py.SoftLink("/g/plain")
        group["external"] = h5py.ExternalLink("other.h5", "/a")
        group.create_dataset("hollow", (10**6,), "<f8")
        group.create_dataset("elsewhere", (3,), "<f8", external=[(str(folder / "raw"), 0, 24)])
        layout = h5py.VirtualLayout((3,), np.float64)
        layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "a", (3,))
        group.create_virtual_dataset("virtual", layout)
        group.create_dataset("bomb", data=np.zeros(2**24, np.uint8), compression="gzip", compression_opts=9)
        group.create_dataset(
            "pieces", data=np.zeros(9, np.uint8), chunks=(2**28,), maxshape=(None,), compression="gzip"
        )
        group.create_dataset("lzf", data=np.zeros(99), compression="lzf")
        group.create_dataset("scaled", data=np.zeros(99, np.float32), scaleoffset=3)
        group["compound"] = np.zeros(3, [("a", "<f4"), ("b", "<i4")])
        group["texts"] = ["a", "b"]
        group["bytes"] = np.array([b"abc"])
        group["truth"] = np.array([True])
        group["complex"] = np.zeros(3, np.complex64)
        group["null"] = h5py.Empty("<f4")
        group["reference"] = np.array([group.ref], h5py.ref_dtype)
        group.create_group("group")
        file["linked"] = h5py.SoftLink("/g")


def test_what_hloc_never_writes_is_refused(tmp_path):
    hostile(tmp_path / "a.h5", tmp_path)
    with Hdf5Reader(tmp_path / "a.h5", "file", "ask") as file:
        [members] = file.members(["g"])
        names = [member.name for member in members]
        group = file.read("g", names)
        assert set(group.arrays) == {"plain", "packed"}
        assert set(group.problems) == set(names) - {"plain", "packed"}
        assert {member.name for member in members if member.kind == "link"} == {"soft", "external"}
        assert all(name in group.problems[name] for name in group.problems)
        for place in ("linked", "g/plain", "g/soft"):
            with pytest.raises(InputError):
                file.read(place)
            with pytest.raises(InputError, match=place):
                list(file.members([place]))


def test_memory_is_bounded_by_the_size_of_the_file(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["g/rows"] = np.zeros(2**23)
    monkeypatch.setattr(hdf5, "MEMORY_BYTES", 96 * 2**20)
    monkeypatch.setattr(hdf5, "MEMORY_PER_BYTE", 0)
    with Hdf5Reader(tmp_path / "a.h5", "file", "ask") as file:
        with pytest.raises(InputError, match="memory"):
            file.read("g", ["rows"]).array("rows")
        assert file.read("g") is not None


def test_groups_too_deep_and_names_of_any_bytes(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("/".join("a" * 70))
        h5py.h5g.create(file.id, b"\xff\n")
    with Hdf5Reader(tmp_path / "a.h5", "file", "ask") as reader:
        assert [member.name for member in next(reader.members([""]))] == ["a", "\udcff\n"]
        assert reader.read("\udcff\n") is not None
        with pytest.raises(InputError, match="deep"):
            reader.read("/".join("a" * 70))


def test_what_is_no_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("no")
    for name, word in (("pipe", "not a file"), (".", "not a file"), ("none", "path"), ("text", "HDF5")):
        with pytest.raises(SourceError, match=word):
            Hdf5Reader(tmp_path / name, "file", "ask", SourceError)


def test_the_worker_imports_nothing_of_ours():
    code = f"import runpy, sys; runpy.run_path({str(hdf5.WORKER)!r}, run_name='w'); print('sfumato' in sys.modules)"
    done = subprocess.run([hdf5.sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
