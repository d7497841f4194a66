# SPDX-License-Identifier: Apache-2.0
import json
import multiprocessing
import os
import shutil

import h5py
import numpy as np
import pytest

from sfumato.concealment.faces import conceal_embeddings
from sfumato.errors import FileError
from sfumato.faces import gallery_file
from sfumato.faces.compare import choose_threshold
from sfumato.faces.gallery import Gallery
from sfumato.faces.gallery_file import change_gallery, load_gallery
from sfumato.files.atomic import file_lock
from sfumato.types.clear import Embeddings
from sfumato.types.recipe import Recipe


@pytest.fixture
def gallery(photos):
    threshold = choose_threshold(np.arange(1.0, 100), 0.2, comparison="s-to-s", people=9)
    return Gallery(conceal_embeddings(photos(range(4)), "random-2")).with_threshold(threshold).revoke(["p3_0"])


@pytest.fixture
def path(gallery, tmp_path):
    with change_gallery(tmp_path / "gallery.h5") as change:
        assert change.before is None
        change.after = gallery
    return tmp_path / "gallery.h5"


def test_what_was_written_is_read_to_the_last_bit(path, gallery):
    read = load_gallery(path)
    assert read.templates.ids == gallery.templates.ids
    assert read.templates.extractor == gallery.templates.extractor
    assert (read.recipe, read.recipe.decoys) == (gallery.recipe, gallery.recipe.decoys)
    assert (dict(read.releases), read.thresholds) == (dict(gallery.releases), gallery.thresholds)
    assert np.array_equal(read.templates.subspaces.origin, gallery.templates.subspaces.origin)
    assert np.array_equal(read.templates.subspaces.basis, gallery.templates.subspaces.basis)
    assert os.listdir(path.parent) == ["gallery.h5"]
    with change_gallery(path) as change:
        change.after = change.before.revoke(change.before.templates.ids)
    assert len(load_gallery(path)) == 0


def test_a_new_file_is_private_and_a_changed_one_keeps_its_mode(path):
    assert path.stat().st_mode & 0o777 == 0o600
    for mode in (0o640, 0o600, 0o444):
        path.chmod(mode)
        with change_gallery(path) as change:
            change.after = change.before
        assert path.stat().st_mode & 0o777 == mode


def test_nothing_clear_is_in_the_file(path, photos):
    content = path.read_bytes()
    for row in photos(range(4)).values:
        assert all(row[at : at + 2].tobytes() not in content for at in range(0, 64, 2))


def change_and_stop(path):
    with change_gallery(path) as change:
        change.after = change.before.revoke(["p0_0"])
        raise KeyboardInterrupt


def test_an_error_leaves_the_file_as_it_was(path, monkeypatch):
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        change_and_stop(path)
    assert path.read_bytes() == before

    def full(self, data):
        self._remember(OSError(28, "No space left on device"))
        return len(data)

    monkeypatch.setattr(gallery_file.Sink, "write", full)
    with pytest.raises(FileError, match="space left"), change_gallery(path) as change:
        change.after = change.before.revoke(["p0_0"])
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["gallery.h5"]


def test_a_second_writer_waits_but_not_for_ever(path):
    with file_lock(path), pytest.raises(FileError, match="changed"), file_lock(path, wait=0.05):
        pass
    with file_lock(path, wait=0.0):
        pass


def enroll_some(path, first, go):
    go.wait()
    for person in range(first, first + 5):
        rng = np.random.default_rng(person)
        faces = Embeddings(rng.normal(size=(1, 64)), (f"q{person}",), load_gallery(path).templates.extractor)
        with change_gallery(path) as change:
            change.after = change.before.add(conceal_embeddings(faces, "random-2"))


def test_two_processes_lose_nobody(path):
    fork = multiprocessing.get_context("spawn")
    go = fork.Event()
    writers = [fork.Process(target=enroll_some, args=(path, 10 * number, go)) for number in range(2)]
    for writer in writers:
        writer.start()
    go.set()
    for writer in writers:
        writer.join(200)
        assert writer.exitcode == 0
    assert len(load_gallery(path)) == 13


@pytest.mark.parametrize("keep", [0, 10, 500, 2000])
def test_a_cut_file_is_told(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FileError, match=r"gallery\.h5"):
        load_gallery(path)


def test_any_changed_byte_of_the_templates_is_seen(path):
    with h5py.File(path, "r+") as file:
        file["basis"][0, 0, 0] += 1e-4
    with pytest.raises(FileError, match="templates"):
        load_gallery(path)


def rewrite(path, **changes):
    """Write the arrays of a file anew, some of them changed."""
    with h5py.File(path, "r") as file:
        arrays = {name: file[name][()] for name in file} | changes
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            if array is not None:
                file.create_dataset(name, data=array)


