# SPDX-License-Identifier: Apache-2.0
import os

import h5py
import numpy as np
import pytest

import sfumato
from sfumato.errors import FileError
from sfumato.matching.batch import match_archive
from sfumato.matching.match_file import part_of, refuse_inputs, refuse_irreplaceable
from sfumato.matching.match_writer import MatchWriter


@pytest.fixture
def archive(archive_path):
    with sfumato.load(archive_path) as opened:
        yield opened


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.h5"


def links_to(file, folder):
    """Other ways to call a file: a symbolic link, a link to that, a hard link, a way around."""
    (folder / "soft").symlink_to(file)
    (folder / "softer").symlink_to(folder / "soft")
    (folder / "hard").hardlink_to(file)
    (folder / "deep").mkdir()
    return [file, folder / "soft", folder / "softer", folder / "hard", folder / "deep" / ".." / file.name]


def test_the_archive_is_never_the_output(archive, archive_path, tmp_path):
    before = archive_path.read_bytes()
    for output in links_to(archive_path, tmp_path):
        for overwrite in (True, False):
            with pytest.raises(FileError, match="output"):
                match_archive(archive, output, "exhaustive", overwrite=overwrite)
            with pytest.raises(FileError, match="archive"), MatchWriter(output, archive, overwrite=overwrite):
                pass
    assert archive_path.read_bytes() == before
    assert not list(tmp_path.glob("*.part"))


def test_what_stands_where_the_output_is_made_is_an_input_too(path, tmp_path):
    part_of(path).write_text("a b")
    with pytest.raises(FileError, match="pairs"):
        refuse_inputs(path, {"the archive": tmp_path / "none", "nothing": None, "the list of pairs": part_of(path)})
    refuse_inputs(path, {"the archive": tmp_path / "none"})


def hdf5(path, **content):
    with h5py.File(path, "w", libver="latest") as file:
        for name, value in content.items():
            file[name.replace("__", "/")] = value
    return path


def irreplaceable(path, archive_path):
    """Write one thing after the other to a path that no match file may replace."""
    rows = np.zeros(3, np.int32)
    yield path.write_text("my diary")
    yield path.write_bytes(b"PK\3\4" + bytes(100))
    yield path.write_bytes(archive_path.read_bytes())
    yield path.write_bytes(archive_path.read_bytes()[:-1])
    yield path.write_bytes(archive_path.read_bytes()[:3000])
    yield hdf5(path, image__keypoints=rows, image__descriptors=rows)
    yield hdf5(path, a__b__matches0=rows, mine=rows)
    yield hdf5(path, a__b__matches0=rows, c__d__keypoints=rows)
    yield hdf5(path, matches0=rows)
    with h5py.File(path, "w") as file:
        file["a"] = h5py.ExternalLink("other.h5", "/")
    yield
    with h5py.File(path, "w") as file:
        file.attrs["format"] = "sfumato-public-points"
    yield
    with h5py.File(path, "w") as file:
        file.attrs["format"] = np.arange(3)
    yield


def test_only_match_files_are_replaced(path, archive, archive_path):
    for number, _ in enumerate(irreplaceable(path, archive_path)):
        before = path.read_bytes()
        with pytest.raises(FileError, match="replaced"):
            match_archive(archive, path, "exhaustive", overwrite=True)
        assert path.read_bytes() == before, number
        assert not path.with_name("m.h5.part").exists()
    assert number == 11


@pytest.mark.slow
def test_match_files_of_all_kinds_are_replaced(path, archive):
    def anew():
        assert match_archive(archive, path, "exhaustive", overwrite=True).pairs == 15
        return path.read_bytes()

    whole = anew()
    assert anew() == whole
    for size in (len(whole) - 1, len(whole) // 2):
        path.write_bytes(whole[:size])
        assert anew() == whole
    hdf5(path, **{"a__b__matches0": np.zeros(3, np.int16), "a__b__matching_scores0": np.zeros(3, np.float16)})
    hlocs = path.read_bytes()
    assert anew() == whole
    path.write_bytes(hlocs[:-1])
    assert anew() == whole
    for empty in (b"", hdf5(path).read_bytes()):
        path.write_bytes(empty)
        assert anew() == whole


def test_a_cut_file_without_words_is_left_alone(path):
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(50))
    with pytest.raises(FileError, match="replaced"):
        refuse_irreplaceable(path, path)


def test_what_came_meanwhile_is_not_replaced(path, archive, archive_path):
    stop = archive_path.read_bytes()

    def write():
        with MatchWriter(path, archive) as writer:
            writer.add(("db/0.jpg", "db/5.jpg"), sfumato.match(archive["db/0.jpg"], archive["db/5.jpg"]))
            path.write_bytes(stop)

    with pytest.raises(FileError, match="match file"):
        write()
    assert path.read_bytes() == stop
    with pytest.raises(FileError), MatchWriter(path, archive):  # nor by the run after
        pass
    assert path.read_bytes() == stop
    os.unlink(path)
    with MatchWriter(path, archive) as writer:
        assert len(writer.done) == 1
