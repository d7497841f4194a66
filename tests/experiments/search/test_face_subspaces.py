# SPDX-License-Identifier: Apache-2.0
import cv2
import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.experiments.search.faces import FacePictures, FaceSubspaceParams, read_face_pictures, split_faces

SMALL = FaceSubspaceParams(images=8, dim=3, query_dims=(1, 4))


def lit_faces(people=6, pictures=14, side=6, seed=0):
    """Made-up faces: every picture of a person is a mixture of three of their own, with noise."""
    rng = np.random.default_rng(seed)
    own = rng.uniform(size=(people, 3, side * side))
    pixels = np.einsum("pnk,pki->pni", rng.uniform(size=(people, pictures, 3)), own) / 3
    pixels += 0.01 * rng.normal(size=pixels.shape)
    return FacePictures(
        np.clip(pixels, 0, 1).reshape(-1, side * side).astype(np.float32), np.repeat(np.arange(people), pictures)
    )


def test_a_split_spans_each_person_and_asks_with_other_images():
    faces = lit_faces()
    entries, queries = split_faces(faces, SMALL, np.random.default_rng(1))
    assert entries.basis.shape == (6, 3, 36)
    assert [one.basis.shape for one in queries] == [(6, 1, 36), (6, 4, 36)]
    assert not entries.origin.any()
    for person in range(6):
        pictures = faces.pixels[faces.subject == person]
        left = pictures - pictures @ entries.basis[person].T @ entries.basis[person]
        assert np.linalg.norm(left, axis=1).max() < 0.15  # noise
    again = split_faces(faces, SMALL, np.random.default_rng(1))
    assert np.array_equal(again[0].basis, entries.basis)
    assert not np.array_equal(split_faces(faces, SMALL, np.random.default_rng(2))[0].basis, entries.basis)


def test_queries_share_no_image_with_the_database():
    faces = FacePictures(np.eye(40, dtype=np.float32), np.repeat([0, 1], 20))  # every image its own direction
    entries, queries = split_faces(
        faces, FaceSubspaceParams(images=8, dim=8, query_dims=(5,)), np.random.default_rng(0)
    )
    assert np.abs(np.einsum("pki,pli->pkl", entries.basis, queries[0].basis)).max() < 1e-6


def test_too_few_images_are_told():
    with pytest.raises(InputError, match="46"):
        split_faces(lit_faces(), FaceSubspaceParams(), np.random.default_rng(0))
    with pytest.raises(InputError, match="span"):
        FaceSubspaceParams(images=3, dim=5)


def test_faces_of_a_file(tmp_path):
    image = np.random.default_rng(0).integers(0, 255, (10, 4, 3), np.uint8)
    np.savez(tmp_path / "f.npz", image=image, subject=np.array([7, 7, 9, 9, 9, 12, 12, 12, 12, 7]))
    faces = read_face_pictures(tmp_path / "f.npz")
    assert (faces.people, faces.pixels.shape) == (3, (10, 12))
    assert faces.subject.tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2, 0]
    assert "10 pictures of 3 people" in repr(faces)
    for wrong in ({"image": image}, {"image": image.astype(float), "subject": np.zeros(10, int)}):
        np.savez(tmp_path / "w.npz", **wrong)
        with pytest.raises(FileError, match=r"w\.npz"):
            read_face_pictures(tmp_path / "w.npz")
    (tmp_path / "w.npz").write_bytes(b"nothing")
    with pytest.raises(FileError, match="npz"):
        read_face_pictures(tmp_path / "w.npz")


def test_faces_of_folders_are_cropped(tmp_path):
    for person in ("anna", "bert"):
        (tmp_path / person).mkdir()
        for number, size in enumerate([(40, 30), (60, 80)]):
            cv2.imwrite(
                str(tmp_path / person / f"{number}.png"), np.full(size, 100 + 50 * (person == "bert"), np.uint8)
            )
    faces = read_face_pictures(tmp_path, (19, 23))
    assert (faces.pixels.shape, faces.subject.tolist()) == ((4, 437), [0, 0, 1, 1])
    assert np.allclose(faces.pixels[0], 100 / 255)
    with pytest.raises(InputError, match="different sizes"):
        read_face_pictures(tmp_path)
    with pytest.raises(InputError, match="crop"):
        read_face_pictures(tmp_path, (0, 5))
    cv2.imwrite(str(tmp_path / "c.png"), np.zeros((5, 5), np.uint8))
    with pytest.raises(InputError, match="no folder"):
        read_face_pictures(tmp_path, (5, 5))


def test_extended_yale_b(shared_data):
    faces = read_face_pictures(shared_data / "faces" / "yale_b_24x21.npz")
    assert (faces.people, faces.pixels.shape) == (38, (2414, 504))
    entries, queries = split_faces(faces, FaceSubspaceParams(), np.random.default_rng(0))
    assert (entries.basis.shape, len(queries)) == ((38, 5, 504), 10)
