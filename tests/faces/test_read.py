# SPDX-License-Identifier: Apache-2.0
import cv2
import numpy as np
import pytest

from sfumato.errors import FileError, ImageError, InputError, MissingDependency, SkippedWarning
from sfumato.faces import probe
from sfumato.faces.probe import one_face, read_faces
from sfumato.features.embeddings import save_embeddings
from sfumato.types.clear import Embeddings
from sfumato.types.extractor import Extractor


class Reader:
    """Embeds bright pictures, and finds no face in dark ones."""

    def __init__(self, params):
        self.params = params

    def embed(self, image):
        if image.pixels.max() < 100:
            raise ImageError(f"{image.name}: no face was found")
        return Embeddings(np.eye(1, 8), (image.name,), Extractor("dlib-face"))


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "FaceReader", Reader)
    for name, value in (("a.png", 200), ("b.png", 10), ("c.png", 220)):
        assert cv2.imwrite(str(tmp_path / name), np.full((20, 20, 3), value, np.uint8))
    return tmp_path


def test_embeddings_come_from_a_file_or_a_folder_of_files(photos, tmp_path):
    save_embeddings(tmp_path / "a.npz", photos(range(2)))
    save_embeddings(tmp_path / "b.npz", photos(range(2, 5)))
    (tmp_path / "notes.txt").write_text("nothing")
    assert len(read_faces(tmp_path / "a.npz")) == 2
    assert read_faces(tmp_path).names == photos(range(5)).names
    (tmp_path / "c.csv").write_text("alice,1,0,0\n")
    assert read_faces(tmp_path / "c.csv", extractor="dlib-face").extractor.name == "dlib-face"
    with pytest.raises(FileError, match="64"):
        read_faces(tmp_path)


def test_pictures_without_a_face_are_named(pictures):
    with pytest.warns(SkippedWarning, match="b.png") as caught:
        assert read_faces(pictures).names == ("a.png", "c.png")
    assert len(caught) == 1
    assert read_faces(pictures / "a.png").names == ("a.png",)
    with pytest.raises(ImageError, match="no face"):
        read_faces(pictures / "b.png")
    (pictures / "a.png").unlink()
    (pictures / "c.png").unlink()
    with pytest.raises(ImageError, match="no face"):
        read_faces(pictures)


def test_pictures_need_the_extra(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "dlib", None)
    assert cv2.imwrite(str(tmp_path / "a.png"), np.zeros((9, 9), np.uint8))
    with pytest.raises(MissingDependency, match=r"sfumato\[face\]"):
        read_faces(tmp_path / "a.png")


def test_one_of_several_faces_is_chosen_by_name(photos, tmp_path):
    faces = photos(range(3))
    assert one_face(faces, "p1_0", tmp_path).names == ("p1_0",)
    assert len(one_face(photos(range(1)), None, tmp_path)) == 1
    with pytest.raises(InputError, match="--row"):
        one_face(faces, None, tmp_path)
    with pytest.raises(InputError, match="'p1_1'"):
        one_face(faces, "p1_1", tmp_path)
    with pytest.raises(InputError, match="called"):
        one_face(Embeddings(np.eye(2, 8), ("a", "a")), "a", tmp_path)
