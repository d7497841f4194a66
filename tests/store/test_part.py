# SPDX-License-Identifier: Apache-2.0
"""The unfinished archive: locked, append-only, and nothing in it is lost."""

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from sfumato.errors import ArchiveError
from sfumato.files import atomic
from sfumato.store import hdf5, writer
from sfumato.store.archive import load
from sfumato.store.layout import ImageHeader, digest_arrays
from sfumato.store.writer import Part

COUNT = 6


def add(target: Part, name: str, features: Any) -> None:
    arrays = [features.keypoints, features.subspaces.origin, features.subspaces.basis]
    count, dim, ambient_dim = arrays[2].shape
    digest = digest_arrays(arrays)
    recipe, extractor, size = features.recipe, features.extractor, features.image_size
    target.add(ImageHeader(name, count, dim, ambient_dim, "float32", recipe, extractor, size, digest), arrays)


@pytest.fixture
def left(tmp_path: Path, features: Callable[..., Any]) -> tuple[Path, list[int]]:
    """What an interrupted run left: six images, and where each of them ends."""
    path, ends = tmp_path / "a.part", [hdf5.SUPERBLOCK_SIZE]
    unfinished = Part(path)
    unfinished.discard()
    for i in range(COUNT):
        add(unfinished, f"{i}.jpg", features(seed=i, count=i))
        ends.append(unfinished.end)
    unfinished.close()
    return path, ends


def salvaged(path: Path) -> list[str]:
    again = Part(path)
    try:
        return [header.name for header in again.salvage()]
    finally:
        again.close()


def names(*numbers: int) -> list[str]:
    return [f"{i}.jpg" for i in numbers]


def test_everything_is_salvaged(left: tuple[Path, list[int]]):
    path, ends = left
    before = path.read_bytes()
    assert before.startswith(writer.MARK)
    assert salvaged(path) == names(*range(COUNT))
    assert path.read_bytes().ljust(ends[-1], b"\0") == before.ljust(ends[-1], b"\0")


def test_a_kill_at_any_byte_loses_only_the_image_being_written(left: tuple[Path, list[int]], tmp_path: Path):
    path, ends = left
    raw = path.read_bytes()
    assert len(raw) == ends[-1]
    sizes = {*range(0, len(raw), 37), *(end + d for end in ends for d in (-1, 0, 1)), len(raw)}
    for size in sorted(size for size in sizes if size <= len(raw)):
        (tmp_path / "cut.part").write_bytes(raw[:size])
        complete = [i for i in range(COUNT) if ends[i + 1] <= size]
        assert salvaged(tmp_path / "cut.part") == names(*complete), size


def test_work_goes_on_behind_the_last_intact_image(left: tuple[Path, list[int]], features: Any, same: Any):
    path, ends = left
    os.truncate(path, ends[4] + 100)
    again = Part(path)
    assert [header.name for header in again.salvage()] == names(0, 1, 2, 3)
    assert again.end == ends[4] == path.stat().st_size
    add(again, "new.jpg", features(seed=9))
    again.seal()
    again.move_to(path.with_name("a.h5"))
    again.close()
    assert not path.exists()
    with load(path.with_name("a.h5")) as archive:
        assert list(archive) == [*names(0, 1, 2, 3), "new.jpg"]
        same(archive["3.jpg"], features(seed=3, count=3))
        same(archive["new.jpg"], features(seed=9))


@pytest.mark.parametrize("broken", [0, 2, COUNT - 1])
def test_a_broken_image_does_not_take_the_others_with_it(
    left: tuple[Path, list[int]], broken: int, features: Any, same: Any, caplog: pytest.LogCaptureFixture
):
    path, ends = left
    raw = bytearray(path.read_bytes())
    raw[ends[broken] + 40] ^= 0xFF
    path.write_bytes(raw)
    kept = [i for i in range(COUNT) if i != broken]
    with caplog.at_level(logging.WARNING):
        again = Part(path)
        assert [header.name for header in again.salvage()] == names(*kept)
    assert "dropped" in caplog.text
    assert f"at byte {ends[broken]}" in caplog.text
    again.seal()
    again.move_to(path.with_name("a.h5"))
    again.close()
    with load(path.with_name("a.h5")) as archive, h5py.File(path.with_name("a.h5")) as file:
        assert list(archive) == list(file["images"]) == names(*kept)
        for i in kept:
            same(archive[f"{i}.jpg"], features(seed=i, count=i))


def test_a_broken_image_larger_than_the_search_window(
    left: tuple[Path, list[int]], features: Any, monkeypatch: pytest.MonkeyPatch
):
    path, ends = left
    monkeypatch.setattr(writer, "WINDOW", 64)
    raw = bytearray(path.read_bytes())
    raw[ends[3] + 40] ^= 0xFF
    path.write_bytes(raw)
    assert salvaged(path) == names(0, 1, 2, 4, 5)


def test_an_archive_that_can_not_be_opened_is_rescued(left: tuple[Path, list[int]], features: Any, same: Any):
    path, ends = left
    sealed = Part(path)
    assert len(list(sealed.salvage())) == COUNT
    sealed.seal()
    sealed.close()
    target = path.with_name("b.h5")
    shutil.copy(path, target)
    raw = bytearray(target.read_bytes())
    raw[ends[-1] : ends[-1] + 200] = bytes(200)  # the table of links
    target.write_bytes(raw)
    with pytest.raises(ArchiveError):
        load(target)
    shutil.copy(target, path)
    assert salvaged(path) == names(*range(COUNT))
    assert path.read_bytes().startswith(writer.MARK)


def test_two_images_of_one_name_count_once(left: tuple[Path, list[int]], features: Any):
    path, _ = left
    again = Part(path)
    list(again.salvage())
    add(again, "0.jpg", features(seed=77))
    again.close()
    assert salvaged(path) == names(*range(COUNT))