def header(path, **changes):
    """The header of a file with other contents and the right checksum."""
    with h5py.File(path, "r") as file:
        content = json.loads(file["header"][()].tobytes())
    content.pop("checksum")
    content |= changes
    content["checksum"] = gallery_file._digest_content(content)
    return np.frombuffer(json.dumps(content).encode(), np.uint8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "version 2 of the format"),
        ({"format": "other"}, "another kind of file"),
        ({"ids": ["a", "a", "b"]}, "stands for two faces"),
        ({"ids": [["a"], 1, 2]}, "printable"),
        ({"ids": "abc!"}, "list of people"),
        ({"releases": {"a": 0}}, "releases"),
        ({"releases": {"a": "x"}}, "releases"),
        ({"thresholds": [{}]}, "incomplete"),
        ({"recipe": "{}"}, "recipe"),
        ({"more": 1}, "checksum of its header"),
    ],
)
def test_a_header_of_something_else_is_refused(path, changes, words):
    rewrite(path, header=header(path, **changes))
    with pytest.raises(FileError, match=words):
        load_gallery(path)


def test_raw_templates_are_refused(path):
    raw = Recipe.of("raw").to_json()
    arrays = {"origin": np.eye(3, 64, dtype=np.float32), "basis": np.zeros((3, 0, 64), np.float32)}
    rewrite(path, header=header(path, recipe=raw, data=gallery_file._digest_arrays(arrays)), **arrays)
    with pytest.raises(FileError, match="protects nobody"):
        load_gallery(path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda arrays: arrays["origin"].__setitem__((0, 0), np.nan), "finite"),
        (lambda arrays: arrays["basis"].__setitem__((1, 0, 3), np.inf), "finite"),
        (lambda arrays: arrays["basis"].__setitem__(2, 0.0), "dependent"),
        (lambda arrays: arrays.__setitem__("origin", arrays["origin"][:2]), "origin|rows|basis"),
        (lambda arrays: arrays.__setitem__("basis", arrays["basis"][:, :1]), "dimension"),
    ],
)
def test_forged_templates_with_the_right_checksum_are_refused(path, spoil, words):
    with h5py.File(path, "r") as file:
        arrays = {name: file[name][()] for name in ("origin", "basis")}
    spoil(arrays)
    rewrite(path, header=header(path, data=gallery_file._digest_arrays(arrays)), **arrays)
    with pytest.raises(FileError, match=words):
        load_gallery(path)


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"[" * 100_000, b"9" * 100_000, b"null", b'{"format": NaN}'])
def test_headers_that_are_no_headers_are_refused(path, text):
    rewrite(path, header=np.frombuffer(text, np.uint8))
    with pytest.raises(FileError, match=r"gallery\.h5"):
        load_gallery(path)


@pytest.mark.parametrize("when", ["deciding", "writing"])
def test_an_interrupt_leaves_the_file_as_it_was(path, monkeypatch, when):
    before = path.read_bytes()

    def stop(*_):
        raise KeyboardInterrupt

    place = (gallery_file.Sink, "write") if when == "writing" else (Gallery, "revoke")
    monkeypatch.setattr(*place, stop)
    with pytest.raises(KeyboardInterrupt), change_gallery(path) as change:
        change.after = change.before.revoke(["p0_0"])
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["gallery.h5"]
    with change_gallery(path) as change:  # and nobody is locked out
        change.after = change.before.revoke(["p0_0"])
    assert len(load_gallery(path)) == 2


def test_a_folder_in_the_place_of_a_gallery_is_told(tmp_path):
    with pytest.raises(FileError, match="gallery's file"):
        load_gallery(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0 if hasattr(os, "geteuid") else True, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_told(path):
    path.parent.chmod(0o500)
    try:
        with pytest.raises(FileError, match="written"), change_gallery(path):
            pass
    finally:
        path.parent.chmod(0o700)


def test_other_files_are_refused(path, tmp_path):
    with pytest.raises(FileError, match="no such"):
        load_gallery(tmp_path / "gone.h5")
    copy = tmp_path / "copy.h5"
    shutil.copy(path, copy)
    rewrite(copy, header=None)
    with pytest.raises(FileError, match="another kind"):
        load_gallery(copy)
    with h5py.File(copy, "w") as file:
        for name in ("header", "origin"):
            file[name] = h5py.ExternalLink(str(path), name)
        file["basis"] = h5py.SoftLink("/origin")
    with pytest.raises(FileError, match="refused"):
        load_gallery(copy)
    with h5py.File(copy, "w") as file:
        file.create_dataset("header", shape=(10,), dtype="u1")
        file.create_dataset("origin", shape=(10**9, 512), dtype="<f4", chunks=(1, 512))
        file.create_dataset("basis", shape=(1, 1, 512), dtype="<f4")
    with pytest.raises(FileError, match=r"header declares|one piece"):
        load_gallery(copy)
    with pytest.raises(FileError, match="written"), change_gallery(tmp_path / "no" / "folder.h5"):
        pass
