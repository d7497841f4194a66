# SPDX-License-Identifier: Apache-2.0
import h5py
import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.files.hdf5 import explain_damage, find_array, find_group, find_plain_arrays, is_member, open_hdf5


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["a"] = np.zeros(3)
    with h5py.File(path, "w") as file:
        file["group/plain"] = np.arange(3)
        file.create_dataset("group/packed", data=np.zeros(1000), compression="gzip")
        file.create_dataset("group/hollow", (10**6,), "<f8")
        file.create_dataset("group/elsewhere", (3,), "<f8", external=[(str(tmp_path / "raw"), 0, 24)])
        file["group/soft"] = h5py.SoftLink("/group/plain")
        file["group/external"] = h5py.ExternalLink("other.h5", "/a")
    return path


def test_members_are_found_and_links_are_refused(path):
    size = path.stat().st_size
    with open_hdf5(path) as file:
        group = find_group(file, "group")
        assert find_array(group, "plain", size)[()].tolist() == [0, 1, 2]
        assert find_array(group, "packed", size).shape == (1000,)
        assert is_member(group, "plain")
        for key in ("soft", "external"):
            assert not is_member(group, key)
        for key in ("soft", "external", "missing", "hollow", "elsewhere"):
            with pytest.raises(InputError, match=key):
                find_array(group, key, size)
        for key in ("plain", "soft", "missing"):
            with pytest.raises(InputError, match=key):
                find_group(group, key)
        with pytest.raises(InputError, match="group"):
            find_array(file, "group", size)


def test_plain_arrays_are_all_there_is(tmp_path):
    path = tmp_path / "p.h5"
    kinds = {"rows": ("<i8", 1), "values": ("<f4", 2)}
    arrays = {"rows": np.arange(3), "values": np.zeros((3, 2), np.float32)}
    for wrong in ({}, {"rows": np.zeros(3)}, {"values": np.zeros(3, np.float32)}, {"more": np.zeros(1)}):
        with h5py.File(path, "w") as file:
            for key, array in {**arrays, **wrong}.items():
                file[key] = array
        with open_hdf5(path) as file:
            if not wrong:
                assert find_plain_arrays(file, kinds, path.stat().st_size)["values"].shape == (3, 2)
                continue
            with pytest.raises(InputError):
                find_plain_arrays(file, kinds, path.stat().st_size)


def test_damage_is_a_file_error(tmp_path):
    (tmp_path / "x.h5").write_bytes(b"no")
    with pytest.raises(FileError, match=r"x\.h5"):
        open_hdf5(tmp_path / "x.h5")
    for problem in (InputError("a"), RuntimeError("b"), KeyError("c"), OSError("d")):
        with pytest.raises(FileError, match=r"x\.h5"), explain_damage("x.h5", "copy it again"):
            raise problem
