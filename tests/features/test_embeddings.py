# SPDX-License-Identifier: Apache-2.0
import zipfile

import numpy as np
import pytest

from sfumato.errors import FileError
from sfumato.features.embeddings import read_column, read_embeddings, save_embeddings
from sfumato.types.clear import Embeddings
from sfumato.types.extractor import Extractor


def test_what_was_written_is_read(tmp_path):
    faces = Embeddings(np.eye(3, 8), ("a", "b", "Zoë"), Extractor("arcface"))
    save_embeddings(tmp_path / "faces.npz", faces)
    read = read_embeddings(tmp_path / "faces.npz")
    assert read.names == faces.names
    assert read.extractor.name == "arcface"
    assert np.array_equal(read.values, faces.values)
    save_embeddings(tmp_path / "none.npz", faces[:0])
    assert read_embeddings(tmp_path / "none.npz").values.shape == (0, 8)


def test_other_arrays_and_compression_do_not_matter(tmp_path):
    np.savez_compressed(tmp_path / "f.npz", embeddings=np.eye(2, 4, dtype=np.float16), names=["x", "y"], gender=[0, 1])
    read = read_embeddings(tmp_path / "f.npz", "arcface")
    assert (read.names, read.extractor.name) == (("x", "y"), "arcface")
    assert read_column(tmp_path / "f.npz", "gender").tolist() == [0, 1]
    with pytest.raises(FileError, match="'age'"):
        read_column(tmp_path / "f.npz", "age")


def test_tables_are_read_with_and_without_a_heading(tmp_path):
    (tmp_path / "a.csv").write_text("name,v0,v1\nalice,3,4\n\nbob,0,-1\n")
    (tmp_path / "b.csv").write_text("alice,3,4\nbob,0,-1\n")
    for name in ("a.csv", "b.csv"):
        read = read_embeddings(tmp_path / name)
        assert read.names == ("alice", "bob")
        assert np.allclose(read.values, [[0.6, 0.8], [0, -1]])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no line"),
        ("name,v\n", "no line"),
        ("alice,3,4\nbob,1\n", "line 2 has 1 numbers"),
        ("alice,3,x\n", "line 1 is not"),
        ("alice\n", "line 1 has 0 numbers"),
        ("alice,nan,1\n", "not finite"),
        ("alice,0,0\n", "no direction"),
    ],
)
def test_broken_tables_are_told(tmp_path, text, words):
    (tmp_path / "f.csv").write_text(text)
    with pytest.raises(FileError, match=words) as told:
        read_embeddings(tmp_path / "f.csv")
    assert "f.csv" in str(told.value)


def test_broken_and_hostile_files_are_told(tmp_path):
    path = tmp_path / "f.npz"
    with pytest.raises(FileError, match="no such"):
        read_embeddings(path)
    with pytest.raises(FileError, match=r"named \.npz or \.csv"):
        read_embeddings(tmp_path / "f.txt")
    path.write_bytes(b"PK no zip")
    with pytest.raises(FileError, match="damaged"):
        read_embeddings(path)
    np.savez(path, other=np.eye(2))
    with pytest.raises(FileError, match="embedding"):
        read_embeddings(path)
    np.savez(path, embedding=np.array([{}, {}], object))
    with pytest.raises(FileError, match="type"):
        read_embeddings(path)
    np.savez(path, embedding=np.asfortranarray(np.ones((2, 3))))
    with pytest.raises(FileError, match="save"):
        read_embeddings(path)
    np.savez(path, embedding=np.eye(3), name=["a"])
    with pytest.raises(FileError, match="text"):
        read_embeddings(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("embedding.npy", bytes(2**26 + 1))
    with pytest.raises(FileError, match="larger"):
        read_embeddings(path)
    (tmp_path / "f.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match="UTF-8"):
        read_embeddings(tmp_path / "f.csv")


def test_the_real_files_are_read(shared_data):
    lfw = read_embeddings(shared_data / "faces" / "lfw_arcface_folds_0-4.npz", "arcface")
    assert lfw.values.shape == (3811, 512)
    assert lfw.names[0] == "Aaron_Patterson_0001"
    assert read_column(shared_data / "faces" / "utkface_arcface.npz", "gender").shape == (8000,)
