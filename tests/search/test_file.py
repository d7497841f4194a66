# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import sfumato
from sfumato.errors import FileError
from sfumato.files.tensors import save_tensors
from sfumato.search.factory import is_index_file, part_of, read_arrays, write_arrays


@pytest.fixture
def written(tmp_path):
    arrays = {"a/x": np.arange(10, dtype=np.int32), "a/empty": np.zeros((0, 3), np.float32), "b/y": np.ones((2, 3))}
    write_arrays(tmp_path / "x.index", {"kind": "test"}, arrays)
    return tmp_path / "x.index", arrays


def test_what_was_written_is_read_mapped_and_read_only(written):
    path, arrays = written
    header, found = read_arrays(path)
    assert header == {"kind": "test"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
        assert type(found[name]) is np.ndarray
    assert not found["a/x"].flags.writeable
    assert sorted(part_of(found, "a")) == ["empty", "x"]


def test_an_index_is_known_by_its_contents(written, tmp_path):
    (tmp_path / "other").write_bytes(b"other")
    assert is_index_file(written[0])
    assert not any(map(is_index_file, (tmp_path / "other", tmp_path / "none", tmp_path)))


def test_every_flipped_byte_is_seen(written, tmp_path):
    content = written[0].read_bytes()
    for at in range(0, len(content), 7):
        spoilt = bytearray(content)
        spoilt[at] ^= 0x41
        (tmp_path / "bad.index").write_bytes(spoilt)
        with pytest.raises(FileError):
            read_arrays(tmp_path / "bad.index")


@pytest.mark.parametrize("length", [0, 5, 40, 200, -1])
def test_a_file_of_another_length_is_refused(written, tmp_path, length):
    content = written[0].read_bytes()
    for changed in (content[:length], content + b"more"):
        (tmp_path / "bad.index").write_bytes(changed)
        with pytest.raises(FileError):
            read_arrays(tmp_path / "bad.index", verify=False)


def test_other_files_versions_and_none(tmp_path):
    with pytest.raises(FileError, match="no such"):
        read_arrays(tmp_path / "none.index")
    for texts, told in (
        ({}, "index build"),
        ({"format": "sfumato-index", "version": "9"}, "version 9"),
        ({"format": "sfumato-index", "version": "3"}, "header"),
        ({"format": "sfumato-index", "version": "3", "header": "[" * 200_000}, "header"),
        ({"format": "sfumato-index", "version": "3", "header": "[]"}, "header"),
    ):
        save_tensors(tmp_path / "other.index", {}, texts)
        with pytest.raises(FileError, match=told):
            read_arrays(tmp_path / "other.index")
    (tmp_path / "old.index").write_bytes(b"sfumato-index\0\0\2" + bytes(100))
    assert is_index_file(tmp_path / "old.index")
    with pytest.raises(FileError, match="older"):
        read_arrays(tmp_path / "old.index")
    with pytest.raises(FileError, match="read"):
        read_arrays(tmp_path)


def test_objects_are_never_written(tmp_path):
    with pytest.raises(TypeError):
        write_arrays(tmp_path / "x.index", {}, {"x": np.array([object()])})
    assert not list(tmp_path.iterdir())


def test_an_index_may_be_saved_over_itself(tmp_path):
    index = sfumato.search.build(np.eye(4), "exact")
    index.save(tmp_path / "x.index")
    again = sfumato.search.load(tmp_path / "x.index")
    again.add(np.full((1, 4), 9.0))
    again.save(tmp_path / "x.index")
    assert len(sfumato.search.load(tmp_path / "x.index")) == 5
    assert again.search(np.eye(4), k=1)[1][:, 0].tolist() == [0, 1, 2, 3]


def reforge(path, change):
    """Write an index anew with its header and arrays changed, checksums right: what malice can do."""
    header, arrays = read_arrays(path)
    arrays = {name: array.copy() for name, array in arrays.items()}
    change(header, arrays)
    write_arrays(path, header, arrays)


@pytest.mark.parametrize(
    "change",
    [
        lambda header, arrays: header["entries"].update(dim=10**12),
        lambda header, arrays: header["entries"].update(segments=10**12),
        lambda header, arrays: header["entries"].update(next_id=[]),
        lambda header, arrays: header["entries"].update(names=[1]),
        lambda header, arrays: header["settings"].update(starts=[0, 0]),
        lambda header, arrays: header["settings"].update(starts=[-1]),
        lambda header, arrays: header["settings"].update(starts=10**9),
        lambda header, arrays: header["params"].update(cells=2**40),
        lambda header, arrays: header["entries"].update(next_id=-50),
        lambda header, arrays: header["entries"].update(next_id=2**63),
        lambda header, arrays: header.update(kind="exec"),
        lambda header, arrays: header.update(metric={}),
        lambda header, arrays: arrays["inverted/members 0"].fill(10**9),
        lambda header, arrays: arrays["inverted/members 0"].fill(-1),
        lambda header, arrays: arrays["inverted/offsets 0"].fill(2**62),
        lambda header, arrays: arrays["entries/ids 0"].fill(-7),
        lambda header, arrays: arrays["entries/ids 0"].fill(3),
        lambda header, arrays: arrays["entries/ids 0"].fill(2**63 - 1),
        lambda header, arrays: arrays["entries/origin 0"].fill(np.nan),
        lambda header, arrays: arrays["entries/basis 0"].fill(np.nan),
        lambda header, arrays: arrays["entries/basis 0"].fill(2.0),
        lambda header, arrays: arrays["entries/alive"].fill(255),
        lambda header, arrays: arrays.pop("inverted/codes 0"),
        lambda header, arrays: arrays.update({"inverted/centres": np.zeros((0, 8), np.float32)}),
        lambda header, arrays: arrays.update({"inverted/mean": np.zeros(9, np.float32)}),
    ],
)
def test_a_forged_index_is_refused(tmp_path, lift_points, change):
    path = tmp_path / "x.index"
    sfumato.search.build(lift_points(30, n=8).code, params={"cells": 8, "filed": 2}).save(path)
    reforge(path, change)
    with pytest.raises(FileError):
        sfumato.search.load(path)


def test_numbers_that_are_none_are_harmless(tmp_path, lift_points):
    """Whatever the values, a search ends, and finds only entries that are there."""
    path, lifted = tmp_path / "x.index", lift_points(30, n=8)
    sfumato.search.build(lifted.code, params={"cells": 8, "filed": 2}).save(path)

    def spoil(header, arrays):
        for name in ("inverted/centres", "entries/origin 0"):
            arrays[name][::2] = np.nan
        arrays["inverted/codes 0"][:] = -1

    reforge(path, spoil)
    with pytest.raises(FileError, match="segment 0"):
        sfumato.search.load(path)
    index = sfumato.search.load(path, verify=False)
    for queries in (lifted.points, lifted.code[:5]):
        ids = index.search(queries, 3)[1]
        assert ids.min() >= -1
        assert ids.max() < 30


def test_threads_of_another_machine_are_not_taken_over(tmp_path, lift_points):
    path = tmp_path / "x.index"
    sfumato.search.build(lift_points(30, n=8).code, "exact").save(path)
    reforge(path, lambda header, arrays: header["params"].update(threads=10**7))
    assert sfumato.search.load(path).params.threads is None


def test_a_full_disk_leaves_the_old_index(tmp_path, monkeypatch):
    path = tmp_path / "x.index"
    sfumato.search.build(np.eye(4), "exact").save(path)
    larger = sfumato.search.build(np.eye(4), "exact")
    larger.add(np.full((3, 4), 2.0))

    import sfumato.files.atomic as whole

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(whole.os, "fsync", full)
    with pytest.raises(FileError, match="space"):
        larger.save(path)
    monkeypatch.undo()
    assert len(sfumato.search.load(path)) == 4
    assert [one.name for one in tmp_path.iterdir()] == ["x.index"]