@pytest.mark.parametrize("size", [0, 1, 20, 48])
def test_a_file_without_an_image_is_a_fresh_start(tmp_path: Path, size: int):
    path = tmp_path / "a.part"
    path.write_bytes(writer.MARK[:size])
    assert salvaged(path) == []
    assert path.read_bytes() == writer.MARK


@pytest.mark.parametrize("content", [b"my notes", b"sfumato", b"\x89PNG" + bytes(60)])
def test_somebody_elses_file_is_not_touched(tmp_path: Path, content: bytes):
    path = tmp_path / "a.part"
    path.write_bytes(content + b"!")
    with pytest.raises(ArchiveError, match="in the"):
        Part(path)
    assert path.read_bytes() == content + b"!"


def test_somebody_elses_hdf5_file_is_not_touched(tmp_path: Path):
    path = tmp_path / "a.part"
    with h5py.File(path, "w", libver="latest") as file:
        file["x"] = np.zeros(1000)
    before = path.read_bytes()
    with pytest.raises(ArchiveError, match="in the"):
        salvaged(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_what_is_not_a_file_is_refused(tmp_path: Path, kind: str):
    path, other = tmp_path / "a.part", tmp_path / "other"
    other.write_bytes(b"")
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(other)
    else:
        os.mkfifo(path)
    with pytest.raises(ArchiveError, match=r"a\.part"):
        Part(path)
    assert other.read_bytes() == b""


def test_discarding_says_so(left: tuple[Path, list[int]], caplog: pytest.LogCaptureFixture):
    path, _ = left
    again = Part(path)
    with caplog.at_level(logging.WARNING):
        again.discard()
    again.close()
    assert "discarding" in caplog.text
    assert path.read_bytes() == writer.MARK


def test_a_second_writer_is_refused(tmp_path: Path):
    first = Part(tmp_path / "a.part")
    with pytest.raises(ArchiveError, match="another writer"):
        Part(tmp_path / "a.part")
    first.close()
    Part(tmp_path / "a.part").close()


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path):
    script = (
        "import sys, time; from pathlib import Path; from sfumato.store.writer import Part\n"
        "part = Part(Path(sys.argv[1])); print('locked', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "a.part")], stdout=subprocess.PIPE)
    assert process.stdout
    with process.stdout:
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(ArchiveError, match="another writer"):
            Part(tmp_path / "a.part")
        process.kill()
        process.wait()
    Part(tmp_path / "a.part").close()


def test_a_lock_on_a_file_that_was_moved_away_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another writer finishes, and moves the file to its place, between our opening and our locking it."""
    path, moved, tried = tmp_path / "a.part", tmp_path / "a.h5", []
    lock = atomic._lock

    def late(fd: int, name: Path) -> None:
        if not tried:
            os.replace(path, moved)
        tried.append(fd)
        lock(fd, name)

    monkeypatch.setattr(atomic, "_lock", late)
    ours = Part(path)
    ours.discard()
    ours.close()
    assert len(tried) == 2
    assert moved.read_bytes() == b""
    assert path.read_bytes() == writer.MARK


def test_a_file_system_without_locks_is_used_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    import fcntl

    def refuse(fd: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with caplog.at_level(logging.WARNING):
        Part(tmp_path / "a.part").close()
    assert "without locks" in caplog.text


def test_an_error_in_the_middle_of_a_block_leaves_the_others(
    left: tuple[Path, list[int]], features: Any, monkeypatch: pytest.MonkeyPatch
):
    path, ends = left
    again = Part(path)
    list(again.salvage())
    write, calls = os.pwrite, []

    def fail(fd: int, data: bytes, address: int) -> int:
        calls.append(address)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return write(fd, data, address)

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(ArchiveError, match="6 images"):
        add(again, "new.jpg", features(seed=9))
    assert path.stat().st_size == ends[-1]
    add(again, "new.jpg", features(seed=9))
    again.close()
    assert salvaged(path) == [*names(*range(COUNT)), "new.jpg"]


def test_a_write_that_is_cut_short_is_continued(tmp_path: Path, features: Any, monkeypatch: pytest.MonkeyPatch):
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, address: write(fd, data[:7], address))
    slow = Part(tmp_path / "a.part")
    slow.discard()
    add(slow, "a.jpg", features())
    slow.close()
    assert salvaged(tmp_path / "a.part") == ["a.jpg"]


def test_an_archive_has_room_for_so_many_names_only(tmp_path: Path, features: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writer, "LARGEST_HEADER", writer.MARGIN + 100)
    crowded = Part(tmp_path / "a.part")
    crowded.discard()
    add(crowded, "a" * 50, features())
    with pytest.raises(ArchiveError, match="1 images"):
        add(crowded, "b" * 50, features())
    crowded.close()
    assert salvaged(tmp_path / "a.part") == ["a" * 50]


def test_sealing_cuts_what_a_failed_write_left_behind(left: tuple[Path, list[int]]):
    path, _ = left
    again = Part(path)
    list(again.salvage())
    os.ftruncate(again.fd, again.end + 100_000)
    again.seal()
    again.move_to(path.with_name("a.h5"))
    again.close()
    assert len(load(path.with_name("a.h5"))) == COUNT


def test_a_broken_block_is_blanked(left: tuple[Path, list[int]]):
    """Its image is concealed again: the old lifting beside the new one would reveal the descriptors."""
    path, ends = left
    data = bytearray(path.read_bytes())
    data[ends[3] - 9] ^= 1  # in the arrays of the third image
    path.write_bytes(data)
    assert salvaged(path) == names(0, 1, *range(3, COUNT))
    assert not any(path.read_bytes()[ends[2] : ends[3]])
