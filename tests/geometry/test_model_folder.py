# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys

import pycolmap
import pytest

from sfumato.errors import FileError
from sfumato.geometry import model_folder
from sfumato.geometry.model_folder import MODEL_FILES, _clear_leftovers, new_model_folder, write_model
from sfumato.geometry.outputs import map_paths


def make(output, text="new", **options):
    with new_model_folder(output, **options) as (work, model):
        (work / "database.db").write_text("scratch")
        (model / "cameras.bin").write_text(text)
        assert not (output / "cameras.bin").exists() or (output / "cameras.bin").read_text() != text


def test_the_model_takes_its_place_and_nothing_else_is_left(tmp_path):
    make(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["cameras.bin"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("there", [False, True])
def test_an_error_leaves_everything_as_it_was(tmp_path, error, there):
    output = tmp_path / "model"
    if there:
        make(output, "old")

    def fail():
        with new_model_folder(output, overwrite=True) as (_, model):
            (model / "cameras.bin").write_text("new")
            raise error

    with pytest.raises(error):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == (["model"] if there else [])
    assert not there or (output / "cameras.bin").read_text() == "old"


def test_a_map_is_replaced_only_if_that_was_asked_for(tmp_path):
    make(tmp_path / "model", "old")
    with pytest.raises(FileError, match="already"):
        make(tmp_path / "model")
    assert (tmp_path / "model" / "cameras.bin").read_text() == "old"
    make(tmp_path / "model", overwrite=True)
    assert (tmp_path / "model" / "cameras.bin").read_text() == "new"
    assert len([*tmp_path.iterdir()]) == 1


def test_a_folder_of_somebody_is_never_replaced(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letters.txt").write_text("dear")
    (tmp_path / "home" / "cameras.bin").write_text("old")
    with pytest.raises(FileError, match=r"'letters.txt'"):
        make(tmp_path / "home", overwrite=True)
    assert len([*(tmp_path / "home").iterdir()]) == 2


def test_the_models_beside_a_map_are_part_of_it(tmp_path):
    make(tmp_path / "model", "old")
    other = tmp_path / "model" / "others" / "1"
    other.mkdir(parents=True)
    (other / "cameras.bin").write_text("other")
    assert other / "cameras.bin" in map_paths(tmp_path / "model").values()
    (other / "letters.txt").write_text("dear")
    with pytest.raises(FileError, match=r"'others/1/letters.txt'"):
        make(tmp_path / "model", overwrite=True)
    (other / "letters.txt").rename(other.parent / "letters.txt")
    with pytest.raises(FileError, match=r"'others/letters.txt'"):
        make(tmp_path / "model", overwrite=True)
    (other.parent / "letters.txt").unlink()
    make(tmp_path / "model", overwrite=True)
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["cameras.bin"]


def test_an_empty_folder_will_do(tmp_path):
    (tmp_path / "model").mkdir()
    make(tmp_path / "model")
    assert (tmp_path / "model" / "cameras.bin").exists()


def test_a_link_to_a_folder_is_followed(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "model").symlink_to(tmp_path / "far")
    make(tmp_path / "model")
    assert (tmp_path / "model").is_symlink()
    assert (tmp_path / "far" / "cameras.bin").exists()


@pytest.mark.parametrize(("place", "message"), [("file", "not a folder"), ("none/model", "there is no folder")])
def test_places_where_no_model_can_be(tmp_path, place, message):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match=message):
        make(tmp_path / place)


def test_somebody_was_quicker(tmp_path):
    with pytest.raises(FileError, match="already"), new_model_folder(tmp_path / "model"):
        make(tmp_path / "model", "theirs")
    assert (tmp_path / "model" / "cameras.bin").read_text() == "theirs"


def test_the_old_one_comes_back_if_the_new_one_can_not_be_put(tmp_path, monkeypatch):
    make(tmp_path / "model", "old")
    real = os.rename

    def rename(source, target):
        if str(source).endswith("model") and "part" in str(source):
            raise OSError(5, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(model_folder, "_exchange", lambda *_: False)
    with pytest.raises(FileError, match="Input/output error"):
        make(tmp_path / "model", overwrite=True)
    assert (tmp_path / "model" / "cameras.bin").read_text() == "old"


def test_at_every_moment_there_is_a_map(tmp_path, monkeypatch):
    make(tmp_path / "model", "old")
    (tmp_path / "model").chmod(0o700)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    if not model_folder._exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this file system cannot exchange folders")
    monkeypatch.setattr(os, "rename", lambda *_: pytest.fail("between two renames there is none"))
    make(tmp_path / "model", overwrite=True)
    assert (tmp_path / "model" / "cameras.bin").read_text() == "new"
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o700
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "model"]


KILLED = """
import os, signal, sys
from sfumato.geometry import model_folder

def die(model, target, aside):
    if sys.argv[2] == "aside":
        os.rename(target, aside)
    os.kill(os.getpid(), signal.SIGKILL)
model_folder._put = die
with model_folder.new_model_folder(sys.argv[1], overwrite=True) as (work, model):
    (work / "database.db").write_text("scratch")
"""


def leave(output, *words):
    """Kill a process while it makes a map, and let a while go by; return the folder it left."""
    done = subprocess.run([sys.executable, "-c", KILLED, output, *words], check=False, timeout=100)
    assert done.returncode == -9
    (place,) = output.parent.glob(f".{output.name}.*.part")
    os.utime(place, (0, 0))
    return place


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    place = leave(tmp_path / "model", "before")
    assert (place / "work" / "database.db").exists()
    make(tmp_path / "other")  # somebody else's
    assert place.exists()
    make(tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "other"]


def test_a_map_that_a_killed_process_had_put_aside_comes_back(tmp_path):
    make(tmp_path / "model", "old")
    leave(tmp_path / "model", "aside")
    assert not (tmp_path / "model").exists()
    with pytest.raises(FileError, match="already"):
        make(tmp_path / "model")
    assert (tmp_path / "model" / "cameras.bin").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_that_is_worked_in_is_left_alone_and_so_is_a_strangers(tmp_path):
    (tmp_path / ".model.mine.part").mkdir()
    (tmp_path / ".model.mine.part" / "letters.txt").write_text("dear")
    os.utime(tmp_path / ".model.mine.part", (0, 0))
    with new_model_folder(tmp_path / "model") as (work, model):
        os.utime(work.parent, (0, 0))
        _clear_leftovers(tmp_path / "model")
        assert work.is_dir()
        (model / "cameras.bin").write_text("new")
    assert (tmp_path / ".model.mine.part" / "letters.txt").exists()


def test_all_five_files_are_written(tmp_path):
    (tmp_path / "model").mkdir()
    write_model(pycolmap.Reconstruction(), tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == sorted(MODEL_FILES)


def test_a_model_that_is_not_whole_is_told(tmp_path):
    class Full:
        """Writes like a full disk: less than it should, and silently."""

        def write(self, folder):
            pycolmap.Reconstruction().write(folder)

        def num_reg_images(self):
            return 3

        def num_points3D(self):
            return 100

        def compute_num_observations(self):
            return 300

    (tmp_path / "model").mkdir()
    with pytest.raises(FileError, match="written whole"):
        write_model(Full(), tmp_path / "model")
