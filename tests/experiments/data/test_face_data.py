# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.experiments.data.face_benchmarks import FacePairs, read_face_pairs, read_labelled_faces, read_pair_list
from sfumato.experiments.faces.attributes import AttributeProtocol, split_faces
from sfumato.types.clear import Embeddings

NAMES = ["Ann_0001", "Ann_0002", "Bob_0001", "Bob_0003"]
PAIRS = "2\t1\nAnn\t1\t2\nAnn\t1\tBob\t1\nBob\t1\t3\nAnn\t2\tBob\t3\n"


@pytest.fixture
def embeddings(tmp_path):
    path = tmp_path / "faces.npz"
    np.savez_compressed(
        path, embedding=np.eye(4, 8, dtype=np.float16), name=NAMES, gender=[1, 1, 0, 0], race=["b", "a", "c", "a"]
    )
    return path


def write_pairs(path, **changes):
    arrays = {
        "embedding": np.eye(4, 8, dtype=np.float32), "left": [0, 0], "right": [1, 2], "same": [True, False],
        "fold": [0, 1],
    }  # fmt: skip
    np.savez(path, **{name: value for name, value in {**arrays, **changes}.items() if value is not None})
    return path


def test_pairs_of_an_npz_file(tmp_path):
    pairs = read_face_pairs(write_pairs(tmp_path / "pairs.npz"))
    assert (len(pairs), pairs.right.tolist(), pairs.same.tolist()) == (2, [1, 2], [True, False])
    assert repr(pairs) == "FacePairs(2 pairs of Embeddings(4 x 8 unknown, clear), 2 folds)"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"left": None}, "left"),
        ({"left": [0, 9]}, "out of range"),
        ({"right": [0, 2]}, "with itself"),
        ({"same": [2, 0]}, "truth values"),
        ({"fold": [0]}, "fold"),
        ({"embedding": None}, "embedding"),
    ],
)
def test_broken_pairs_are_refused(tmp_path, changes, told):
    with pytest.raises(FileError, match=told):
        read_face_pairs(write_pairs(tmp_path / "pairs.npz", **changes))


def test_pickled_arrays_are_never_loaded(tmp_path):
    path = tmp_path / "pairs.npz"
    with pytest.raises(FileError):
        read_face_pairs(write_pairs(path, left=np.array([print, print], object)))


def test_pairs_txt_by_name(tmp_path, embeddings):
    path = tmp_path / "pairs.txt"
    path.write_text(PAIRS)
    assert read_pair_list(path)[2] == ("Bob_0001", "Bob_0003", True, 1)
    pairs = read_face_pairs(path, embeddings)
    assert pairs.left.tolist() == [0, 0, 2, 1]
    assert pairs.right.tolist() == [1, 2, 3, 3]
    assert pairs.fold.tolist() == [0, 0, 1, 1]
    with pytest.raises(FileError, match="--embeddings"):
        read_face_pairs(path)


@pytest.mark.parametrize(
    "text", ["", "x", "1 1\nAnn 1 2\n", "1 1\nAnn 1 2\nAnn 1\n", "1 1\nAnn 1 2\nAnn 1 Bob x\n", "-1 -1\n"]
)
def test_broken_lists_are_refused(tmp_path, text):
    path = tmp_path / "pairs.txt"
    path.write_text(text)
    with pytest.raises(FileError, match=r"pairs\.txt"):
        read_pair_list(path)


def test_a_photo_without_embedding_is_named(tmp_path, embeddings):
    path = tmp_path / "pairs.txt"
    path.write_text(PAIRS.replace("Bob\t1\t3", "Bob\t1\t7"))
    with pytest.raises(FileError, match="Bob_0007"):
        read_face_pairs(path, embeddings)


def test_labels_of_the_file_itself(embeddings):
    source = read_labelled_faces(embeddings, ("gender", "race"))
    assert source.labels["gender"].tolist() == [1, 1, 0, 0]
    assert source.labels["race"].tolist() == [1, 0, 2, 0]
    with pytest.raises(FileError, match="age"):
        read_labelled_faces(embeddings, ("age",))


def test_labels_of_a_table(tmp_path, embeddings):
    table = tmp_path / "labels.csv"
    table.write_text("file,age,gender\n" + "".join(f"{name},3,{name[:3]}\n" for name in reversed(NAMES)))
    assert read_labelled_faces(embeddings, ("gender",), table).labels["gender"].tolist() == [0, 0, 1, 1]
    with pytest.raises(FileError, match="'race'"):
        read_labelled_faces(embeddings, ("race",), table)
    table.write_text("file,gender\nAnn_0001,x\n")
    with pytest.raises(FileError, match="gender"):
        read_labelled_faces(embeddings, ("gender",), table)
    table.write_text("file,gender\nAnn_0001\n")
    with pytest.raises(FileError, match="line 2"):
        read_labelled_faces(embeddings, ("gender",), table)


def test_labels_as_fairface_has_them(tmp_path):
    """The columns, texts and names of fairface_label_val.csv and its folders."""
    names = ("train/1.jpg", "train/2.jpg", "val/1.jpg")
    np.savez(tmp_path / "faces.npz", embedding=np.eye(3), name=np.array(names))
    table = tmp_path / "fairface_label.csv"
    table.write_text(
        "file,age,gender,race,service_test\r\n"
        "train/1.jpg,50-59,Male,East Asian,True\r\n"
        "train/2.jpg,more than 70,Female,Latino_Hispanic,False\r\n"
        "val/1.jpg,3-9,Male,East Asian,False\r\n"
    )
    source = read_labelled_faces(tmp_path / "faces.npz", ("gender", "race"), table)
    assert source.labels["gender"].tolist() == [1, 0, 1]
    assert source.labels["race"].tolist() == [0, 1, 0]
    deal = split_faces(
        source.faces.names, AttributeProtocol(decoys=1, attacker=1, attacked=1, attacked_prefix="val/"), 0
    )
    assert deal.attacked.tolist() == [2]


def test_no_pairs_are_a_case():
    nothing = np.zeros(0, np.int64)
    assert len(FacePairs(Embeddings(np.eye(2, 4)), nothing, nothing, nothing.astype(bool), nothing)) == 0
    with pytest.raises(InputError):
        FacePairs(Embeddings(np.eye(2, 4)), np.array([0.5]), np.array([1]), np.array([True]), np.array([0]))


def test_real_pairs(shared_data):
    path = shared_data / "faces" / "lfw_arcface_folds_0-4.npz"
    if not path.exists():
        pytest.skip(f"needs {path}")
    pairs = read_face_pairs(path)
    assert (len(pairs), len(pairs.faces), np.unique(pairs.fold).size) == (3000, 3811, 5)
